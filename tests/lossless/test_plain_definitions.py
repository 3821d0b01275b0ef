"""The plain definitions give the papers' distributions: by hand and by enumeration, the public
code's too.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
from pathlib import Path

import pytest
from plain_worlds import image_distribution, in_all, random_world, total_variation
from rules import chain, drafted, plainly, windowed
from windows_on_tables import gumbel_token

import lanternbench.lossless.plain as plain
from lanternbench.engine import plain as engine_plain
from lanternbench.engine.plain import AdaptiveBounds, PlainRule
from lanternbench.lossless.plain import (
    Draws,
    World,
    guide,
    normalise,
    outcomes,
    warp,
)
from lanternbench.lossless.plain.drafts import (
    Memory,
    TreeMethod,
    adjacent_tree,
    adt_adapt,
    coupled,
    dynamic_tree,
    token_flock,
)
from lanternbench.lossless.plain.rules import (
    AnnealedRule,
    BlockRule,
    jensen_shannon,
    moved_onto,
    nearest,
)
from lanternbench.methods.trees.adaptive import _flock
from lanternbench.settings import TARGETS_OWN, Sampling

RULE = PlainRule()
BLOCK = BlockRule()
EXACT = 1e-12
SMALL = ((0,), (1,), (2,), (0, 0), (0, 1))
NARROW = AdaptiveBounds(l_k=1, d=(0, 3), k=(0, 3))
INITS = ("random", "horizontal-repeat", "vertical-repeat", "horizontal-sample", "vertical-sample")


def worlds() -> list[World]:
    """Dense, with banned tokens, and warped with guidance, temperature, top-k and top-p."""
    other = random_world(4, 3, 10)
    warped = random_world(
        4, 3, 9, sampling=Sampling(temperature=0.8, top_k=3, top_p=0.9, guidance=2.0),
        target_uncond=other.target, drafter_uncond=other.drafter,
    )  # fmt: skip
    return [random_world(3, 4, 1), random_world(3, 4, 2, zeros=0.3), warped]


LOSSLESS = {
    "ar": drafted(TreeMethod()),
    "chain": drafted(chain(3)),
    "optimal residual": drafted(chain(2), residual="optimal"),
    "block": drafted(chain(3), BLOCK),
    "static": drafted(TreeMethod(paths=SMALL)),
    "static, likeliest children": drafted(TreeMethod(paths=SMALL), sampled=False),
    "dynamic": drafted(TreeMethod(kind="dynamic", depth=2, top_k=2, total=4)),
    **{
        f"adaptive, {init}": drafted(TreeMethod(kind="adaptive", bounds=NARROW, init=init))
        for init in ("horizontal", "vertical", "token-flock")
    },
}
TREES = {
    "chain": chain(2),
    "static": TreeMethod(paths=SMALL),
    "dynamic": TreeMethod(kind="dynamic"),
    "adaptive": TreeMethod(kind="adaptive", bounds=NARROW),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_drafted_methods_give_the_targets_joint_exactly(name):
    for world in worlds():
        by_steps, loss = plain.decode_by_steps(world, LOSSLESS[name])
        made = in_all(by_steps)
        assert total_variation(made, world.joint()) < EXACT
        assert loss < EXACT


LOSSY = {
    "annealed exp": ("annealed", {"lam": 1.2}, "optimal"),
    "annealed linear": ("annealed", {"lam": 1.5, "schedule": "linear"}, "standard"),
    "annealed uniform": ("annealed", {"schedule": "uniform"}, "optimal"),
    "lantern tvd": ("lantern", {"k": 3, "delta": 0.3}, "lantern"),
    "lantern jsd": ("lantern", {"k": 3, "delta": 0.3, "divergence": "jsd"}, "lantern"),
    "lantern++": ("lantern++", {"k": 3}, "lantern"),
    "lantern++ optimal": ("lantern++", {"k": 3}, "optimal"),
    "typical": ("typical", {"epsilon": 0.3}, "standard"),
    "top-k": ("top-k", {"k": 2, "rho": 0.2}, "standard"),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", LOSSY)
def test_lossy_methods_stay_within_their_fidelity_loss(name, tree):
    for world in worlds()[:2]:
        rule, options, rest = LOSSY[name]
        spec = drafted(TREES[tree], plainly(rule, world.codebook, 2, **options), rest)
        by_steps, loss = plain.decode_by_steps(world, spec)
        made = in_all(by_steps)
        tv = total_variation(made, world.joint())
        assert math.fsum(made.values()) == pytest.approx(1, abs=EXACT)
        assert tv <= loss + EXACT
        assert tv > 1e-3, "the rule relaxes nothing here: the bound is not tested"


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("redraw", ["independent", "maximal"])
@pytest.mark.parametrize("prefill", [True, False])
def test_windows_give_the_targets_joint_exactly(init, redraw, prefill):
    for world in worlds():
        for window in (1, 2):
            made = image_distribution(
                world, windowed(window=window, init=init, redraw=redraw, prefill=prefill)
            )
            assert total_variation(made, world.joint()) < EXACT


@pytest.mark.parametrize(
    ("window", "siblings", "depth"), [(2, 2, 2), (3, 2, 2), (2, 3, 3), (3, 2, 3)]
)
def test_siblings_after_a_rejection_keep_the_targets_joint(window, siblings, depth):
    for world in (random_world(3, 3, 4), random_world(3, 3, 5, zeros=0.3), random_world(2, 4, 6)):
        spec = windowed(
            window=window, redraw="maximal", prefill=False, siblings=siblings, tree_depth=depth
        )
        assert total_variation(image_distribution(world, spec), world.joint()) < EXACT


def test_grouped_acceptance_is_lossy_and_sums_to_one():
    world = random_world(3, 3, 7, scale=0.4)
    made = image_distribution(world, windowed(plainly("gsd")))
    assert math.fsum(made.values()) == pytest.approx(1, abs=EXACT)
    assert total_variation(made, world.joint()) > 0.01


def test_coupled_redraw_has_the_new_law_and_keeps_as_often_as_possible():
    world = random_world(4, 2, 3, zeros=0.3)
    p, q = world.p((1,)), world.q((1,))
    law, kept = [0.0] * 4, 0.0
    for x, px in enumerate(p):
        if px > 0:
            branches, _ = outcomes(lambda draws, x=x: coupled(draws, q, p, x))
            for (y, same), chance in branches.items():
                law[y] += px * chance
                kept += px * chance * same
    assert law == pytest.approx(q, abs=EXACT)
    assert kept == pytest.approx(sum(map(min, p, q)), abs=EXACT)


# ---------------------------------------------------------------- by hand

Q, P = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]


def rest(
    name: str, q: list[float], p: list[float], x: int, rule: PlainRule, depth: int = 1
) -> list[float]:
    return list(drafted(chain(1), rule, name).after_rejection(q, p, x, depth))


def test_exact_acceptance_and_residual_by_hand():
    assert [RULE.probability(Q, P, x, 1) for x in range(3)] == pytest.approx([1, 0.6, 2 / 3])
    assert rest("standard", Q, P, 1, RULE) == [1, 0, 0]
    assert RULE.probability(Q, [0, 1, 0], 1, 1) == 0.3
    assert rest("standard", Q, [0, 1, 0], 1, RULE) == pytest.approx([5 / 7, 0, 2 / 7])


def test_schedules_by_hand():
    def omega(schedule: str) -> list[float]:
        rule = plainly("annealed", depth=3, schedule=schedule, nu=0.5)
        return [rule.ratio([1.0], [1.0], 0, i) for i in (1, 2, 3)]

    assert omega("uniform") == [2, 2, 2]
    assert omega("exp") == pytest.approx([24 / 7, 12 / 7, 6 / 7])
    assert omega("linear") == pytest.approx([3, 2, 1])


def loss(residual: str, rule: PlainRule, depth: int) -> float:
    """TV(q, K) of one test."""
    return plain.total_variation(Q, drafted(chain(1), rule, residual).kernel(Q, P, P, depth))


def test_annealed_acceptance_and_optimal_residual_by_hand():
    rule = AnnealedRule(0.5, "uniform", 0.7, 2)
    assert [rule.probability(Q, P, x, 2) for x in range(3)] == pytest.approx([1, 0.3, 1 / 3])
    # q − min(p, ω q) = (0.5 − 0.2, 0.3 − 0.15, 0.2 − 0.1)
    assert rest("optimal", Q, P, 1, rule, 2) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert rest("standard", Q, P, 1, rule, 2) == [1, 0, 0]
    # K = p f + (1 − Σ p f) G = (0.2, 0.15, 0.1) + 0.55·(6, 3, 2)/11 = q
    assert loss("optimal", rule, 2) == pytest.approx(0, abs=EXACT)
    assert loss("standard", rule, 2) == pytest.approx(0.25)
    generous = plainly("annealed", schedule="uniform", lam=1.5)
    # Σ [p f − q]₊ with p f = min(p, 1.5 q) = (0.2, 0.45, 0.3): 0.15 + 0.1
    assert loss("optimal", generous, 1) == pytest.approx(0.25)


FOUR = [[0.0], [1.0], [3.0], [6.0]]  # a codebook


def test_lantern_by_hand():
    q, one = [0.4, 0.3, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0]
    assert nearest(FOUR, 4)[1] == [1, 0, 2, 3]
    rule = plainly("lantern", FOUR, k=4, delta=0.61)
    assert rule.group(q, 1) == [1, 0, 2]  # 0.4 < δ, 0.6 < δ, 0.7 is not
    assert plainly("lantern", FOUR, k=4, delta=0.4).group(q, 1) == [1]  # D < δ is strict
    assert moved_onto(q, [1, 0, 2]) == pytest.approx([0, 0.9, 0, 0.1])
    assert rule.probability(q, one, 1, 1) == pytest.approx(0.9)
    assert rest("lantern", q, one, 1, rule) == [0, 0, 0, 1]
    assert rest("standard", q, one, 1, rule) == pytest.approx([4 / 7, 0, 2 / 7, 1 / 7])
    assert rest("optimal", q, one, 1, rule) == pytest.approx([4 / 7, 0, 2 / 7, 1 / 7])
    far = jensen_shannon(q, moved_onto(q, [1, 0]))
    by_hand = 0.5 * (0.4 * math.log(2) + 0.3 * math.log(0.3 / 0.5) + 0.7 * math.log(0.7 / 0.5))
    assert far == pytest.approx(by_hand)
    for delta, group in ((by_hand + 1e-9, [1, 0]), (by_hand - 1e-9, [1])):
        assert plainly("lantern", FOUR, k=4, delta=delta, divergence="jsd").group(q, 1) == group


def test_lantern_plus_plus_by_hand():
    q = [0.3, 0.3, 0.3, 0.1]
    groups = {
        lam: plainly("lantern++", FOUR, k=4, lam=lam).group(q, 1) for lam in (1.99, 2.0, 3.0)
    }
    assert groups == {1.99: [1], 2.0: [1, 0], 3.0: [1, 0, 2]}  # 0.3 ≤ (2 − 1)·0.3


def test_typical_top_k_and_grouped_by_hand():
    flat, peaked = [0.25] * 4, [0.91, 0.03, 0.03, 0.03]
    rule = plainly("typical", epsilon=0.09)  # min(0.09, 0.3·exp(−ln 4) = 0.075) below 0.25
    assert rule.probability(flat, flat, 0, 1) == 1
    assert (
        rule.probability(peaked, flat, 1, 1) == 0
    )  # exp(−0.404)·0.3 = 0.2: the threshold is 0.09
    assert [plainly("top-k", k=2, rho=0.0).probability(Q, P, x, 1) for x in range(3)] == [1, 1, 0]
    assert [plainly("top-k", k=3, rho=0.5).probability(Q, P, x, 1) for x in range(3)] == [1, 1, 0]
    close = plainly("gsd", ((0.0,), (0.5,), (3.0,)))
    assert close.group(Q, 2) == [2]
    wide = plainly("gsd", ((0.0,), (0.5,), (0.6,)), margin=0.25)
    assert sorted(wide.group(Q, 1)) == [0, 1, 2]
    assert sorted(wide.group(Q, 0)) == [0, 1]
    assert wide.probability(Q, P, 0, 1) == 1  # min(1, 0.8/0.7)
    assert close.probability(Q, P, 2, 1) == pytest.approx(2 / 3)
    assert sorted(plainly("gsd", ranks=1, margin=1.0).group(Q, 2)) == [1, 2]


def test_block_verification_by_hand():
    q, p = [0.5, 0.5], [0.75, 0.25]
    outcomes = {
        i: (chance, normalise(weights))
        for chance, i, weights in BLOCK.endings([q, q, q], [p, p], (0, 0))
    }
    # w_1 = 2/3, w_2 = 4/9; (w_1 q − p)₊ = (0, 1/12): h_1 = (1/12)/(1/12 + 1/3) = 1/5, h_2 = w_2
    assert outcomes[2][0] == pytest.approx(4 / 9)
    assert outcomes[1][0] == pytest.approx(5 / 9 / 5)
    assert outcomes[0][0] == pytest.approx(5 / 9 * 4 / 5)
    assert (outcomes[1][1], outcomes[0][1], outcomes[2][1]) == ((0, 1), (0, 1), tuple(q))


def committed(draws: Draws, world: World, rule: PlainRule) -> tuple[int, ...]:
    """The tokens of one step after nothing: four at most, so that the image's end cuts none."""
    spec = drafted(chain(3), rule)
    return spec.step(world, ((), Memory()))(draws)[0]


def test_block_verification_accepts_no_fewer_tokens_than_exact():
    for seed in range(10):
        world = random_world(3, 4, seed)
        mean = {
            rule: sum(
                len(tokens) * mass
                for tokens, mass in outcomes(
                    lambda draws, w=world, r=rule: committed(draws, w, r)
                )[0].items()
            )
            for rule in (RULE, BLOCK)
        }
        assert mean[BLOCK] >= mean[RULE] - EXACT


def test_warping_by_hand():
    logits = [math.log(x) for x in (0.4, 0.3, 0.2, 0.1)]
    assert warp(logits, TARGETS_OWN) == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert warp(logits, Sampling(temperature=0.5)) == pytest.approx(
        [16 / 30, 9 / 30, 4 / 30, 1 / 30]
    )
    assert warp(logits, Sampling(top_k=2)) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # ties stay
    assert warp([1.0, 0.0, 0.0, -1.0], Sampling(top_k=2))[1:3] == pytest.approx(
        [1 / (math.e + 2)] * 2
    )
    assert warp(logits, Sampling(top_p=0.6)) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert warp(logits, Sampling(top_p=0.3)) == (1, 0, 0, 0)
    assert guide([1.0, 2.0, -math.inf], [0.0, 3.0, 1.0], 3.0) == [3.0, 0.0, -math.inf]


def test_guidance_comes_before_temperature_and_top_k():
    cond, uncond = [2.0, 1.0, 0.0], [2.0, 0.0, 0.0]
    world = World(
        3,
        1,
        lambda _: cond,
        target_uncond=lambda _: uncond,
        sampling=Sampling(guidance=4.0, temperature=2.0, top_k=1),
    )
    assert world.q(()) == (0, 1, 0)  # guided logits (2, 4, 0)


def test_dynamic_tree_by_hand():
    drafter = {(): [0.6, 0.3, 0.1], (0,): [0.45, 0.15, 0.4], (1,): [0.81, 0.1, 0.09]}
    world = World(3, 3, lambda _: [0.0] * 3, lambda s: [math.log(x) for x in drafter[s]])
    # level 1: 0 (0.6), 1 (0.3); level 2: 0→0 (0.27), 0→2 (0.24), 1→0 (0.243), 1→1 (0.03); the best
    # four stay
    assert dynamic_tree(world, (), 2, 2, 5) == {(): [0, 1], (0,): [0], (1,): [0]}
    assert dynamic_tree(world, (), 2, 2, 3) == {(): [0, 1]}
    assert dynamic_tree(world, (), 1, 2, 9) == {(): [0, 1]}


# ---------------------------------------------------------------- ADT-Tree

ANOLE = AdaptiveBounds()


def test_adaptive_trees_start_from_their_neighbour():
    # three tokens a row: the next is in row 1, column 2
    history = ((2, 5), (3, 6), (4, 7), (5, 8), (6, 9))
    assert adjacent_tree(history, "horizontal", 3) == (6, 9)
    assert adjacent_tree(history, "vertical", 3) == (4, 7)
    # nothing above: the token to the left
    assert adjacent_tree(history[:2], "vertical", 3) == (3, 6)


def test_token_flock_weighs_by_rows_above():
    # δ = 2, three tokens a row, next token in row 2, column 1: same row weighs 3/2, one above 1,
    # two above 1/2
    two_rows = ((9, 13), (1, 4), (9, 13), (4, 8), (5, 8), (6, 8), (8, 12))
    assert token_flock(two_rows, 3, 2) == pytest.approx(
        ((0.5 * 1 + 15 + 1.5 * 8) / 5, (0.5 * 4 + 24 + 1.5 * 12) / 5)
    )
    # δ = 1, five tokens a row, next token in row 1, column 1: the token above weighs 1, the one to
    # the left 2
    history = ((1, 4), (2, 5), (3, 6), (9, 13), (9, 13), (5, 8))
    assert token_flock(history, 5, 1) == pytest.approx(((2 + 2 * 5) / 3, (5 + 2 * 8) / 3))


@pytest.mark.parametrize("flock", [token_flock, _flock], ids=["definition", "engine"])
def test_token_flock_reads_the_tokens_at_a_euclidean_distance_of_at_most_delta(flock):
    # of seven rows of seven, the token in row 3, column 3: six earlier tokens lie within 2, of the
    # square around it 12
    side, at = 7, (3, 3)
    blank = [(1, 4)] * (at[0] * side + at[1])
    read = set()
    for i in range(len(blank)):
        trees = (*blank[:i], (9, 13), *blank[i + 1 :])
        if flock(trees, side, 2) != pytest.approx((1, 4)):
            read.add((i // side - at[0], i % side - at[1]))
    assert read == {(0, -1), (0, -2), (-1, -1), (-1, 0), (-1, 1), (-2, 0)}


def test_adaptation_goes_deeper_and_narrower_after_success():
    assert adt_adapt((4, 8), 1.0, ANOLE) == (5, 5)  # α ≥ β
    assert adt_adapt((4, 8), 0.99, ANOLE) == (3, 11)
    assert adt_adapt((4, 8), None, ANOLE) == (4, 8)
    assert adt_adapt((4, 8), 1.0, AdaptiveBounds(l_d=2, l_k=10, k=(3, 40))) == (6, 4)


def test_the_intervals_are_open():
    assert adt_adapt((9, 4), 1.0, ANOLE) == (9, 4)
    assert adt_adapt((2, 13), 0.1, ANOLE)[0] == 1
    assert adt_adapt((1, 13), 0.1, ANOLE)[0] == 1  # never a tree of no level
    assert adt_adapt((3, 13), 0.1, ANOLE) == (2, 13)


def test_width_is_bounded_only_where_the_tree_has_more_than_one_level():
    assert adt_adapt((2, 13), 0.1, ANOLE) == (1, 16)
    assert adt_adapt((3, 12), 0.1, ANOLE) == (2, 13)


# ---------------------------------------------------------------- published code, enumerated


def published(shared: Path) -> dict[str, dict]:
    return {
        f"{group}: {name}" if group else name: case
        for group, cases in nested(
            json.loads((shared / "golden" / "enumeration.json").read_text())
        )
        for name, case in cases.items()
    }


def nested(data: dict) -> list[tuple[str, dict]]:
    """The cases may stand in groups or not."""
    groups = [(k, v) for k, v in data.items() if isinstance(v, dict) and "tv" not in v]
    return [("", {k: v for k, v in data.items() if isinstance(v, dict) and "tv" in v}), *groups]


def recorded_world(seed: int, vocab: int, length: int, scale: float = 1.2) -> World:
    """The targets that the published samplers were enumerated on: softmax(scale · normal),
    prefixes by length.
    """
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(seed)
    prefixes = [s for n in range(length) for s in itertools.product(range(vocab), repeat=n)]
    table = {s: (scale * rng.normal(size=vocab)).tolist() for s in prefixes}
    return World(vocab, length, lambda s: table[s])


def prefix_tv(made: dict, joint: dict, length: int) -> list[float]:
    """TV of the first 1 … N tokens."""
    cut = []
    for n in range(1, length + 1):
        short: list[dict] = [{}, {}]
        for images, into in zip((made, joint), short, strict=True):
            for image, w in images.items():
                into[image[:n]] = into.get(image[:n], 0.0) + w
        cut.append(total_variation(*short))
    return cut


@pytest.mark.parametrize(
    ("case", "redraw", "rule"),
    [
        ("sjd_control(GS sampler, independent redraw)", "independent", RULE),
        ("cosmos_maximal", "maximal", RULE),
        ("lumina_maximal", "kept-law", RULE),
        ("gsd flat target scale 0.4 emb 0.15", "independent", plainly("gsd")),
    ],
)
def test_enumerations_of_published_windows_are_reproduced(shared, case, redraw, rule):
    found = {k: v for k, v in published(shared).items() if k.startswith(case + " seed")}
    assert found
    for name, recorded in found.items():
        seed, vocab, length, size = (
            int(part[1:].removeprefix("eed")) for part in name.split()[-1].split("_")
        )
        world = recorded_world(seed, vocab, length, 0.4 if "0.4" in name else 1.2)
        spec = windowed(rule, window=size - 1, redraw=redraw, one_hot=True, prefill=False)
        made = image_distribution(world, spec)
        assert prefix_tv(made, world.joint(), length) == pytest.approx(
            recorded["tv_prefix"], abs=1e-9
        ), name


def test_noise_shared_by_all_positions_is_as_far_off_as_recorded(shared):
    """Two tokens: argmax(log q + g) is token 0 where g_1 − g_0 < log q_0/q_1, that is with
    probability q_0.
    """
    found = {k: v for k, v in published(shared).items() if "plain steps share row 0" in k}
    assert found
    for name, recorded in found.items():
        seed, vocab, length = (
            int(part[1:].removeprefix("eed")) for part in name.split()[-1].split("_")
        )
        world = recorded_world(seed, vocab, length)
        made: dict[tuple[int, ...], float] = {}
        cuts = sorted(
            {0.0, 1.0}
            | {world.q(s)[0] for n in range(length) for s in itertools.product((0, 1), repeat=n)}
        )
        for low, high in itertools.pairwise(cuts):
            u = (low + high) / 2
            noise = [0.0, math.log(u / (1 - u))]
            image: tuple[int, ...] = ()
            for _ in range(length):
                image += (gumbel_token(world.q(image), noise),)
            made[image] = made.get(image, 0.0) + high - low
        assert prefix_tv(made, world.joint(), length) == pytest.approx(
            recorded["tv_prefix"], abs=1e-9
        ), name


def test_plain_definitions_share_no_code_with_what_they_check():
    allowed = {
        "contextlib",
        "copy",
        "math",
        "random",
        "dataclasses",
        "collections",
        "functools",
        "itertools",
        "typing",
    }
    for path in [*Path(plain.__file__).parent.glob("*.py"), Path(engine_plain.__file__)]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                # settings are names and bounds alone
                ours = (
                    "lanternbench.lossless.plain",
                    "lanternbench.engine.plain",
                    "lanternbench.settings",
                )
                assert name.startswith(ours) or name.split(".")[0] in allowed, (path, name)
