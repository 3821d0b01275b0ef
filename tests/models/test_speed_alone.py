"""``hf:FOLDER`` without an image tokeniser: speed, τ and fidelity are measured, and nothing claims
to have images.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from lanternbench.api import Model
from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_target
from lanternbench.models.huggingface import checkpoint
from lanternbench.models.vq import VQConfig, VQModel

CODES, SIDE, WORDS = 40, 4, ["<unk>", "<image>", "a", "red", "circle"]
SENTENCE = "The target has no image tokeniser: its speed, τ and fidelity are measured, no images and no quality."
SETTINGS = {
    "grid": SIDE,
    "image_tokens": [len(WORDS), CODES],
    "prompt": "{caption}<image>",
    "unconditional": "<image>",
}


def write(folder: Path) -> Path:
    """A Llama of transformers that draws 16 tokens of 40, whose folder holds no image tokeniser."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    net = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS) + CODES, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip
    net.save_pretrained(folder)
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "lanternbench.yaml").write_text(yaml.safe_dump(SETTINGS))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("llama"))


def cli(*args: str) -> Result:
    return CliRunner().invoke(app, args)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory) -> Path:
    """The folder of a run of two methods over two prompts, with the metrics that any run has by
    default.
    """
    here = tmp_path_factory.mktemp("here")
    (here / "prompts.txt").write_text("a red circle\na circle\n")
    options = [
        "--prompts",
        str(here / "prompts.txt"),
        "-n",
        "2",
        "--window",
        "4",
        "--out",
        str(here / "results"),
    ]
    done = cli("run", "--target", f"hf:{folder}", "-m", "sjd", *options)
    assert done.exit_code == 0, done.output
    assert SENTENCE in " ".join(done.output.split())
    return next((here / "results").iterdir())


def test_the_run_has_speed_steps_and_fidelity_and_neither_images_nor_scores(run):
    rows = {
        row["label"]: row["figures"]
        for row in json.loads((run / "summary.json").read_text())["rows"]
    }
    assert len(rows) == 2
    for figures in rows.values():
        assert figures["accept_len"]["value"] >= 1
        assert figures["latency_s"]["value"] > 0
        assert figures["fidelity_loss"]["value"] < 1e-5
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [(s["image"], s["metrics"], len(s["token_ids"])) for s in samples] == [
        (None, {}, SIDE**2)
    ] * 4
    assert not list((run / "images").iterdir())


def test_table_and_page_say_so_in_one_sentence(run, tmp_path):
    assert cli("report", str(run), "--out", str(tmp_path)).exit_code == 0
    for name in ("table.md", "report.html"):
        assert (tmp_path / name).read_text().count(SENTENCE) == 1
    page = (tmp_path / "report.html").read_text()
    assert 'data-view="accept"' in page
    assert 'data-show="image"' not in page


def test_what_needs_images_is_refused_with_the_reason(run, folder, tmp_path):
    for args in (
        ("score", str(run)),
        ("report", str(run), "--grid"),
        ("codebook", f"hf:{folder}"),
    ):
        done = cli(*args)
        assert isinstance(done.exception, UserError), args
        assert "has no image tokeniser" in str(done.exception)
    assert "has no images to export" in str(
        cli("score", str(run), "--export", "geneval", str(tmp_path)).exception
    )


@pytest.mark.parametrize("name", ["lantern", "lantern++", "gsd"])
def test_a_rule_that_compares_codes_is_refused_with_the_reason(folder, name):
    with pytest.raises(
        UserError, match="no image tokeniser, whose codes say which tokens look alike"
    ):
        build(load_target(f"hf:{folder}"), method("sjd", acceptance=name))


def test_in_python_the_image_is_none_and_its_map_is_there(folder):
    made = Model(load_target(f"hf:{folder}")).generate("a circle", "sjd", seed=1)
    assert made.image is None
    assert made._repr_html_() == repr(made.stats)
    assert [axes.images[0].get_array().shape for axes in made.plot().axes if axes.images] == [
        (SIDE, SIDE)
    ]


def test_a_tokeniser_may_have_any_number_of_codes_and_must_have_the_model_s(tmp_path, monkeypatch):
    folder = write(tmp_path / "m")
    small = partial(VQConfig, ch=32, ch_mult=(1, 2), num_res_blocks=1, z_channels=32)
    monkeypatch.setattr(checkpoint, "VQConfig", small)  # the published shape takes 280 MB
    (folder / "vq").mkdir()
    for codes in (CODES, CODES + 1):
        net = VQModel(small(codebook_size=codes, codebook_dim=4))
        save_file(net.state_dict(), folder / "vq" / "model.safetensors")
        if codes == CODES:
            target = load_target(f"hf:{folder}")
            assert target.codebook.shape == (CODES, 4)
            assert target.images(torch.zeros(1, SIDE**2, dtype=torch.long))[0].size == (
                2 * SIDE,
                2 * SIDE,
            )
            assert target.evaluators == "full"
        else:
            with pytest.raises(UserError, match="has 41 codes but its image_tokens are 40 tokens"):
                load_target(f"hf:{folder}")


def test_an_empty_tokeniser_folder_is_no_target_for_speed_alone(tmp_path):
    folder = write(tmp_path / "m")
    (folder / "vq").mkdir()
    with pytest.raises(UserError, match="holds no checkpoint"):
        load_target(f"hf:{folder}")
