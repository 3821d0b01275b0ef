"""FlashAR's vertical branch: it predicts the token below, the target's own head the token to the
right, and a gate mixes the two.

Source: FlashAR (arXiv 2605.09430) and its public code, whose tensor names a file has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.models.decoder import ImageDecoder
from lanternbench.models.drafters.eagle import counted_layers, unread_states
from lanternbench.models.drafters.kinds import Sizes
from lanternbench.models.key_names import from_published, rotary_pairs, to_published
from lanternbench.models.loading import (
    State,
    config_next_to,
    count_layers,
    explain_errors,
    load_into,
    read_state,
)
from lanternbench.models.transformer import DecoderConfig, Depths, Stack

if TYPE_CHECKING:
    from lanternbench.models.target import Target

START = "vertical_start_layer"  # in a file of ours, or in the published config.json
RENAMED = {"vertical_block.": "layers.", "vertical_norm.": "norm."}  # published name -> ours


class FlashAR(Stack):
    """Layers and a norm that read the target's states after ``start`` layers, a head, and gates."""

    kind = "flashar"

    def __init__(self, config: DecoderConfig, start: int, vocab: int):
        super().__init__(config)
        dim = config.dim
        width = max(64, dim // 8)
        self.config = config
        self.start = start
        self.vertical_head = nn.Linear(dim, vocab, bias=False)
        self.hv_gate_mlp = nn.Sequential(
            nn.Linear(2 * dim, width, bias=False), nn.SiLU(), nn.Linear(width, 1)
        )
        self.hv_gate_corner = nn.Linear(dim, 1)

    def aux_layers(self, model: ImageDecoder) -> Depths:
        """The numbers of the target's layers after which it reads states."""
        return (self.start,)

    def gate(self, h: Tensor, v: Tensor) -> Tensor:
        """Return g [..., 1] of the states to the left and above [..., dim]."""
        return self.hv_gate_mlp(torch.cat([h, v], -1)).sigmoid()

    def mixed(
        self, model: ImageDecoder, h: Tensor, v: Tensor, in_first: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return g · H(h) + (1 − g) · V(v) [..., V] for tokens with the states h to the left and v
        above.

        ``in_first``: whether they are in the first row, and in the first column, where g is 1
        and 0.
        """
        row, column = in_first
        gate = self.gate(h, v)
        gate = torch.where(column[:, None], 0.0, gate)
        gate = torch.where(row[:, None], 1.0, gate)
        return gate * model.logits(h) + (1 - gate) * self.vertical_head(v)

    def corner(self, model: ImageDecoder, h: Tensor, inner: Tensor) -> Tensor:
        """Return the logits of the first token from the prompt's last states: the final one h, and
        the one after ``start`` layers, as published without the branch's layers and norm.
        """
        gate = self.hv_gate_corner(h).sigmoid()
        return gate * model.logits(h) + (1 - gate) * self.vertical_head(inner)

    @property
    def about(self) -> str:
        return f"FlashAR, {counted_layers(len(self.layers))}"

    def misfit(self, target: Target) -> str | None:
        """Return why it cannot draw for ``target``, as a clause; None if it can."""
        return unread_states(target, self.config.dim, (self.start,))


def to_file(net: FlashAR, model: ImageDecoder) -> State:
    """Return its weights under the published names, and the layer that it reads."""
    state = to_published(net.state_dict())
    if model.rotates_halves:
        state = rotary_pairs(state, net.config, back=True)
    for theirs, ours in RENAMED.items():
        state = {
            theirs + key.removeprefix(ours) if key.startswith(ours) else key: value
            for key, value in state.items()
        }
    return state | {START: torch.tensor(net.start)}


def untrained(model: ImageDecoder, kind: str, sizes: Sizes) -> FlashAR:
    """Return a branch of copies of the last layers of a target's decoder and of its head, and gates
    of one half.
    """
    depth = model.config.n_layer
    layers = min(sizes.layers, depth)
    config = replace(model.config.decoder, n_layer=layers)
    net = FlashAR(config, max(1, depth - layers), model.config.vocab_size)
    if net.vertical_head.weight.is_meta:
        return net
    with torch.no_grad():
        for copy, layer in zip(net.layers, model.layers[-layers:], strict=True):
            copy.load_state_dict(layer.state_dict())
        if isinstance(model.output, nn.Linear):
            net.vertical_head.weight.copy_(model.output.weight)
        for gate in (net.hv_gate_mlp[2], net.hv_gate_corner):
            for parameter in gate.parameters():
                parameter.zero_()
    return net


def load(path: Path, model: ImageDecoder, device: str, dtype: torch.dtype) -> FlashAR:
    """Return the branch at ``path`` for a target's decoder.

    A published checkpoint also has the backbone, which is the target's, and heads over all ids.
    Raises UserError.
    """
    state = read_state(path)
    decoder = model.config.decoder
    with explain_errors(f"{path} holds no FlashAR branch of this target"):
        state = {key: value for key, value in state.items() if not key.startswith("backbone.")}
        for theirs, ours in RENAMED.items():
            state = {key.replace(theirs, ours): value for key, value in state.items()}
        state = from_published(state, halves=decoder if model.rotates_halves else None)
        layers = count_layers(state)
        start = config_next_to(path).get(START, model.config.n_layer - layers)
        depth = int(state.pop(START, start))
        head = state["vertical_head.weight"]
        if len(head) > model.config.vocab_size:
            state["vertical_head.weight"] = head[model.image_ids.cpu()]
        config = replace(decoder, n_layer=layers)
    if not layers or depth < 1:
        raise UserError(
            f"{path} holds no FlashAR branch that can be used: {layers} layers on the states "
            f"after {depth}: give another"
        )
    new = partial(FlashAR, config, depth, model.config.vocab_size)
    return load_into(new, state, path, device, dtype)
