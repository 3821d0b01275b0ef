"""The size of a network: counts of the numbers that one forward pass reads and computes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn

from lanternbench.models.decoder import ImageDecoder


class Network(NamedTuple):
    """Counts, for one position unless noted; also of a network on the device ``meta``."""

    layers: int
    weights: int  # of all that every position passes but the head
    head: int
    cached: int  # keys and values, in all layers together
    attended: int  # width of its queries, in all layers together
    vocab: int
    stored: int  # all weights, tables included
    guesses: int = 1  # how many distributions one state gives (Medusa's heads)


def network(net: nn.Module, lm: ImageDecoder, layers: Iterable[Any], guesses: int = 1) -> Network:
    """Return the size of ``net``, whose head is that of ``lm``.

    ``layers``: its own.  Tables count as ``stored`` alone: a forward pass reads single rows.
    """
    read = 0
    stored = 0
    for name, parameter in net.named_parameters():
        stored += parameter.numel()
        if "embedding" not in name and not name.startswith("output."):
            read += parameter.numel()
    head = sum(parameter.numel() for parameter in lm.output.parameters())
    count = 0
    cached = 0
    attended = 0
    for layer in layers:
        attention = layer.attention
        count += 1
        cached += 2 * attention.n_kv * attention.head_dim
        attended += attention.n_head * attention.head_dim
    vocab = lm.config.vocab_size
    return Network(count, read, head, cached, attended, vocab, stored, guesses)
