"""Makers of a sweep's samples: a worker in any process, and executors, with one worker in this
process or with others elsewhere.

A worker is a target, its decoders and the scorers of single images, loaded once.  A sample:
decode, render, and the figures that need no clock; it is the same whichever executor makes it.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import torch
from PIL import Image

from lanternbench.costs.forward_cost import memory_rate, read_bytes
from lanternbench.engine.decode import Generation, SpeculativeDecoder, generate
from lanternbench.engine.opening import shared_cache_bytes
from lanternbench.engine.recording import Recordings
from lanternbench.engine.trace import trace_bytes
from lanternbench.errors import UserError
from lanternbench.experiment.config import expand
from lanternbench.experiment.environment import environment
from lanternbench.experiment.run_folder import Device
from lanternbench.measure.fidelity import decode_loss, drafter_figures, row_losses, target_figures
from lanternbench.measure.run_record import Environment, MethodRecord, TargetRecord
from lanternbench.measure.samples import Sample, fields_of
from lanternbench.measure.summary import Cost, Costs
from lanternbench.methods.build import build
from lanternbench.methods.method import Method
from lanternbench.metrics import ImageMetric, Setup, scorers_for
from lanternbench.metrics.class_names import class_caption
from lanternbench.models.catalogue import load_with_drafter, with_drafter
from lanternbench.models.footprint import Demand
from lanternbench.models.grids import size
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt
from lanternbench.settings import ModelSpec, Sampling, Sweep
from lanternbench.utils.device import cpu_threads, load_average
from lanternbench.utils.memory import BatchLimit, memory_errors, peak_memory
from lanternbench.utils.peak_memory import CudaAllocator, Measured, PeakMemory
from lanternbench.utils.processes import process_count, side_by_side

WARMUP_STEPS = 12
PREPARED = 8192  # units whose captions are encoded together, before any of them is decoded
PHASES = ("draft", "verify", "commit")  # of a step; what is left is "other"
OnStep = Callable[[int, int], None]  # tokens done, of
Say = Callable[[str], None]  # shows the current activity


class Job(NamedTuple):
    """Prompts to decode together by one method, with one seed."""

    label: str
    prompts: list[Prompt]
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.label} · {self.prompts[0].text}"


Unit = list[Job]  # prompts with all the methods that they lack, in their order, for one device


class Finished(NamedTuple):
    """A finished sample."""

    sample: Sample
    image: Image.Image
    where: Device | None = None  # that decoded it, if there are several


class Facts(NamedTuple):
    """Facts that a run folder records about its workers."""

    device: str
    sampling: Sampling  # of the target
    methods: list[MethodRecord]
    target: TargetRecord
    environment: Environment

    def run_by(self, executor: str, workers: int) -> Self:
        """Return the facts with the executor and the number of its workers."""
        changes = {"executor": executor, "workers": workers}
        return self._replace(environment=self.environment.model_copy(update=changes))


class Worker:
    """Makes samples of one sweep on one device.  Raises UserError if a setting is wrong or weights
    are missing.
    """

    def __init__(self, config: Sweep, device: str):
        self.config = config
        self.device = device
        self.costs: Costs = {}  # what the scores took
        methods = expand(config)
        drafters = {m.drafter: m for m in methods if m.drafter}
        spec = config.part(ModelSpec)
        if drafters:  # methods load it; if none does, loading it here says so
            spec = spec.model_copy(update={"drafter": None})
        demand = Demand(
            config.batch,
            config.guidance if "guidance" in config.model_fields_set else None,
            keeps_distributions=config.simulate_acceptance is None,
            drafters=tuple(drafters),
        )
        proposals = {one.choices.proposal for one in methods}
        self.target = load_with_drafter(spec, device, proposals, demand)
        self.batch_limits: dict[str, BatchLimit] = defaultdict(BatchLimit)  # by label
        self.targets: dict[str | None, Target] = {None: self.target}
        for drafter, one in drafters.items():
            self.targets[drafter] = self._drafted(one)
        device_of = self.target.device
        self.memory = PeakMemory(CudaAllocator(device_of)) if device_of.type == "cuda" else None
        self.decoders: dict[str, SpeculativeDecoder] = {}
        for one in methods:
            self.decoders[one.label] = build(
                self.targets[one.drafter], one, config.part(Sampling), config.simulate_acceptance
            )

    def _drafted(self, method: Method) -> Target:
        """Return the target with the method's drafter.  Raises UserError for a drafter of another kind."""
        target, kind = with_drafter(
            self.target, str(method.drafter), self.device, self.config.random_weights
        )
        if kind != method.proposal.drafter_kind:
            raise UserError(
                f"'{method.drafter}' is a drafter of kind '{kind}', which '{method.label}' does not use:"
                f" choose one of `lanternbench methods` that does, or give --proposal {kind}"
            )
        return target

    @cached_property
    def scorers(self) -> list[ImageMetric]:
        """The metrics of single images; none if images are noise."""
        if self.config.draws_noise:
            return []
        scorers = scorers_for(
            self.config.metrics, self.target.evaluators, Setup(device=self.device)
        )
        return [s for s in scorers if isinstance(s, ImageMetric)]

    def facts(self) -> Facts:
        target = self.target
        facts = {
            "name": target.name,
            "grid": target.grid,
            "vocab": target.vocab,
            "evaluators": target.evaluators,
            "weights": self._weights(),
            "prompt_template": target.prompt_template,
            "top_k": target.sampling.top_k,
            "read_bytes": read_bytes(target.model),
        }
        if len(target.grids) > 1:
            facts["tokens_before"] = target.length - size(target.grid)
        if target.remark:
            facts["remark"] = target.remark
        if target.labels:
            facts["labels"] = True
        machine = environment() | mode(target)
        return Facts(
            self.device,
            target.sampling,
            list(map(method_record, self.decoders.values())),
            TargetRecord.model_validate(facts),
            Environment.model_validate(machine),
        )

    def _weights(self) -> dict[str, str]:
        """Return digests of the files of the target and of the drafters that methods name."""
        weights = dict(self.target.weights)
        several = len(self.targets) > 2
        for spec, drafted in self.targets.items():
            for part, digest in drafted.weights.items():
                if part in self.target.weights:
                    continue
                name = part.replace("drafter", f"drafter.{spec}", 1) if several else part
                weights[name] = digest
        return weights

    def prepare(self, captions: list[str]) -> None:
        """Encode captions and load scorers before any clock starts; the text encoder is loaded
        once.
        """
        with memory_errors("captions were encoded"):
            self.target.prepare(captions)
        with memory_errors("metrics were loaded", "give fewer --metrics, or score later"):
            for scorer in self.scorers:
                if not scorer.available():
                    scorer.prepare()

    def warm_up(self, label: str, caption: str, on_step: OnStep | None = None) -> None:
        """Decode a few steps that do not count: the first calls allocate memory and choose kernels."""
        decoder = self.decoders[label]
        seed = self.config.seed
        with memory_errors(f"'{label}' decoded"), measured_memory(self.memory, decoder):
            generate(decoder, [caption], seed=seed, max_steps=WARMUP_STEPS, on_step=on_step)

    def seconds_per_image(self, label: str, captions: list[str]) -> float:
        """Return an estimate from a few steps of one batch: encoding, decoding and rendering."""
        decoder, seed = self.decoders[label], self.config.seed
        for _ in range(2):  # the first is a warm-up
            generations = generate(decoder, captions, seed=seed, max_steps=WARMUP_STEPS)
        first = generations[0]
        clock = time.perf_counter()
        self.target.images(first.tokens[None], captions[:1])
        rendering = time.perf_counter() - clock
        encoding = (first.encode_s + self.target.encode_seconds(captions)) / len(captions)
        tokens = max(sum(sum(g.accept_lengths) for g in generations), 1)
        return encoding + first.decode_s * self.target.length / tokens + rendering

    def work(self, job: Job, on_step: OnStep | None = None) -> Iterator[Finished]:
        """Yield the job's samples, scored, with their images; ``on_step`` is called after every
        step.
        """
        limit = self.batch_limits[job.label]
        decode = partial(
            make_samples,
            self.decoders[job.label],
            seed=job.seed,
            timed=self.config.batch == 1,
            on_step=on_step,
            memory=self.memory,
        )
        with memory_errors(f"'{job.label}' decoded"):
            samples = limit.results(decode, job.prompts, self.forget_recordings)
        for one in samples:
            self._score(one.sample, one.image)
            yield one

    def _score(self, sample: Sample, image: Image.Image) -> None:
        """Add the metrics of single images to a sample."""
        for scorer in self.scorers:
            caption = class_caption(sample.prompt) if self.target.labels else sample.prompt
            clock = time.perf_counter()
            value = scorer.score([image], [caption])[0]
            sample.metrics[scorer.name] = value
            if value is not None:
                seconds = time.perf_counter() - clock
                add_costs(self.costs, {scorer.name: Cost(1, seconds)})

    def forget_recordings(self) -> None:
        """Drop what is recorded for batches that turned out to be too large."""
        for decoder in self.decoders.values():
            decoder.recordings = Recordings()
        for target in self.targets.values():
            if target.graphs is not None:
                target.graphs.caches.clear()
        if self.memory is not None:  # what it counted is gone
            self.memory.shared = 0
            self.memory.buffers.clear()
            self.memory.owners.clear()


class Executor:
    """Makes all samples in this process (Ray: in others): ``start``, ``samples``, ``notes``, then
    ``close``.
    """

    def __init__(self) -> None:
        self.costs: Costs = {}  # of the scores
        self.captions: dict[str, None] = {}  # that were prepared

    def start(self, config: Sweep, device: str, units: int) -> Facts:
        """Load the models, for ``units`` units at most.  Raises UserError if a setting is wrong."""
        self.worker = Worker(config, device)
        self.costs, facts = self.worker.costs, self.worker.facts()
        return facts.run_by("local", 1)

    def memory_rate(self) -> float | None:
        """Return the GB/s at which the device reads memory, None if it cannot be measured."""
        return memory_rate(self.worker.device)

    def samples(
        self, units: list[Unit], caption: str, say: Say, on_step: OnStep | None = None
    ) -> Iterator[Finished]:
        """Yield the results of ``units``, each when it is there; ``caption``: of warm-ups;
        ``on_step``: after each step.
        """
        labels, _ = self.named(units)
        for start in range(0, len(units), PREPARED):
            part = units[start : start + PREPARED]
            _, captions = self.named(part)
            self.worker.prepare(captions)
            self.captions |= dict.fromkeys(captions)
            for label in labels:
                say(f"warming up {label}")
                self.worker.warm_up(label, caption, on_step)
            for job in itertools.chain(*part):
                say(str(job))
                yield from self.worker.work(job, on_step)

    @staticmethod
    def named(units: list[Unit]) -> tuple[list[str], list[str]]:
        """Return the labels of the units, and their captions, each once."""
        labels: dict[str, None] = {}
        captions: dict[str, None] = {}
        for unit in units:
            for job in unit:
                labels[job.label] = None
                captions |= dict.fromkeys(prompt.text for prompt in job.prompts)
        return list(labels), list(captions)

    def estimate(self, units: list[Unit]) -> dict[str, float]:
        """Return seconds an image by method, from a few steps of each; nothing if workers
        elsewhere make the samples.
        """
        captions = [prompt.text for prompt in units[0][0].prompts]
        labels, _ = self.named(units)
        return {label: self.worker.seconds_per_image(label, captions) for label in labels}

    def notes(self) -> Iterator[str]:
        """Yield notes for the reader of the results; on a CPU memory is the process's, whichever
        method runs.
        """
        yield from self.worker.target.caption_notes(list(self.captions))
        for label, limit in self.worker.batch_limits.items():
            if limit.items is not None:
                yield (
                    f"{label} decoded {limit.items} prompts at once, because memory ran out for"
                    " more: images are the same, a smaller --batch saves the attempts."
                )
        peak = peak_memory()
        if self.worker.device == "cpu" and peak is not None:
            yield f"The process held {peak / 1e6:,.0f} MB at its peak, evaluators included."

    def close(self) -> None:
        """End what was started; calling it twice is harmless."""
        vars(self).pop("worker", None)


def executor(
    name: str = "local",
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
) -> Executor:
    """Return the executor of this name; the other arguments are for ``ray``.  Raises UserError if
    it is unknown or unavailable.
    """
    if name == "ray":
        from lanternbench.experiment.on_ray import RayExecutor

        return RayExecutor(workers, threads, address)
    if name != "local":
        raise UserError(f"unknown executor '{name}': use local or ray")
    if workers or address:
        raise UserError(
            f"{'--workers' if workers else '--ray-address'} goes with --executor ray: give that too"
        )
    return Executor()


def add_costs(total: Costs, more: Costs) -> None:
    """Add what some scores took to ``total``."""
    for name, cost in more.items():
        before = total.get(name, Cost())
        total[name] = Cost(before.images + cost.images, before.seconds + cost.seconds)


def method_record(decoder: SpeculativeDecoder) -> MethodRecord:
    """Return what run.json says of a method."""
    method = decoder.method
    return MethodRecord(
        label=method.label,
        key=method.key,
        method=method.preset,
        options=method.options,
        lossless=decoder.lossless,
    )


def mode(target: Target) -> dict[str, str]:
    """Return how the target runs: device, dtype, and whether forward passes are recorded."""
    return {
        "device": str(target.device),
        "dtype": target.dtype_name,
        "compile": "eager" if target.graphs is None else target.graphs.mode,
    }


def measured_memory(
    memory: PeakMemory | None, decoder: SpeculativeDecoder
) -> AbstractContextManager[Measured]:
    """Measure the memory of a decode if the device can tell it."""
    if memory is None:
        return nullcontext(Measured())
    return memory.measure(decoder.method.key, partial(shared_cache_bytes, decoder.target))


def make_samples(
    decoder: SpeculativeDecoder,
    prompts: list[Prompt],
    seed: int,
    timed: bool,
    on_step: OnStep | None = None,
    memory: PeakMemory | None = None,
) -> list[Finished]:
    """Return an image per prompt; ``on_step``: called after each step, in one process alone."""
    target = decoder.target
    record = method_record(decoder)
    count = process_count(target.model, len(prompts))
    traced = decoder.rates is None  # what a simulated acceptance commits has no distribution

    def make(part: list[Prompt]) -> list[Finished]:
        captions = [prompt.text for prompt in part]
        ids = [prompt.id for prompt in part]
        own_on_step = on_step if count == 1 else None
        with measured_memory(memory, decoder) as measured:
            generations = generate(decoder, captions, ids, seed, trace=traced, on_step=own_on_step)
            measured.traces = trace_bytes(generations[0])
        clock = time.perf_counter()
        images = target.images(torch.stack([g.tokens for g in generations]), captions)
        render_s = time.perf_counter() - clock
        # of the features that were stored before the clock started, too
        encode_s = generations[0].encode_s + target.encode_seconds(captions)
        shared: dict[str, Any] = {
            "timed": timed,
            "noise": "shared" if decoder.warp.shares_noise else None,
            "encode_s": encode_s / len(part),
            "render_s": render_s / len(part),
            "peak_memory_mb": None if memory is None else measured.peak / 1e6,
        }
        if timed:
            shared["threads"] = cpu_threads(target.device)
            shared["load"] = load_average()
        together = len(part) * count  # the other parts take the same time
        of_trace = trace_fields(decoder, generations)
        samples = []
        for prompt, generation, fields in zip(part, generations, of_trace, strict=True):
            fields |= shared
            fields |= decode_fields(decoder, generation, together)
            fields |= fields_of(prompt, record, seed)
            if timed:
                fields["step_s"] = [round(seconds, 7) for seconds in generation.step_s]
                fields["cpu_s"] = generation.cpu_s
            samples.append(Sample(**fields))
        return list(map(Finished, samples, images))

    return list(side_by_side(make, prompts, count))


def trace_fields(
    decoder: SpeculativeDecoder, generations: list[Generation]
) -> list[dict[str, Any]]:
    """Return the fields of samples that their trace gives, off the clock: fidelity loss, and
    statistics of drafter and target.
    """
    trace = generations[0].trace
    if trace is None:
        return [{} for _ in generations]
    tokens = torch.stack([g.tokens for g in generations])
    target = target_figures(trace, tokens)
    drafter: dict[str, torch.Tensor] = {}
    # first children that noise chose are not the drafter's likeliest tokens
    if decoder.method.proposal.drafter_kind is not None and not decoder.warp.shares_noise:
        drafter = drafter_figures(trace)
    rows: list[dict[str, Any]] = []
    losses = decode_loss(decoder, trace, tokens)
    draws_rows = trace.seen is not None  # several rows of the image at once
    for i, loss in enumerate(losses.tolist()):
        row = {
            "fidelity_loss": None if math.isnan(loss) else loss,
            "stats": _of_image(target, i),
            "drafter": _of_image(drafter, i),
        }
        if draws_rows:
            row["commit_steps"] = trace.committed_in[i].tolist()
        rows.append(row)
    has_loss = decoder.warp.sampling.temperature > 0 and not bool(losses.isnan().any())
    if draws_rows and has_loss:
        grid = decoder.target.grid
        losses = row_losses(trace, decoder.rule, decoder.residual)[:, -size(grid) :]
        losses = losses.unflatten(1, grid).clamp(0, 1).cpu()
        for row, image in zip(rows, losses, strict=True):
            row["row_loss"] = image.mean(1).tolist()
            row["column_loss"] = image.mean(0).tolist()
    return rows


def _of_image(columns: dict[str, torch.Tensor], i: int) -> dict[str, float] | None:
    """Return the defined figures of image ``i``; None if there are none."""
    values = {name: float(column[i]) for name, column in columns.items()}
    return {name: value for name, value in values.items() if not math.isnan(value)} or None


def decode_fields(decoder: SpeculativeDecoder, image: Generation, batch: int) -> dict[str, object]:
    """Return the fields of a sample that its decode gives; ``batch``: images that shared its
    seconds.
    """
    phases = {f"{name}_s": image.phases.get(name, 0.0) / batch for name in PHASES}
    others = [name for name in image.phases if name not in PHASES]
    phases["other_s"] = sum(image.phases[name] for name in others) / batch
    fields = {
        # the prefill, which gives the first token, counts as a step
        "steps": 1 + image.steps,
        "accept_lengths": [1, *image.accept_lengths],
        "tree_depths": [0, *image.tree_depths],
        "tree_nodes": [1, *image.tree_nodes],
        "tokens": len(image.tokens),
        "token_ids": image.tokens.tolist(),
        "decode_s": image.decode_s / batch,
        "phases": phases,
    }
    if decoder.proposer.size.max_depth > 0 and image.steps > 1:
        accepted = sum(length > 1 for length in image.accept_lengths)
        fields["first_token_acceptance"] = accepted / image.steps
    return fields
