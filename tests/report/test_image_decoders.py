"""Tables show decoding and image decoder apart and together if the image decoder takes a large part of
the time, as a diffusion model does.
"""

from __future__ import annotations

import pytest

from lanternbench.measure.statistics import Estimate
from lanternbench.measure.summary import Row
from lanternbench.report.columns import columns

KEYS = ["token_ms", "render_s", "end_to_end_s", "decode_share"]


def row(render_s: float) -> Row:
    whole = 30.0 + render_s
    values = dict(zip(KEYS, (23.0, render_s, whole, 30.0 / whole), strict=True))
    figures = {name: Estimate(value) for name, value in values.items()}
    return Row(label="ar", method="ar", n=1, figures=figures)


@pytest.mark.parametrize("view", ["md", "terminal", "tex"])
def test_a_diffusion_model_s_seconds_and_share_are_shown_and_a_tokeniser_s_are_not(view):
    for render_s, wanted in ((14.0, KEYS), (0.3, [])):
        shown = [column.key for column in columns([row(render_s)], view) if column.key in KEYS]
        assert shown == wanted
    assert columns([row(14.0)], "md")[-1].value(row(14.0)) == "68.2%"
