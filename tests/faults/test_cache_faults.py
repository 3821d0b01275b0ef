"""Caches that several processes share: a damaged file is made again, and no writer meets another's
half.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from lanternbench.metrics.features import Net, features, plain_image
from lanternbench.metrics.images import ImageFiles
from lanternbench.models.llamagen.checkpoint import SECONDS, T5Features
from lanternbench.utils.files import HOME, replacing

pytestmark = pytest.mark.usefixtures("in_time")
BAD = {
    "nothing": b"",
    "half a header": b"\xff\0\0\0\0\0\0\0{",
    "a web page": b"<html>",
    "another tensor": None,
}


@pytest.mark.parametrize("content", BAD)
def test_damaged_features_of_a_caption_are_made_again(content, tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    text = T5Features(tmp_path / "text", 4, "cpu", torch.float32, 8)
    made = []

    def encode(self: T5Features, captions: dict[Path, str]) -> None:
        for path in captions:
            made.append(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({"features": torch.ones(2, 8)}, path, {SECONDS: "0.1"})

    monkeypatch.setattr(T5Features, "_encode", encode)
    text(["a fox"])
    text(["a fox"])
    assert len(made) == 1
    if BAD[content] is None:
        save_file({"features": torch.ones(2, 9)}, made[0])
    else:
        made[0].write_bytes(BAD[content])
    states, mask = text(["a fox"])
    assert len(made) == 2
    assert (states.sum(), mask.sum()) == (16, 2)


def test_captions_that_the_encoder_cannot_read_or_cuts_are_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    text = T5Features(tmp_path / "text", 4, "cpu", torch.float32, 8)

    def encode(self: T5Features, captions: dict[Path, str]) -> None:
        for path, caption in captions.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = min(len(caption.split()) + 1, 4)
            save_file({"features": torch.ones(rows, 8)}, path, {SECONDS: "0.1"})

    monkeypatch.setattr(T5Features, "_encode", encode)
    captions = ["a fox", "<a cat>", "一只猫", "a fox in a green field"]
    text.prepare(captions)
    empty, cut = text.notes(captions)
    assert empty.startswith("2 captions have no text that the target reads")
    assert cut.startswith("1 captions have 4 tokens or more: the target reads 4")
    assert text.notes(["a fox"]) == []


@pytest.mark.parametrize("content", [c for c in BAD.values() if c is not None])
def test_a_damaged_cache_of_image_features_is_made_again(content, tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    Image.new("RGB", (2, 2), "white").save(tmp_path / "a.png")
    net = Net(lambda x: x.float().mean((2, 3)), plain_image, "x")

    def work() -> list[list[float]]:
        return features(net, ImageFiles([tmp_path / "a.png"])).tolist()

    work()
    (path,) = (tmp_path / "features").iterdir()
    path.write_bytes(content)
    assert work() == [[255, 255, 255]]
    assert load_file(path)["features"].tolist() == [[255, 255, 255]]


def test_writers_of_one_shared_file_do_not_meet(tmp_path):
    path, errors = tmp_path / "x.bin", []
    barrier = threading.Barrier(4)

    def write(sign: int) -> None:
        for _ in range(30):
            barrier.wait()
            try:
                with replacing(path, HOME, shared=True) as file:
                    file.write(bytes([sign]) * 5000)
                assert len(set(path.read_bytes())) == 1
                assert path.stat().st_size == 5000
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]
