"""The image grid of the page: prompts × methods, each image with its accepted-length and tree-depth map."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from lanternbench.report.columns import MISSING, metric_column, plain
from lanternbench.report.load import Picked, Row, Run, image_path, number, pick_samples
from lanternbench.report.maps import image_uri, legend, map_uri, token_map

PROMPTS = 16


@dataclass(frozen=True)
class Scale:
    """The colour scale that all maps of a run share, in whole tokens or levels."""

    accept: tuple[int, int]
    depth: tuple[int, int]


def grid_section(run: Run, limit: int = PROMPTS) -> tuple[str, list[str]]:
    """HTML of one run's grid ("" when it has no samples) and notes on what it leaves out."""
    picked = pick_samples(run, limit)
    notes = grid_notes(picked, limit)
    if not picked.prompts:
        return "", ["samples.jsonl holds no samples: the image grid is left out."]
    scale = _scale(picked)
    head = "".join(f'<th scope="col">{escape(plain(label, 48))}</th>' for label in picked.labels)
    body = "".join(_grid_row(run, picked, scale, prompt_id, caption) for prompt_id, caption in picked.prompts)
    table = (
        f'<div class="scroll"><table class="grid"><thead><tr><th scope="col">Prompt</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    return f"<div>{_legends(run, scale)}{table}</div>", notes


def grid_notes(picked: Picked, limit: int) -> list[str]:
    """What the grid does not show."""
    notes = []
    if picked.prompts_total > limit:
        notes.append(f"The image grid shows the first {limit} of {picked.prompts_total} prompts.")
    if picked.more_seeds:
        notes.append("The image grid shows one seed per prompt; the tables use all seeds.")
    if picked.damaged_lines:
        notes.append(f"{picked.damaged_lines} damaged line(s) of samples.jsonl were skipped in the image grid.")
    return notes


def _grid_row(run: Run, picked: Picked, scale: Scale, prompt_id: str, caption: str) -> str:
    cells = [_cell(run, picked.cells.get((prompt_id, label)), scale, caption, label) for label in picked.labels]
    prompt = f'<th scope="row"><span>{escape(plain(caption)) or MISSING}</span></th>'
    return f"<tr>{prompt}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _cell(run: Run, sample: Row | None, scale: Scale, caption: str, label: str) -> str:
    if sample is None:
        return '<div class="missing">not run</div>'
    path = image_path(run, sample)
    uri = image_uri(path) if path else None
    alt = escape(f"{plain(caption)} ({plain(label, 48)})", quote=True)
    if uri:
        picture = f'<img class="image" alt="{alt}" src="{uri}">'
    else:
        picture = '<div class="image missing">image missing</div>'
    facts = "|".join(f"{name}: {value}" for name, value in _facts(sample))
    return (
        f'<button type="button" class="cell" title="details" data-prompt="{escape(plain(caption), quote=True)}" '
        f'data-label="{escape(plain(label, 48), quote=True)}" data-facts="{escape(facts, quote=True)}">'
        f"{picture}{_map(run, sample, scale, 'accept')}{_map(run, sample, scale, 'depth')}</button>"
    )


def _map(run: Run, sample: Row, scale: Scale, kind: str) -> str:
    lengths = _whole(sample.get("accept_lengths"))
    values = lengths if kind == "accept" else _whole(sample.get("tree_depths"))
    if run.grid is None or not lengths or not values:
        return f'<div class="{kind} missing">no map</div>'
    low, high = scale.accept if kind == "accept" else scale.depth
    uri = map_uri(token_map(values, lengths, run.grid), low, high, kind)
    name = "accepted-length map" if kind == "accept" else "tree-depth map"
    return f'<img class="{kind} map" alt="{name}" src="{uri}">'


def _facts(sample: Row) -> list[tuple[str, str]]:
    lengths, depths = _whole(sample.get("accept_lengths")), _whole(sample.get("tree_depths"))
    steps, lengths, depths = len(lengths), lengths[1:], depths[1:]  # the prefill, the first step, drafts nothing
    seconds, loss = number(sample, "decode_s"), number(sample, "fidelity_loss")
    facts = [
        ("τ", f"{sum(lengths) / len(lengths):.2f}" if lengths else MISSING),
        ("steps", str(steps) if steps else MISSING),
        ("mean tree depth", f"{sum(depths) / len(depths):.2f}" if depths else MISSING),
        (
            "decode",
            MISSING if seconds is None else f"{seconds:.3f} s" + ("" if sample.get("timed") else " (not timed)"),
        ),
        ("fidelity loss", MISSING if loss is None else f"{loss:.4f}"),
        ("seed", plain(str(sample.get("seed", MISSING)), 24)),
    ]
    metrics: Any = sample.get("metrics")
    for key in metrics if isinstance(metrics, dict) else {}:
        column = metric_column(str(key))
        facts.append((plain(column.title, 32), column.value(metrics)))
    return [(name.replace("|", " "), value.replace("|", " ")) for name, value in facts]


def _scale(picked: Picked) -> Scale:
    lengths = [n for sample in picked.cells.values() for n in _whole(sample.get("accept_lengths"))]
    depths = [n for sample in picked.cells.values() for n in _whole(sample.get("tree_depths"))]
    return Scale((1, max([2, *lengths])), (min([1, *depths]), max([2, *depths])))


def _legends(run: Run, scale: Scale) -> str:
    def one(kind: str, name: str, bounds: tuple[int, int]) -> str:
        swatches = "".join(f'<span><i style="background:{c}"></i>{v}</span>' for v, c in legend(*bounds, kind))
        return f'<div class="scale for-{kind}"><b>{name}</b>{swatches}</div>'

    if run.grid is None:
        return '<p class="quiet">run.json does not give the token grid, so there are no maps.</p>'
    accept = one("accept", "tokens committed by the step that produced the token", scale.accept)
    return accept + one("depth", "depth of the draft tree of that step", scale.depth)


def _whole(values: Any) -> list[int]:
    """Whole numbers from 0 to 10⁶, nothing when any entry is something else."""
    if not isinstance(values, list):
        return []
    good = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= 1_000_000 for v in values)
    return values if good else []
