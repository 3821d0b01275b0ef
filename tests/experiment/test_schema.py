"""The JSON that we write has a version, and a schema that is published with the source."""

from __future__ import annotations

import json

import pytest
from jsonschema import ValidationError
from run_records import run_record
from suite_runs import schema
from test_results import CONFIG, image, sample

from lanternbench.cli.output import print_json
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, read_run
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row, Summary, read_summary
from lanternbench.notes import Note
from lanternbench.utils.json_values import SCHEMA_VERSION
from tools.schemas import current


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(
        tmp_path, run_record("r", CONFIG, methods=[{"label": "ar", "key": "ab"}])
    ) as run:
        run.append(sample(metrics={"clip": 0.3}), image())
        row = Row(
            label="ar",
            method="ar",
            n=1,
            figures={"clip": Estimate(0.3, 0.2, 0.4, 1, 0.5)},
            accept_len_by_position=[1.0, None],
        )
        run.finish(Summary(rows=[row], notes=[Note("info", "clip", "few")], suite="v1/tiny ab"))
    return run.path


def test_the_published_schemas_are_those_of_the_models():
    for path, text in current().items():
        assert json.loads(path.read_text()) == json.loads(text), "run `python -m tools.schemas`"


def test_the_files_of_a_run_follow_their_schemas(folder):
    for name in ("run", "summary"):
        found = json.loads((folder / f"{name}.json").read_text())
        assert found["schema_version"] == SCHEMA_VERSION
        schema(name).validate(found)
    lines = (folder / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 1
    schema("sample").validate(json.loads(lines[0]))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["suite"] == "v1/tiny ab"
    summary["rows"][0]["figures"]["clip"]["value"] = "0.3"
    with pytest.raises(ValidationError):
        schema("summary").validate(summary)


def test_a_file_of_before_versions_is_read_and_one_of_a_later_version_refused(folder):
    for name, read in (("run", read_run), ("summary", read_summary)):
        path = folder / f"{name}.json"
        found = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in found.items() if k != "schema_version"}))
        read(folder)
        path.write_text(json.dumps(found | {"schema_version": SCHEMA_VERSION + 1}))
        with pytest.raises(
            UserError, match=rf"{name}\.json has schema_version {SCHEMA_VERSION + 1}.*: upgrade it"
        ):
            read(folder)


def test_json_on_stdout_has_the_version_where_it_is_an_object(capsys):
    print_json({"rows": [1.0]})
    print_json([1.0])
    first, second = capsys.readouterr().out.split("\n}\n")
    assert json.loads(first + "}") == {"schema_version": SCHEMA_VERSION, "rows": [1.0]}
    assert json.loads(second) == [1.0]
