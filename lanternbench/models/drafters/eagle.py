"""The EAGLE drafter: fc([embedding; hidden]) -> one layer of the target's kind -> the target's own head.

Source: Li et al. 2024 (EAGLE, EAGLE-2); LANTERN's published layout for LlamaGen (no input norm, no final norm).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.kv_cache import StepCache
from lanternbench.models.loading import read_state
from lanternbench.models.transformer import DecoderConfig, Direct, Layer


class Eagle(Direct):
    def __init__(self, cfg: DecoderConfig, bias: bool = True, norm_eps: float = 1e-6):
        super().__init__()
        self.cfg = replace(cfg, n_layer=1, norm_eps=norm_eps)
        self.fc = nn.Linear(2 * cfg.dim, cfg.dim, bias=bias)
        self.layers = nn.ModuleList([Layer(self.cfg)])

    def fuse(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Embedding of token t + 1 and hidden state of position t, [R, N, dim] each -> the layer's input."""
        return self.fc(torch.cat([embedding, hidden], -1))

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: StepCache | None = None, last: bool = False
    ) -> Tensor:
        return self.layers[0](x, rope, mask, None if cache is None else cache[0], last)


_RENAMED = {
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def shape_of(path: Path, cfg: DecoderConfig) -> tuple[DecoderConfig, bool]:
    """``cfg`` with the MLP width of the drafter at ``path``, in LANTERN's layout, and whether it fuses with a bias.

    Raises UserError where there is none.
    """
    state = read_state(path)
    if "fc.weight" not in state:
        raise UserError(f"{path} holds no EAGLE drafter: it has no 'fc.weight'; give one in LANTERN's layout")
    return replace(cfg, hidden=hidden_width(state, cfg.hidden)), "fc.bias" in state


def hidden_width(state: dict[str, Tensor], default: int) -> int:
    """Width of the layer's MLP, which need not be the target's; ``default`` where ``state`` does not have it."""
    down = state.get("layers.0.mlp.down_proj.weight")
    return default if down is None else down.shape[1]


def from_published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LANTERN's key names -> ours; q, k, v and gate, up are fused.  ``embed_tokens`` is left out (the target's)."""
    found = {}
    for key, value in state.items():
        if key.endswith("q_proj.weight"):
            parts = [state[key.replace("q_proj", f"{c}_proj")] for c in "qkv"]
            found[key.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(parts)
        elif key.endswith("gate_proj.weight"):
            parts = [value, state[key.replace("gate_proj", "up_proj")]]
            found[key.replace("mlp.gate_proj", "feed_forward.w13")] = torch.cat(parts)
        elif not any(s in key for s in ("k_proj", "v_proj", "up_proj", "embed_tokens")):
            for old, new in _RENAMED.items():
                key = key.replace(old, new)
            found[key] = value
    return found


def to_published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Ours -> LANTERN's key names, without ``embed_tokens``."""
    found = {}
    for key, value in state.items():
        if "attention.wqkv" in key:
            shared = (len(value) - value.shape[1]) // 2  # of keys, and of values, which heads may have in common
            for name, part in zip("qkv", value.split([value.shape[1], shared, shared]), strict=True):
                found[key.replace("attention.wqkv", f"self_attn.{name}_proj")] = part.contiguous()
        elif "feed_forward.w13" in key:
            for name, part in zip(("gate", "up"), value.chunk(2), strict=True):
                found[key.replace("feed_forward.w13", f"mlp.{name}_proj")] = part.contiguous()
        else:
            for old, new in _RENAMED.items():
                key = key.replace(new, old)
            found[key] = value
    return found
