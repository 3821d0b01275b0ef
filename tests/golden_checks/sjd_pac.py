"""SJD-PAC: the public code's steps, case by case, and its whole decodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from rules import EXACT
from torch import Tensor

from golden_checks.common import Found, Vectors, close, read, same, worst
from golden_checks.engine_window import start, target
from golden_checks.window_model import StandIn, Window
from lanternbench.engine import decode as engine
from lanternbench.engine.decode import Speculation, SpeculativeDecoder
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import StepResult
from lanternbench.engine.tree import Draft
from lanternbench.engine.verify import SampledDraft, Uniforms
from lanternbench.methods.proposals.jacobi import Window as JacobiWindow
from lanternbench.methods.proposals.sjd_pac import (
    Columns,
    PublicSiblingWindow,
    recursive_residuals,
)
from lanternbench.methods.residuals import standard
from lanternbench.settings import TARGETS_OWN


class PublicTree:
    """The public code's tree: its numbers of nodes, by row from the root to a leaf, and the
    engine's.
    """

    def __init__(self, recorded: dict[str, Tensor], k: int, depth: int):
        self.retrieve, self.depth = recorded["retrieve"], depth  # [R, M], −1 where a row has ended
        self.uniform_row = recorded["uniform_row"]
        columns = self.retrieve.shape[1]
        self.column, self.rank = (
            recorded["node_source"] % columns,
            recorded["node_source"] // columns,
        )
        cpu: Any = SimpleNamespace(device=torch.device("cpu"), vocab=1)
        self.columns = Columns.of(k, depth, columns - 1, cpu)
        self.window = PublicSiblingWindow.of(self.columns)
        paths: dict[int, tuple[int, ...]] = {}
        for row in self.retrieve.tolist():
            for c, node in enumerate(n for n in row if n >= 0):
                paths[node] = tuple(self.rank[row[1 : c + 1]].tolist())
        self.engine = torch.tensor(
            [((), *self.columns.static.paths).index(paths[node]) for node in range(len(paths))]
        )
        self.public = self.engine.argsort()

    def uniforms(self, accept_u: Tensor) -> Tensor:
        """accept_u [R, M − 1] by row -> [N] by the engine's nodes: the first row through a node
        judges it.
        """
        inside = self.depth - 1
        by_row = torch.cat(
            [accept_u[:, :inside].gather(0, self.uniform_row), accept_u[:, inside:]], 1
        )
        nodes, u = self.retrieve[:, 1:], torch.zeros(len(self.engine))
        u[self.engine[nodes[nodes >= 0]]] = by_row[nodes >= 0]
        return u


class PublicStep(NamedTuple):
    """One step in the public code's terms."""

    committed: int
    row: int  # the winning one
    sampled: Tensor  # [K, M]: [0, 0] ends the step, column j ≥ 1 holds the next drafts of column j
    law: Tensor  # [M − 1, V] recorded for these
    weights: Tensor  # [M, V] what each column was drawn from, unnormalised


def public_step(
    tree: PublicTree,
    tokens: Tensor,
    law: Tensor,
    q: Tensor,
    accept_u: Tensor,
    sample_u: Tensor,
    fresh: Tensor,
) -> PublicStep:
    """One step of the engine's proposal: tokens [N], law [M, V] by column, q [N, V], sample_u [M,
    K].
    """
    window = replace(tree.window, fresh_law=fresh)
    columns = tree.columns
    w = columns.window
    laws = law[None, 1:][:, columns.law_column]
    draft = Draft(tokens[None, tree.public], laws, columns.static)
    q, verify = q[None, tree.public], tree.uniforms(accept_u)[None]
    verify[:, 0] = sample_u[0, 0]
    u = Uniforms(verify, torch.cat([torch.zeros(window.fresh_uniforms), sample_u.flatten()])[None])
    result = window.verification(EXACT).verify(draft, q, u, standard, False)
    ok, accepted = window.judge(SampledDraft.of(draft), q, verify), int(result.accepted[0])
    sampled = SampledDraft.of(draft)
    weights = window.redraw(sampled, q, ok, result.path, result.accepted).weights[0]
    state: Any = SimpleNamespace(warp=Warp(TARGETS_OWN))
    old = JacobiWindow(draft.tokens, law[None, 1:], torch.tensor([w]))
    new = window.update(state, old, StepResult(draft, q, result, result.accepted, u, q))
    ends = torch.cat([result.token[:1], torch.zeros(len(sample_u[0]) - 1, dtype=torch.long)])
    row = (tree.retrieve == tree.public[result.path[0, -1]]).any(1).int().argmax()
    shift = (accepted + torch.arange(w + 1)).clamp(max=w)
    weights = torch.cat([weights, fresh[None]])[shift]
    return PublicStep(
        accepted + 1, int(row), torch.cat([ends[:, None], new.drafts[0].mT], 1), new.p[0], weights
    )


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "sjd_pac.safetensors")
    trees = {
        name: PublicTree(vectors.under(f"out.tree.{name}."), t["k"], t["depth"])
        for name, t in vectors.meta["trees"].items()
    }
    by_group: dict[str, list[Found]] = {}
    for name, tree in trees.items():
        for f in shape(tree, vectors.under(f"out.tree.{name}.")):
            by_group.setdefault(f.group, []).append(f)
    for name, case in vectors.meta["unit_cases"].items():
        for f in unit(vectors, name, trees[case["tree"]]):
            by_group.setdefault(f.group, []).append(f)
    found = [worst(group, all_of) for group, all_of in by_group.items()]
    for name, run in vectors.meta["runs"].items():
        found += compare(vectors, name, run) + in_engine(vectors, name, run)
    return found


def shape(tree: PublicTree, want: dict[str, Tensor]) -> list[Found]:
    """The engine's tree has the recorded nodes and no others, and the same ones attend to each
    other.
    """
    static = tree.columns.static
    mask = static.tree.ancestors[0].long()[tree.engine][:, tree.engine]
    depth = static.tree.depth[0, tree.engine]
    return [
        same("tree: nodes", tree.engine.sort().values, torch.arange(len(static.tree.depth[0]))),
        same("tree: which column each node is in", depth, tree.column),
        same("tree: mask", mask, want["mask"]),
    ]


def uniform_law(first: int, last: int, vocab: int) -> Tensor:
    law = torch.zeros(vocab)
    law[first : last + 1] = 1 / (last - first + 1)
    return law


def unit(vectors: Vectors, name: str, tree: PublicTree) -> list[Found]:
    given, want = vectors.under(f"in.unit.{name}."), vectors.under(f"out.unit.{name}.")
    first, last = vectors.meta["unit_image_ids"]
    fresh = uniform_law(first, last, given["q"].shape[-1])
    tokens, law, q = given["node_tokens"], given["q"], given["p_nodes"]
    step = public_step(tree, tokens, law, q, given["accept_u"], given["sample_u"], fresh)
    found = [
        same("committed", step.committed, want["commit_len"]),
        same("winning row", step.row, want["row"]),
        same("token that ends the step", step.sampled[0, 0], want["sampled"][0, 0]),
        same("next drafts", step.sampled[:, 1:], want["sampled"][:, 1:]),
        same(
            "next drafts by node",
            step.sampled[tree.rank, tree.column][1:],
            want["next_node_tokens"][1:],
        ),
        close("recorded laws", step.law, want["q_next"][1:], 1e-5),
    ]
    if "draw_dist" in want:
        found.append(close("what columns are drawn from", step.weights, want["draw_dist"], 1e-5))
    if "target_after" in want:
        found.append(
            close(
                "recursive residuals", residuals(tree, tokens, law, q), want["target_after"], 1e-5
            )
        )
    return found


def residuals(tree: PublicTree, tokens: Tensor, law: Tensor, q: Tensor) -> Tensor:
    """[R, M, V] the target after each row's columns, with what earlier siblings left of it inside
    the tree.
    """
    after, (children,) = q[tree.retrieve], tree.columns.static.tree.children
    for c in range(tree.depth - 1):
        nodes = tree.retrieve[:, c]
        family = tokens[tree.public[children[tree.engine[nodes]]]]
        targets = recursive_residuals(q[nodes], law[c + 1].expand(len(nodes), -1), family).targets
        after[:, c] = targets[torch.arange(len(nodes)), tree.rank[tree.retrieve[:, c + 1]]]
    return after


def decode(
    model: StandIn, run: dict[str, Any], tree: PublicTree, u: dict[str, Tensor]
) -> tuple[list, list]:
    """The public loop: the first step is prefill and window together, and every step has a tree."""
    settings = Window.of(run)
    fresh = uniform_law(settings.first, settings.last, model.vocab)
    tokens, log = list(settings.prompt), []
    nodes = torch.cat([torch.tensor(tokens[-1:]), settings.fresh(u["init_u"])])
    law = fresh.expand(tree.retrieve.shape[1], -1)
    while len(tokens) < settings.max_length:
        q = torch.zeros(len(nodes), model.vocab)
        for row in tree.retrieve.tolist():
            row = [node for node in row if node >= 0]
            q[row] = model.after(tokens, nodes[row[1:]].tolist())
        step = public_step(
            tree, nodes, law, q, u["accept_u"][len(log)], u["sample_u"][len(log)], fresh
        )
        tokens += [
            *nodes[tree.retrieve[step.row, 1 : step.committed]].tolist(),
            int(step.sampled[0, 0]),
        ]
        nodes, law = step.sampled[tree.rank, tree.column], torch.cat([fresh[None], step.law])
        log.append(step)
    return tokens, log


def recorded_tree(vectors: Vectors, run: dict[str, Any]) -> PublicTree:
    """The tree of a run: of those recorded, the one with its sizes."""
    sizes = ("nodes", "k", "depth")
    name = next(n for n, t in vectors.meta["trees"].items() if all(t[s] == run[s] for s in sizes))
    return PublicTree(vectors.under(f"out.tree.{name}."), run["k"], run["depth"])


def in_engine(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    """From the second step on: the public first step is prefill and window together, and draws
    every node by itself.
    """
    given, want = vectors.under(f"in.run.{name}."), vectors.under(f"out.run.{name}.")
    model, prompt, counts = (
        StandIn(vectors, Window.of(run)),
        len(run["prompt"]),
        want["commit_len"].tolist(),
    )
    image, tree = want["tokens"][prompt:].tolist(), recorded_tree(vectors, run)
    made, window = (
        target(model, len(image)),
        replace(tree.window, fresh_law=uniform_law(*run["image_ids"], model.vocab)),
    )
    steps = []
    for accept_u, sample_u in zip(given["accept_u"][1:], given["sample_u"][1:], strict=True):
        verify = tree.uniforms(accept_u)
        verify[0] = sample_u[0, 0]
        steps.append(torch.cat([verify, torch.zeros(window.fresh_uniforms), sample_u.flatten()]))
    method: Any = None
    speculation = Speculation(window, window.verification(EXACT), standard)
    decoder = SpeculativeDecoder(made, method, Warp(TARGETS_OWN), 1.0, speculation)
    state = start(
        model, made, (image, counts[0]), window.size.nodes, torch.stack([*steps, steps[-1]])[None]
    )
    sampled, laws = want["sampled"], want["q_next"]
    own = JacobiWindow(
        sampled[0, :, 1:].mT[None], laws[0, None, 1:], torch.tensor([tree.columns.window])
    )
    committed, drafts, recorded = counts[:1], [], []
    for t in range(1, len(counts)):
        own, result = engine.step(decoder, state, own)
        committed.append(int(result.verified.accepted[0]) + 1)
        drafts.append(same("", own.drafts[0].mT, sampled[t, :, 1:]))
        if t < len(laws):
            recorded.append(close("", own.p[0], laws[t, 1:], 1e-5))
    return [
        same(f"{name}: engine, tokens", state.now.tokens[0, : len(image)], image),
        same(f"{name}: engine, committed in each step", committed, counts),
        worst(f"{name}: engine, next drafts", drafts),
        worst(f"{name}: engine, recorded laws", recorded),
    ]


def compare(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    given, want = vectors.under(f"in.run.{name}."), vectors.under(f"out.run.{name}.")
    tokens, log = decode(StandIn(vectors, Window.of(run)), run, recorded_tree(vectors, run), given)
    laws = [close("", s.law, w[1:], 1e-5) for s, w in zip(log, want["q_next"], strict=False)]
    return [
        same(f"{name}: tokens", tokens, want["tokens"]),
        same(f"{name}: committed in each step", [s.committed for s in log], want["commit_len"]),
        same(f"{name}: winning rows", [s.row for s in log], want["row"]),
        same(
            f"{name}: next drafts",
            torch.stack([s.sampled[..., 1:] for s in log]),
            want["sampled"][..., 1:],
        ),
        worst(f"{name}: recorded laws", laws),
    ]
