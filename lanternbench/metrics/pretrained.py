"""Networks of transformers from one published weights file, without their other files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lanternbench.metrics import files
from lanternbench.metrics.setup import seeded


def pretrained(
    kind: Any, config: Any, path: Path | None, title: str, device: str = "cpu", unused: tuple[str, ...] = ()
) -> Any:
    """A model of class ``kind`` in evaluation mode, with every tensor from the file; random weights without one.

    unused: parts of names of parameters that the model has and never reads, which older files lack.
    Raises UserError when the file is another.
    """
    if path is None:
        with seeded():
            return kind(config).eval().requires_grad_(False).to(device)
    state = files.tensors(path, title)
    try:
        with _quiet():  # names of older versions of transformers are translated
            model, found = kind.from_pretrained(None, config=config, state_dict=state, output_loading_info=True)
    except (RuntimeError, ValueError) as error:
        raise files.wrong_file(path, title, error) from None
    absent = [str(key) for kind in ("missing_keys", "mismatched_keys") for key in found[kind]]
    if absent := [key for key in absent if not any(part in key for part in unused)]:
        raise files.wrong_file(path, title, ValueError(f"{absent[0]} is missing or has another shape"))
    return model.eval().requires_grad_(False).to(device)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar and table of names."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
