"""The beginning of a decode: caches and uniforms are allocated, the prompt is read, the first
token is drawn.

And the target's distributions over finished images, by one plain forward pass: no cache, no step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lanternbench.engine.address import Lengths, prefix_address, raster
from lanternbench.engine.cache import DecoderCache
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.sampling import BELOW_ONE, Warp, draw
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.engine.timing import Clock
from lanternbench.engine.trace import Trace
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.target import Prefix, Target

if TYPE_CHECKING:
    from lanternbench.engine.decode import SpeculativeDecoder

# a recorded decode's caches have a multiple of this many slots, so that prompts and methods share
# them
CAPACITY = 512
LOGITS = 1 << 25  # numbers of the largest temporary of a plain forward


def start(
    decoder: SpeculativeDecoder, captions: list[str], seeds: list[int], trace: bool
) -> DecodeState:
    """The state after prefill and first token."""
    target, proposer = decoder.target, decoder.proposer
    prefix, nodes, aux = (
        target.prefix(captions, decoder.guidance),
        proposer.nodes,
        proposer.aux_layers,
    )
    slots = max(nodes, proposer.max_step_slots)
    cache = open_cache(target, target.model, prefix, slots, aux_layers=aux)
    u, clock = (
        row_uniforms(seeds, target.length, nodes + proposer.uniforms, target.device),
        Clock(target.device),
    )
    state = DecodeState(
        target,
        decoder.warp,
        decoder.guidance,
        seeds,
        prefix,
        cache,
        u,
        nodes,
        slots,
        clock,
        aux_layers=aux,
    )
    if trace:
        length, width = target.length + nodes + 1, max(proposer.width, 1)
        state.trace = Trace(state.batch, length, target.vocab, width, target.device)
    prefill(state)
    return state


def begin(
    decoder: SpeculativeDecoder, captions: list[str], seeds: list[int], trace: bool = False
) -> tuple[DecodeState, Any]:
    """The state after prefill and first token, and the proposer's state."""
    state = start(decoder, captions, seeds, trace)
    drafting = decoder.proposer.begin(state)
    state.prefix_states = None  # drafters have read them
    return state, drafting


def row_seed(seed: int, key: str, method: str) -> int:
    """The seed of one image: a function of (seed, prompt, method) and of nothing else."""
    digest = hashlib.blake2b(f"{seed}\0{key}\0{method}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def row_uniforms(seeds: list[int], length: int, count: int, device: torch.device) -> Tensor:
    """Uniforms [B, length + 1, count]: a row per step, and the last row for token 0."""
    draws = [
        torch.rand(length + 1, count, generator=torch.Generator().manual_seed(s)) for s in seeds
    ]
    return torch.stack(draws).clamp_(max=BELOW_ONE).to(device)


def prefill(state: DecodeState) -> None:
    """Run the prompt and draw the first token."""
    prefix = state.prefix
    at = prefix_address(prefix.valid, 0, state.target.pad_rows)
    hidden = state.cache.prefill(prefix.embeddings, at, prefix.valid)
    q = state.warp(state.logits(hidden[:, -1:]))  # [B, 1, V]
    first = q[:, 0].argmax(-1) if state.warp.greedy else draw(q[:, 0], state.uniforms[:, -1, 0])
    tokens = torch.zeros(
        state.batch, state.limit + state.max_nodes + 1, dtype=torch.long, device=state.device
    )
    tokens[:, 0] = first
    one = Lengths.of(torch.ones_like(first), PerPrompt((1,) * state.batch))
    last = LastCommit(hidden[:, -1:], first[:, None], one._replace(device=one.device.clone()))
    state.now = Progress(one, first, tokens, last)
    state.first, state.prefix_states = q[:, 0], hidden
    if state.trace is not None:
        state.trace.q[:, 0] = state.first


def open_cache(
    target: Target,
    net: Any,
    prefix: Prefix,
    step_slots: int,
    lm: Any = None,
    row_ends: bool = True,
    aux_layers: tuple[int, ...] = (),
) -> DecoderCache:
    """A cache of ``net``, the target's decoder or a drafter's; ``step_slots``: slots that a step
    fills at most.

    ``lm``: the decoder whose rotary table it uses, one position ahead of its slots; None: its own.
    ``row_ends``: have
    they slots?  ``aux_layers``: see ``transformer.Stack``.
    """
    rows, positions = prefix.valid.shape
    width, graphs = target.row_width, target.graphs
    drafts = step_slots * (2 if width else 1)  # row ends included
    capacity = positions + target.image_slots + drafts + 2  # the last slot is never read
    if graphs is not None:
        capacity = -(-capacity // CAPACITY) * CAPACITY
    like, key = prefix.embeddings, (id(net), rows, capacity, prefix.embeddings.dtype)
    config, lag = net.config.decoder, int(lm is not None)
    rope = net.position_table(positions) if lm is None else lm.rotary_table(positions)
    layout = raster(
        target.length, width if row_ends else 0, positions - lag, lag, capacity, like.device
    )
    run = (lambda *inputs: net(*inputs, aux_layers)) if aux_layers else net
    if graphs is None:
        cache = DecoderCache(run, config, layout, rows, rope, like)
    # recordings have addresses of memory: caches of one size share it, whatever the length of
    # their prompts
    else:
        if key not in graphs.caches:
            unshared = replace(layout, slot_of=layout.slot_of.clone())
            shared = graphs.caches[key] = DecoderCache(run, config, unshared, rows, rope, like)
            shared.pads = torch.zeros(rows, 1, 1, capacity, dtype=like.dtype, device=like.device)
        cache = copy(graphs.caches[key])
        cache.net, cache.layout = (
            run,
            replace(layout, slot_of=cache.layout.slot_of.copy_(layout.slot_of)),
        )
        cache.reset(rope)
    if target.row_end is not None and row_ends:
        ids = torch.tensor(target.row_end, device=like.device)
        cache.row_end = net.prompt_embeddings(ids) if lm is None else net.embed_prompt(ids, lm)
    return cache


def teacher_forced(
    target: Target, prefix: Prefix, tokens: Tensor, guidance: float, warp: Warp
) -> Tensor:
    """q of every token given all that precede it in raster order: tokens [B, L] -> [B, L, V],
    image by image.
    """
    images = range(len(tokens))
    return torch.cat(
        [torch.cat(list(pieces(target, prefix, tokens, i, guidance, warp)), 1) for i in images]
    )


def pieces(
    target: Target,
    prefix: Prefix,
    tokens: Tensor,
    i: int,
    guidance: float,
    warp: Warp | Callable[[Tensor], Tensor],
) -> Iterator[Tensor]:
    """What ``warp`` makes of the logits of image ``i``, [1, n, V] after [1, n, V], in bounded
    memory.
    """
    rows = slice(i, None, len(tokens))  # conditional and unconditional
    embeddings, valid = prefix.embeddings[rows], prefix.valid[rows]
    hidden = _hidden(target, embeddings, valid, tokens[i].expand(len(valid), -1))
    for some in hidden.split(max(1, LOGITS // (len(valid) * target.vocab)), 1):
        yield warp(target.model.logits(some, guidance))


def _hidden(target: Target, prefix: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
    """The states that predict tokens [R, L], with an end after each row but the last where the
    model writes one.
    """
    model, length, width = target.model, tokens.shape[1], target.grid[1]
    if target.row_end is None:
        return model.teacher_forced(prefix, valid, tokens)
    rows = model.tok_embeddings(tokens).unflatten(1, (-1, width))
    end = model.prompt_embeddings(torch.tensor(target.row_end, device=tokens.device))
    # nothing reads the last two
    image = torch.cat([rows, end.expand_as(rows[:, :, :1])], 2).flatten(1, 2)[:, :-2]
    x = torch.cat([prefix, image], 1)
    n, t = x.shape[1], torch.arange(length, device=x.device)
    states = model(x, model.position_table(valid.shape[1])[None, :n, None], prefix_mask(valid, n))
    return states[:, valid.shape[1] - 1 + t + t // width]
