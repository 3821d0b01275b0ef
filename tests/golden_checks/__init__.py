"""The checks by vector file: each takes the folder and returns what it compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from golden_checks import (
    accept_sampling,
    chameleon_lm,
    chameleon_vqgan,
    decode_greedy,
    eagle_chameleon,
    eagle_llamagen,
    emu35,
    flashar,
    gsd,
    hpsv2_preprocess,
    ibq,
    image_reward,
    llamagen_c2i,
    llamagen_hf,
    llamagen_t2i,
    lumina2_lm,
    movqgan,
    scd,
    sjd,
    sjd_pac,
    token_rules,
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
    "scd": scd.check,
    "sjd_pac": sjd_pac.check,
    "gsd": gsd.check,
    "chameleon_lm": chameleon_lm.check,
    "chameleon_lm_mp": chameleon_lm.check_shards,
    "chameleon_vqgan": chameleon_vqgan.check,
    "token_rules": token_rules.check,
    "eagle_chameleon": eagle_chameleon.check,
    "emu35_lm": emu35.check,
    "emu35_rules": emu35.check_rules,
    "ibq_decode": ibq.check,
    "flashar": flashar.check,
    "image_reward": image_reward.check,
    "hpsv2_preprocess": hpsv2_preprocess.check,
    "lumina2_lm": lumina2_lm.check,
    "movqgan_decode": movqgan.check,
}
