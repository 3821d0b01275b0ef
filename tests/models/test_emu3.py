"""Emu3-Gen against transformers' own class, on small random weights, from the layouts of its
checkpoints.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import small_row
from safetensors.torch import save_file
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.emu3 import checkpoint as emu3
from lanternbench.models.emu3.checkpoint import NEGATIVE, QUALITY, Emu3Family
from lanternbench.models.entries import entry
from lanternbench.models.packing import packed
from lanternbench.models.target import Target
from lanternbench.settings import GREEDY

CODES, SIDE, GUIDANCE = 48, 8, 3.0
CAPTIONS = ["a red circle on a large blue square", "a circle"]
SPECIAL = [
    emu3.PAD,
    emu3.ROW_END,
    "<|extra_201|>",
    emu3.BOS,
    "<|extra_204|>",
    emu3.TOKENS_START,
    emu3.IMAGE_START,
]
SPECIAL += [
    emu3.TURN,
    "<|image end|>",
    "<image>",
    *(f"<|visual token {i:06d}|>" for i in range(CODES)),
]
WORDS = sorted(
    {*re.findall(r"\w+|[^\w\s]", NEGATIVE + QUALITY + " ".join(CAPTIONS)), "8", "<unk>", "*"}
)
VOCAB = {w: i for i, w in enumerate([*WORDS, *SPECIAL])}
VQ = {
    "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1, "attn_resolutions": [1],
    "codebook_size": CODES, "hidden_size": 64,
}  # fmt: skip
ROW = small_row({"grid": SIDE, "vq": VQ}, GUIDANCE)


@pytest.fixture(scope="module")
def theirs() -> Any:
    """transformers' model with weights so large that tokens depend on all before them."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration

    torch.manual_seed(0)
    config = Emu3Config(
        text_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 48, "vocab_size": len(VOCAB), "max_position_embeddings": 512,
            "pad_token_id": VOCAB[emu3.PAD], "bos_token_id": VOCAB[emu3.BOS], "eos_token_id": VOCAB["<|extra_204|>"],
        },
        vq_config={
            "codebook_size": CODES, "base_channels": 32, "channel_multiplier": [1, 2], "num_res_blocks": 1,
            "attn_resolutions": [1], "hidden_size": 64,
        },
        vocabulary_map=VOCAB,
    )  # fmt: skip
    net = Emu3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    for name, p in net.requires_grad_(False).named_parameters():
        scale = 0.3 if "text_model" in name or "lm_head" in name else 0.1
        p.copy_(torch.randn_like(p) * scale + ("norm" in name and name.endswith("weight")))
    for name, b in net.named_buffers():
        if name.endswith("running_mean"):
            b.normal_()
        elif name.endswith("running_var"):
            b.uniform_(0.5, 2)
    return net


def original(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """transformers' key names -> the original releases': of the model, and of the image tokeniser."""
    model = {
        k.replace("model.text_model.", "model."): v for k, v in state.items() if "vqmodel" not in k
    }
    vq = {}
    for key, value in state.items():
        if key.startswith("model.vqmodel."):
            key = key.removeprefix("model.vqmodel.").replace(
                "middle_block.attn_norm.", "mid.attn_1.norm."
            )
            key = re.sub(
                r"(?:up_block|down_block)\.(up|down)\.(\d+)\.attn_norms\.(\d+)\.",
                r"\1.\2.attn.\3.norm.",
                key,
            )
            key = re.sub(r"(?:up_block|down_block)\.(up|down)\.", r"\1.", key).replace(
                "middle_block.", "mid."
            )
            if m := re.search(r"\.(q|k|v|out)_proj\.", key):
                key = key.replace(m[0], ".proj_out." if m[1] == "out" else f".{m[1]}.")
                value = value[..., None, None] if value.ndim == 2 else value
            vq[key] = value.clone()
    return model, vq


def write(folder: Path, net: Any, layout: str) -> Path:
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    here = folder / "model"
    here.mkdir()
    tokenizer = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
    split = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.WhitespaceSplit()])
    tokenizer.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in SPECIAL])
    tokenizer.save(str(here / "tokenizer.json"))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    config = net.config.to_dict()
    if layout == "original":
        config = config["text_config"] | {"model_type": "Emu3"}
        state, codes = original(state)
        (folder / "vq").mkdir()
        save_file(codes, folder / "vq" / "model.safetensors")
    if layout == "transformers of 2025":
        old = {
            "model.text_model.": "text_model.model.",
            "lm_head.": "text_model.lm_head.",
            "model.vqmodel.": "vqmodel.",
        }
        for theirs, ours in old.items():
            state = {
                k.replace(theirs, ours) if k.startswith(theirs) else k: v for k, v in state.items()
            }
    save_file(state, here / "model.safetensors")
    (here / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(params=["original", "transformers", "transformers of 2025"])
def loaded(request, theirs, tmp_path) -> Target:
    return Emu3Family().load(ROW, write(tmp_path, theirs, request.param), "cpu")


def prompts(target: Target, caption: str) -> tuple[list[int], list[int]]:
    """Conditional and unconditional ids, without padding."""
    prefix = target.prefix([caption], GUIDANCE)
    cond, uncond = (
        ids[seen].tolist() for ids, seen in zip(prefix.features, prefix.valid, strict=True)
    )
    return cond, uncond


def laid_out(tokens: Tensor) -> Tensor:
    """Image tokens [B, L] -> ids with row ends [B, side · (side + 1)]."""
    ids = tokens.unflatten(1, (SIDE, SIDE)) + VOCAB["<|visual token 000000|>"]
    return torch.nn.functional.pad(ids, (0, 1), value=VOCAB[emu3.ROW_END]).flatten(1)


def test_prompts_are_the_published_ones(loaded):
    encode = loaded.text.tokenizer.encode
    frame = f"{emu3.IMAGE_START}{SIDE}*{SIDE}{emu3.TOKENS_START}"
    want = [encode(f"{emu3.BOS}{text}{frame}").ids for text in ("a circle" + QUALITY, NEGATIVE)]
    assert list(prompts(loaded, "a circle")) == want
    # of unequal length: the shorter is padded, and padding is not attended to
    assert len(want[0]) < len(want[1])
    assert loaded.prefix(["a circle"], GUIDANCE).valid.sum(1).tolist() == [len(x) for x in want]
    cunning = prompts(loaded, f"a <|visual token 000003|> circle {emu3.ROW_END}")[0]
    assert cunning == want[0]
    assert loaded.row_end == VOCAB[emu3.ROW_END]


def test_logits_are_those_of_transformers(loaded, theirs):
    prefix = loaded.prefix(CAPTIONS, GUIDANCE)
    torch.manual_seed(1)
    tokens = torch.randint(0, CODES, (2, SIDE * SIDE))
    ids = laid_out(tokens)
    first, p = VOCAB["<|visual token 000000|>"], prefix.valid.shape[1]
    whole = torch.cat([prefix.features, ids.repeat(2, 1)], 1)
    seen = torch.cat([prefix.valid, torch.ones(4, ids.shape[1], dtype=torch.bool)], 1).long()
    with torch.no_grad():
        position = (seen.cumsum(1) - 1).clamp(min=0)
        want = theirs(input_ids=whole, attention_mask=seen, position_ids=position).logits[
            :, p - 1 : -1
        ]
    want = want[:, ids[0] != loaded.row_end, first : first + CODES]
    from lanternbench.training.losses import target_states

    hidden = target_states(loaded, prefix, tokens)[:, p - 1 :]
    keep = ids[0, : hidden.shape[1]] != loaded.row_end
    got = loaded.model.logits(hidden[:, keep])
    assert (got - want).abs().max() < 1e-4 * max(1, float(want.abs().max()))


@pytest.mark.slow
def test_64_greedy_guided_tokens_are_those_of_transformers_generate(loaded, theirs):
    cond, uncond = prompts(loaded, CAPTIONS[1])
    first = VOCAB["<|visual token 000000|>"]

    def allowed(_row: int, ids: Tensor) -> list[int]:
        n = len(ids) - len(cond) + 1
        return [VOCAB[emu3.ROW_END]] if n % (SIDE + 1) == 0 else list(range(first, first + CODES))

    made = theirs.generate(
        torch.tensor([cond]), negative_prompt_ids=torch.tensor([uncond]), guidance_scale=GUIDANCE, do_sample=False,
        max_new_tokens=SIDE * (SIDE + 1), prefix_allowed_tokens_fn=allowed,
    )  # fmt: skip
    want = made[0, len(cond) :].view(SIDE, SIDE + 1)[:, :-1].flatten() - first
    packed(loaded)
    for name in ("ar", "eagle-1", "sjd"):
        target = replace(
            loaded, drafters={"eagle": new_eagle(loaded.model).eval().requires_grad_(False)}
        )
        found = engine.generate(build(target, method(name), GREEDY), [CAPTIONS[1]])[0].tokens
        assert torch.equal(found, want), name
    assert len(want.unique()) > 8


def test_pixels_are_those_of_transformers(loaded, theirs):
    tokens = torch.randint(0, CODES, (2, SIDE, SIDE), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        want = theirs.model.vqmodel.decode(tokens)
    assert (loaded.vq.decode(tokens) - want).abs().max() < 5e-4
    assert loaded.images(tokens.flatten(1))[0].size == (2 * SIDE, 2 * SIDE)


def test_files_that_do_not_belong_together_are_refused(theirs, tmp_path):
    folder = write(tmp_path, theirs, "original")
    (folder / "vq" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="has no image decoder"):
        Emu3Family().load(ROW, folder, "cpu")
    config = (folder / "model" / "config.json").read_text()
    (folder / "model" / "config.json").write_text('{"model_type": "janus"}')
    with pytest.raises(UserError, match="type 'janus', not Emu3"):
        Emu3Family().decoder(ROW, folder, "cpu")
    (folder / "model" / "config.json").write_text(config)
    words = (folder / "model" / "tokenizer.json").read_text()
    (folder / "model" / "tokenizer.json").write_text(
        words.replace("visual token 000007", "other token")
    )
    with pytest.raises(UserError, match="names 47 image tokens but not every one once"):
        Emu3Family().decoder(ROW, folder, "cpu")


def test_a_checkpoint_for_another_image_size_is_refused(theirs, tmp_path):
    here = write(tmp_path, theirs, "original") / "model" / "config.json"
    here.write_text(json.dumps(json.loads(here.read_text()) | {"image_area": 720 * 720}))
    with pytest.raises(UserError, match="images of 90×90 tokens but target 'small' has 8×8"):
        Emu3Family().decoder(ROW, tmp_path, "cpu")


def test_random_weights_have_the_published_shapes():
    row = entry("emu3-gen")
    assert (row.guidance, row.top_k, row.licence) == (3.0, 2048, "Apache-2.0")
    small = {
        "dim": 32,
        "n_layer": 1,
        "n_head": 2,
        "n_kv_head": 1,
        "hidden": 48,
        "prompt_ids": 8192,
        "grid": 4,
    }
    row = small_row(small | {"vocab_size": CODES, "first_image_id": 100, "vq": VQ}, GUIDANCE)
    target = Emu3Family().random_target(row, "cpu")
    made = engine.generate(build(target, method("eagle-1", shape="chain-3")), CAPTIONS)
    assert all(len(g.tokens) == 16 for g in made)
