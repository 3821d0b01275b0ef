"""Images that other code made, stored in a run folder with the same prompts measured by ``ar``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.opening import pieces
from lanternbench.engine.sampling import at
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.experiment.config import expand
from lanternbench.experiment.runner import open_run
from lanternbench.experiment.scoring import Progress, silent
from lanternbench.experiment.worker import Job, Worker
from lanternbench.imported.layouts import Entry
from lanternbench.measure.fidelity import FLOOR
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_record import MethodRecord
from lanternbench.measure.samples import IMPORTED, Sample, sample_key
from lanternbench.measure.summary import summarise
from lanternbench.metrics import read_image
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.prompts.formats import clean
from lanternbench.settings import Sweep
from lanternbench.utils.json_values import config_hash

LOG_PROB = "log-prob"  # the metric's name: mean over an image's tokens, in nats
EXCLUDED = -23.0  # log-probabilities below it are log FLOOR = −23.03, of excluded tokens


class Matched(NamedTuple):
    """An entry with its prompt and seed: the n-th image of a prompt has seed n."""

    entry: Entry
    prompt: Prompt
    seed: int

    def key(self, method: str) -> str:
        return sample_key(self.prompt.id, method, self.seed)


def matched(entries: Sequence[Entry], prompts: PromptSet | None, first: int = 0) -> list[Matched]:
    """Return every entry with its prompt, by caption or number; by default captions are the
    prompts.  Raises UserError.

    ``first``: the seed of the first image of a prompt.
    """
    by_text = {prompt.text: prompt for prompt in prompts or ()}
    seeds: dict[str, int] = {}
    items = []
    for entry in entries:
        if prompts is None and entry.caption is not None:
            _add_prompt(by_text, entry)
        prompt = _prompt_of(entry, prompts, by_text)
        seed = seeds.get(prompt.id, first)
        seeds[prompt.id] = seed + 1
        items.append(Matched(entry, prompt, seed))
    if len({prompt.id for prompt in by_text.values()}) < len(by_text):
        raise UserError("two captions have the same id: give each prompt one of its own, or none.")
    return items


def _add_prompt(by_text: dict[str, Prompt], entry: Entry) -> None:
    """Add the entry's caption to the prompts."""
    text = clean(entry.caption or "")
    name = entry.id or str(len(by_text) + 1)
    by_text.setdefault(text, Prompt(name.replace("|", "_"), text))


def _prompt_of(entry: Entry, prompts: PromptSet | None, by_text: dict[str, Prompt]) -> Prompt:
    """Return the prompt of an entry.  Raises UserError if there is none."""
    if entry.caption is not None:
        text = clean(entry.caption)
        if text in by_text:
            return by_text[text]
        what = f"caption '{text[:60]}'"
    else:
        if prompts is not None and entry.number is not None and entry.number < len(prompts):
            return prompts.prompts[entry.number]
        what = f"prompt {entry.number}"
    fix = "give the --prompts that it was made with"
    if prompts is not None:
        fix = f"{prompts.source} is another set"
    raise UserError(f"{entry.where}: there is no {what} among the prompts: {fix}.")


def check_tokens(entries: Sequence[Entry], target: Target) -> None:
    """Raise UserError for tokens that the target cannot have drawn."""
    for entry in entries:
        tokens = entry.tokens
        if tokens is None:
            continue
        if tokens.shape != (target.length,):
            rows, columns = target.grid
            text = f"{entry.where} has {tokens.size} tokens, and {target.name} draws {target.length} ({rows} × {columns})"
            raise UserError(f"{text}: give its image tokens alone, without text and row ends.")
        wrong = tokens[(tokens < 0) | (tokens >= target.vocab)]
        if wrong.size:
            text = f"{entry.where} has token {wrong[0]}, and the codebook of {target.name} {target.vocab}"
            raise UserError(
                f"{text}: give indices of the codebook, not ids of the language model's vocabulary."
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
    items = matched(entries, prompts, config.seed)
    worker = Worker(config, device)
    check_tokens(entries, worker.target)
    chosen = _prompts_of(items, prompts, config.seed)
    repeats = max(item.seed for item in items) + 1 - config.seed
    config = config.model_copy(update={"repeats": repeats, "num_prompts": len(chosen)})
    methods = expand(config)[:1] if config.baseline else []
    with open_run(out, config, worker.facts(), chosen, methods, fresh) as folder:
        digest = config_hash({"entries": [_plain(entry) for entry in entries]})
        method = _declare(folder, f"{label} ({IMPORTED})", digest)
        _store_all(folder, worker, items, method, progress)
        folder.finish(summarise(folder.figures, folder.run))
        return folder.path


def _prompts_of(items: Sequence[Matched], prompts: PromptSet | None, seed: int) -> PromptSet:
    """Return the prompts that have images, each once."""
    chosen = {item.prompt.id: item.prompt for item in items}
    source = IMPORTED
    dataset = IMPORTED
    if prompts is not None:
        source = prompts.source
        dataset = prompts.dataset
    return PromptSet(tuple(chosen.values()), source, dataset, seed)


def _store_all(
    folder: RunFolder,
    worker: Worker,
    items: Sequence[Matched],
    method: MethodRecord,
    progress: Progress,
) -> None:
    """Measure ``ar`` and store the entries where that is still to be done."""
    done = folder.samples.keys
    baseline: list[Matched] = []
    if worker.config.baseline:
        key = worker.decoders[BASELINE].method.key
        baseline = [item for item in items if item.key(key) not in done]
    missing = [item for item in items if item.key(str(method.key)) not in done]
    count = len(baseline) + len(missing)
    worker.prepare([item.prompt.text for item in baseline + missing])
    if baseline:
        worker.warm_up(BASELINE, baseline[0].prompt.text)
    for number, item in enumerate(baseline):
        progress(number, count, f"{BASELINE} · {item.prompt.text}")
        for sample, image in worker.work(Job(BASELINE, [item.prompt], item.seed)):
            log_prob = _scored(worker, item, np.array(sample.token_ids)).mean().item()
            folder.append(sample.model_copy(update={"metrics": {LOG_PROB: log_prob}}), image)
    for number, item in enumerate(missing, len(baseline)):
        progress(number, count, f"{method.label} · {item.prompt.text}")
        _store(folder, worker, item, method)


def _plain(entry: Entry) -> dict[str, Any]:
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


def _scored(worker: Worker, item: Matched, tokens: NDArray) -> Tensor:
    """Return log-probabilities [L]: one image a forward pass, so that the same tokens give the
    same number.
    """
    decoder = next(iter(worker.decoders.values()))
    image = torch.from_numpy(tokens)[None].to(worker.target.device)
    return log_probs(decoder, [item.prompt.text], image)[0]


def _store(folder: RunFolder, worker: Worker, item: Matched, method: MethodRecord) -> None:
    """Store one entry, with the share of its tokens that the warped target excludes."""
    entry, prompt = item.entry, item.prompt
    target = worker.target
    stats: dict[str, float] = {}
    metrics: dict[str, float | None] = {}
    token_ids: list[int] = []
    if entry.tokens is not None:
        scored = _scored(worker, item, entry.tokens)
        metrics[LOG_PROB] = scored.mean().item()
        stats["outside_support"] = (scored < EXCLUDED).double().mean().item()
        token_ids = entry.tokens.tolist()
        tokens = torch.from_numpy(entry.tokens)[None].to(target.device)
        image = target.images(tokens, [prompt.text])[0]
    elif isinstance(entry.image, np.ndarray):
        image = Image.fromarray(entry.image)
    else:
        image = read_image(str(entry.image))
    steps = entry.steps or 0
    if entry.per_step:
        steps = round(target.length / entry.per_step)
    sample = Sample(
        key=item.key(str(method.key)),
        prompt_id=prompt.id,
        prompt=prompt.text,
        category=prompt.category,
        challenge=prompt.challenge,
        label=method.label,
        method=IMPORTED,
        options=method.options,
        seed=item.seed,
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
