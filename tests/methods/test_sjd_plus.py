"""SJD++ and SJD-SV: both do what their formulas say, and verify says that they leave the target's
distribution.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from conftest import slow_but

from lanternbench import lossless
from lanternbench.errors import UserError
from lanternbench.lossless import EXACT, WORLDS, on_tables, verify_all
from lanternbench.lossless.plain.rules import SegmentRule
from lanternbench.lossless.tables import Tables
from lanternbench.methods.acceptance import chains
from lanternbench.methods.acceptance.chains import segments
from lanternbench.methods.method import method


@pytest.mark.parametrize(
    "options", slow_but([{}], [{}, {"theta": 0.1}, {"init": "vertical-sample"}]), ids=str
)
def test_sjd_plus_keeps_what_its_definition_keeps(options):
    for i, tables in enumerate(WORLDS[:2]):
        one = on_tables(method("sjd++", **options), tables(i))
        assert one.off < EXACT
        assert one.tv > 1e-3


def test_a_threshold_that_nothing_passes_is_sjd():
    assert on_tables(method("sjd++", theta=1e9), WORLDS[0](0)).tv < EXACT


@pytest.mark.parametrize("alpha", slow_but([0.8], [0.5, 0.8, 1.0]))
def test_segments_are_accepted_as_often_as_their_definition_says(alpha):
    """Shares of 200,000 draws: five standard errors are 0.0056."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        q, p = torch.rand(2, 5, 4, generator=generator, dtype=torch.float64).softmax(-1).unbind(0)
        q = torch.cat([q, q[:1]])
        xs = tuple(torch.randint(4, (5,), generator=generator).tolist())
        at = torch.tensor(xs)[:, None]
        qx, px = (law[:5].gather(1, at)[:, 0].expand(200_000, -1) for law in (q, p))
        u = torch.rand(200_000, 5, generator=generator, dtype=torch.float64)
        found = Counter(segments(qx, px, u, alpha).tolist())
        expected: Counter[int] = Counter()
        for chance, length, _ in SegmentRule(alpha).endings(q.tolist(), p.tolist(), xs):
            expected[length] += chance
        assert sum(expected.values()) == pytest.approx(1)
        assert all(abs(found[n] / 200_000 - expected[n]) < 0.0056 for n in range(6))


def test_drafts_of_equal_probability_share_a_segment():
    """One segment, whose tail is the last draft: the two before it are accepted untested."""
    q = torch.tensor([[0.25, 0.25, 0.25]])
    p = torch.tensor([[1.0, 1.0, 0.5]])
    u = torch.tensor([[0.49, 0.99, 0.99]])  # the first draft's is the segment's
    assert segments(q, p, u, 0.3).tolist() == [3]
    assert segments(q, p, u + 0.02, 0.3).tolist() == [2]
    laws = [[0.25, 0.75]] * 4
    drafts = [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]]
    endings = SegmentRule(0.3).endings(laws, drafts, (0, 0, 0))
    assert {length: chance for chance, length, _ in endings if chance} == {2: 0.5, 3: 0.5}


def test_segments_of_a_drafted_chain_follow_their_definition():
    one = on_tables(method("eagle-1", tree="chain", acceptance="sjd-sv"), WORLDS[0](0))
    assert one.off < EXACT
    assert one.tv > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sjd++", "sjd-sv"])
def test_verify_shows_the_total_variation_and_claims_no_bound(name, monkeypatch):
    monkeypatch.setattr(lossless, "WORLDS", WORLDS[1:2])
    monkeypatch.setattr(lossless, "TREES", (partial(Tables, 2, 3, kind="dense"),))
    for worlds in ("WINDOWS", "NEIGHBOURS"):
        monkeypatch.setattr(lossless, worlds, (partial(Tables, 2, 3, kind="dense"),))
    rows = {row.check: row for row in verify_all([name])}
    distance = rows["tables: total variation"]
    assert distance.passed is None
    assert distance.value is not None
    assert distance.value > 1e-3
    assert not any("bound" in check and row.passed is not None for check, row in rows.items())
    assert not any(row.passed is False for row in rows.values())


@pytest.mark.parametrize("excluded", ["tested", "accepted"])
@pytest.mark.parametrize("world", slow_but([1], range(5)))
def test_segments_of_a_window_follow_their_definition(world, excluded):
    one = on_tables(method("sjd-sv", excluded=excluded), WORLDS[world](world))
    assert one.defined
    assert one.off < EXACT
    assert one.tv > 1e-3


def drawn_outside_the_support(excluded: str) -> float:
    """Return the probability of an image with a token that the target excludes."""
    one = on_tables(method("sjd-sv", excluded=excluded), WORLDS[1](1))
    drawn = one.enumerated.images.sum(0)
    return float(drawn[one.joint == 0].sum())


@pytest.mark.slow
def test_tokens_that_the_target_excludes_are_drawn_only_by_the_literal_reading():
    assert drawn_outside_the_support("tested") < EXACT
    assert drawn_outside_the_support("accepted") > 0.05


def inverted(accepted, chain):
    """Accept what is rejected, and reject what is accepted."""
    return chain.shape[1] - accepted


def one_too_many(accepted, chain):
    return (accepted + 1).clamp(max=chain.shape[1])


def one_too_few(accepted, chain):
    return (accepted - 1).clamp(min=0)


@pytest.mark.parametrize(
    "mutation", slow_but([one_too_many], [inverted, one_too_many, one_too_few])
)
def test_verify_notices_a_changed_acceptance_of_segments(mutation, monkeypatch):
    original = chains.segments
    monkeypatch.setattr(
        chains,
        "segments",
        lambda q, *rest: mutation(original(q, *rest), q),
    )
    one = on_tables(method("sjd-sv"), WORLDS[0](0))
    assert one.off > 1e-3


def test_segments_need_a_chain_and_its_residual():
    with pytest.raises(UserError, match="use --tree chain"):
        method("eagle-2", acceptance="sjd-sv")
    with pytest.raises(UserError, match="leave --residual out"):
        method("sjd-sv", residual="optimal")
