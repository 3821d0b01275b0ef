"""Exact verification: the distribution of everything the real engine can do on tables, step by step.

A step of the engine is a deterministic function of its uniforms, and as a function of one of them, the earlier ones
given, it is piecewise constant: a token is drawn, a child accepted or not.  So its probabilities are found by measuring
where the engine changes its mind (bisection), not by working out what it should do; any rule, residual or tree policy,
registered ones too, is judged by what it does.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lanternbench.analysis.fidelity import fidelity_loss
from lanternbench.engine import decode as engine
from lanternbench.engine.sampling import draw
from lanternbench.lossless.tables import TableDrafter, Tables, TableSession, TableWarp, shrunk, table_target
from lanternbench.methods.presets import Method
from lanternbench.methods.proposals.base import Drafted
from lanternbench.methods.proposals.drafters import Drafter
from lanternbench.methods.proposals.jacobi import Jacobi
from lanternbench.methods.trees.adaptive import Neighbourhood

RESOLUTION = 2.0**-28  # to which thresholds are located
SECTIONS = 8  # parts an interval is cut into at once
STATE = ("drafts", "p", "kept", "known", "around", "alpha", "now")  # what proposals carry from step to step


@dataclass
class Rows:
    """Decodes in progress: tokens [R, ·], length [R], cache memory [R, ·], the proposals' state, probability [R]."""

    tokens: Tensor
    length: Tensor
    memory: Tensor
    state: dict[str, Any]
    weight: Tensor

    def take(self, index: Tensor, weight: Tensor | None = None) -> Rows:
        state = {name: _pick(value, index) for name, value in self.state.items()}
        chosen = self.weight[index] if weight is None else weight
        return Rows(self.tokens[index], self.length[index], self.memory[index], state, chosen)


def _pick(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[index]
    picked = [copy.copy(value[i]) for i in index.tolist()]
    for item in picked:
        if isinstance(item, Neighbourhood):  # a step extends it in place
            item.trees, item.random = list(item.trees), copy.deepcopy(item.random)
    return picked


class _NoLog:
    def note(self, session, sizes) -> None:
        pass


class World:
    """A method at work on tables: ``step`` runs the real engine once for a batch of decodes with given uniforms."""

    def __init__(self, tables: Tables, method: Method, greedy: bool = False):
        self.tables, self.warp = tables, TableWarp(greedy)
        self.method = shrunk(method)
        self.decoder = replace(engine.build(table_target(tables), self.method), warp=self.warp)  # type: ignore[arg-type]
        proposal = self.proposal()
        self.nodes, self.uniforms, self.width = proposal.nodes, proposal.nodes + proposal.uniforms, proposal.width
        # the order in which a step decides: its draft, acceptance from the root down, the last token, Jacobi's redraws
        drafting = self.nodes + (proposal.window if isinstance(proposal, Jacobi) else proposal.uniforms)
        self.order = [*range(self.nodes, drafting), *range(1, self.nodes), 0, *range(drafting, self.uniforms)]

    def proposal(self) -> Any:
        made = self.decoder.proposal()
        if isinstance(made, Drafted):
            drafter: Drafter = TableDrafter(self.tables)  # type: ignore[assignment]
            made.drafter = drafter
        return made

    def start(self) -> Rows:
        """One row per first token, which needs no draft."""
        v, slots = self.tables.vocab, self.tables.length + self.nodes + 1
        tokens = torch.zeros(v, slots, dtype=torch.long)
        tokens[:, 0] = torch.arange(v)
        memory = torch.full((v, slots), -1.0, dtype=torch.float64)
        rows = Rows(tokens, torch.ones(v, dtype=torch.long), memory, {}, self.tables.q[0])
        session, proposal = self._session(rows), self.proposal()
        proposal.begin(session, session.fresh.hidden)
        state = self._state(proposal)
        rows.state = state | {name: state[name].double() for name in ("p", "known") if name in state}
        return rows.take((rows.weight > 0).nonzero()[:, 0])

    def _session(self, rows: Rows) -> TableSession:
        return TableSession(self.tables, self.warp, rows.tokens, rows.length, rows.memory, self.nodes)

    @staticmethod
    def _state(proposal: Any) -> dict[str, Any]:
        holders = (proposal, getattr(proposal, "growth", None))
        return {n: vars(h)[n] for h in holders if h is not None for n in STATE if n in vars(h)}

    def step(self, rows: Rows, u: Tensor, trace: bool = False) -> tuple[Rows, Tensor, TableSession]:
        """One engine step with uniforms u [R, U]: the rows after it, and [R, ·] all that it decided, as integers."""
        session, proposal = self._session(rows), self.proposal()
        session.uniforms = u[:, None]
        if trace:
            session.keep_trace(self.width)
        proposal.begin(session, session.fresh.hidden)
        for holder in (proposal, getattr(proposal, "growth", None)):
            for name in STATE:
                if holder is not None and name in vars(holder):
                    setattr(holder, name, rows.state[name])
        engine.step(session, proposal, self.decoder, _NoLog())  # type: ignore[arg-type]
        draft, verdict = session.seen
        state = self._state(proposal)
        decided = [draft.tokens, verdict.path, verdict.token[:, None]]
        if "drafts" in state:
            decided.append(state["drafts"])
        after = Rows(session.tokens, session.length, session.memory.clone(), state, rows.weight)
        return after, torch.cat(decided, 1), session


def split(world: World, rows: Rows, u: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where uniform k changes what each row decides: (row, midpoint, width) of every piece of 0 … 1.

    Intervals whose ends agree are one piece (decisions are monotone in a uniform); others are cut until they are small.
    """
    everyone = torch.arange(len(u))

    def decide(row: Tensor, at: Tensor) -> Tensor:
        v = u[row]
        v[:, k] = at
        return world.step(rows.take(row), v)[1]

    low, high = torch.zeros(len(u), dtype=u.dtype), torch.full((len(u),), 1 - 2.0**-40, dtype=u.dtype)
    row, at_low, at_high = everyone, decide(everyone, low), decide(everyone, high)
    cuts_row, cuts_at = [everyone, everyone], [low, torch.ones_like(low)]
    fractions = torch.linspace(0, 1, SECTIONS + 1, dtype=u.dtype)
    while True:
        keep = (at_low != at_high).any(1)
        row, low, high, at_low, at_high = row[keep], low[keep], high[keep], at_low[keep], at_high[keep]
        if not len(row):
            break
        if float((high - low).max()) < RESOLUTION:
            cuts_row.append(row)
            cuts_at.append((low + high) / 2)
            break
        points = low[:, None] + (high - low)[:, None] * fractions  # [I, S + 1]
        inner = decide(row.repeat_interleave(SECTIONS - 1), points[:, 1:-1].flatten())
        values = torch.cat([at_low[:, None], inner.view(len(row), SECTIONS - 1, -1), at_high[:, None]], 1)
        row = row.repeat_interleave(SECTIONS)
        low, high = points[:, :-1].flatten(), points[:, 1:].flatten()
        at_low, at_high = values[:, :-1].flatten(0, 1), values[:, 1:].flatten(0, 1)
    row, at = torch.cat(cuts_row), torch.cat(cuts_at)
    order = at.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    row, at = row[order], at[order]
    same = row[1:] == row[:-1]
    low, width = at[:-1][same], (at[1:] - at[:-1])[same]
    return row[:-1][same], low + width / 2, width


def outcomes(world: World, rows: Rows) -> tuple[Rows, Tensor]:
    """All that one step can do to these decodes, with probabilities; and the expected fidelity loss of the step."""
    u = torch.full((len(rows.weight), world.uniforms), 0.5, dtype=torch.float64)
    for k in world.order:
        row, middle, width = split(world, rows, u, k)
        rows, u = rows.take(row, rows.weight[row] * width), u[row]
        u[:, k] = middle
    after, _, session = world.step(rows, u, trace=True)
    assert session.trace is not None
    session.trace.cut(session.limit)
    sampled = session.seen[0].p is not None
    loss = fidelity_loss(session.trace, world.decoder.rule, world.decoder.residual, sampled, total=True)
    return after, (loss * rows.weight).sum()


def merged(rows: Rows) -> Rows:
    """Decodes that are alike in all that matters become one."""
    if any(isinstance(value, list) for value in rows.state.values()):
        return rows
    steps = torch.arange(rows.tokens.shape[1])
    known = [
        rows.length[:, None],
        rows.tokens.masked_fill(steps >= rows.length[:, None], 0),
        rows.memory.masked_fill(steps >= rows.length[:, None] - 1, 0),
    ]
    if "kept" in rows.state:
        kept = rows.state["kept"][:, None]
        unused = torch.arange(rows.state["drafts"].shape[1]) >= kept
        known += [kept, rows.state["drafts"].masked_fill(unused, 0)]
        known += [(rows.state["p"] * ~unused[..., None]).flatten(1), *(v.flatten(1) for v in _known(rows))]
    key = torch.cat([x.double() for x in known], 1).mul(1e9).round()
    _, group = key.unique(dim=0, return_inverse=True)
    weight = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add(0, group, rows.weight)
    first = torch.full_like(weight, len(group), dtype=torch.long).scatter_reduce(
        0, group, torch.arange(len(group)), "amin"
    )
    return rows.take(first, weight)


def _known(rows: Rows) -> list[Tensor]:
    return [rows.state["known"]] if "known" in rows.state else []


def output_distribution(tables: Tables, method: Method) -> tuple[Tensor, float]:
    """P(sequence) of what the engine generates on tables [V ** L], and Theorem 2's bound on its TV from the target."""
    world = World(tables, method)
    total = torch.zeros(tables.vocab**tables.length, dtype=torch.float64)
    place = tables.vocab ** torch.arange(tables.length - 1, -1, -1)
    rows, bound = world.start(), 0.0
    while len(rows.weight):
        rows, loss = outcomes(world, rows)
        bound += float(loss)
        done = rows.length >= tables.length
        total.index_add_(0, (rows.tokens[done, : tables.length] * place).sum(1), rows.weight[done])
        rows = rows.take((~done).nonzero()[:, 0])
        rows = merged(rows) if len(rows.weight) else rows
    return total, bound


def decoded(tables: Tables, method: Method, greedy: bool, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """``count`` whole decodes on tables: tokens [count, L] and the tokens that each position's own uniform draws.

    Greedy: the second are the argmax.  Plain Jacobi decoding must give the second in either case.
    """
    world = World(tables, method, greedy)
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(count, tables.length + 1, world.uniforms, generator=generator, dtype=torch.float64)

    def token(q: Tensor, t: int) -> Tensor:
        return q.argmax(-1) if greedy else draw(q, u[:, t, 0])

    expected = torch.zeros(count, tables.length, dtype=torch.long)
    code = torch.zeros(count, dtype=torch.long)
    for t in range(tables.length):
        expected[:, t] = token(tables.q[tables.rows(code, torch.tensor(t))], t)
        code = code * tables.vocab + expected[:, t]
    slots = tables.length + world.nodes + 1
    tokens = torch.nn.functional.pad(expected[:, :1], (0, slots - 1))
    memory = torch.full((count, slots), -1.0, dtype=torch.float64)
    session = world._session(Rows(tokens, torch.ones(count, dtype=torch.long), memory, {}, torch.ones(count)))
    session.uniforms = u
    proposal = world.proposal()
    proposal.begin(session, session.fresh.hidden)
    for name in {"p", "known"} & set(vars(proposal)):
        setattr(proposal, name, vars(proposal)[name].double())
    while session.active():
        engine.step(session, proposal, world.decoder, _NoLog())  # type: ignore[arg-type]
    return session.tokens[:, : tables.length], expected
