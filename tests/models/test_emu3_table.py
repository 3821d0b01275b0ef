"""The releases' merge table gives the ids of the published tokeniser."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch

from lanternbench.errors import UserError
from lanternbench.models.catalogue import resized
from lanternbench.models.emu3.checkpoint import (
    BOS,
    TURN,
    Emu3Checkpoint,
    Emu3Config,
    Emu3Family,
    Emu3Text,
)
from lanternbench.models.emu3.tiktoken import FIRST_IMAGE_ID, MERGED, read_ranks
from lanternbench.models.entries import Entry, entry
from lanternbench.models.token_decoder import PromptFrame


@pytest.fixture
def table(shared) -> Path:
    path = shared / "data" / "emu3.tiktoken"
    if not path.is_file():
        pytest.skip(f"MERGE TABLE ABSENT: no {path}, so no caption was compared")
    return path


@pytest.fixture
def rules(shared) -> dict:
    path = shared / "golden" / "emu35_rules.json"
    if not path.is_file():
        pytest.skip(f"GOLDEN VECTORS ABSENT: no {path}, so no caption was compared")
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def text_of(table: Path) -> Emu3Text:
    """Emu3.5's tokeniser as a checkpoint reads it, which takes two seconds."""
    with tempfile.TemporaryDirectory() as folder:
        made = checkpoint(table, Path(folder), entry("emu3.5-image"))
        return cast(Emu3Text, made.text)


def checkpoint(table: Path, folder: Path, row: Entry) -> Emu3Checkpoint:
    """The published table, and a config.json with the published number of ids."""
    model = folder / "model"
    model.mkdir()
    (model / "emu3.tiktoken").symlink_to(table)
    ids = row.shape.get("prompt_ids", Emu3Config.prompt_ids)
    config = {"model_type": "Emu3", "vocab_size": ids, "hidden_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 1, "intermediate_size": 8}
    (model / "config.json").write_text(json.dumps(config))
    return cast(Emu3Checkpoint, Emu3Family().at(row, folder, "cpu"))


def frame(table: Path, folder: Path, name: str, sizes: str) -> PromptFrame:
    row = resized(entry(name), f"grid={sizes}", random_weights=True)
    made = checkpoint(table, folder, row)
    made.text = text_of(table)
    return made.frame()


@pytest.fixture
def text(table) -> Emu3Text:
    return text_of(table)


def test_captions_become_the_published_prompts(table, text, rules, tmp_path):
    rows, columns = rules["grid"]
    prefix = rules["image_prefix_ids"][f"{rows}*{columns}"]
    prompts = frame(table, tmp_path, "emu3.5-image", f"{rows}x{columns}")
    before, after = rules["template_cond"].split("{question}")
    written = 0
    for row in rules["captions"]:
        caption = text.encode(row["caption"], before.removeprefix(BOS), after.removesuffix(TURN))
        prompt = prompts.prompt(caption)
        start, *inside, turn = row["prompt_ids"]
        # special tokens that a caption writes are left out, as for every target
        kept = [number for number in inside if number not in text.reserved]
        assert prompt.cond == [start, *kept, turn, *prefix], row["caption"]
        assert prompt.uncond == rules["uncond_ids"]
        written += len(kept) < len(inside)
    assert len(rules["captions"]) == 65
    assert 0 < written < 10


@pytest.mark.parametrize("sizes", ["64*64", "55*73", "41*97", "97*41"])
def test_a_prompt_writes_the_size_of_any_grid(table, rules, sizes, tmp_path):
    prompts = frame(table, tmp_path, "emu3.5-image", sizes.replace("*", "x"))
    assert prompts.after[1:] == rules["image_prefix_ids"][sizes]


def test_emu3_s_release_reads_the_same_table(table, text, tmp_path):
    prompts = frame(table, tmp_path, "emu3-gen", "90x90")
    size = [24, 15, 9, 24, 15]
    caption = text.encode("a cat")
    assert prompts.prompt(caption).cond == [151849, *caption, 151852, *size, 151851]
    release = cast(Emu3Checkpoint, Emu3Family().at(entry("emu3-gen"), tmp_path, "cpu"))
    image_ids = release.image_ids
    assert torch.equal(image_ids, torch.arange(FIRST_IMAGE_ID, FIRST_IMAGE_ID + 32768))


def test_special_tokens_have_the_published_ids(text, rules):
    assert {k: text.names[k] for k in rules["all_special_ids_except_visual"]} == rules[
        "all_special_ids_except_visual"
    ]
    assert rules["visual_token_offset"] == FIRST_IMAGE_ID
    assert rules["n_mergeable"] == MERGED
    assert FIRST_IMAGE_ID + rules["n_visual"] == rules["n_vocab"]


def test_an_image_token_in_a_caption_is_left_out_and_what_looks_like_one_is_text(text):
    assert text.encode("a <|visual token 000123|>cat") == text.encode("a cat")
    for name in ("<|visual token 131072|>", "<|visual token 12|>", "<|extra_205|>"):
        assert text.tokenizer.decode(text.encode(f"a {name}")) == f"a {name}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"IQ== 0\nIg== 1\n", "has 2 tokens, Emu3's table 151,643"),
        (b"IQ==\n", "is no table of merges"),
        (b"!! 0\n", "is no table of merges"),
        (b"IQ== 0\nIQ== 1\n", "has 1 tokens, Emu3's table 151,643"),
        (b"IQ== 0\nIg", "is no table of merges"),
        (b"\x80\x81\n" * 9, "is no table of merges"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 2561218\n", "is a git-LFS pointer"),
        (b"<html>", "is a web page"),
    ],
)
def test_another_table_is_refused(tmp_path, content, says):
    path = tmp_path / "emu3.tiktoken"
    path.write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_ranks(path)
    with pytest.raises(UserError, match=says):
        Emu3Text(path)
