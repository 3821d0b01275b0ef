"""The JSON Schemas of the files that we write, generated from the pydantic models that read them.

    python -m tools.schemas

writes ``docs/schema/NAME.schema.json``.  A test checks that they are current.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from lanternbench.analysis.samples import Sample
from lanternbench.experiment.schema import RunFile, summary_file

FOLDER = Path(__file__).parents[1] / "docs" / "schema"


def models() -> dict[str, type[BaseModel]]:
    return {"run": RunFile, "summary": summary_file(), "sample": Sample}


def current() -> dict[Path, str]:
    """The schema files as they should be."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        FOLDER / f"{name}.schema.json": json.dumps(dialect | model.model_json_schema(), indent=1) + "\n"
        for name, model in models().items()
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path, text in current().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
