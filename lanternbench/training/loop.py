"""One training loop for every embedded model: seeded, checkpointed, resumable at any step; its
optimisers.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lanternbench.errors import UserError
from lanternbench.utils.files import WORK, replacing

Step = Callable[[int], dict[str, Tensor]]


def schedule(step: int, steps: int, warmup: int, decay: float) -> float:
    """Learning-rate factor: linear warm-up, constant, and over the last part ``decay`` of the
    steps down to 1 %.
    """
    return min(1.0, (step + 1) / warmup, 0.01 + (steps - step) / (decay * steps))


def save_atomically(value: object, path: Path) -> None:
    """A file that is either the old one or the whole new one."""
    with replacing(path, WORK) as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # what torch makes of a write that failed
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def load_saved(path: Path) -> Any:
    """What ``save_atomically`` wrote.  Raises UserError for a file that is damaged, or holds
    anything but tensors.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes of a damaged file make of the unpickler
        raise damaged(path, error) from None


def damaged(path: Path, cause: object) -> UserError:
    """The error for a file of an interrupted training that cannot be used."""
    text = " ".join(str(cause).split())[:200] or type(cause).__name__
    return UserError(f"{path} is damaged ({text}): delete it, and it is made again, or {WORK}")


def optimizers(
    model: nn.Module, lr: float, muon_lr: float | None = None
) -> list[torch.optim.Optimizer]:
    """AdamW for everything that is trained; with ``muon_lr``, Muon for the matrices of layers and
    projections.
    """
    inside = ("layers.", "cap_proj.", "fc.", "fusion.")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    hidden = {
        n: p
        for n, p in trained.items()
        if muon_lr and p.ndim == 2 and any(part in n for part in inside)
    }
    rest = [p for n, p in trained.items() if n not in hidden]
    adamw = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    return [adamw, Muon(hidden.values(), lr=muon_lr)] if hidden and muon_lr else [adamw]


def orthogonalise(g: Tensor) -> Tensor:
    """Five quintic Newton–Schulz steps: g [n, a, b] -> nearly its polar factors, singular values
    in about 0.7 … 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon in float32, matrices of one shape orthogonalised together: torch's own works in
    bfloat16, slow on most CPUs.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for shape, params in shapes.items():
                updates = []
                for p in params:
                    speed = self.state[p].setdefault("speed", torch.zeros_like(p))
                    speed.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(speed, group["momentum"]))  # Nesterov
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalise(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(
                        update, alpha=-group["lr"] * scale
                    )


class Plan(NamedTuple):
    """Warm-up steps; share of the steps in which the rate decays; steps between saves."""

    warmup: int = 100
    decay: float = 0.3
    save_every: int = 100


def fit(
    name: str,
    model: nn.Module,
    optims: list[torch.optim.Optimizer],
    step_fn: Step,
    steps: int,
    folder: Path,
    *,
    plan: Plan = Plan(),  # noqa: B008  (immutable)
    log: Callable[[str], None] = print,
) -> dict[str, float]:
    """Train ``model`` for ``steps`` calls of ``step_fn(step)`` → losses (the one called "loss" is
    minimised).

    A checkpoint in ``folder/name.pt`` is written every ``plan.save_every`` steps and picked up on
    the next start; what ``step_fn`` draws must depend on the step alone, so that a resumed run is
    the undisturbed one.  Returns the losses of the last step that was logged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pt"
    first, last = _resume(path, model, optims) if path.exists() else (0, {})
    model.train()
    clock, seen = time.monotonic(), first
    for step in range(first, steps):
        for group in (group for optim in optims for group in optim.param_groups):
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * schedule(
                step, steps, plan.warmup, plan.decay
            )
        losses = step_fn(step)
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        if (step + 1) % plan.save_every == 0 or step + 1 == steps:
            pace = (step + 1 - seen) / (time.monotonic() - clock)
            clock, seen = time.monotonic(), step + 1
            last = {k: v.item() for k, v in losses.items()}
            figures = "  ".join(f"{k} {v:.4f}" for k, v in last.items())
            state = {"model": model.state_dict(), "optims": [o.state_dict() for o in optims]}
            save_atomically({**state, "step": step + 1, "losses": last}, path)
            log(f"{name} {step + 1}/{steps}  {figures}  {pace:.2f} steps/s")
    model.eval()
    return last


def _resume(
    path: Path, model: nn.Module, optims: list[torch.optim.Optimizer]
) -> tuple[int, dict[str, float]]:
    """Put the checkpoint at ``path`` into model and optimisers; returns its step and losses.
    Raises UserError.
    """
    state = load_saved(path)
    try:
        model.load_state_dict(state["model"])
        for optim, saved in zip(optims, state["optims"], strict=True):
            optim.load_state_dict(saved)
            if not all("initial_lr" in group for group in optim.param_groups):
                raise KeyError("initial_lr")
        return int(state["step"]), dict(state.get("losses", {}))
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise damaged(path, error) from None
