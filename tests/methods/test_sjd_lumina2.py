"""``sjd --variant lumina-2`` is what Lumina-mGPT 2.0's public code computes, and as far from exact
as its enumeration says.
"""

from __future__ import annotations

import json
import math
from copy import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from conftest import slow_but
from golden_checks.common import read
from golden_checks.engine_window import window_run
from rules import EXACT as RULE

from lanternbench.engine.plain import PlainRule
from lanternbench.engine.proposal import TreePolicy
from lanternbench.engine.verify import Residual
from lanternbench.errors import UserError
from lanternbench.lossless import EXACT, WORLDS, on_tables
from lanternbench.lossless.plain import World, decode_by_steps
from lanternbench.lossless.plain.drafts import WindowMethod
from lanternbench.lossless.plain.lumina2 import processed_again
from lanternbench.methods.method import method
from lanternbench.methods.proposals.jacobi import Jacobi
from lanternbench.methods.proposals.lumina2 import PublicWarp, top_n_sigma
from lanternbench.methods.residuals import standard
from lanternbench.registry import component
from lanternbench.settings import TARGETS_OWN, Sampling

AS_CODED = Residual(lambda q, p, x, depth, rule: q)  # a redraw that nothing processes


@pytest.fixture(scope="module")
def vectors(shared):
    return read(shared / "golden" / "lumina2_sjd.safetensors")


def redrawn(q: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return what the variant redraws from."""
    residual = component("proposal", "jacobi")(variant="lumina-2").residual(standard, sampling)
    return residual(q, None, torch.tensor(0), torch.tensor(1), RULE)


@pytest.mark.parametrize("name", ["processed", "processed_temperature"])
def test_distributions_and_redraws_are_those_of_the_public_code(vectors, name):
    case = vectors.meta["unit_cases"][name]
    first, last = case["image"]
    codes = slice(first, last + 1)
    given = vectors.under(f"in.unit.{name}.")
    sampling = Sampling(top_k=case["image_top_k"], temperature=case["temperature"])
    expected = given["p_cur"][:, codes]
    drawn = expected.sum(-1) > 0.5  # the others are row ends, which are forced
    q = PublicWarp(sampling)(given["logits"][:, codes])
    assert drawn.sum() >= 4
    assert torch.allclose(q[drawn], expected[drawn], atol=1e-6)
    stop = int(vectors[f"out.unit.{name}.n"]) - 1
    law = vectors[f"out.unit.{name}.redraw_law"][stop, codes]
    assert torch.allclose(redrawn(q[stop], sampling), law, atol=1e-6)


def test_every_redraw_of_whole_pipelines_is_processed_twice(vectors):
    case = vectors.meta["pipeline"]["pipe"]
    first, last = case["image_ids"]
    sampling = Sampling(top_k=case["image_top_k"], temperature=case["temperature"])
    run = vectors.under("out.pipeline.pipe.")
    found = changed = 0
    for target, place, law in zip(
        run["target"], run["redraw_index"].tolist(), run["redraw_law"], strict=True
    ):
        codes = slice(first, last + 1)
        if place < 0 or target[place, codes].sum() < 0.5:
            continue
        q = target[place, codes]
        assert torch.allclose(redrawn(q, sampling), law[codes], atol=1e-5)
        found += 1
        changed += int((law[codes] - q).abs().max() > 1e-3)
    assert found > 5
    assert changed > 0


def test_sigma_is_around_zero_and_so_depends_on_the_offset_of_the_logits():
    logits = torch.tensor([1.0, 0.5, -0.5, -torch.inf])
    sigma = math.sqrt((1 + 0.25 + 0.25) / 3)
    assert (top_n_sigma(logits) > -torch.inf).tolist() == [
        1.0 - x <= sigma for x in logits.tolist()
    ]
    assert (top_n_sigma(logits + 10) > -torch.inf).tolist() == [True, True, True, False]


@pytest.mark.parametrize("fixed", [False, True], ids=["coded", "fixed"])
@pytest.mark.parametrize("name", slow_but(["w6"], ["w6", "w8_cfg", "w5_topk"]))
def test_recorded_windows_are_followed_by_the_engine(vectors, name, fixed):
    """With a residual in place of the redraw it is SJD."""
    run = vectors.meta["runs"][name]
    out = f"out.run.{name}."
    recorded = {k: v for k, v in vectors.tensors.items() if not k.startswith(f"{out}fixed.")}
    if fixed:
        recorded |= {f"{out}{k}": v for k, v in vectors.under(f"{out}fixed.").items()}
        recorded.pop(f"{out}scores", None)
    recorded[f"in.run.{name}.residual_u"] = recorded.pop(f"in.run.{name}.redraw_u")
    found = window_run(
        vectors._replace(tensors=recorded),
        name,
        run,
        lambda u, size: u["sample_u"],
        lambda made, window, begun: Jacobi(variant="lumina-2", window=window).build(
            made, TreePolicy(), RULE
        ),
        RULE,
        standard if fixed else AS_CODED,
    )
    assert [f for f in found if not f.passed] == []


@dataclass(frozen=True)
class UpToTheEnd(WindowMethod):
    """The public windows end with the image, whose last token is a bonus token."""

    def filled(self, draws, world, prefix, window):
        shorter = copy(world)
        shorter.length -= 1
        return super().filled(draws, shorter, prefix, window)


def unprocessed(q, p, x, depth, rule):
    return q


CASES = ["v3_n4_l4", "v5_n4_l4_processors", "v5_n4_l4_processors_low", "v3_n5_l4"]


@pytest.mark.parametrize("case", slow_but(CASES[:2], CASES))
def test_what_it_draws_is_as_far_from_the_target_as_enumerated(shared, vectors, case):
    facts = json.loads((shared / "golden" / "lumina2_enumeration.json").read_text())[case]
    vocab, length, window = facts["V"], facts["N"], int(case.split("_")[2][1:])
    drawn = facts.get("suppressed_id", vocab)  # ids from here on are never drawn
    laws = [vectors[f"in.enum.{case}.target{n}"].double() for n in range(length)]

    def after(prefix):
        code = 0
        for token in prefix:
            code = code * vocab + token
        return laws[len(prefix)][code, :drawn].log().tolist()

    world = World(drawn, length, after)
    again = partial(processed_again, TARGETS_OWN)
    redraw = again if "processors" in case else unprocessed
    plain = UpToTheEnd(PlainRule(), redraw, window=window - 1, one_hot=True)
    images = {}
    for by_step in decode_by_steps(world, plain)[0]:
        for image, mass in by_step.items():
            images[image] = images.get(image, 0.0) + mass
    law = vectors[f"out.enum.{case}.law_code"].view([vocab] * length)
    assert max(abs(float(law[image]) - mass) for image, mass in images.items()) < 1e-6
    joint = world.joint()
    every = images.keys() | joint.keys()
    distance = sum(abs(images.get(image, 0.0) - joint.get(image, 0.0)) for image in every) / 2
    assert distance == pytest.approx(facts["tv_prefix_code"][-1], abs=1e-6)


@pytest.mark.parametrize("world", slow_but([2], range(5)))
def test_on_tables_the_engine_draws_what_the_plain_definition_says(world):
    one = on_tables(method("sjd", variant="lumina-2"), WORLDS[world](world))
    assert one.defined
    assert one.off < EXACT
    assert one.tv > 0.01


def test_a_redraw_from_a_residual_is_noticed(monkeypatch):
    monkeypatch.setattr(PublicWarp, "redraw", lambda self: standard)
    assert on_tables(method("sjd", variant="lumina-2"), WORLDS[2](2)).wrong > 1e-3


def test_it_claims_nothing_and_combines_with_nothing():
    public = method("sjd", variant="lumina-2")
    assert not public.lossless
    assert not public.bounded
    assert public.label == "sjd variant=lumina-2"
    assert method("sjd", variant="reference").lossless
    for options in ({"acceptance": "block"}, {"order": "rows"}):
        with pytest.raises(UserError, match="whole decoder"):
            method("sjd", variant="lumina-2", **options)
    with pytest.raises(UserError, match="must be 'paper' or 'reference'"):
        method("scd", variant="lumina-2")
