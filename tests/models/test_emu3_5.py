"""Emu3.5: the network as transformers' layers of the same form compute it, drawn from by the
published rules.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import slow_but
from fake_cuda_graph import frozen
from families import small_row
from safetensors.torch import save_file
from torch import Tensor

from lanternbench import settings
from lanternbench.engine.decode import generate
from lanternbench.engine.sampling import Warp
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.emu3.checkpoint import IBQ, Emu3Family
from lanternbench.models.entries import entry
from lanternbench.models.packing import packed
from lanternbench.models.target import Target
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.settings import Sampling
from lanternbench.utils.graph_capture import Graphs

CODES, ROWS, COLUMNS, GUIDANCE = 40, 4, 6, 5.0
BOS, EOL, EOI, TURN = "<|extra_203|>", "<|extra_200|>", "<|image end|>", "<|extra_100|>"
BOI, IMG, PAD = "<|image start|>", "<|image token|>", "<|endoftext|>"
SPECIAL = [
    PAD,
    EOL,
    BOS,
    TURN,
    IMG,
    BOI,
    EOI,
    *(f"<|visual token {i:06d}|>" for i in range(CODES)),
]
WORDS = re.findall(
    r"\S+", "you are a helpful assistant for t2i task . user : ring red blue 4 6 * <unk>"
)
VOCAB = {w: i for i, w in enumerate([*WORDS, *SPECIAL])}
FIRST = VOCAB["<|visual token 000000|>"]
VQ = {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1, "z_channels": 16, "embed_dim": 8}
HEADS, KV_HEADS, HEAD_WIDTH, DIM = 4, 2, 8, 24  # the heads together are wider than the stack


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A decoder of Emu3.5's form in transformers: RMSNorm on every head's q and k, heads of a
    width of their own.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=DIM, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HEAD_WIDTH, intermediate_size=48, vocab_size=len(VOCAB), rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=False,
    )  # fmt: skip
    net = (
        Qwen3ForCausalLM._from_config(config, attn_implementation="eager")
        .eval()
        .requires_grad_(False)
    )
    for name, p in net.named_parameters():
        p.copy_(torch.randn_like(p) * 0.4 + ("norm" in name))
    return net


@pytest.fixture(scope="module")
def loaded(theirs, tmp_path_factory) -> Target:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    folder: Path = tmp_path_factory.mktemp("emu3.5")
    here = folder / "model"
    here.mkdir()
    tokenizer = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    split = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.WhitespaceSplit()])
    tokenizer.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in SPECIAL])
    tokenizer.save(str(here / "tokenizer.json"))
    save_file({k: v.clone() for k, v in theirs.state_dict().items()}, here / "model.safetensors")
    config = theirs.config.to_dict() | {"model_type": "Emu3", "image_area": 720 * 720}
    (here / "config.json").write_text(json.dumps(config))
    vq = VQModel(VQConfig.described(VQ | {"n_embed": CODES}, IBQ), "product")
    (folder / "vq").mkdir()
    save_file(vq.state_dict(), folder / "vq" / "model.safetensors")
    described = VQ | {"model_type": "Emu3p5VisionVQ", "codebook_size": CODES}
    (folder / "vq" / "config.json").write_text(json.dumps(described))
    shape = {"dialect": "emu3.5", "grid": [ROWS, COLUMNS], "qk_norm": "rms"}
    return Emu3Family().load(small_row(shape, GUIDANCE), folder, "cpu")


def prompt(target: Target, text: str) -> list[int]:
    frame = f"{BOI}{ROWS}*{COLUMNS}{IMG}"
    return target.text.tokenizer.encode(f"{BOS}{text}{TURN}{frame}").ids


def published_step(net: Any, cond: list[int], uncond: list[int], drawn: list[int]) -> Tensor:
    """The logits [ids] that the published processors leave after ``drawn`` ids of an image, EOL
    included.
    """
    position = len(drawn) + 1
    allowed = torch.full((len(VOCAB),), -math.inf)
    if position == ROWS * (COLUMNS + 1):
        allowed[VOCAB[EOI]] = 0
        return allowed
    if position % (COLUMNS + 1) == 0:
        allowed[VOCAB[EOL]] = 0
        return allowed
    c, u = (
        net(torch.tensor([ids + drawn])).logits[0, -1].log_softmax(-1) for ids in (cond, uncond)
    )
    allowed[FIRST : FIRST + CODES] = 0
    return GUIDANCE * (c - u) + u + allowed


def test_prompts_are_the_published_ones(loaded):
    prefix = loaded.prefix(["a red ring"], GUIDANCE)
    rows = [ids[seen].tolist() for ids, seen in zip(prefix.features, prefix.valid, strict=True)]
    assert rows == [
        prompt(loaded, "You are a helpful assistant for t2i task. USER: a red ring ASSISTANT: "),
        prompt(loaded, "You are a helpful assistant. USER:  ASSISTANT: "),
    ]
    assert loaded.row_end == VOCAB[EOL]


@pytest.fixture(scope="module")
def target(loaded) -> Target:
    """The same, packed, with an EAGLE drafter."""
    torch.manual_seed(1)
    return packed(
        replace(loaded, drafters={"eagle": new_eagle(loaded.model).eval().requires_grad_(False)})
    )


GREEDY = [
    *((name, {}) for name in ("ar", "scd", "eagle-1", "cool-sd")),
    ("zipar", {"window": 99}),
    ("pjd", {"c": 99}),
]
METHODS = [
    ("scd", {}),
    ("eagle-1", {}),
    ("cool-sd", {}),
    ("zipar", {"window": 2}),
    ("pjd", {"c": 2, "window": 3}),
]


@pytest.mark.parametrize(("name", "options"), GREEDY)
def test_greedy_tokens_are_those_that_the_published_rules_draw(
    loaded, target, theirs, name, options
):
    cond, uncond = (
        prompt(loaded, text)
        for text in (
            "You are a helpful assistant for t2i task. USER: a blue ring ASSISTANT: ",
            "You are a helpful assistant. USER:  ASSISTANT: ",
        )
    )
    drawn: list[int] = []
    while not drawn or drawn[-1] != VOCAB[EOI]:
        drawn.append(int(published_step(theirs, cond, uncond, drawn).argmax()))
    assert drawn.count(VOCAB[EOL]) == ROWS - 1
    want = [i - FIRST for i in drawn if i not in (VOCAB[EOL], VOCAB[EOI])]
    found = generate(build(target, method(name, **options), settings.GREEDY), ["a blue ring"])[
        0
    ].tokens.tolist()
    assert found == want
    assert len(set(want)) > 4


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_batch_draws_what_single_prompts_draw(target, name, options):
    captions = ["a red ring", "you are a helpful assistant for t2i task"]
    decoder = build(target, method(name, **options))
    together = generate(decoder, captions, trace=True)
    for made, caption in zip(together, captions, strict=True):
        (alone,) = generate(decoder, [caption], trace=True)
        assert torch.equal(made.tokens, alone.tokens)
        assert made.accept_lengths == alone.accept_lengths
    assert not torch.equal(*(made.tokens for made in together))


@pytest.mark.parametrize(("name", "options"), slow_but([METHODS[0]], METHODS))
def test_recorded_steps_draw_the_same(target, name, options):
    want, made = (
        generate(build(t, method(name, **options)), ["a red ring"])[0].tokens
        for t in (target, replace(target, graphs=Graphs(frozen)))
    )
    assert torch.equal(made, want)


def test_zipar_draws_rows_with_their_ends_in_the_forwards_of_its_schedule(target):
    (made,) = generate(build(target, method("zipar", window=2)), ["a red ring"])
    assert 1 + made.steps == 2 * COLUMNS + (ROWS - 2) * 2


def test_the_distribution_is_that_of_the_published_rules(loaded, theirs):
    """Guidance of log-probabilities, then the mask of image tokens, then top-k: normalisers do not
    count.
    """
    cond, uncond = prompt(loaded, "a red ring"), prompt(loaded, "")
    logits = published_step(theirs, cond, uncond, [])
    kept = logits.topk(7)
    want = torch.zeros(len(VOCAB)).scatter(0, kept.indices, kept.values.softmax(-1))[
        FIRST : FIRST + CODES
    ]
    both = torch.stack(
        [
            theirs(torch.tensor([ids])).logits[0, -1, FIRST : FIRST + CODES]
            for ids in (cond, uncond)
        ]
    )
    found = Warp(Sampling(temperature=1.0, top_k=7, top_p=1.0))(
        both[1] + GUIDANCE * (both[0] - both[1])
    )
    assert (found - want).abs().max() < 1e-6


def test_its_tokens_become_rectangular_images_in_the_published_pixels(loaded):
    tokens = torch.arange(ROWS * COLUMNS)[None]
    decoded = loaded.vq.decode(tokens.view(1, ROWS, COLUMNS))
    wanted = ((decoded[0] + 1) * 127.5).clamp(0, 255).byte().permute(1, 2, 0)
    (image,) = loaded.images(tokens)
    assert image.size == (2 * COLUMNS, 2 * ROWS)
    assert torch.equal(torch.from_numpy(np.array(image)), wanted)


def test_files_without_its_image_tokeniser_name_the_repository_that_has_it(loaded, tmp_path):
    row = entry("emu3.5-image")
    save_file({"lm_head.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(
        UserError, match=r"no image decoder: put .* of BAAI/Emu3\.5-VisionTokenizer into"
    ):
        Emu3Family().at(row, tmp_path, "cpu").vq()
    (tmp_path / "vq").mkdir()
    (tmp_path / "vq" / "config.json").write_text('{"resolution": "big", "attn_resolutions": [16]}')
    with pytest.raises(UserError, match="is no configuration of an image tokeniser"):
        Emu3Family().at(row, tmp_path, "cpu").new_vq()


def test_the_catalogue_has_the_published_sizes_and_defaults():
    row = entry("emu3.5-image")
    assert (row.guidance, row.top_k, row.shape["grid"]) == (5.0, 5120, 64)
    for grid in row.grids:  # about 1024 × 1024 pixels, a token being 16 × 16
        rows, columns = map(int, grid.split("x"))
        assert 0.9 < rows * columns / 64**2 < 1.1
        assert catalogue.resized(row, f"grid={grid}", random_weights=False).shape["grid"] == (
            rows,
            columns,
        )
    config = Emu3Family().at(row, None, "cpu").config
    weights = config.n_layer * (
        config.dim * config.head_width * (2 * config.n_head + 2 * config.n_kv_head)
        + 3 * config.dim * config.hidden
    )
    assert weights / 1e9 == pytest.approx(31.2, abs=0.05)  # as the paper counts the transformer
    with torch.device("meta"):
        ibq = VQModel(IBQ)
    assert sum(weight.numel() for weight in ibq.parameters()) / 1e6 == pytest.approx(
        455.3, abs=0.1
    )
