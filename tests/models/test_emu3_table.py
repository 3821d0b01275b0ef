"""The releases' merge table gives the ids of the published tokeniser."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from lanternbench.errors import UserError
from lanternbench.models.emu3.checkpoint import Emu3Text
from lanternbench.models.emu3.tiktoken import FIRST_IMAGE_ID, MERGED, read_ranks


@cache
def tokeniser(path: Path) -> Emu3Text:
    return Emu3Text(path, ["<|extra_203|>"])


@pytest.fixture
def text(shared) -> Emu3Text:
    return tokeniser(shared / "data" / "emu3.tiktoken")


@pytest.fixture
def rules(shared) -> dict:
    return json.loads((shared / "golden" / "emu35_rules.json").read_text(encoding="utf-8"))


def test_captions_become_the_published_ids(text, rules):
    before, after = rules["template_cond"].split("{question}")
    image = "<|visual token"
    captions = [row for row in rules["captions"] if image not in row["caption"]]
    assert len(captions) >= 60
    written = 0
    for row in captions:
        wanted = row["prompt_ids"]
        whole = text.tokenizer.encode(f"{before}{row['caption']}{after}").ids
        assert whole == wanted, row["caption"]
        # special tokens that a caption writes are left out, as for every target
        inside = [i for i in wanted[1:-1] if i not in text.reserved]
        assert text.encode(row["caption"], before, after) == [wanted[0], *inside, wanted[-1]]
        written += len(inside) < len(wanted) - 2
    assert written  # some caption writes one


def test_special_tokens_have_the_published_ids(text, rules):
    assert {k: text.names[k] for k in rules["all_special_ids_except_visual"]} == rules[
        "all_special_ids_except_visual"
    ]
    assert rules["visual_token_offset"] == FIRST_IMAGE_ID
    assert rules["n_mergeable"] == MERGED
    assert FIRST_IMAGE_ID + rules["n_visual"] == rules["n_vocab"]


def test_an_image_token_in_a_caption_is_left_out(text):
    assert text.encode("a <|visual token 000123|>cat") == text.encode("a cat")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"IQ== 0\nIg== 1\n", "has 2 tokens, Emu3's table 151,643"),
        (b"IQ==\n", "is no table of merges"),
        (b"!! 0\n", "is no table of merges"),
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
