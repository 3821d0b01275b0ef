"""A drafter that does not belong to its target is told from one that does, by the run and by
`doctor`.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from conftest import of_side
from typer.testing import CliRunner

from lanternbench import prompts as sets
from lanternbench.cli import doctor_cmd
from lanternbench.cli.main import app
from lanternbench.doctor import pair
from lanternbench.doctor.check import Check
from lanternbench.doctor.pair import check_pair, drafting_method, first_tokens
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.decode import Generation, generate
from lanternbench.experiment import runner
from lanternbench.experiment.config import sweep
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue, entries
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.entries import Entry, Expected, entry, expectation, shortfall, upper_limit
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.settings import GREEDY

CAPTIONS = ["a red circle"]
ROW = Entry(
    name="tiny", family="tiny", about="", expects=(
        Expected(drafter="eagle", tree="dynamic", temperature=0, first_token_acceptance=0.3, source="a paper, table 1"),
    ),
)  # fmt: skip


def at_least(tokens_per_step: float, max_depth: int) -> float:
    """The least first-token acceptance f that a mean of τ tokens a step allows: τ − 1 = Σ P(i
    accepted) ≤ D · f.
    """
    return (tokens_per_step - 1) / max_depth


def test_what_the_catalogue_expects_follows_from_the_papers_tables():
    one, anole = entry("llamagen-xl-stage1"), entry("anole-7b")
    for row, temperature, tokens in (
        (one, 0, 1.60),
        (one, 1, 1.20),
        (anole, 0, 2.91),
        (anole, 1, 1.11),
    ):
        known = expectation(row, "eagle", "dynamic", temperature)
        assert known is not None
        assert known.first_token_acceptance == pytest.approx(at_least(tokens, 5), abs=0.005)
    # another drafter
    assert expectation(entry("llamagen-xl-stage2"), "eagle", "dynamic", 0) is None
    assert expectation(one, "eagle", "chain", 0) is None


def test_a_mean_of_tau_tokens_needs_that_first_token_acceptance():
    """τ − 1 is at most depth · f, with equality where every accepted first token brings the whole
    chain.
    """
    for f in (0.04, 0.2, 0.9):
        whole = 1 + 5 * f  # accepted to the end, or not at all
        assert at_least(whole, 5) == pytest.approx(f)
        geometric = 1 + sum(f**i for i in range(1, 6))
        assert at_least(geometric, 5) < f


def test_wilson_s_limit_covers_the_truth_in_99_of_100():
    gen = torch.Generator().manual_seed(0)
    for f, steps in ((0.04, 230), (0.38, 80)):
        draws = torch.binomial(
            torch.full((4000,), float(steps)), torch.full((4000,), f), generator=gen
        )
        missed = sum(upper_limit(int(n), steps) < f for n in draws) / 4000
        # 0.5 % lie above a two-sided 99 % interval's upper end; + 4 standard errors of 4,000
        assert missed < 0.012


@pytest.mark.parametrize(
    ("accepted", "steps", "noted"),
    [(7, 230, True), (60, 230, False), (0, 3, False), (0, 0, False)],
)
def test_a_shortfall_is_noted_only_where_chance_does_not_explain_it(accepted, steps, noted):
    note = shortfall(entry("llamagen-xl-stage1"), "eagle", "dynamic", 0, accepted, steps)
    assert (note is not None) == noted
    if note is not None:
        assert note.kind == "warning"
        assert note.text.startswith(
            "the first drafted token was accepted in 7 of 230 steps (3.0%), where the published"
        )
        assert "LANTERN arXiv:2410.03355" in note.text
    assert shortfall(entry("llamagen-xl-stage2"), "eagle", "dynamic", 0, accepted, steps) is None


def test_a_step_cut_by_the_image_s_end_is_not_counted():
    made = Generation(torch.zeros(8), [1, 3, 2, 1], [], [], 0.0, 0.0)
    assert first_tokens([made]) == (2, 3)


def test_the_method_that_judges_a_drafter_is_lossless_and_drafts_with_it():
    for kind in ("eagle", "model", "medusa"):
        used = drafting_method(kind)
        assert used.lossless
        assert used.proposal.drafter_kind == kind
    assert drafting_method("eagle").choices.tree == "dynamic"


@pytest.fixture
def few_steps(monkeypatch):
    """Half as many steps tell a random drafter: with none of 32 accepted, f is below 0.18 by
    Wilson's limit.
    """
    monkeypatch.setattr(pair, "STEPS", 32)


def by_item(checks: list[Check]) -> dict[str, bool | None]:
    return {check.item: check.ok for check in checks}


def test_a_pair_that_belongs_together_passes_and_a_scrambled_drafter_does_not(
    target_8x8, few_steps
):
    target = target_8x8
    good = by_item(check_pair(target, "eagle", CAPTIONS, ROW))
    assert good["fits the target"] is True
    assert good["greedy tokens"] is True
    assert good["first token accepted, T = 0"] is True
    assert good["first token accepted, T = 1"] is None  # nothing is published
    torch.manual_seed(0)
    net = new_eagle(target.model).eval().requires_grad_(False)
    bad = by_item(check_pair(replace(target, drafters={"eagle": net}), "eagle", CAPTIONS, ROW))
    assert bad["first token accepted, T = 0"] is False
    assert bad["greedy tokens"] is True  # a lossless method draws the target's images all the same


@pytest.fixture(scope="module")
def in_bfloat16() -> Target:
    return of_side(tiny.load(dtype=torch.bfloat16), 8)


@pytest.fixture
def few_greedy_steps(monkeypatch):
    monkeypatch.setattr(pair, "STEPS", 16)
    monkeypatch.setattr(pair, "TEMPERATURES", (0.0,))


@pytest.mark.slow
def test_in_bfloat16_a_good_drafter_passes_though_rounding_moves_a_token(
    in_bfloat16, few_greedy_steps
):
    captions = [sets.load("demo", 2).prompts[1].text]
    drafted, plain = (
        generate(build(in_bfloat16, method(name), GREEDY), captions, max_steps=20)[0].tokens
        for name in ("sd", "ar")
    )
    assert not torch.equal(drafted[:20], plain[:20])
    checks = check_pair(in_bfloat16, "model", captions)
    assert by_item(checks)["greedy tokens"] is True
    values = {check.item: check.value for check in checks}
    assert "tied with the best within bfloat16's rounding" in values["greedy tokens"]


def test_in_bfloat16_a_drafter_with_a_wrong_embedding_table_is_flagged(
    in_bfloat16, few_greedy_steps
):
    published = Expected(
        drafter="model", tree="chain", temperature=0, first_token_acceptance=0.4, source="a paper"
    )
    row = ROW.model_copy(update={"expects": (published,)})
    right = in_bfloat16.drafters["model"]
    wrong = deepcopy(right)
    table = wrong.tok_embeddings.weight
    table.copy_(table.roll(1, 0))
    found = []
    for drafter in (right, wrong):
        target = replace(in_bfloat16, drafters={"model": drafter})
        checks = by_item(check_pair(target, "model", CAPTIONS, row))
        assert checks["greedy tokens"] is True
        found.append(checks["first token accepted, T = 0"])
    assert found == [True, False]


@pytest.mark.slow
def test_in_bfloat16_tokens_of_a_broken_cache_are_flagged(
    in_bfloat16, few_greedy_steps, monkeypatch
):
    """Accepted nodes stay where the tree put them, so later steps read others in their place."""
    captions = [prompt.text for prompt in sets.load("demo", 1).prompts]
    assert by_item(check_pair(in_bfloat16, "eagle", captions))["greedy tokens"] is True
    monkeypatch.setattr(DecoderCache, "move", lambda *_: None)
    assert by_item(check_pair(in_bfloat16, "eagle", captions))["greedy tokens"] is False


def test_every_step_of_a_check_is_reported(shallow_8x8, monkeypatch):
    monkeypatch.setattr(pair, "STEPS", 3)
    reported: list[tuple[int, int]] = []
    check_pair(shallow_8x8, "eagle", CAPTIONS, on_step=lambda *step: reported.append(step))
    assert len(reported) == 3 * len(pair.TEMPERATURES)


@pytest.mark.slow
def test_doctor_ends_with_code_1_where_a_pair_fails(shallow_8x8, few_steps, monkeypatch):
    monkeypatch.setattr(catalogue, "load_target", lambda *_: shallow_8x8)
    rows = entries.catalogue() | {"tiny": ROW.model_copy(update={"expects": (ROW.expects[0].model_copy(
        update={"first_token_acceptance": 0.99}),)})}  # fmt: skip
    monkeypatch.setattr(doctor_cmd, "catalogue", lambda: rows)
    done = CliRunner().invoke(app, ["doctor", "--target", "tiny", "--device", "cpu", "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (
        next(row["ok"] for row in found if row["item"] == "first token accepted, T = 0") is False
    )


def test_doctor_asks_for_a_target():
    done = CliRunner().invoke(app, ["doctor", "--drafter", "tiny"])
    assert "give --target too" in str(done.exception)


@pytest.mark.parametrize(("expected", "noted"), [(0.99, True), (0.05, False)])
def test_a_run_notes_a_drafter_that_starts_far_below_what_is_published(
    small_images, monkeypatch, tmp_path, expected, noted
):
    known = ROW.expects[0].model_copy(update={"first_token_acceptance": expected})
    rows = entries.catalogue() | {"tiny": ROW.model_copy(update={"expects": (known,)})}
    monkeypatch.setattr(runner, "catalogue", lambda: rows)
    config = sweep(
        {
            "methods": ["eagle-2", "sjd"],
            "num_prompts": 1,
            "temperature": 0,
            "metrics": [],
            "baseline": False,
        }
    )
    _, summary = runner.run(config, tmp_path)
    warnings = [note.text for note in summary.notes if note.metric == "first_token_acceptance"]
    assert [text.partition(":")[0] for text in warnings] == (["eagle-2"] if noted else [])
