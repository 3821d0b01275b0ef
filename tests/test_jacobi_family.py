"""Coupled redraws, sibling trees and groups compute the plain definitions, batch and shape apart."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from lanternbench.lossless.plain.rules import Rule, gsd_group, residual, without
from lanternbench.lossless.plain.windows import coupled, gumbel_token
from lanternbench.methods.jacobi_family.coupling import accepted, gumbel, maximal, recorded
from lanternbench.methods.jacobi_family.grouping import accept_prob, group, grouped_target, reference_group
from lanternbench.methods.jacobi_family.longest_path import RowTree, longest_path_step
from lanternbench.methods.jacobi_family.sibling_tree import (
    RedrawUniforms,
    context_nodes,
    recursive_residuals,
    redraw_columns,
    sibling_paths,
    sibling_tests,
)


def distributions(*shape: int, seed: int = 0, zeros: float = 0.0, scale: float = 1.2) -> Tensor:
    """Random rows [..., V] in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
    banned = torch.rand(*shape, generator=generator) < zeros
    banned[..., 0] = False
    return logits.masked_fill(banned, -torch.inf).softmax(-1)


def uniforms(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_maximal_coupling_is_the_plain_one():
    p, q = distributions(50, 4, 5, seed=1, zeros=0.3), distributions(50, 4, 5, seed=2, zeros=0.3)
    x = p.flatten(0, 1).multinomial(1, generator=torch.Generator().manual_seed(3)).view(50, 4)
    u = uniforms(50, 4, seed=4)
    made = maximal(x, p, q, u, uniforms(50, 4, seed=5))
    laws = made.rest / made.rest.sum(-1, keepdim=True)
    for i, j in itertools.product(range(50), range(4)):
        branches = list(coupled(q[i, j].tolist(), p[i, j].tolist(), int(x[i, j])))
        keep = next(chance for _, chance, kept in branches if kept)
        assert bool(made.kept[i, j]) == (float(u[i, j]) < keep)
        for y, chance, kept in branches:
            if not kept:
                assert float(laws[i, j, y]) == pytest.approx(chance / (1 - keep))
    assert torch.equal(made.tokens[made.kept], x[made.kept])
    assert torch.equal(accepted(made.kept), torch.tensor([[*row, False].index(False) for row in made.kept.tolist()]))


def test_a_kept_token_is_recorded_with_the_new_law():
    p, q, kept = distributions(2, 3, seed=1), distributions(2, 3, seed=2), torch.tensor([True, False])
    assert torch.equal(recorded(kept, p, q), q)
    assert torch.equal(recorded(kept, p, q, keeps_old=True), torch.stack([p[0], q[1]]))


def test_gumbel_redraw_is_the_plain_one_and_agrees_with_itself():
    p, u = distributions(200, 5, seed=1, zeros=0.3), uniforms(200, 5, seed=2)
    noise = -(-u.log()).log()
    got = gumbel(p, u)
    assert got.tolist() == [gumbel_token(a, g) for a, g in zip(p.tolist(), noise.tolist(), strict=True)]
    near = 0.98 * p + 0.02 * distributions(200, 5, seed=3)
    assert (gumbel(near, u) == got).double().mean() > 0.9
    extremes = torch.tensor([0.0, 1.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    assert int(gumbel(torch.full((5,), 0.2, dtype=torch.float64), extremes)) == 1


@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_groups_are_the_plain_ones(ranks):
    q, p = distributions(40, 20, seed=1, scale=0.7), distributions(40, 20, seed=2)
    codes = torch.randn(20, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / 2
    x = torch.arange(40) % 20
    found = group(q, x, codes, ranks, margin=0.02)
    rule = Rule("grouped", ranks=ranks, dq=0.02, codebook=tuple(map(tuple, codes.tolist())))
    prob, target = accept_prob(found, q, p), grouped_target(found, q, p, x)
    for i in range(40):
        members = gsd_group(rule, q[i].tolist(), int(x[i]))
        assert sorted(found.ids[i][found.inside[i]].tolist()) == sorted(members)
        ratio = float(q[i, members].sum() / p[i, members].sum())
        assert float(prob[i]) == pytest.approx(min(1, ratio))
        assert float(target[i] / p[i, x[i]]) == pytest.approx(ratio)


def test_the_public_group_is_one_rank_shorter_above_and_leaves_low_ranks_alone():
    q = torch.arange(1.0, 21.0).double() / 210
    codes, x = torch.zeros(20, 1, dtype=torch.float64), torch.arange(20)
    exact, public = (f(q.expand(20, -1), x, codes, margin=1.0) for f in (group, reference_group))
    size = lambda found, i: sorted(found.ids[i][found.inside[i]].tolist())  # noqa: E731
    assert size(exact, 10) == list(range(3, 18))
    assert size(public, 10) == list(range(3, 17))
    assert size(exact, 3) == list(range(11))
    assert size(public, 3) == [3]
    assert size(public, 18) == list(range(11, 20))


def test_recursive_residuals_are_the_plain_ones():
    q, p = distributions(30, 4, seed=1, zeros=0.2), distributions(30, 4, seed=2, zeros=0.2)
    tokens = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i))[:3] for i in range(30)])
    stages = recursive_residuals(q, p, tokens)
    for i in range(30):
        target, draft = q[i].tolist(), p[i].tolist()
        for j in range(4):
            assert stages.target[i, j].tolist() == pytest.approx(target, abs=1e-12)
            assert stages.draft[i, j].tolist() == pytest.approx(draft, abs=1e-12)
            if j < 3:
                x = int(tokens[i, j])
                target, draft = residual("standard", target, draft, x, Rule(), 1), without(draft, x)
    u = uniforms(30, 3, seed=3)
    tests = sibling_tests(stages, tokens, u)
    ratio = [s[:, :-1].gather(-1, tokens[..., None])[..., 0] for s in stages]
    assert torch.equal(tests, (ratio[1] > 0) & (u < ratio[0] / ratio[1]))


def test_sibling_paths_by_hand():
    assert sibling_paths(2, 3, 5) == [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0, 0], [0, 0, 0, 0]]
    assert sibling_paths(3, 1, 3) == [[0], [0, 0]]


def test_context_follows_the_accepted_path_then_first_siblings_then_the_chain():
    # two siblings in columns 1 and 2, a chain to column 4: nodes 1, 2 | 3, 4 under 1 | 5, 6 under 2 | 7 | 8
    children = torch.tensor([[1, 2], [3, 4], [5, 6], [7, -1], [-1, -1], [-1, -1], [-1, -1], [8, -1], [-1, -1]])
    chain = torch.tensor([0, 1, 3, 7, 8])
    path = torch.tensor([[0, 0, 0], [0, 2, 2], [0, 2, 6], [0, 1, 3]])
    found = context_nodes(children, chain, 3, path, torch.tensor([0, 1, 2, 2]))
    assert found.tolist() == [[0, 1, 3, 7, 8], [0, 2, 5, 7, 8], [0, 2, 6, 7, 8], [0, 1, 3, 7, 8]]


class Siblings:
    """Many decodes at once on a table of distributions after every prefix, with this package's parts."""

    def __init__(self, table: Tensor, length: int, k: int, depth: int, columns: int):
        self.table, self.vocab, self.length = table, table.shape[-1], length
        self.k, self.depth, self.columns = k, depth, columns
        paths = [(), *map(tuple, sibling_paths(k, depth, columns))]
        ids = {path: i for i, path in enumerate(paths)}
        self.column = torch.tensor([len(path) for path in paths])
        self.rank = torch.tensor([(0, *path)[-1] for path in paths])
        self.parent = torch.tensor([ids[path[:-1]] for path in paths])
        self.children = torch.tensor([[ids.get((*path, r), -1) for r in range(k)] for path in paths])
        self.chain = torch.tensor([ids[(0,) * c] for c in range(columns)])

    def q(self, code: Tensor, length: Tensor) -> Tensor:
        """After the prefixes that read as ``code`` in base V; past the image any row will do."""
        first = (self.vocab**length - 1) // (self.vocab - 1)
        return self.table[(first + code) % len(self.table)]

    def run(self, batch: int, seed: int) -> Tensor:
        """-> images as numbers in base V [B]."""
        generator = torch.Generator().manual_seed(seed)
        u = lambda *shape: torch.rand(batch, *shape, generator=generator, dtype=torch.float64)  # noqa: E731
        window, none = self.columns - 1, torch.zeros(batch, dtype=torch.long)
        code, length, image = none, none, none
        uniform = torch.full((batch, window, self.vocab), 1 / self.vocab, dtype=torch.float64)
        tokens, law, kept = torch.zeros(batch, window, self.k, dtype=torch.long), uniform, none
        while bool((length < self.length).any()):
            fresh = u(window, self.vocab).argsort(-1)[..., : self.k]
            new = torch.arange(window) >= kept[:, None]
            tokens, law = (torch.where(new[..., None], a, b) for a, b in ((fresh, tokens), (uniform, law)))
            q, codes = self.forward(code, length, tokens)
            path, accepted, final = self.verify(q, law, tokens, u(len(self.column), self.k))
            token = (final.cumsum(-1) < u(1) * final.sum(-1, keepdim=True)).sum(-1).clamp(max=self.vocab - 1)
            nodes = context_nodes(self.children, self.chain, self.depth, path, accepted)
            rows = q.gather(1, nodes[..., None].expand(-1, -1, self.vocab))
            own = RedrawUniforms(u(self.columns), u(self.columns), u(self.columns, self.k - 1))
            tokens, law, kept = redraw_columns(tokens[..., 0], law, rows, accepted, own)
            code = codes.gather(1, path[:, -1:])[:, 0] * self.vocab + token
            length = length + accepted + 1
            done = (length >= self.length) & (image == 0)
            image = torch.where(done, code // self.vocab ** (length - self.length).clamp(min=0) + 1, image)
            code, length = torch.where(image > 0, 0, code), torch.where(image > 0, self.length, length)
        return image - 1

    def forward(self, code: Tensor, length: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        codes = code[:, None].repeat(1, len(self.column))
        for node in range(1, len(self.column)):
            x = tokens[:, self.column[node] - 1, self.rank[node]]
            codes[:, node] = codes[:, self.parent[node]] * self.vocab + x
        return self.q(codes, length[:, None] + self.column), codes

    def verify(self, q: Tensor, law: Tensor, tokens: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = torch.zeros(len(q), dtype=torch.long)
        path, accepted, final = [at], torch.zeros_like(at), q[:, 0]
        going, rows = torch.ones(len(q), dtype=torch.bool), torch.arange(len(q))
        for c in range(1, self.columns):
            going = going & (self.children[at, 0] >= 0)
            size = self.k if c < self.depth else 1
            stages = recursive_residuals(q[rows, at], law[:, c - 1], tokens[:, c - 1, :size])
            tests = sibling_tests(stages, tokens[:, c - 1, :size], u[rows, at, :size])
            some, first = tests.any(-1), tests.long().argmax(-1)
            final = torch.where((going & ~some)[:, None], stages.target[:, -1], final)
            going = going & some
            at = torch.where(going, self.children[at, first], at)
            final = torch.where(going[:, None], q[rows, at], final)
            accepted = accepted + going
            path.append(at)
        return torch.stack(path, 1), accepted, final


def joint(table: Tensor, length: int) -> Tensor:
    """P(image) of the target: [V ** length]."""
    vocab, total = table.shape[-1], torch.ones(1, dtype=torch.float64)
    for n in range(length):
        first = (vocab**n - 1) // (vocab - 1)
        total = (total[:, None] * table[first : first + vocab**n]).flatten()
    return total


@pytest.mark.parametrize(("k", "depth", "columns"), [(2, 2, 3), (3, 2, 3), (2, 3, 4), (1, 1, 3)])
def test_siblings_redrawn_by_coupling_keep_the_targets_distribution(k, depth, columns):
    """χ² on 200,000 images of three tokens: finds a total variation of 0.01, a fifth of the public code's, always."""
    table = distributions(13, 3, seed=7)
    images = Siblings(table, 3, k, depth, columns).run(200_000, seed=1)
    expected = joint(table, 3)
    counts = torch.bincount(images, minlength=27).double()
    assert chisquare(counts, expected * len(images)).pvalue > 1e-3
    assert float(0.5 * (counts / len(images) - expected).abs().sum()) < 0.01


def test_public_trees_take_the_longest_path_and_end_full_windows_with_a_uniform_token():
    tree = RowTree.of(4, 2, 2)  # two siblings, a chain of two columns more
    assert tree.retrieve.tolist() == [[0, 1, 2], [0, 3, -1]]
    q = torch.zeros(1, 4, 3).scatter(-1, torch.tensor([[[1], [2], [0], [0]]]), 1.0)
    law = torch.full((1, 3, 3), 1 / 3)
    tokens, fresh = torch.tensor([[0, 1, 2, 1]]), torch.tensor([0.0, 0.5, 0.5])
    step = longest_path_step(tree, tokens, law, q, torch.zeros(1, 2, 2), torch.full((1, 3, 2), 0.9), fresh)
    assert step.committed.tolist() == [3]
    assert step.sampled[0, 0, 0] == 2  # of the uniform law, though the target says 0
    assert torch.equal(step.law[0, 0], fresh)
