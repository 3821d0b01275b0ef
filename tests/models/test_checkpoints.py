"""Checkpoints load as published, execute nothing, and every failure is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.loading import empty_parameters, load_into, read_state


class Small(nn.Module):
    rope: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 8, bias=False)
        self.register_buffer("rope", torch.arange(4.0), persistent=False)


@pytest.fixture
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {k: torch.randn_like(v) for k, v in Small().state_dict().items()}


def shards(folder: Path, state: dict[str, Tensor]) -> None:
    """Two shards and their index, as the hub's libraries write them."""
    names = list(state)
    where = {k: f"model-{1 + (k == names[-1])}-of-2.safetensors" for k in names}
    for file in set(where.values()):
        save_file({k: state[k] for k in names if where[k] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def load(path: Path, dtype: torch.dtype = torch.float32) -> Small:
    return load_into(Small, read_state(path), path, "cpu", dtype)


@pytest.mark.parametrize("kind", ["safetensors", "pt", "bin", "pt with a model inside", "shards"])
def test_weights_come_back_from_every_format(tmp_path, state, kind):
    if kind == "shards":
        shards(tmp_path, state)
    elif kind == "safetensors":
        save_file(state, tmp_path / "model.safetensors")
    else:
        given = {"model": state, "steps": 3} if "inside" in kind else state
        torch.save(given, tmp_path / f"weights.{kind.split()[0]}")
    net = load(tmp_path)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(net.rope, torch.arange(4.0))
    assert load(tmp_path, torch.bfloat16).second.weight.dtype == torch.bfloat16


def test_a_module_costs_no_memory_until_it_is_loaded():
    with empty_parameters():
        net = Small()
    assert all(p.is_meta for p in net.parameters())
    assert not net.rope.is_meta
    assert not any(p.is_meta for p in Small().parameters())


def test_a_truncated_file_is_named(tmp_path, state):
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    for name in ("a.safetensors", "b.pt"):
        whole = (tmp_path / name).read_bytes()
        for size in (0, 5, len(whole) // 2):
            (tmp_path / name).write_bytes(whole[:size])
            with pytest.raises(UserError, match=rf"{name} is (truncated|empty|no|)"):
                read_state(tmp_path / name)


def test_a_missing_shard_is_named(tmp_path, state):
    shards(tmp_path, state)
    (tmp_path / "model-2-of-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks the shard model-2-of-2\.safetensors"):
        read_state(tmp_path)


def test_an_index_names_no_file_outside_its_folder(tmp_path, state):
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file(state, tmp_path / "secret.safetensors")
    (inside / "x.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(state, "../secret.safetensors")})
    )
    with pytest.raises(UserError, match=r"lacks the shard secret\.safetensors"):
        read_state(inside)
    (inside / "x.index.json").write_text("[]")
    with pytest.raises(UserError, match="no index of shards"):
        read_state(inside)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_code_in_a_pickle_is_not_executed(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(state | {"extra": Evil()}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="more than tensors"):
        read_state(tmp_path / "weights.pt")
    assert not (tmp_path / "executed").exists()


def test_a_file_that_may_not_be_read_is_named(tmp_path, state, monkeypatch):
    torch.save(state, tmp_path / "weights.pt")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(torch, "load", refused)  # the superuser may read anything
    with pytest.raises(UserError, match="Permission denied"):
        read_state(tmp_path / "weights.pt")


def test_another_architecture_or_size_is_refused(tmp_path, state):
    torch.save({"encoder.weight": torch.ones(3)}, tmp_path / "other.pt")
    with pytest.raises(
        UserError, match=r"has no 'first\.weight' \(3 of 3 weights are absent\): it is not a Small"
    ):
        load(tmp_path / "other.pt")
    torch.save(state | {"second.weight": torch.ones(8, 32)}, tmp_path / "size.pt")
    with pytest.raises(UserError, match=r"\[8, 32\] but this target needs \[8, 64\]"):
        load(tmp_path / "size.pt")


def test_a_folder_without_or_with_several_checkpoints_is_refused(tmp_path, state):
    with pytest.raises(UserError, match="holds no checkpoint"):
        read_state(tmp_path)
    for name in ("a.pt", "b.pt"):
        torch.save(state, tmp_path / name)
    with pytest.raises(UserError, match="several checkpoints"):
        read_state(tmp_path)
