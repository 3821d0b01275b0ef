"""The published code's outputs are reproduced, as far as the golden vectors are beside the
checkout.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import golden
import pytest
import torch
from conftest import slow_but
from golden_checks import CHECKS, decode_greedy
from golden_checks.common import close, same
from safetensors import safe_open
from safetensors.torch import save_file

# a whole decode takes seconds, so one run of each kind stands for all here
SOME = {"eagle2_16_7_3", "lantern_k50_d0.1", "eagle1_chain", "lanternpp_k50_lam2"}


@pytest.fixture
def vectors(shared: Path) -> Path:
    folder = shared / "golden"
    if not folder.is_dir():
        pytest.skip(
            f"GOLDEN VECTORS ABSENT: {folder} is not there, so nothing was compared with the published code"
        )
    return folder


QUICK = [name for name in CHECKS if name != "decode_greedy"]


@pytest.mark.parametrize("name", slow_but(QUICK, CHECKS))
def test_what_the_published_code_computes_is_reproduced(vectors, name, monkeypatch):
    if not (vectors / f"{name}.safetensors").is_file():
        pytest.skip(f"GOLDEN VECTORS ABSENT: no {name}.safetensors in {vectors}")
    monkeypatch.setitem(CHECKS, "decode_greedy", partial(decode_greedy.check, only=SOME))
    found = golden.run(name, vectors)
    assert found
    assert [f for f in found if not f.passed] == []


def test_a_wrong_vector_is_reported_and_ends_with_code_1(vectors, tmp_path, capsys):
    with safe_open(vectors / "tree_static.safetensors", "pt") as file:
        tensors, meta = {k: file.get_tensor(k) for k in file.keys()}, file.metadata()  # noqa: SIM118
    tensors["out.mc_sim_7b_63.tree_position_ids"] += 1
    save_file(tensors, tmp_path / "tree_static.safetensors", meta)
    assert golden.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "tree_static: FAILED" in out
    assert "depths" in next(line for line in out.splitlines() if "FAIL " in line)
    assert "llamagen_t2i: NOT CHECKED" in out


def test_a_record_that_stops_before_the_image_ends_is_compared_as_far_as_it_goes(
    vectors, tmp_path
):
    run, kept = "eagle2_16_7_3", 100
    with safe_open(vectors / "decode_greedy.safetensors", "pt") as file:
        tensors, meta = {k: file.get_tensor(k) for k in file.keys()}, file.metadata()  # noqa: SIM118
    steps = tensors[f"out.{run}.accept_lengths"]
    tensors[f"out.{run}.accept_lengths"] = steps[: int(((steps + 1).cumsum(0) <= kept).sum()) + 1]
    for name in ("ar_tokens", f"{run}.tokens"):
        tensors[f"out.{name}"] = tensors[f"out.{name}"][:, :kept].contiguous()
    save_file(tensors, tmp_path / "decode_greedy.safetensors", meta)
    with torch.inference_mode():
        found = decode_greedy.check(tmp_path, only={run})
    assert [f for f in found if not f.passed] == []


def test_nothing_to_check_ends_with_code_2(tmp_path, capsys):
    assert golden.main([str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert golden.main([str(tmp_path)]) == 2
    assert "no vectors that can be checked" in capsys.readouterr().err


def test_a_damaged_file_fails_without_a_traceback(tmp_path, capsys):
    (tmp_path / "vq16.safetensors").write_bytes(b"no safetensors")
    assert golden.main([str(tmp_path)]) == 1
    assert "vq16: FAILED" in capsys.readouterr().out


def test_a_shape_or_a_nan_never_passes():
    assert not close("shape", torch.zeros(2), torch.zeros(1, 2)).passed
    assert not close("nan", torch.tensor([torch.nan]), torch.zeros(1)).passed
    assert not same("shape", [1, 2], [1]).passed
    assert same("integers", [1, 2], torch.tensor([1, 3])).error == 1
