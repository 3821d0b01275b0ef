"""Progress through pieces of work."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Progress = Callable[[int, int, str], None]  # done, of, what is being done or was just done
T = TypeVar("T")


def silent(done: int, of: int, what: str) -> None:
    """A progress that shows nothing."""


def counted(items: Sequence[T], progress: Progress, name: Callable[[T], str]) -> Iterator[T]:
    """Yield the items; each is shown as begun before, and as done once the next is asked for."""
    for done, item in enumerate(items):
        progress(done, len(items), name(item))
        yield item
        progress(done + 1, len(items), name(item))
