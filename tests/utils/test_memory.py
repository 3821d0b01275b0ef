"""Memory: what does not fit is refused before it is loaded, and what runs out of it is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lanternbench.cli import main as cli
from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment import runner, worker
from lanternbench.experiment.config import sweep
from lanternbench.experiment.run_folder import iter_samples
from lanternbench.models import catalogue, footprint
from lanternbench.models.entries import entry, family
from lanternbench.models.footprint import Demand
from lanternbench.models.llamagen.checkpoint import FLAN_T5_XL, T5Features
from lanternbench.models.loading import explain_errors
from lanternbench.settings import ModelSpec
from lanternbench.utils import device, memory
from lanternbench.utils.memory import BatchLimit, is_out_of_memory, memory_errors

ENCODER = T5Features(Path(), 120, "cpu", torch.float32, 2048)


def on_gpu() -> Exception:
    """What torch raises when a GPU's memory runs out."""
    return torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"
    )


def on_host() -> Exception:
    """What torch raises when the host's memory runs out."""
    return RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 8796093022208 bytes. Error code 12 (Cannot allocate memory)"
    )


@pytest.fixture
def free(monkeypatch):
    """Let this many bytes be free on the host, and on any GPU."""

    def set_free(on_host: float, on_gpu: float = 0.0) -> None:
        monkeypatch.setattr(
            footprint,
            "free_memory",
            lambda device: int(on_host if device.type == "cpu" else on_gpu),
        )

    return set_free


@pytest.fixture
def nothing_is_loaded(monkeypatch):
    """Loading is a failure: what does not fit has to be refused before."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it was loaded")

    monkeypatch.setattr(catalogue, "load_unpacked", fail)
    monkeypatch.setattr(catalogue, "prepare_gpu", lambda _: None)


def refusal(device: str, demand: Demand = footprint.ONE_IMAGE, **spec: object) -> str:
    with pytest.raises(UserError) as caught:
        catalogue.load_with_drafter(ModelSpec(random_weights=True, **spec), device, demand=demand)
    return str(caught.value)


def test_a_target_that_does_not_fit_is_refused_before_it_is_loaded(free, nothing_is_loaded):
    free(on_host=8e9, on_gpu=8e9)
    text = refusal("cuda:1", target="anole-7b")
    weights, caches = map(float, re.findall(r"([\d.]+) GB of (?:weights|cache)", text))
    assert 14.0 < weights < 16.5  # 6.8e9 numbers of two bytes, drafters and tokeniser
    assert 1.0 < caches < 1.3  # 2 rows · 1,120 slots · 32 layers · 2 · 4,096 numbers of two bytes
    assert "8.0 GB are free on cuda:1: use a device with 17 GB free" in text


def test_the_remedy_is_a_dtype_if_that_suffices(free, nothing_is_loaded):
    free(on_host=20e9)
    text = refusal("cpu", target="anole-7b")
    assert text.endswith("20.0 GB are free on cpu: give --dtype bfloat16")


def test_the_remedy_is_a_batch_that_fits(free, nothing_is_loaded):
    free(on_host=0.0, on_gpu=20e9)
    text = refusal("cuda", Demand(batch=64), target="anole-7b")
    batch = int(re.search(r"give --batch (\d+)$", text)[1])
    dtype = torch.bfloat16
    for count, fits in ((batch, True), (batch + 1, False)):
        need = footprint.of_target(entry("anole-7b"), None, dtype, Demand(count))
        assert (need.total <= 20e9) == fits


def test_the_remedy_is_the_host_if_that_has_the_memory(free, nothing_is_loaded):
    free(on_host=64e9, on_gpu=4e9)
    assert refusal("cuda", target="anole-7b").endswith("free on cuda: give --device cpu")


def test_what_fits_is_loaded(free, monkeypatch, shallow_8x8):
    free(on_host=30e9)
    monkeypatch.setattr(catalogue, "load_unpacked", lambda *_: shallow_8x8)
    spec = ModelSpec(target="anole-7b", dtype="bfloat16", random_weights=True)
    assert catalogue.load_with_drafter(spec).model is shallow_8x8.model


def test_drafters_the_text_encoder_and_distributions_count():
    row, dtype = entry("llamagen-xl-stage1"), torch.bfloat16
    need = footprint.of_target(row, None, dtype, footprint.ONE_IMAGE)
    kept = footprint.of_target(row, None, dtype, Demand(keeps_distributions=True))
    unguided = footprint.of_target(row, None, dtype, Demand(guidance=1.0))
    assert need.text_encoder == 2 * ENCODER.encoder_weights
    assert kept.caches - need.caches == 2 * 256 * 16384 * 4
    assert unguided.caches * 2 == need.caches
    alone = family(row.family).decoder(row, None, "meta", dtype)
    assert need.weights > footprint.bytes_of([alone]) + 2 * 80e6  # three drafters
    one = catalogue._drafter_bytes("llamagen-b-c2i", dtype)
    assert one == pytest.approx(2 * 111e6, rel=0.01)


def test_the_estimate_of_a_small_target_is_what_loading_it_holds(tmp_path):
    """Weights and caches of the random target, byte for byte of its tensors."""
    spec = "llamagen-b-c2i:layers=2,grid=4"
    row = catalogue.located(spec, True)[0]
    target = catalogue.load_unpacked(spec, random_weights=True)
    nets = [target.model, target.vq, *target.drafters.values()]
    need = footprint.of_target(row, None, torch.float32, footprint.ONE_IMAGE)
    assert need.weights == sum(p.numel() * p.element_size() for n in nets for p in n.parameters())


@pytest.mark.slow
def test_the_size_of_the_text_encoder_is_that_of_transformers():
    from transformers import T5Config, T5EncoderModel

    with torch.device("meta"):
        encoder = T5EncoderModel(T5Config(**FLAN_T5_XL))
    counted = sum(p.numel() for p in encoder.parameters())
    assert ENCODER.encoder_weights == pytest.approx(counted, rel=1e-5)


def test_a_folder_without_published_files_counts_as_its_largest_format(tmp_path):
    for name, size in (("a.safetensors", 3), ("b.safetensors", 4), ("old.bin", 5), ("x.json", 9)):
        (tmp_path / name).write_bytes(b"0" * size)
    row = entry("tiny")
    assert footprint.of_target(row, tmp_path, torch.float32, footprint.ONE_IMAGE).weights == 7


@pytest.mark.parametrize("error", [on_gpu(), on_host(), MemoryError()])
def test_running_out_of_memory_is_recognised(error):
    assert is_out_of_memory(error)
    with pytest.raises(UserError) as caught, memory_errors("images were made"):
        raise error
    assert str(caught.value).startswith("memory ran out")
    assert "while images were made: give a smaller --batch" in str(caught.value)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert not is_out_of_memory(error)
    with pytest.raises(RuntimeError, match="mat1"), memory_errors("images were made"):
        raise error


def test_a_lack_of_memory_while_loading_is_not_said_to_be_a_wrong_file():
    reading = explain_errors("model.pt is of another architecture or size")
    with pytest.raises(torch.OutOfMemoryError), reading:
        raise on_gpu()


def test_a_lack_of_memory_while_loading_is_a_sentence(monkeypatch):
    def fail(*_: object) -> None:
        raise on_gpu()

    monkeypatch.setattr(type(family("llamagen")), "random_target", fail)
    with pytest.raises(UserError) as caught:
        catalogue.load_unpacked("llamagen-b-c2i", random_weights=True)
    assert str(caught.value).startswith(
        "memory ran out (it tried to allocate 2.00 GiB) while 'llamagen-b-c2i' was loaded on cpu:"
    )


def test_a_command_that_runs_out_of_memory_says_so_without_a_traceback(monkeypatch, capfd):
    def fail(**_: object) -> None:
        raise on_gpu()

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    text = capfd.readouterr().err
    assert text.startswith("lanternbench: memory ran out (it tried to allocate 2.00 GiB): give")
    assert len(text.splitlines()) == 1


def test_batches_are_halved_until_they_fit_and_stay_small():
    batches = []

    def work(items: list[int]) -> list[int]:
        batches.append(len(items))
        if len(items) > 3:
            raise on_host()
        return [10 * item for item in items]

    limit = BatchLimit()
    assert limit.results(work, range(9)) == [10 * item for item in range(9)]
    assert batches == [9, 5, 3, 3, 3]
    assert limit.results(work, range(4)) == [0, 10, 20, 30]
    assert batches[5:] == [3, 1]


def test_a_single_item_that_does_not_fit_is_an_error():
    def work(items: list[int]) -> list[int]:
        raise on_gpu()

    with pytest.raises(torch.OutOfMemoryError):
        BatchLimit().results(work, range(4))


def test_a_failed_batch_is_freed_before_a_smaller_one_is_tried():
    import weakref

    kept: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def work(items: list[int]) -> list[int]:
        alive.append(sum(tensor() is not None for tensor in kept))
        cache = torch.zeros(len(items))
        kept.append(weakref.ref(cache))
        if len(items) > 1:
            raise on_gpu()
        return items

    BatchLimit().results(work, range(4))
    assert alive == [0] * len(alive)


def limited(decode, most: int):
    """A stand-in for ``generate`` that runs out of memory for more than ``most`` prompts."""

    def generate(decoder, captions, *args, **options):
        if len(captions) > most:
            raise on_gpu()
        return decode(decoder, captions, *args, **options)

    return generate


@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_decoded_in_halves_with_the_same_images(
    small_images, monkeypatch, tmp_path
):
    monkeypatch.setattr(worker, "process_count", lambda *_: 1)
    given = {"methods": ["cool-sd"], "num_prompts": 5, "batch": 5, "metrics": []}
    given |= {"baseline": False}
    tokens = {}
    for name, most in (("whole", 5), ("halved", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(worker, "generate", limited(worker.generate, most))
            folder, summary = runner.run(sweep(given | {"name": name}), tmp_path)
        tokens[name] = {sample.key: sample.token_ids for sample in iter_samples(folder)}
        notes = [note.text for note in summary.notes if "prompts at once" in note.text]
        assert len(notes) == (name == "halved")
    assert notes[0].startswith("cool-sd λ=2 decoded 2 prompts at once, because memory ran out")
    assert tokens["whole"] == tokens["halved"]
    assert len(tokens["whole"]) == 5


def test_one_image_that_does_not_fit_ends_the_run_with_a_sentence(
    small_images, monkeypatch, tmp_path
):
    monkeypatch.setattr(worker, "generate", limited(worker.generate, 0))
    config = sweep({"methods": ["ar"], "num_prompts": 1, "metrics": [], "baseline": False})
    with pytest.raises(UserError, match="memory ran out"):
        runner.run(config, tmp_path)


def test_images_are_rendered_fewer_at_a_time_when_memory_runs_out(small_images, monkeypatch):
    tokens = torch.zeros(3, small_images.length, dtype=torch.long)
    whole = small_images.images(tokens)
    decode = small_images.vq.decode

    def one_only(grids: torch.Tensor) -> torch.Tensor:
        if len(grids) > 1:
            raise on_gpu()
        return decode(grids)

    monkeypatch.setattr(small_images.vq, "decode", one_only)
    found = small_images.images(tokens)
    assert [image.tobytes() for image in found] == [image.tobytes() for image in whole]


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4 kB\nSwapFree: 1 kB"}, 4096),
        (
            {
                "proc/meminfo": "MemAvailable: 4 kB",
                "sys/fs/cgroup/memory.max": "3000",
                "sys/fs/cgroup/memory.stat": "anon 900\nactive_file 200\ninactive_file 400\n",
            },
            2100,
        ),
        ({"proc/meminfo": "MemAvailable: 4 kB", "sys/fs/cgroup/memory.max": "max"}, 4096),
    ],
)
def test_free_memory_is_what_the_system_and_the_container_leave(
    tmp_path, monkeypatch, files, available
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(device, "_SYSTEM", tmp_path)
    assert memory.free_memory(torch.device("cpu")) == available


def test_doctor_refuses_a_target_that_does_not_fit(free, nothing_is_loaded):
    free(on_host=1e9)
    arguments = ["doctor", "--target", "anole-7b", "--random-weights", "--device", "cpu"]
    done = CliRunner().invoke(app, arguments)
    assert "1.0 GB are free on cpu" in str(done.exception)
