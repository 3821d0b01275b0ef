"""Any run folder and any weight file is one sentence or read: never a traceback, never long.

``pytest -s`` prints how many inputs there were, and how many of them ended in anything but the
two.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flat_rows import markdown_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_records import record_of, run_record
from safetensors.torch import load_file, save_file
from test_fuzz import VALUES, one_sentence

from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample, read_run
from lanternbench.experiment.run_folder import scan_samples
from lanternbench.measure.figures import Figures
from lanternbench.measure.samples import sample_key
from lanternbench.measure.summary import read_summary, summarise
from lanternbench.models.loading import read_state
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.report.latex import latex_table
from lanternbench.report.load import ReportRow, joined_rows, load_run
from lanternbench.report.tables import csv_text, frame, terminal_table
from lanternbench.report.write import report_notes
from lanternbench.utils.files import WEIGHTS

FUZZ = settings(
    max_examples=100, deadline=300_000, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
COUNTS: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    """States how many inputs there were."""
    COUNTS.clear()
    yield
    ended = COUNTS["read"] + COUNTS["one sentence"]
    print(f"\n{COUNTS['inputs']} inputs: {COUNTS['read']} read, {COUNTS['one sentence']} one sentence, "
          f"{COUNTS['inputs'] - ended} other outcomes")  # fmt: skip
    assert ended == COUNTS["inputs"]


def judged(work: Any) -> None:
    """Run ``work``, which may end well or with a UserError of one line."""
    COUNTS["inputs"] += 1
    try:
        work()
        COUNTS["read"] += 1
    except UserError as error:
        one_sentence(error)
        COUNTS["one sentence"] += 1


SAMPLE = {
    "key": sample_key("1", "ar", 0), "prompt_id": "1", "prompt": "a fox", "label": "ar", "method": "ar", "seed": 0,
    "tokens": 5, "steps": 2, "accept_lengths": [3, 2], "tree_depths": [4, 4], "decode_s": 0.5, "step_s": [0.2, 0.3],
    "token_ids": [1, 2, 3, 4, 5], "stats": {"log_prob": -1.0}, "metrics": {"clip-tiny": 0.3}, "fidelity_loss": 0.0,
    "phases": {"draft_s": 0.1, "verify_s": 0.2},
}  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([1e308, -1e308, 1e15, 2**63, -1, 0, 1e-320]),
)
ODD = (
    NUMBERS
    | VALUES
    | st.lists(NUMBERS, max_size=3)
    | st.dictionaries(st.text(max_size=4), NUMBERS, max_size=2)
)
RUN_KEYS = [
    "run_id",
    "created",
    "config",
    "environment",
    "prompts",
    "target",
    "methods",
    "resumed",
]
ROW_KEYS = [
    "label",
    "method",
    "n",
    "figures",
    "options",
    "target",
    "temperature",
    "lossless",
    "accept_histogram",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    with RunFolder.open(
        tmp_path_factory.mktemp("fuzz"), run_record("r", {"seed": 0}, target={"name": "tiny"})
    ) as run:
        run.append(Sample(**SAMPLE))
        run.finish(summarise(Figures(run.samples), run.run))
    return run.path


def written(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@FUZZ
@given(changes=st.dictionaries(st.sampled_from([*SAMPLE, "later"]), ODD, min_size=1, max_size=3))
def test_any_sample_is_one_sentence_or_summarised(changes, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(written(SAMPLE | changes) + b"\n")

    def work() -> None:
        figures = Figures(line.entry for line in scan_samples(tmp_path) if line.entry)
        summary = summarise(figures, record_of({"methods": [{"label": "ar", "lossless": True}]}))
        if summary.rows:
            rows = [ReportRow(**vars(row)) for row in summary.rows]
            markdown_table(rows), csv_text(frame(rows)), latex_table(rows)

    judged(work)


@FUZZ
@given(lines=st.lists(st.binary(max_size=60) | st.just(written(SAMPLE)), max_size=4))
def test_any_lines_are_one_sentence_or_samples(lines, folder):
    path, whole = folder / "samples.jsonl", (folder / "samples.jsonl").read_bytes()
    path.write_bytes(b"\n".join(lines))
    judged(lambda: RunFolder.open(folder.parent, run_record("r", {"seed": 0})).close())
    path.write_bytes(whole)


@FUZZ
@given(
    run=st.dictionaries(
        st.sampled_from(RUN_KEYS), ODD | st.lists(ODD, max_size=2), min_size=1, max_size=3
    ),
    row=st.dictionaries(st.sampled_from(ROW_KEYS), ODD, max_size=3),
    figure=ODD,
)
def test_any_run_and_summary_are_one_sentence_or_reported(run, row, figure, folder):
    kept = {name: (folder / name).read_bytes() for name in ("run.json", "summary.json")}
    summary = json.loads(kept["summary.json"])
    summary["rows"] = [
        summary["rows"][0] | {"figures": {"accept_len": {"value": figure, "lo": figure}}} | row
    ]
    (folder / "run.json").write_bytes(written(json.loads(kept["run.json"]) | run))
    (folder / "summary.json").write_bytes(written(summary))

    def work() -> None:
        read_run(folder)
        read_summary(folder)
        loaded = load_run(folder)
        rows = joined_rows([loaded, loaded])
        report_notes([loaded, loaded])
        markdown_table(rows), csv_text(frame(rows)), latex_table(rows), terminal_table(rows, 80)

    judged(work)
    for name, content in kept.items():
        (folder / name).write_bytes(content)


HEADER = st.dictionaries(
    st.text(max_size=5) | st.just("__metadata__"),
    VALUES
    | st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "BF16", "I8", "F8_E4M3", "X"]) | VALUES,
            "shape": st.lists(NUMBERS, max_size=3) | VALUES,
            "data_offsets": st.lists(NUMBERS, max_size=3) | VALUES,
        }
    ),
    max_size=3,
)


@FUZZ
@given(
    header=HEADER | st.binary(max_size=80),
    size=st.none() | st.integers(0, 2**64 - 1),
    body=st.binary(max_size=32),
)
def test_any_weight_header_is_one_sentence_or_read(header, size, body, tmp_path):
    text = header if isinstance(header, bytes) else written(header)
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + body)
    judged(lambda: read_state(path))
    judged(lambda: tiny.read(path))


CONFIGS = st.dictionaries(
    st.sampled_from(["dim", "n_layer", "n_head", "vocab_size", "grid", "model_type", "caption_dim", "x"]),
    NUMBERS | VALUES, min_size=1, max_size=2,
)  # fmt: skip


@settings(FUZZ, max_examples=40)
@given(changes=CONFIGS)
def test_any_config_of_a_target_is_one_sentence_or_loads(changes, tmp_path):
    source = WEIGHTS / "model.safetensors"
    config = tiny.read(source)[1]["config"] | changes
    path = tmp_path / "model.safetensors"
    save_file(load_file(source), path, {"config": json.dumps(config)})
    judged(lambda: tiny._llamagen(path, "cpu", tiny.torch.float32))
