"""Reading prompt files: lines, tables and JSON, each as rows of fields."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from lanternbench.errors import UserError

Rows = Iterator[tuple[int, Mapping[str, Any]]]  # (line or entry number from 1, lower-case fields)


def read_text(path: Path) -> str:
    """The text of a file.  Raises UserError where it is missing, empty, no UTF-8 or no plain file."""
    try:
        # a pipe would keep us waiting, a device never end
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a pipe or device"
            raise UserError(
                f"{path} is {what}, not a file of prompts: save the prompts in a file and give its path."
            )
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 (byte {error.start + 1}): save it as UTF-8."
        ) from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: check the path given to --prompts.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot read {path} ({reason}): check the path given to --prompts."
        ) from None
    if not text.strip():
        raise UserError(
            f"{path} is empty: give a file with a caption a line or in a column called prompt."
        )
    return text


def clean(value: Any) -> str:
    """One line of valid Unicode: line breaks become spaces, half a surrogate pair becomes '?'."""
    if value is None or isinstance(value, Mapping | list):
        return ""
    text = str(value).replace("\0", " ").encode("utf-8", "replace").decode()
    return " ".join(part.strip() for part in text.splitlines()).strip()


def file_name(image: str | None) -> str | None:
    """The last part of a path: a prompt file cannot point outside the folder of reference images."""
    name = PurePosixPath((image or "").replace("\\", "/")).name
    return name if name not in ("", "..") else None


def parsed(text: str, path: Path, line: int | None = None) -> Any:
    """The JSON of a text.  Raises UserError with its line."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeated_keys)
    except (ValueError, RecursionError) as error:
        line = line or getattr(error, "lineno", None)
        where = f"{path} line {line}" if line else f"{path}"
        raise UserError(
            f"{where} is not valid JSON ({getattr(error, 'msg', error)}): correct it."
        ) from None


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(values := dict(pairs)) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{key[:60]}' is given twice")
    return values


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, whatever ends them, from 1."""
    return enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1)


def lines(text: str, path: Path) -> Rows:
    """A caption a line."""
    return ((number, {"prompt": line}) for number, line in numbered_lines(text))


def table(text: str, path: Path, **dialect: Any) -> Rows:
    """Rows of a table with a header line."""
    physical = [line for _, line in numbered_lines(text)]
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, **dialect)
    begun = 1
    try:
        header = [
            name.strip().lower()
            for name in next(row for row in reader if any(cell.strip() for cell in row))
        ]
        # a blank prompt, so that a wrong header is reported without any row
        yield 0, dict.fromkeys(header)
        begun = reader.line_num + 1
        for row in reader:
            if any(
                line.count(dialect["delimiter"]) + 1 >= len(header)
                for line in physical[begun : reader.line_num]
            ):
                raise csv.Error(
                    f"a quote that opens there closes in line {reader.line_num}, with whole rows between"
                )
            if any(cell.strip() for cell in row):
                yield (
                    reader.line_num,
                    dict(zip(header, row, strict=False)) | dict.fromkeys(header[len(row) :]),
                )
            begun = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path} line {begun} is malformed ({error}): correct its quotes."
        ) from None


# quoted cells may hold line breaks where none of their lines is a valid row
comma_separated = partial(table, delimiter=",", skipinitialspace=True)
# quotes as they stand, as in PartiPrompts.tsv
tab_separated = partial(table, delimiter="\t", quoting=csv.QUOTE_NONE)


def _entry(value: Any, number: int, path: Path) -> tuple[int, Mapping[str, Any]]:
    if isinstance(value, str):
        return number, {"prompt": value}
    if isinstance(value, Mapping):
        return number, {str(key).strip().lower(): field for key, field in value.items()}
    raise UserError(
        f"{path} entry {number} is no prompt: make it a text or an object with a field called prompt."
    )


def json_list(text: str, path: Path) -> Rows:
    """A JSON list of texts or objects, or an object that holds one under "prompts"."""
    value = parsed(text, path)
    if isinstance(value, Mapping):
        value = value.get("prompts")
    if not isinstance(value, list):
        raise UserError(
            f"{path} holds no list of prompts: make it a JSON list of texts or of objects with a prompt."
        )
    return (_entry(item, number, path) for number, item in enumerate(value, 1))


def json_lines(text: str, path: Path) -> Rows:
    """A JSON text or object a line."""
    for number, line in numbered_lines(text):
        if line.strip():
            yield _entry(parsed(line, path, number), number, path)


# of the user's files, by suffix
READERS: dict[str, Callable[[str, Path], Rows]] = {
    ".txt": lines,
    ".csv": comma_separated,
    ".tsv": tab_separated,
    ".json": json_list,
    ".jsonl": json_lines,
}
