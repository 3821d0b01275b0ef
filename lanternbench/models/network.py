"""The size of a network: counts of the numbers that one forward reads and computes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn


class Network(NamedTuple):
    """Counts for one position unless stated otherwise; also of a network on the device ``meta``."""

    layers: int
    weights: int  # of all that every position passes but the head
    head: int
    cached: int  # keys and values, in all layers together
    attended: int  # width of its queries, in all layers together
    vocab: int
    stored: int  # all weights, tables included
    guesses: int = 1  # how many distributions one state gives (Medusa's heads)


def network(net: nn.Module, lm: Any, layers: Iterable[Any], guesses: int = 1) -> Network:
    """``lm``: whose head it uses; ``layers``: its own.  Tables count as ``stored`` alone: forwards
    read single rows.
    """
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    heads = {id(p): p.numel() for p in lm.output.parameters()}
    read = sum(
        n
        for name, n in sizes.items()
        if "embedding" not in name and not name.startswith("output.")
    )
    attention = [layer.attention for layer in layers]
    cached, attended = (
        sum(2 * a.n_kv * a.head_dim for a in attention),
        sum(a.n_head * a.head_dim for a in attention),
    )
    vocab, stored = lm.config.vocab_size, sum(sizes.values())
    return Network(
        len(attention), read, sum(heads.values()), cached, attended, vocab, stored, guesses
    )
