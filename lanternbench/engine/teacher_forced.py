"""The target's distributions over finished images, by one plain forward pass: no cache, no step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lanternbench.engine.sampling import Warp
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.target import Prefix, Target

LOGITS = 1 << 25  # numbers of the largest temporary


def teacher_forced(target: Target, prefix: Prefix, tokens: Tensor, guidance: float, warp: Warp) -> Tensor:
    """q of every token given all that precede it in raster order: tokens [B, L] -> [B, L, V], image by image."""
    images = range(len(tokens))
    return torch.cat([torch.cat(list(pieces(target, prefix, tokens, i, guidance, warp)), 1) for i in images])


def pieces(target: Target, prefix: Prefix, tokens: Tensor, i: int, guidance: float, warp: Warp) -> Iterator[Tensor]:
    """q of the tokens of image ``i``, [1, n, V] after [1, n, V], in bounded memory."""
    rows = slice(i, None, len(tokens))  # conditional and unconditional
    embeddings, valid = prefix.embeddings[rows], prefix.valid[rows]
    hidden = _hidden(target, embeddings, valid, tokens[i].expand(len(valid), -1))
    for some in hidden.split(max(1, LOGITS // (len(valid) * target.vocab)), 1):
        yield warp(target.model.logits(some, guidance))


def _hidden(target: Target, prefix: Tensor, valid: Tensor, tokens: Tensor) -> Tensor:
    """The states that predict tokens [R, L], with an end after each row but the last where the model writes one."""
    model, length, width = target.model, tokens.shape[1], target.grid[1]
    if target.row_end is None:
        return model.teacher_forced(prefix, valid, tokens)
    rows = model.tok_embeddings(tokens).unflatten(1, (-1, width))
    end = model.prompt_embeddings(torch.tensor(target.row_end, device=tokens.device))
    image = torch.cat([rows, end.expand_as(rows[:, :, :1])], 2).flatten(1, 2)[:, :-2]  # nothing reads the last two
    x = torch.cat([prefix, image], 1)
    n, t = x.shape[1], torch.arange(length, device=x.device)
    states = model(x, model.position_table(valid.shape[1])[None, :n, None], prefix_mask(valid, n))
    return states[:, valid.shape[1] - 1 + t + t // width]
