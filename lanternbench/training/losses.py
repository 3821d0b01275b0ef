"""Training of drafters: their inputs, which are those of decoding, and their losses, by which they
learn the target's q.

Sources: Li et al. 2024 (EAGLE) for the inputs; the levels are those of EAGLE-3 (Li et al. 2025),
trained together. DFlash (arXiv 2602.06036, section on training): blocks after random
anchors, packed behind the context of a whole image.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.opening import slot_embeddings
from lanternbench.engine.row_ends import token_in
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.dflash import DFlash
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.target import Prefix, Target

DEEPER = 96  # positions of an image at which it trains on the levels past the first
VARIATION = 5.0  # weight of the total variation, that of the cross entropy being 1
FALL = 0.7  # weight of a level relative to the one before


class Recipe(NamedTuple):
    """The training of an EAGLE drafter."""

    levels: int  # of drafting, each on what the one before drafted
    regression: float  # weight of the distance between what it drafts and the target's states


RECIPES = {"eagle": Recipe(3, 0.1), "eagle-3": Recipe(5, 0.0)}  # by kind of drafter

Losses = dict[str, Tensor]
Logits = Callable[[Tensor], Tensor]  # features [R, …, dim] -> guided logits [B, …, V]


class Feed(NamedTuple):
    """The inputs of an EAGLE drafter: entry t is the token at position t + 1 and the state of
    position t.

    Positions 0 … P − 1 are the prefix, then come the image's slots 0 … S − 1, of which nobody
    reads the last; so there are n = P + S − 2 entries, and the last S − 1 of them predict slots 1
    … S − 1.
    """

    ahead: Tensor  # [R, n, dim] embeddings of positions 1 … n
    hidden: Tensor  # [R, n + 1, (1 + aux) · dim] the target's states at positions 0 … n
    rope: Tensor  # [n, 1, d/2] of positions 1 … n
    seen: Tensor | None  # [R, P − 1] bool: which prefix entries may be attended to; None: all
    row_width: int  # see ``Target``
    prefix: int  # P

    @property
    def slots(self) -> Tensor:
        """1 … S − 1."""
        return torch.arange(1, self.ahead.shape[1] - self.prefix + 2, device=self.ahead.device)

    def of_tokens(self, x: Tensor) -> Tensor:
        """x [R, S − 1, …] for slots 1 … S − 1 -> [R, L − 1, …] for tokens 1 … L − 1."""
        is_row_end = token_in(self.slots, self.row_width)[1]
        return x[:, ~is_row_end]


@torch.no_grad()
def target_states(
    target: Target,
    prefix: Prefix,
    tokens: Tensor,
    aux_layers: tuple[int, ...] = (),
) -> Tensor:
    """Return the target's states over a prefix and tokens [B, L]: [R, P + S − 1, (1 + aux) · dim],
    conditional rows first.
    """
    model = target.model
    rows = tokens.repeat(len(prefix.valid) // len(tokens), 1)
    image = slot_embeddings(target, rows, model.tok_embeddings, model.prompt_embeddings)
    x = torch.cat([prefix.embeddings, image], 1)
    n = x.shape[1]
    rope = model.position_table(prefix.valid.shape[1])[None, :n, None]
    mask = prefix_mask(prefix.valid, n, target.pad_rows)
    return model(x, rope, mask, None, False, aux_layers)


def feed(
    target: Target,
    net: Eagle,
    ahead_ids: Tensor,
    seen: Tensor | None,
    tokens: Tensor,
    hidden: Tensor,
) -> Feed:
    """Return what the drafter reads; ``ahead_ids`` and ``seen`` are the prefix's, ``hidden`` the
    target's states over it and tokens [B, L].
    """
    embed = partial(net.embed, model=target.model)
    embed_prompt = partial(net.embed_prompt, model=target.model)
    rows = tokens.repeat(len(hidden) // len(tokens), 1)
    image = slot_embeddings(target, rows, embed, embed_prompt)
    ahead = torch.cat([embed_prompt(ahead_ids), image], 1)
    prefix = hidden.shape[1] - image.shape[1]
    n = ahead.shape[1]
    rope = target.model.rotary_table(ahead_ids.shape[1] + 1)[1 : n + 1, None]
    if seen is not None and seen.all():
        seen = None
    return Feed(ahead.float(), hidden.float(), rope, seen, target.row_width, prefix)


def read(target: Target, net: Eagle, prefix: Prefix, tokens: Tensor) -> tuple[Feed, Tensor]:
    """Return what the drafter reads of images, and the target's last states that predict tokens 1
    … L − 1 [R, L − 1, dim].
    """
    states = target_states(target, prefix, tokens, net.aux_layers(target.model))
    fed = feed(target, net, prefix.ahead_ids, prefix.seen, tokens, states)
    return fed, fed.of_tokens(states[:, fed.prefix :, : target.model.config.dim])


def first(net: Eagle, fed: Feed, logits: Logits) -> Tensor:
    """Return the logits [B, L − 1, V] of what decoding drafts first for tokens 1 … L − 1."""
    nowhere = torch.empty(0, dtype=torch.long)
    return logits(drafts(net, fed, nowhere, depths=1).first)


class Branches(NamedTuple):
    """Attention of an EAGLE drafter in training."""

    level_1: Tensor  # bool, over level 1's keys: at all n positions
    before: Tensor  # bool, over level 1's keys: in each branch, those before it
    itself: Tensor  # bool, over the keys of one deeper level


def branches(fed: Feed, at: Tensor) -> Branches:
    """Return what may be attended to in branches ``at`` [m]."""
    device = fed.ahead.device
    n = fed.ahead.shape[1]
    before = torch.arange(n, device=device) < at[:, None]
    itself = torch.eye(len(at), dtype=torch.bool, device=device)
    if fed.seen is None:
        causal = torch.ones(n, n, dtype=torch.bool, device=device).tril()
        return Branches(causal, before, itself)
    image = n - fed.seen.shape[1]
    seen = F.pad(fed.seen, (0, image), value=True)[:, None, None]
    itself = itself.expand(len(seen), 1, -1, -1)
    return Branches(prefix_mask(fed.seen, n), before & seen, itself)


def levels(net: Eagle, fed: Feed, at: Tensor, depths: int) -> list[Tensor]:
    """Return what EAGLE drafts: level 1 at all n positions from the target's states, deeper ones
    in the branches ``at`` [m].

    -> [R, n, dim], then [R, m, dim] at ``at``, at + 1 …  Level d reads level d − 1's feature; it
    attends, as in decoding, to level 1's keys before the branch and to its branch's keys since.
    """
    # keys and values of a layer, call by call: differentiable
    cached: dict[int, list[Tensor]] = defaultdict(list)

    def put(layer: int, kv: Tensor) -> Tensor:
        cached[layer].append(kv)
        return torch.cat(cached[layer], 2)

    visible = branches(fed, at)
    states = net.read(fed.hidden[:, :-1])
    x = net.fuse(fed.ahead, states)
    level_1 = net(x, fed.rope[None], visible.level_1, put)
    drafted = [level_1]
    feature = level_1[:, at - 1]
    for level in range(1, depths):
        places = at + level - 1
        x = net.fuse(fed.ahead[:, places], feature)
        own_levels = [visible.itself] * level
        mask = torch.cat([visible.before, *own_levels], -1)
        feature = net(x, fed.rope[None, places], mask, put)
        drafted.append(feature)
    return drafted


class Drafts(NamedTuple):
    first: Tensor  # [R, L − 1, dim] what decoding drafts first for tokens 1 … L − 1
    level_1: Tensor  # [R, S − 1, dim] level 1 for slots 1 … S − 1
    at: Tensor  # [m] positions at which branches begin, behind row ends too
    deeper: list[Tensor]  # [R, m, dim] levels 2 … in the branches


def drafts(net: Eagle, fed: Feed, at: Tensor, depths: int) -> Drafts:
    """Return level 1, and ``depths`` levels in the branches ``at`` [m].

    Decoding reads the row end behind the last token with the drafter's own feature, before it
    knows the target's state: what it drafts first in a row comes from level 2.
    """
    is_row_end = token_in(fed.slots - 1, fed.row_width)[1]
    ends = is_row_end.nonzero()[:, 0]  # slots
    at = torch.cat([ends + fed.prefix - 1, at.to(ends.device)])
    if len(ends):
        depths = max(depths, 2)
    level_1, *deeper = levels(net, fed, at, depths)
    level_1 = level_1[:, fed.prefix - 1 :]
    first = level_1
    if len(ends):
        first = level_1.index_copy(1, ends, deeper[0][:, : len(ends)])
    return Drafts(fed.of_tokens(first), level_1, at, deeper)


def distances(drafted: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy and the acceptance rate 1 − TV of logits and probabilities [..., V]:
    [...] each.
    """
    log_p = drafted.log_softmax(-1)
    cross_entropy = -(wanted * log_p).sum(-1)
    accepted = torch.minimum(log_p.exp(), wanted).sum(-1)
    return cross_entropy, accepted


def divergence(drafted: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means: cross entropy plus VARIATION · TV, and the acceptance rate."""
    cross_entropy, accepted = distances(drafted, wanted)
    accepted = accepted.mean()
    return cross_entropy.mean() + VARIATION * (1 - accepted), accepted.detach()


def losses(
    net: Eagle,
    fed: Feed,
    rng: np.random.Generator,
    logits: Logits,
    wanted: Tensor,
) -> Losses:
    """Return the cross entropy and total variation summed over levels; by EAGLE-1's recipe level 1
    also learns the target's states.

    ``wanted`` [B, L − 1, V]: q of tokens 1 … L − 1.
    """
    recipe = RECIPES[net.kind]
    prefix = fed.prefix
    places = fed.ahead.shape[1] - prefix - recipe.levels + 2
    picked = rng.choice(places, min(DEEPER, places), replace=False)
    at = torch.from_numpy(picked + prefix)
    drafted = drafts(net, fed, at, recipe.levels)
    loss, accepted = divergence(logits(drafted.first), wanted)
    if recipe.regression:
        loss = loss + recipe.regression * F.smooth_l1_loss(drafted.level_1, fed.hidden[:, prefix:])
    found = {"accept-1": accepted}
    for level, feature in enumerate(drafted.deeper, start=1):
        slot = drafted.at + level + 1 - prefix
        token, is_row_end = token_in(slot, fed.row_width)
        token = token[~is_row_end]
        feature = feature[:, ~is_row_end]
        level_loss, accepted = divergence(logits(feature), wanted[:, token - 1])
        loss = loss + FALL**level * level_loss
        found[f"accept-{level + 1}"] = accepted
    return {"loss": loss, **found}


class BlockFeed(NamedTuple):
    """The inputs of a DFlash drafter for images of L tokens: one entry per prefix position but the
    last, then per token.
    """

    # [R, P − 1 + L, (1 + depths) · dim] the target's states; a token's are those that predict it
    context: Tensor
    anchors: Tensor  # [R, L, dim] the target's embeddings of the tokens
    rope: Tensor  # [P − 1 + L + L + B, 1, d/2] of the context, and of tokens 0 … L + B − 1
    seen: Tensor | None  # [R, P − 1] bool: which prefix entries may be attended to; None: all


def block_read(
    target: Target,
    net: DFlash,
    prefix: Prefix,
    tokens: Tensor,
) -> tuple[BlockFeed, Tensor]:
    """Return what the drafter reads of images, and the target's last states that predict tokens 1
    … L − 1 [R, L − 1, dim].
    """
    model = target.model
    states = target_states(target, prefix, tokens, net.depths)
    length = tokens.shape[1]
    prompt = torch.arange(prefix.valid.shape[1], device=tokens.device)
    token = torch.arange(length + net.block, device=tokens.device)
    slots = len(prompt) + token
    if target.row_width:
        row_ends_before = token // target.row_width
        slots = slots + row_ends_before
    places = torch.cat([prompt[:-1], slots[:length] - 1])
    positions = torch.cat([places, slots]).clamp(max=len(model.rope) - 1)
    rows_per_image = len(states) // len(tokens)
    anchors = model.tok_embeddings(tokens).repeat(rows_per_image, 1, 1)
    fed = BlockFeed(
        context=states[:, places].float(),
        anchors=anchors.float(),
        rope=model.rope[positions, None],
        seen=None if prefix.seen.all() else prefix.seen,
    )
    predicting = fed.context[:, 1 - length :, : model.config.dim]
    return fed, predicting.to(target.dtype)


def block_first(net: DFlash, fed: BlockFeed, logits: Logits) -> Tensor:
    """Return the logits [B, L − 1, V] of what decoding drafts first for tokens 1 … L − 1."""
    anchors = torch.arange(fed.anchors.shape[1] - 1, device=fed.anchors.device)
    states = [block_drafts(net, fed, at)[:, :, 0] for at in anchors.split(DEEPER)]
    return logits(torch.cat(states, 1))


def block_drafts(net: DFlash, fed: BlockFeed, at: Tensor) -> Tensor:
    """Return states [R, m, B − 1, dim] that draft after anchors ``at`` [m]; a block sees the
    context before it and itself.
    """
    context = fed.context.shape[1]
    count = len(at)
    block = net.block
    blocks = net.blocks(fed.anchors[:, at]).flatten(1, 2)
    x = torch.cat([net.read(fed.context), blocks], 1)
    slots = torch.arange(block, device=at.device)
    tokens = context + at[:, None] + slots
    rope = torch.cat([fed.rope[:context], fed.rope[tokens.flatten()]])
    mask = block_mask(net, fed, at)
    drafted = net(x, rope[None], mask, None, False, count * block)
    drafted = drafted.unflatten(1, (count, block))
    return drafted[:, :, 1:]


def block_mask(net: DFlash, fed: BlockFeed, at: Tensor) -> Tensor:
    """Return what blocks after anchors ``at`` [m] may attend to, bool [1 or R, 1, m · B, n + m ·
    B], in n entries of context and in the blocks.
    """
    context = fed.context.shape[1]
    before_image = context - fed.anchors.shape[1]
    entries = torch.arange(context, device=at.device) - before_image
    before = entries <= at[:, None]
    before = before.repeat_interleave(net.block, 0)
    block = torch.ones(net.block, net.block, device=at.device)
    if net.causal:
        block = block.tril()
    itself = torch.block_diag(*[block] * len(at)).bool()
    mask = torch.cat([before, itself], -1)[None, None]
    if fed.seen is None:
        return mask
    others = mask.shape[-1] - fed.seen.shape[1]
    seen = F.pad(fed.seen, (0, others), value=True)
    return mask & seen[:, None, None]


def block_losses(
    net: DFlash,
    fed: BlockFeed,
    rng: np.random.Generator,
    logits: Logits,
    wanted: Tensor,
) -> Losses:
    """Return the cross entropy to ``wanted``, q of tokens 1 … L − 1 [B, L − 1, V], and the total
    variation, over all slots k.
    """
    count = wanted.shape[1]
    picked = rng.choice(count, min(DEEPER, count), replace=False)
    at = torch.from_numpy(picked).to(wanted.device)
    slot = torch.arange(net.block - 1, device=wanted.device)  # k − 1
    index = at[:, None] + slot  # in ``wanted``
    is_inside = index < count
    # exp(−(k − 1)/γ), γ = B/2
    weight = torch.where(is_inside, torch.exp(-2 * slot / net.block), 0.0)
    drafted = logits(block_drafts(net, fed, at))
    cross_entropy, accepted = distances(drafted, wanted[:, index.clamp(max=count - 1)])
    accepted = accepted.mean(0)  # [m, B − 1]
    slot_loss = cross_entropy.mean(0) + VARIATION * (1 - accepted)
    found = {"loss": (weight * slot_loss).sum() / weight.sum()}
    rates = (is_inside * accepted.detach()).sum(0) / is_inside.sum(0)
    return found | {f"accept-{k}": rate for k, rate in enumerate(rates, 1)}


class Training(NamedTuple):
    """The training of one kind of drafter."""

    # what they read of images, and the target's last states
    read: Callable[..., tuple[NamedTuple, Tensor]]
    first: Callable[..., Tensor]  # logits of what they draft first
    losses: Callable[..., Losses]


EAGLE = Training(read, first, losses)
DFLASH = Training(block_read, block_first, block_losses)
