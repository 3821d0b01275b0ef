"""Links of the documentation lead somewhere on its site too: ``tools/site.py``."""

from __future__ import annotations

import pytest

from tools.site import relinked


@pytest.mark.parametrize(
    ("folder", "page", "link", "wanted"),
    [
        ("", "index.md", "[runs](docs/runs.md#options)", "[runs](runs.md#options)"),
        (
            "docs",
            "runs.md",
            "[all](../benchmarks/results/methods.md)",
            "[all](benchmarks/results/methods.md)",
        ),
        (
            "benchmarks/results",
            "benchmarks/results/gpu.md",
            "[how](../../docs/gpu.md)",
            "[how](../../gpu.md)",
        ),
        ("docs", "runs.md", "[code](../lanternbench/api.py)", "code (`lanternbench/api.py`)"),
        (
            "docs",
            "runs.md",
            "[paper](https://arxiv.org/abs/1)",
            "[paper](https://arxiv.org/abs/1)",
        ),
    ],
)
def test_a_link_of_the_checkout_becomes_one_of_the_site_or_plain_text(folder, page, link, wanted):
    assert relinked(link, folder, page) == wanted
