"""A GPU that torch cannot use is named with the reason, and loading leaves no trace in torch."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, slow_but

from lanternbench.cli.main import main
from lanternbench.errors import UserError
from lanternbench.experiment.environment import environment
from lanternbench.models import catalogue, loading
from lanternbench.models.llamagen.checkpoint import T5Features
from lanternbench.utils import device
from lanternbench.utils.memory import peak_memory

TOO_OLD = "The NVIDIA driver on your system is too old (found version 12020)"


def raises(error: Exception):
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def test_a_gpu_whose_driver_is_too_old_is_named_with_what_the_driver_says(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", raises(RuntimeError(f"{TOO_OLD}.\nUpdate it.")))
    with pytest.raises(UserError) as caught:
        device.choose("cuda")
    expected = f"is built for CUDA 13.0, cannot use 'cuda' ({TOO_OLD}): use --device cpu"
    assert expected in str(caught.value)
    assert torch.__version__ in str(caught.value)


def test_a_torch_without_cuda_is_said_to_be_one(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    why = "Torch not compiled with CUDA enabled"
    monkeypatch.setattr(torch.cuda, "init", raises(AssertionError(why)))
    with pytest.raises(UserError, match=rf"built for no CUDA, cannot use 'cuda:1' \({why}\)"):
        device.choose("cuda:1")


def test_a_gpu_that_has_no_kernels_is_a_sentence_and_no_traceback(monkeypatch):
    why = "CUDA error: no kernel image is available for execution on the device"
    monkeypatch.setattr(torch, "ones", raises(RuntimeError(f"{why}\nCompile with …")))
    with pytest.raises(UserError) as caught:
        device.prepare_gpu("cuda:0")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gpu_that_computes_is_used_without_cudnn_s_attention():
    device.prepare_gpu("cpu")
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.parametrize(
    ("module", "shown"),
    [("torch.cuda", True), ("torch.cuda.graphs", True), ("torch.nn.modules.transformer", False)],
)
def test_the_command_line_shows_torch_s_warnings_about_drivers_and_gpus(
    module, shown, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["lanternbench", "--version"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with pytest.raises(SystemExit):
            main()
        warnings.warn_explicit(TOO_OLD, UserWarning, "file.py", 1, module=module, registry={})
    assert [str(warning.message) for warning in caught] == [TOO_OLD] * shown


@pytest.fixture
def without_bfloat16(monkeypatch):
    """A machine with one GPU of the generation before Ampere."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")


def test_a_card_without_bfloat16_computes_in_float16(without_bfloat16):
    assert loading.dtype_for("cuda") is torch.float16
    assert loading.dtype_for("cpu") is torch.float32
    assert loading.dtype_named("float16", "cuda:0") is torch.float16
    with pytest.raises(UserError, match="Tesla T4 has no bfloat16: give --dtype float16 or"):
        loading.dtype_named("bfloat16", "cuda:0")


def test_a_card_with_bfloat16_computes_in_it(without_bfloat16, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert loading.dtype_for("cuda:1") is torch.bfloat16
    assert loading.dtype_named("bfloat16", "cuda:1") is torch.bfloat16


def test_loading_for_a_second_gpu_leaves_torch_s_current_device_alone(monkeypatch):
    """Else ``cuda`` would mean the GPU of the last target that was loaded."""
    loaded = []
    monkeypatch.setattr(torch.cuda, "set_device", raises(AssertionError("it was changed")))
    monkeypatch.setattr(catalogue, "prepare_gpu", lambda _: None)
    loader = SimpleNamespace(
        load=lambda row, folder, device, dtype: loaded.append(device),
        fingerprints=lambda row, folder: {},
    )
    monkeypatch.setattr(catalogue, "family", lambda _: loader)
    monkeypatch.setattr(catalogue, "located", lambda *_: (catalogue.entry("tiny"), Path("tiny")))
    monkeypatch.setattr(catalogue, "replace", lambda target, **_: target)
    for name in ("cuda:0", "cuda:1", "cuda"):
        catalogue.load_unpacked("tiny", name)
    assert loaded == ["cuda:0", "cuda:1", "cuda"]


def test_text_features_belong_to_the_device_that_made_them(tmp_path, monkeypatch):
    stores = []
    for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        stores.append(T5Features(tmp_path, 8, "cuda", torch.float32, 4).store)
    stores.append(T5Features(tmp_path, 8, "cpu", torch.float32, 4).store)
    assert len(set(stores)) == 3
    assert all(store.name.replace("-", "").isalnum() for store in stores)


def test_the_environment_says_what_is_rounded_to_tf32(monkeypatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert environment()["tf32"] == "matmul and convolutions"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert environment()["tf32"] == "off"


LIKE_WINDOWS = """
import os, signal, sys
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None
for name in ("O_NOFOLLOW", "O_NONBLOCK", "getloadavg", "sched_getaffinity", "sysconf"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "pthread_sigmask"):
    delattr(signal, name)
from lanternbench.__main__ import main
sys.argv = ["lanternbench", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_a_run_needs_nothing_that_windows_lacks(tmp_path):
    run = ["run", "--method", "sjd", "--no-baseline", "-n", "1", "--out", "out"]
    finished = subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS, *run],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr
    assert list(tmp_path.glob("out/*/samples.jsonl"))


@pytest.mark.parametrize("command", slow_but(["--help", "runs"], ["--help", "doctor", "runs"]))
def test_commands_start_without_what_windows_lacks(tmp_path, command):
    finished = subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS, command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in finished.stderr


def test_the_peak_of_memory_is_at_least_what_a_tensor_took():
    tensor = torch.ones(2**24)
    assert peak_memory() >= 4 * tensor.numel()
