"""``hf:FOLDER``: transformers' own forward behind the engine gives the tokens of the family
written for the model.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from test_emu3 import CAPTIONS, CODES, GUIDANCE, ROW, SIDE, theirs, write  # noqa: F401
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.emu3 import checkpoint as emu3
from lanternbench.models.emu3.checkpoint import NEGATIVE, QUALITY, Emu3Family
from lanternbench.models.huggingface.checkpoint import SETTINGS
from lanternbench.settings import Sampling

BEFORE, AFTER = emu3.BOS, f"{emu3.IMAGE_START}{SIDE}*{SIDE}{emu3.TOKENS_START}"
SAID = {
    "grid": SIDE,
    "image_tokens": "<|visual token {:06d}|>",
    "prompt": f"{BEFORE}{{caption}}{QUALITY}{AFTER}",
    "unconditional": f"{BEFORE}{NEGATIVE}{AFTER}",
    "row_end": emu3.ROW_END,
    "pad": emu3.PAD,
    "guidance": GUIDANCE,
}


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory) -> Path:  # noqa: F811
    where = write(tmp_path_factory.mktemp("emu3"), theirs, "transformers")
    config = json.loads((where / "model" / "config.json").read_text())
    (where / "model" / "config.json").write_text(
        json.dumps(config | {"architectures": [type(theirs).__name__]})
    )
    (where / "model" / SETTINGS).write_text(yaml.safe_dump(SAID))
    return where


@pytest.fixture(scope="module")
def both(folder):
    """The same checkpoint by the family of ours and by transformers, with the same drafters of
    random weights.
    """
    native = Emu3Family().load(ROW, folder, "cpu")
    torch.manual_seed(1)
    nets = {}
    for fused in (False, True):
        net = new_eagle(native.model, fused).eval().requires_grad_(False)
        nets[net.kind] = net
    other = load_target(f"hf:{folder / 'model'}")
    return replace(native, drafters=nets), replace(other, drafters=nets)


@pytest.mark.parametrize(
    ("name", "options", "temperature"),
    [
        ("ar", {}, 1.0),
        ("scd", {"window": 5}, 1.0),
        ("sjd-pac", {"window": 4}, 1.0),
        ("eagle-2", {}, 0.0),
        ("eagle-3", {"shape": "chain-3"}, 1.0),
        ("cool-sd", {"shape": "mc_sim_7b_63"}, 1.0),
    ],
)
def test_every_kind_of_method_draws_the_tokens_of_the_native_family(
    both, name, options, temperature
):
    tokens = []
    for target in both:
        decoder = build(target, method(name, **options), Sampling(temperature=temperature))
        tokens.append([g.tokens.tolist() for g in engine.generate(decoder, CAPTIONS, seed=3)])
    assert tokens[0] == tokens[1]
    assert len(tokens[0][0]) == SIDE * SIDE


def test_images_are_those_of_the_model_s_own_tokeniser(both):
    torch.manual_seed(0)
    tokens = torch.randint(CODES, (1, SIDE * SIDE))
    ours, others = (torch.from_numpy(np.asarray(t.images(tokens)[0]).copy()).int() for t in both)
    assert (ours - others).abs().max() <= 1


def test_the_command_runs_it_and_records_its_template(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a circle\n")
    command = [
        "run",
        "--target",
        f"hf:{folder / 'model'}",
        "-m",
        "scd",
        "--window",
        "4",
        "--dtype",
        "float32",
    ]
    done = CliRunner().invoke(
        app, [*command, "--prompts", "prompts.txt", "-n", "1", "--metrics", ""]
    )
    assert done.exit_code == 0, done.output
    info = json.loads(next(tmp_path.glob("results/*/run.json")).read_text())
    assert info["target"]["prompt_template"] == SAID["prompt"]
    summary = json.loads(next(tmp_path.glob("results/*/summary.json")).read_text())
    assert any(
        "the target runs through transformers' own layers" in note["text"]
        for note in summary["notes"]
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"grid": 1}, "grid.0 must be at least 2"),
        ({"grid": [4, 200]}, "grid.1 must be at most 128"),
        ({"grid": 100}, "512 positions, too few for 100×100"),
        ({"image_tokens": "<|nothing {}|>"}, "the tokeniser has no token '<|nothing 0|>'"),
        ({"image_tokens": "<|visual token|>"}, "has no place for a number"),
        ({"image_tokens": "<|visual token {:99999999d}|>"}, "has no place for a number"),
        ({"image_tokens": [0, 1]}, "is no range of ids"),
        ({"image_tokens": [0, 10**6]}, "go up to id 999999 but the model has"),
        ({"prompt": "a picture"}, "has no {caption}"),
        ({"row_end": "<|none|>"}, "has no token <|none|>"),
        ({"colour": "red"}, "colour is unknown"),
    ],
)
def test_wrong_settings_are_one_sentence(folder, tmp_path, change, says):
    shutil.copytree(folder / "model", tmp_path / "m")
    (tmp_path / "m" / SETTINGS).write_text(yaml.safe_dump(SAID | change))
    with pytest.raises(UserError) as caught:
        load_target(f"hf:{tmp_path / 'm'}")
    assert says in str(caught.value)


CHANGES = {
    "mapped code": {"auto_map": {"AutoModelForCausalLM": "modeling_theirs.Theirs"}},
    "wider": {"hidden_size": 2**17, "num_attention_heads": 2**10, "num_key_value_heads": 2**10},
    "deeper": {"num_hidden_layers": 100},
    "absurdly deep": {"num_hidden_layers": 10**9},
    "more ids": {"vocab_size": 10**10},
    "longer": {"max_position_embeddings": 10**12},
}


def damage(here: Path, kind: str) -> None:
    if kind == "settings":
        (here / SETTINGS).unlink()
    elif kind == "config":
        (here / "config.json").write_text("[]")
    elif kind == "code":
        (here / "modeling_theirs.py").write_text("raise SystemExit(1)")
    elif kind in CHANGES:
        config = json.loads((here / "config.json").read_text())
        part = config if kind == "mapped code" else config["text_config"]
        part |= CHANGES[kind]
        (here / "config.json").write_text(json.dumps(config))
    elif kind == "class":
        config = json.loads((here / "config.json").read_text())
        (here / "config.json").write_text(json.dumps(config | {"architectures": ["Nobody"]}))
    elif kind == "pickle":
        torch.save(load_file(here / "model.safetensors"), here / "pytorch_model.bin")
        (here / "model.safetensors").unlink()
    elif kind == "partial":
        state = load_file(here / "model.safetensors")
        state.pop("lm_head.weight")
        save_file(state, here / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("code", "has code (modeling_theirs.py), which is never run"),
        ("mapped code", "has code (auto_map in config.json)"),
        ("wider", "describes a model of"),
        ("deeper", "882 weights are absent"),
        ("absurdly deep", "modules"),
        ("more ids", "describes a model of"),
        ("longer", "positions; at most"),
        ("settings", "lanternbench.yaml is missing"),
        ("config", "cannot read"),
        ("class", "has no model class 'Nobody'"),
        ("pickle", "transformers cannot load"),
        ("partial", "has no 'lm_head.weight'"),
    ],
)
def test_a_damaged_folder_is_one_sentence(folder, tmp_path, kind, says):
    shutil.copytree(folder / "model", tmp_path / "m")
    damage(tmp_path / "m", kind)
    with pytest.raises(UserError) as caught:
        load_target(f"hf:{tmp_path / 'm'}")
    assert says in str(caught.value)
