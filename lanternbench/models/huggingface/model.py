"""A decoder that transformers runs, behind the engine's static cache.

transformers' code computes every layer; what differs is where keys and values are stored and which positions attend
to which, and both are arguments of its forward.  So trees, batches and commits work as with decoders of ours.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.token_decoder import TokenDecoder, TokenDecoderConfig
from lanternbench.models.transformer import Put, rope_1d

PROBED = 8  # ids on which the head over image tokens is compared with the model's logits


class EngineCache:
    """The engine's cache during one forward, as transformers' layers use a cache of theirs."""

    def __init__(self, put: Put):
        self.put = put

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store keys and values [R, H, N, d] of a layer; return all that may be attended to [R, H, span, d]."""
        keys, values = self.put(layer, torch.cat([keys, values], 1)).chunk(2, 1)
        return keys, values

    def get_seq_length(self, layer: int = 0) -> int:
        return 0  # positions are given


class TransformersDecoder(TokenDecoder):
    """``body``: the decoder without its head, whose ``forward`` takes embeddings, a 4-D mask and a cache.

    ``rope`` is for drafters; ``body`` has another.
    """

    places: Tensor

    def __init__(self, net: Any, config: TokenDecoderConfig, image_ids: Tensor):
        """``net``: a transformers model with a decoder of token ids and a linear head over them.

        Raises UserError for a model whose logits are not that head's.
        """
        nn.Module.__init__(self)  # the layers are those of ``body``
        self.config, self.body = config, net.get_decoder()
        self.cls_embedding = net.get_input_embeddings()
        head = net.get_output_embeddings()
        self.tok_embeddings = nn.Embedding.from_pretrained(self.cls_embedding.weight.detach()[image_ids])
        self.output = nn.Linear(config.dim, len(image_ids), bias=head.bias is not None)
        self.output.weight = nn.Parameter(head.weight.detach()[image_ids], requires_grad=False)
        if head.bias is not None:
            self.output.bias = nn.Parameter(head.bias.detach()[image_ids], requires_grad=False)
        self.register_buffer("image_ids", image_ids, persistent=False)
        rope = rope_1d(config.positions, config.head_dim, config.rope_base)
        self.register_buffer("rope", rope.to(self.device), persistent=False)
        self.register_buffer("places", torch.arange(config.positions, device=self.device)[:, None], persistent=False)
        self._compare(net)

    @torch.no_grad()
    def _compare(self, net: Any) -> None:
        n = min(PROBED, len(self.image_ids))
        wanted = net(input_ids=self.image_ids[None, :n], use_cache=False).logits[..., self.image_ids].float()
        x = self.tok_embeddings(torch.arange(n, device=self.device))[None]
        causal = torch.ones(1, 1, n, n, dtype=torch.bool, device=self.device).tril()
        logits = self.logits(self(x, self.places[None, :n, None], causal))
        tolerance = 1e-3 if self.dtype == torch.float32 else 0.1
        if not torch.allclose(logits.float(), wanted, atol=tolerance * float(wanted.abs().max()), rtol=0):
            raise UserError(
                f"the logits of {type(net).__name__} are not a linear head on its decoder's states over embedded ids: "
                "such a model needs a target family of its own, see docs/extend.md"
            )

    def position_table(self, prompt: int) -> Tensor:
        """Positions themselves: transformers makes its rotary embedding from them [positions, 1]."""
        return self.places

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        return self.body.layers

    @property
    def about(self) -> str:
        return f"{type(self.body).__name__} of transformers, {self.config.n_layer} layers"

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        put: Put | None = None,
        last: bool = False,
        aux_layers: tuple[int, ...] = (),
    ) -> Tensor:
        """As ``Stack.forward``; ``rope`` [R|1, N|1, 1, 1] holds positions."""
        rows, n, _ = x.shape
        if mask is None:
            mask = torch.zeros(1, 1, 1, 1, dtype=x.dtype, device=x.device)  # transformers' default is causal
        elif mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, -torch.inf)
        output = self.body(
            inputs_embeds=x,
            attention_mask=mask,
            position_ids=rope[..., 0, 0].expand(rows, n),
            past_key_values=None if put is None else EngineCache(put),
            use_cache=put is not None,
            output_hidden_states=bool(aux_layers),
        )
        states = output.last_hidden_state
        if aux_layers:
            states = torch.cat([states, *(output.hidden_states[n] for n in aux_layers)], -1)
        return states[:, -1:] if last else states
