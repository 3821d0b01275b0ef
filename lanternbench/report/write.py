"""``report()``: everything that a report of run folders writes: tables, pictures, a LaTeX table
and one page.

`report.html` is one file without network, with the answer, tables, plots and images of the runs.
`table.tex` fits a paper: chosen columns, names as papers write them, value ± interval.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lanternbench import metrics
from lanternbench.errors import UserError
from lanternbench.measure.figures import BASELINE
from lanternbench.measure.run_notes import RANDOM_NOTE
from lanternbench.measure.statistics import LOOKS
from lanternbench.measure.summary import Row
from lanternbench.notes import Note, by_importance
from lanternbench.report import load, tables
from lanternbench.report.columns import (
    MISSING,
    Column,
    columns,
    glossary,
    metric_column,
    metric_keys,
    tex_escape,
)
from lanternbench.report.findings import BUDGET, INTRO, Pair, answer, compared, pair_table
from lanternbench.report.images import PROMPTS, grid_figure, image_grid, loss_figure, loss_records
from lanternbench.report.load import Contents, ReportRow, Run, View, differing, paper_name
from lanternbench.report.plots import Picture, speed_pictures, step_pictures, write_pictures
from lanternbench.report.style import colour, save
from lanternbench.report.tables import (
    Table,
    csv_text,
    figure_table,
    markdown_escape,
    markdown_table,
)
from lanternbench.report.tradeoff import speed_column
from lanternbench.utils.files import OUT, replacing, writing
from lanternbench.utils.json_values import versioned
from lanternbench.utils.text import one_line

FORMATS = ("md", "csv", "tex", "html", "json")
# points: \\columnwidth and \\textwidth of ACL, the narrowest of two-column venues
COLUMN, PAGE = 219.0, 455.0
# points of a sign in \\small and between columns, \\tabcolsep being 3 points
SIGN, BETWEEN = 4.7, 6.0
ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}


class Part(NamedTuple):
    """One run in a report: its data, its methods compared in pairs, and its findings."""

    run: Run
    contents: Contents
    pairs: list[Pair]
    answer: list[str]


def templates() -> Environment:
    """The templates of this package: text is escaped for HTML but in LaTeX, and cut to one
    printable line.
    """
    loader, escaped = (
        PackageLoader("lanternbench.report"),
        lambda name: not (name or "").endswith(".tex"),
    )
    environment = Environment(loader=loader, autoescape=escaped, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.globals["colour"] = colour
    environment.filters["plain"] = lambda text, limit=200: one_line(str(text), limit)
    environment.filters["md"] = lambda text, limit=200: Markup(markdown_escape(str(text), limit))
    return environment


def report(
    run_folders: list[Path],
    out: Path | None = None,
    published: bool = False,
    formats: Sequence[str] | None = None,
    budget: float = BUDGET,
    view: View | None = None,
    grid: int = 0,
) -> list[Path]:
    """Write tables, pictures and report.html of one or more runs; returns the files, report.html
    last.

    Args: folders of runs (rows of several are joined, with a `run` column); the folder to write
    into, by default `<run>/report`, or `report` beside the runs when there are several; whether to
    set the papers' numbers beside; which formats to write, by default all and the pictures; the
    fidelity loss that the answer allows relaxed methods; which methods and columns to show under
    which names; of how many prompts to write the images side by side. Raises UserError when a
    folder is no run, holds no results, is damaged, or `out` cannot be written.
    """
    if unknown := [name for name in formats or () if name not in FORMATS]:
        raise UserError(
            f"there is no report format {unknown[0]!r}: choose of {', '.join(FORMATS)}."
        )
    view, loaded = view or View(), load.load_runs([Path(folder) for folder in run_folders])
    read = {run.folder: load.read_contents(run, max(PROMPTS, grid)) for run in loaded}
    # a run may be going on
    every = [load.load_run(folder, contents.figures) for folder, contents in read.items()]
    runs = view.of(every)
    if grid and (empty := [run.run_id for run in runs if not run.draws]):
        raise UserError(
            f"{empty[0]} has no images, as its target has no image tokeniser: leave out --grid."
        )
    first = every[0].folder
    out = Path(out or (first if len(every) == 1 else first.resolve().parent) / "report")
    rows, notes = view.named(load.joined_rows(runs)), report_notes(runs)
    labels = {run.folder: [row.label for row in run.rows] for run in every}
    parts = [_part(run, read[run.folder], labels[run.folder], view, budget) for run in runs]
    if damaged := sum(part.contents.damaged for part in parts):
        notes.append(
            Note("warning", None, f"{damaged} damaged line(s) of samples.jsonl were left out.")
        )
    if apart := differing(runs):
        parts[0].answer.insert(0, apart)
    texts, beside = _texts(parts, rows, notes, view), None
    if published:
        beside, papers = _published(rows)
        texts |= papers
    wanted = tuple(f".{name}" for name in formats or FORMATS)
    texts = {name: text for name, text in texts.items() if name.endswith(wanted)}
    files: list[Path] = []
    with writing(out, OUT):
        out.mkdir(parents=True, exist_ok=True)
    if ".html" in wanted:
        steps = [
            part.contents.figures.steps.get(row.label) for part in parts for row in part.run.rows
        ]
        pictures = (speed_pictures(rows), step_pictures(rows, steps))
        texts["report.html"] = html_page(parts, rows, notes, pictures, view, beside)
        files += write_pictures([*pictures[0], *pictures[1]], out) if formats is None else []
    for i, part in enumerate(parts, 1):
        number = f"-{i}" if len(parts) > 1 else ""
        if formats is None and (losses := loss_records(part.contents.losses)):
            files += save(
                partial(loss_figure, losses), out / f"loss-by-place{number}", ("png", "svg", "pdf")
            )
            texts = {f"loss-by-place{number}.csv": csv_text(losses), **texts}
        if grid:
            draw = partial(grid_figure, part.run, part.contents, view, grid)
            files += save(draw, out / f"grid{number}", ("png", "pdf"))
    for name, text in texts.items():
        with replacing(out / name, OUT) as file:
            file.write(text.encode("utf-8", "replace"))
    *others, last = sorted(
        (out / name for name in texts), key=lambda path: path.name == "report.html"
    )
    return [*others, *files, last]


def _part(run: Run, contents: Contents, labels: list[str], view: View, budget: float) -> Part:
    """A run as the page shows it. p-values are corrected for all of its methods, ``labels``, also
    those not shown.
    """
    names = view.labels({row.label: row.method for row in run.rows})
    looks = LOOKS if run.record.config.until_told_apart else 1
    pairs = [
        pair
        for pair in compared(contents.figures, labels, looks)
        if {pair.method, pair.against} <= names.keys()
    ]
    pairs = [
        pair._replace(method=names[pair.method], against=names[pair.against]) for pair in pairs
    ]
    rows = [row.model_copy(update={"label": names[row.label]}) for row in run.rows]
    return Part(run, contents, pairs, answer(rows, pairs, run.notes, budget))


def _texts(
    parts: list[Part], rows: list[ReportRow], notes: list[Note], view: View
) -> dict[str, str]:
    """Every file but the page, by name."""
    pairs = [{"run": part.run.run_id} | pair._asdict() for part in parts for pair in part.pairs]
    answers = {part.run.run_id: part.answer for part in parts}
    document = versioned({"rows": rows, "notes": notes, "answers": answers, "pairs": pairs})
    recipes, columns = [part.run.recipe for part in parts], view.columns_for(rows, "md")
    setups = [
        f"Decoding methods on {r['target']} ({r['prompts']}, temperature {r['temperature']})"
        for r in recipes
    ]
    lines = ["; ".join(f"{name} {value}" for name, value in recipe.items()) for recipe in recipes]
    caption, recipe = "; ".join(dict.fromkeys(setups)) + ".", ". ".join(dict.fromkeys(lines))
    table, meanings = markdown_table(rows, columns), glossary(columns)
    template, sections = map(templates().get_template, ("table.md", "sections.md"))
    texts = {
        "table.md": template.render(
            parts=parts, recipes=lines, notes=notes, table=table, glossary=meanings
        ),
        "table.csv": csv_text(tables.frame(rows)),
        "table.tex": latex_table(
            rows, caption, recipe, view.columns_for(rows, "tex") if view.columns else None
        ),
        "table.json": json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    if rates := tables.acceptance_table(rows):
        texts["acceptance.md"] = f"{tables.ACCEPTANCE}\n\n{rates}"
        texts["acceptance.csv"] = csv_text(tables.acceptance_records(rows))
    categories = [
        tables.category_table(part.contents.figures, [row.label for row in part.run.rows])
        for part in parts
    ]
    differences = [pair.markdown() if (pair := pair_table(part.pairs)) else "" for part in parts]
    for name, intro, each in (("categories.md", "", categories), ("pairs.md", INTRO, differences)):
        if by_run := [(part.run.run_id, text) for part, text in zip(parts, each) if text]:
            texts[name] = sections.render(intro=intro, sections=by_run)
    return texts | ({"pairs.csv": csv_text(pairs)} if pairs else {})


def _published(rows: list[ReportRow]) -> tuple[Table, dict[str, str]]:
    """The papers' figures beside the measured ones, as a table and as files; a sentence where
    there are none.
    """
    from lanternbench.report import papers  # not for every report: it loads all methods

    frame = papers.published_beside(rows)
    table = papers.table(frame)
    if frame.empty:
        return table, {"published.md": f"{papers.NONE}\n"}
    return table, {"published.md": table.markdown(), "published.csv": csv_text(frame)}


def report_notes(runs: list[Run]) -> list[Note]:
    """Notes to read before the numbers: the runs' notes and those that follow from the rows."""
    notes: list[Note] = []
    for run in runs:
        text, metric = "", "speedup"
        if not any(BASELINE in (row.method, row.label) for row in run.rows):
            text = "there is no ar baseline, so no speedup is given."
        elif not any(row.value("speedup") is not None for row in run.rows):
            text, metric = (
                "there are no valid latencies (batch above 1), so no speedup is given.",
                "latency_s",
            )
        noted = not text or ("missing", metric) in {(note.kind, note.metric) for note in run.notes}
        missing = [] if noted else [Note("missing", "speedup", text)]
        prefix = f"{run.run_id}: " if len(runs) > 1 else ""
        notes += [note._replace(text=prefix + note.text) for note in [*run.notes, *missing]]
    rows = [row for run in runs for row in run.rows]
    reasons = {
        "step_compression": "The pictures show step compression for want of speedups.",
        "robust_speedup": "Other programs disturbed the clock: the pictures show the robust speedup.",
    }
    if reason := reasons.get(speed_column(rows).key):
        notes.append(Note("info", None, reason))
    if apart := differing(runs):
        notes.append(Note("unfit", None, apart))
    return by_importance([*notes, *_metric_notes(rows)])


def _metric_notes(rows: Sequence[Any]) -> Iterator[Note]:
    keys = [key for key in metric_keys(rows) if any(row.value(key) is not None for row in rows)]
    if tiny := [metric_column(key).title for key in keys if metrics.column(key).embedded]:
        text = f"{', '.join(tiny)}: scored by the embedded evaluators; not comparable with the papers' metrics."
        yield Note("info", None, text)
    if any(metrics.column(key).random for key in keys):
        yield RANDOM_NOTE
    for key in keys:
        if counts := {
            e.n
            for e in (row.figure(key) for row in rows)
            if e.value is not None and e.lo is None and e.n
        }:
            span = " to ".join(map(str, sorted({min(counts), max(counts)})))
            name = metric_column(key).title
            text = f"{name} is over {span} images per row and changes with their number: compare equal counts only."
            yield Note("info", None, text)


def html_page(
    parts: Sequence[Part],
    rows: list[ReportRow],
    notes: list[Note],
    pictures: tuple[list[Picture], list[Picture]],
    view: View,
    published: Table | None = None,
) -> str:
    """The whole page; ``pictures``: of speeds, and of steps.  Text from files is escaped; a CSP
    forbids network.
    """
    runs = [part.run for part in parts]
    grids = [image_grid(part.run, part.contents, view) for part in parts]
    answers = {sentence for part in parts for sentence in part.answer}
    notes = [note for note in notes if note.text not in answers]
    notes += [Note("info", None, text) for grid in grids for text in grid.notes]
    facts = {
        "Target": [run.target for run in runs],
        "Prompts": [run.recipe["prompts"] for run in runs],
        "Hardware": [run.hardware for run in runs],
        "Made": [(run.record.created or MISSING).replace("T", " ")[:16] for run in runs],
    }
    # columns that were not chosen, by default those that do not fit a terminal, are folded
    every, compact = columns(rows), view.columns_for(rows, "terminal")
    folded = frozenset(
        i
        for i, c in enumerate(every)
        if c not in compact and (view.columns or c.key != "lossless")
    )
    dispensable = frozenset(
        i for i, c in enumerate(every) if c.key in ("lossless", "step_compression", "tree_depth")
    )
    page = templates().get_template("report.html")
    return page.render(
        parts=parts,
        facts={name: " · ".join(dict.fromkeys(values)) for name, values in facts.items()},
        notes=list(dict.fromkeys(notes)),
        results=figure_table(rows, every)._replace(folded=folded, dispensable=dispensable),
        glossary=glossary(every),
        plots=pictures[0],
        step_pictures=pictures[1],
        view=view,
        pair_intro=INTRO,
        pair_tables=[pair_table(part.pairs) for part in parts],
        published=published,
        grids=grids,
        drawn=any(run.draws for run in runs),
        environments=[
            [
                ("environment", _flat(run.record.environment.written())),
                ("config", _flat(run.record.config.written())),
            ]
            for run in runs
        ],
    )


def _flat(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested dicts as ("outer.inner", text) pairs."""
    flat = []
    for key, value in content.items():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            flat += _flat(value, f"{prefix}{key}.")
        else:
            flat.append(
                (
                    f"{prefix}{key}",
                    value if isinstance(value, str) else json.dumps(value, default=str),
                )
            )
    return flat


def latex_table(
    rows: Sequence[Row], caption: str = "", recipe: str = "", fixed: Sequence[Column] | None = None
) -> str:
    """A booktabs table (needs \\usepackage{booktabs} and nothing else), all text escaped.

    It is one column wide if it fits, else a page (``table*``). Of columns that it chooses itself
    the last go until it fits a page, and a comment names them; ``fixed`` columns are kept.
    ``recipe``: how the run was made, as a comment.
    """
    every = list(columns(rows, "tex") if fixed is None else fixed)
    cells, widths = [[_cell(column, row) for row in rows] for column in every], []
    for column, each in zip(every, cells):
        head = (
            len(column.title)
            + (2 if column.better else 0)
            + (4 if column.form.endswith("%") else 0)
        )
        widths.append(SIGN * max([head, len(MISSING), *(signs for _, signs in each)]) + BETWEEN)
    fits = (n for n in range(len(every), 2, -1) if fixed is not None or sum(widths[:n]) <= PAGE)
    count = next(fits, min(2, len(every)))
    chosen, left_out = every[:count], [column.key for column in every[count:]]
    kind = "table" if sum(widths[:count]) <= COLUMN else "table*"
    titles = [c.tex or tex_escape(c.title[:1].upper() + c.title[1:]) for c in chosen]
    heads = [
        t + (r" (\%)" if c.form.endswith("%") else "") + ARROWS[c.better]
        for t, c in zip(titles, chosen)
    ]
    lines = [[text for text, _ in line] for line in zip(*cells[:count])]
    alignment, caption = (
        "".join("r" if c.numeric else "l" for c in chosen),
        f"{tex_escape(caption, 1000)} ".lstrip(),
    )
    facts = {"recipe": " ".join(recipe.split()), "left_out": left_out, "caption": caption}
    template = templates().get_template("table.tex")
    return template.render(facts, kind=kind, alignment=alignment, heads=heads, rows=lines) + "\n"


def _cell(column: Column, row: Row) -> tuple[str, float]:
    """A figure ± the distance to the farther end of its interval, both without unit; and about how
    many signs wide.
    """
    if not column.numeric:
        words = paper_name(row) if column.key == "label" else column.value(row)
        text = tex_escape(words)
        # else the \\ before takes it
        return "{}" + text if text.startswith(("[", "*")) else text, len(words)
    value, low, high, *_ = column.figure(row)
    if value is None:
        return "--", 0
    far = (
        max(high - value, value - low, 0.0)
        if column.interval and low is not None and high is not None
        else 0.0
    )
    number, bound = (column.print(part).rstrip("×%") for part in (value, far))
    if not float(bound):
        return f"${number}$", len(number)
    # a bound is set in \\scriptstyle, about three quarters as wide, between thin spaces
    return rf"${number}{{\scriptstyle\,\pm\,{bound}}}$", len(number) + 0.75 * len(bound) + 2.2
