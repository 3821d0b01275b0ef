"""Weights that are not what they should be: one sentence before anything is decoded, never a
traceback, never τ = 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_anole import PUBLISHED, files, load, written  # noqa: F401 (files and written are fixtures)
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models import catalogue
from lanternbench.models.llamagen.checkpoint import T5Features
from lanternbench.models.loading import read_state
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.utils.files import WEIGHTS

pytestmark = pytest.mark.usefixtures("in_time")
State = dict[str, Tensor]
NAMES = ("target", "text", "vq", "eagle", "medusa", "model")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A target folder as ``train tiny`` writes it."""
    for name in NAMES:
        (tmp_path / f"{name}.safetensors").symlink_to(WEIGHTS / f"{name}.safetensors")
    return tmp_path


def changed(name: str, change: Callable[[State], object], folder: Path) -> None:
    path = folder / f"{name}.safetensors"
    state, meta = tiny.read(path)
    state = {k: v.clone() for k, v in state.items()}
    change(state)
    path.unlink()
    save_file(state, path, {k: json.dumps(v) for k, v in meta.items()})


def headed(name: str, header: dict[str, str], folder: Path) -> None:
    path = folder / f"{name}.safetensors"
    state = load_file(path)
    path.unlink()
    save_file(state, path, header)


def shaped(name: str, folder: Path, **fields: object) -> None:
    _, meta = tiny.read(folder / f"{name}.safetensors")
    headed(name, {"config": json.dumps({**meta["config"], **fields})}, folder)


def first(state: State) -> str:
    return max(state, key=lambda k: state[k].numel())


def poisoned(value: float, state: State) -> None:
    state[first(state)].view(-1)[-1] = value


def cast(dtype: torch.dtype, state: State) -> None:
    state[first(state)] = state[first(state)].to(dtype)


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as said:
        catalogue.load_target(str(folder))
    assert len(str(said.value).splitlines()) == 1
    assert len(str(said.value)) < 600
    return str(said.value)


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_not_finite_are_refused(name, folder):
    changed(name, partial(poisoned, float("inf" if name == "target" else "nan")), folder)
    said = refused(folder)
    assert f"{name}.safetensors" in said
    assert "NaN or infinite" in said


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.int8) for name in NAMES),
        ("target", torch.float8_e4m3fn),
        ("target", torch.complex64),
    ],
)
def test_weights_that_are_no_plain_floats_are_refused(name, dtype, folder):
    changed(name, partial(cast, dtype), folder)
    said = refused(folder)
    assert f"{name}.safetensors" in said
    assert str(dtype).removeprefix("torch.") in said


def renamed(state: State) -> None:
    state["another"] = state.pop(first(state))


def flattened(state: State) -> None:
    state[first(state)] = state[first(state)].flatten()


def scalar(state: State) -> None:
    state[first(state)] = torch.tensor(1.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [renamed, flattened, scalar])
def test_tensors_that_are_missing_or_of_another_shape_are_refused(name, change, folder):
    changed(name, change, folder)
    assert f"{name}.safetensors" in refused(folder)


FOLDERS: dict[str, Callable[[Path], object]] = {
    "no header": partial(headed, "target", {}),
    "no JSON in the header": partial(headed, "target", {"config": "{"}),
    "a config that is no object": partial(headed, "target", {"config": "[1]"}),
    "a config that lacks a key": partial(headed, "target", {"config": '{"dim": 128}'}),
    "a config with another key": partial(shaped, "target", wings=2),
    "a size that is a word": partial(shaped, "target", dim="wide"),
    "a size that is a list": partial(shaped, "target", n_layer=[1]),
    "a size of nothing": partial(shaped, "target", n_layer=None),
    "a negative size": partial(shaped, "target", dim=-128),
    "no heads": partial(shaped, "target", n_head=0),
    "heads that do not divide the width": partial(shaped, "target", n_head=7),
    "an odd head width": partial(shaped, "target", n_head=128),
    "a fractional size": partial(shaped, "target", dim=128.5),
    "an absurd width": partial(shaped, "target", dim=2**40),
    "an absurd number": partial(shaped, "target", vocab_size=10**30),
    "an absurd depth": partial(shaped, "target", n_layer=10**9),
    "an absurd grid": partial(shaped, "target", grid=10**6),
    "an absurd prefix": partial(shaped, "target", cls_token_num=10**9),
    "a negative grid": partial(shaped, "target", grid=-1),
    "no grid": partial(shaped, "target", grid=0),
    "an unknown kind": partial(shaped, "target", model_type="video"),
    "a tokeniser without levels": partial(shaped, "vq", ch_mult=[]),
    "a tokeniser of a thousand levels": partial(shaped, "vq", ch_mult=[1] * 1000),
    "a tokeniser with negative widths": partial(shaped, "vq", ch=-32),
    "a tokeniser of absurd depth": partial(shaped, "vq", num_res_blocks=10**8),
    "a tokeniser in words": partial(shaped, "vq", ch_mult="abc"),
    "norm groups that do not divide": partial(shaped, "vq", norm_groups=7),
    "a drafter of absurd depth": partial(shaped, "model", n_layer=10**7),
    "no file": lambda folder: (folder / "vq.safetensors").unlink(),
    "an empty file": lambda folder: [
        p.unlink() or p.write_bytes(b"") for p in [folder / "eagle.safetensors"]
    ],
    "a folder in place of a file": lambda folder: [
        p.unlink() or p.mkdir() for p in [folder / "medusa.safetensors"]
    ],
    "a web page": lambda folder: [
        p.unlink() or p.write_text("<html>") for p in [folder / "target.safetensors"]
    ],
}


@pytest.mark.parametrize("fault", FOLDERS)
def test_an_odd_target_folder_is_one_sentence(fault, folder):
    FOLDERS[fault](folder)
    assert str(folder) in refused(folder) or ".safetensors" in refused(folder)


def down(folder: Path) -> None:
    path = folder / "eagle" / "pytorch_model.bin"
    state = {k: v.clone() for k, v in read_state(path).items()}
    torch.save(state | {"layers.0.mlp.down_proj.weight": torch.zeros(3)}, path)


def eagle_says(text: str, folder: Path) -> None:
    (folder / "eagle" / "config.json").write_text(text)


def anole_says(folder: Path, **fields: object) -> None:
    said = {k: v for k, v in (PUBLISHED | fields).items() if v != "leave out"}
    (folder / "model" / "config.json").write_text(json.dumps(said))


def vq_says(folder: Path, **fields: object) -> None:
    anole_says(folder, vq_config=PUBLISHED["vq_config"] | fields)


PUBLISHED_FOLDERS: dict[str, Callable[[Path], object]] = {
    "a down_proj of one dimension": down,
    "a drafter of another depth": lambda folder: eagle_says(
        '{"num_attention_heads": "two"}', folder
    ),
    "a drafter's epsilon in words": lambda folder: eagle_says('{"rms_norm_eps": "small"}', folder),
    "a drafter's config that is a list": lambda folder: eagle_says("[]", folder),
    "no config": lambda folder: (folder / "model" / "config.json").unlink(),
    "a config that is no JSON": lambda folder: (folder / "model" / "config.json").write_text("{"),
    "a config that is nested too deep": lambda folder: (
        folder / "model" / "config.json"
    ).write_text("[" * 100_000),
    "a config in bytes": lambda folder: (folder / "model" / "config.json").write_bytes(
        b"\xff\xfe\x00"
    ),
    "sizes left out": partial(anole_says, hidden_size="leave out"),
    "sizes in words": partial(anole_says, hidden_size="wide"),
    "negative sizes": partial(anole_says, hidden_size=-32),
    "no heads": partial(anole_says, num_attention_heads=0),
    "absurd sizes": partial(anole_says, intermediate_size=2**50),
    "an absurd depth": partial(anole_says, num_hidden_layers=10**9),
    "absurd positions": partial(anole_says, max_position_embeddings=10**12),
    "positions in words": partial(anole_says, max_position_embeddings="many"),
    "a rope that is a list": partial(anole_says, rope_parameters=[1]),
    "a base in words": partial(anole_says, rope_theta="big"),
    "an epsilon in words": partial(anole_says, rms_norm_eps="small"),
    "an epsilon that is NaN": partial(anole_says, rms_norm_eps=float("nan")),
    "a vq_config that is a list": partial(anole_says, vq_config=[1, 2]),
    "a vq_config that is a word": partial(anole_says, vq_config="big"),
    "levels in words": partial(vq_says, ch_mult="abc"),
    "levels that are a number": partial(vq_says, ch_mult=3),
    "no levels": partial(vq_says, ch_mult=[]),
    "negative widths": partial(vq_says, ch=-1),
    "absurd widths": partial(vq_says, ch=2**60),
    "absurd blocks": partial(vq_says, num_res_blocks=10**9),
    "codes in words": partial(vq_says, n_embed="many"),
    "parameters in a list": partial(vq_says, ddconfig=[1]),
}


@pytest.mark.parametrize("fault", PUBLISHED_FOLDERS)
def test_an_odd_published_folder_is_one_sentence(fault, files):  # noqa: F811
    PUBLISHED_FOLDERS[fault](files[0])
    with pytest.raises(UserError) as said:
        load(files[0])
    assert len(str(said.value).splitlines()) == 1
    assert len(str(said.value)) < 600


@pytest.mark.parametrize("role", ["model", "eagle"])
def test_published_weights_that_are_not_finite_or_quantised_are_refused(role, files):  # noqa: F811
    folder = files[0]
    path = folder / role / {"model": "model.safetensors", "eagle": "pytorch_model.bin"}[role]
    for poison, says in ((torch.nan, "NaN or infinite"), (None, "int8")):
        state = {k: v.clone() for k, v in read_state(path).items()}
        key = next(k for k in state if k.endswith("down_proj.weight"))
        state[key] = state[key].to(torch.int8) if poison is None else state[key] * poison
        whole = path.read_bytes()
        save_file(state, path) if role == "model" else torch.save(state, path)
        with pytest.raises(UserError, match=says):
            load(folder)
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [b"\x80\x04cos\nsystem\n", b"", b"<html>", b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickle_in_place_of_t5_is_one_sentence(name, content, tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, T5Config

    folder = tmp_path / "text"
    T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=16).save_pretrained(
        folder
    )
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    ).save_pretrained(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match="text encoder") as said:
        T5Features(folder, 4, "cpu", torch.float32, 8)(["a"])
    assert len(str(said.value).splitlines()) == 1
