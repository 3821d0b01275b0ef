"""Networks with the tensors of one published weights file, without its other files; random weights without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanternbench.metrics import files
from lanternbench.metrics.setup import seeded

if TYPE_CHECKING:
    from torch import Tensor, nn


def filled(
    model: Any,
    path: Path | None,
    title: str,
    device: str = "cpu",
    read: Callable[[Path, str], Mapping[str, Tensor]] = files.tensors,
) -> Any:
    """``model`` in evaluation mode, with a file's tensors by ``read``, as floats.  Raises UserError for another one."""
    if path is not None:
        state = read(path, title)
        try:
            model.load_state_dict({name: state[name].float() for name in model.state_dict()})
        except (RuntimeError, KeyError) as error:
            raise files.wrong_file(path, title, error) from None
    return model.eval().requires_grad_(False).to(device)


def pretrained(
    kind: Any, config: Any, path: Path | None, title: str, device: str = "cpu", unused: tuple[str, ...] = ()
) -> Any:
    """A transformers model with a file's tensors, which may lack ``unused`` parts.  Raises UserError for another."""
    from transformers.utils import logging

    if path is None:
        with seeded():
            return filled(kind(config), None, title, device)
    state = files.tensors(path, title)
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # else it prints a table of names
    logging.disable_progress_bar()
    try:  # names of older versions of transformers are translated
        model, about = kind.from_pretrained(None, config=config, state_dict=state, output_loading_info=True)
    except (RuntimeError, ValueError) as error:
        raise files.wrong_file(path, title, error) from None
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
    absent = [str(key) for reason in ("missing_keys", "mismatched_keys") for key in about[reason]]
    if absent := [key for key in absent if not any(part in key for part in unused)]:
        raise files.wrong_file(path, title, ValueError(f"{absent[0]} is missing or has another shape"))
    return filled(model, None, title, device)


def linear_head(width: int) -> nn.Sequential:
    """ImageReward's and LAION's head, [B, width] -> [B, 1]: linear layers, and identities for training's dropout."""
    from torch import nn

    layers: list[nn.Module] = []
    for i, (into, out) in enumerate(pairwise((width, 1024, 128, 64, 16, 1))):
        layers += [nn.Linear(into, out)] + ([nn.Identity()] if i < 3 else [])
    return nn.Sequential(*layers)
