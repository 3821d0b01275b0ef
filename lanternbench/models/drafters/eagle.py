"""The EAGLE drafter: fc([embedding; hidden]) -> layers of the target's kind -> the target's head.

Source: Li et al. 2024 (EAGLE, EAGLE-2); LANTERN, whose class has a separate embedding table, which need not be the
target's: it is filled from the target's ``lm_head`` where the target is a single file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lanternbench.models.transformer import DecoderConfig, Direct, Layer, Put

if TYPE_CHECKING:
    from lanternbench.models.target import Target


class Eagle(Direct):
    """``layers``: how many.  ``token_ids``, ``prompt_ids``: rows of its tables of image tokens and of prompt ids.

    0 rows: no such table.  Without tables it embeds tokens with the target's; with ``token_ids`` alone, prompt ids are
    image tokens (LlamaGen).  Only the first layer may lack an input norm (``config.first_norm``).
    ``fused``: an EAGLE-3 drafter, which reads a projection of the target's states at three depths.
    """

    def __init__(
        self,
        config: DecoderConfig,
        bias: bool = True,
        norm_eps: float = 1e-6,
        layers: int = 1,
        token_ids: int = 0,
        prompt_ids: int = 0,
        fused: bool = False,
    ):
        super().__init__()
        self.fusion = nn.Linear(3 * config.dim, config.dim, bias=False) if fused else None
        if self.fusion is not None:
            nn.init.eye_(self.fusion.weight)  # untrained, it reads the last states alone
        self.config = replace(config, n_layer=layers, norm_eps=norm_eps)
        self.tok_embeddings = nn.Embedding(token_ids, config.dim) if token_ids else None
        self.prompt_embeddings = nn.Embedding(prompt_ids, config.dim) if prompt_ids else None
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=bias)
        later = replace(self.config, first_norm=True)
        self.layers = nn.ModuleList(Layer(later if i else self.config) for i in range(layers))

    def embed(self, tokens: Tensor, model: Any) -> Tensor:
        """Image tokens [...] -> [..., dim], by its table, or that of ``model`` (the target) if it has none."""
        return (model.tok_embeddings if self.tok_embeddings is None else self.tok_embeddings)(tokens)

    def embed_prompt(self, ids: Tensor, model: Any) -> Tensor:
        """Ids before the image (``Prefix.ahead_ids``, row ends) [...] -> [..., dim]."""
        table = self.tok_embeddings if self.prompt_embeddings is None else self.prompt_embeddings
        return (model.prompt_embeddings if table is None else table)(ids)

    @property
    def kind(self) -> str:
        """The kind of drafter, a key of ``Target.drafters``."""
        return "eagle" if self.fusion is None else "eagle-3"

    def aux_layers(self, model: Any) -> tuple[int, ...]:
        """After how many layers of ``model``, the target's, it reads states beside the last ones: low and middle."""
        n = model.config.decoder.n_layer
        return () if self.fusion is None else (max(1, n // 2), max(1, 3 * n // 4))

    def read(self, states: Tensor) -> Tensor:
        """The target's last states and those after ``aux_layers`` beside them [..., (1 + aux) · dim] -> [..., dim].

        EAGLE-3 projects high, low and middle ones (its g); EAGLE-1 takes the last as they are.
        """
        return states if self.fusion is None else self.fusion(states)

    def fuse(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Embedding of token t + 1 and what was read, or drafted, at position t, [R, N, dim] -> the layers' input."""
        return self.fc(torch.cat([embedding, hidden], -1))

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, put: Put | None = None, last: bool = False
    ) -> Tensor:
        """x [R, N, dim] -> features [R, N, dim], or [R, 1, dim] of the ``last`` position alone."""
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, mask, put, i, last and i == len(self.layers) - 1)
        return x

    @property
    def about(self) -> str:
        table = "the target's" if self.tok_embeddings is None else "its own"
        name = "EAGLE" if self.fusion is None else "EAGLE-3"
        return f"{name}, {len(self.layers)} layer{'s' * (len(self.layers) > 1)}, {table} embedding table"

    def misfit(self, target: Target) -> str | None:
        """Why it cannot draft for ``target``; None where it can."""
        return wrong_width(self.config.dim, target)

    def fused(self) -> Eagle:
        """An EAGLE-3 drafter that, before training, drafts the same as this EAGLE-1 drafter."""
        tokens, prompts = (0 if x is None else x.num_embeddings for x in (self.tok_embeddings, self.prompt_embeddings))
        bias, eps = self.fc.bias is not None, self.config.norm_eps
        net = Eagle(self.config, bias, eps, len(self.layers), tokens, prompts, fused=True).to(self.fc.weight)
        net.load_state_dict(net.state_dict() | self.state_dict())
        return net

    def trainable(self) -> Eagle:
        """Itself, with gradients for all but its tables: EAGLE trains neither these nor the head."""
        self.requires_grad_(True)
        for table in (self.tok_embeddings, self.prompt_embeddings):
            if table is not None:
                table.requires_grad_(False)
        return self


def wrong_width(dim: int, target: Target) -> str | None:
    """What keeps a drafter that reads hidden states ``dim`` wide from drafting for ``target``."""
    width = target.model.config.decoder.dim
    return None if dim == width else f"it is made for hidden states {dim} wide, the target's are {width} wide"
