"""GSD and top-k acceptance: the engine samples the plain definition, and the fidelity loss bounds
what it costs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_worlds import image_distribution
from rules import drafted, plainly, windowed
from windows_on_tables import enumerate_images, output_distribution, tv

from lanternbench.engine.plain import PlainRule
from lanternbench.errors import UserError
from lanternbench.lossless import plain
from lanternbench.lossless.plain.drafts import TreeMethod
from lanternbench.lossless.tables import Tables
from lanternbench.methods.method import method

EXACT = 1e-6
SMALL = ((0,), (1,), (2,), (0, 0), (0, 1))  # the tables' static tree


def grouped(tables: Tables) -> PlainRule:
    return plainly("gsd", tables.codebook, ranks=1, margin=0.5, radius=2.0)


@pytest.mark.parametrize("kind", ["dense", "zeros"])
def test_groups_in_a_window_are_the_plain_definition(kind):
    tables = Tables(3, 3, 5, kind)
    got = enumerate_images(tables, "gsd", margin=0.5, radius=2.0)
    defined = image_distribution(tables.world(), windowed(grouped(tables)))
    assert float((got - tables.on_all_images(defined)).abs().max()) < EXACT
    if kind == "dense":
        assert tv(got, tables.joint()) > 1e-3


@pytest.mark.parametrize("name", ["eagle-1", "eagle-2"])
@pytest.mark.parametrize("rule", ["gsd", "top-k"])
def test_on_trees_sampled_or_chosen_image_and_loss_are_the_plain_ones(name, rule):
    tables = Tables(3, 3, 6, "dense")
    options = {"gsd": {"margin": 0.5, "radius": 2.0}, "top-k": {"rho": 0.4}}[rule]
    spec = {"gsd": grouped(tables), "top-k": plainly("top-k", k=2, rho=0.4)}[rule]
    static = TreeMethod(paths=SMALL)
    tree = drafted(static if name == "eagle-1" else TreeMethod(kind="dynamic"), spec)
    with torch.inference_mode():
        got, bound = output_distribution(tables, method(name, acceptance=rule, **options))
    loss = plain.decode_by_steps(tables.world(), tree)[1]
    defined = image_distribution(tables.world(), tree)
    assert float((got - tables.on_all_images(defined)).abs().max()) < EXACT
    assert bound == pytest.approx(loss, abs=1e-5)
    assert 1e-3 < tv(got, tables.joint()) <= bound + EXACT


@pytest.mark.parametrize(("variant", "alike"), [("paper", [0, 1]), ("reference", [0, 2])])
def test_the_paper_compares_codes_and_the_public_code_input_embeddings(variant, alike):
    codes, embeddings = (
        torch.tensor([[0.0], [0.6], [1.0]]),
        torch.tensor([[0.0, 0.0], [5.0, 5.0], [0.1, 0.1]]),
    )
    model = SimpleNamespace(tok_embeddings=torch.nn.Embedding.from_pretrained(embeddings))
    target: Any = SimpleNamespace(codebook=codes, model=model, vocab=3, device=codes.device)
    rule: Any = method("gsd", variant=variant).acceptance.build(target, 1)
    assert rule.alike[0].nonzero()[:, 0].tolist() == alike


def test_a_group_has_no_residual_of_lanterns():
    with pytest.raises(UserError, match="standard or optimal"):
        method("gsd", residual="lantern")
