"""The selection of prompts from a source.

A selection is a pure function of (file, seed, count): each prompt gets a rank from SHA-256 of seed and id, the best
``count`` ranks are taken and put back in file order.  So a larger count keeps every prompt of a smaller one, and no
library version changes which prompts a seed means.
"""

from __future__ import annotations

import hashlib

from lanternbench.prompts.prompt_set import Prompt


def rank(seed: int, *names: str) -> int:
    """A number below 2⁶⁴, as good as random."""
    return int.from_bytes(hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()[:8], "big")


def select(prompts: list[Prompt], count: int | None, seed: int) -> list[Prompt]:
    """``count`` prompts (None: all) without replacement, in file order."""
    best = sorted(range(len(prompts)), key=lambda i: (rank(seed, "prompt", prompts[i].id), i))
    return [prompts[i] for i in sorted(best[:count])]


def unique(prompts: list[Prompt]) -> tuple[list[Prompt], list[str]]:
    """Prompts with distinct ids (a suffix -2, -3, … where needed), and a note of how many were not."""
    # the key of a sample is id|label|seed
    prompts = [prompt._replace(id=prompt.id.replace("|", "_")) for prompt in prompts]
    taken, result, repeated = {prompt.id for prompt in prompts}, [], 0
    seen: set[str] = set()
    for prompt in prompts:
        name, number = prompt.id, 1
        while name in seen or (number > 1 and name in taken):
            number += 1
            name = f"{prompt.id}-{number}"
        repeated += number > 1
        seen.add(name)
        result.append(prompt._replace(id=name))
    notes = [f"{repeated} prompts with a repeated id got a suffix (-2, -3, …)."] if repeated else []
    return result, notes
