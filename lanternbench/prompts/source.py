"""The base class of prompt sources, which are registered under the name that ``--prompts`` takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from lanternbench.errors import UserError
from lanternbench.prompts.prompt_set import Prompt
from lanternbench.utils.files import cache_dir

Caption = Literal["first", "longest", "random"]


class Official(NamedTuple):
    """A published prompt file, and where ``lanternbench fetch NAME`` gets it."""

    file: str
    url: str
    sha256: str = ""  # of the file; nothing where none is published
    member: str | None = None  # of a zip archive
    gigabytes: float = 0.0  # about; 0: next to nothing


class PromptSource:
    """Base of all sources.  A subclass implements ``read`` and sets the attributes that differ from these."""

    official: ClassVar[Official | None] = None  # None: the prompts come with the source
    in_order: ClassVar[bool] = False  # a smaller number means the first ones, not a seeded choice

    def read(self, path: Path | None, seed: int, caption: Caption) -> Iterable[Prompt]:
        """Every prompt, in the order of the file; those without text left out.

        path: the official file; None for a source without one.  caption: which of several captions of an image, a
        random one by ``seed``.  Raises UserError for a file that is missing or malformed.
        """
        raise NotImplementedError

    def locate(self, name: str, where: str | None) -> Path | None:
        """The official file: at ``where`` (the file or its folder), else in the cache.

        Raises UserError when it is not there, or there is none.
        """
        if self.official is None:
            if where is not None:
                raise UserError(f"the prompts '{name}' come without a file: write --prompts {name}.")
            return None
        file, example = self.official.file, f"`--prompts {name}:PATH/{self.official.file}`"
        if where is None:
            path = cache_dir() / "prompts" / file
            if not path.is_file():
                raise UserError(
                    f"the prompts of {name} are not at {path}: get them with `lanternbench fetch {name}`, "
                    f"or give their official file, {example}."
                )
            return path
        given = Path(where).expanduser()
        path = next((p for p in (given / file, given / "annotations" / file) if p.is_file()), given)
        if path.is_dir() or not where:
            raise UserError(f"{file} is not in {where or 'the empty path'}: give the file, {example}.")
        return path
