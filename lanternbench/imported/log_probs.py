"""The target's log-probability of any image's tokens, in one forward over them."""

from __future__ import annotations

import torch
from torch import Tensor

from lanternbench.engine.address import causal, prefix_address, run_address
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.opening import open_cache
from lanternbench.engine.verify import at
from lanternbench.measure.fidelity import FLOOR

LOGITS = 1 << 25  # numbers of the largest temporary


@torch.inference_mode()
def log_probs(decoder: SpeculativeDecoder, captions: list[str], tokens: Tensor) -> Tensor:
    """log q(x_i | x_<i, caption) of every token [B, L] -> [B, L], in nats.

    q as the decoder draws from it, after guidance and warping; a token that this excludes counts as ``FLOOR``.
    """
    target, model = decoder.target, decoder.target.model
    prefix, width = target.prefix(captions, decoder.guidance), target.row_width
    cache = open_cache(target, model, prefix, 1, row_end=lambda ids: model.prompt_embeddings(ids))
    valid, inputs, index = prefix.valid, model.tok_embeddings(tokens), torch.arange(tokens.shape[1])
    prompt = cache.prefill(prefix.embeddings, prefix_address(valid, 0, target.pad_rows), valid)
    if width:  # a row end after each row, and none after the last
        assert cache.row_end is not None
        rows = inputs.unflatten(1, (-1, width))
        ends = cache.row_end.expand(*rows.shape[:2], 1, -1)
        inputs = torch.cat([rows, ends], 2).flatten(1, 2)[:, :-1]
        index = index + index // width  # of the input before each token, the prompt's last one being 0
    x = cache.all_rows(inputs[:, :-1])
    image = cache.forward(x, run_address(valid.shape[1], x.shape[1], causal(x.shape[1], x.device)))
    states = torch.cat([prompt[:, -1:], image], 1)[:, index.to(x.device)]
    part = max(1, LOGITS // (len(states) * target.vocab))
    found = [
        at(decoder.warp(model.logits(some, decoder.guidance)), x)
        for some, x in zip(states.split(part, 1), tokens.split(part, 1))
    ]
    return torch.cat(found, 1).clamp(min=FLOOR).log()
