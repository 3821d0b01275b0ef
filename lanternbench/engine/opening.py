"""The beginning of a decode: caches and uniforms are allocated, the prompt is read, the first
token is drawn.

Also the target's distributions over finished images, by one plain forward pass: no cache, no step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lanternbench.engine.cache import DecoderCache, Layout, Lengths, raster
from lanternbench.engine.carry import PerPrompt
from lanternbench.engine.noise import perturbed
from lanternbench.engine.sampling import BELOW_ONE, Warp
from lanternbench.engine.state import DecodeState, LastCommit, Progress
from lanternbench.engine.timing import Clock
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.target import Prefix, Target
from lanternbench.utils.graph_capture import Graphs

if TYPE_CHECKING:
    from lanternbench.engine.decode import AnyStrategy, SpeculativeDecoder

# a recorded decode's caches have a multiple of this many slots, so that prompts and methods share
# them
CAPACITY = 512
LOGITS = 1 << 25  # numbers of the largest temporary of a plain forward pass
Embed = Callable[[Tensor], Tensor]  # ids [...] -> [..., dim]


def start(
    decoder: SpeculativeDecoder,
    captions: list[str],
    seeds: list[int],
    trace: bool,
    noise: list[int] | None = None,
) -> DecodeState:
    """Return the state after prefill and first token; ``noise``: the keys of images' noise, by
    default their seeds.
    """
    target = decoder.target
    strategy = decoder.strategy
    size = strategy.size
    nodes = size.nodes
    prefix = target.prefix(captions, decoder.guidance)
    state = DecodeState(
        target=target,
        warp=decoder.warp,
        guidance=decoder.guidance,
        seeds=seeds,
        prefix=prefix,
        cache=open_cache(target, target.model, prefix, strategy.step_slots),
        uniforms=row_uniforms(seeds, target.length, nodes + size.uniforms, target.device),
        max_nodes=nodes,
        clock=Clock(target.device),
        aux_layers=strategy.aux_layers,
        noise=decoder.noise,
    )
    prefill(state, strategy, torch.tensor(noise or seeds, device=target.device))
    if trace:
        state.trace = strategy.trace(state)
    return state


def begin(
    decoder: SpeculativeDecoder,
    captions: list[str],
    seeds: list[int],
    trace: bool = False,
    noise: list[int] | None = None,
) -> tuple[DecodeState, Any]:
    """Return the state after prefill and first token, and the strategy's state; see ``start``."""
    state = start(decoder, captions, seeds, trace, noise)
    carried = decoder.strategy.begin(state)
    state.prefix_states = state.prefix_states.new_zeros(0)  # drafters have read them
    return state, carried


def row_seed(seed: int, key: str, method: str) -> int:
    """Return the seed of one image, a function of (seed, prompt, method) and of nothing else."""
    digest = hashlib.blake2b(f"{seed}\0{key}\0{method}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def row_uniforms(seeds: list[int], length: int, count: int, device: torch.device) -> Tensor:
    """Return uniforms [B, length + 1, count]: a row per step, and the last row for token 0."""
    draws: list[Tensor] = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        draws.append(torch.rand(length + 1, count, generator=generator))
    return torch.stack(draws).clamp_(max=BELOW_ONE).to(device)


def prefill(state: DecodeState, strategy: AnyStrategy, noise: Tensor) -> None:
    """Run the prompt and draw the first token; ``noise`` [B]: keys of the images' noise."""
    prefix = state.prefix
    at = strategy.prefix_address(state)
    states = state.cache.forward(prefix.embeddings, at, aux_layers=state.aux_layers)
    state.cache.hide_pads(prefix.valid)
    last_state = states[:, -1:]
    logits = strategy.first_logits(state, last_state)
    q = state.warp(logits)
    state.first = q[:, 0]
    first = first_token(state, q, noise)
    length = state.limit + state.max_nodes + 1
    tokens = first.new_zeros(state.batch, length)
    tokens[:, 0] = first
    host = PerPrompt((1,) * state.batch)
    advance = Lengths(torch.ones_like(first), host)
    last = LastCommit(last_state, first[:, None], advance)
    one = Lengths(torch.ones_like(first), host)
    state.now = Progress(one, first, tokens, last, noise)
    state.prefix_states = states


def first_token(state: DecodeState, q: Tensor, noise: Tensor) -> Tensor:
    """Draw token 0 of each image from q [B, 1, V]; ``noise`` [B]: keys of the images' noise."""
    law = q
    if state.warp.shares_noise:
        position = torch.zeros_like(noise)[:, None]
        law = perturbed(q, state.noise(noise, position, q))
    return state.warp.draw(law[:, 0], state.uniforms[:, -1, 0])


def open_cache(
    target: Target,
    net: Any,
    prefix: Prefix,
    step_slots: int,
    lm: Any = None,
    row_ends: bool = True,
) -> DecoderCache:
    """Return a cache of ``net``, the target's decoder or a drafter's.

    ``step_slots``: slots that a step fills at most.  ``lm``: the decoder whose rotary table it
    uses, one position ahead of its slots; None: its own.  ``row_ends``: whether they have slots.
    """
    like = prefix.embeddings
    rows, positions = prefix.valid.shape
    width = target.row_width
    drafts = 2 * step_slots if width else step_slots
    capacity = positions + target.image_slots + drafts + 2  # the last slot is never read
    if target.graphs is not None:
        capacity = -(-capacity // CAPACITY) * CAPACITY
    if lm is None:
        lag = 0
        rope = net.position_table(positions)
    else:
        lag = 1
        rope = lm.rotary_table(positions)
    columns = width if row_ends else 0
    layout = raster(target.length, columns, positions - lag, lag, capacity, like.device)
    if target.graphs is None:
        cache = DecoderCache(net, net.config.decoder, layout, rows, rope, like)
    else:
        cache = shared_cache(target.graphs, net, layout, rope, like)
    if target.row_end is not None and row_ends:
        ids = torch.tensor(target.row_end, device=like.device)
        cache.row_end = net.prompt_embeddings(ids) if lm is None else net.embed_prompt(ids, lm)
    return cache


def shared_cache(
    graphs: Graphs,
    net: Any,
    layout: Layout,
    rope: Tensor,
    like: Tensor,
) -> DecoderCache:
    """Return an empty cache in memory that all decodes of this size share.

    Recordings hold addresses of memory; the length of the prompts does not matter.
    """
    rows = len(like)
    key = (id(net), rows, layout.capacity, like.dtype)
    if key not in graphs.caches:
        unshared = replace(layout, slot_of=layout.slot_of.clone())
        new = DecoderCache(net, net.config.decoder, unshared, rows, rope, like)
        new.pads = torch.zeros(rows, 1, 1, layout.capacity, dtype=like.dtype, device=like.device)
        graphs.caches[key] = new
    cache: DecoderCache = copy(graphs.caches[key])
    slot_of = cache.layout.slot_of.copy_(layout.slot_of)
    cache.layout = replace(layout, slot_of=slot_of)
    cache.reset(rope)
    cache.compile(graphs)
    return cache


def shared_cache_bytes(target: Target) -> int:
    """Return the bytes of the caches that recorded decodes of a target share."""
    if target.graphs is None:
        return 0
    stores = [cache.store for cache in target.graphs.caches.values()]
    return sum(store.numel() * store.element_size() for store in stores)


def teacher_forced(
    target: Target,
    prefix: Prefix,
    tokens: Tensor,
    guidance: float,
    warp: Warp,
) -> Tensor:
    """Return q of every token given all that precede it in raster order, image by image.

    tokens [B, L] -> [B, L, V]
    """
    images: list[Tensor] = []
    for i in range(len(tokens)):
        parts = list(pieces(target, prefix, tokens, i, guidance, warp))
        images.append(torch.cat(parts, 1))
    return torch.cat(images)


def pieces(
    target: Target,
    prefix: Prefix,
    tokens: Tensor,
    i: int,
    guidance: float,
    warp: Warp | Callable[[Tensor], Tensor],
) -> Iterator[Tensor]:
    """Apply ``warp`` to the logits of image ``i``, piece by piece [1, n, V], in bounded memory."""
    rows = slice(i, None, len(tokens))  # conditional and unconditional
    embeddings = prefix.embeddings[rows]
    valid = prefix.valid[rows]
    image = tokens[i].expand(len(valid), -1)
    hidden = predicting_states(target, embeddings, valid, image)
    logits_per_position = len(valid) * target.vocab
    positions = max(1, LOGITS // logits_per_position)
    for part in torch.split(hidden, positions, 1):
        yield warp(target.model.logits(part, guidance))


def predicting_states(target: Target, prefix: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
    """Return the states that predict tokens [R, L].

    An end follows each row but the last if the model writes row ends.
    """
    model = target.model
    if target.row_end is None:
        return model.teacher_forced(prefix, valid, tokens)
    image = slot_embeddings(target, tokens, model.tok_embeddings, model.prompt_embeddings)
    x = torch.cat([prefix, image], 1)
    n = x.shape[1]
    prompt = valid.shape[1]
    positions = model.position_table(prompt)[None, :n, None]
    states: Tensor = model(x, positions, prefix_mask(valid, n))
    token = torch.arange(tokens.shape[1], device=x.device)
    row_ends_before = token // target.row_width
    return states[:, prompt - 1 + token + row_ends_before]


def slot_embeddings(target: Target, tokens: Tensor, embed: Embed, embed_end: Embed) -> Tensor:
    """Tokens [R, L] -> embeddings [R, S − 1, dim] of the image's slots, row ends too, but the last,
    which nothing reads.
    """
    if target.row_end is None:
        return embed(tokens)[:, :-1]
    row_end = torch.tensor(target.row_end, device=tokens.device)
    rows = embed(tokens.view(len(tokens), -1, target.row_width))
    ends = embed_end(row_end).expand_as(rows[:, :, :1])
    return torch.cat([rows, ends], 2).flatten(1, 2)[:, :-2]
