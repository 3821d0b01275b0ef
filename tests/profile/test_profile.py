"""The profile's parts add up, and its roofline bounds the real speedup."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from conftest import of_side
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.costs import forward_cost
from lanternbench.engine import decode as engine
from lanternbench.engine.timing import OFF_THE_CLOCK, Clock
from lanternbench.engine.trace import Trace
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue
from lanternbench.profile import step_profile as profile


@pytest.fixture(scope="module")
def found(target_8x8):
    decoders = [build(target_8x8, method(m)) for m in ("ar", "eagle-1")]
    return profile.profile(
        decoders, ["a small red circle in the center on a plain blue background"]
    )


def test_the_phases_of_a_step_add_up_to_it(found):
    for p in found:
        assert p.draft_ms + p.verify_ms + p.commit_ms + p.other_ms == pytest.approx(
            p.step_ms, rel=1e-6
        )
        assert 0 < p.overhead_fraction < 1
        assert p.syncs_per_step == 1


def test_the_baseline_has_speedup_one_and_drafts_nothing(found):
    ar, eagle = found
    assert ar.speedup == ar.roofline == pytest.approx(1)
    assert ar.draft_ms == 0 < eagle.draft_ms
    assert eagle.tau > ar.tau == 1


def test_bandwidth_is_the_best_of_many_passes_with_all_cores_over_more_than_the_cache(monkeypatch):
    read, summed = [], torch.Tensor.sum

    def counted(self):
        read.append((self.numel() * self.element_size(), torch.get_num_threads()))
        return summed(self)

    monkeypatch.setattr(torch.Tensor, "sum", counted)
    monkeypatch.setattr(forward_cost, "cores", lambda: 2)
    found = forward_cost.bandwidth(torch.device("cpu"), seconds=0)
    assert {size for size, _ in read} == {2**29}
    assert {threads for _, threads in read} == {2} == {found.threads}
    assert found.passes == forward_cost.PASSES == len(read) - 1
    assert 0.1 < found.median <= found.best < 10_000
    assert found.spread == pytest.approx(1 - found.median / found.best)
    assert torch.get_num_threads() == 1


def test_a_trace_is_written_that_chrome_can_read(shallow_8x8, tmp_path):
    path = tmp_path / "folder" / "trace.json"
    profile.chrome_trace(build(shallow_8x8, method("ar")), "a ring", path)
    assert json.loads(path.read_text())["traceEvents"]


def test_a_trace_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(profile, "profile", lambda *_: pytest.fail("measured"))
    for path in (tmp_path / "file" / "trace.json", tmp_path):
        with pytest.raises(UserError, match="choose another file with --trace"):
            CliRunner().invoke(app, ["profile", "--trace", str(path)], catch_exceptions=False)


@pytest.fixture
def few_passes(monkeypatch):
    """The memory's bandwidth is no promise of these."""
    monkeypatch.setattr(forward_cost, "bandwidth", partial(forward_cost.bandwidth, seconds=0.0))


@pytest.mark.slow
def test_the_command_profiles_the_drafter_and_the_dtype_that_it_is_given(few_passes, monkeypatch):
    seen = []
    measured = profile.profile
    monkeypatch.setattr(
        profile,
        "profile",
        lambda decoders, captions: seen.extend(decoders) or measured(decoders, captions),
    )
    honest = catalogue.load_with_drafter
    monkeypatch.setattr(catalogue, "load_with_drafter", lambda *args: of_side(honest(*args), 8))
    options = ["-n", "1", "--temperature", "0", "--json"]
    for more in ([], ["--drafter", "tiny", "--dtype", "bfloat16"]):
        done = CliRunner().invoke(app, ["profile", "sd", *options, *more], catch_exceptions=False)
        seen.append(json.loads(done.stdout)["methods"][1]["tau"])
    ar, sd, own, *halved, itself = seen
    assert ar.target.dtype == sd.target.dtype == torch.float32
    assert {d.target.dtype for d in halved} == {torch.bfloat16}
    # the target drafts for itself: a chain of three and the bonus token, but for rounding
    assert own < 2.5 < 3.5 < itself


def test_the_command_prints_a_row_per_method(few_passes, shallow_8x8, monkeypatch):
    monkeypatch.setattr(catalogue, "load_with_drafter", lambda *_: shallow_8x8)
    done = CliRunner().invoke(
        app, ["profile", "cool-sd", "-n", "1", "--json"], catch_exceptions=False
    )
    labels = [m["label"] for m in json.loads(done.stdout)["methods"]]
    assert labels[0] == "ar"
    assert labels[1].startswith("cool-sd")
    assert all(0 < m["overhead_fraction"] < 1 for m in json.loads(done.stdout)["methods"])


def test_what_is_kept_for_measures_afterwards_is_off_the_clock(target, monkeypatch):
    record = Trace.record

    now = 0.0

    def read():  # a second passes between two looks at the clock
        nonlocal now
        now += 1
        return now

    def slow(self, *rest):
        nonlocal now
        now += 1000
        record(self, *rest)

    monkeypatch.setattr(Trace, "record", slow)
    monkeypatch.setattr("lanternbench.engine.timing.perf_counter", read)
    decoder = build(target, method("eagle-1"))
    made = engine.generate(decoder, ["a small red circle"], trace=True, max_steps=20)[0]
    assert now > 20 * 1000
    assert sum(made.phases.values()) == made.decode_s < 1000


def test_on_a_gpu_phases_are_read_from_events_and_add_up_to_the_time_since_the_last_start(
    monkeypatch,
):
    now = 0.0

    class Event:
        def __init__(self, enable_timing: bool, external: bool):
            assert enable_timing
            assert not external  # which is for events of a graph

        def record(self, stream: str) -> None:
            assert stream == "stream of cuda:1"
            self.at = now

        def elapsed_time(self, later: Event) -> float:
            return 1e3 * (later.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr("lanternbench.engine.timing.perf_counter", lambda: now)
    clock = Clock(torch.device("cuda:1"))
    clock.start()
    now += 7  # a prefill
    clock.tick("other")
    assert clock.stop() == 7
    clock.start()
    for phase, seconds in (("draft", 1), (OFF_THE_CLOCK, 10), ("verify", 3), ("draft", 1)):
        now += seconds
        clock.tick(phase)
        if phase == "verify":
            clock.end_step()
    assert clock.stop() == 5
    assert clock.spent == {"draft": 2, "verify": 3, "other": 0}
    assert clock.step_s == [5]  # with what followed the last step
