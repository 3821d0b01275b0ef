"""What published code leaves behind in a folder.

- LANTERN (``entrypoints/generate_images.py``): ``prompt_N.png``, and ``global_statistics_A_B.json`` with the prompt,
  tokens a step ("step_compression") and seconds ("latency") of each.
- SJD (``eval_model.py``): ``N.png``, N the row of PartiPrompts.tsv from 0; neither steps nor seconds.
- ZipAR for LlamaGen (``sample_c2i_ddp_zipar.py``): ``NNNNNN.png`` and ``arr_0`` of a .npz; neither classes nor times.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lanternbench.errors import UserError
from lanternbench.experiment.run_reader import reason
from lanternbench.imported.entries import Entry, images_of
from lanternbench.utils.files import open_file


class _Statistics(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    prompt: str
    step_compression: float = Field(gt=0, le=2**24)
    latency: float = Field(ge=0, le=1e9)


def folder(path: Path) -> list[Entry]:
    """The images of a folder; without statistics each belongs to the prompt of the number that its name ends in.

    Raises UserError for damaged statistics, and for an image without them or a number.
    """
    said = _statistics(path)
    entries = []
    for image in images_of(path):
        if said and image.stem not in said:
            raise UserError(f"{image} is not in the global_statistics of its folder: remove it, or put them back.")
        number = re.search(r"(\d{1,9})$", image.stem)
        if said:
            s = said[image.stem]
            entries.append(Entry(image.name, s.prompt, image=image, seconds=s.latency, per_step=s.step_compression))
        elif number:
            entries.append(Entry(image.name, image=image, number=int(number[1])))
        else:
            raise UserError(f"{image} has no number at the end of its name: number images by their prompts from 0.")
    return sorted(entries, key=lambda entry: (entry.number or 0, entry.where))


def _statistics(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(path.glob("global_statistics_*.json")):
        try:
            with open_file(file) as opened:
                found |= TypeAdapter(dict[str, _Statistics]).validate_python(json.loads(opened.read()))
        except (OSError, ValueError, RecursionError) as error:
            why = reason(error) if isinstance(error, ValidationError) else error
            raise UserError(f"{file} is damaged ({why}): put back what LANTERN wrote.") from None
    return found
