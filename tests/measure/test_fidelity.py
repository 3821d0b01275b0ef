"""The fidelity loss is Theorem 2's bound: 0 without relaxation, exact on chains, a bound on trees."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from rules import EXACT, annealed, lantern
from torch.utils._python_dispatch import TorchDispatchMode
from windows_on_tables import output_distribution

from lanternbench.engine.relaxed import RelaxedProb
from lanternbench.engine.sampling import Warp, at, draw_distinct, normalised
from lanternbench.engine.trace import Trace
from lanternbench.engine.verify import AcceptanceRule, Residual, RuleTest
from lanternbench.lossless.tables import Tables, random_rows
from lanternbench.measure import fidelity
from lanternbench.measure.fidelity import target_figures
from lanternbench.measure.figures import Figures
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import support_notes
from lanternbench.methods import residuals
from lanternbench.methods.acceptance.likely import TypicalTest
from lanternbench.methods.method import method
from lanternbench.registry import components
from lanternbench.settings import GREEDY

N, V, W = 48, 7, 3
NEAR = torch.stack([(torch.arange(V) + i) % V for i in range(V)])[:, :4]
RULES = [
    annealed([2.0, 1.0, 0.5]),
    lantern(NEAR, "tvd", 0.3),
    lantern(NEAR, "multiplicative", 2.0),
]


@pytest.fixture
def nodes():
    """q, p, children, tried, depth of N random nodes, some with zeros or a single token."""
    generator = torch.Generator().manual_seed(3)
    q, p = (random_rows(N, V, "mixed", generator) for _ in "qp")
    children = draw_distinct(p, torch.rand(N, W, generator=generator, dtype=torch.float64))
    tried = torch.randint(1, W + 1, (N,), generator=generator)
    return q, p, children, tried, torch.randint(1, 4, (N,), generator=generator)


def tv(a, b):
    return 0.5 * (a - b).abs().sum(-1)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("residual", [residuals.standard, residuals.optimal, residuals.lantern])
def test_exact_acceptance_loses_nothing(nodes, sampled, residual):
    q, p, *family = nodes
    assert fidelity.node_losses(q, p if sampled else None, *family, EXACT, residual).max() < 1e-12


def test_a_wrong_residual_costs(nodes):
    q, p, *family = nodes
    assert fidelity.node_losses(q, p, *family, EXACT, Residual(lambda q, *_: q)).max() > 0.05


@pytest.mark.parametrize("rule", [*RULES, TypicalTest(0.09)])
@pytest.mark.parametrize("residual", list(components("residual").values()))
def test_a_stage_draws_from_a_distribution(nodes, rule, residual):
    q, p, children, _, depth = nodes
    for given in (p, None):
        k = fidelity.kernel(q, given, children[:, 0], depth, rule, residual)
        assert k.min() >= 0
        assert torch.allclose(k.sum(-1), torch.ones(N, dtype=k.dtype))


@pytest.mark.parametrize("rule", RULES[1:])
def test_lanterns_short_cut_is_the_sum_over_rejected_tokens(nodes, rule):
    q, p, _, _, depth = nodes
    rejected = (p - torch.minimum(p, rule.everywhere(q, depth))).clamp(min=0)
    slow = fidelity._any_rest(q, p, rejected, depth, rule, residuals.lantern)
    assert torch.allclose(fidelity._lantern_rest(q, p, rejected, rule), slow, atol=1e-12)


@pytest.mark.parametrize("sampled", [True, False])
def test_every_stage_of_a_node_has_its_loss(nodes, sampled):
    """The third stage is what the first one is of the q and p that two rejections leave."""
    q, p, children, _, depth = nodes
    q, p, children, depth = (x[(p > 0).sum(-1) > 3] for x in (q, p, children, depth))
    rule, given = lantern(NEAR, "multiplicative", 3.0), p if sampled else None
    three = torch.full((len(q),), 3)
    losses = fidelity.node_losses(q, given, children, three, depth, rule, residuals.lantern)
    for j in range(2):
        q = normalised(residuals.lantern(q, given, children[:, j], depth, rule), q)
        if given is not None:
            given = given.scatter(-1, children[:, j, None], 0.0)
            given = given / given.sum(-1, keepdim=True)
    last = fidelity.node_losses(
        q, given, children[:, 2:], three - 2, depth, rule, residuals.lantern
    )
    assert torch.allclose(losses[:, 2], last[:, 0])
    assert last.max() > 0.01


def test_no_residual_loses_less_than_the_optimal_one(nodes):
    q, p, children, _, depth = nodes
    first = torch.ones(N, dtype=torch.long)
    for rule in RULES:
        best = fidelity.node_losses(q, p, children, first, depth, rule, residuals.optimal).sum(-1)
        for residual in (residuals.standard, residuals.lantern, residuals.lantern_reference):
            other = fidelity.node_losses(q, p, children, first, depth, rule, residual).sum(-1)
            assert (best <= other + 1e-12).all()
        over = (torch.minimum(p, rule.everywhere(q, depth)) - q).clamp(min=0).sum(-1)
        assert torch.allclose(best, over)  # Σ [p·f − q]₊, Theorem 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cool-sd", {"tree": "chain"}),
        ("uniform-rsd", {"tree": "chain", "residual": "standard"}),
        ("cool-sd", {"tree": "chain", "schedule": "linear", "residual": "lantern"}),
        ("lantern++", {"tree": "chain"}),
        ("lantern++", {"tree": "chain", "residual": "optimal"}),
        ("lantern", {"tree": "chain", "delta": 0.4}),
        ("lantern", {"tree": "chain", "delta": 0.4, "variant": "reference"}),
    ],
)
def test_on_a_single_decision_of_a_chain_the_loss_is_the_total_variation(name, options):
    tables = Tables(4, 2, 5, "dense")
    out, bound = output_distribution(tables, method(name, **options))
    assert float(tv(out, tables.joint())) == pytest.approx(bound, abs=1e-7)
    assert bound > 1e-3


def trace_of(q, p, children, tried, depth) -> Trace:
    trace = Trace(2, N // 2, V, W, q.device)
    trace.q, trace.p, trace.sampled = (
        q.view(2, -1, V),
        p.view(2, -1, V),
        torch.ones(2, N // 2, dtype=torch.bool),
    )
    trace.children, trace.tried, trace.depth = (
        t.view(2, N // 2, *t.shape[1:]) for t in (children, tried, depth)
    )
    return trace


@pytest.mark.parametrize("rule", RULES)
def test_the_loss_is_the_mean_over_tokens_and_the_total_their_sum_however_chunked(
    nodes, rule, monkeypatch
):
    trace = trace_of(*nodes)
    trace.tried[:, 0] = 0  # token 0 was never drafted
    one = fidelity.fidelity_loss(trace, rule, residuals.standard)
    q, p, children, _, depth = nodes
    by_hand = fidelity.node_losses(
        q, p, children, trace.tried.flatten(), depth, rule, residuals.standard
    )
    assert torch.allclose(one, by_hand.sum(-1).view(2, -1).mean(1))
    assert torch.allclose(
        fidelity.fidelity_loss(trace, rule, residuals.standard, total=True), one * N / 2
    )
    monkeypatch.setattr(fidelity, "CHUNK", 50)
    assert torch.allclose(fidelity.fidelity_loss(trace, rule, residuals.standard), one)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor made; a view counts as what it is a view of."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, torch.Tensor):
                self.elements = max(
                    self.elements, x.untyped_storage().nbytes() // x.element_size()
                )
        return made


class EntropyRule(AcceptanceRule):
    """As a plug-in may define one: from ``relax`` alone, which reads all of q for every token."""

    def relax(self, q, x, depth):
        return RelaxedProb(at(q, x) * (1 + torch.special.entr(q).sum(-1)))


@pytest.mark.parametrize(
    ("rule", "most"), [(RuleTest(EntropyRule()), 1 << 20), (TypicalTest(0.09), 4 * 2 * 4096)]
)
@pytest.mark.parametrize("residual", [residuals.standard, residuals.optimal])
def test_the_loss_of_any_rule_takes_bounded_memory(rule, most, residual, monkeypatch):
    """Two nodes of 4,096 tokens: all pairs of tokens would be 33 million elements."""
    monkeypatch.setattr("lanternbench.engine.verify.PIECE", 1 << 20)
    generator, vocab = torch.Generator().manual_seed(3), 4096
    trace = Trace(1, 2, vocab, 1, torch.device("cpu"))
    trace.q, trace.p = (torch.rand(1, 2, vocab, generator=generator).pow(9) for _ in "qp")
    trace.q, trace.p = (x / x.sum(-1, keepdim=True) for x in (trace.q, trace.p))
    trace.children, trace.tried = torch.tensor([[[5], [9]]]), torch.ones(1, 2, dtype=torch.long)
    trace.depth, trace.sampled = (
        torch.ones(1, 2, dtype=torch.long),
        torch.ones(1, 2, dtype=torch.bool),
    )
    with Largest() as largest:
        loss = fidelity.fidelity_loss(trace, rule, residual)
    assert largest.elements <= most
    q, p = trace.q[0].double(), trace.p[0].double()
    values = [
        rule.relax(row.expand(64, -1), x, x).value
        for row in q
        for x in torch.arange(vocab).split(64)
    ]
    accepted = torch.minimum(p, torch.cat(values).view(2, -1))
    rest = (q - p if residual is residuals.standard else q - accepted).clamp(min=0)
    drawn = accepted + (1 - accepted.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)
    assert float(loss) == pytest.approx(float(tv(q, drawn).mean()), rel=1e-4)


def test_an_image_without_drafts_loses_nothing(nodes):
    trace = trace_of(*nodes)
    trace.tried.zero_()
    assert fidelity.fidelity_loss(trace, RULES[0], residuals.optimal).tolist() == [0.0, 0.0]


def test_float32_traces_of_lossless_methods_stay_below_the_noise(nodes):
    trace = trace_of(*nodes)
    trace.q, trace.p = trace.q.float(), trace.p.float()
    for sampled in (True, False):
        trace.sampled.fill_(sampled)
        assert fidelity.fidelity_loss(trace, EXACT, residuals.standard).max() < 1e-5


def test_greedy_loss_counts_tokens_that_are_not_the_argmax(nodes):
    trace = trace_of(*nodes)
    tokens = trace.q.argmax(-1)
    tokens[1, :6] = (tokens[1, :6] + 1) % V
    decoder = SimpleNamespace(warp=Warp(GREEDY), method=SimpleNamespace(bounded=True))
    assert fidelity.decode_loss(decoder, trace, tokens).tolist() == pytest.approx([0.0, 6 / 24])


def test_drafter_figures_of_a_perfect_a_wrong_and_an_absent_drafter(nodes):
    trace = trace_of(*nodes)
    trace.p = trace.q.clone()
    assert {k: v.tolist() for k, v in fidelity.drafter_figures(trace).items()} == {
        "top1": [1, 1],
        "top3": [1, 1],
        "tv": [0, 0],
    }
    wrong = (trace.q.argmax(-1) + 1) % V
    trace.p = torch.nn.functional.one_hot(wrong, V).double()
    assert fidelity.drafter_figures(trace)["top1"].tolist() == [0, 0]
    trace.p.zero_()  # chosen children: the first is the drafter's likeliest
    trace.children[..., 1] = trace.q.argmax(-1)
    trace.children[..., 0] = wrong
    figures = fidelity.drafter_figures(trace)
    assert figures["top1"].tolist() == [0, 0]
    assert figures["top3"].tolist() == [1, 1]
    assert figures["tv"].isnan().all()
    trace.children[..., 2:] = -1  # two children tell nothing of a third
    assert fidelity.drafter_figures(trace)["top3"].isnan().all()
    trace.children.fill_(-1)
    assert fidelity.drafter_figures(trace)["top1"].isnan().all()


def test_target_figures_by_hand():
    trace = Trace(1, 2, 2, 1, torch.device("cpu"))
    trace.q = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])
    figures = fidelity.target_figures(trace, torch.tensor([[0, 1]]))
    assert figures["log_prob"].item() == pytest.approx(-0.5 * 0.6931472)
    assert figures["top1_prob"].item() == pytest.approx(0.75)
    assert figures["entropy"].item() == pytest.approx(0.5 * 0.6931472)
    excluded = fidelity.target_figures(trace, torch.tensor([[0, 0]]))["log_prob"]
    assert excluded.isfinite().all()  # a token that the warped target excludes


def sample_of(label: str, loss: float | None, stats: dict[str, float]) -> Sample:
    return Sample(
        key=f"0|{label}|0", prompt_id="0", prompt="a", label=label, method=label, seed=0, tokens=4, steps=2,
        accept_lengths=[1, 3], decode_s=1.0, fidelity_loss=loss, stats=stats,
    )  # fmt: skip


def test_a_lossy_method_without_a_bound_has_a_note_on_the_tokens_that_it_drew():
    baseline = sample_of("ar", 0.0, {"log_prob": -1.15})
    bounded = sample_of("cool-sd", 0.1, {"log_prob": -1.3})
    unbounded = sample_of("sjd-sv", None, {"log_prob": -5.8, "outside_support": 0.158})
    lossless = {"ar": True, "cool-sd": False, "sjd-sv": False}
    (note,) = support_notes(Figures([baseline, bounded, unbounded]), lossless)
    assert note.kind == "warning"
    for part in ("sjd-sv", "15.8% of its tokens", "-5.80", "ar's tokens -1.15"):
        assert part in str(note)
    assert not list(support_notes(Figures([baseline, bounded]), lossless))


def test_the_share_of_tokens_outside_the_support_counts_those_that_the_target_excludes():
    q = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    trace = SimpleNamespace(q=q)
    inside = target_figures(trace, torch.tensor([[0, 2]]))
    outside = target_figures(trace, torch.tensor([[2, 2]]))
    assert inside["outside_support"].item() == 0
    assert outside["outside_support"].item() == 0.5
