"""Submissions and the leaderboard: figures follow from samples, and what does not fit is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import mistake
from jsonschema import Draft202012Validator
from suite_runs import ENVIRONMENT, PROMPTS, schema, short_protocol, suite_run

from lanternbench.errors import UserError
from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row, read_summary
from lanternbench.suite import leaderboard
from lanternbench.suite.protocol import judged, ms_per_token, read, submission, write


@pytest.fixture
def frozen(monkeypatch, tmp_path):
    return short_protocol(monkeypatch, tmp_path)


def test_our_own_submissions_fit_and_give_the_board_that_is_shown():
    folder = Path(__file__).parents[2] / "results" / "leaderboard"
    entries, refused = leaderboard.read_folder(folder)
    assert refused == {}
    shown = (folder / leaderboard.NAMES[0]).read_text(encoding="utf-8")
    assert shown == leaderboard.markdown_page(leaderboard.boards(entries))
    assert max(map(len, shown.splitlines())) <= 80


@pytest.fixture
def path(frozen, tmp_path):
    made = submission(suite_run(tmp_path / "results", frozen))
    write(made, tmp_path / "board.json")
    return tmp_path / "board.json"


def reasons(path, values) -> str:
    path.write_text(json.dumps(values))
    try:
        return "; ".join(judged(read(path))[1])
    except UserError as error:
        return str(error)


def test_a_submission_says_what_its_run_says(frozen, tmp_path, path):
    found = read(path)
    summary, why = judged(found)
    assert why == []
    assert summary is not None
    rows = {row.label: row for row in read_summary(tmp_path / "results" / "suite-v1-tiny-0").rows}
    assert {row.label: row.figures for row in found.rows} == {
        label: row.figures for label, row in rows.items()
    }
    drawn = 3  # in the timed loop; the prefill draws one more
    latency = rows["ar"].value("latency_s")
    assert found.ar_ms_per_token.value == pytest.approx(1000 * latency / drawn)
    assert found.ar_ms_per_token.lo < found.ar_ms_per_token.value < found.ar_ms_per_token.hi
    assert found.clock == {"load": 1.0, "slow_steps": 0.0, "cpu_share": pytest.approx(1.0)}
    assert isinstance(schema("submission"), Draft202012Validator)
    schema("submission").validate(json.loads(path.read_text()))


def test_two_submissions_of_one_run_are_equal_but_for_time_and_place(frozen, tmp_path, path):
    again = tmp_path / "elsewhere" / "again.json"
    again.parent.mkdir()
    write(submission(tmp_path / "results" / "suite-v1-tiny-0"), again)
    one, two = (json.loads(file.read_text()) for file in (path, again))
    assert one.pop("submitted")["at"] < two.pop("submitted")["at"]
    assert one == two


def test_two_runs_of_one_suite_differ_in_times_alone(frozen, tmp_path, path):
    """The same samples on another machine, twice as fast."""
    quick = {"decode_s": 0.02, "step_s": None, "cpu_s": 0.02}
    other = submission(
        suite_run(
            tmp_path / "other", frozen, environment=ENVIRONMENT | {"cpu": "Other CPU"}, **quick
        )
    )
    ours = read(path)
    for row, theirs in zip(ours.rows, other.rows, strict=True):
        same = {
            "accept_len",
            "step_compression",
            "tree_depth",
            "fidelity_loss",
            "clip-tiny",
            "acceptance_rate",
        }
        assert {n: row.figure(n) for n in same} == {n: theirs.figure(n) for n in same}
        assert row.figure("latency_s") != theirs.figure("latency_s")


def test_a_file_says_nothing_of_folders_or_tokens(frozen, tmp_path):
    folder = suite_run(tmp_path / "results", frozen)
    about = json.loads((folder / "run.json").read_text())
    about["config"] |= {"target": "tiny=/home/alice/tiny", "drafter": "/home/alice/mine"}
    (folder / "run.json").write_text(json.dumps(about))
    write(submission(folder), tmp_path / "s.json")
    text = (tmp_path / "s.json").read_text()
    assert "alice" not in text
    assert "token_ids" not in text
    assert read(tmp_path / "s.json").run.config.target == "tiny=tiny"


def edits():
    """What is done to a submission, and what the refusal says."""

    def figure(s):
        s["rows"][1]["figures"]["speedup"]["value"] *= 1.01

    def interval(s):
        s["rows"][1]["figures"]["speedup"]["lo"] *= 1.01

    def ar_time(s):
        s["ar_ms_per_token"]["value"] *= 0.9

    def lossless(s):
        s["rows"][1]["lossless"] = False

    def sample_removed(s):
        s["samples"]["eagle-1"].pop()

    def prompt_removed(s):
        gone = s["prompts"].pop()["id"]
        s["samples"] = {
            k: [x for x in v if x["prompt_id"] != gone] for k, v in s["samples"].items()
        }

    def sample_twice(s):
        s["samples"]["ar"].append(s["samples"]["ar"][0])

    def sample_changed(s):
        s["samples"]["eagle-1"][0]["decode_s"] = 0.021

    def impossible(s):
        s["samples"]["eagle-1"][0]["tokens"] = 5

    def faster_than_its_steps(s):
        for sample in s["samples"]["eagle-1"]:
            sample["decode_s"] = 0.001

    def shorter(s):
        for sample in s["samples"]["ar"]:
            sample |= {
                "tokens": 3,
                "steps": 3,
                "accept_lengths": [1, 1, 1],
                "tree_depths": [0, 0, 0],
                "step_s": [0.01] * 3,
            }

    def settings(s):
        s["run"]["config"]["temperature"] = 0.5

    def suite(s):
        s["suite"] = s["suite"][:-1] + "x"

    def method_unknown(s):
        s["samples"]["mine"] = s["samples"]["ar"]

    def no_baseline(s):
        s["run"]["methods"] = s["run"]["methods"][1:]

    def tomorrow(s):
        s["submitted"]["at"] = "2999-01-01T00:00:00+00:00"

    def submitted_before_it_was_made(s):
        s["run"]["created"], s["submitted"]["at"] = s["submitted"]["at"], s["run"]["created"]

    def no_date(s):
        s["run"]["created"] = "yesterday"

    def claimed_lossless(s):
        s["run"]["methods"][1] |= {"method": "cool-sd", "options": {}, "label": "cool-sd λ=2"}
        s["samples"]["cool-sd λ=2"] = s["samples"].pop("eagle-1")

    def other_label(s):
        s["run"]["methods"][1]["label"] = "eagle-3"
        s["samples"]["eagle-3"] = s["samples"].pop("eagle-1")

    def unregistered(s):
        s["run"]["methods"][1]["method"] = "mine"

    def other_kinds(s):
        s["run"]["target"]["weights"] = [1]

    def no_config(s):
        del s["run"]["config"], s["run"]["prompts"], s["run"]["environment"]

    yield from {
        figure: "its samples give another speedup of eagle-1",
        interval: "its samples give another speedup of eagle-1",
        ar_time: "its samples give another ar_ms_per_token",
        lossless: "its samples give another lossless of eagle-1",
        sample_removed: f"it has {PROMPTS - 1} of {PROMPTS} samples of eagle-1",
        prompt_removed: "its prompts are not the suite's",
        sample_twice: "it has samples that no run of the suite has",
        sample_changed: "its samples give another",
        impossible: "it has what no run can have (accept_lengths must",
        faster_than_its_steps: "it has steps that took longer than their decode",
        shorter: "it has images of 3 tokens",
        settings: "temperature is 0.5, not 1.0",
        suite: "is none of this version",
        method_unknown: "it has samples that no run of the suite has",
        no_baseline: "it has no baseline ar",
        tomorrow: "its dates are not in order, or yet to come",
        submitted_before_it_was_made: "its dates are not in order, or yet to come",
        no_date: "it has a date that is none (yesterday",
        claimed_lossless: "cool-sd λ=2 claims to be lossless, unlike the method of its options",
        other_label: "eagle-3 is no label of the method of its options",
        unregistered: "eagle-1 claims to be lossless, and is not registered",
        other_kinds: "is no submission (run.target.weights must be a mapping)",
        no_config: "its run followed another suite",
    }.items()


@pytest.mark.parametrize(("edit", "says"), edits(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_tampered_submission_is_refused_with_the_reason(edit, says, path):
    values = deepcopy(json.loads(path.read_text()))
    edit(values)
    assert says in reasons(path, values)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"skip": {("eagle-1", 2)}}, f"it has {PROMPTS - 1} of {PROMPTS} samples of eagle-1"),
        ({"load": 9.0}, "Timing was noisy"),
    ],
)
def test_a_run_that_is_unfinished_or_was_disturbed_cannot_be_submitted(
    how, says, frozen, tmp_path, monkeypatch, capfd
):
    folder = suite_run(tmp_path / "results", frozen, **how)
    said = mistake(monkeypatch, capfd, "submit", str(folder), "-o", str(tmp_path / "s.json"))
    assert says in said
    assert not (tmp_path / "s.json").exists()


def test_a_run_that_was_resumed_elsewhere_cannot_be_submitted(
    frozen, tmp_path, monkeypatch, capfd
):
    suite_run(tmp_path / "results", frozen, skip={("eagle-1", 2)})
    folder = suite_run(tmp_path / "results", frozen, environment=ENVIRONMENT | {"torch": "2.10"})
    assert "resumed in another environment" in mistake(monkeypatch, capfd, "submit", str(folder))


def test_a_run_of_no_suite_cannot_be_submitted(frozen, tmp_path):
    folder = suite_run(tmp_path / "results", frozen)
    about = json.loads((folder / "run.json").read_text())
    del about["config"]["suite"]
    (folder / "run.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="does not follow the suite"):
        submission(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 99}', "[" * 10000, '{"suite": NaN}']
)
def test_a_file_that_is_no_submission_is_one_sentence(text, tmp_path):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=r"is no submission|upgrade it"):
        read(tmp_path / "s.json")


def test_a_board_has_the_fastest_first_and_ar_s_time_beside_every_speedup(
    path, tmp_path, monkeypatch, capfd
):
    folder = tmp_path / "leaderboard"
    folder.mkdir()
    path.rename(folder / "one.json")
    entries, refused = leaderboard.read_folder(folder)
    assert (len(entries), refused) == (1, {})
    boards = leaderboard.boards(entries)
    text = leaderboard.markdown_page(boards)
    row = next(line for line in text.splitlines() if line.startswith("| 1 | eagle-1 |"))
    ar = ms_per_token(entries[0].run.rows).value
    assert f"| {ar:.2f} |" in row
    assert "| 1.67× ± 0.00 |" in row
    assert row.endswith("| 0.3250 | 1 |")  # its CLIP-tiny
    assert max(map(len, text.splitlines())) <= 80
    assert "Quiet CPU" in text
    monkeypatch.setattr("sys.argv", ["lanternbench", "leaderboard", str(folder)])
    from lanternbench.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert (folder / "LEADERBOARD.md").read_text() == text
    assert f"{ar:.2f}" in (folder / "leaderboard.html").read_text()
    (folder / "LEADERBOARD.md").write_text("mine")
    assert "is not up to date" in mistake(
        monkeypatch, capfd, "leaderboard", str(folder), "--check"
    )
    (folder / "two.json").write_text("{}")
    said = mistake(monkeypatch, capfd, "leaderboard", str(folder))
    assert "1 of 2 submissions are refused (two.json:" in said
    assert (folder / "LEADERBOARD.md").read_text() == text  # of those that fit


def test_the_same_samples_under_another_name_are_refused(path, tmp_path):
    values = json.loads(path.read_text())
    values["submitted"]["commit"] = "b" * 40
    (tmp_path / "copy.json").write_text(json.dumps(values))
    entries, refused = leaderboard.read_folder(tmp_path)
    assert [entry.run.folder.name for entry in entries] == ["board.json"]
    assert refused == {"copy.json": ["its samples are those of board.json"]}


def line(label: str, value: float, half: float, lossless: bool = True) -> leaderboard.Line:
    estimate = Estimate(value, value - half, value + half)
    row = Row(label=label, method=label, n=9, figures={"speedup": estimate}, lossless=lossless)
    return leaderboard.Line(0, 1, row)


def test_methods_of_overlapping_intervals_share_a_rank():
    lines = [line("a", 2.0, 0.2), line("b", 1.9, 0.1), line("c", 1.7, 0.1), line("d", 1.6, 0.3)]
    assert [one.rank for one in leaderboard.ranked(lines)] == [1, 1, 1, 1]
    lines = [line("a", 2.0, 0.1), line("b", 1.9, 0.1), line("c", 1.7, 0.1), line("d", 1.6, 0.1)]
    assert [one.rank for one in leaderboard.ranked(lines)] == [1, 1, 3, 3]
    assert leaderboard.ranked([]) == []


def test_lossless_and_relaxed_methods_are_ranked_apart(path, tmp_path):
    entries, _ = leaderboard.read_folder(tmp_path)
    (entry,) = entries
    relaxed = entry.run.rows[1].model_copy(update={"label": "mine", "lossless": None})
    run = replace(entry.run, rows=[*entry.run.rows, relaxed])
    (board,) = leaderboard.boards([entry._replace(run=run)])
    ranks = {
        title: [(x.rank, x.row.label) for x in lines] for title, lines in board.rankings.items()
    }
    assert ranks == {"Lossless": [(1, "eagle-1")], "Relaxed": [(1, "mine")]}
    text = leaderboard.markdown_page([board])
    assert text.index("### Lossless") < text.index("eagle-1") < text.index("### Relaxed")
    assert "| loss ↓ |" not in text[: text.index("### Relaxed")]
    assert "| loss ↓ |" in text[text.index("### Relaxed") :]
    assert leaderboard.html_page([board]).count("<table") == 2


def test_text_in_a_submission_is_shown_as_text(path, tmp_path):
    values = json.loads(path.read_text())
    values["run"]["environment"]["cpu"] = "<script>alert(1)</script>|x"
    values["run"]["environment"]["dtype"] = "[a](javascript:b)"
    path.write_text(json.dumps(values))
    entries, _ = leaderboard.read_folder(tmp_path)
    boards = leaderboard.boards(entries)
    assert "<script>alert" not in leaderboard.html_page(boards)
    assert "<script>" not in leaderboard.markdown_page(boards)
    assert "[a](javascript:b)" not in leaderboard.markdown_page(boards)
