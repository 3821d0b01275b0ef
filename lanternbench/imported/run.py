"""Images that other code made, stored in a run folder with the same prompts measured by ``ar``."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lanternbench.costs.forward_cost import memory_rate
from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.opening import pieces
from lanternbench.engine.sampling import at
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.experiment.runner import record_memory_rate, record_of
from lanternbench.experiment.worker import Job, Worker
from lanternbench.imported.layouts import Entry
from lanternbench.measure.fidelity import FLOOR
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_record import MethodRecord
from lanternbench.measure.samples import IMPORTED, Sample, fields_of, sample_key
from lanternbench.measure.summary import summarise
from lanternbench.metrics import read_image
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.prompts.formats import clean
from lanternbench.settings import Sweep
from lanternbench.utils.json_values import config_hash
from lanternbench.utils.progress import Progress, counted, silent

LOG_PROB = "log-prob"  # the metric's name: mean over an image's tokens, in nats
EXCLUDED = -23.0  # log-probabilities below it are log FLOOR = −23.03, of excluded tokens


class Matched(NamedTuple):
    """An entry with its prompt and seed: the n-th image of a prompt has seed n."""

    entry: Entry
    prompt: Prompt
    seed: int

    def key(self, method: str) -> str:
        return sample_key(self.prompt.id, method, self.seed)


class Known:
    """The prompts of a set by what files call them."""

    def __init__(self, prompts: PromptSet):
        self.prompts = prompts.prompts
        self.source = prompts.source
        self.by_text: dict[str, list[Prompt]] = {}
        self.by_name: dict[str, Prompt] = {}  # ids, and names of reference images
        for prompt in prompts:
            self.by_text.setdefault(prompt.text, []).append(prompt)
            self.by_name[Path(prompt.image or prompt.id).stem] = prompt
        self.by_name |= {prompt.id: prompt for prompt in prompts}

    def named(self, entry: Entry) -> Prompt | None:
        """Return the prompt of an entry's id, of which a name of a file may be a sample."""
        name = entry.id or ""
        return self.by_name.get(name) or self.by_name.get(re.sub(r"[_-]\d+$", "", name))

    def numbered(self, entry: Entry) -> Prompt | None:
        if entry.number is None or entry.number >= len(self.prompts):
            return None
        return self.prompts[entry.number]

    def captioned(self, entry: Entry) -> Prompt | None:
        """Return the prompt of an entry's caption; of several, the one with its id, or the first."""
        same = self.by_text.get(clean(entry.caption), [])
        of_id = [prompt for prompt in same if prompt.id == entry.id]
        return next(iter(of_id or same), None)

    def missing(self, entry: Entry) -> UserError:
        what = f"prompt '{entry.id or entry.number}'"
        if entry.caption is not None:
            what = f"caption '{entry.caption[:60]}'"
        fix = "give the --prompts that it was made with"
        if self.source != IMPORTED:
            fix = f"{self.source} is another set"
        return UserError(f"{entry.where}: there is no {what} among the prompts: {fix}.")


def matched(entries: Sequence[Entry], prompts: PromptSet | None, first: int = 0) -> list[Matched]:
    """Return every entry with its prompt, by caption, id or number; by default captions are the
    prompts.  Raises UserError.

    ``first``: the seed of the first image of a prompt.
    """
    known = Known(prompts or captions_of(entries))
    named = [entry for entry in entries if entry.caption is None]
    of_names = iter(_by_name(named, known))
    seeds: dict[str, int] = {}
    items = []
    for entry in entries:
        prompt = next(of_names) if entry.caption is None else known.captioned(entry)
        if prompt is None:
            raise known.missing(entry)
        seed = seeds.get(prompt.id, first)
        seeds[prompt.id] = seed + 1
        items.append(Matched(entry, prompt, seed))
    return items


def captions_of(entries: Sequence[Entry]) -> PromptSet:
    """Return the captions of entries as prompts, by their ids if they have some.  Raises UserError
    for two captions of one id.
    """
    prompts: dict[tuple[str | None, str], Prompt] = {}
    for entry in entries:
        if entry.caption is not None:
            text = clean(entry.caption)
            name = entry.id or str(len(prompts) + 1)
            prompts.setdefault((entry.id, text), Prompt(name.replace("|", "_"), text))
    if len({prompt.id for prompt in prompts.values()}) < len(prompts):
        raise UserError("two captions have the same id: give each prompt one of its own, or none.")
    return PromptSet(tuple(prompts.values()), IMPORTED, IMPORTED, 0)


def _by_name(entries: Sequence[Entry], known: Known) -> list[Prompt]:
    """Return the prompts of entries without captions: all by their ids, or all by their numbers.

    Raises UserError if some have no prompt either way, or if the two ways differ.
    """
    by_id = [known.named(entry) for entry in entries]
    by_number = [known.numbered(entry) for entry in entries]
    complete = [way for way in (by_id, by_number) if None not in way]
    if not complete:
        raise known.missing(entries[by_number.index(None)])
    for entry, one, other in zip(entries, complete[0], complete[-1]):
        if one != other:
            raise UserError(
                f"{entry.where} may be the prompt with that id or the one with that number from 0:"
                " give a .jsonl file with captions instead."
            )
    return [prompt for prompt in complete[0] if prompt is not None]


def check_tokens(entries: Sequence[Entry], target: Target) -> None:
    """Raise UserError for tokens that the target cannot have drawn, or more steps than tokens."""
    grid = " × ".join(map(str, target.grid))
    for entry in entries:
        steps = max(entry.steps or 0, entry.per_step or 0)
        if steps > target.length:
            raise UserError(
                f"{entry.where} has {steps:g} steps or tokens a step, and an image of"
                f" {target.name} has {target.length} tokens: give the forward passes of the target"
                " for one image."
            )
        tokens = entry.tokens
        if tokens is None:
            continue
        if tokens.shape != (target.length,):
            raise UserError(
                f"{entry.where} has {tokens.size} tokens, and {target.name} draws"
                f" {target.length} ({grid}): give its image tokens alone, without text and row"
                " ends."
            )
        if len(entry.shape) > 1 and entry.shape != target.grid:
            shape = " × ".join(map(str, entry.shape))
            raise UserError(
                f"{entry.where} has {shape} tokens, and {target.name} draws {grid}: give rows of"
                " that grid, or all tokens in one row."
            )
        wrong = tokens[(tokens < 0) | (tokens >= target.vocab)]
        if wrong.size:
            raise UserError(
                f"{entry.where} has token {wrong[0]}, and the codebook of {target.name}"
                f" {target.vocab}: give indices of the codebook, not ids of the language model's"
                " vocabulary."
            )


def import_run(
    entries: Sequence[Entry],
    label: str,
    config: Sweep,
    prompts: PromptSet | None,
    out: Path,
    device: str,
    fresh: bool = False,
    progress: Progress = silent,
) -> Path:
    """Store the entries with the ``ar`` of the same prompts, measured on this machine; return the
    run folder.

    Another label's entries on the same prompts and settings go into the same folder, in which
    ``ar`` is measured once.  Raises UserError for entries that do not fit the target or the
    prompts, before anything is computed.
    """
    prompts = prompts or captions_of(entries)
    items = matched(entries, prompts, config.seed)
    worker = Worker(config, device)
    check_tokens(entries, worker.target)
    with_images = {item.prompt.id: item.prompt for item in items}
    chosen = PromptSet(tuple(with_images.values()), prompts.source, prompts.dataset, config.seed)
    repeats = max(item.seed for item in items) + 1 - config.seed
    config = config.model_copy(update={"repeats": repeats, "num_prompts": len(chosen)})
    record = record_of(config, worker.facts(), chosen)
    if not config.baseline:
        record = record.model_copy(update={"methods": []})
    with RunFolder.open(out, record, fresh) as folder:
        record_memory_rate(folder, partial(memory_rate, device))
        digest = config_hash({"entries": [_plain(entry) for entry in entries]})
        method = _declare(folder, f"{label} ({IMPORTED})", digest)
        _store_all(folder, worker, items, method, progress)
        folder.finish(summarise(folder.figures, folder.run))
        return folder.path


def _store_all(
    folder: RunFolder,
    worker: Worker,
    items: Sequence[Matched],
    method: MethodRecord,
    progress: Progress,
) -> None:
    """Measure ``ar`` and store the entries where that is still to be done."""

    def left(key: str) -> list[Matched]:
        return [item for item in items if item.key(key) not in folder.samples.keys]

    baseline: list[Matched] = []
    if worker.config.baseline:
        baseline = left(worker.decoders[BASELINE].method.key)
    missing = left(str(method.key))
    worker.prepare([item.prompt.text for item in baseline + missing])
    if baseline:
        worker.warm_up(BASELINE, baseline[0].prompt.text)
    for item in counted(baseline, progress, lambda item: f"{BASELINE} · {item.prompt.text}"):
        for sample, image, _ in worker.work(Job(BASELINE, [item.prompt], item.seed)):
            tokens = torch.tensor([sample.token_ids], device=worker.target.device)
            scored = _scored(worker, item, tokens)
            metrics = {LOG_PROB: scored.mean().item()}
            folder.append(sample.model_copy(update={"metrics": metrics}), image)
    for item in counted(missing, progress, lambda item: f"{method.label} · {item.prompt.text}"):
        _store(folder, worker, item, method)


def _plain(entry: Entry) -> dict[str, object]:
    """Return an entry as its digest sees it."""
    values = entry._asdict()
    if entry.tokens is not None:
        values["tokens"] = entry.tokens.tolist()
    if isinstance(entry.image, Path):
        values["image"] = entry.image.name
    elif entry.image is not None:
        values["image"] = entry.image.tobytes().hex()
    return values


def _declare(folder: RunFolder, name: str, digest: str) -> MethodRecord:
    """Record the entries' method in run.json.  Raises UserError if other entries have its name."""
    key = digest[:16]
    method = MethodRecord(
        label=name, key=key, method=IMPORTED, options={"digest": key}, lossless=None
    )
    others = [other for other in folder.run.methods if other != method]
    if any(other.label == name for other in others):
        raise UserError(
            f"{folder.path} has other images labelled '{name}': give another --label, or --fresh."
        )
    folder.record(methods=[*others, method])
    return method


@torch.inference_mode()
def log_probs(decoder: SpeculativeDecoder, captions: list[str], tokens: Tensor) -> Tensor:
    """Return log q(x_i | x_<i, caption) of every token [B, L] -> [B, L], in nats, in one forward
    pass over them.

    q as the decoder draws from it, after guidance and warping; a token that this excludes counts
    as ``FLOOR``.
    """
    prefix = decoder.target.prefix(captions, decoder.guidance)
    probs = []
    for i, image in enumerate(tokens):
        start = 0
        for q in pieces(decoder.target, prefix, tokens, i, decoder.guidance, decoder.warp):
            end = start + q.shape[1]
            probs.append(at(q[0], image[start:end]))
            start = end
    return torch.cat(probs).view(tokens.shape).clamp(min=FLOOR).log()


def _scored(worker: Worker, item: Matched, tokens: Tensor) -> Tensor:
    """Return the log-probabilities [L] of tokens [1, L]: one image a forward pass, so that the
    same tokens give the same number.
    """
    decoder = next(iter(worker.decoders.values()))
    return log_probs(decoder, [item.prompt.text], tokens)[0]


def _store(folder: RunFolder, worker: Worker, item: Matched, method: MethodRecord) -> None:
    """Store one entry, with the share of its tokens that the warped target excludes."""
    entry = item.entry
    target = worker.target
    stats: dict[str, float] = {}
    metrics: dict[str, float | None] = {}
    token_ids: list[int] = []
    if entry.tokens is not None:
        tokens = torch.from_numpy(entry.tokens)[None].to(target.device)
        scored = _scored(worker, item, tokens)
        metrics[LOG_PROB] = scored.mean().item()
        stats["outside_support"] = (scored < EXCLUDED).double().mean().item()
        token_ids = entry.tokens.tolist()
        image = target.images(tokens, [item.prompt.text])[0]
    elif isinstance(entry.image, np.ndarray):
        image = Image.fromarray(entry.image)
    else:
        image = read_image(str(entry.image))
    steps = entry.steps or 0
    if entry.per_step:
        steps = round(target.length / entry.per_step)
    sample = Sample(
        **fields_of(item.prompt, method, item.seed),
        tokens=target.length,
        steps=steps,
        accept_lengths=[],
        decode_s=0.0,
        timed=False,
        stated_s=entry.seconds,
        token_ids=token_ids,
        stats=stats,
        metrics=metrics,
    )
    folder.append(sample, image)
