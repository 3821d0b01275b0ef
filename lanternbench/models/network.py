"""The size of a network: counts of the numbers that one forward reads and computes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn


class Network(NamedTuple):
    """Counts for one position unless stated otherwise; also of a network on the device ``meta``.

    ``weights``: of all that every position passes but the head.  ``cached``: its keys and values, in all layers
    together.  ``attended``: width of its queries, in all layers together.  ``stored``: all weights, tables included.
    ``guesses``: how many distributions one state gives (Medusa's heads).
    """

    layers: int
    weights: int
    head: int
    cached: int
    attended: int
    vocab: int
    stored: int
    guesses: int = 1


def network(net: nn.Module, lm: Any, layers: Iterable[Any], guesses: int = 1) -> Network:
    """The size of a decoder or drafter ``net``: ``lm`` is the decoder whose head it uses, ``layers`` its layers.

    Embedding tables count only as ``stored``: a forward reads single rows of them.
    """
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    heads = {id(p): p.numel() for p in lm.output.parameters()}
    read = sum(n for name, n in sizes.items() if "embedding" not in name and not name.startswith("output."))
    attention = [layer.attention for layer in layers]
    return Network(
        layers=len(attention),
        weights=read,
        head=sum(heads.values()),
        cached=sum(2 * a.n_kv * a.head_dim for a in attention),
        attended=sum(a.n_head * a.head_dim for a in attention),
        vocab=lm.config.vocab_size,
        stored=sum(sizes.values()),
        guesses=guesses,
    )
