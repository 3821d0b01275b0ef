"""Block verification: lossless, in expectation never shorter than token by token, refused where it
means nothing.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from plain_worlds import image_distribution
from rules import chain, drafted
from windows_on_tables import enumerate_images

from lanternbench.errors import UserError
from lanternbench.lossless.plain.rules import BlockRule
from lanternbench.lossless.tables import Tables, random_rows
from lanternbench.methods.acceptance.chains import block
from lanternbench.methods.method import method


@pytest.mark.parametrize("kind", ["dense", "zeros", "one-token"])
def test_it_is_lossless_and_the_plain_definition(kind):
    tables = Tables(3, 3, 5, kind)
    got = enumerate_images(tables, "sd", acceptance="block")
    defined = image_distribution(tables.world(), drafted(chain(2), BlockRule()))
    assert float((got - tables.on_all_images(defined)).abs().max()) < 1e-6
    assert float((got - tables.joint()).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("name", "tree"), [("eagle-1", "chain"), ("cool-sd", "chain"), ("sjd", None)]
)
def test_it_is_lossless_on_other_chains(name, tree):
    tables = Tables(3, 3, 6, "dense")
    got = enumerate_images(tables, name, tree=tree, acceptance="block")
    assert float((got - tables.joint()).abs().max()) < 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_its_expected_length_is_never_below_that_of_token_by_token(seed):
    """Exactly, over all chains of three tokens out of three; above it in most worlds."""
    generator = torch.Generator().manual_seed(seed)
    rows = [random_rows(40, 3, "mixed", generator) for _ in "qp"]
    blocks, tokens = 0.0, 0.0
    for xs in itertools.product(range(3), repeat=3):
        at = [
            sum(3**j for j in range(i)) + sum(x * 3 ** (i - 1 - j) for j, x in enumerate(xs[:i]))
            for i in range(4)
        ]
        q, p = rows[0][at], rows[1][at[:3]]
        drafts = torch.tensor([xs])
        chance = float(p.gather(1, drafts.T).prod())
        if chance == 0:
            continue
        h, _ = block(q[None], p[None], drafts)
        stop = h[0].tolist()
        longer, expected = 1.0, 0.0
        for i in (3, 2, 1):
            expected += longer * stop[i - 1] * i
            longer *= 1 - stop[i - 1]
        by_hand = BlockRule().endings(q.tolist(), p.tolist(), xs)
        assert expected == pytest.approx(sum(chance * i for chance, i, _ in by_hand))
        blocks += chance * expected
        ratio = (q[:3].gather(1, drafts.T) / p.gather(1, drafts.T)).clamp(max=1)[:, 0]
        tokens += chance * float(ratio.cumprod(0).sum())
    assert blocks >= tokens - 1e-12


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("eagle-1", {}, "judges a chain"),
        ("eagle-2", {}, "judges a chain"),
        ("scd", {}, "coupled redraws are not"),
        ("medusa", {"tree": "chain"}, "chosen, not sampled"),
        ("sd", {"residual": "optimal"}, "residual of its own"),
    ],
)
def test_it_is_refused_with_the_reason(name, options, reason):
    with pytest.raises(UserError, match=reason):
        method(name, acceptance="block", **options)
