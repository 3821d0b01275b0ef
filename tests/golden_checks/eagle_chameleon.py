"""The EAGLE drafter for Anole: padded guided rows, its cache, tree steps, EAGLE-2 trees and a
static tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from golden_checks import tree_dynamic, tree_static
from golden_checks.chameleon_lm import halves
from golden_checks.common import (
    Found,
    Vectors,
    cached,
    close,
    close_for_size,
    loaded,
    read,
    same,
    worst,
)
from lanternbench.engine.cache import Address, DecoderCache, additive, raster
from lanternbench.engine.sampling import Warp
from lanternbench.engine.tree import from_paths
from lanternbench.methods.trees.dynamic import Bounds, grow_by_confidence
from lanternbench.methods.trees.static import FixedTree
from lanternbench.models.chameleon.checkpoint import ChameleonConfig
from lanternbench.models.decoder import prefix_mask
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.key_names import from_published, rotary_pairs
from lanternbench.models.transformer import guide, rope_1d
from lanternbench.settings import GREEDY, Sampling

FIRST_IMAGE = 4  # image ids are 4 … n_img + 3

KEYS = "full.cache_key_layer"  # and the layer, of those that the file holds


def check(folder: Path) -> list[Found]:
    vectors = read(folder / "eagle_chameleon.safetensors")
    return [*features(vectors), *dynamic(vectors), *static(vectors)]


class Anole:
    """The drafter as a decode drives it: committed positions, then drafted nodes.  Row 0 is
    conditional, 1 is not.
    """

    def __init__(self, vectors: Vectors):
        b = vectors.meta["build_config"]
        cfg = ChameleonConfig(
            b["hidden"], b["layers"], b["heads"], b["inter"], b["vocab"], b["kv"]
        ).decoder
        state = from_published(rotary_pairs(vectors.under("sd."), cfg))
        self.net = loaded(Eagle(cfg, b["bias"], cfg.norm_eps, b["layers"], b["vocab"]), state)
        self.embed = self.net.tok_embeddings
        self.head, self.scale = vectors["head.weight"], b["cfg"]
        self.banned = torch.ones(b["vocab"], dtype=torch.bool)
        self.banned[FIRST_IMAGE : FIRST_IMAGE + b["n_img"]] = False
        valid, hidden = vectors["attention_mask"].bool(), vectors["hidden_states"]
        self.valid, self.hidden, self.ids = valid, hidden, vectors["shifted_input_ids"]
        # the unconditional row's positions start later
        self.shift = torch.tensor([0, b["prompt"] - 2])
        # nodes that are expanded
        tree = len(vectors.meta["static_tree_choices"]) + b["top_k"] * (b["depth"] + 2)
        slots = hidden.shape[1] + tree
        layout, rope = raster(slots, 0, 0, 0, slots, hidden.device), rope_1d(slots, cfg.head_dim)
        self.cache = DecoderCache(self.net, self.net.config, layout, 2, rope, hidden)
        self.length = self.drafted = 0

    def run(self, x: Tensor, at: Tensor, visible: Tensor) -> Tensor:
        """x [2, n, dim] at distance ``at`` [n] from the first slot; visible bool [b, n, drafted +
        n].
        """
        position = (at - self.shift[:, None]).clamp(min=0)
        slots = slice(self.length + self.drafted, self.length + self.drafted + x.shape[1])
        mask = F.pad(additive(visible)[:, None], (self.length, 0))
        return self.cache.forward(x, Address(slots, position, mask, slots.stop))

    def commit(self, n: int) -> Tensor:
        """The next n recorded positions -> hidden [2, n, dim]."""
        start, stop = self.length, self.length + n
        x = self.net.fuse(self.embed(self.ids[:, start:stop]), self.hidden[:, start:stop])
        self.drafted = 0
        hidden = self.run(
            x, torch.arange(start, stop), prefix_mask(self.valid[:, start:stop], n)[:, 0]
        )
        if start == 0:  # a prefix brings its own mask
            self.cache.hide_pads(self.valid)
        self.length = stop
        self.features = hidden[:, -1:]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return guide(hidden @ self.head.T, self.scale).masked_fill(self.banned, torch.finfo().min)

    def root(self) -> Tensor:
        """[1, V] after the last committed token."""
        return self.logits(self.features[:, -1])

    def expand(
        self, tokens: Tensor, parent: Tensor | None, visible: Tensor | None, depth: int
    ) -> Tensor:
        if depth == 0:
            return self.root()[:, None]
        m = tokens.shape[1]
        if depth == 1 or parent is None:
            above = self.features[:, :1].expand(-1, m, -1)
        else:
            above = self.features[:, parent.flatten()]
        seen = (
            torch.ones(1, m, self.drafted + m, dtype=torch.bool)
            if visible is None
            else visible.isfinite()
        )
        x = self.net.fuse(self.embed(tokens).expand(2, -1, -1), above)
        self.features = self.run(x, torch.full((m,), self.length + depth - 1), seen)
        self.drafted += m
        return self.logits(self.features)


def features(vectors: Vectors) -> list[Found]:
    at, length = Anole(vectors), vectors["hidden_states"].shape[1]
    valid = vectors["attention_mask"][..., None]
    full = at.commit(length)
    keys = valid[:, None].bool()  # a pad's keys and values are never read
    found = [
        close("hidden", full * valid, vectors["full.out_hidden"]),
        close("hidden, conditional row alone", full[:1], vectors["plain.out_hidden"]),
    ]
    for layer in (int(name[len(KEYS) :]) for name in vectors.tensors if name.startswith(KEYS)):
        key, value = cached(at.cache, layer)[..., :length, :]
        found += [
            close("cached keys", halves(key) * keys, vectors[f"{KEYS}{layer}"] * keys),
            close("cached values", value * keys, vectors[f"full.cache_value_layer{layer}"] * keys),
        ]
    at = Anole(vectors)
    pieces = torch.cat([at.commit(length - 3), at.commit(3)], 1) * valid
    step = vectors.under("tree_step.")
    x = at.net.fuse(at.embed(step["input_ids"]), step["hidden_states"])
    seen = (
        step["tree_mask"][0].bool()
        & torch.ones_like(step["tree_mask"][0], dtype=torch.bool).tril()
    )
    tree = at.run(x, step["position_ids"][0], seen)
    return [
        *found,
        close("hidden, in two steps", pieces, vectors["incremental.out_hidden"]),
        same(
            "tree step: positions",
            step["position_ids"][0] - at.shift[:, None],
            step["position_ids"],
        ),
        close("tree step: hidden", tree, step["out_hidden"]),
    ]


def dynamic(vectors: Vectors) -> list[Found]:
    """Trees after the prompt, after more committed positions, and after the prompt with a
    processor.
    """
    build, ids = vectors.meta["build_config"], vectors["gen.input_ids"][0]
    bounds = Bounds(
        build["depth"] + 1, build["top_k"], build["total"]
    )  # the reference's depth counts levels after the first
    at, found = Anole(vectors), []
    fresh = Anole(vectors)
    for name, drafter, n, warp in (
        ("dynamic1", at, build["prompt"], Warp(GREEDY)),
        ("dynamic2", at, build["new"], Warp(GREEDY)),
        ("dynamic_proc", fresh, build["prompt"], Warp(Sampling(temperature=0.7, top_k=8))),
    ):
        drafter.commit(n)
        state = tree_static.at_root(ids[drafter.length, None], warp)
        draft = grow_by_confidence(state, drafter.expand, bounds)
        compared = tree_dynamic.compare(draft, vectors.under(f"{name}."))
        found += [f._replace(group=f"{name}: {f.group}") for f in compared]
    return [
        *found,
        same("dynamic2: committed positions", at.length, vectors["dynamic2.stable_kv_len"]),
    ]


def static(vectors: Vectors) -> list[Found]:
    """A static tree: what each expanded node proposes, in the order of expansion."""
    build, ids = vectors.meta["build_config"], vectors["gen.input_ids"][0]
    shape = from_paths(tuple(tuple(p) for p in vectors.meta["static_tree_choices"]))
    at = Anole(vectors)
    at.commit(build["prompt"])
    asked: list[Tensor] = []

    def noting(*of: Any) -> Tensor:
        asked.append(at.expand(*of))
        return asked[-1]

    builder = FixedTree.of(shape, True, torch.device("cpu"))
    state = tree_static.at_root(ids[at.length, None], Warp(GREEDY))
    builder.grow(state, builder.begin(state), noting, torch.zeros(1, 0))
    candidates = vectors["static.tokens"].shape[-1]  # of every node
    best = torch.cat(asked, 1)[0].topk(candidates)
    want = {f"drafter.{k}": v for k, v in vectors.under("static.buffer.").items()}
    levels = tree_static.growth(shape, want, candidates)
    return [
        same("static tree: candidates of every node", best.indices, vectors["static.tokens"]),
        close_for_size("static tree: their guided logits", best.values, vectors["static.logits"]),
        worst("static tree: drafter levels", levels),
    ]
