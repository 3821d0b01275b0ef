"""Train a drafter for any target on the target's own samples; EAGLE's are kept in LANTERN's
published layout.

The samples' tokens are kept; the target's hidden states, over a hundred times as large, are
computed for every batch.
"""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.engine.sampling import Warp
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import load_unpacked, with_net
from lanternbench.models.drafters.dflash import DFlash
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.drafters.flashar import FlashAR
from lanternbench.models.drafters.kinds import BY_RECIPE, KINDS, Sizes
from lanternbench.models.family import Drafter, drafter_at
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.settings import Sampling
from lanternbench.training import diagonals, loop
from lanternbench.training.losses import DFLASH, EAGLE, Losses, Training
from lanternbench.utils.files import OUT, WORK, write_file, writing
from lanternbench.utils.json_values import json_text, read_object
from lanternbench.utils.ledger import Ledger
from lanternbench.utils.memory import BatchLimit
from lanternbench.utils.progress import Progress, counted, silent

Log = Callable[[str], None]
OnStep = Callable[[int, int], None]  # image tokens done, of
SHARD = 16384  # image tokens that are drawn together and kept in one file
HELD_OUT = 16  # prompts kept out of training, or a quarter of them if that is fewer
RECIPE, WEIGHTS = "recipe.json", "model.safetensors"
MUON = 6  # its learning rate relative to AdamW's
TRAININGS = {
    "eagle": EAGLE,
    "eagle-3": EAGLE,
    "dflash": DFLASH,
    "flashar": Training(diagonals.read, diagonals.first, diagonals.losses),
}


@dataclass(frozen=True)
class Plan:
    target: str
    prompts: PromptSet
    steps: int
    batch: int
    lr: float
    seed: int
    start: Path | None = None
    dtype: str | None = None
    recipe: str = "eagle-1"  # a key of ``BY_RECIPE``
    sizes: Sizes = Sizes()  # noqa: RUF009  (immutable)
    mask: diagonals.MaskName = "published"  # of flashar


class Accepted(NamedTuple):
    """First tokens accepted in the samples held out, as a share."""

    before: float
    after: float


class Samples:
    """Prompts and the images that the target drew of them, tokens [N, L]."""

    def __init__(self, target: Target, net: Drafter, captions: list[str], tokens: Tensor):
        self.target = target
        self.net = net
        self.captions = captions
        self.tokens = tokens
        self.warp = Warp(Sampling(top_k=target.sampling.top_k))
        self.training = TRAININGS[net.kind]

    def __call__(self, picked: list[int], causal: bool = False) -> tuple[NamedTuple, Tensor]:
        """Return what the drafter reads of these images, and the target's distributions of tokens
        1 … L − 1 [B, L − 1, V].

        ``causal``: see ``engine.diagonals``; other drafters have one mask.
        """
        read = self.training.read
        if isinstance(self.net, FlashAR):
            read = partial(read, causal=causal)
        target = self.target
        tokens = self.tokens[picked].long().to(target.device)
        captions = [self.captions[i] for i in picked]
        with torch.no_grad():
            prefix = target.prefix(captions, target.guidance)
            fed, last_states = read(target, self.net, prefix, tokens)
            return fed, self.warp(self.logits(last_states))

    def logits(self, features: Tensor) -> Tensor:
        """[R, …, dim] -> guided logits [B, …, V], with the target's head."""
        return self.target.model.logits(features, self.target.guidance).float()

    @torch.no_grad()
    def accepted(self, images: list[int], plan: Plan, progress: Progress) -> float:
        """Return the mean of Σ min(p, q) over the first token drafted at every place of these
        images.
        """
        shares = []
        starts = range(0, len(images), plan.batch)
        for i in counted(starts, progress, lambda _: "batches of images held out"):
            fed, q = self(images[i : i + plan.batch], plan.mask == "raster")
            p = self.warp(self.training.first(self.net, fed, self.logits))
            shares += torch.minimum(p, q).sum(-1).mean(1).tolist()
        return float(np.mean(shares))


def train(
    plan: Plan,
    device: str,
    work: Path,
    out: Path,
    log: Log = print,
    progress: Progress = silent,
) -> Accepted:
    """Sample, train and save; stopped at any point, the same call continues.  Raises UserError."""
    if len(plan.prompts) < 2:
        raise UserError(
            "one prompt is too few, because some are kept out of training: "
            "give --num-prompts of 2 or more"
        )
    with Ledger(work, WORK, WORK) as ledger:
        target = load_unpacked(plan.target, device, dtype=plan.dtype)
        net = initial_drafter(target, plan)
        target = with_net(target, net)
        settings = record(plan, target, net)
        folders = ((out, OUT), (work, WORK))
        for folder, elsewhere in folders:
            refuse_others(folder, settings, elsewhere)
        for folder, elsewhere in folders:
            write_recipe(folder, elsewhere, {"settings": settings})
        samples = sample_images(target, net, plan, ledger, log, progress)
        held_out, trained_on = split(plan)
        before = samples.accepted(held_out, plan, progress)
        losses = fit(plan, samples, trained_on, work, log, progress)
        after = samples.accepted(held_out, plan, progress)
        accepted = Accepted(before, after)
        save_weights(out, target, net)
        recipe = {
            "settings": settings,
            "held_out": len(held_out),
            "first_token_acceptance": accepted._asdict(),
            "losses": losses,
        }
        write_recipe(out, OUT, recipe)
        return accepted


def initial_drafter(target: Target, plan: Plan) -> Drafter:
    """Return the drafter to train, in float32: that of ``plan.start``, or a fresh one.  EAGLE-3 may
    start from EAGLE-1.
    """
    model = target.model
    torch.manual_seed(plan.seed)
    kind = BY_RECIPE[plan.recipe]
    if plan.start is None:
        fresh: Drafter = kind.code.untrained(model, kind.name, plan.sizes)
        return fresh.to(target.device)
    net = drafter_at(plan.start, model, str(target.device), torch.float32)
    if net.kind not in (kind.name, *kind.starts):
        raise UserError(
            f"{plan.start} holds a drafter of kind {net.kind}, of which {plan.recipe} makes none: "
            "give another --recipe or --start"
        )
    if plan.recipe == "eagle-3" and isinstance(net, Eagle) and net.kind == "eagle":
        net = net.fused()
    for name, parameter in net.named_parameters():
        is_table = "embeddings" in name  # EAGLE trains neither tables nor the head
        parameter.requires_grad_(not is_table)
    return net


def sample_images(
    target: Target,
    net: Drafter,
    plan: Plan,
    ledger: Ledger,
    log: Log,
    progress: Progress,
) -> Samples:
    """Return the target's own images of all prompts at its default settings, which are stored
    shard by shard.
    """
    prompts = plan.prompts.prompts
    captions = [prompt.text for prompt in prompts]
    target.prepare(captions)
    decoder = build(target, method("ar"))
    size = max(1, SHARD // target.length)
    parts = []
    for start in range(0, len(prompts), size):
        shard = prompts[start : start + size]

        def on_step(tokens: int, of: int, start: int = start) -> None:
            done = start * target.length + tokens
            progress(done, len(prompts) * target.length, "image tokens of samples")

        def make(shard: Sequence[Prompt] = shard) -> bytes:
            file = io.BytesIO()
            torch.save(images(decoder, shard, plan.seed, on_step), file)
            return file.getvalue()

        name = f"samples-{start:06d}.pt"
        is_stored = (ledger.folder / name).exists()
        ledger.piece(name, make)
        if not is_stored:
            log(f"samples {start + len(shard)}/{len(prompts)}")
        shape = (len(shard), target.length)
        parts.append(read_tokens(ledger.folder / name, shape, target.vocab))
    return Samples(target, net, captions, torch.cat(parts))


def read_tokens(path: Path, shape: tuple[int, int], vocab: int) -> Tensor:
    """Return tokens of this shape from a file of samples.  Raises UserError if it holds anything
    else.
    """
    tokens: Tensor = loop.load_saved(path)
    with loop.explain_damage(path):
        if tokens.shape != shape or tokens.dtype != torch.int16:
            raise ValueError(f"it holds no tokens of {shape[0]} images")
        if tokens.min() < 0 or tokens.max() >= vocab:
            raise ValueError(f"it has tokens beyond the vocabulary of {vocab}")
    return tokens


def images(
    decoder: engine.SpeculativeDecoder,
    prompts: Sequence[Prompt],
    seed: int,
    on_step: OnStep | None = None,
) -> Tensor:
    """Return tokens int16 [B, L], decoded in smaller batches if memory runs out: an image depends
    on its key alone.
    """

    def decode(batch: list[Prompt]) -> list[Tensor]:
        captions = [prompt.text for prompt in batch]
        keys = [prompt.id for prompt in batch]
        generations = engine.generate(decoder, captions, keys, seed, on_step=on_step)
        return [generation.tokens.short().cpu() for generation in generations]

    return torch.stack(BatchLimit().results(decode, prompts))


def split(plan: Plan) -> tuple[list[int], list[int]]:
    """Return the numbers of the prompts that are held out, and of those that are trained on."""
    rng = np.random.default_rng([22, plan.seed])
    order = rng.permutation(len(plan.prompts)).tolist()
    held_out = max(1, min(HELD_OUT, len(order) // 4))
    return order[:held_out], order[held_out:]


def fit(
    plan: Plan,
    samples: Samples,
    trained_on: list[int],
    work: Path,
    log: Log,
    progress: Progress,
) -> dict[str, float]:
    """Train the drafter of ``samples``; return its last losses.  Raises UserError if it diverged."""
    net = samples.net
    learn = samples.training.losses

    def step_fn(step: int) -> Losses:
        progress(step, plan.steps, "steps")
        rng = np.random.default_rng([23, plan.seed, step])
        chosen = rng.integers(len(trained_on), size=plan.batch)
        picked = [trained_on[i] for i in chosen]
        by_turns = plan.mask == "both" and step % 2 == 1
        causal = plan.mask == "raster" or by_turns
        fed, wanted = samples(picked, causal)
        return learn(net, fed, rng, samples.logits, wanted)

    name = net.kind.partition("-")[0]
    warmup = max(1, min(50, plan.steps // 10))
    course = loop.Plan(warmup, decay=1.0)
    optims = loop.optimizers(net, plan.lr, MUON * plan.lr)
    losses = loop.fit(name, net, optims, step_fn, plan.steps, work, plan=course, log=log)
    if not all(parameter.isfinite().all() for parameter in net.parameters()):
        raise UserError(f"the drafter's weights became NaN or infinite: lower --lr, and {WORK}")
    return losses


def save_weights(out: Path, target: Target, net: Drafter) -> None:
    """Write the drafter as its loader reads it, in the target's dtype."""
    state = KINDS[net.kind].code.to_file(net, target.model)
    for name, value in state.items():
        dtype = target.dtype if value.is_floating_point() else value.dtype
        state[name] = value.to("cpu", dtype).contiguous()
    write_file(out / WEIGHTS, save(state), OUT)


def record(plan: Plan, target: Target, net: Drafter) -> dict[str, object]:
    """Return everything that a training depends on, with digests of files; folders are left out,
    because they may name a person.
    """
    start = hashlib.sha256()
    for value in net.state_dict().values():
        start.update(value.cpu().numpy())
    weights = {k: v for k, v in target.weights.items() if k not in target.drafters}
    prompts = plan.prompts.record()
    del prompts["notes"]
    settings: dict[str, object] = {
        "target": Path(plan.target.partition("=")[0]).name,
        "weights": weights,
        "dtype": target.dtype_name,
        "prompts": prompts,
        "start": start.hexdigest(),
        "recipe": plan.recipe,
        "steps": plan.steps,
        "batch": plan.batch,
        "lr": plan.lr,
        "seed": plan.seed,
    }
    if isinstance(net, DFlash):
        settings["sizes"] = [net.block, net.causal]
    if isinstance(net, FlashAR):
        settings["mask"] = plan.mask
    return settings


def refuse_others(folder: Path, settings: dict[str, object], elsewhere: str) -> None:
    """Raise UserError if ``folder`` holds another training, or other files."""
    with writing(folder, elsewhere):
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for path in folder.iterdir() if path.suffix != ".part"]
    names = sorted(path.name for path in files if path.name != ".lock")
    if not names:
        return
    if RECIPE not in names:
        raise UserError(f"{folder} holds other files, such as {names[0]}: {elsewhere}")
    try:
        # of trainings that recorded neither
        defaults = {"recipe": "eagle-1", "weights": settings["weights"]}
        earlier = defaults | read_object(folder / RECIPE)["settings"]
        changed = [key for key in settings if earlier[key] != settings[key]]
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{folder / RECIPE} is not what a training wrote: {elsewhere}") from None
    if changed:
        raise UserError(
            f"{folder} belongs to a training with other settings ({', '.join(changed)}): "
            f"give those again, or {elsewhere}"
        )


def write_recipe(folder: Path, elsewhere: str, recipe: dict[str, object]) -> None:
    """Write the settings, so that a folder says whose it is, and at the end the results."""
    write_file(folder / RECIPE, json_text(recipe), elsewhere)
