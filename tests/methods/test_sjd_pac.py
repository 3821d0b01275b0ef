"""SJD-PAC: siblings keep the target's distribution; the public code does not."""

from __future__ import annotations

import pytest
import torch
from conftest import slow_but
from plain_worlds import image_distribution
from rules import windowed
from windows_on_tables import enumerate_images, tv

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.lossless import on_tables
from lanternbench.lossless.tables import Tables
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.proposals.sjd_pac import SjdPac
from lanternbench.settings import GREEDY

EXACT = 1e-6
CAPTIONS = [f"a red star on background {i}" for i in range(3)]


@pytest.mark.parametrize("kind", slow_but(["zeros", "one-token"], ["dense", "zeros", "one-token"]))
def test_siblings_are_lossless_and_the_plain_definition(kind):
    """Two siblings, also where the target has one token left; a window longer than the rest of the
    image.
    """
    tables = Tables(3, 3, 5, kind)
    got = enumerate_images(tables, "sjd-pac")
    defined = image_distribution(
        tables.world(), windowed(redraw="maximal", siblings=2, tree_depth=3)
    )
    assert float((got - tables.on_all_images(defined)).abs().max()) < EXACT
    assert float((got - tables.joint()).abs().max()) < EXACT


def test_a_chain_beyond_the_tree_is_lossless_and_the_plain_definition():
    """Images long enough for a draft of the chain to be judged by a later step; steps are
    compared, too.
    """
    assert (
        on_tables(method("sjd-pac", siblings=1, depth=2), Tables(2, 5, 5, "dense")).wrong < EXACT
    )


def test_more_siblings_than_tokens_are_lossless(monkeypatch):
    monkeypatch.setattr(SjdPac, "small", lambda self: self)
    tables = Tables(2, 2, 3, "zeros")
    got = enumerate_images(tables, "sjd-pac", siblings=3, depth=2, window=1)
    assert float((got - tables.joint()).abs().max()) < EXACT


def test_the_public_code_is_not_lossless():
    tables = Tables(2, 3, 5, "dense")
    assert tv(enumerate_images(tables, "sjd-pac", variant="reference"), tables.joint()) > 1e-3
    assert not method("sjd-pac", variant="reference").lossless


def test_what_cannot_run_together_is_refused_with_the_reason():
    with pytest.raises(UserError, match="judges a chain"):
        method("sjd-pac", acceptance="block")
    with pytest.raises(UserError, match="public code of SJD-PAC"):
        method("sjd-pac", acceptance="gsd", variant="reference")
    with pytest.raises(UserError, match="drafts with tree static"):
        method("sjd-pac", tree="dynamic")


NEW = (
    ("scd", {}), ("scd", {"coupling": "gumbel"}), ("sjd-pac", {"depth": 2}), ("sjd-pac", {"variant": "reference"}),
    ("gsd", {}), ("sjd-pac", {"acceptance": "gsd"}), ("sd", {"acceptance": "block"}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "options"), slow_but([NEW[2]], NEW), ids=str)
def test_an_image_is_the_same_alone_and_in_a_batch_that_drops_finished_prompts(
    shallow_5x5, name, options
):
    decoder = build(shallow_5x5, method(name, **options))
    together = generate(decoder, CAPTIONS, seed=3)
    for caption, made in zip(CAPTIONS, together, strict=True):
        assert torch.equal(generate(decoder, [caption], seed=3)[0].tokens, made.tokens)


@pytest.mark.parametrize(("name", "options"), slow_but([NEW[4], NEW[6]], NEW), ids=str)
def test_at_temperature_0_the_image_is_the_argmax(shallow_5x5, name, options):
    ar, made = (
        generate(build(shallow_5x5, m, GREEDY), CAPTIONS)
        for m in (method("ar"), method(name, **options))
    )
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(ar, made, strict=True))
