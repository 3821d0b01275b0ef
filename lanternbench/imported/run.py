"""Entries -> a run folder, with ``ar`` measured beside them on the same prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.teacher_forced import pieces
from lanternbench.engine.verify import at
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.experiment.config import Sweep
from lanternbench.experiment.runner import open_run
from lanternbench.experiment.scoring import Progress, silent
from lanternbench.experiment.worker import Job, Worker
from lanternbench.imported.layouts import Entry
from lanternbench.measure.fidelity import FLOOR
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.samples import IMPORTED, Sample, sample_key
from lanternbench.measure.summary import summarise
from lanternbench.metrics import read_image
from lanternbench.models.target import Target
from lanternbench.notes import Note
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.prompts.formats import clean
from lanternbench.utils.json_values import config_hash

LOG_PROB = "log-prob"  # the metric's name: mean over an image's tokens, in nats


class Matched(NamedTuple):
    """An entry with its prompt and seed: the n-th image of a prompt has seed n."""

    entry: Entry
    prompt: Prompt
    seed: int

    def key(self, method: str) -> str:
        return sample_key(self.prompt.id, method, self.seed)


def matched(entries: Sequence[Entry], prompts: PromptSet | None, first: int = 0) -> list[Matched]:
    """Every entry with its prompt, by caption or number; by default captions are the prompts.  Raises UserError."""
    by_text = {prompt.text: prompt for prompt in prompts or ()}
    numbered = list(prompts or ())
    seeds: dict[str, int] = {}
    items = []
    for entry in entries:
        text = None if entry.caption is None else clean(entry.caption)
        if text is not None and prompts is None:
            prompt = by_text.setdefault(text, Prompt((entry.id or str(len(by_text) + 1)).replace("|", "_"), text))
        elif text is not None and text in by_text:
            prompt = by_text[text]
        elif text is None and entry.number is not None and entry.number < len(numbered):
            prompt = numbered[entry.number]
        else:
            what = f"caption '{text[:60]}'" if text is not None else f"prompt {entry.number}"
            fix = "give the --prompts that it was made with" if prompts is None else f"{prompts.source} is another set"
            raise UserError(f"{entry.where}: there is no {what} among the prompts: {fix}.")
        seed = seeds[prompt.id] = seeds.get(prompt.id, first - 1) + 1
        items.append(Matched(entry, prompt, seed))
    if len({prompt.id for prompt in by_text.values()}) < len(by_text):
        raise UserError("two captions have the same id: give each prompt one of its own, or none.")
    return items


def check_tokens(entries: Sequence[Entry], target: Target) -> None:
    """Raises UserError for tokens that the target cannot have drawn."""
    for where, tokens in ((entry.where, entry.tokens) for entry in entries):
        if tokens is not None and tokens.shape != (target.length,):
            rows, columns = target.grid
            text = f"{where} has {tokens.size} tokens, and {target.name} draws {target.length} ({rows} × {columns})"
            raise UserError(f"{text}: give its image tokens alone, without text and row ends.")
        if tokens is not None and not 0 <= tokens.min() <= tokens.max() < target.vocab:
            odd = tokens.min() if tokens.min() < 0 else tokens.max()
            text = f"{where} has token {odd}, and the codebook of {target.name} {target.vocab}"
            raise UserError(f"{text}: give indices of the codebook, not ids of the language model's vocabulary.")


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
    """Store the entries beside the ``ar`` of the same prompts, measured on this machine; returns the run folder.

    Another label's entries on the same prompts and settings go into the same folder, where ``ar`` is measured once.
    Raises UserError for entries that do not fit the target or the prompts, before anything is computed.
    """
    items = matched(entries, prompts, config.seed)
    worker = Worker(config, device)
    check_tokens(entries, worker.target)
    unique = {item.prompt.id: item.prompt for item in items}
    source, dataset = (prompts.source, prompts.dataset) if prompts else (IMPORTED, IMPORTED)
    chosen = PromptSet(tuple(unique.values()), source, dataset, config.seed)
    repeats = max(item.seed for item in items) + 1 - config.seed
    config = config.model_copy(update={"repeats": repeats, "num_prompts": len(chosen)})
    baseline = config.methods()[: int(config.baseline)]
    with open_run(out, config, worker.facts(), chosen, baseline, fresh) as folder:
        method = _declare(folder, f"{label} ({IMPORTED})", config_hash({"entries": [_plain(e) for e in entries]}))
        base, done, outside = config.methods()[0].key, folder.done(), 0
        alone = [item for item in items if config.baseline and item.key(base) not in done]
        missing = [item for item in items if item.key(method["key"]) not in done]
        worker.prepare([item.prompt.text for item in alone + missing])
        if alone:
            worker.warm_up(BASELINE, alone[0].prompt.text)
        for i, item in enumerate(alone + missing):
            progress(i, len(alone + missing), f"{BASELINE if i < len(alone) else label} · {item.prompt.text}")
            if i >= len(alone):
                outside += _store(folder, worker, item, method)
                continue
            for sample, image in worker.work(Job(BASELINE, [item.prompt], item.seed)):
                score = {LOG_PROB: _scored(worker, item, np.array(sample.token_ids)).mean().item()}
                folder.append(sample.model_copy(update={"metrics": score}), image)
        summary = summarise(folder.figures, folder.run, seed=config.seed)
        if outside:
            text = (
                f"{outside} tokens of {method['label']} are outside the target's top-k or top-p and count as "
                "probability 1e-10: give the --temperature, --top-k, --top-p and --guidance that they were drawn with."
            )
            summary.notes.append(Note("warning", LOG_PROB, text))
        folder.finish(summary)
        return folder.path


def _plain(entry: Entry) -> dict[str, Any]:
    """An entry as its digest sees it."""
    image = entry.image.name if isinstance(entry.image, Path) else entry.image
    image = image.tobytes().hex() if isinstance(image, np.ndarray) else image
    return entry._asdict() | {"tokens": None if entry.tokens is None else entry.tokens.tolist(), "image": image}


def _declare(folder: RunFolder, name: str, digest: str) -> dict[str, Any]:
    """The method of run.json that the entries have.  Raises UserError where other entries have their name."""
    method: dict[str, Any] = {"label": name, "key": digest[:16], "method": IMPORTED}
    method |= {"options": {"digest": digest[:16]}, "lossless": None}
    others = [other for other in folder.run["methods"] if other != method]
    if any(other["label"] == name for other in others):
        raise UserError(f"{folder.path} has other images labelled '{name}': give another --label, or --fresh.")
    folder.record(methods=[*others, method])
    return method


@torch.inference_mode()
def log_probs(decoder: SpeculativeDecoder, captions: list[str], tokens: Tensor) -> Tensor:
    """log q(x_i | x_<i, caption) of every token [B, L] -> [B, L], in nats, in one forward over them.

    q as the decoder draws from it, after guidance and warping; a token that this excludes counts as ``FLOOR``.
    """
    prefix, probs = decoder.target.prefix(captions, decoder.guidance), []
    for i, image in enumerate(tokens):
        remaining = image
        for q in pieces(decoder.target, prefix, tokens, i, decoder.guidance, decoder.warp):
            drawn, remaining = remaining[: q.shape[1]], remaining[q.shape[1] :]
            probs.append(at(q[0], drawn))
    return torch.cat(probs).view(tokens.shape).clamp(min=FLOOR).log()


def _scored(worker: Worker, item: Matched, tokens: np.ndarray) -> Tensor:
    """Log-probabilities [L]: one image a forward, so that the same tokens give the same number."""
    image = torch.from_numpy(tokens)[None].to(worker.target.device)
    return log_probs(next(iter(worker.decoders.values())), [item.prompt.text], image)[0]


def _store(folder: RunFolder, worker: Worker, item: Matched, method: dict[str, Any]) -> int:
    """Store one entry; returns how many of its tokens the warped target excludes."""
    entry, prompt, target, metrics, outside = item.entry, item.prompt, worker.target, dict[str, float | None](), 0
    if entry.tokens is not None:
        scored = _scored(worker, item, entry.tokens)
        metrics, outside = {LOG_PROB: scored.mean().item()}, int((scored < -23).sum())  # log 1e-10 = −23.03
        image = target.images(torch.from_numpy(entry.tokens)[None].to(target.device), [prompt.text])[0]
    else:
        image = Image.fromarray(entry.image) if isinstance(entry.image, np.ndarray) else read_image(str(entry.image))
    steps = round(target.length / entry.per_step) if entry.per_step else entry.steps or 0
    sample = Sample(
        key=item.key(method["key"]), prompt_id=prompt.id, prompt=prompt.text, category=prompt.category,
        challenge=prompt.challenge, label=method["label"], method=IMPORTED, options=method["options"], seed=item.seed,
        tokens=target.length, steps=steps, accept_lengths=[], decode_s=0.0, timed=False, stated_s=entry.seconds,
        token_ids=[] if entry.tokens is None else entry.tokens.tolist(), metrics=metrics,
    )  # fmt: skip
    folder.append(sample, image)
    return outside
