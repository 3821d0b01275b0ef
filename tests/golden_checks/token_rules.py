"""Which ids may follow: Lumina-mGPT's rule by sequence, by window and by position, sizes, top-k,
guidance.
"""

from __future__ import annotations

from pathlib import Path

import torch
from image_ids import (
    TokenRule,
    Vocabulary,
    guided,
    in_image,
    lumina_rule,
    lumina_sizes,
    open_image,
    published,
)
from torch import Tensor

from golden_checks.common import Found, Vectors, close, read, same
from lanternbench.engine.sampling import Warp
from lanternbench.models.chameleon.checkpoint import SIZE_UNIT, size_id
from lanternbench.models.transformer import guide
from lanternbench.settings import Sampling


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "token_rules.safetensors")
    vocab, size = published(), int(vectors.meta["voc_size_used"])
    height, width = (n * SIZE_UNIT for n in vectors.meta["build_config"]["grid"])
    rule = lumina_rule(vocab, width, height)
    prefix, image = vectors["prefix_ids"].tolist(), vectors["image_tokens"].tolist()
    frame = (len(prefix) - 3, [vocab.image_start, size_id(height), size_id(width)])
    units = torch.tensor([1, 16, 24, 32]) * SIZE_UNIT
    codes = rule.codes(vectors["image_tokens"])
    return [
        same(
            "by sequence",
            by_sequence(prefix + image, vocab, size),
            vectors["sequential.rule_per_length"],
        ),
        *by_position(rule, size, vectors, frame[0]),
        same("size ids", [size_id(int(n)) for n in units], vectors["grid_token_offset_check"]),
        same("prompt ends with start and size ids", prefix[frame[0] :], frame[1]),
        same("ids to codebook indices", codes.flatten(), vectors["decode_image.codebook_indices"]),
        same("height and width", codes.shape, vectors["decode_image.hw"]),
        same("codebook indices to ids", rule.lay_out(codes.view(1, -1))[0], image[: rule.length]),
        *(
            same(f"sizes, {n}", lumina_sizes(n), vectors[f"crop_size_list.{n}"])
            for n in vectors.meta["build_config"]["crops"]
        ),
        *scores(vectors, vocab),
    ]


def row(allowed: Tensor, forced: int | None) -> list[int]:
    """How many ids, the smallest, the largest, whether it is forced."""
    ids = torch.where(allowed)[0]
    return [len(ids), int(ids[0]), int(ids[-1]), int(forced is not None)]


def by_sequence(ids: list[int], vocab: Vocabulary, size: int) -> list[list[int]]:
    """The rule for the id after each beginning of ``ids``."""
    free = row(torch.ones(size, dtype=torch.bool), None)
    open_at = [open_image(ids[:n], vocab) for n in range(len(ids))]
    return [
        free if at is None else row(at.rule.allowed(at[1], size), at.rule.forced(at[1]))
        for at in open_at
    ]


def by_position(rule: TokenRule, size: int, vectors: Vectors, start: int) -> list[Found]:
    """Windows and trees: past the image's end the reference goes on with image tokens, in windows
    with row ends among them.
    """

    def at(position: int) -> list[int]:
        over = position >= rule.length
        return row(
            rule.allowed(0 if over else position, size), None if over else rule.forced(position)
        )

    def in_window(position: int) -> list[int]:
        number = position + 1  # counted on past the end
        if number % rule.length == 0:
            return at(rule.length - 1)
        return at(rule.width if number % rule.stride == 0 else 0)

    window = vectors["sjd_window4.rule_per_length"]
    target, drafter = (
        vectors["eagle.position_ids_of_last_token"],
        vectors["eagle_drafter.position_ids_in_image"],
    )
    rows = [[in_window(k + i) for i in range(window.shape[1])] for k in range(len(window))]
    return [
        same("by window", rows, window),
        same(
            "by position",
            [at(n + 1 - start - 3) for n in target.tolist()],
            vectors["eagle.rule_per_position"],
        ),
        same(
            "by position, drafter",
            [at(n - 2) for n in drafter.tolist()],
            vectors["eagle_drafter.rule_per_position"],
        ),
    ]


def scores(vectors: Vectors, vocab: Vocabulary) -> list[Found]:
    build = vectors.meta["build_config"]
    start, end = vocab.image_start, vocab.image_end
    beginnings = {
        "before_start": [0, 5, 6],
        "only_start": [0, 5, start],
        "after_size": [0, 5, start, 8806, 8807],
    }
    found = [
        same(
            "top-k: an image is open",
            [in_image([0, start], vocab), in_image([start, end], vocab)],
            [1, 0],
        )
    ]
    for name, k in (("image", build["topk"]), ("text", build["text_topk"])):
        p = Warp(Sampling(top_k=k))(vectors["topk.scores"])
        found.append(close(f"top-k, {name}", p, vectors[f"topk.{name}.out"].softmax(-1)))
    for name, ids in beginnings.items():
        raw = vectors["cfg.scores"]
        got = guide(raw, build["cfg"]).expand_as(raw) if guided(ids, vocab) else raw
        found.append(close(f"guidance, {name}", got, vectors[f"cfg.{name}.out"]))
    return found
