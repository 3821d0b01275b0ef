"""Prompts as data: one, and a selection with where it comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
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
    """The selected prompts and where they come from; ``notes`` tells what a reader of the results should know."""

    prompts: tuple[Prompt, ...]
    source: str
    dataset: str
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over the ids and texts of the selection, in order."""
        pairs = json.dumps([[prompt.id, prompt.text] for prompt in self.prompts])
        return hashlib.sha256(pairs.encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """What ``run.json`` keeps of the selection."""
        return {
            "source": self.source,
            "dataset": self.dataset,
            "count": len(self.prompts),
            "seed": self.seed,
            "hash": self.hash,
            "notes": list(self.notes),
        }

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)
