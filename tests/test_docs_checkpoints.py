"""docs/checkpoints.md covers every family of the catalogue, and what it calls loud is an error in
the code.
"""

from __future__ import annotations

import pytest
from conftest import ROOT

from lanternbench.registry import components

DOC = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
HEADINGS = {"llamagen": "LlamaGen", "chameleon": "Anole", "janus": "Janus", "emu3": "Emu3"}
HEADINGS |= {"glm-image": "GLM-Image", "transformers": "Any model that transformers runs"}


def test_every_family_has_a_section():
    for name in components("target"):
        if name != "tiny":  # its weights come with the package, and are tested
            assert f"## {HEADINGS[name]}" in DOC


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("loading.py", "has no place"),
        ("loading.py", "it is the checkpoint of another size"),
        ("loading.py", "it was not opened"),
        ("llamagen/checkpoint.py", "it is of another"),
        ("llamagen/checkpoint.py", "it has to be Flan-T5-XL"),
        ("chameleon/checkpoint.py", "use Lumina-mGPT"),
        ("token_decoder.py", "not every one once"),
        ("emu3/checkpoint.py", "name the target that it belongs to"),
        ("token_decoder.py", "name the target it "),
        ("glm_image/checkpoint.py", "cannot be used"),
        ("token_decoder.py", "has no token"),
        ("drafters/eagle.py", "attention heads but the target has"),
    ],
)
def test_what_is_called_loud_is_an_error(file, said):
    text = (ROOT / "lanternbench" / "models" / file).read_text(encoding="utf-8")
    assert said in text
    assert "UserError" in text
