"""What makes samples: a target, its decoders and the scorers of single images, loaded once, in whichever process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from lanternbench.analysis.summaries import Costs
from lanternbench.engine.decode import generate
from lanternbench.experiment import Sample
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.environment import environment
from lanternbench.experiment.generate_samples import make_samples
from lanternbench.experiment.scoring import prepared
from lanternbench.methods.build import build
from lanternbench.metrics import ImageMetric, scorers_for
from lanternbench.metrics.setup import Setup
from lanternbench.models.catalogue import load_with_drafter
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt

WARMUP_STEPS = 12
OnStep = Callable[[int, int], None]  # tokens done, of


class Job(NamedTuple):
    """Prompts to decode together by one method, with one seed."""

    label: str
    prompts: list[Prompt]
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.label} · {self.prompts[0].text}"


class Facts(NamedTuple):
    """What a run folder records of whoever makes its samples."""

    device: str
    guidance: float
    lossless: dict[str, bool | None]  # by label
    target: dict[str, Any]
    environment: dict[str, Any]


class Worker:
    """Makes samples of one sweep on one device.  Raises UserError if a setting is wrong or weights are missing."""

    def __init__(self, config: Sweep, device: str):
        self.config, self.device = config, device
        self.costs: Costs = {}  # what the scores took
        methods, c = config.methods(), config
        used = {m.choices.proposal for m in methods}
        self.target = load_with_drafter(c.target, c.drafter, device, c.random_weights, c.dtype, used, c.compile)
        sampling = (c.temperature, c.top_k, c.top_p, c.guidance, c.simulate_acceptance)
        self.decoders = {m.label: build(self.target, m, *sampling) for m in methods}

    @cached_property
    def scorers(self) -> list[ImageMetric]:
        """Those of single images; none where images mean nothing."""
        if self.config.random_weights or self.config.simulate_acceptance is not None:
            return []
        found = scorers_for(self.config.metrics, self.target.evaluators, Setup(device=self.device))
        return [s for s in found if isinstance(s, ImageMetric)]

    def facts(self) -> Facts:
        decoders, t = self.decoders, self.target
        return Facts(
            self.device,
            next(iter(decoders.values())).guidance,
            {label: decoder.lossless for label, decoder in decoders.items()},
            {"name": t.name, "grid": list(t.grid), "vocab": t.vocab, "evaluators": t.evaluators, "weights": t.weights}
            | {"prompt_template": t.prompt_template}
            | ({"remark": t.remark} if t.remark else {}),
            environment() | mode(t),
        )

    def prepare(self, captions: list[str]) -> None:
        """Encode captions and load scorers before a clock starts: a text encoder is loaded once, what it says kept."""
        self.target.prepare(captions)
        for scorer in self.scorers:
            prepared(scorer)

    def warm_up(self, label: str, caption: str) -> None:
        """First calls allocate and choose kernels."""
        generate(self.decoders[label], [caption], seed=self.config.seed, max_steps=WARMUP_STEPS)

    def seconds_per_image(self, label: str, caption: str) -> float:
        """An estimate from a few steps: encoding, decoding and rendering of one image."""
        self.warm_up(label, caption)
        decoder = self.decoders[label]
        made = generate(decoder, [caption], seed=self.config.seed, max_steps=WARMUP_STEPS)[0]
        clock = time.perf_counter()
        self.target.images(made.tokens[None])
        tokens = max(sum(made.accept_lengths), 1)
        encode_s = made.encode_s + self.target.encode_seconds([caption])
        return encode_s + made.decode_s * self.target.length / tokens + time.perf_counter() - clock

    def work(self, job: Job, on_step: OnStep | None = None) -> Iterator[tuple[Sample, Any]]:
        """The job's samples, scored, with their PIL images; ``on_step`` is told of every step."""
        decoder, config = self.decoders[job.label], self.config
        for sample, image in make_samples(decoder, job.prompts, job.seed, config.batch == 1, on_step):
            for scorer in self.scorers:
                clock = time.perf_counter()
                value = sample.metrics[scorer.name] = scorer.score([image], [sample.prompt])[0]
                if value is not None:
                    add_costs(self.costs, {scorer.name: {"images": 1, "seconds": time.perf_counter() - clock}})
            yield sample, image


def add_costs(total: Costs, more: Costs) -> None:
    """Add what some scores took to ``total``."""
    for name, cost in more.items():
        old = total.setdefault(name, {"images": 0, "seconds": 0.0})
        old["images"], old["seconds"] = old["images"] + cost["images"], old["seconds"] + cost["seconds"]


def mode(target: Target) -> dict[str, str]:
    """How the target runs: device, dtype, and whether forwards are recorded."""
    dtype = str(target.dtype).removeprefix("torch.")
    return {"device": str(target.device), "dtype": dtype, "compile": "eager" if target.graphs is None else "graphs"}
