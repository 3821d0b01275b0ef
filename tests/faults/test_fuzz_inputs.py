"""Anything that comes in (imports, submissions, prompts, folders for transformers, run folders) is
one sentence or right, in bounded memory and time.

FUZZ_INPUTS is the number of inputs of each of the seven tests, by default a quick sample:
``FUZZ_INPUTS=360 pytest -s tests/faults/test_fuzz_inputs.py`` tries 2,520 and prints how they
ended.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save
from suite_runs import short_protocol, suite_run
from test_emu3 import theirs  # noqa: F401
from test_fuzz import VALUES, one_sentence
from test_fuzz_files import HEADER, ODD, SAMPLE, written
from test_huggingface import folder as hf_folder  # noqa: F401
from test_run_folder_faults import made

from lanternbench import prompts, report
from lanternbench.errors import UserError
from lanternbench.experiment.run_folder import iter_samples
from lanternbench.imported.layouts import Stated, read
from lanternbench.imported.run import check_tokens, matched
from lanternbench.measure.figures import Figures
from lanternbench.measure.summary import summarise
from lanternbench.models.catalogue import load_target
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.report.load import load_run
from lanternbench.suite import leaderboard, protocol

INPUTS = int(os.environ.get("FUZZ_INPUTS", "8"))
FUZZ = settings(
    max_examples=INPUTS, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
CPU_S = 20.0  # for one input
MORE_BYTES = 2**31  # of virtual memory, for all inputs
GROWTH = 2**29  # bytes by which the process may grow over all inputs
COUNTS: Counter[str] = Counter()


def late(*_: object) -> None:
    raise TimeoutError(f"an input took more than {CPU_S} s of CPU time")


@pytest.fixture(scope="module", autouse=True)
def bounded() -> Iterator[None]:
    """No input may take much memory; how they ended is counted and printed."""
    COUNTS.clear()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_BYTES, before[1])
    )
    handler = signal.signal(signal.SIGPROF, late)
    yield
    signal.signal(signal.SIGPROF, handler)
    resource.setrlimit(resource.RLIMIT_AS, before)
    ends = ", ".join(f"{count} {end}" for end, count in COUNTS.most_common())
    print(f"\n{COUNTS.total()} inputs: {ends}")
    assert COUNTS.keys() <= {"one sentence", "right"}


def judged(work: Callable[[], None]) -> None:
    """Run ``work``, which ends well or with a UserError of one line, in bounded time."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        work()
        end = "right"
    except UserError as error:
        one_sentence(error)
        end = "one sentence"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert 1024 * grown < GROWTH
    COUNTS[end] += 1


def damaged(content: bytes, place: int, change: bytes) -> bytes:
    """The content with other bytes somewhere."""
    start = place % (len(content) + 1)
    return content[:start] + change + content[start + len(change) :]


DAMAGE = st.none() | st.tuples(st.integers(0, 2**16), st.binary(max_size=9))
PLAIN_BYTES = st.binary(max_size=80) | st.sampled_from(
    [b"", b"\0" * 64, b"\x80\x04garbage", b"{" * 999]
)


def png() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(content, "PNG")
    return content.getvalue()


# --- imports ---

SIDE = 16  # tokens of a row of the target
TOKENS = st.sampled_from([[5] * SIDE**2, [[5] * SIDE] * SIDE, [1024] * SIDE**2]) | VALUES
LINES = st.fixed_dictionaries(
    {},
    optional={
        "caption": st.sampled_from(["a fox", "a cat", ""]) | ODD,
        "tokens": TOKENS,
        "image": st.sampled_from(["a.png", "../a.png", "/dev/zero", "pipe"]) | ODD,
        "steps": st.integers(-1, 9) | ODD,
        "seconds": st.floats(-1, 9) | ODD,
        "id": st.sampled_from(["1", 1, "x|y"]) | ODD,
        "label": st.just("ar") | ODD,
    },
)
DTYPES = st.sampled_from(["i8", "i4", "u1", "u8", "f4", "f2", "U5", "S3", "?", "c8", "M8[s]", "O"])
ARRAYS = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype),
    DTYPES,
    st.sampled_from([(2, SIDE**2), (2, SIDE, SIDE), (2, 8, 8, 3), (2,)])
    | st.lists(st.integers(0, 4), max_size=4),
)
SOUND = st.just({"tokens": np.zeros((2, SIDE**2), int), "captions": np.array(["a fox", "a cat"])})
COLUMNS = SOUND | st.dictionaries(
    st.sampled_from(["tokens", "images", "arr_0", "captions", "ids", "steps", "seconds", "x"]),
    ARRAYS,
    max_size=4,
)
CHOSEN = PromptSet((Prompt("1", "a fox"), Prompt("7", "a cat", image="7.jpg")), "p", "p", 0)
GIVEN = st.sampled_from([None, CHOSEN])


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny")


def taken_in(path: Path, chosen: PromptSet | None, target: Target) -> None:
    """Read, match and check a file or folder; what comes out must fit."""
    entries = [entry.with_defaults(Stated()) for entry in read(path)]
    items = matched(entries, chosen)
    check_tokens(entries, target)
    assert len({item.key("m") for item in items}) == len(entries)
    for item in items:
        assert chosen is None or item.prompt in chosen.prompts
        assert item.entry.steps is None or 1 <= item.entry.steps <= target.length
        assert item.entry.seconds is None or 0 <= item.entry.seconds <= 1e9
        assert item.entry.caption is None or item.prompt.text


@FUZZ
@given(lines=st.lists(LINES.map(written) | PLAIN_BYTES, max_size=4), chosen=GIVEN)
def test_any_imported_lines_are_one_sentence_or_right(lines, chosen, target, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    judged(lambda: taken_in(path, chosen, target))


@FUZZ
@given(
    columns=COLUMNS,
    header=HEADER,
    kind=st.sampled_from(["npz", "safetensors", "header"]),
    damage=DAMAGE,
    chosen=GIVEN,
)
def test_any_imported_arrays_are_one_sentence_or_right(
    columns, header, kind, damage, chosen, target, tmp_path
):
    content = io.BytesIO()
    if kind == "npz":
        np.savez_compressed(content, **columns)
    elif kind == "safetensors":
        stored = {name: array for name, array in columns.items() if array.dtype.kind in "iuf"}
        content.write(save(stored))
    else:
        text = written(header)
        content.write(len(text).to_bytes(8, "little") + text + bytes(64))
    path = tmp_path / f"a.{kind.replace('header', 'safetensors')}"
    path.write_bytes(damaged(content.getvalue(), *damage) if damage else content.getvalue())
    judged(lambda: taken_in(path, chosen, target))


FILES = st.dictionaries(
    st.from_regex(r"(prompt_|img-|v2_)?\d{1,3}([_-]\d{1,2}){0,2}\.(png|PNG|jpg|txt|pt)", fullmatch=True)
    | st.sampled_from(["1", "cat.png", "7.png", ".hidden.png", "global_statistics_0_9.json"]),
    st.just(png()) | PLAIN_BYTES | st.dictionaries(st.text(max_size=9), ODD).map(written),
    max_size=4,
)  # fmt: skip


@FUZZ
@given(files=FILES, pipe=st.booleans(), chosen=GIVEN)
def test_any_imported_folder_is_one_sentence_or_right(files, pipe, chosen, target, tmp_path):
    folder = tmp_path / "images"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if pipe:
        os.mkfifo(folder / "global_statistics_1.json")
    judged(lambda: taken_in(folder, chosen, target))


# --- prompts ---

CELLS = st.sampled_from(
    ["prompt", "caption", "id", "a fox", "a, b", '"x', "", "\ufeff", "\0", "1", "\x1b[2J"]
)
TABLES = st.tuples(
    st.sampled_from([",", ";", "\t"]), st.lists(st.lists(CELLS, max_size=4), max_size=5)
).map(lambda table: "\n".join(table[0].join(row) for row in table[1]).encode())
COCO = st.fixed_dictionaries(
    {},
    optional={
        "images": st.lists(st.fixed_dictionaries({"id": st.sampled_from([1, "1", 2]) | ODD})) | ODD,
        "annotations": st.lists(
            st.fixed_dictionaries({"image_id": st.sampled_from([1, "1", 3]), "caption": CELLS})
        )
        | ODD,
    },
)  # fmt: skip
OBJECTS = VALUES | st.lists(st.dictionaries(CELLS, CELLS | VALUES, max_size=3), max_size=3)
TEXTS = (
    TABLES | PLAIN_BYTES | (COCO | OBJECTS).map(written) | st.text(max_size=60).map(str.encode)
    | st.text(max_size=20).map(lambda text: text.encode("utf-16"))
)  # fmt: skip


@FUZZ
@given(
    content=TEXTS.filter(lambda content: len(content) < 2**16),
    ending=st.sampled_from(["txt", "csv", "tsv", "json", "jsonl"]),
    source=st.sampled_from(["", "coco2017:", "geneval:", "dpg:", "parti:"]),
    count=st.none() | st.integers(-1, 3),
    caption=st.sampled_from(["first", "longest", "random"]),
)
def test_any_prompts_are_one_sentence_or_right(content, ending, source, count, caption, tmp_path):
    path = tmp_path / f"p.{ending}"
    path.write_bytes(content)

    def work() -> None:
        chosen = prompts.load(f"{source}{path}", count, 0, caption)
        assert len(chosen) == (count or len(chosen)) > 0
        assert len({prompt.id for prompt in chosen}) == len(chosen)
        assert all(prompt.text.strip() and "\n" not in prompt.text for prompt in chosen)

    judged(work)


# --- submissions ---


@pytest.fixture(scope="module")
def submitted(tmp_path_factory) -> Iterator[bytes]:
    """A submission that fits."""
    root = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patch:
        frozen = short_protocol(patch, root)
        protocol.write(protocol.submission(suite_run(root / "results", frozen)), root / "a.json")
        yield (root / "a.json").read_bytes()


def changed(value: Any, path: list[int], new: object) -> Any:
    """A JSON value with another value at a place that the numbers of ``path`` lead to."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, Mapping) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    copy[key] = changed(value[key], path[1:], new)
    return copy


@FUZZ
@given(
    path=st.lists(st.integers(0, 99), min_size=1, max_size=5),
    new=ODD,
    damage=DAMAGE,
)
def test_any_submission_is_refused_in_one_sentence_or_right(
    path, new, damage, submitted, tmp_path
):
    content = written(changed(json.loads(submitted), path, new))
    if damage is not None:
        content = damaged(submitted, *damage)
    (tmp_path / "a.json").write_bytes(content)

    def work() -> None:
        entries, refused = leaderboard.read_folder(tmp_path)
        boards = leaderboard.boards(entries)
        leaderboard.html_page(boards)
        leaderboard.markdown_page(boards)
        for reasons in refused.values():
            raise UserError("; ".join(reasons))
        true = protocol.judged(protocol.Submission.model_validate_json(submitted))[0]
        assert true is not None
        assert [row.figures for row in entries[0].run.rows] == [row.figures for row in true.rows]

    judged(work)


# --- folders that transformers runs ---


@FUZZ
@given(
    name=st.sampled_from(["config.json", "lanternbench.yaml", "tokenizer.json"]),
    path=st.lists(st.integers(0, 99), min_size=1, max_size=2),
    new=ODD,
    damage=DAMAGE,
    weights=DAMAGE,
)
def test_any_folder_for_transformers_is_one_sentence_or_loads(
    name,
    path,
    new,
    damage,
    weights,
    hf_folder,  # noqa: F811
    tmp_path,
):
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(hf_folder / "model", folder)
    content = (folder / name).read_bytes()
    if damage is not None:
        content = damaged(content, *damage)
    elif name.endswith(".json"):
        content = written(changed(json.loads(content), path, new))
    else:
        content = yaml.safe_dump(changed(yaml.safe_load(content), path, new)).encode(
            "utf-8", "surrogatepass"
        )
    (folder / name).write_bytes(content)
    for file in folder.glob("*.safetensors"):
        if weights is not None and damage is not None:
            file.write_bytes(damaged(file.read_bytes(), weights[0] % 4096, weights[1]))
    judged(lambda: load_target(f"hf:{folder}") and None)


# --- run folders ---


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("run"))


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["edit", "repeat", "delete", "damage"]),
        st.integers(0, 5),
        st.sampled_from([*SAMPLE, "later"]),
        ODD,
    ),
    max_size=3,
)


@FUZZ
@given(
    edits=EDITS,
    name=st.sampled_from(["run.json", "summary.json"]),
    path=st.lists(st.integers(0, 99), min_size=1, max_size=5),
    new=ODD,
    damage=DAMAGE,
)
def test_any_run_folder_is_one_sentence_or_right(
    edits, name, path, new, damage, run_folder, tmp_path
):
    """The figures shown are those of its samples, each once."""
    folder = tmp_path / "r"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run_folder, folder)
    lines = (folder / "samples.jsonl").read_bytes().splitlines()
    for how, number, key, value in edits:
        line = lines[number]
        if how == "edit" and line.endswith(b"}"):
            lines[number] = written(json.loads(line) | {key: value})
        elif how == "repeat":
            lines.append(line)
        else:
            lines[number] = b"" if how == "delete" else line[: len(line) // 2]
    (folder / "samples.jsonl").write_bytes(b"\n".join([*lines, b""]))
    content = (folder / name).read_bytes()
    content = (
        written(changed(json.loads(content), path, new))
        if damage is None
        else damaged(content, *damage)
    )
    (folder / name).write_bytes(content)

    def work() -> None:
        report([folder], formats=["md", "csv", "tex", "json"])
        run = load_run(folder)
        for row, figures in true_figures(folder, run.record).items():
            shown = next(one for one in run.rows if one.label == row).figures
            assert {key: shown[key] for key in figures} == figures
        list(iter_samples(folder))

    judged(work)


def true_figures(folder: Path, record: Any) -> dict[str, Any]:
    """The figures of a run's samples, each key once, by label."""
    from lanternbench.experiment.run_folder import scan_samples

    once = {}
    for line in scan_samples(folder):
        if line.entry is not None:
            once.setdefault(line.entry.key, line.entry)
    return {row.label: row.figures for row in summarise(Figures(once.values()), record).rows}


def test_a_zip_of_gigabytes_of_zeros_is_one_sentence(target, tmp_path):
    """96 MB of zeros in 100 KB: at this rate 8 MB are 8 GB."""
    header = {"descr": "<i8", "fortran_order": False, "shape": (2**20, 12)}
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("tokens.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(12):
            file.write(bytes(2**23))
    with pytest.raises(UserError, match="bytes that inflate to"):
        taken_in(tmp_path / "a.npz", None, target)
