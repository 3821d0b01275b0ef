"""The checks by vector file: each takes the folder and returns what it compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from golden_checks import (
    accept_sampling,
    decode_greedy,
    eagle_llamagen,
    llamagen_c2i,
    llamagen_hf,
    llamagen_t2i,
    sjd,
    tree_dynamic,
    tree_static,
    vq16,
)
from golden_checks.common import Found

CHECKS: dict[str, Callable[[Path], list[Found]]] = {
    "llamagen_t2i": llamagen_t2i.check,
    "llamagen_c2i": llamagen_c2i.check,
    "llamagen_hf": llamagen_hf.check,
    "vq16": vq16.check,
    "vq16_encoder": vq16.check_encoder,
    "eagle_llamagen": eagle_llamagen.check,
    "tree_dynamic": tree_dynamic.check,
    "tree_static": tree_static.check,
    "decode_greedy": decode_greedy.check,
    "accept_sampling": accept_sampling.check,
    "sjd": sjd.check,
}
