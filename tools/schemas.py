"""The JSON Schemas of the files that we write, generated from the pydantic models that read them.

    python -m tools.schemas

writes ``docs/schema/NAME.schema.json``.  A test checks that they are current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from lanternbench.measure.run_record import RunRecord
from lanternbench.measure.samples import Sample
from lanternbench.measure.summary import Summary
from lanternbench.suite.protocol import Submission

FOLDER = Path(__file__).parents[1] / "docs" / "schema"
MODELS: dict[str, type[BaseModel]] = {
    "run": RunRecord,
    "summary": Summary,
    "sample": Sample,
    "submission": Submission,
}


class _Generator(GenerateJsonSchema):
    """Named tuples are objects in what we write."""

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        return self.kw_arguments_schema(
            [{"name": f["name"], "schema": f["schema"]} for f in schema["fields"]], None
        )


def current() -> dict[Path, str]:
    """The schema files as they should be."""
    found = {
        name: kind.model_json_schema(schema_generator=_Generator) for name, kind in MODELS.items()
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {
        FOLDER / f"{n}.schema.json": json.dumps(dialect | schema, indent=1) + "\n"
        for n, schema in found.items()
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path, text in current().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
