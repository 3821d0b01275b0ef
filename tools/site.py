"""Hooks of the documentation site (``make docs``): README is its home, measurements are pages, the
page of commands is generated, other paths are text.

The Markdown stays readable in a checkout, where links lead to files outside ``docs``.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.docs_tables import commands, listed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = sorted((ROOT / "benchmarks/results").glob("*.md"))
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """A page for every file of measurements."""
    measured = next(entry for entry in config.nav if "Measurements" in entry)
    measured["Measurements"] = [f"benchmarks/results/{path.name}" for path in RESULTS]
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, source in [("index.md", ROOT / "README.md")] + [
        (f"benchmarks/results/{p.name}", p) for p in RESULTS
    ]:
        text = source.read_text(encoding="utf-8")
        files.append(
            File.generated(
                config,
                path,
                content=relinked(text, posixpath.dirname(source.relative_to(ROOT)), path),
            )
        )
    files.append(File.generated(config, "commands.md", content=commands_page()))
    return files


def commands_page() -> str:
    answer = (
        "An example of every command, and what it does; `lanternbench COMMAND --help` has more."
    )
    return f"# Commands\n\n{answer}\n{listed(commands())}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return markdown if page.file.generated_by else relinked(markdown, "docs", page.file.src_uri)


def relinked(text: str, folder: str, page: str) -> str:
    """Links of a file in ``folder`` of the checkout as those of ``page`` on the site; other files
    become plain text.
    """

    def link(found: re.Match[str]) -> str:
        label, (target, _, anchor) = found[1], found[2].partition("#")
        if not target or "://" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = (
            path.removeprefix("docs/")
            if path.startswith("docs/")
            else "index.md"
            if path == "README.md"
            else path
        )
        if not (inside != path or path in {f"benchmarks/results/{p.name}" for p in RESULTS}):
            return f"{label} (`{path}`)" if path.rpartition("/")[2] not in label else label
        return f"[{label}]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{'#' + anchor if anchor else ''})"

    text = re.sub(r"!\[([^\]]*)\]\(docs/", r"![\1](", text) if page == "index.md" else text
    return LINK.sub(link, text)
