"""Train a drafter for any target on the target's own samples; EAGLE's are kept in LANTERN's
published layout.

The samples' tokens are kept; the target's hidden states, over a hundred times as large, are
computed for every batch.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
from lanternbench.models.drafters.dflash import DFlash, to_file
from lanternbench.models.drafters.eagle import eagle_state, new_eagle
from lanternbench.models.drafters.kinds import BY_RECIPE
from lanternbench.models.family import Drafter, drafter_at
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.settings import Sampling
from lanternbench.training import loop
from lanternbench.training.losses import RECIPES, TRAININGS, Losses
from lanternbench.utils.files import OUT, WORK, replacing, writing
from lanternbench.utils.json_values import read_object, versioned
from lanternbench.utils.ledger import Ledger
from lanternbench.utils.memory import BatchLimit

Log = Callable[[str], None]
Progress = Callable[[int, int, str], None]  # done, of, what
OnStep = Callable[[int, int], None]  # image tokens done, of
SHARD = 16384  # image tokens that are drawn together and kept in one file
HELD_OUT = 16  # prompts kept out of training, or a quarter of them where that is fewer
RECIPE, WEIGHTS = "recipe.json", "model.safetensors"
LIMITS = {"steps": 10**9, "batch": 1024}
MUON = 6  # its learning rate, in AdamW's


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
    recipe: str = "eagle-1"  # of ``RECIPES``, or dflash, whose three sizes follow
    block: int = 6
    layers: int = 1
    causal: bool = False


class Accepted(NamedTuple):
    """First tokens accepted in the samples held out, as a share."""

    before: float
    after: float


class Samples:
    """Prompts and the images that the target drew of them, tokens [N, L]."""

    def __init__(self, target: Target, net: Drafter, captions: list[str], tokens: Tensor):
        self.target, self.net, self.captions, self.tokens = target, net, captions, tokens
        self.warp, (self.read, self.first, self.losses) = (
            Warp(Sampling(top_k=target.sampling.top_k)),
            TRAININGS[net.kind],
        )

    def __call__(self, picked: list[int]) -> tuple[Any, Tensor]:
        """What the drafter reads of these images, and the target's distributions of tokens 1 … L −
        1 [B, L − 1, V].
        """
        target, tokens = self.target, self.tokens[picked].long().to(self.target.device)
        with torch.no_grad():
            prefix = target.prefix([self.captions[i] for i in picked], target.guidance)
            fed, last = self.read(target, self.net, prefix, tokens)
            return fed, self.warp(self.logits(last))

    def logits(self, features: Tensor) -> Tensor:
        """[R, …, dim] -> guided logits [B, …, V], with the target's head."""
        return self.target.model.logits(features, self.target.guidance).float()

    @torch.no_grad()
    def accepted(self, net: Drafter, images: list[int], batch: int, progress: Progress) -> float:
        """The mean of Σ min(p, q) over the first token drafted at every place of these images."""
        shares = []
        for i in range(0, len(images), batch):
            progress(i, len(images), "images held out")
            fed, q = self(images[i : i + batch])
            p = self.warp(self.logits(self.first(net, fed)))
            shares += torch.minimum(p, q).sum(-1).mean(1).tolist()
        return float(np.mean(shares))


def train(
    plan: Plan,
    device: str,
    work: Path,
    out: Path,
    log: Log = print,
    progress: Progress = lambda *_: None,
) -> Accepted:
    """Sample, train and save; stopped at any point, the same call goes on.  Raises UserError."""
    if len(plan.prompts) < 2:
        raise UserError(
            "one prompt is too few, as some are kept out of training: give --num-prompts of 2 or more"
        )
    for name, most in LIMITS.items():
        if getattr(plan, name) > most:
            raise UserError(f"--{name} is larger than {most}: lower it")
    with Ledger(work, WORK, WORK) as ledger:
        target = load_unpacked(plan.target, device, dtype=plan.dtype)
        net = initial_drafter(target, plan)
        target = with_net(target, net)
        settings = record(plan, target, net)
        for folder, elsewhere in ((out, OUT), (work, WORK)):
            refuse_others(folder, settings, elsewhere)
        for folder, elsewhere in ((out, OUT), (work, WORK)):
            write_recipe(folder, elsewhere, settings)
        samples = sample_images(target, net, plan, ledger, log, progress)
        order = np.random.default_rng([22, plan.seed]).permutation(len(plan.prompts)).tolist()
        held = max(1, min(HELD_OUT, len(order) // 4))
        held_out, seen = order[:held], order[held:]
        before = samples.accepted(net, held_out, plan.batch, progress)
        options = (RECIPES[plan.recipe],) if plan.recipe in RECIPES else ()

        def step_fn(step: int) -> Losses:
            progress(step, plan.steps, "steps")
            rng = np.random.default_rng([23, plan.seed, step])
            fed, wanted = samples([seen[i] for i in rng.integers(len(seen), size=plan.batch)])
            return samples.losses(net, fed, rng, samples.logits, wanted, *options)

        name, pace = net.kind.partition("-")[0], loop.Plan(max(1, min(50, plan.steps // 10)), 1.0)
        optims = loop.optimizers(net, plan.lr, MUON * plan.lr)
        losses = loop.fit(name, net, optims, step_fn, plan.steps, work, plan=pace, log=log)
        if not all(p.isfinite().all() for p in net.parameters()):
            raise UserError(
                f"the drafter's weights became NaN or infinite: lower --lr, and {WORK}"
            )
        accepted = Accepted(before, samples.accepted(net, held_out, plan.batch, progress))
        state = to_file(net) if isinstance(net, DFlash) else eagle_state(net, target.model)
        state = {
            k: v.to("cpu", target.dtype if v.is_floating_point() else None).contiguous()
            for k, v in state.items()
        }
        with replacing(out / WEIGHTS, OUT) as file:
            file.write(save(state))
        write_recipe(
            out,
            OUT,
            settings,
            held_out=held,
            first_token_acceptance=accepted._asdict(),
            losses=losses,
        )
        return accepted


def initial_drafter(target: Target, plan: Plan) -> Drafter:
    """The drafter to train, in float32: that of ``plan.start``, or a fresh one.  EAGLE-3 may start
    from EAGLE-1.
    """
    model, device = target.model, target.device
    torch.manual_seed(plan.seed)
    fused = plan.recipe == "eagle-3"
    if plan.start is None and plan.recipe == DFlash.kind:
        return DFlash.untrained(model, plan.block, plan.layers, plan.causal).to(device)
    if plan.start is None:
        return new_eagle(model, fused).to(device)
    net: Any = drafter_at(plan.start, model, str(device), torch.float32)
    if net.kind not in BY_RECIPE[plan.recipe].starts:
        raise UserError(
            f"{plan.start} holds a drafter of kind {net.kind}, of which {plan.recipe} makes none: give another "
            "--recipe or --start"
        )
    net = net.fused() if fused and net.fusion is None else net
    for name, parameter in net.named_parameters():
        # EAGLE trains neither tables nor the head
        parameter.requires_grad_("embeddings" not in name)
    return net


def sample_images(
    target: Target, net: Drafter, plan: Plan, ledger: Ledger, log: Log, progress: Progress
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

        def make(start: int = start, shard: Sequence[Prompt] = shard) -> bytes:
            file = io.BytesIO()
            torch.save(images(decoder, shard, plan.seed, on_step), file)
            log(f"samples {start + len(shard)}/{len(prompts)}")
            return file.getvalue()

        name = f"samples-{start:06d}.pt"
        ledger.piece(name, make, adopts=True)
        shape = (len(shard), target.length)
        parts.append(read_tokens(ledger.folder / name, shape, target.vocab))
    return Samples(target, net, captions, torch.cat(parts))


def read_tokens(path: Path, shape: tuple[int, int], vocab: int) -> Tensor:
    """Tokens of this shape from a file of samples.  Raises UserError where it holds anything else."""
    tokens = loop.load_saved(path)
    if not isinstance(tokens, Tensor) or tokens.shape != shape or tokens.dtype != torch.int16:
        raise loop.damaged(path, f"it holds no tokens of {shape[0]} images")
    if not ((tokens.long() >= 0) & (tokens.long() < vocab)).all():
        raise loop.damaged(path, f"it has tokens beyond the vocabulary of {vocab}")
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


def record(plan: Plan, target: Target, net: Drafter) -> dict[str, Any]:
    """Everything that a training depends on, with digests of files; folders are left out, as they
    may name a person.
    """
    digest = hashlib.sha256()
    for value in net.state_dict().values():
        digest.update(value.cpu().numpy())
    return {
        "target": Path(plan.target.partition("=")[0]).name,
        "weights": {
            part: value for part, value in target.weights.items() if part not in target.drafters
        },
        "dtype": str(target.dtype).removeprefix("torch."),
        "prompts": {k: v for k, v in plan.prompts.record().items() if k != "notes"},
        "start": digest.hexdigest(),
        **{name: getattr(plan, name) for name in ("recipe", "steps", "batch", "lr", "seed")},
        **({"sizes": [net.block, net.causal]} if isinstance(net, DFlash) else {}),
    }


def refuse_others(folder: Path, settings: dict[str, Any], elsewhere: str) -> None:
    """Raises UserError where ``folder`` holds another training, or other files."""
    with writing(folder, elsewhere):
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(
            p.name for p in folder.iterdir() if p.suffix != ".part" and p.name != ".lock"
        )
    if not names:
        return
    if RECIPE not in names:
        raise UserError(f"{folder} holds other files, such as {names[0]}: {elsewhere}")
    try:
        # of trainings that recorded neither
        defaults = {"recipe": "eagle-1", "weights": settings["weights"]}
        earlier = defaults | read_object(folder / RECIPE)["settings"]
        changed = [k for k in settings if earlier[k] != settings[k]]
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{folder / RECIPE} is not what a training wrote: {elsewhere}") from None
    if changed:
        raise UserError(
            f"{folder} belongs to a training with other settings ({', '.join(changed)}): give those again, or "
            f"{elsewhere}"
        )


def write_recipe(folder: Path, elsewhere: str, settings: dict[str, Any], **results: Any) -> None:
    """The settings first, so that a folder says whose it is; results are added at the end."""
    with replacing(folder / RECIPE, elsewhere) as file:
        file.write(json.dumps(versioned({"settings": settings, **results}), indent=2).encode())
