"""Files of an interrupted training that are damaged: a sentence that names the file, and deleting
it is the fix.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import two_layers
from torch import nn

from lanternbench import prompts
from lanternbench.errors import UserError
from lanternbench.training import drafter, loop
from lanternbench.utils.files import WORK, acquire
from tools.train_tiny import data

pytestmark = pytest.mark.usefixtures("in_time")
CONTENTS = {
    "nothing": b"",
    "a web page": b"<html>",
    "half an archive": b"PK\x03\x04" + b"\0" * 100,
    "code": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


def fitted(folder, steps: int) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Linear(2, 1)

    def step(i: int) -> dict[str, torch.Tensor]:
        return {"loss": net(torch.full((1, 2), float(i))).square().sum()}

    loop.fit(
        "net",
        net,
        loop.optimizers(net, 0.1),
        step,
        steps,
        folder,
        plan=loop.Plan(1, save_every=1),
        log=str,
    )
    return net


@pytest.mark.parametrize("content", CONTENTS)
def test_a_damaged_checkpoint_is_named_and_without_it_training_begins_anew(content, tmp_path):
    whole = fitted(tmp_path / "a", 3).weight
    fitted(tmp_path / "b", 2)
    path = tmp_path / "b" / "net.pt"
    path.write_bytes(CONTENTS[content])
    with pytest.raises(UserError, match=r"net\.pt is damaged .*: delete it"):
        fitted(tmp_path / "b", 3)
    path.unlink()
    assert torch.equal(fitted(tmp_path / "b", 3).weight, whole)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"model": {}},
        {"model": nn.Linear(3, 1).state_dict(), "optims": [], "step": 1},
        torch.zeros(3),
    ],
)
def test_another_checkpoint_is_named(value, tmp_path):
    torch.save(value, tmp_path / "net.pt")
    with pytest.raises(UserError, match=r"net\.pt is damaged"):
        fitted(tmp_path, 3)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3),
        torch.zeros(1, 4).short(),
        torch.full((2, 4), 99).short(),
        -torch.ones(2, 4).short(),
        [],
    ],
)
def test_samples_that_are_none_are_named(value, tmp_path):
    torch.save(torch.zeros(2, 4).short(), tmp_path / "samples.pt")
    assert drafter.read_tokens(tmp_path / "samples.pt", (2, 4), 10).shape == (2, 4)
    torch.save(value, tmp_path / "samples.pt")
    with pytest.raises(UserError, match=r"samples\.pt is damaged"):
        drafter.read_tokens(tmp_path / "samples.pt", (2, 4), 10)


def test_a_second_training_on_a_work_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        drafter, "load_unpacked", lambda *_, **__: two_layers(side=8, dtype=torch.float32)
    )
    plan = drafter.Plan("tiny", prompts.load("demo", 2), steps=1, batch=1, lr=3e-3, seed=0)
    (tmp_path / "work").mkdir()
    held = acquire(tmp_path / "work", WORK)
    with pytest.raises(
        UserError, match="work is in use by another process: wait for it to end, or choose another"
    ):
        drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=str)
    held.close()
    drafter.train(plan, "cpu", tmp_path / "work", tmp_path / "out", log=str)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", "of another size"])
def test_scenes_that_are_none_are_named(content, tmp_path):
    path = tmp_path / f"scenes-{data.SEED}-3.npy"
    np.save(path, np.zeros((2, 64, 64, 3), np.uint8)) if isinstance(
        content, str
    ) else path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        data.images(tmp_path, 3)
