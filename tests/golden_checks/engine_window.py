"""The recorded Jacobi decodes through the engine itself: its steps, state, caches, verification
and proposals.

The engine draws the first token in its prefill and then takes window steps of one size.  So a run
is entered at its first full window step, in the recorded state, and followed until the public loop
narrows its window.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from golden_checks.common import Found, Vectors, close, same, worst
from golden_checks.window_model import StandIn, Window
from lanternbench.engine import decode as engine
from lanternbench.engine.cache import DecoderCache, Lengths, raster
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.decode import Speculation, SpeculativeDecoder
from lanternbench.engine.sampling import Warp
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.engine.timing import Clock
from lanternbench.engine.verify import RatioTest, Residual
from lanternbench.lossless.tables import read
from lanternbench.methods.proposals.jacobi import SlidingWindow
from lanternbench.methods.residuals import standard
from lanternbench.settings import TARGETS_OWN

# all tokens of a run after its prompt, and how many are committed when the engine starts
Image = tuple[list[int], int]


class StandInNet:
    """A node's state is its logits after the tokens that it attends to."""

    def __init__(self, model: StandIn):
        self.model = model

    def __call__(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, put: Any, last: bool = False
    ) -> Tensor:
        tokens, position, seen = read(x, rope, mask, put)
        slots = [one.nonzero()[:, 0] for one in seen[0]]
        images = [tokens[0, s[position[0, s].argsort()]].tolist() for s in slots]
        return torch.stack([self.model.logits(self.model.run.prompt + image) for image in images])[
            None
        ]


def target(model: StandIn, length: int) -> Any:
    embedded = SimpleNamespace(
        tok_embeddings=lambda tokens: tokens[..., None].float(),
        logits=lambda states, guidance: states,
    )
    return SimpleNamespace(
        name="stand-in", vocab=model.vocab, length=length, grid=(1, length), grids=((1, length),),
        device=torch.device("cpu"), graphs=None,
        codebook=None, row_width=0, model=embedded,
    )  # fmt: skip


def start(model: StandIn, made: Any, image: Image, nodes: int, uniforms: Tensor) -> DecodeState:
    tokens, length = torch.tensor([image[0] + [0] * (nodes + 1)]), torch.tensor([image[1]])
    layout, config = (
        raster(made.length, 0, 0, 0, made.length + nodes + 1, made.device),
        SimpleNamespace(n_layer=1, kv_heads=1, cache_width=1),
    )
    cache = DecoderCache(
        StandInNet(model), config, layout, 1, torch.arange(256.0)[:, None], torch.zeros(())
    )
    stored, one = torch.arange(image[1] - 1), (1,)
    cache.store[0, 0, 0, stored, 0], cache.store[0, 0, 1, stored, 0] = (
        stored + 1.0,
        tokens[0, stored].float(),
    )
    prefix: Any = None
    state = DecodeState(
        made, Warp(TARGETS_OWN), 1.0, [0], prefix, cache, uniforms, nodes, Clock(made.device)
    )
    root = tokens[:, image[1] - 1]
    tokens[0, image[1] :] = 0
    last = LastCommit(
        torch.zeros(1, 1, model.vocab),
        root[:, None],
        Lengths(torch.ones(1).long(), PerPrompt(one)),
    )
    state.now = Progress(Lengths(length, PerPrompt((image[1],))), root, tokens, last, length)
    state.first = torch.zeros(1, model.vocab)
    return state


def uniform_of(model: StandIn, image: list[int]) -> Tensor:
    """A uniform with which inverse CDF draws the last token."""
    p = model.logits(model.run.prompt + image[:-1]).double().softmax(-1)
    return p.cumsum(-1)[image[-1]] - p[image[-1]] / 2


def window_run(
    vectors: Vectors, name: str, run: dict[str, Any], redraw: Callable[[dict[str, Tensor], int], Tensor],
    proposer: Callable[[Any, int, int], SlidingWindow], rule: RatioTest, residual: Residual = standard,
) -> list[Found]:  # fmt: skip
    """SCD and GSD.  ``redraw``: (a step's uniforms, L) -> those of the proposal's update;
    ``proposer``: (target, drafts in a window, tokens before the first window step)."""
    given, want = vectors.under(f"in.run.{name}."), vectors.under(f"out.run.{name}.")
    model, size = StandIn(vectors, Window.of(run)), run["window"]
    sizes = (want["window"] >= 0).sum(1).tolist()
    first = next(t for t, n in enumerate(sizes) if n > 1)
    last = next((t for t in range(first, len(sizes)) if sizes[t] != size), len(sizes))
    prompt, counts = len(run["prompt"]), want["accepted"].tolist()
    image = want["tokens"][prompt:].tolist()
    made = target(model, len(image))
    begun = sum(counts[:first])
    window = proposer(made, size - 1, begun)
    settings, steps = Window.of(run), []
    for t in range(first, last):
        u = {key: row[t, :size] for key, row in given.items() if key != "gumbel_u"}
        final = u["residual_u"][counts[t] - 1] if counts[t] < size else u["sample_u"][-1]
        # the public bonus token is a Gumbel redraw, ours an inverse CDF
        if counts[t] == size and "gumbel_u" in given:
            final = uniform_of(model, image[: sum(counts[: t + 1])])
        fresh = (settings.fresh(u["fresh_u"][1:]) + 0.5) / model.vocab
        steps.append(torch.cat([final[None], u["accept_u"][1:], fresh, redraw(u, size)]))
    uniforms = torch.stack([*steps, steps[-1]])[None].float()
    method: Any = None
    decoder = SpeculativeDecoder(
        made, method, Warp(TARGETS_OWN), 1.0, Speculation(window, rule, residual)
    )
    state = start(model, made, (image, begun), window.size.nodes, uniforms)
    own, accepted, drafts, laws = window.begin(state), [], [], []
    for t in range(first, last):
        own, result = engine.step(decoder, state, own)
        accepted.append(int(result.verified.accepted[0]) + 1)
        kept, n = int(own.draft_count[0]), counts[t]
        drafts.append(same("", own.drafts[0, :kept], want["after"][t, n:size]))
        if t < len(want.get("scores", ())):
            laws.append(close("", own.p[0, :kept], want["scores"][t, n:size], 1e-5))
    length = int(state.now.length.device[0])
    found = [
        same(f"{name}: engine, tokens", state.now.tokens[0, :length], image[: sum(counts[:last])]),
        same(
            f"{name}: engine, committed in each of {last - first} of {len(sizes)} steps",
            accepted,
            counts[first:last],
        ),
        worst(f"{name}: engine, next drafts", drafts),
    ]
    if laws:
        found.append(worst(f"{name}: engine, recorded laws", laws))
    return found
