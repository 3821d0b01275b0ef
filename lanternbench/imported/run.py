"""Images that other code made, from files in several layouts -> a run folder, with ``ar`` measured
beside them.

Nothing is unpickled.  Folders are read as published code leaves them behind:

- LANTERN (``entrypoints/generate_images.py``): ``prompt_N.png``, and
  ``global_statistics_A_B.json`` with the prompt,
  tokens a step ("step_compression") and seconds ("latency") of each.
- SJD (``eval_model.py``): ``N.png``, N the row of PartiPrompts.tsv from 0; neither steps nor
  seconds.
- ZipAR for LlamaGen (``sample_c2i_ddp_zipar.py``): ``NNNNNN.png`` and ``arr_0`` of a .npz; neither
  classes nor times.
"""

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lanternbench.engine.decode import SpeculativeDecoder
from lanternbench.engine.opening import pieces
from lanternbench.engine.verify import at
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder
from lanternbench.experiment.config import expand
from lanternbench.experiment.run_folder import reason
from lanternbench.experiment.runner import open_run
from lanternbench.experiment.scoring import Progress, silent
from lanternbench.experiment.worker import Job, Worker
from lanternbench.measure.fidelity import FLOOR
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_record import MethodRecord
from lanternbench.measure.samples import IMPORTED, Sample, sample_key
from lanternbench.measure.summary import summarise
from lanternbench.metrics import read_image
from lanternbench.metrics.images import images_in
from lanternbench.models.target import Target
from lanternbench.notes import Note
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.prompts.formats import clean
from lanternbench.settings import Sweep
from lanternbench.utils.files import open_file
from lanternbench.utils.json_values import config_hash

LOG_PROB = "log-prob"  # the metric's name: mean over an image's tokens, in nats
LAYOUTS = "a .jsonl, .npz or .safetensors file, or a folder of images (docs/import.md)"


class Entry(NamedTuple):
    """One image: its ``tokens``, or an ``image``; ``steps`` and ``seconds`` as the other code
    states them.
    """

    where: str
    caption: str | None = None
    tokens: NDArray[np.int64] | None = None  # [L]
    image: Path | NDArray[np.uint8] | None = None  # a file, or pixels [H, W, 3]
    steps: int | None = None
    seconds: float | None = None
    id: str | None = None
    number: int | None = None  # of its prompt from 0, without a caption
    per_step: float | None = None  # tokens a step, in place of ``steps``

    def with_defaults(self, steps: int | None, seconds: float | None) -> Self:
        """Return the entry with what its file does not say."""
        if self.seconds is not None:
            seconds = self.seconds
        return self._replace(steps=self.steps or steps, seconds=seconds)


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Line(_Part):
    """A line of a .jsonl file; a samples.jsonl of ours is one too."""

    caption: str = Field(validation_alias=AliasChoices("caption", "prompt", "text"), min_length=1)
    tokens: list[int] | list[list[int]] | None = Field(
        None, validation_alias=AliasChoices("token_ids", "tokens")
    )
    image: str | None = None
    steps: int | None = Field(None, ge=1, le=2**24)
    seconds: float | None = Field(
        None, ge=0, le=1e9, validation_alias=AliasChoices("seconds", "decode_s")
    )
    id: str | None = Field(None, validation_alias=AliasChoices("id", "prompt_id"))
    label: str | None = None


class _Columns(_Part):
    """What arrays beside tokens or images say of each."""

    captions: list[str] | None = None
    steps: list[Annotated[int, Field(ge=1)]] | None = None
    seconds: list[Annotated[float, Field(ge=0)]] | None = None


class _Statistics(_Part):
    prompt: str
    step_compression: float = Field(gt=0, le=2**24)
    latency: float = Field(ge=0, le=1e9)


def read(path: Path) -> list[Entry]:
    """The entries of a file or folder.  Raises UserError for a layout that is unknown, and for
    what is damaged.
    """
    kinds: dict[str, Callable[[Path], list[Entry]]] = {
        ".jsonl": _lines,
        ".npz": _npz,
        ".safetensors": _safetensors,
    }
    if path.is_dir():
        return _folder(path)
    if path.suffix not in kinds:
        raise UserError(f"{path} is nothing to import: give {LAYOUTS}.")
    try:
        entries = kinds[path.suffix](path)
    except (
        OSError,
        ValueError,
        LookupError,
        EOFError,
        MemoryError,
        zipfile.BadZipFile,
        SafetensorError,
    ) as error:
        why = reason(error).partition("\n")[0]
        raise UserError(f"{path} cannot be imported ({why}): give {LAYOUTS}.") from None
    if not entries:
        raise UserError(f"{path} has no images: give {LAYOUTS}.")
    return entries


def _lines(path: Path) -> list[Entry]:
    entries, labels = [], set()
    with open_file(path) as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = _Line.model_validate_json(text)
                tokens = (
                    None if line.tokens is None else np.asarray(line.tokens, np.int64).reshape(-1)
                )
                if tokens is None and line.image is None:
                    raise ValueError("it has neither tokens nor image")
            except ValueError as error:
                raise ValueError(f"line {number}: {reason(error)}") from None
            image = None if tokens is not None or line.image is None else _beside(path, line.image)
            labels.add(line.label)
            entries.append(
                Entry(
                    f"line {number}",
                    line.caption,
                    tokens,
                    image,
                    line.steps,
                    line.seconds,
                    line.id,
                )
            )
    if len(labels) > 1:
        raise ValueError(f"it has images of {len(labels)} methods: keep the lines of one")
    return entries


def _beside(path: Path, name: str) -> Path:
    """A file of the folder of ``path``, and of no other."""
    place = (path.parent / name).resolve()
    if not place.is_relative_to(path.parent.resolve()):
        raise ValueError(f"image '{name}' is outside its folder")
    return place


def _npz(path: Path) -> list[Entry]:
    with np.load(path, allow_pickle=False) as file:
        return arrays({name: file[name] for name in file.files})


def _safetensors(path: Path) -> list[Entry]:
    with safe_open(path, "numpy") as file:
        captions = json.loads((file.metadata() or {}).get("captions", "null"))
        columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays(
            columns if captions is None else columns | {"captions": np.asarray(captions)}
        )


def arrays(columns: Mapping[str, Any]) -> list[Entry]:
    """``tokens`` [N, …] or ``images``, ``arr_0`` [N, H, W, 3]; captions, steps, seconds [N].
    Raises ValueError.
    """
    tokens, images = columns.get("tokens"), columns.get("images", columns.get("arr_0"))
    whole = images if tokens is None else tokens
    if whole is None:
        raise ValueError("it has no 'tokens'")
    if tokens is not None and (tokens.dtype.kind not in "iu" or tokens.ndim < 2):
        raise ValueError(
            f"tokens are {tokens.dtype}{list(tokens.shape)}, and not whole numbers [images, tokens]"
        )
    if tokens is None and (images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3):
        raise ValueError(
            f"images are {images.dtype}{list(images.shape)}, and not uint8 [images, height, width, 3]"
        )
    n = len(whole)
    given = {name: columns[name].tolist() for name in _Columns.model_fields if name in columns}
    stated = {
        name: [None] * n if column is None else column
        for name, column in _Columns.model_validate(given)
    }
    if odd := [name for name, column in stated.items() if len(column) != n]:
        raise ValueError(f"{odd[0]} are {len(stated[odd[0]])}, and not one for each of {n} images")
    rows = (
        [None] * n if tokens is None else [image.reshape(-1).astype(np.int64) for image in tokens]
    )
    pixels = [None] * n if tokens is not None else images
    each = zip(stated["captions"], rows, pixels, stated["steps"], stated["seconds"], strict=True)
    return [Entry(f"image {i + 1}", *of_image, number=i) for i, of_image in enumerate(each)]


def _folder(path: Path) -> list[Entry]:
    """The images of a folder, by its statistics or by the number in each name.  Raises UserError
    for others.
    """
    statistics = _statistics(path)
    images = images_in(path)
    if not images:
        more = (
            ": .pt files may run code when they are read; save them as .npz"
            if [*path.glob("*.pt")]
            else ""
        )
        raise UserError(f"{path} has no images{more}: give {LAYOUTS}.")
    entries = []
    for image in images:
        if statistics and image.stem not in statistics:
            raise UserError(
                f"{image} is not in the global_statistics of its folder: remove it, or put them back."
            )
        if statistics:
            s = statistics[image.stem]
            entries.append(
                Entry(
                    image.name,
                    s.prompt,
                    image=image,
                    seconds=s.latency,
                    per_step=s.step_compression,
                )
            )
        elif number := re.search(r"(\d{1,9})$", image.stem):
            entries.append(Entry(image.name, image=image, number=int(number[1])))
        else:
            raise UserError(
                f"{image} has no number at the end of its name: number images by their prompts from 0."
            )
    return sorted(entries, key=lambda entry: (entry.number or 0, entry.where))


def _statistics(path: Path) -> dict[str, _Statistics]:
    statistics: dict[str, _Statistics] = {}
    for file in sorted(path.glob("global_statistics_*.json")):
        try:
            with open_file(file) as opened:
                statistics |= TypeAdapter(dict[str, _Statistics]).validate_python(
                    json.loads(opened.read())
                )
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{file} is damaged ({reason(error)}): put back what LANTERN wrote."
            ) from None
    return statistics


class Matched(NamedTuple):
    """An entry with its prompt and seed: the n-th image of a prompt has seed n."""

    entry: Entry
    prompt: Prompt
    seed: int

    def key(self, method: str) -> str:
        return sample_key(self.prompt.id, method, self.seed)


def matched(entries: Sequence[Entry], prompts: PromptSet | None, first: int = 0) -> list[Matched]:
    """Every entry with its prompt, by caption or number; by default captions are the prompts.
    Raises UserError.
    """
    by_text = {prompt.text: prompt for prompt in prompts or ()}
    numbered = list(prompts or ())
    seeds: dict[str, int] = {}
    items = []
    for entry in entries:
        text = None if entry.caption is None else clean(entry.caption)
        if text is not None and prompts is None:
            prompt = by_text.setdefault(
                text, Prompt((entry.id or str(len(by_text) + 1)).replace("|", "_"), text)
            )
        elif text is not None and text in by_text:
            prompt = by_text[text]
        elif text is None and entry.number is not None and entry.number < len(numbered):
            prompt = numbered[entry.number]
        else:
            what = f"caption '{text[:60]}'" if text is not None else f"prompt {entry.number}"
            fix = (
                "give the --prompts that it was made with"
                if prompts is None
                else f"{prompts.source} is another set"
            )
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
    """Store the entries beside the ``ar`` of the same prompts, measured on this machine; returns
    the run folder.

    Another label's entries on the same prompts and settings go into the same folder, where ``ar``
    is measured once. Raises UserError for entries that do not fit the target or the prompts,
    before anything is computed.
    """
    items = matched(entries, prompts, config.seed)
    worker = Worker(config, device)
    check_tokens(entries, worker.target)
    source, dataset = (prompts.source, prompts.dataset) if prompts else (IMPORTED, IMPORTED)
    chosen = PromptSet(
        tuple({item.prompt.id: item.prompt for item in items}.values()),
        source,
        dataset,
        config.seed,
    )
    repeats = max(item.seed for item in items) + 1 - config.seed
    config = config.model_copy(update={"repeats": repeats, "num_prompts": len(chosen)})
    with open_run(
        out, config, worker.facts(), chosen, expand(config)[: int(config.baseline)], fresh
    ) as folder:
        method = _declare(
            folder, f"{label} ({IMPORTED})", config_hash({"entries": [_plain(e) for e in entries]})
        )
        base, done, outside = expand(config)[0].key, folder.samples.keys, 0
        alone = [item for item in items if config.baseline and item.key(base) not in done]
        missing = [item for item in items if item.key(str(method.key)) not in done]
        worker.prepare([item.prompt.text for item in alone + missing])
        if alone:
            worker.warm_up(BASELINE, alone[0].prompt.text)
        for i, item in enumerate(alone + missing):
            progress(
                i,
                len(alone + missing),
                f"{BASELINE if i < len(alone) else label} · {item.prompt.text}",
            )
            if i >= len(alone):
                outside += _store(folder, worker, item, method)
                continue
            for sample, image in worker.work(Job(BASELINE, [item.prompt], item.seed)):
                score = {LOG_PROB: _scored(worker, item, np.array(sample.token_ids)).mean().item()}
                folder.append(sample.model_copy(update={"metrics": score}), image)
        summary = summarise(folder.figures, folder.run)
        if outside:
            text = f"{outside} tokens of {method.label} are outside the target's top-k or top-p and count as"
            fix = "give the --temperature, --top-k, --top-p and --guidance that they were drawn with."
            summary.notes.append(Note("warning", LOG_PROB, f"{text} probability 1e-10: {fix}"))
        folder.finish(summary)
        return folder.path


def _plain(entry: Entry) -> dict[str, Any]:
    """An entry as its digest sees it."""
    image = entry.image.name if isinstance(entry.image, Path) else entry.image
    image = image.tobytes().hex() if isinstance(image, np.ndarray) else image
    return entry._asdict() | {
        "tokens": None if entry.tokens is None else entry.tokens.tolist(),
        "image": image,
    }


def _declare(folder: RunFolder, name: str, digest: str) -> MethodRecord:
    """The method of run.json that the entries have.  Raises UserError where other entries have
    their name.
    """
    method = MethodRecord(
        label=name,
        key=digest[:16],
        method=IMPORTED,
        options={"digest": digest[:16]},
        lossless=None,
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
    """log q(x_i | x_<i, caption) of every token [B, L] -> [B, L], in nats, in one forward over
    them.

    q as the decoder draws from it, after guidance and warping; a token that this excludes counts
    as ``FLOOR``.
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


def _store(folder: RunFolder, worker: Worker, item: Matched, method: MethodRecord) -> int:
    """Store one entry; returns how many of its tokens the warped target excludes."""
    entry, prompt, target, metrics, outside = (
        item.entry,
        item.prompt,
        worker.target,
        dict[str, float | None](),
        0,
    )
    if entry.tokens is not None:
        scored = _scored(worker, item, entry.tokens)
        # log 1e-10 = −23.03
        metrics, outside = {LOG_PROB: scored.mean().item()}, int((scored < -23).sum())
        image = target.images(
            torch.from_numpy(entry.tokens)[None].to(target.device), [prompt.text]
        )[0]
    else:
        image = (
            Image.fromarray(entry.image)
            if isinstance(entry.image, np.ndarray)
            else read_image(str(entry.image))
        )
    steps = round(target.length / entry.per_step) if entry.per_step else entry.steps or 0
    sample = Sample(
        key=item.key(str(method.key)), prompt_id=prompt.id, prompt=prompt.text, category=prompt.category,
        challenge=prompt.challenge, label=method.label, method=IMPORTED, options=method.options, seed=item.seed,
        tokens=target.length, steps=steps, accept_lengths=[], decode_s=0.0, timed=False, stated_s=entry.seconds,
        token_ids=[] if entry.tokens is None else entry.tokens.tolist(), metrics=metrics,
    )  # fmt: skip
    folder.append(sample, image)
    return outside
