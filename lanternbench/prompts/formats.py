"""Reading prompt files: lines, tables and JSON, each as rows of fields."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from lanternbench.errors import UserError

Fields = Mapping[str, object]  # by lower-case name
Rows = Iterator[tuple[int, Fields]]  # with the number of the line or entry, from 1
CAPTION_FIELDS = ("prompt", "text", "caption")
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}


def read_text(path: Path) -> str:
    """Return the text of a file.  Raises UserError if it is missing, empty, not UTF-8, binary or
    no regular file.
    """
    try:
        # a pipe would keep us waiting, a device never end
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a pipe or device"
            raise UserError(
                f"{path} is {what}, not a file of prompts: save the prompts in a file and give its "
                "path."
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
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(
            f"{path} has a NUL byte in line {line}, as UTF-16 and binary files do: save it as UTF-8."
        )
    if not text.strip():
        raise UserError(
            f"{path} is empty: give a file with a caption a line or in a column called prompt."
        )
    return text


def clean(value: object) -> str:
    """Return one line of valid Unicode: line breaks become spaces, half a surrogate pair "?"."""
    if value is None or isinstance(value, Mapping | list):
        return ""
    text = str(value).replace("\0", " ").encode("utf-8", "replace").decode()
    return " ".join(part.strip() for part in text.splitlines()).strip()


def file_name(image: str | None) -> str | None:
    """Return the last part of a path: a prompt file cannot point outside the folder of reference
    images.
    """
    if image is None:
        return None
    name = PurePosixPath(image.replace("\\", "/")).name
    return name if name not in ("", "..") else None


def parsed(text: str, path: Path, line: int | None = None) -> object:
    """Return the value of a JSON text.  Raises UserError with its line."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeated_keys)
    except (ValueError, RecursionError) as error:
        line = line or getattr(error, "lineno", None)
        place = f"{path} line {line}" if line else f"{path}"
        raise UserError(
            f"{place} is not valid JSON ({getattr(error, 'msg', error)}): correct it."
        ) from None


def _without_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        key = _repeated([key for key, _ in pairs])
        raise ValueError(f"the key '{key[:60]}' is given twice")
    return values


def _repeated(names: Collection[str]) -> str:
    """Return the most frequent of some names if it is there twice, else ""."""
    ((name, count),) = Counter(names).most_common(1) or [("", 0)]
    return name if count > 1 else ""


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a text, whatever ends them, from 1."""
    return enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1)


def filled_lines(text: str, path: Path) -> Rows:
    """Return a caption a line, without blank lines."""
    return ((number, {"prompt": line}) for number, line in numbered_lines(text) if line.strip())


def caption_field(names: Collection[str], path: Path) -> str:
    """Return the one of a row's fields that holds the caption.  Raises UserError without one."""
    for name in CAPTION_FIELDS:
        if name in names:
            return name
    known = ", ".join(repr(name) for name in list(names)[:8] if name) or "none"
    raise UserError(
        f"{path} has no column called prompt, text or caption (it has {known}): rename one to "
        "prompt."
    )


def _header(line: str, separator: str) -> list[str]:
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [cell.strip().lower() for cell in cells]


def _separator(text: str, usual: str) -> tuple[str, str]:
    """Return what separates the cells of a table, and the table without a line ``sep=…``.

    It is what that line names, else the usual separator, unless only with another one a column of
    captions is found.
    """
    first, end, rest = text.lstrip().partition("\n")
    hint = first.strip(' "\r').lower()
    if hint.startswith("sep=") and len(hint) == 5:
        return hint[-1], end + rest  # the end of the line keeps the numbers of lines
    fitting = [
        separator
        for separator in SEPARATORS
        if set(CAPTION_FIELDS).intersection(_header(first, separator))
    ]
    if usual in fitting or not fitting:
        return usual, text
    return fitting[0], text


def table(text: str, path: Path, usual: str, quoting: Literal[0, 3]) -> Rows:
    """Read the rows of a table with a header line.

    A quoted cell may hold line breaks if none of its lines is a valid row.  Raises UserError for
    a header without captions or with two columns of one name, and for a row with more or fewer
    cells than the header.
    """
    begun = 1
    header: list[str] = []
    try:
        separator, text = _separator(text, usual)
        physical = [line for _, line in numbered_lines(text)]
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=separator,
            skipinitialspace=separator != "\t",
            quoting=quoting,
            strict=True,
        )
        for row in reader:
            swallowed = physical[begun : reader.line_num]
            if header and any(line.count(separator) + 1 >= len(header) for line in swallowed):
                raise csv.Error(
                    f"a quote that opens there closes in line {reader.line_num}, with whole rows "
                    "between"
                )
            is_filled = any(cell.strip() for cell in row)
            if is_filled and header:
                check_width(row, header, f"{path} line {begun}", separator)
                yield reader.line_num, dict(zip(header, row, strict=True))
            elif is_filled:
                header = [cell.strip().lower() for cell in row]
                check_header(header, path)
            begun = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path} line {begun} is malformed ({error}): correct its quotes."
        ) from None


def check_header(header: list[str], path: Path) -> None:
    """Raise UserError for a header without captions, or with two columns of one name."""
    caption_field(header, path)
    if name := _repeated([name for name in header if name]):
        raise UserError(f"{path} has two columns called '{name[:60]}': rename one of them.")


def check_width(row: list[str], header: list[str], place: str, separator: str) -> None:
    """Raise UserError for a row with more or fewer cells than the header."""
    if len(row) != len(header):
        name = SEPARATORS.get(separator, separator)
        fix = f"put a caption with a {name} in quotes"
        if len(row) < len(header):
            fix = f"end it with a {name} for each empty cell"
        raise UserError(f"{place} has {len(row)} cells, and the header has {len(header)}: {fix}.")


def comma_separated(text: str, path: Path) -> Rows:
    """Return the rows of a .csv file."""
    return table(text, path, ",", csv.QUOTE_MINIMAL)


def tab_separated(text: str, path: Path) -> Rows:
    """Return the rows of a .tsv file, with quotes as they stand, as in PartiPrompts.tsv."""
    return table(text, path, "\t", csv.QUOTE_NONE)


def _entry(value: object, number: int, path: Path) -> tuple[int, Fields]:
    if isinstance(value, str):
        return number, {"prompt": value}
    if not isinstance(value, Mapping):
        raise UserError(
            f"{path} entry {number} is no prompt: make it a text or an object with a field called "
            "prompt."
        )
    names = [str(key).strip().lower() for key in value]
    if name := _repeated(names):
        raise UserError(f"{path} entry {number} has two fields called '{name[:60]}': rename one.")
    return number, dict(zip(names, value.values(), strict=True))


def json_list(text: str, path: Path) -> Rows:
    """Return the prompts of a JSON file: a list of texts or objects, an object from ids to texts
    or objects, or either under "prompts".
    """
    value = parsed(text, path)
    if isinstance(value, Mapping):
        value = value.get("prompts", value)
    if isinstance(value, Mapping) and not set(CAPTION_FIELDS).intersection(value):
        value = _with_ids(value)
    if not isinstance(value, list):
        raise UserError(
            f"{path} holds no list of prompts: make it a JSON list of texts or of objects with a "
            "prompt, or an object from ids to texts."
        )
    return (_entry(item, number, path) for number, item in enumerate(value, 1))


def _with_ids(entries: Mapping[str, object]) -> object:
    """Return a list of the objects of a JSON object by their ids; None if it holds others."""
    found = []
    for name, entry in entries.items():
        if isinstance(entry, str):
            found.append({"id": name, "prompt": entry})
        elif isinstance(entry, Mapping):
            found.append({"id": name, **entry})
        else:
            return None
    return found


def json_lines(text: str, path: Path) -> Rows:
    """Return a JSON text or object a line."""
    for number, line in numbered_lines(text):
        if line.strip():
            yield _entry(parsed(line, path, number), number, path)


# of the user's files, by suffix
READERS: dict[str, Callable[[str, Path], Rows]] = {
    ".txt": filled_lines,
    ".csv": comma_separated,
    ".tsv": tab_separated,
    ".json": json_list,
    ".jsonl": json_lines,
}
