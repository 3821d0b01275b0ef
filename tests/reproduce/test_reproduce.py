"""``reproduce``: every published row of a method that is implemented is in a recipe, every recipe
resolves, and a verdict is given only where figures can be compared.
"""

from __future__ import annotations

import json

import pytest
from conftest import mistake

from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.measure.statistics import Estimate
from lanternbench.models.entries import catalogue
from lanternbench.report.load import ReportRow
from lanternbench.report.papers import published_rows
from lanternbench.reproduce import recipe, verdict

GROUPS = [group for paper in recipe.recipes() for group in recipe.groups(paper)]
RESOLVABLE = [g for g in GROUPS if any(map(recipe.is_known, g.rows))]
ON_TINY = {"target": "tiny"}


def test_every_published_row_of_an_implemented_method_is_in_a_recipe():
    wanted = [row for row in published_rows() if recipe.is_known(row)]
    found = [row for group in GROUPS for row in group.rows if recipe.is_known(row)]
    assert sorted(map(str, found)) == sorted(map(str, wanted))


@pytest.mark.parametrize("group", RESOLVABLE, ids=lambda group: f"{group.paper} {group.title}")
def test_every_recipe_can_be_rehearsed_with_each_of_its_rows(group):
    plan = recipe.plan(group, ON_TINY)
    known = [row for row in group.rows if recipe.is_known(row)]
    labels = {recipe.label_of(spec) for spec in plan.config.methods}
    assert labels == set(plan.published)
    assert len(plan.published) == len({(row["method"], row["params"]) for row in known})
    assert plan.config.target == "tiny"
    assert plan.config.prompts == "demo"


@pytest.mark.parametrize("group", RESOLVABLE, ids=lambda group: f"{group.paper} {group.title}")
def test_a_recipe_has_the_papers_settings_or_says_that_they_are_not_known(group):
    read = recipe.recipes()[group.paper].targets
    target = read[group.target].target if group.target in read else group.target
    if target not in catalogue():
        with pytest.raises(UserError, match="--target tiny to rehearse it"):
            recipe.plan(group, {})
        return
    plan = recipe.plan(group, {})
    assert plan.config.target == target
    if group.temperature:
        assert plan.config.temperature == float(group.temperature)
    if group.dataset == "coco2017-val":
        assert plan.config.prompts == "coco2017"
    for name in recipe.OPEN:
        is_set = name in plan.config.model_fields_set and name != "num_prompts"
        assert not (is_set and plan.sources[name] == recipe.NOT_KNOWN)
    metrics = {
        name for name in recipe.METRICS if any(r[name.replace("-", "_")] for r in group.rows)
    }
    assert set(plan.config.metrics) == metrics


def test_the_settings_of_a_paper_come_with_their_source():
    (group,) = recipe.chosen("pjd:main", ["pjd"])[:1]
    plan = recipe.plan(group, {"num_prompts": 3})
    assert plan.config.top_k == 2000
    assert plan.sources["top_k"] == "its code"
    assert plan.sources["num_prompts"] == "given"
    assert "top_k 2000 (its code)" in plan.settings
    assert list(plan.published) == ["pjd c=16", "pjd c=11"]


def test_unknown_papers_tables_and_rows_are_named_with_what_there_is():
    with pytest.raises(UserError, match="did you mean 'cool-sd'"):
        recipe.chosen("coolsd:1")
    with pytest.raises(UserError, match="has no table '7': choose one of 1, 2"):
        recipe.chosen("cool-sd:7")
    with pytest.raises(UserError, match="has no row of 'medusa'"):
        recipe.chosen("cool-sd:1", ["medusa"])


def test_methods_that_are_not_implemented_are_named():
    group = next(g for g in GROUPS if g.paper == "ssd")
    assert group.missing == ["ssd"]
    assert "ssd" not in recipe.plan(group, ON_TINY).published


def measured(label: str, figures: dict[str, Estimate], **facts) -> ReportRow:
    """Return a row on Lumina-mGPT and COCO, as Cool-SD's table 1 has it."""
    setup = {
        "target": "lumina-mgpt-7b-768",
        "dataset": "coco2017",
        "temperature": 1.0,
        "hardware": "NVIDIA A100-SXM4-40GB",
    }
    method = label.split()[0]
    return ReportRow(label=label, method=method, n=100, figures=figures, **(setup | facts))


def outcomes(row: ReportRow) -> dict[str, verdict.Verdict]:
    group = next(g for g in recipe.chosen("cool-sd:1") if g.target == row.target)
    found = verdict.verdicts(recipe.plan(group, {}), [row])
    return {one.figure: one for one in found}


def test_a_published_figure_is_inside_the_interval_or_outside():
    """Cool-SD reports 2.37 and τ = 2.76 for EAGLE-1."""
    figures = {"speedup": Estimate(2.3, 2.2, 2.4), "accept_len": Estimate(2.5, 2.4, 2.6)}
    found = outcomes(measured("eagle-1", figures))
    assert found["speedup"].outcome == "inside"
    assert found["accept_len"].outcome == "outside"
    assert found["clip"].reason == "not measured"


def test_a_figure_may_be_as_far_off_as_the_paper_rounded_it():
    assert verdict.is_inside(Estimate(2.3, 2.2, 2.366), "2.37")
    assert not verdict.is_inside(Estimate(2.3, 2.2, 2.364), "2.37")
    assert verdict.is_inside(Estimate(2.0, 1.9, 1.96), "2.4") is False
    assert verdict.rounding("23") == 0.5


@pytest.mark.parametrize(
    ("facts", "figure", "reason"),
    [
        ({"hardware": "NVIDIA H100"}, "speedup", "hardware (NVIDIA H100)"),
        ({"temperature": 0.5}, "accept_len", "temperature (0.5)"),
        ({"dataset": "parti"}, "accept_len", "dataset (partiprompts)"),
        ({"simulated": True}, "accept_len", "acceptance (simulated)"),
        ({}, "fid", "it is of 100 images, the paper's of an unknown number"),
    ],
)
def test_no_verdict_where_a_setup_differs(facts, figure, reason):
    estimate = Estimate(2.5, 2.0, 3.0)
    figures = {"speedup": estimate, "accept_len": estimate, "fid": estimate}
    found = outcomes(measured("eagle-1", figures, **facts))
    assert found[figure].outcome == "not comparable"
    assert found[figure].reason == reason


def test_other_hardware_leaves_the_accepted_length_comparable():
    figures = {"accept_len": Estimate(2.7, 2.6, 2.8)}
    found = outcomes(measured("eagle-1", figures, hardware="NVIDIA H100"))
    assert found["accept_len"].outcome == "inside"


def test_a_figure_without_an_interval_gets_no_verdict():
    found = outcomes(measured("eagle-1", {"accept_len": Estimate(2.7)}))
    assert found["accept_len"].reason == "it has no interval"


def run(arguments: list[str], capsys) -> str:
    app(arguments, standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("paper", list(recipe.recipes()))
def test_the_plan_of_every_paper_is_printed_without_its_weights(paper, capsys):
    out = run(["reproduce", paper, "--target", "tiny", "--dry-run"], capsys)
    assert "settings" in out
    for group in recipe.chosen(paper):
        assert group.title.split(",")[0] in out.replace("\n", "")


def test_the_plan_of_a_paper_says_what_it_needs(capsys):
    out = run(["reproduce", "cool-sd:2", "--dry-run"], capsys)
    text = " ".join(out.split())
    assert "16.0 GB of weights" in text
    assert "lanternbench fetch lumina-mgpt-7b-768" in text
    assert "the paper does not name the stage" in text


def test_the_plan_for_a_folder_of_another_model_says_whose_files_it_needs(tmp_path, capsys):
    out = run(["reproduce", "cool-sd:2", "--target", f"hf:{tmp_path}", "--dry-run"], capsys)
    assert f"the files of hf:{tmp_path}".replace(" ", "") in "".join(out.split())


def test_the_list_has_a_line_for_each_run(capsys):
    rows = json.loads(run(["reproduce", "--json"], capsys))
    assert len(rows) == len(GROUPS)
    assert {"table": "cool-sd:1", "paper": "2601.09212"}.items() <= next(
        row for row in rows if row["table"] == "cool-sd:1"
    ).items()


REHEARSALS = [
    pytest.param("cool-sd:2", "sjd", id="cool-sd:2"),
    pytest.param("zipar:main", "zipar", id="zipar:main", marks=pytest.mark.slow),
    pytest.param("cool-sd:1", "cool-sd λ=1.1", id="cool-sd:1", marks=pytest.mark.slow),
    pytest.param("pjd:main", "pjd c=16", id="pjd:main", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("table", "label"), REHEARSALS)
@pytest.mark.usefixtures("small_images", "quick_pictures")
def test_a_table_is_rehearsed_to_its_verdicts(table, label, tmp_path, capsys):
    arguments = ["reproduce", table, "--target", "tiny", "-n", "1", "--out", str(tmp_path)]
    results = json.loads(run([*arguments, "--json"], capsys))
    assert len(results["runs"]) == len(recipe.chosen(table))
    for one in results["runs"]:
        measured = [v for v in one["verdicts"] if v["measured"]["value"] is not None]
        assert measured
        assert {v["reason"] for v in measured} == {"target (tiny)"}
    assert label in {v["label"] for one in results["runs"] for v in one["verdicts"]}
    pages = list(tmp_path.glob("*/reproduction.md"))
    assert len(pages) == len(results["runs"])
    assert "target tiny (given)" in pages[0].read_text(encoding="utf-8")


def test_a_target_that_does_not_exist_is_one_sentence(monkeypatch, capfd):
    said = mistake(monkeypatch, capfd, "reproduce", "cool-sd:1", "--target", "tinyy")
    assert "did you mean 'tiny'" in said
