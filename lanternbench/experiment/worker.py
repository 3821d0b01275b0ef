"""A worker makes samples in any process: a target, its decoders and the scorers of single images, loaded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.experiment import Sample
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.environment import environment
from lanternbench.experiment.generate_samples import make_samples
from lanternbench.experiment.scoring import prepare_scorer
from lanternbench.measure.summaries import Costs
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.metrics import ImageMetric, scorers_for
from lanternbench.metrics.setup import Setup
from lanternbench.models.catalogue import load_with_drafter, with_drafter
from lanternbench.models.grids import size
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
    """What a run folder records about its workers."""

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
        named = {m.drafter: m for m in methods if m.drafter}
        unused = None if named else c.drafter  # by any method, as loading it says
        self.target = load_with_drafter(c.target, unused, device, c.random_weights, c.dtype, used, c.compile)
        self.targets = {None: self.target} | {spec: self._drafted(m) for spec, m in named.items()}
        sampling = (c.temperature, c.top_k, c.top_p, c.guidance, c.simulate_acceptance)
        self.decoders = {m.label: build(self.targets[m.drafter], m, *sampling) for m in methods}

    def _drafted(self, method: Method) -> Target:
        """The target with a method's own drafter.  Raises UserError where that is of another kind."""
        target, kind = with_drafter(self.target, str(method.drafter), self.device, self.config.random_weights)
        if kind != method.proposal.drafter_kind:
            raise UserError(
                f"'{method.drafter}' is a drafter of kind '{kind}', which '{method.label}' does not use: choose a "
                f"method that does, see `lanternbench methods`, or give --proposal {kind}"
            )
        return target

    @property
    def _weights(self) -> dict[str, str]:
        """Digests of the target's files and, as ``drafter.…``, of those of the drafters that methods name."""
        found = dict(self.target.weights)
        for spec, target in self.targets.items():
            own = {part: digest for part, digest in target.weights.items() if part not in self.target.weights}
            several = len(self.targets) > 2
            found |= {part.replace("drafter", f"drafter.{spec}", 1) if several else part: d for part, d in own.items()}
        return found

    @cached_property
    def scorers(self) -> list[ImageMetric]:
        """The metrics of single images; none where images are noise."""
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
            {
                "name": t.name,
                "grid": list(t.grid),
                "vocab": t.vocab,
                "evaluators": t.evaluators,
                "weights": self._weights,
            }
            | {"weights": self._weights, "prompt_template": t.prompt_template}
            | ({"tokens_before": t.length - size(t.grid)} if len(t.grids) > 1 else {})
            | ({"remark": t.remark} if t.remark else {}),
            environment() | mode(t),
        )

    def prepare(self, captions: list[str]) -> None:
        """Encode captions and load scorers before any clock starts; the text encoder is loaded once."""
        self.target.prepare(captions)
        for scorer in self.scorers:
            prepare_scorer(scorer)

    def warm_up(self, label: str, caption: str, on_step: OnStep | None = None) -> None:
        """A few steps that do not count: the first calls allocate memory and choose kernels."""
        generate(self.decoders[label], [caption], seed=self.config.seed, max_steps=WARMUP_STEPS, on_step=on_step)

    def seconds_per_image(self, label: str, captions: list[str]) -> float:
        """An estimate from a few steps of one batch: encoding, decoding and rendering, by image."""
        decoder, seed = self.decoders[label], self.config.seed
        for _ in range(2):  # the first is a warm-up
            made = generate(decoder, captions, seed=seed, max_steps=WARMUP_STEPS)
        clock = time.perf_counter()
        self.target.images(made[0].tokens[None], captions[:1])
        rendering = time.perf_counter() - clock
        encoding = (made[0].encode_s + self.target.encode_seconds(captions)) / len(captions)
        tokens = max(sum(sum(g.accept_lengths) for g in made), 1)
        return encoding + made[0].decode_s * self.target.length / tokens + rendering

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
