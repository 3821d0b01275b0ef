"""What drafters read of images in training, as in decoding, and their losses: they learn the
target's q.

Sources: Li et al. 2024 (EAGLE) for what it reads; its levels are those of EAGLE-3 (Li et al.
2025), trained together. DFlash (arXiv 2602.06036, section on training): blocks after random
anchors, packed behind the context of a whole image.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternbench.engine.address import raster
from lanternbench.engine.row_ends import token_in
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.dflash import DFlash
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.target import Prefix, Target

DEEPER = 96  # positions of an image at which it trains on the levels past the first
VARIATION = 5.0  # weight of the total variation beside the cross entropy
FALL = 0.7  # weight of a level, in that of the one before


class Recipe(NamedTuple):
    """How an EAGLE drafter is trained."""

    levels: int  # of drafting, each on what the one before drafted
    regression: float  # weight of the distance between what it drafts and the target's states


RECIPES = {"eagle-1": Recipe(3, 0.1), "eagle-3": Recipe(5, 0.0)}

Losses = dict[str, Tensor]
Logits = Callable[[Tensor], Tensor]  # features [R, …, dim] -> guided logits [B, …, V]


class Feed(NamedTuple):
    """What an EAGLE drafter reads of images: entry t is what stands at position t + 1 and the
    state of position t.

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
        return x[:, ~token_in(self.slots, self.row_width)[1]] if self.row_width else x


def slot_embeddings(target: Target, tokens: Tensor, rows: int, net: Eagle | None = None) -> Tensor:
    """Tokens [B, L] -> embeddings [``rows``, S − 1, dim] of slots 0 … S − 2, row ends too, by
    ``net`` or the target.
    """
    model = target.model
    embeddings = model.tok_embeddings(tokens) if net is None else net.embed(tokens, model)
    if width := target.row_width:
        embeddings = embeddings.unflatten(1, (-1, width))
        row_end = torch.tensor(target.row_end, device=tokens.device)
        end = model.prompt_embeddings(row_end) if net is None else net.embed_prompt(row_end, model)
        end = end.expand(*embeddings.shape[:2], 1, -1)
        embeddings = torch.cat([embeddings, end], 2).flatten(1, 2)[:, :-1]
    return embeddings[:, :-1].repeat(rows // len(tokens), 1, 1)


@torch.no_grad()
def target_states(
    target: Target, prefix: Prefix, tokens: Tensor, aux_layers: tuple[int, ...] = ()
) -> Tensor:
    """The target's states over a prefix and tokens [B, L]: [R, P + S − 1, (1 + aux) · dim],
    conditional rows first.
    """
    net, x = (
        target.model,
        torch.cat([prefix.embeddings, slot_embeddings(target, tokens, len(prefix.valid))], 1),
    )
    n, rope = x.shape[1], net.position_table(prefix.valid.shape[1])
    mask = prefix_mask(prefix.valid, n, target.pad_rows)
    return net(x, rope[None, :n, None], mask, None, False, aux_layers)


def feed(
    target: Target,
    net: Eagle,
    ahead_ids: Tensor,
    seen: Tensor | None,
    tokens: Tensor,
    hidden: Tensor,
) -> Feed:
    """``ahead_ids``, ``seen``: the prefix's; tokens [B, L] and the target's states over both."""
    embeddings = slot_embeddings(target, tokens, len(hidden), net)
    ahead = torch.cat([net.embed_prompt(ahead_ids, target.model), embeddings], 1)
    n, seen = ahead.shape[1], None if seen is None or seen.all() else seen
    rope = target.model.rotary_table(ahead_ids.shape[1] + 1)[1 : n + 1, None]
    return Feed(
        ahead.float(),
        hidden.float(),
        rope,
        seen,
        target.row_width,
        hidden.shape[1] - embeddings.shape[1],
    )


def read(target: Target, net: Eagle, prefix: Prefix, tokens: Tensor) -> tuple[Feed, Tensor]:
    """What the drafter reads of images, and the target's last states that predict tokens 1 … L − 1
    [R, L − 1, dim].
    """
    states = target_states(target, prefix, tokens, net.aux_layers(target.model))
    fed = feed(target, net, prefix.ahead_ids, prefix.seen, tokens, states)
    return fed, fed.of_tokens(states[:, fed.prefix :, : target.model.config.dim])


def first(net: Eagle, fed: Feed) -> Tensor:
    """The features [R, L − 1, dim] of what decoding drafts first for tokens 1 … L − 1."""
    return drafts(net, fed, torch.empty(0, dtype=torch.long), depths=1).first


def levels(net: Eagle, fed: Feed, at: Tensor, depths: int) -> list[Tensor]:
    """What EAGLE drafts: level 1 at all n positions from the target's states, deeper ones in the
    branches ``at`` [m].

    -> [R, n, dim], then [R, m, dim] at ``at``, at + 1 …  Level d reads level d − 1's feature; it
      attends, as in
    decoding, to level 1's keys before the branch and to its branch's keys since.
    """
    embedding, rope, seen, n, device = (
        fed.ahead,
        fed.rope,
        fed.seen,
        fed.ahead.shape[1],
        fed.ahead.device,
    )
    # keys and values of a layer, call by call: differentiable
    cached: dict[int, list[Tensor]] = defaultdict(list)

    def put(layer: int, kv: Tensor) -> Tensor:
        cached[layer].append(kv)
        return torch.cat(cached[layer], 2)

    visible = (
        torch.ones(n, n, dtype=torch.bool, device=device).tril()
        if seen is None
        else prefix_mask(seen, n)
    )
    drafted = [net(net.fuse(embedding, net.read(fed.hidden[:, :-1])), rope[None], visible, put)]
    earlier, branch = (
        torch.arange(n, device=device) < at[:, None],
        torch.eye(len(at), dtype=torch.bool, device=device),
    )
    if seen is not None:
        earlier = earlier & F.pad(seen, (0, n - seen.shape[1]), value=True)[:, None, None]
        branch = branch.expand(len(seen), 1, -1, -1)
    feature = drafted[0][:, at - 1]
    for level in range(1, depths):
        places = at + level - 1
        visible = torch.cat([earlier, *[branch] * level], -1)
        feature = net(net.fuse(embedding[:, places], feature), rope[None, places], visible, put)
        drafted.append(feature)
    return drafted


class Drafts(NamedTuple):
    first: Tensor  # [R, L − 1, dim] what decoding drafts first for tokens 1 … L − 1
    level_1: Tensor  # [R, S − 1, dim] level 1 for slots 1 … S − 1
    at: Tensor  # [m] where branches begin, behind row ends too
    deeper: list[Tensor]  # [R, m, dim] levels 2 … in the branches


def drafts(net: Eagle, fed: Feed, at: Tensor, depths: int) -> Drafts:
    """Level 1, and ``depths`` levels in the branches ``at`` [m].

    Decoding reads the row end behind the last token with the drafter's own feature, before it
    knows the target's state: what it drafts first in a row comes from level 2.
    """
    ends = token_in(fed.slots - 1, fed.row_width)[1].nonzero()[:, 0]  # slots
    at = torch.cat([ends + fed.prefix - 1, at.to(ends.device)])
    level_1, *deeper = levels(net, fed, at, max(depths, 2) if len(ends) else depths)
    level_1 = level_1[:, fed.prefix - 1 :]
    first = level_1.index_copy(1, ends, deeper[0][:, : len(ends)]) if len(ends) else level_1
    return Drafts(fed.of_tokens(first), level_1, at, deeper)


def distances(drafted: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy and the acceptance rate 1 − TV of logits and probabilities [..., V]: [...]
    each.
    """
    log_p = drafted.log_softmax(-1)
    return -(wanted * log_p).sum(-1), torch.minimum(log_p.exp(), wanted).sum(-1)


def divergence(drafted: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The means: cross entropy plus VARIATION · TV, and the acceptance rate."""
    cross, accepted = (x.mean() for x in distances(drafted, wanted))
    return cross + VARIATION * (1 - accepted), accepted.detach()


def losses(
    net: Eagle,
    fed: Feed,
    rng: np.random.Generator,
    logits: Logits,
    wanted: Tensor,
    recipe: Recipe = RECIPES["eagle-1"],
) -> Losses:
    """Cross entropy and total variation at every level; by EAGLE-1's recipe level 1 also learns
    the target's states.

    ``wanted`` [B, L − 1, V]: q of tokens 1 … L − 1.
    """
    p = fed.prefix
    free = fed.ahead.shape[1] - p - recipe.levels + 2
    at = torch.from_numpy(rng.choice(free, min(DEEPER, free), replace=False) + p)
    drafted = drafts(net, fed, at, recipe.levels)
    loss, accepted = divergence(logits(drafted.first), wanted)
    if recipe.regression:
        loss = loss + recipe.regression * F.smooth_l1_loss(drafted.level_1, fed.hidden[:, p:])
    rates = {"accept-1": accepted}
    for level, feature in enumerate(drafted.deeper, start=1):
        # what is drafted, which may be a row end
        token, is_end = token_in(drafted.at + level + 1 - p, fed.row_width)
        if fed.row_width:
            token, feature = token[~is_end], feature[:, ~is_end]
        more, accepted = divergence(logits(feature), wanted[:, token - 1])
        loss = loss + FALL**level * more
        rates[f"accept-{level + 1}"] = accepted
    return {"loss": loss, **rates}


class BlockFeed(NamedTuple):
    """What a DFlash drafter reads of images of L tokens: one entry per prefix position but the
    last, then per token.
    """

    # [R, P − 1 + L, (1 + depths) · dim] the target's states; a token's are those that predict it
    context: Tensor
    anchors: Tensor  # [R, L, dim] the target's embeddings of the tokens
    rope: Tensor  # [P − 1 + L + L + B, 1, d/2] of the context, and of tokens 0 … L + B − 1
    seen: Tensor | None  # [R, P − 1] bool: which prefix entries may be attended to; None: all


def block_read(
    target: Target, net: DFlash, prefix: Prefix, tokens: Tensor
) -> tuple[BlockFeed, Tensor]:
    """What the drafter reads of images, and the target's last states that predict tokens 1 … L − 1
    [R, L − 1, dim].
    """
    states = target_states(target, prefix, tokens, net.depths)
    device, length, width = tokens.device, tokens.shape[1], target.row_width
    end = target.image_slots + net.block * (1 + bool(width))
    before = states.shape[1] + 1 - target.image_slots + bool(width)  # P
    slots = raster(length, width, before, 0, before + end, device).slot_of[
        1 : length + net.block + 1
    ]
    places = torch.cat([torch.arange(before - 1, device=device), slots[:length] - 1])
    rope, anchors = (
        target.model.rope,
        target.model.tok_embeddings(tokens).repeat(len(states) // len(tokens), 1, 1),
    )
    rope = rope[torch.cat([places, slots]).clamp(max=len(rope) - 1), None]
    fed = BlockFeed(
        states[:, places].float(),
        anchors.float(),
        rope,
        None if prefix.seen.all() else prefix.seen,
    )
    return fed, fed.context[:, 1 - tokens.shape[1] :, : target.model.config.dim].to(target.dtype)


def block_first(net: DFlash, fed: BlockFeed) -> Tensor:
    """The states [R, L − 1, dim] of what decoding drafts first for tokens 1 … L − 1."""
    anchors = torch.arange(fed.anchors.shape[1] - 1, device=fed.anchors.device)
    return torch.cat([block_drafts(net, fed, at)[:, :, 0] for at in anchors.split(DEEPER)], 1)


def block_drafts(net: DFlash, fed: BlockFeed, at: Tensor) -> Tensor:
    """States [R, m, B − 1, dim] that draft after anchors ``at`` [m]; a block sees the context
    before it and itself.
    """
    n, m, b, length = fed.context.shape[1], len(at), net.block, fed.anchors.shape[1]
    x = torch.cat([net.read(fed.context), net.blocks(fed.anchors[:, at]).flatten(1, 2)], 1)
    inside = torch.ones(b, b, device=at.device)
    itself = torch.kron(
        torch.eye(m, device=at.device), inside.tril() if net.causal else inside
    ).bool()
    before = torch.arange(n, device=at.device) - (n - length) <= at[:, None]  # [m, n]
    mask = torch.cat([before.repeat_interleave(b, 0), itself], -1)[None, None]
    if fed.seen is not None:
        mask = (
            mask
            & F.pad(fed.seen, (0, mask.shape[-1] - fed.seen.shape[1]), value=True)[:, None, None]
        )
    tokens = (n + at[:, None] + torch.arange(b, device=at.device)).flatten()
    rope = torch.cat([fed.rope[:n], fed.rope[tokens]])
    return net(x, rope[None], mask, None, False, m * b).unflatten(1, (m, b))[:, :, 1:]


def block_losses(
    net: DFlash, fed: BlockFeed, rng: np.random.Generator, logits: Logits, wanted: Tensor
) -> Losses:
    """Cross entropy to ``wanted``, q of tokens 1 … L − 1 [B, L − 1, V], and total variation, at
    every slot k.
    """
    count, device = wanted.shape[1], wanted.device
    at = torch.from_numpy(rng.choice(count, min(DEEPER, count), replace=False)).to(device)
    slot = torch.arange(net.block - 1, device=device)  # k − 1
    token = at[:, None] + slot  # less 1: of ``wanted``
    # exp(−(k − 1)/γ), γ = B/2
    weight = torch.where(token < count, torch.exp(-2 * slot / net.block), 0.0)
    pairs = distances(logits(block_drafts(net, fed, at)), wanted[:, token.clamp(max=count - 1)])
    cross, accepted = (x.mean(0) for x in pairs)  # [m, B − 1]
    loss = (weight * (cross + VARIATION * (1 - accepted))).sum() / weight.sum()
    rates = ((weight > 0) * accepted.detach()).sum(0) / (weight > 0).sum(0)
    return {"loss": loss} | {f"accept-{k + 1}": rate for k, rate in enumerate(rates)}


# by kind of drafter: what it reads, what it drafts first, its losses
TRAININGS: dict[str, Any] = dict.fromkeys(("eagle", "eagle-3"), (read, first, losses))
TRAININGS["dflash"] = (block_read, block_first, block_losses)
