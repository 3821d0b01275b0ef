"""Folders of an interrupted ``tune`` that are damaged or planted: one sentence, no hang, no file
elsewhere touched.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lanternbench.errors import UserError
from lanternbench.tune.tuning import Measured, Pieces

pytestmark = pytest.mark.usefixtures("in_time")
SETTINGS = {"method": "eagle-1", "few": 3, "weights": {"target": "1"}}
COSTS = [
    {
        "shape": {"nodes": 1, "depth": 0},
        "cached": 32,
        "draft_s": 0.0,
        "forward_s": 0.01,
        "rest_s": 0.001,
    }
]
LINE = Measured(name="ar", prompt="1", tokens=256, steps=256, decode_s=1.0, robust_s=0.9)
CONTENTS = {
    "nothing": b"",
    "half of it": b'[{"shape": {"nod',
    "a web page": b"<html>",
    "another type": b"3",
    "null": b"null",
    "an empty list": b"[]",
    "an empty object": b"{}",
    "other fields": b'[{"name": "ar"}]\n',
    "no numbers": b'{"name": "ar", "prompt": "1", "tokens": NaN, "steps": 1, "decode_s": 1, "robust_s": 1}\n',
    "no time": b'{"name": "ar", "prompt": "1", "tokens": 1, "steps": 1, "decode_s": 0, "robust_s": 1}\n',
    "another prompt": b'{"name": "ar", "prompt": "2", "tokens": 1, "steps": 1, "decode_s": 1, "robust_s": 1}\n',
    "a line twice": 2 * (LINE.model_dump_json().encode() + b"\n"),
    "thousands of digits": b"[" + b"9" * 5000 + b"]\n",
    "deep nesting": b"[" * 100_000 + b"\n",
    "half an archive": b"PK\x03\x04" + b"\0" * 100,
    "bytes": bytes(range(256)),
}


def search(folder: Path) -> tuple[object, object, list[Measured]]:
    """A search as short as can be: its costs, one recording, one measured image."""
    pieces = Pieces(folder)
    try:
        pieces.claim(SETTINGS)
        costs = pieces.json("costs.json", lambda: COSTS)
        record = pieces.arrays("chain-0", lambda: {"reached": np.ones(3)})
        lines = list(pieces.measured)
        if not pieces.measured.keys <= {("ar", "1")}:
            raise pieces.damaged("measured.jsonl")
        if not lines:
            pieces.measured.append(LINE)
        return costs, {name: array.tolist() for name, array in record.items()}, lines or [LINE]
    finally:
        pieces.close()


WHOLE = COSTS, {"reached": [1.0, 1.0, 1.0]}, [LINE]


@pytest.mark.parametrize(
    "name", ["tune.json", "digests.json", "costs.json", "chain-0.npz", "measured.jsonl"]
)
@pytest.mark.parametrize("content", [*CONTENTS, "a folder", "a pipe"])
def test_a_damaged_piece_is_named_and_made_again_without_it(name, content, tmp_path):
    assert search(tmp_path) == WHOLE == search(tmp_path)
    path = tmp_path / name
    path.unlink()
    if content == "a folder":
        path.mkdir()
    elif content == "a pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(CONTENTS[content])
    said = ""
    try:
        found = search(tmp_path)
    except UserError as error:
        said = str(error)
        path.rmdir() if path.is_dir() else path.unlink()
        found = search(tmp_path)
    assert found == WHOLE
    settings = name == "tune.json" and (
        "search with other settings" in said or "begun with other weights" in said
    )
    # as if it were not there
    dispensable = not said and name in ("tune.json", "digests.json", "measured.jsonl")
    assert name in said or settings or dispensable


def test_a_linked_piece_leads_nowhere(tmp_path):
    other = tmp_path / "diary.txt"
    other.write_text("mine")
    folder = tmp_path / "search"
    folder.mkdir()
    (folder / "measured.jsonl").symlink_to(other)
    pieces = Pieces(folder)
    with pytest.raises(UserError, match=r"cannot write .*measured\.jsonl"):
        pieces.measured.append(LINE)
    (folder / "costs.json").symlink_to(other)
    assert pieces.json("costs.json", lambda: COSTS) == COSTS
    pieces.close()
    assert other.read_text() == "mine"
