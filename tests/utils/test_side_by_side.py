"""Prompts shared out to processes: the same answers in the same order, errors and deaths of a
process included.
"""

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch

from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.experiment import worker
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.prompts import Prompt
from lanternbench.utils.processes import MIN_PROMPTS, process_count, side_by_side


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr("lanternbench.utils.processes.requested", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).sin().sum()  # OpenMP's second thread is there
    yield
    torch.set_num_threads(before)


def test_parts_cover_all_items_in_order_each_in_a_process_of_one_thread(two_threads):
    items = list(range(9))
    found = list(
        side_by_side(
            lambda part: [(i, torch.get_num_threads(), os.getpid()) for i in part], items, 2
        )
    )
    assert [made[:2] for made in found] == [(i, 1) for i in items]
    assert len({made[2] for made in found} | {os.getpid()}) == 3
    assert torch.get_num_threads() == 2


def test_one_part_stays_in_this_process():
    assert (
        list(side_by_side(lambda part: [os.getpid()] * len(part), [1, 2], 1)) == [os.getpid()] * 2
    )


def test_a_small_target_on_a_cpu_is_shared_out_and_no_other(two_threads, shallow_8x8, monkeypatch):
    assert [
        process_count(shallow_8x8.model, n) for n in (1, 2 * MIN_PROMPTS - 1, 2 * MIN_PROMPTS, 100)
    ] == [
        1,
        1,
        2,
        2,
    ]
    monkeypatch.setattr("lanternbench.utils.device.SMALL", 1000)
    assert process_count(shallow_8x8.model, 100) == 1


def test_an_error_of_a_part_is_raised_here():
    def fail(part):
        raise UserError(f"no weights for {part[0]}")

    with pytest.raises(UserError, match="no weights for 0"):
        list(side_by_side(fail, [0, 1], 2))


def test_the_part_of_a_process_that_was_killed_is_worked_on_here():
    here = os.getpid()

    def work(part):
        if part == [1] and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return [(i, os.getpid() == here) for i in part]

    assert list(side_by_side(work, [0, 1], 2)) == [(0, False), (1, True)]


def test_nothing_is_left_running_when_the_results_are_no_longer_wanted():
    found = side_by_side(lambda part: signal.pause() if part == [1] else [os.getpid()], [0, 1], 2)
    pid = next(found)
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_time_of_an_image_is_its_share_of_all_parts_together(
    two_threads, shallow_8x8, monkeypatch
):
    """Their images per second are those of the whole batch."""

    def timed(*args: Any, **options: Any) -> list[engine.Generation]:
        return [replace(made, decode_s=3.0) for made in engine.generate(*args, **options)]

    monkeypatch.setattr(worker, "generate", timed)
    prompts = [Prompt(str(i), "a red circle") for i in range(2 * MIN_PROMPTS)]
    made = worker.make_samples(build(shallow_8x8, method("sjd")), prompts, 0, timed=False)
    assert [sample.decode_s for sample, *_ in made] == [3.0 / len(prompts)] * len(prompts)


@pytest.mark.parametrize("name", ["ar", "cool-sd", "eagle-2"])
def test_prompts_decoded_side_by_side_get_the_tokens_of_one_batch(two_threads, shallow_8x8, name):
    decoder = build(shallow_8x8, method(name))
    captions = [
        f"a {color} {shape}"
        for color in ("red", "green", "blue", "white")
        for shape in ("circle", "square")
    ]

    def work(part):
        return [
            (g.tokens.tolist(), g.accept_lengths)
            for g in engine.generate(decoder, part, max_steps=5)
        ]

    whole = work(captions)
    assert (
        list(side_by_side(work, captions, process_count(shallow_8x8.model, len(captions))))
        == whole
    )
