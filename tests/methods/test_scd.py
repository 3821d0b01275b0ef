"""SCD: coupled redraws keep the target's distribution; the public recording does not, and as much
as is said of it.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from plain_worlds import image_distribution
from rules import windowed
from windows_on_tables import enumerate_images, tv

from lanternbench.lossless import verify_method
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method
from lanternbench.methods.proposals import redraws

EXACT = 1e-6


@pytest.mark.parametrize("kind", ["dense", "zeros"])
def test_maximal_coupling_is_lossless_and_the_plain_definition(kind):
    tables = Tables(3, 3, 5, kind)
    got = enumerate_images(tables, "scd")
    defined = image_distribution(tables.world(), windowed(redraw="maximal"))
    assert float((got - tables.on_all_images(defined)).abs().max()) < EXACT
    assert float((got - tables.joint()).abs().max()) < EXACT


def test_the_public_code_records_the_old_law_of_a_kept_token_and_is_off_by_what_the_plain_definition_says():
    tables = Tables(2, 4, 5, "dense")
    got = enumerate_images(tables, "scd", variant="reference")
    defined = image_distribution(tables.world(), windowed(redraw="kept-law", one_hot=True))
    assert float((got - tables.on_all_images(defined)).abs().max()) < EXACT
    assert tv(got, tables.joint()) > 1e-3
    assert not method("scd", variant="reference").lossless


@pytest.mark.slow
def test_gumbel_coupling_is_lossless_over_all_noise(monkeypatch):
    """Two tokens: a position has one noise number v, and draws token 1 where v > q(0).  v is
    partitioned exactly.
    """
    tables = Tables(2, 3, 4, "dense")
    edges = []
    for position in (1, 2):
        rows = tables.rows(torch.arange(2**position), torch.tensor(position))
        edges.append([0.0, *sorted(tables.q[rows, 0].tolist()), 1.0])
    total, level = torch.zeros(8, dtype=torch.float64), torch.full((8,), 0.5, dtype=torch.float64)

    def noise(key, position, vocab):
        gap = torch.logit(level)[position]
        zero = torch.full_like(gap, 0.5)  # Gumbel −log log 2
        return torch.stack([zero, torch.exp(zero.log() * torch.exp(-gap))], -1)

    monkeypatch.setattr(redraws, "uniform_noise", noise)
    for cells in itertools.product(*(itertools.pairwise(e) for e in edges)):
        for position, (low, high) in enumerate(cells, 1):
            level[position] = (low + high) / 2
        chance = torch.tensor([high - low for low, high in cells]).double().prod()
        total += chance * enumerate_images(tables, "scd", coupling="gumbel")
    assert float((total - tables.joint()).abs().max()) < EXACT


@pytest.mark.slow
def test_gumbel_coupling_with_its_own_noise_keeps_the_targets_distribution():
    """χ² over 20,000 images of 64 kinds."""
    rows = list(verify_method(method("scd", coupling="gumbel"), None, 0, 8))
    assert [row.check for row in rows] == [
        "tables: images", "large tables, published sizes: token ranks", "tables: greedy identity",
        "tables: shared noise", "row ends: cached forward",
    ]  # fmt: skip
    assert all(row.passed for row in rows)


@pytest.mark.parametrize("coupling", ["maximal", "gumbel"])
def test_coupled_redraws_commit_more_tokens_a_step_than_independent_ones(shallow_8x8, coupling):
    from lanternbench.engine.decode import generate
    from lanternbench.methods.build import build

    def tau(name, **options):
        made = generate(
            build(shallow_8x8, method(name, window=8, **options)),
            [f"a red star {i}" for i in range(4)],
        )
        return sum(sum(g.accept_lengths) for g in made) / sum(g.steps for g in made)

    assert tau("scd", coupling=coupling) > tau("sjd")
