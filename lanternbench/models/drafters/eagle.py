"""The EAGLE drafter: fc([embedding; hidden]) -> layers of the target's kind -> the target's head.

Source: Li et al. 2024 (EAGLE, EAGLE-2); LANTERN, whose class has a separate embedding table, which
need not be the target's: it is filled from the target's ``lm_head`` where the target is a single
file.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.key_names import TABLE, from_published
from lanternbench.models.loading import explain_errors, load_layers, read_config, read_state
from lanternbench.models.transformer import DecoderConfig, Direct, Layer, Mask, Put, mask_of_heads


class Eagle(Direct):
    """``layers``: how many.  ``token_ids``, ``prompt_ids``: rows of its tables of image tokens and
    of prompt ids.

    0 rows: no such table.  Without tables it embeds tokens with the target's; with ``token_ids``
    alone, prompt ids are image tokens (LlamaGen).  Only the first layer may lack an input norm
    (``config.first_norm``). ``fused``: an EAGLE-3 drafter, which reads a projection of the
    target's states at three depths.
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
            # untrained, it reads the last states alone
            alone = torch.eye(*self.fusion.weight.shape)
            self.fusion.weight.data.copy_(alone)
        self.config = replace(config, n_layer=layers, norm_eps=norm_eps)
        self.tok_embeddings = nn.Embedding(token_ids, config.dim) if token_ids else None
        self.prompt_embeddings = nn.Embedding(prompt_ids, config.dim) if prompt_ids else None
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=bias)
        later = replace(self.config, first_norm=True)
        self.layers = nn.ModuleList(Layer(later if i else self.config, i) for i in range(layers))
        self.group = config.n_head // config.kv_heads

    def embed(self, tokens: Tensor, model: Any) -> Tensor:
        """Image tokens [...] -> [..., dim], by its table, or that of ``model`` (the target) if it
        has none.
        """
        return (model.tok_embeddings if self.tok_embeddings is None else self.tok_embeddings)(
            tokens
        )

    def embed_prompt(self, ids: Tensor, model: Any) -> Tensor:
        """Ids before the image (``Prefix.ahead_ids``, row ends) [...] -> [..., dim]."""
        table = self.tok_embeddings if self.prompt_embeddings is None else self.prompt_embeddings
        return (model.prompt_embeddings if table is None else table)(ids)

    @property
    def kind(self) -> str:
        """The kind of drafter, a key of ``Target.drafters``."""
        return "eagle" if self.fusion is None else "eagle-3"

    def aux_layers(self, model: Any) -> tuple[int, ...]:
        """After how many layers of ``model``, the target's, it reads states beside the last ones:
        low and middle.
        """
        n = model.config.decoder.n_layer
        return () if self.fusion is None else (max(1, n // 2), max(1, 3 * n // 4))

    def read(self, states: Tensor) -> Tensor:
        """Target states [..., (1 + aux) · dim] -> [..., dim]: EAGLE-3 projects them (its g),
        EAGLE-1 takes the last.
        """
        return states if self.fusion is None else self.fusion(states)

    def fuse(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Embedding of token t + 1 and what was read, or drafted, at position t, [R, N, dim] ->
        the layers' input.
        """
        return self.fc(torch.cat([embedding, hidden], -1))

    def forward(
        self, x: Tensor, rope: Tensor, mask: Mask, put: Put | None = None, last: bool = False
    ) -> Tensor:
        """x [R, N, dim] -> features [R, N, dim], or [R, 1, dim] of the ``last`` position alone."""
        mask = mask_of_heads(mask, self.group)
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, rope, mask, put, last and number == len(self.layers))
        return x

    @property
    def about(self) -> str:
        table = "the target's" if self.tok_embeddings is None else "its own"
        name = "EAGLE" if self.fusion is None else "EAGLE-3"
        return f"{name}, {len(self.layers)} layer{'s' * (len(self.layers) > 1)}, {table} embedding table"

    def misfit(self, target: Any) -> str | None:
        return wrong_width(self.config.dim, target)

    def fused(self) -> "Eagle":
        """An EAGLE-3 drafter that, before training, drafts the same as this EAGLE-1 drafter."""
        tokens, prompts = (
            0 if x is None else x.num_embeddings
            for x in (self.tok_embeddings, self.prompt_embeddings)
        )
        bias, eps = self.fc.bias is not None, self.config.norm_eps
        net = Eagle(self.config, bias, eps, len(self.layers), tokens, prompts, fused=True).to(
            self.fc.weight
        )
        net.load_state_dict(net.state_dict() | self.state_dict())
        return net


def wrong_width(dim: int, target: Any) -> str | None:
    """What keeps a drafter that reads hidden states ``dim`` wide from drafting for ``target``."""
    width = target.model.config.decoder.dim
    return (
        None
        if dim == width
        else f"it is made for hidden states {dim} wide, the target's are {width} wide"
    )


def load(path: Path, model: Any, device: str, dtype: torch.dtype) -> Eagle:
    """The drafter at ``path`` in the layout published for the decoder ``model``.

    Values in neither its tensors nor its config.json are those of ``model.eagle_config``.  Raises
    UserError where ``path`` holds no drafter, or one of another width or other heads, and for a
    tensor that has no place in it.
    """
    state, config = read_state(path), model.eagle_config
    if "fc.weight" not in state:
        raise UserError(
            f"{path} holds no EAGLE drafter: it has no 'fc.weight'; give one in LANTERN's layout"
        )
    beside = (path if path.is_dir() else path.parent) / "config.json"
    published = read_config(beside) if beside.is_file() else {}
    heads, n = published.get("num_attention_heads", config.n_head), config.n_head
    if heads != n:
        raise UserError(
            f"{beside}: the drafter has {heads} attention heads but the target has {n}: give another"
        )
    attention = "layers.0.self_attn."
    with explain_errors(path, "is no EAGLE drafter of this target"):
        shape: dict[str, Any] = {"sandwich_norm": "layers.0.post_mlp_layernorm.weight" in state}
        shape |= {
            "qkv_bias": f"{attention}q_proj.bias" in state,
            "out_bias": f"{attention}o_proj.bias" in state,
        }
        if (down := state.get("layers.0.mlp.down_proj.weight")) is not None:
            shape["hidden"] = down.shape[1]
        if (keys := state.get(f"{attention}k_proj.weight")) is not None:
            shape["n_kv_head"] = len(keys) // config.head_dim
        config, norm_eps = (
            replace(config, **shape),
            published.get("rms_norm_eps") or config.norm_eps,
        )
        layers = 1 + max(
            (int(m[1]) for key in state if (m := re.match(r"layers\.(\d+)\.", key))), default=0
        )
        token_ids, prompt_ids = model.eagle_tables if len(state.get(TABLE, ())) else (0, 0)
        fused = "fusion.weight" in state
        new = partial(
            Eagle, config, "fc.bias" in state, norm_eps, layers, token_ids, prompt_ids, fused
        )

    def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
        state = from_published(state, halves=config if model.rotates_halves else None)
        table, ids = (
            state.get("tok_embeddings.weight"),
            model.image_ids.cpu() if prompt_ids else None,
        )
        if table is None or ids is None:
            return state
        if (top := int(ids.max())) >= len(table):
            raise UserError(
                f"'{TABLE}' has {len(table)} ids but the target image tokens up to id {top}: give another"
            )
        return state | {"tok_embeddings.weight": table[ids], "prompt_embeddings.weight": table}

    return load_layers(new, path, renamed, device, dtype, strict=True)
