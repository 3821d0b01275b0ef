"""The target's log-probability of any image's tokens, in one forward over them."""

from __future__ import annotations

import torch
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.teacher_forced import pieces
from lanternbench.engine.verify import at
from lanternbench.measure.fidelity import FLOOR


@torch.inference_mode()
def log_probs(decoder: SpeculativeDecoder, captions: list[str], tokens: Tensor) -> Tensor:
    """log q(x_i | x_<i, caption) of every token [B, L] -> [B, L], in nats.

    q as the decoder draws from it, after guidance and warping; a token that this excludes counts as ``FLOOR``.
    """
    prefix, found = decoder.target.prefix(captions, decoder.guidance), []
    for i, image in enumerate(tokens):
        rest = image
        for q in pieces(decoder.target, prefix, tokens, i, decoder.guidance, decoder.warp):
            drawn, rest = rest[: q.shape[1]], rest[q.shape[1] :]
            found.append(at(q[0], drawn))
    return torch.cat(found).view(tokens.shape).clamp(min=FLOOR).log()
