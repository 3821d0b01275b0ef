"""Shards of a run: parts of its prompts, measured by processes that may run on several machines.

A scheduler starts ``--shard 1/8`` to ``--shard 8/8``, with one folder of results that all of them
reach.  What they write:

    RUN/run.json         the settings, written by the shard that comes first, checked by the others
    RUN/images/          images of all shards; no two shards draw the same one
    RUN/shards/2-of-8/   run.json, samples.jsonl, summary.json and lock of one shard
    RUN/samples.jsonl    samples of all shards, written by whoever joins them

The shard that finishes last joins them and scores whole sets of images (FID).  A report joins what
is there if some are not finished.  A joined run is read like one that a single process measured.

Prompts are split, not methods: all methods of a prompt run in one shard, so a speedup is a ratio
of times of one machine, whichever machines the other shards have.  Latencies, and the mean of
the ratios, mix the machines; a run whose machines differ says so.  Prompts are dealt in turn,
so every shard gets its share of each category.
"""

import re
from dataclasses import replace
from typing import NamedTuple, Self

from lanternbench.errors import UserError
from lanternbench.prompts import PromptSet
from lanternbench.utils.text import one_line

MOST = 500  # shards of a run, whose files are read at the same time


class Shard(NamedTuple):
    """One of ``of`` shards, counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shard that K/N names.  Raises UserError."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if match is not None:
            shard = cls(int(match[1]), int(match[2]))
            if 1 <= shard.number <= shard.of <= MOST:
                return shard
        raise UserError(
            f"--shard {one_line(text, 40)}: give K/N, the K-th of N shards, such as 2/8, with K"
            f" from 1 to N and N up to {MOST}"
        )

    @property
    def folder(self) -> str:
        """The shard's folder in the run folder."""
        return f"shards/{self.number}-of-{self.of}"

    def count(self, prompts: int) -> int:
        """Return how many of the run's prompts the shard has."""
        return len(range(self.number - 1, prompts, self.of))

    def part(self, prompts: PromptSet) -> PromptSet:
        """Return every ``of``-th prompt.  Raises UserError if a shard would have none."""
        if len(prompts) < self.of:
            raise UserError(
                f"--shard {self}: {len(prompts)} prompts are too few for {self.of} shards:"
                " give at most one shard per prompt"
            )
        return replace(prompts, prompts=prompts.prompts[self.number - 1 :: self.of])
