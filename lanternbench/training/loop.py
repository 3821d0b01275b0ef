"""One training loop for every model that is trained: seeded, checkpointed, resumable at any step;
its optimisers.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lanternbench.models.loading import explain_errors
from lanternbench.utils.files import WORK, replacing

Step = Callable[[int], dict[str, Tensor]]
Optimizers = list[torch.optim.Optimizer]
Gradients = list[tuple[Tensor, Tensor]]  # parameters, each with its gradient
MATRICES = (
    "layers.",
    "cap_proj.",
    "fc.",
    "fusion.",
)  # names of modules whose matrices Muon trains


def schedule(step: int, steps: int, warmup: int, decay: float) -> float:
    """Return the learning-rate factor: linear warm-up, constant, and over the last part ``decay``
    of the steps down to 1 %.
    """
    return min(1.0, (step + 1) / warmup, 0.01 + (steps - step) / (decay * steps))


def save_atomically(value: object, path: Path) -> None:
    """Write a file that is, whatever happens, either the old one or the whole new one."""
    with replacing(path, WORK) as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # what torch makes of a write that failed
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def load_saved(path: Path) -> Any:
    """Return what ``save_atomically`` wrote.  Raises UserError for a file that is damaged, or holds
    anything but tensors.
    """
    with explain_damage(path):
        return torch.load(path, map_location="cpu", weights_only=True)


def explain_damage(path: Path) -> AbstractContextManager[None]:
    """Turn exceptions of code that reads a file of an interrupted training into a UserError."""
    return explain_errors(f"{path} is damaged", f"delete it, and it is made again, or {WORK}")


def optimizers(model: nn.Module, lr: float, muon_lr: float | None = None) -> Optimizers:
    """Return AdamW for everything that is trained; with ``muon_lr``, Muon for the matrices of
    layers and projections.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and any(part in name for part in MATRICES)
        if parameter.requires_grad:
            (matrices if muon_lr and is_matrix else others).append(parameter)
    adamw = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    optims: Optimizers = [adamw]
    if muon_lr and matrices:
        optims.append(Muon(matrices, lr=muon_lr))
    return optims


def orthogonalise(g: Tensor) -> Tensor:
    """Return nearly the polar factors of g [n, a, b], singular values in about 0.7 … 1.2, by five
    quintic Newton–Schulz steps.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = g.shape[-2] > g.shape[-1]
    x = g.mT if is_tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


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
            by_shape: dict[torch.Size, Gradients] = defaultdict(list)
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None:
                    by_shape[parameter.shape].append((parameter, gradient))
            for gradients in by_shape.values():
                self._update(gradients, group["lr"], group["momentum"], group["weight_decay"])

    def _update(self, gradients: Gradients, lr: float, momentum: float, decay: float) -> None:
        """Update matrices of one shape."""
        updates = []
        for parameter, gradient in gradients:
            speed = self.state[parameter].setdefault("speed", torch.zeros_like(parameter))
            speed.lerp_(gradient, 1 - momentum)
            updates.append(gradient.lerp(speed, momentum))  # Nesterov
        rows, columns = updates[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        directions = orthogonalise(torch.stack(updates))
        for (parameter, _), direction in zip(gradients, directions, strict=True):
            parameter.mul_(1 - lr * decay).add_(direction, alpha=-lr * scale)


class Plan(NamedTuple):
    """The course of a training."""

    warmup: int = 100  # steps
    decay: float = 0.3  # the share of the steps in which the learning rate decays
    save_every: int = 100  # steps


def fit(
    name: str,
    model: nn.Module,
    optims: Optimizers,
    step_fn: Step,
    steps: int,
    folder: Path,
    *,
    plan: Plan = Plan(),  # noqa: B008  (immutable)
    log: Callable[[str], None] = print,
) -> dict[str, float]:
    """Train ``model`` by ``steps`` calls of ``step_fn(step)``, which returns losses; the one called
    "loss" is minimised.

    A checkpoint in ``folder/name.pt`` is written every ``plan.save_every`` steps and picked up on
    the next start; what ``step_fn`` draws must depend on the step alone, so that a resumed run is
    the undisturbed one.  Returns the losses of the last step that was logged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pt"
    logged: dict[str, float] = {}
    first = 0
    if path.exists():
        first, logged = _resume(path, model, optims)
    model.train()
    started = time.monotonic()
    saved = first
    for step in range(first, steps):
        set_rates(optims, schedule(step, steps, plan.warmup, plan.decay))
        losses = step_fn(step)
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        done = step + 1
        if done % plan.save_every == 0 or done == steps:
            pace = (done - saved) / (time.monotonic() - started)
            logged = {key: loss.item() for key, loss in losses.items()}
            states = {"model": model.state_dict(), "optims": [o.state_dict() for o in optims]}
            save_atomically(states | {"step": done, "losses": logged}, path)
            figures = "  ".join(f"{key} {loss:.4f}" for key, loss in logged.items())
            log(f"{name} {done}/{steps}  {figures}  {pace:.2f} steps/s")
            started = time.monotonic()
            saved = done
    model.eval()
    return logged


def set_rates(optims: Optimizers, factor: float) -> None:
    """Set every learning rate to ``factor`` of the initial one."""
    for optim in optims:
        for group in optim.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def _resume(path: Path, model: nn.Module, optims: Optimizers) -> tuple[int, dict[str, float]]:
    """Load the checkpoint at ``path`` into model and optimisers; return its step and losses.

    Raises UserError if it is damaged, or of another training.
    """
    state = load_saved(path)
    with explain_damage(path):
        model.load_state_dict(state["model"])
        for optim, saved in zip(optims, state["optims"], strict=True):
            optim.load_state_dict(saved)
            if not all("initial_lr" in group for group in optim.param_groups):
                raise KeyError("initial_lr")
        return int(state["step"]), dict(state.get("losses", {}))
