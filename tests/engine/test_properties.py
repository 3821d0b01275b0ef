"""Properties of trees, verification and carried state, for whatever shapes Hypothesis finds."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import EXACT, annealed
from torch import Tensor

from lanternbench.engine.carry import PerPrompt, select
from lanternbench.engine.tree import Draft, StaticTree, from_parents, from_paths, parents, path_to
from lanternbench.engine.verify import Uniforms
from lanternbench.methods.residuals import optimal, standard

MANY = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """The paths of a random tree: every node gets 0 to 3 children, three levels deep at most."""
    paths: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for depth in range(draw(st.integers(1, 3))):
        below = []
        for parent in level:
            least = 1 if depth == 0 else 0
            below += [(*parent, rank) for rank in range(draw(st.integers(least, 3)))]
        paths += below
        level = below[:6]
    return tuple(paths)


def distributions(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    logits[torch.rand(shape, generator=generator) < 0.2] = -torch.inf  # some tokens are excluded
    logits[..., 0] = logits[..., 0].clamp(min=-3)
    return logits.softmax(-1)


def drafted(static: StaticTree, p: Tensor, seed: int) -> Draft:
    """Children sampled without replacement from p [B, M, V], where p has enough tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(len(p), static.tree.nodes, dtype=torch.long)
    for b in range(len(p)):
        for m, node in enumerate(static.inner_ids.tolist()):
            left = p[b, m].clone()
            for child in static.tree.children[0, node].tolist():
                if child >= 0 and float(left.sum()) > 0:
                    tokens[b, child] = int(torch.multinomial(left, 1, generator=generator))
                    left[tokens[b, child]] = 0
    return Draft(tokens, p, static)


@MANY
@given(shapes())
def test_a_tree_of_paths_has_each_path_once(paths):
    tree = from_paths(paths).tree
    assert tree.nodes == 1 + len(set(paths))
    found = set()
    for node in range(1, tree.nodes):
        nodes = path_to(tree, torch.tensor([node]))[0].tolist()
        steps = list(pairwise(nodes))
        found.add(tuple(tree.children[0, a].tolist().index(b) for a, b in steps if a != b))
    assert found == set(paths)
    assert (tree.ancestors.sum(-1) == tree.depth + 1).all()


@MANY
@given(shapes())
def test_a_tree_of_parents_is_the_tree_of_its_paths(paths):
    tree = from_paths(paths).tree
    again = from_parents(parents(tree).clamp(min=0), tree.depth, tree.max_depth, tree.width)
    assert all(torch.equal(a, b) for a, b in zip(again[:3], tree[:3], strict=True))


@MANY
@given(shapes(), st.integers(0, 10**6), st.sampled_from(["exact", "annealed"]))
def test_verification_is_the_scalar_procedure_for_the_same_uniforms(paths, seed, name):
    static = from_paths(paths)
    tree, vocab = static.tree, 5
    p, q = (
        distributions(seed, 2, len(static.inner_ids), vocab),
        distributions(seed + 1, 2, tree.nodes, vocab),
    )
    draft = drafted(static, p, seed)
    u = torch.rand(
        2, tree.nodes, generator=torch.Generator().manual_seed(seed + 2), dtype=torch.float64
    )
    omega = [1.4, 1.0, 0.6]
    rule, residual = (EXACT, standard) if name == "exact" else (annealed(omega), optimal)
    found = rule.verify(draft, q, Uniforms(u, u[:, :0]), residual, greedy=False)
    for b in range(2):
        path, weights = scalar(
            static, draft, q[b], u[b].tolist(), b, omega if name == "annealed" else [1.0] * 3
        )
        assert found.path[b].tolist() == path + [path[-1]] * (tree.max_depth + 1 - len(path))
        assert int(found.accepted[b]) == len(path) - 1
        total, level, token = sum(weights), 0.0, vocab - 1
        for x, weight in enumerate(weights):
            level += weight
            if u[b, 0] * total < level:
                token = x
                break
        assert int(found.token[b]) == token


def scalar(
    static: StaticTree, draft: Draft, q_all: Tensor, u: list[float], b: int, omega: list[float]
):
    """One prompt's path and the weights that its last token is drawn from, child by child."""
    assert draft.p is not None
    path, children, inner = [0], static.tree.children[0].tolist(), static.inner_ids.tolist()
    while True:
        node = path[-1]
        q = q_all[node].tolist()
        if node not in inner:
            return path, q
        p = draft.p[b, inner.index(node)].tolist()
        f = omega[len(path) - 1]
        for child in (c for c in children[node] if c >= 0):
            x = int(draft.tokens[b, child])
            if p[x] > 0 and u[child] * p[x] < f * q[x]:
                path.append(child)
                break
            if p[x] > 0:
                rest = [
                    max(0.0, a - (c if f == 1.0 else min(c, f * a)))
                    for a, c in zip(q, p, strict=True)
                ]
                q = [r / sum(rest) for r in rest] if sum(rest) > 0 else q
            p[x] = 0.0
            left = sum(p)
            p = [c / left if left > 0 else 0.0 for c in p]
        else:
            return path, q


def test_a_chain_of_one_prompt_is_verified_as_in_a_batch():
    rows, vocab, static = 400, 5, from_paths(((0,), (0, 0), (0, 0, 0)))
    p, q = distributions(0, rows, 3, vocab), distributions(1, rows, 4, vocab)
    q[::2, :3] = p[::2]  # a rejection leaves nothing of q − p
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(vocab, (rows, 4), generator=generator)  # p may be 0 there
    u = torch.rand(rows, 4, generator=generator, dtype=torch.float64)
    rule, cases = annealed([1.4, 0.8, 0.3]), Counter[str]()
    for residual in (standard, optimal):
        verify = partial(rule.verify, residual=residual, greedy=False)
        together = verify(Draft(tokens, p, static), q, Uniforms(u, u[:, :0]))
        for b in range(rows):
            own = slice(b, b + 1)
            alone = verify(
                Draft(tokens[own], p[own], static), q[own], Uniforms(u[own], u[own, :0])
            )
            assert all(torch.equal(x, y[own]) for x, y in zip(alone, together, strict=True))
            n = int(alone.accepted)
            stop = (
                "all accepted"
                if n == 3
                else "p is 0"
                if p[b, n, tokens[b, n + 1]] == 0
                else "rejected"
            )
            cases[stop + " with q = p" * (stop == "rejected" and b % 2 == 0)] += 1
    assert len(cases) == 4
    assert min(cases.values()) > 20, cases


class Carried(NamedTuple):
    of_prompts: Tensor  # [B, …]
    of_rows: Tensor  # [2B, …]
    on_host: PerPrompt
    nested: dict[str, tuple[Tensor, int]]


@MANY
@given(st.integers(2, 6), st.data())
def test_selected_state_is_that_of_the_prompts_chosen(batch, data):
    prompts = data.draw(st.lists(st.integers(0, batch - 1), max_size=8))
    number = torch.arange(batch)
    state = Carried(
        number[:, None],
        torch.cat([number, number + 100]),
        PerPrompt(range(batch)),
        {"a": (number, 7)},
    )
    found = select(state, prompts, batch)
    assert found.of_prompts[:, 0].tolist() == prompts
    assert found.of_rows.tolist() == [*prompts, *(n + 100 for n in prompts)]
    assert found.on_host == tuple(prompts)
    assert found.nested["a"][0].tolist() == prompts
    assert found.nested["a"][1] == 7


def test_state_whose_first_dimension_is_not_the_batch_is_refused():
    with pytest.raises(AssertionError, match="first dimension"):
        select((torch.zeros(3),), [0], 2)
