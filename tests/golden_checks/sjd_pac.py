"""SJD-PAC: the public code's steps, case by case, and its whole decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rules import EXACT
from torch import Tensor

from golden_checks.common import Found, Vectors, close, read, same, worst
from golden_checks.engine_window import start, target
from golden_checks.window_model import StandIn, Window
from lanternbench.component import Prepared
from lanternbench.engine import decode as engine
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.sampling import Warp
from lanternbench.methods.proposals.longest_path import PublicStep, RowTree, judge, longest_path_step
from lanternbench.methods.proposals.sjd_pac import PublicSjdPac, SiblingWindow
from lanternbench.methods.residuals import standard


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "sjd_pac.safetensors")
    trees = {name: RowTree.of(t["nodes"], t["k"], t["depth"]) for name, t in vectors.meta["trees"].items()}
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


def shape(tree: RowTree, want: dict[str, Tensor]) -> list[Found]:
    columns, n = tree.retrieve.shape[1], len(tree.column)
    row = torch.arange(len(tree.retrieve))[:, None]
    inner = tree.retrieve[:, 1 : tree.depth]
    first, last = ((tree.siblings[..., rank][:, None] == inner[None]).long().argmax(1) for rank in (0, -1))
    # of the rows through a sibling, the record names the one with the row's own later ranks as its first's or last's
    mask = torch.zeros(n, n, dtype=torch.long)
    for nodes in tree.retrieve.tolist():
        nodes = [node for node in nodes if node >= 0]
        for c, node in enumerate(nodes):
            mask[node, nodes[: c + 1]] = 1
    through = {
        "first": same("tree: first siblings", tree.retrieve[first, 1 + torch.arange(inner.shape[1])],
                      tree.retrieve[want["first_sibling_row"], 1 + torch.arange(inner.shape[1])]),
        "last": same("tree: last siblings", tree.retrieve[last, 1 + torch.arange(inner.shape[1])],
                     tree.retrieve[want["last_sibling_row"], 1 + torch.arange(inner.shape[1])]),
    }  # fmt: skip
    assert row.shape[0] == len(want["retrieve"])
    return [
        same("tree: nodes of each path", tree.retrieve, want["retrieve"]),
        same("tree: which draft each node is", tree.rank * columns + tree.column, want["node_source"]),
        same("tree: whose uniform", tree.uniform_row, want["uniform_row"]),
        same("tree: mask", mask, want["mask"]),
        *through.values(),
    ]


def uniform_law(first: int, last: int, vocab: int) -> Tensor:
    law = torch.zeros(vocab)
    law[first : last + 1] = 1 / (last - first + 1)
    return law


class RecordedFresh(PublicSjdPac):
    """Fresh drafts come from the run's image ids alone."""

    law = Prepared[Tensor]()

    def fresh_law(self, like: Tensor) -> Tensor:
        return self.law


def unit(vectors: Vectors, name: str, tree: RowTree) -> list[Found]:
    given, want = vectors.under(f"in.unit.{name}."), vectors.under(f"out.unit.{name}.")
    first, last = vectors.meta["unit_image_ids"]
    fresh = uniform_law(first, last, given["q"].shape[-1])
    tokens, law, q = given["node_tokens"][None], given["q"][None], given["p_nodes"][None]
    step = longest_path_step(tree, tokens, law, q, given["accept_u"][None], given["sample_u"][None], fresh)
    found = [
        same("committed", step.committed[0], want["commit_len"]),
        same("winning row", step.row[0], want["row"]),
        same("token that ends the step", step.sampled[0, 0, 0], want["sampled"][0, 0]),
        same("next drafts", step.sampled[0, :, 1:], want["sampled"][:, 1:]),
        same("next drafts by node", tree.tokens(step.sampled)[0, 1:], want["next_node_tokens"][1:]),
        close("recorded laws", step.law[0, 1:], want["q_next"][1:], 1e-5),
    ]
    if "draw_dist" in want:
        found.append(close("what columns are drawn from", step.weights[0], want["draw_dist"], 1e-5))
    if "target_after" in want:
        judged = judge(tree, tokens, law, q, given["accept_u"][None])
        found.append(close("recursive residuals", judged.judging[0], want["target_after"], 1e-5))
    return found


def decode(model: StandIn, run: dict[str, Any], u: dict[str, Tensor]) -> tuple[list[int], list[PublicStep]]:
    """The public loop: the first step is prefill and window together, and every step has a tree."""
    settings, tree = Window.of(run), RowTree.of(run["nodes"], run["k"], run["depth"])
    fresh = uniform_law(settings.first, settings.last, model.vocab)
    tokens, log = list(settings.prompt), []
    nodes = torch.cat([torch.tensor(tokens[-1:]), settings.fresh(u["init_u"])])
    law = fresh.expand(tree.retrieve.shape[1], -1)
    while len(tokens) < settings.max_length:
        q = torch.zeros(len(nodes), model.vocab)
        for row in tree.retrieve.tolist():
            row = [node for node in row if node >= 0]
            q[row] = model.after(tokens, nodes[row[1:]].tolist())
        accept_u, sample_u = u["accept_u"][len(log)], u["sample_u"][len(log)]
        step = longest_path_step(tree, nodes[None], law[None], q[None], accept_u[None], sample_u[None], fresh)
        path = tree.retrieve[step.row[0], 1 : int(step.committed)]
        tokens += [*nodes[path].tolist(), int(step.sampled[0, 0, 0])]
        nodes, law = tree.tokens(step.sampled)[0], step.law[0]
        log.append(step)
    return tokens, log


def in_engine(vectors: Vectors, name: str, run: dict[str, Any]) -> list[Found]:
    """From the second step on: the public first step is prefill and window together, and draws every node by itself."""
    given, want = vectors.under(f"in.run.{name}."), vectors.under(f"out.run.{name}.")
    model, prompt, counts = StandIn(vectors, Window.of(run)), len(run["prompt"]), want["commit_len"].tolist()
    image, rows = want["tokens"][prompt:].tolist(), RowTree.of(run["nodes"], run["k"], run["depth"])
    made = target(model, len(image))
    sizes = {"siblings": run["k"], "depth": run["depth"], "window": rows.retrieve.shape[1] - 1}
    window = RecordedFresh(**sizes).drafting(made).ready(law=uniform_law(*run["image_ids"], model.vocab))
    by_row = rows.retrieve[:, 1:]
    steps = []
    for accept_u, sample_u in zip(given["accept_u"][1:], given["sample_u"][1:], strict=True):
        accept_u = torch.cat(
            [accept_u[:, : run["depth"] - 1].gather(0, rows.uniform_row), accept_u[:, run["depth"] - 1 :]], 1
        )
        verify = torch.zeros(run["nodes"])
        verify[window.node[by_row[by_row >= 0]]] = accept_u[by_row >= 0]
        verify[0] = sample_u[0, 0]
        steps.append(torch.cat([verify, torch.zeros(window.fresh_uniforms), sample_u.flatten()]))
    decoder = SpeculativeDecoder(made, None, Warp(), 1.0, window, window.verification(EXACT), standard)
    state = start(model, made, (image, counts[0]), window.nodes, torch.stack([*steps, steps[-1]])[None])
    sampled, laws = want["sampled"], want["q_next"]
    own = SiblingWindow(sampled[0, :, 1:].mT[None], laws[0, None, 1:], torch.tensor([window.window]))
    committed, drafts, recorded = counts[:1], [], []
    for t in range(1, len(counts)):
        own, result = engine.step(decoder, state, own)
        committed.append(int(result.verified.accepted[0]) + 1)
        drafts.append(same("", own.tokens[0].mT, sampled[t, :, 1:]))
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
    tokens, log = decode(StandIn(vectors, Window.of(run)), run, given)
    laws = [close("", s.law[0, 1:], w[1:], 1e-5) for s, w in zip(log, want["q_next"], strict=False)]
    return [
        same(f"{name}: tokens", tokens, want["tokens"]),
        same(f"{name}: committed in each step", [int(s.committed) for s in log], want["commit_len"]),
        same(f"{name}: winning rows", [int(s.row) for s in log], want["row"]),
        same(f"{name}: next drafts", torch.cat([s.sampled[..., 1:] for s in log]), want["sampled"][..., 1:]),
        worst(f"{name}: recorded laws", laws),
    ]
