"""How a run was made: what must stand beside every table of its figures."""

from __future__ import annotations

import json
from typing import Any

from lanternbench.report.load import Contents, Run


def recipe(run: Run, contents: Contents | None = None) -> dict[str, str]:
    """Name -> value, as far as run.json says; the defaults of a target are named as such."""
    config, environment, prompts, target = (run.part(n) for n in ("config", "environment", "prompts", "target"))

    def said(name: str, silent: str = "not recorded") -> str:
        found = config.get(name, environment.get(name))
        return silent if found is None else str(found)

    images = len(contents.figures) if contents else sum(row.n for row in run.rows)
    dtype, compiled = environment.get("dtype"), environment.get("compile")
    found = {
        "target": run.target,
        "guidance": said("guidance", "target's default"),
        "temperature": said("temperature"),
        "top-k": said("top_k", "target's default"),
        "top-p": said("top_p"),
        "prompts": f"{run.dataset}, {prompts['count']} prompts" if prompts.get("count") else run.dataset,
        "prompt template": _template(target.get("prompt_template")),
        "resize": "none; each metric scales the decoded images for its network",
        "images": f"{images} ({len(run.rows)} methods)",
        "seed": said("seed"),
        "batch": said("batch", "1"),
        "device": f"{said('device')} ({run.hardware})",
        "threads": said("threads"),
    }
    if suite := config.get("suite"):
        found["suite"] = str(suite)
    if dtype:
        found["dtype"] = f"{dtype}, {compiled}" if compiled else str(dtype)
    return found


def _template(said: Any) -> str:
    if not isinstance(said, str):
        return "not recorded"
    return "the caption alone" if said == "{caption}" else json.dumps(said)


def recipe_text(run: Run, contents: Contents | None = None) -> str:
    """The recipe in one line."""
    return "; ".join(f"{name} {value}" for name, value in recipe(run, contents).items())
