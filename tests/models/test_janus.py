"""Janus-Pro against transformers' own class, on small random weights, from both layouts of its
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
from lanternbench.engine.cache import DecoderCache, prefix_address, raster, run_address
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models.catalogue import with_drafter
from lanternbench.models.drafters.eagle import new_eagle, to_file
from lanternbench.models.entries import entry
from lanternbench.models.janus.checkpoint import BOS, IMAGE_START, PAD, JanusFamily
from lanternbench.models.packing import packed
from lanternbench.models.target import Target
from lanternbench.settings import GREEDY

CODES, SIDE, GUIDANCE = 64, 8, 5.0
CAPTIONS = ["a red circle on a large blue square", "a circle"]
WORDS = [
    BOS,
    "<｜end▁of▁sentence｜>",
    PAD,
    IMAGE_START,
    "<end_of_image>",
    "<image_placeholder>",
    "<|User|>",
]
WORDS += ["<|Assistant|>", "<unk>", ":", "a", "red", "circle", "on", "large", "blue", "square"]
ROW = small_row({"grid": SIDE, "vq": {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1, "z_channels": 32,
                                       "codebook_size": CODES, "codebook_dim": 8}}, GUIDANCE)  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Any:
    """transformers' model with weights so large that tokens depend on all before them."""
    from transformers import JanusConfig, JanusForConditionalGeneration

    torch.manual_seed(0)
    config = JanusConfig(
        text_config={
            "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 32, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 256, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1,
        },
        vision_config={"image_size": SIDE * 16, "patch_size": 16, "hidden_size": 32, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "projection_dim": 32, "depth": 1, "intermediate_size": 32},
        vq_config={"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 32, "base_channels": 32,
                   "channel_multiplier": [1, 2], "num_res_blocks": 1, "projection_dim": 32,
                   "image_token_embed_dim": 32},
    )  # fmt: skip
    net = JanusForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    for name, p in net.requires_grad_(False).named_parameters():
        if "language_model" in name or "generation" in name:
            p.copy_(torch.randn_like(p) * 0.3 + ("norm" in name))
    return net


def original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """transformers' key names -> the original release's."""
    renamed = {
        r"^model\.language_model\.": "language_model.model.", r"^lm_head\.": "language_model.lm_head.",
        r"^model\.generation_embeddings\.": "gen_embed.", r"^model\.generation_aligner\.fc1\.": "gen_aligner.layers.0.",
        r"^model\.generation_aligner\.hidden_layers\.0\.": "gen_aligner.layers.2.",
        r"^model\.generation_head\.proj_out\.": "gen_head.output_mlp_projector.",
        r"^model\.generation_head\.": "gen_head.", r"^model\.vqmodel\.": "gen_vision_model.",
        r"^(gen_vision_model\.decoder)\.up\.": r"\1.conv_blocks.",
        r"^(gen_vision_model\.encoder)\.down\.": r"\1.conv_blocks.",
        r"^(gen_vision_model\..*)\.block\.": r"\1.res.", r"^(gen_vision_model\..*)\.mid\.block_1\.": r"\1.mid.0.",
        r"^(gen_vision_model\..*)\.mid\.attn_1\.": r"\1.mid.1.",
        r"^(gen_vision_model\..*)\.mid\.block_2\.": r"\1.mid.2.", r"^model\.(vision_model|aligner)\.": r"\1.",
    }  # fmt: skip
    found = {}
    for key, value in state.items():
        for old, new in renamed.items():
            key = re.sub(old, new, key)
        found[key] = value
    return found | {"gen_vision_model.quantize.codebook_used": torch.zeros(65536)}


def write(folder: Path, net: Any, layout: str) -> Path:
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    here = folder / "model"
    here.mkdir()
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+|:"), "isolated")
    tokenizer.add_special_tokens(
        [AddedToken(w, special=True, normalized=False) for w in WORDS[:8]]
    )
    tokenizer.save(str(here / "tokenizer.json"))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    config = net.config.to_dict()
    if layout == "original":
        state, text = original(state), config["text_config"]
        config = {
            "model_type": "multi_modality", "language_config": text,
            "gen_vision_config": {"params": {"image_token_size": CODES, "n_embed": 8}},
        }  # fmt: skip
        torch.save(state, here / "pytorch_model.bin")
    else:
        save_file(state, here / "model.safetensors")
    (here / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(params=["original", "transformers"])
def loaded(request, theirs, tmp_path) -> Target:
    return JanusFamily().load(ROW, write(tmp_path, theirs, request.param), "cpu")


def prompt_ids(target: Target, caption: str) -> list[int]:
    prefix = target.prefix([caption], GUIDANCE)
    return prefix.features[0].tolist()


def test_prompts_are_those_of_the_published_conversation(loaded):
    """As the published processor writes it, word by word; unknown blanks are <unk> in this small
    vocabulary.
    """
    text = "<|User|>: a circle\n\n<|Assistant|>:" + IMAGE_START
    made = loaded.text.tokenizer.encode(text, add_special_tokens=False).ids
    cond = [WORDS.index(BOS), *made]
    prefix = loaded.prefix([" a circle "], GUIDANCE)
    assert prefix.features[0].tolist() == cond
    pad = [WORDS.index(PAD)] * (len(cond) - 2)
    assert prefix.features[1].tolist() == [WORDS.index(BOS), *pad, WORDS.index(IMAGE_START)]
    assert prefix.valid.all()  # padding in the unconditional prompt is attended to
    assert WORDS.index("<|User|>") in cond
    cunning = prompt_ids(loaded, f"<|User|>a {IMAGE_START} circle {PAD}")
    assert cunning.count(WORDS.index("<|User|>")) == cunning.count(WORDS.index(IMAGE_START)) == 1


def test_logits_are_those_of_transformers(loaded, theirs):
    prefix = loaded.prefix(CAPTIONS, GUIDANCE)
    torch.manual_seed(1)
    tokens = torch.randint(0, CODES, (2, 20))
    with torch.no_grad():
        image = theirs.prepare_embeddings_for_image_generation(tokens)
        words = theirs.get_input_embeddings()(prefix.features)
        x = torch.cat([words, image.repeat(2, 1, 1)], 1)
        valid = torch.cat([prefix.valid, torch.ones(4, 20, dtype=torch.bool)], 1).long()
        hidden = theirs.model.language_model(
            inputs_embeds=x, attention_mask=valid
        ).last_hidden_state
        want = theirs.model.generation_head(hidden[:, prefix.valid.shape[1] - 1 : -1])
    got = loaded.model.teacher_forced(prefix.embeddings, prefix.valid, tokens.repeat(2, 1))
    assert (loaded.model.logits(got) - want).abs().max() < 1e-4 * max(1, float(want.abs().max()))
    guided = want[2:] + (want[:2] - want[2:]) * GUIDANCE
    assert (loaded.model.logits(got, GUIDANCE) - guided).abs().max() < 1e-3 * max(
        1, float(guided.abs().max())
    )


def test_cached_decoding_gives_the_states_of_one_pass(loaded):
    model, prefix = loaded.model, loaded.prefix(CAPTIONS[:1], 1.0)
    n = prefix.valid.shape[1]
    tokens = torch.randint(0, CODES, (1, 6))
    whole = model.teacher_forced(prefix.embeddings, prefix.valid, tokens)
    layout = raster(8, 0, n, 0, n + 8, prefix.embeddings.device)
    cache = DecoderCache(model, model.config.decoder, layout, 1, model.rope, prefix.embeddings)
    x = torch.cat([prefix.embeddings, model.tok_embeddings(tokens[:, :-1])], 1)
    made = [cache.forward(x[:, :n], prefix_address(prefix.valid))[:, -1:]]
    made += [cache.forward(x[:, i : i + 1], run_address(i, 1)) for i in range(n, x.shape[1])]
    assert torch.allclose(torch.cat(made, 1), whole, atol=1e-4)


@pytest.mark.slow
def test_64_greedy_guided_tokens_are_those_of_transformers_generate(loaded, theirs):
    ids = torch.tensor([prompt_ids(loaded, CAPTIONS[0])])
    theirs.generation_config.generation_kwargs = {"boi_token_id": WORDS.index(IMAGE_START)}
    theirs.generation_config.bos_token_id, theirs.generation_config.pad_token_id = 0, 2
    theirs.model.vision_model.config.num_image_tokens = SIDE * SIDE
    want = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), generation_mode="image", do_sample=False, guidance_scale=GUIDANCE,
        cache_implementation="static",
    )  # fmt: skip
    packed(loaded)
    for name in ("ar", "eagle-1", "sjd"):
        net = new_eagle(loaded.model).eval().requires_grad_(False)
        made = replace(loaded, drafters={"eagle": net})
        decoder = build(made, method(name), GREEDY)
        found = engine.generate(decoder, [CAPTIONS[0]])[0].tokens
        assert torch.equal(found[None], want), name
    assert len(want.unique()) > 8


def test_pixels_are_those_of_transformers(loaded, theirs):
    tokens = torch.randint(0, CODES, (2, SIDE * SIDE), generator=torch.Generator().manual_seed(3))
    side = SIDE  # their grid is that of the image's patches
    theirs.model.vqmodel.quantize.quant_state_dims = [side, side]
    with torch.no_grad():
        want = theirs.model.vqmodel.decode(tokens)
    got = loaded.vq.decode(tokens.view(2, side, side))
    assert (got - want).abs().max() < 5e-4
    assert loaded.images(tokens)[0].size == (2 * side, 2 * side)


@pytest.mark.slow
def test_a_drafter_is_trained_saved_and_read(loaded, tmp_path):
    net = new_eagle(loaded.model).eval().requires_grad_(False)
    save_file(to_file(net, loaded.model), tmp_path / "drafter.safetensors")
    made, kind = with_drafter(loaded, str(tmp_path / "drafter.safetensors"))
    assert kind == "eagle"
    assert torch.equal(made.drafters["eagle"].fc.bias, net.fc.bias)
    table = {"embed_tokens.weight": torch.zeros(CODES, 32)}
    save_file(to_file(net, loaded.model) | table, tmp_path / "drafter.safetensors")
    with pytest.raises(UserError, match="has no place"):
        with_drafter(loaded, str(tmp_path / "drafter.safetensors"))


def test_another_model_s_files_are_refused(theirs, tmp_path):
    folder = write(tmp_path, theirs, "transformers")
    (folder / "model" / "config.json").write_text('{"model_type": "chameleon"}')
    with pytest.raises(UserError, match="type 'chameleon', not Janus"):
        JanusFamily().load(ROW, folder, "cpu")


def test_random_weights_have_the_published_shapes():
    one, seven = entry("janus-pro-1b"), entry("janus-pro-7b")
    assert (one.guidance, one.shape["dim"], seven.shape["n_layer"]) == (5.0, 2048, 30)
    small = {"dim": 32, "n_layer": 1, "n_head": 2, "hidden": 48, "prompt_ids": 8192, "grid": 4}
    row = small_row(small | {"vq": ROW.shape["vq"] | {"codebook_size": 16384}}, 5.0)
    target = JanusFamily().random_target(row, "cpu")
    made = engine.generate(build(target, method("eagle-1", shape="chain-3")), CAPTIONS)
    assert all(len(g.tokens) == 16 for g in made)
