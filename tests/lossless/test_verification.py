"""``verify`` proves what is lossless, and finds out what only claims to be."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from conftest import slow_but
from rich.console import Console
from windows_on_tables import output_distribution

from lanternbench import lossless as verification
from lanternbench import registry
from lanternbench.cli.study_cmd import checks_table
from lanternbench.engine import chosen, row_ends, verify
from lanternbench.engine import decode as engine
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import at
from lanternbench.engine.verify import AcceptanceRule, ExactTest, standard
from lanternbench.errors import UserError
from lanternbench.lossless import EXACT, statistical, verify_all
from lanternbench.lossless.exact import decode_tables
from lanternbench.lossless.statistical import LENGTH, sampled_tables
from lanternbench.lossless.tables import Tables, row_end_target
from lanternbench.measure import fidelity
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.presets import preset
from lanternbench.methods.proposals import jacobi
from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig
from lanternbench.models.target import Target
from lanternbench.settings import Sampling

LOSSLESS = ["ar", "sd", "medusa", "eagle-1", "eagle-2", "eagle-3", "adt-tree", "sjd"]
RELAXED = ["lantern", "lantern++", "uniform-rsd", "cool-sd"]


@pytest.fixture(autouse=True)
def _inference(monkeypatch):
    monkeypatch.setattr(verification, "WORLDS", (partial(Tables, 3, 3, kind="dense"),))
    monkeypatch.setattr(verification, "TREES", (partial(Tables, 2, 3, kind="dense"),))
    monkeypatch.setattr(verification, "WINDOWS", (partial(Tables, 2, 3, kind="dense"),))
    monkeypatch.setattr(verification, "NEIGHBOURS", (partial(Tables, 2, 3, kind="dense"),))
    monkeypatch.setattr(verification, "DECODES", 200)
    monkeypatch.setattr(statistical, "LENGTH", 4)  # of large tables
    with torch.inference_mode():
        yield


def deviation(name: str, tables: Tables | None = None, **options) -> float:
    tables = tables or Tables(3, 3, 1, "dense")
    out, _ = output_distribution(tables, method(name, **options))
    return float((out - tables.joint()).abs().max())


# ---------------------------------------------------------------- exact


KINDS = ("dense", "mixed", "one-token")
EACH = [*product(KINDS[:1], LOSSLESS), ("mixed", "eagle-2"), ("one-token", "sjd")]


@pytest.mark.parametrize(("kind", "name"), slow_but(EACH, product(KINDS, LOSSLESS)))
def test_lossless_methods_have_the_targets_distribution(name, kind):
    assert deviation(name, Tables(3, 3, 2, kind)) <= EXACT


@pytest.mark.parametrize(
    "init", [i for i in get_args(jacobi.Jacobi.model_fields["init"].annotation) if i != "random"]
)
def test_every_way_to_fill_an_sjd_window_is_lossless(init):
    assert deviation("sjd", Tables(2, 4, 1, "dense"), init=init) <= EXACT


@pytest.mark.parametrize("init", ["vertical", "random", "token-flock"])
def test_every_way_to_start_an_adaptive_tree_is_lossless(init):
    assert deviation("adt-tree", init=init) <= EXACT


def test_a_larger_vocabulary_and_a_longer_image():
    assert deviation("eagle-2", Tables(6, 3, 1, "mixed")) <= EXACT
    assert deviation("sd", Tables(2, 4, 1, "dense")) <= EXACT


SHAPES = ({}, {"tree": "chain"}, {"tree": "dynamic"})
FEW = [("lantern", {}), ("lantern++", SHAPES[1]), ("uniform-rsd", SHAPES[2]), ("cool-sd", {})]


@pytest.mark.parametrize(("name", "options"), slow_but(FEW, product(RELAXED, SHAPES)))
def test_relaxed_methods_stay_within_their_bound(name, options):
    tables = Tables(4, 3, 0, "dense") if name == "lantern" else Tables(3, 3, 0, "dense")
    strong = {"delta": 0.4} if name == "lantern" else {}
    out, bound = output_distribution(tables, method(name, **options, **strong))
    tv = 0.5 * float((out - tables.joint()).abs().sum())
    assert 1e-3 < tv <= bound + EXACT


@pytest.mark.parametrize(
    "options", [{"lam": 1.0, "nu": 1.0}, {"lam": 1.0, "schedule": "uniform", "tree": "chain"}]
)
def test_relaxation_by_one_is_none(options):
    assert deviation("cool-sd", **options) <= EXACT


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_jacobi_gives_the_tokens_that_each_positions_uniform_draws(greedy, window, monkeypatch):
    monkeypatch.setattr(jacobi.Jacobi, "small", lambda self: self)
    tokens, expected = decode_tables(
        Tables(4, 4, 0, "dense"), method("jacobi", window=window), greedy, 200, 0
    )
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize("name", LOSSLESS)
def test_greedy_decoding_on_tables_is_the_argmax(name):
    for seed in range(4):
        tokens, expected = decode_tables(Tables(4, 4, seed, "mixed"), method(name), True, 2, seed)
        assert torch.equal(tokens, expected)


def test_nan_in_the_tables_is_a_failure_not_a_pass(monkeypatch):
    honest = Tables.__init__

    def broken(self, *args, **kwargs):
        honest(self, *args, **kwargs)
        self.target_logits[0, 2] = float("nan")

    monkeypatch.setattr(Tables, "__init__", broken)
    row = next(verification.verify_method(method("sd"), None, 0, 1))
    assert row.passed is False
    assert row.value != row.value


# ---------------------------------------------------------------- mutations of the real code


def mutate(monkeypatch, module, name: str, old: str, new: str) -> None:
    """Replace a fragment of a function's source."""
    *within, name = name.split(".")
    owner = getattr(module, within[0]) if within else module
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(old) == 1, f"{name} no longer contains {old!r}: adapt this test"
    scope: dict = {}
    globals_ = vars(inspect.getmodule(getattr(owner, name)))
    exec(compile(source.replace(old, new), name, "exec"), globals_ | {}, scope)
    monkeypatch.setattr(owner, name, scope[name])


@pytest.mark.parametrize("name", slow_but(["sd", "sjd"], ["sd", "eagle-1", "sjd"]))
def test_a_wrong_residual_is_found(name):
    wrong = replace(standard, weights=lambda q, *_: q)
    with registry.temporary({"residual": {"standard": wrong}}):
        assert deviation(name) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["medusa", "eagle-2"])
def test_a_residual_that_keeps_a_rejected_child_is_found(name, monkeypatch):
    mutate(monkeypatch, chosen, "without_children", ".scatter(-1, struck, 0.0)", "")
    assert deviation(name) > 1e-3


def test_wrong_acceptance_is_found(monkeypatch):
    monkeypatch.setattr(ExactTest, "relax", lambda self, q, x, depth: RelaxedProb(1.1 * at(q, x)))
    assert deviation("sd") > 1e-3


@pytest.mark.slow
def test_siblings_that_are_not_renormalised_are_found(monkeypatch):
    mutate(
        monkeypatch,
        verify,
        "stages",
        "        drafter.div_(drafter.sum(-1, keepdim=True).clamp_(min=TINY))\n",
        "",
    )
    assert deviation("eagle-1") > 1e-3


@pytest.mark.slow
def test_siblings_that_keep_the_old_target_are_found(monkeypatch):
    mutate(
        monkeypatch,
        verify,
        "stages",
        "torch.where(counts, weights / total, target)",
        "target",
    )
    assert deviation("eagle-1") > 1e-3


@pytest.mark.slow
def test_chosen_siblings_that_are_not_renormalised_are_found(monkeypatch):
    mutate(
        monkeypatch,
        verify,
        "closed_form",
        "left = 1.0 - q_elders",
        "left = torch.ones_like(q_child)",
    )
    assert deviation("eagle-2") > 1e-3
    assert deviation("medusa") > 1e-3


@pytest.mark.slow
def test_an_absent_child_that_restores_a_rejected_one_is_found(monkeypatch):
    # a family narrower than the tree pads with node 0, whose token may be that of a rejected child
    mutate(
        monkeypatch,
        chosen,
        "without_children",
        "cells = torch.where(children.exists, children.tokens, vocab)",
        "cells = children.tokens",
    )
    assert deviation("medusa") > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function", "line", "wrong"),
    [
        ("sd", "end_of_chain", " & (accepted_column < length)", ""),
        (
            "eagle-1",
            "verify_tree",
            "torch.where(siblings.is_leaf[stop], q[prompts, stop], after_children)",
            "after_children",
        ),
    ],
)
def test_a_bonus_token_from_the_wrong_distribution_is_found(
    name, function, line, wrong, monkeypatch
):
    mutate(monkeypatch, verify, function, line, wrong)
    assert deviation(name, Tables(3, 4, 1, "dense")) > 1e-3


def test_a_bonus_token_that_is_left_out_is_found(monkeypatch):
    honest = engine.tree_commit

    def without(state, result, outputs):
        # the last draft stands in for the bonus token
        draft, verified = result.draft, result.verified
        full = verified.accepted == draft.tree.max_depth
        again = draft.tokens.gather(1, verified.path[:, -1:])[:, 0]
        token = torch.where(full, again, verified.token)
        return honest(state, result._replace(verified=verified._replace(token=token)), outputs)

    monkeypatch.setattr(engine, "tree_commit", without)
    assert deviation("sd", Tables(3, 4, 1, "dense")) > 1e-3


@pytest.mark.parametrize("name", slow_but(["eagle-2"], ["eagle-1", "eagle-2"]))
def test_a_branch_that_is_not_moved_in_the_cache_is_found(name, monkeypatch):
    monkeypatch.setattr(DecoderCache, "move", lambda self, source, target: None)
    assert deviation(name, Tables(3, 4, 1, "dense")) > 1e-3


def test_an_sjd_window_that_forgets_what_its_drafts_were_drawn_from_is_found(monkeypatch):
    honest = jacobi.SlidingWindow.update

    def forgetful(self, *args):
        made = honest(self, *args)
        return made._replace(p=torch.full_like(made.p, 1 / 3))

    monkeypatch.setattr(jacobi.SlidingWindow, "update", forgetful)
    assert deviation("sjd", Tables(3, 4, 1, "dense")) > 1e-3


# ---------------------------------------------------------------- statistics on a model


@pytest.fixture(scope="module")
def small() -> Target:
    """A LlamaGen of random weights with random drafters: 6 × 6 tokens."""
    torch.manual_seed(0)
    cfg = LlamaGenConfig(
        32, 2, 2, vocab_size=24, grid=6, caption_dim=8, cls_token_num=5, multiple_of=16
    )

    def model() -> LlamaGen:
        net = LlamaGen(cfg).eval()
        torch.nn.init.normal_(net.output.weight, std=0.3)
        return net

    def text(captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        features = [
            torch.randn(5, 8, generator=torch.Generator().manual_seed(len(c))) for c in captions
        ]
        mask = torch.stack([torch.arange(5) < 2 + len(c) % 4 for c in captions])
        return torch.stack(features), mask.long()

    net = model()
    codebook = torch.randn(24, 4)
    vq = SimpleNamespace(quantize=SimpleNamespace(codes=lambda: codebook))
    options = {"near": 8, "static": [[0], [1], [2], [0, 0], [0, 1], [1, 0]], "chain": "chain-4"}
    options |= {"medusa": [[0], [1], [0, 0]], "depth": 3, "draft_top_k": 3, "total_nodes": 10}
    drafters = {
        "eagle": Eagle(net.config.decoder).eval(),
        "eagle-3": Eagle(net.config.decoder, fused=True).eval(),
        "medusa": Medusa(32, 4).eval(),
        "model": model(),
    }
    return Target(
        "random",
        net,
        vq,
        text,
        sampling=Sampling(guidance=2.0),
        options=options,
        drafters=drafters,
    )


@pytest.mark.parametrize("name", [*LOSSLESS, "jacobi"])
def test_on_a_model_lossless_methods_pass(small, name):
    made = method(name)
    found = statistical.sampled_tests(small, made, 16, 0)
    assert min(found.ranks.p_value, found.log_q.p_value) > statistical.ALPHA
    assert found.forward < 1e-4
    assert statistical.greedy_difference(small, made, 4, 0) == 0


@pytest.mark.parametrize(
    ("name", "options"), [("cool-sd", {"lam": 4.0}), ("lantern++", {"lam": 8.0})]
)
def test_on_a_model_relaxation_is_found_where_it_is_claimed_to_be_lossless(small, name, options):
    found = statistical.sampled_tests(small, method(name, **options), 32, 0)
    assert found.ranks.p_value < statistical.ALPHA
    assert found.forward < 1e-4  # the model was still read correctly


@pytest.mark.parametrize(
    ("name", "lossless"),
    [*((n, True) for n in LOSSLESS), ("cool-sd", False), ("lantern++", False), ("lantern", False)],
)
def test_on_a_model_the_fidelity_loss_of_lossless_methods_is_zero_and_of_others_is_not(
    small, name, lossless
):
    decoder = build(small, method(name))
    trace = engine.generate(decoder, ["a", "bc"], trace=True)[0].trace
    loss = fidelity.fidelity_loss(trace, decoder.rule, decoder.residual)
    assert (loss < 1e-5).all() if lossless else (loss > 1e-4).all()


def test_on_a_model_a_broken_cache_is_found(small, monkeypatch):
    monkeypatch.setattr(DecoderCache, "move", lambda self, source, target: None)
    assert statistical.sampled_tests(small, method("eagle-2"), 4, 0).forward > 0.01


def test_images_of_one_caption_that_are_equal_are_counted(small, monkeypatch):
    assert statistical.sampled_tests(small, method("ar"), 4, 0).alike == 0
    monkeypatch.setattr(engine, "row_seed", lambda seed, key, label: seed)
    assert statistical.sampled_tests(small, method("ar"), 4, 0).alike == 2


def test_row_ends_are_checked_against_a_plain_forward(monkeypatch):
    """Sixteen images, of which the last five to finish go on without the others."""
    assert statistical.sampled_tests(row_end_target(), method("eagle-1"), 16, 0).forward < 1e-4

    def one_early(layout, count):
        return layout.row_end_of[count + 1]

    monkeypatch.setattr(row_ends, "tree_row_ends", one_early)
    assert statistical.sampled_tests(row_end_target(), method("eagle-1"), 4, 0).forward > 0.01


@pytest.mark.slow
def test_a_drafter_that_reads_other_states_than_it_was_trained_on_is_noticed(target):
    """Four images: 0.15 is three standard errors; states in each other's places cost 0.2."""
    overlap = statistical.sampled_tests(target, method("eagle-3"), 4, 0).overlap
    assert overlap > verification.OVERLAP["eagle-3"] - verification.SHORT


@pytest.mark.slow
def test_an_adaptive_tree_with_as_many_nodes_as_levels_is_recorded_as_the_tree_it_is(target):
    made = method("adt-tree", total_nodes=8, depth_range=(0, 8))
    assert statistical.sampled_tests(target, made, 4, 0).forward < 1e-3


def test_a_lossless_method_that_one_sample_speaks_against_is_judged_by_a_larger_one(
    small, monkeypatch
):
    honest, sizes = statistical.sampled_tests, []

    def unlucky(target, method, images, seed):
        sizes.append(images)
        found = honest(target, method, images, seed)
        return found._replace(log_q=found.log_q._replace(p_value=1e-4)) if images == 4 else found

    monkeypatch.setattr(verification, "sampled_tests", unlucky)
    rows = list(verification.verify_method(method("ar"), small, 0, 4))
    assert sizes == [16, 4, 16]  # of a model with row ends; then of this one
    assert all(row.passed for row in rows)
    sizes.clear()
    monkeypatch.setattr(
        verification,
        "sampled_tests",
        lambda *a: honest(*a)._replace(log_q=statistical.Finding(1e-6, 0.1)),
    )
    assert not all(row.passed for row in verification.verify_method(method("ar"), small, 0, 4))


def test_the_rank_test_keeps_its_level_and_finds_the_effect_it_states():
    generator = torch.Generator().manual_seed(0)
    n = 2048
    effect = statistical.rank_test(torch.rand(n, generator=generator)).effect
    failed = sum(
        statistical.rank_test(torch.rand(n, generator=generator)).p_value < 1e-2
        for _ in range(200)
    )
    assert failed <= 8  # 2 expected
    found = 0
    for _ in range(100):  # mass ``effect`` moved from the upper half to the lower
        u = torch.rand(n, generator=generator)
        moved = torch.rand(n, generator=generator) < 2 * effect
        found += (
            statistical.rank_test(torch.where((u > 0.5) & moved, u - 0.5, u)).p_value
            < statistical.ALPHA
        )
    assert found >= 80


# ---------------------------------------------------------------- statistics on large tables


@pytest.mark.parametrize(
    ("name", "length"),
    slow_but([("eagle-2", 5)], [("eagle-2", 5), ("eagle-2", LENGTH), ("sjd-pac", LENGTH)]),
)
def test_published_sizes_on_large_tables_pass(name, length, monkeypatch):
    """Every token more takes twelve times as long."""
    monkeypatch.setattr(statistical, "LENGTH", length)
    found = sampled_tables(method(name), 0, 1000 // (length - 1))
    assert found.tokens == 1000
    assert found.ranks.p_value > statistical.ALPHA
    assert found.powers[0] < found.powers[2]


@pytest.mark.slow
def test_large_tables_find_the_wrong_rule_that_they_say_they_would(monkeypatch):
    monkeypatch.setattr(statistical, "LENGTH", LENGTH)
    found = sampled_tables(method("sd"), 0, 1500)
    assert found.ranks.p_value > statistical.ALPHA
    assert found.powers[0] < found.powers[1] < found.powers[2]
    assert found.powers[2] > 0.9
    monkeypatch.setattr(ExactTest, "relax", lambda self, q, x, depth: RelaxedProb(1.5 * at(q, x)))
    assert sampled_tables(method("sd"), 0, 1500).ranks.p_value < statistical.ALPHA


# ---------------------------------------------------------------- the report


@pytest.mark.slow
def test_rows_of_all_presets_pass_and_print(small):
    seen = []
    rows = verify_all(["sd", "lantern", "jacobi"], small, images=4, on_row=seen.append)
    assert rows == seen
    assert all(row.passed for row in rows), rows
    assert {row.check.split(":")[0].split(",")[0] for row in rows} == {
        "tables",
        "large tables",
        "random",
        "row ends",
    }
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(checks_table(rows))
    assert "FAIL" not in console.export_text()


def test_a_target_without_the_drafter_is_said_not_failed(small):
    rows = verify_all(["medusa"], replace(small, drafters={}))
    assert [row.passed for row in rows] == [*[True] * 7, None]
    assert "no drafter of kind 'medusa'" in rows[-1].detail


def test_an_unknown_method_is_the_users_mistake():
    with pytest.raises(UserError, match="unknown method"):
        verify_all(["nope"])


def test_a_registered_method_that_wrongly_claims_to_be_lossless_fails():
    class TooGenerous(AcceptanceRule):
        def relax(self, q, x, depth):
            return RelaxedProb(at(q, x) + 0.1)

    with registry.temporary({"acceptance": {"generous": TooGenerous}}):
        preset("mine", proposal="model", tree="chain", acceptance="generous", residual="standard")
        row = next(verification.verify_method(method("mine"), None, 0, 1))
    assert row.check == "tables: exact distribution"
    assert row.passed is False
