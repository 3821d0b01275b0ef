"""YAML from users: no key twice, nothing that expands beyond reason, nothing executed."""

from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lanternbench.errors import UserError

MAX_VALUES = 100_000  # values of a document, its aliases expanded
MAX_DEPTH = 50
MAX_BYTES = 2**20  # of a file


def read(path: Path, what: str) -> Any:
    """The one document of a file; ``what``: such as "a sweep file".  Raises UserError with the line of an error."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} is larger than {what} can be ({MAX_BYTES} bytes): give {what}")
        return load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark, begun = error.problem_mark or error.context_mark, error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        if mark and begun and begun.line != mark.line:
            place += f" (in what began on line {begun.line + 1})"
        raise UserError(f"{path}{place} is no valid YAML ({error.problem}): correct that line") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} cannot be read as YAML ({reason}): save it as UTF-8 text") from None


def load(text: str) -> Any:
    """The document of a text.  Raises yaml.YAMLError for broken YAML, a key given twice, too many or deep values."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            _check(root, {}, 0)
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except (ValueError, OverflowError, RecursionError) as error:  # a date or a number that Python does not have
        raise yaml.YAMLError(str(error).partition("\n")[0] or type(error).__name__) from None


def _check(node: Node, sizes: dict[int, int], depth: int) -> int:
    """Number of values under ``node``, its aliases expanded."""
    if depth > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=node.start_mark)
    if id(node) in sizes:
        return sizes[id(node)]
    children: list[Node] = node.value if isinstance(node, SequenceNode) else []
    if isinstance(node, MappingNode):
        children, keys = [child for pair in node.value for child in pair], set()
        for key in children[::2]:
            if isinstance(key, ScalarNode):
                if key.value in keys:
                    problem = f"the key '{key.value}' is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                keys.add(key.value)
    size = 1 + sum(_check(child, sizes, depth + 1) for child in children)
    if size > MAX_VALUES:
        raise yaml.MarkedYAMLError(problem=f"more than {MAX_VALUES} values", problem_mark=node.start_mark)
    sizes[id(node)] = size
    return size
