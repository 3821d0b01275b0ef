"""Prompts as data: one, and a selection with where it comes from.

A selection is a pure function of (file, seed, count): the best ``count`` ranks, from SHA-256 of seed and id, in file
order.  So a larger count keeps every prompt of a smaller one, whatever the versions of libraries.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class Prompt(NamedTuple):
    """One prompt; ``id`` is unique in its set, ``image`` is the file name (no folder) of a reference image."""

    id: str
    text: str
    category: str | None = None
    challenge: str | None = None
    image: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """The selected prompts and where they come from; ``notes`` are for readers of the results."""

    prompts: tuple[Prompt, ...]
    source: str
    dataset: str
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        return prompts_hash(self.prompts)

    def record(self) -> dict[str, Any]:
        """What ``run.json`` keeps of the selection."""
        facts = {"source": self.source, "dataset": self.dataset, "count": len(self.prompts), "seed": self.seed}
        return facts | {"hash": self.hash, "notes": list(self.notes)}

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


def prompts_hash(prompts: Iterable[Prompt]) -> str:
    """SHA-256 (hex) over the ids and texts of prompts, in order."""
    return hashlib.sha256(json.dumps([[prompt.id, prompt.text] for prompt in prompts]).encode()).hexdigest()


def rank(seed: int, *names: str) -> int:
    """A number below 2⁶⁴, as good as random."""
    return int.from_bytes(hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()[:8], "big")


def select(prompts: list[Prompt], count: int | None, seed: int) -> list[Prompt]:
    """``count`` prompts (None: all) without replacement, in file order."""
    best = sorted(range(len(prompts)), key=lambda i: (rank(seed, "prompt", prompts[i].id), i))
    return [prompts[i] for i in sorted(best[:count])]


def unique(prompts: list[Prompt]) -> tuple[list[Prompt], list[str]]:
    """Prompts with distinct ids (a suffix -2, -3, … where needed), and a note of how many were not."""
    # the key of a sample is id|method|seed
    prompts = [prompt._replace(id=prompt.id.replace("|", "_")) for prompt in prompts]
    ids, repeated = {prompt.id for prompt in prompts}, 0
    result: dict[str, Prompt] = {}
    for prompt in prompts:
        name, number = prompt.id, 1
        while name in result or (number > 1 and name in ids):
            number += 1
            name = f"{prompt.id}-{number}"
        repeated += number > 1
        result[name] = prompt._replace(id=name)
    notes = [f"{repeated} prompts with a repeated id got a suffix (-2, -3, …)."] if repeated else []
    return list(result.values()), notes
