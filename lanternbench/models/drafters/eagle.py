"""The EAGLE drafter: fc([embedding; hidden]) -> layers of the target's kind -> the target's head.

Source: Li et al. 2024 (EAGLE, EAGLE-2); LANTERN, whose class has an embedding table of its own,
which need not be the target's: it is filled from the target's ``lm_head`` if the target is a
single file.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.key_names import TABLE, from_published, rotary_pairs, to_published
from lanternbench.models.loading import (
    State,
    config_next_to,
    count_layers,
    explain_errors,
    load_layers,
    read_state,
)
from lanternbench.models.places import folder_of
from lanternbench.models.transformer import (
    DecoderConfig,
    Depths,
    Direct,
    Layer,
    Mask,
    Put,
    mask_of_heads,
)

if TYPE_CHECKING:
    from lanternbench.models.target import Target


def unread_states(target: Target, dim: int, depths: Depths = ()) -> str | None:
    """Return why a drafter that reads hidden states ``dim`` wide, also after ``depths`` layers,
    cannot draft for ``target``, as a clause; None if it can.
    """
    deepest = max(depths, default=0)
    layers = target.model.config.n_layer
    if deepest > layers:
        return f"it reads states after {deepest} layers, the target has {layers}"
    width = target.model.config.dim
    if dim == width:
        return None
    return f"it is made for hidden states {dim} wide, the target's are {width} wide"


def counted_layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


class Eagle(Direct):
    """``token_ids``, ``prompt_ids``: rows of its tables of image tokens and of prompt ids.

    0 rows: no such table.  Without tables it embeds tokens with the target's; with ``token_ids``
    alone, prompt ids are image tokens (LlamaGen).  Only the first layer may lack an input norm
    (``config.first_norm``).  ``fused``: an EAGLE-3 drafter, which reads a projection of the
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
        self.fusion: nn.Module = fusion(config.dim) if fused else nn.Identity()
        self.config = replace(config, n_layer=layers, norm_eps=norm_eps)
        self.group = config.n_head // config.kv_heads
        self.tok_embeddings = nn.Embedding(token_ids, config.dim) if token_ids else None
        self.prompt_embeddings = nn.Embedding(prompt_ids, config.dim) if prompt_ids else None
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=bias)
        self.layers = nn.ModuleList([Layer(self.config)])
        later = replace(self.config, first_norm=True)
        for number in range(1, layers):
            self.layers.append(Layer(later, number))

    def embed(self, tokens: Tensor, model: ImageDecoder) -> Tensor:
        """Image tokens [...] -> [..., dim], by its own table, or without one by that of the
        target's decoder ``model``.
        """
        if self.tok_embeddings is None:
            return model.tok_embeddings(tokens)
        return self.tok_embeddings(tokens)

    def embed_prompt(self, ids: Tensor, model: ImageDecoder) -> Tensor:
        """Ids before the image (``Prefix.ahead_ids``, row ends) [...] -> [..., dim]."""
        if self.prompt_embeddings is not None:
            return self.prompt_embeddings(ids)
        if self.tok_embeddings is not None:
            return self.tok_embeddings(ids)
        return model.prompt_embeddings(ids)

    @property
    def kind(self) -> str:
        """The kind of drafter, a key of ``Target.drafters``."""
        return "eagle" if isinstance(self.fusion, nn.Identity) else "eagle-3"

    def aux_layers(self, model: ImageDecoder) -> Depths:
        """The numbers of the target's layers, a low and a middle one, after which it reads states
        in addition to the last ones.
        """
        if self.kind == "eagle":
            return ()
        n = model.config.n_layer
        return max(1, n // 2), max(1, 3 * n // 4)

    def read(self, states: Tensor) -> Tensor:
        """Target states [..., (1 + aux) · dim] -> [..., dim]: EAGLE-3 projects them (its g),
        EAGLE-1 takes the last.
        """
        return self.fusion(states)

    def fuse(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """The embedding of token t + 1, and what was read or drafted at position t, [R, N, dim]
        each -> the layers' input.
        """
        return self.fc(torch.cat([embedding, hidden], -1))

    def forward(
        self, x: Tensor, rope: Tensor, mask: Mask, put: Put | None = None, last: bool = False
    ) -> Tensor:
        """x [R, N, dim] -> features [R, N, dim], or [R, 1, dim] of the ``last`` position alone."""
        if self.group > 1 or x.is_cuda:
            mask = mask_of_heads(mask, self.group)
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, rope, mask, put, last and number == len(self.layers))
        return x

    @property
    def about(self) -> str:
        name = self.kind.upper()
        layers = counted_layers(len(self.layers))
        table = "the target's" if self.tok_embeddings is None else "its own"
        return f"{name}, {layers}, {table} embedding table"

    def misfit(self, target: Target) -> str | None:
        """Return why it cannot draft for ``target``, as a clause; None if it can."""
        return unread_states(target, self.config.dim)

    def fused(self) -> Eagle:
        """Return an EAGLE-3 drafter that, before training, drafts the same as this EAGLE-1 one."""
        net = deepcopy(self)
        net.fusion = fusion(self.config.dim).to(self.fc.weight)
        return net


def fusion(dim: int) -> nn.Linear:
    """Return EAGLE-3's g, which untrained reads the last states alone."""
    projection = nn.Linear(3 * dim, dim, bias=False)
    projection.weight.data.copy_(torch.eye(dim, 3 * dim))
    return projection


def new_eagle(model: ImageDecoder, fused: bool = False) -> Eagle:
    """Return an untrained EAGLE drafter for a target's decoder; with ``fused`` an EAGLE-3 one."""
    config = model.eagle_config
    return Eagle(config, norm_eps=config.norm_eps, fused=fused)


def untrained(model: ImageDecoder, kind: str, sizes: Sizes) -> Eagle:
    """Return an untrained drafter of ``kind`` eagle or eagle-3 for a target's decoder."""
    return new_eagle(model, kind == "eagle-3")


def to_file(net: Eagle, model: ImageDecoder) -> State:
    """Return a drafter's tensors in the layout that ``load`` reads."""
    state = to_published(net.state_dict())
    if model.rotates_halves:
        return rotary_pairs(state, net.config, back=True)
    return state


def load(path: Path, model: ImageDecoder, device: str, dtype: torch.dtype) -> Eagle:
    """Return the drafter at ``path`` in the layout published for the decoder ``model``.

    What neither its tensors nor its config.json say is taken from ``model.eagle_config``.  Raises
    UserError if ``path`` holds no drafter, or one of another width or other heads, and for a
    tensor that has no place in it.
    """
    state = read_state(path)
    if "fc.weight" not in state:
        raise UserError(
            f"{path} holds no EAGLE drafter: it has no 'fc.weight'; give one in LANTERN's layout"
        )
    norm_eps = published_eps(path, model.eagle_config)
    token_ids = prompt_ids = 0
    if len(state.get(TABLE, ())):
        token_ids, prompt_ids = model.eagle_tables
    with explain_errors(f"{path} is no EAGLE drafter of this target"):
        config = layer_shape(state, model.eagle_config)
        new = partial(
            Eagle,
            config,
            bias="fc.bias" in state,
            norm_eps=norm_eps,
            layers=max(1, count_layers(state)),
            token_ids=token_ids,
            prompt_ids=prompt_ids,
            fused="fusion.weight" in state,
        )

    def renamed(state: State) -> State:
        state = from_published(state, halves=config if model.rotates_halves else None)
        if prompt_ids and "tok_embeddings.weight" in state:
            return state | split_table(state["tok_embeddings.weight"], model.image_ids.cpu())
        return state

    return load_layers(new, path, renamed, device, dtype, strict=True)


def published_eps(path: Path, config: DecoderConfig) -> float:
    """Return the norms' epsilon of the config.json next to a drafter, or that of ``config``.

    Raises UserError if the drafter has another number of heads.
    """
    published = config_next_to(path)
    heads = published.get("num_attention_heads", config.n_head)
    if heads != config.n_head:
        raise UserError(
            f"{folder_of(path) / 'config.json'}: the drafter has {heads} "
            f"attention heads but the target has {config.n_head}: give another"
        )
    return published.get("rms_norm_eps") or config.norm_eps


def layer_shape(state: State, config: DecoderConfig) -> DecoderConfig:
    """Return ``config`` with what a drafter's tensors say of its first layer."""
    layer = "layers.0."
    config = replace(
        config,
        sandwich_norm=f"{layer}post_mlp_layernorm.weight" in state,
        qkv_bias=f"{layer}self_attn.q_proj.bias" in state,
        out_bias=f"{layer}self_attn.o_proj.bias" in state,
    )
    down = state.get(f"{layer}mlp.down_proj.weight")
    if down is not None:
        config = replace(config, hidden=down.shape[1])
    keys = state.get(f"{layer}self_attn.k_proj.weight")
    if keys is not None:
        config = replace(config, n_kv_head=len(keys) // config.head_dim)
    return config


def split_table(table: Tensor, image_ids: Tensor) -> State:
    """Return the tables of image tokens and of prompt ids from one that has both.

    ``image_ids``: the id of each image token.  Raises UserError if the table has too few rows.
    """
    top = int(image_ids.max())
    if top >= len(table):
        raise UserError(
            f"'{TABLE}' has {len(table)} ids but the target image tokens up to id {top}: "
            "give another"
        )
    return {"tok_embeddings.weight": table[image_ids], "prompt_embeddings.weight": table}
