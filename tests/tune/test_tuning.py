"""``tune``: what it expects is what the engine does, it writes what runs, goes on after a kill,
and refuses plainly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import mistake
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.costs.forward_cost import Shape, Timed, fit, lengths_of, time_steps
from lanternbench.engine import decode as engine
from lanternbench.engine import opening
from lanternbench.engine.sampling import draw
from lanternbench.engine.state import StepResult
from lanternbench.engine.tree import Draft, chain, parents
from lanternbench.errors import UserError
from lanternbench.experiment import worker
from lanternbench.experiment.config import expand, read_sweeps
from lanternbench.measure.statistics import Estimate
from lanternbench.methods.build import build
from lanternbench.methods.method import method, named
from lanternbench.methods.proposals.sjd_pac import SjdPac
from lanternbench.methods.trees.dynamic import Bounds
from lanternbench.registry import components
from lanternbench.settings import Sampling
from lanternbench.tune import tree_search, tuning
from lanternbench.tune.accepted_lengths import (
    RecordingTree,
    ScoredTree,
    bounds,
    chain_lengths,
    child_table,
    grown_lengths,
    lengths,
    record_chains,
    record_growth,
    recorded_steps,
    with_tree,
)
from lanternbench.tune.result import DEFAULT, Result, Tune, Tuning, best, tuning_figure
from lanternbench.tune.tree_search import Candidate, GrowthSearch, OptionSearch, ShapeSearch
from lanternbench.utils.progress import silent

CAPTION = "a small red circle in the center on a plain blue background"
P = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05, 0.0])
Q = torch.tensor([0.2, 0.1, 0.3, 0.1, 0.2, 0.1])


def second_child(p: torch.Tensor, q: torch.Tensor) -> float:
    """P(the first of two children drawn without replacement is rejected and the second accepted),
    by enumeration.
    """
    total, rest = 0.0, (q - p).clamp(min=0)
    for x in range(len(p)):
        if p[x] > 0:
            left = p.scatter(0, torch.tensor(x), 0.0)
            passed = torch.minimum(left / left.sum(), rest / rest.sum()).sum()
            total += float(p[x] * (1 - min(1.0, float(q[x] / p[x]))) * passed)
    return total


def test_acceptance_by_depth_and_rank_is_what_enumeration_gives(target):
    """400 drafts, each judged 8 times: standard errors are below 0.025 for lengths, 0.01 for
    ranks; four may pass.
    """
    builder = RecordingTree.of(chain(2), True, torch.device("cpu"))
    generator, steps = torch.Generator().manual_seed(1), 400
    flat = torch.full((6,), 1 / 6)

    def drafted() -> Iterator[StepResult]:
        for _ in range(steps):
            builder.distributions[:] = [P[None, None], flat[None, None]]
            drawn = draw(torch.stack([P, flat]), torch.rand(2, generator=generator))
            draft = Draft(
                torch.cat([torch.zeros(1, dtype=torch.long), drawn])[None], None, builder.static
            )
            q = torch.stack([Q, Q, Q])[None]
            yield StepResult(draft, q, None, None, None, q)

    decoder = with_tree(build(target, method("eagle-1")), builder)
    record = record_chains(decoder, builder, 2, drafted())
    first, below = (float(torch.minimum(p, Q).sum()) for p in (P, flat))
    assert chain_lengths(record["reached"], steps, 1) == pytest.approx([first], abs=0.1)
    assert chain_lengths(record["reached"], steps, 2) == pytest.approx(
        [first, first * below], abs=0.1
    )
    table = child_table(record["children"], 2)
    assert table[0] == pytest.approx([first, second_child(P, Q)], abs=0.04)
    assert table[1] == pytest.approx([below, second_child(flat, Q)], abs=0.04)


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The tokens on the way to every node in use."""
    up, found = parents(draft.tree)[0].tolist(), {0: ()}
    for node in range(1, draft.tree.nodes):
        if draft.tree.depth[0, node] > 0:
            found[node] = (*found[up[node]], int(draft.tokens[0, node]))
    return set(found.values())


@pytest.mark.parametrize("top_k", [0, 2])  # of 2 tokens so few are possible that nodes are unused
def test_a_smaller_dynamic_tree_has_the_best_nodes_of_the_recorded_one(shallow, top_k):
    decoder = build(shallow, method("eagle-2"), Sampling(top_k=top_k))
    with torch.inference_mode():
        state = opening.start(decoder, [CAPTION], [3], trace=False)

    def first_draft(builder: ScoredTree) -> Draft:
        proposer = with_tree(decoder, builder).proposer
        with torch.inference_mode():
            return proposer.draft(state, proposer.begin(state), torch.zeros(1, 0))

    whole = ScoredTree.of(bounds(4, 3, 20))
    large = first_draft(whole)
    for depth, nodes in product((1, 2, 4), (2, 4, 9)):
        small = paths(first_draft(ScoredTree.of(bounds(depth, 3, nodes))))
        order = whole.scores[0].argsort(descending=True)
        levels = large.tree.depth[0, 1:][order]
        kept = [int(i) + 1 for i, d in zip(order, levels, strict=True) if 0 < d <= depth][
            : nodes - 1
        ]
        up, chosen = parents(large.tree)[0].tolist(), {()}
        for node in kept:
            way = [node]
            while up[way[-1]] > 0:
                way.append(up[way[-1]])
            chosen.add(tuple(int(large.tokens[0, i]) for i in reversed(way)))
        assert chosen == small


@torch.inference_mode()
def test_expected_lengths_of_a_recorded_tree_are_those_that_its_decode_had(shallow):
    builder = ScoredTree.of(bounds(3, 2, 8))
    decoder = with_tree(build(shallow, method("eagle-2")), builder)
    accepted: list[int] = []

    def noted() -> Iterator[StepResult]:
        for result in recorded_steps(decoder, CAPTION, "x", seed=0):
            accepted.append(int(result.verified.accepted))
            yield result

    seen, level = record_growth(decoder, builder, noted()).values()
    spread = np.std(accepted) / len(accepted) ** 0.5
    assert lengths(seen, level, 8, 3).sum(1).mean() == pytest.approx(
        np.mean(accepted), abs=4 * spread
    )
    grown = [lengths(seen, level, n, 3).sum(1).mean() for n in range(2, 9)]
    assert (np.diff(grown) >= 0).all()
    assert lengths(seen, level, 8, 1).sum(1).mean() <= grown[-1]


def test_recordings_that_are_wider_than_the_tree_can_use_count_together():
    # as many steps as the width
    steps = {k: {"seen": np.full((k, 3), 0.5), "level": np.ones((k, 3))} for k in (1, 2, 4, 6)}
    assert [len(grown_lengths(steps, Bounds(1, k, 3))) for k in (1, 2, 4, 6)] == [
        1,
        12,
        12,
        12,
    ]
    assert [len(grown_lengths(steps, Bounds(1, k, 9))) for k in (1, 2, 3, 5)] == [1, 2, 2, 4]


def test_the_cost_model_recovers_what_it_was_measured_on_and_what_lies_between():
    def timed(shape: Shape, cached: int) -> Timed:
        draft = 2.0 + sum(1 + 0.5 * m for m in shape.levels) if shape.depth else 0.0
        each, node, level = (1.0, 0.1, 0.2) if shape.chain else (2.0, 0.3, 0.0)
        return Timed(
            shape,
            cached,
            draft,
            10 + shape.nodes + cached / 100,
            each + node * shape.nodes + level * shape.depth,
        )

    shapes = [Shape(1, 0), *(Shape(d + 1, d, (1,) * (d - 1)) for d in (1, 4, 7))]
    shapes += [Shape(3, 1, (), False), Shape(9, 2, (4,), False), Shape(33, 4, (8, 8, 8), False)]
    cost = fit([timed(shape, cached) for shape in shapes for cached in (100, 300)])
    for shape in (
        Shape(6, 5, (1,) * 4),
        Shape(21, 3, (6, 6), False),
        Shape(65, 4, (8,) * 3, False),
    ):
        whole = timed(shape, 200)
        assert cost.step(shape) == pytest.approx(
            whole.draft_s + whole.forward_s + whole.rest_s, rel=1e-6
        )
    assert cost.forward(17) == pytest.approx(29)  # the mean of 28 and 30
    assert (cost.draft((), depth=0), cost.draft(())) == (0.0, 2.0)


def test_steps_are_timed_at_the_length_that_was_asked_for(shallow):
    spans = []
    forward = shallow.model.forward

    def noted(x, rope, mask, put, last):
        def seen(layer, kv):
            kept = put(layer, kv)
            if layer == 0:
                spans.append(kept.shape[2])
            return kept

        return forward(x, rope, mask, seen, last)

    shallow.model.forward = noted
    try:
        found = time_steps(build(shallow, method("ar")), Shape(1, 0), CAPTION, [20, 200], steps=2)
    finally:
        del shallow.model.forward
    prefix = spans[0]
    assert set(spans[1:]) == {prefix + 20, prefix + 200}
    assert [t.cached for t in found] == [20, 200]
    assert all(t.forward_s > 0 and t.draft_s == 0 for t in found)
    assert lengths_of(256, 8) == [32, 128, 216]


def test_every_drafting_method_has_a_search_and_others_are_refused():
    for name in components("preset"):
        if name in ("ar", "zipar", "pjd", "flashar"):
            with pytest.raises(UserError, match=r"no tree and no window|several rows at once"):
                tuning.search_kind(named(name))
        else:
            assert tuning.search_kind(named(name))
    assert tuning.search_kind(named("sjd-pac")) is OptionSearch
    assert tuning.search_kind(method("lantern", tree="static")) is ShapeSearch


def result(name: str, ratio: float, low: float, loss: float | None = None) -> Result:
    found = Estimate(ratio, low, 2 * ratio - low)
    return Result(name, name, {}, None, 2.0, 10.0, 10.0, found, found, loss)


def finished(step_s: float, best: str = DEFAULT) -> Tuning:
    """A search whose costs say ``step_s`` for a step that took 0.2 s when it was measured."""
    expected = Candidate({}, Shape(3, 2), [0.6, 0.4], step_s)
    found = [
        replace(result(name, 1.2, 1.1), expected=expected)
        for name in (DEFAULT, "candidate-1", "candidate-2")
    ]
    cost = fit([Timed(Shape(1, 0), 9, 0.0, 1.0, 0.1)])
    config = Tune(method="eagle-1", num_prompts=12, recorded=4)
    return Tuning(
        config, "static trees", cost, [result("ar", 0.5, 0.4), *found], 9, best, None, {}
    )


def test_no_speed_is_expected_where_the_clock_was_disturbed_between_costs_and_measurement():
    calm, busy = finished(0.2), finished(0.47)
    assert calm.disturbed is None
    assert [row["expected"]["tokens_per_s"] for row in calm.rows()[1:]] == [
        pytest.approx(10.0)
    ] * 3
    assert "0.43 times as long" in busy.disturbed
    for row in busy.rows()[1:]:
        assert (row["expected"]["tokens_per_s"], row["expected"]["step_s"]) == (None, None)
        assert row["expected"]["tau"] == 2.0
    assert "noisy" in " ".join(text.get_text() for text in tuning_figure(busy).axes[2].texts)
    assert not tuning_figure(calm).axes[2].texts


def test_a_verdict_says_that_it_is_the_best_of_several_on_prompts_that_chose_it():
    assert (
        "the best of 2 candidates on 12 prompts, 4 of which were also used to find them"
        in finished(0.2, "candidate-1").verdict
    )


def test_what_is_not_surely_faster_or_loses_more_is_not_chosen():
    own = result(DEFAULT, 1.0, 1.0)
    assert best([own, result("a", 1.2, 0.95)]) == DEFAULT
    assert (
        best([own, result("a", 1.2, 1.1), result("b", 1.3, 1.05), result("ar", 2.0, 1.9)]) == "b"
    )
    own = result(DEFAULT, 1.0, 1.0, loss=0.1)
    assert best([own, result("a", 1.2, 1.1, loss=0.105), result("b", 1.3, 1.2, loss=0.2)]) == "a"


@pytest.fixture
def small(shallow_8x8, monkeypatch):
    """Small images of two layers in place of the embedded target's, and short drafts."""
    for module in (tuning, worker):
        monkeypatch.setattr(module, "load_with_drafter", lambda *args: shallow_8x8)
    monkeypatch.setattr(tree_search, "LEVELS", 2)
    monkeypatch.setattr(tree_search, "WIDTHS", (1, 2))


def tuned(out, name: str, *more: str) -> dict:
    options = ["-n", "1", "--recorded", "1", "--few", "1", "--out", str(out), "--json"]
    done = CliRunner().invoke(
        app, ["tune", "--method", name, *options, *more], catch_exceptions=False
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cool-sd", "adt-tree"])
def test_a_tuned_preset_has_its_evidence_and_runs(small, tmp_path, name):
    found = tuned(tmp_path, name, *(["--lambda", "1.5"] if name == "cool-sd" else []))
    text = yaml.safe_load(Path(found["preset"]).read_text())
    evidence = text.pop("evidence")
    assert method(text.pop("method"), **text).preset == name
    assert {"verdict", "results", "costs", "machine", "search"} <= evidence.keys()
    table = evidence["acceptance_by_depth_and_rank"]
    assert (table is None) == (name != "cool-sd")
    assert all(0 < sum(row) <= 1 for row in table or [])
    by_name = {row["name"]: row for row in evidence["results"]}
    assert {"ar", DEFAULT, "candidate-1"} == set(by_name)
    for row in by_name.values():
        assert row["tokens_per_s"] > 0
        assert (row["tau"] == 1) == (row["name"] == "ar")
    assert by_name[DEFAULT]["expected"]["tau"] == pytest.approx(by_name[DEFAULT]["tau"], rel=0.6)
    assert (by_name[DEFAULT]["fidelity_loss"] is None) == (name != "cool-sd")
    assert Path(found["plot"]).read_bytes()[:4] == b"\x89PNG"
    if name != "cool-sd":
        return
    done = CliRunner().invoke(
        app, ["run", "-m", found["preset"], "-n", "1", "--metrics", "", "--out", str(tmp_path), "--json"],
        catch_exceptions=False,
    )  # fmt: skip
    labels = [row["label"] for row in json.loads(done.stdout)["rows"]]
    assert labels == ["ar", method(name, **text).label]


def test_trees_are_tuned_on_the_caption_that_was_asked_for(small, tmp_path, monkeypatch):
    annotations = [{"image_id": 1, "caption": text} for text in ("a dog", "a very big dog")]
    data = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": annotations}
    file = tmp_path / "captions.json"
    file.write_text(json.dumps(data))
    seen = {}

    def stop(search, pieces, prompts, progress):
        seen[search.config.caption] = [prompt.text for prompt in prompts]
        raise UserError("seen")

    monkeypatch.setattr(tuning, "Steps", stop)
    for caption in ("first", "longest"):
        config = Tune(method="sjd", prompts=f"coco2017:{file}", num_prompts=1, caption=caption)
        with pytest.raises(UserError, match="seen"):
            tuning.tune(config, tmp_path)
    assert seen == {"first": ["a dog"], "longest": ["a very big dog"]}


def test_windows_are_tried_one_option_after_the_other(shallow, monkeypatch):
    monkeypatch.setattr(SjdPac, "tuned", {"window": (2, 4), "siblings": (2,), "depth": (3, 9)})
    search = OptionSearch(shallow, Tune(method="sjd-pac", options={"window": 4}))
    assert search.defaults == {"window": 4, "siblings": 3, "depth": 3}
    assert [options for options, _ in search.sizes_to_try] == [
        search.defaults | more
        for more in ({}, {"window": 2}, {"siblings": 2})  # there are no 9 levels
    ]
    assert search.sizes_to_try[0][1] == Shape(1 + 3 + 9 + 2, 4, (), False)
    records = {name: {"accepted": np.array([1, 2, 2, 5])} for name in search.recorders(None)}
    cost = fit([Timed(shape, 9, 0.0, 1.0, 0.1) for _, shape in search.sizes_to_try])
    own = search.candidates(cost, records)[0]
    assert (own.options, own.tau, own.reach) == ({}, 2.5, [0.75, 0.25, 0.25, 0.25])


@pytest.mark.slow
def test_an_interrupted_search_goes_on_where_it_stopped(small, tmp_path, monkeypatch):
    config = Tune(method="eagle-2", num_prompts=1, recorded=1, few=1)

    def stop(done: int, of: int, what: str) -> None:
        if what.startswith("measuring") and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.tune(config, tmp_path, progress=stop)
    (lines,) = tmp_path.glob("*/measured.jsonl")
    before = lines.read_text()
    assert len(before.splitlines()) == 1
    lines.write_text(before + '{"name": "ar", "pro')  # as a power cut leaves it
    monkeypatch.setattr(tuning, "time_steps", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(GrowthSearch, "record", lambda *_: pytest.fail("recorded again"))
    path, found = tuning.tune(config, tmp_path)
    assert lines.read_text().startswith(before)
    assert len(lines.read_text().splitlines()) == len(found.results) == 3
    assert path.parent == lines.parent
    measured = lines.read_text()
    tuning.tune(config, tmp_path)
    assert lines.read_text() == measured


def test_with_simulated_acceptance_costs_alone_decide_how_deep_drafts_are(shallow):
    search = ShapeSearch(shallow, Tune(method="eagle-1", simulate_acceptance=2.5))
    # the method's own chain has five levels
    assert 1 + sum(search.simulated(5)) == pytest.approx(2.5, abs=1e-4)
    cheap, dear = (
        fit(
            [
                Timed(Shape(n, n - 1, (1,) * (n - 2)), 9, 1e-4 * n, forward(n), 0.0)
                for n in (1, 2, 9)
            ]
        )
        for forward in (lambda n: 1.0, float)
    )
    assert tuning.Steps(search, None, None, silent).records(cheap) == {}
    fastest = [
        max(search.candidates(c, {}), key=lambda c: c.tokens_per_s).options for c in (cheap, dear)
    ]
    assert fastest == [{"shape": "chain-8"}, {"shape": "chain-1"}]
    steps = engine.generate(search.decoder({"shape": "chain-8"}), [CAPTION])[0]
    assert sum(steps.accept_lengths) / steps.steps == pytest.approx(
        1 + sum(search.simulated(8)), rel=0.25
    )


def test_candidates_that_are_measured_differ_in_kind_and_are_not_the_methods_own():
    def one(nodes: int, depth: int, seconds: float, **options) -> Candidate:
        return Candidate(options, Shape(nodes, depth, (1,) * (depth - 1)), [0.5] * depth, seconds)

    own = one(6, 5, 1.0)
    found = [
        own,
        one(6, 5, 1.0, shape="the same"),
        one(3, 2, 1.0, shape="a"),
        one(3, 2, 1.1, shape="b"),
        one(2, 1, 2.0, shape="c"),
    ]
    chosen = tuning.chosen_of(found, 3)
    assert chosen.pop(DEFAULT) is own
    shapes = {name: candidate.options["shape"] for name, candidate in chosen.items()}
    assert shapes == {"candidate-1": "a", "candidate-2": "c"}


def test_a_dynamic_tree_without_levels_is_a_candidate_of_one_node(shallow):
    config = Tune(method="eagle-2", options={"depth": 0}, simulate_acceptance=[0.5])
    search = GrowthSearch(shallow, config)
    cost = fit([Timed(Shape(n, n - 1), 9, 0.1, float(n), 0.0) for n in (1, 2, 9)])
    default = search.candidates(cost, {})[0]
    assert (default.shape, default.reach, default.tau) == (Shape(1, 0, (), False), [], 1.0)
    recorded = np.ones((3, 4))
    assert lengths(recorded, recorded, nodes=1, depth=0).shape == (3, 0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--method", "ar"], "no tree and no window"),
        (["--method", "eagle-9"], "unknown method"),
        (["--method", "eagle-1", "--drafter", "nobody"], "unknown drafter 'nobody'"),
        (["--method", "eagle-1", "--simulate-acceptance", "40"], "cannot be simulated"),
        (["--method", "eagle-1", "--window", "3"], "does not read the option"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(monkeypatch, capfd, tmp_path, args, says):
    assert says in mistake(monkeypatch, capfd, "tune", *args, "--out", str(tmp_path))


def test_a_preset_file_stands_for_a_method_in_a_sweep_file_beside_it(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "method: cool-sd\nlam: 1.5\nshape: [[0], [1], [0, 0]]\nevidence: {why: because}\n"
    )
    config = tmp_path / "sweep.yaml"
    config.write_text("methods: [ar, mine.yaml, {method: mine.yaml, lambda: 3}]\n")
    (run,) = read_sweeps(config)
    assert [m.label for m in expand(run)] == [
        "ar",
        "cool-sd shape=[0,1,0.0] λ=1.5",
        "cool-sd shape=[0,1,0.0] λ=3",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no preset file"),
        ("method: [", "is no valid YAML"),
        ("shape: chain-3", "needs the key 'method'"),
        ("method: other.yaml", "needs the key 'method'"),
        ("method: eagle-9", "unknown method"),
    ],
)
def test_a_preset_file_that_is_none_is_one_sentence(monkeypatch, capfd, tmp_path, text, says):
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    assert says in mistake(monkeypatch, capfd, "run", "-m", str(path), "--out", str(tmp_path))
