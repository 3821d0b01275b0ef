"""The Chameleon family: the decoder and image encoder of transformers are reproduced; ids, rules
and prompts hold.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from golden_checks.chameleon_vqgan import centre_square, from_pixels, on_white
from image_ids import (
    Vocabulary,
    anole_rule,
    codes_of,
    lumina_rule,
    of_names,
    open_image,
    published,
)
from PIL import Image
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.chameleon.checkpoint import (
    PAD,
    SPECIAL,
    TURN_END,
    VQ,
    Chameleon,
    ChameleonConfig,
    ChameleonFamily,
    anole_frame,
    check_sizes,
    lumina_frame,
)
from lanternbench.models.entries import entry
from lanternbench.models.key_names import from_published
from lanternbench.models.loading import explain_errors, load_into
from lanternbench.models.target import truncated
from lanternbench.models.token_decoder import IdTokeniser, padded
from lanternbench.models.vq import VQConfig, VQModel, from_vqgan

TINY = ChameleonConfig(
    dim=32, n_layer=2, n_head=4, hidden=48, n_kv_head=2, vocab_size=40, positions=64
)
TINY_VQ = VQConfig(
    ch=32, ch_mult=(1, 2), num_res_blocks=1, codebook_size=16, codebook_dim=8, attention=False
)
NAMES = {
    "<s>": 0,
    "<pad>": 1,
    "</s>": 2,
    "IMGIMGAZ": 4,
    "IMGIMGBZ": 5,
    "<eoss>": 6,
    "<racm3:break>": 7,
    "<image>": 8,
}


def config_from_hf(config: dict[str, Any]) -> ChameleonConfig:
    with explain_errors("config.json is no config of Chameleon"):
        return ChameleonFamily().at(entry("anole-7b"), None, "cpu").described(config)


def tiny(cfg: ChameleonConfig = TINY) -> Chameleon:
    torch.manual_seed(0)
    model = Chameleon(cfg).requires_grad_(False)
    for name, p in model.named_parameters():
        p.copy_(torch.randn_like(p) * 0.3 + ("norm" in name and name.endswith("weight")))
    return model


def reference(swin: bool) -> Any:
    """transformers' model with random weights, norms included."""
    from transformers import ChameleonConfig as HFConfig
    from transformers import ChameleonForConditionalGeneration

    image = {
        "base_channels": 32,
        "channel_multiplier": [1, 2],
        "num_res_blocks": 1,
        "latent_channels": 16,
    }
    config = HFConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        swin_norm=swin,
        vocabulary_map=NAMES,
        vq_config=image | {"embed_dim": 8, "num_embeddings": 16, "resolution": 16},
    )
    torch.manual_seed(0)
    net = ChameleonForConditionalGeneration(config).eval().requires_grad_(False)
    for name, p in net.named_parameters():
        if "vqmodel" not in name:
            p.copy_(torch.randn_like(p) * 0.2 + ("norm" in name and name.endswith("weight")))
    return net


@pytest.mark.parametrize("swin", [False, True])
def test_the_decoder_computes_what_transformers_computes(swin):
    net = reference(swin)
    cfg = config_from_hf(net.config.to_dict())
    assert cfg == replace(TINY, positions=ChameleonConfig.positions, swin_norm=swin)
    model = Chameleon(cfg).requires_grad_(False)
    model.load_state_dict(from_published(net.state_dict(), ("model.",), cfg.decoder))
    ids = torch.randint(9, 40, (2, 12))
    ids[1, :3] = 1
    valid = ids != 1
    want = net(input_ids=ids, attention_mask=valid.long()).logits
    hidden = model.teacher_forced(
        model.tok_embeddings(ids[:, :4]), valid[:, :4], torch.roll(ids[:, 3:], -1, 1)
    )
    got = model.output(hidden)
    # transformers forbids the image ids
    unmasked = torch.tensor([i for i in range(40) if i not in (4, 5)])
    assert torch.allclose(got[..., unmasked], want[:, 3:, unmasked], atol=1e-4)
    assert (want[:, 3:, 4:6] < -1e30).all()
    assert got[..., 4:6].abs().max() < 1e3


def test_the_image_encoder_computes_what_transformers_computes():
    net = reference(False)
    cfg = VQConfig.described(net.config.vq_config.to_dict(), VQ)
    vq = VQModel(cfg, comparison="distance").requires_grad_(False)
    missing, unexpected = vq.load_state_dict(from_vqgan(net.state_dict(), cfg), strict=False)
    assert not unexpected
    # transformers only encodes
    assert all(k.startswith(("decoder.", "post_quant_conv.")) for k in missing)
    images = torch.rand(2, 3, 16, 24) * 2 - 1
    want = net.model.vqmodel.encode(images).image_tokens
    assert torch.equal(vq.encode(images), want.view(2, 8, 12))
    assert vq.decode(vq.encode(images)).shape == images.shape


def official(model: Chameleon, fused: bool) -> dict[str, Tensor]:
    """Our weights under Meta's key names; the norms as one row for all heads."""
    state = {"rope.freqs": torch.ones(1)}
    for key, value in model.state_dict().items():
        key = key.replace("q_norm", "q_normalization").replace("k_norm", "k_normalization")
        if "_normalization" in key:
            value = value[0]
        if not fused and ".wqkv." in key:
            parts = value.split([32, 16, 16])
            state |= {
                key.replace("wqkv", f"w{c}"): part for c, part in zip("qkv", parts, strict=True)
            }
        elif not fused and ".w13." in key:
            state |= {
                key.replace("w13", f"w{c}"): part
                for c, part in zip("13", value.chunk(2), strict=True)
            }
        else:
            state[key] = value
    return state


@pytest.mark.parametrize("fused", [True, False])
def test_metas_layout_loads_whole_or_layer_by_layer(fused):
    model = tiny()
    for name, p in model.named_parameters():
        if ".q_norm." in name or ".k_norm." in name:
            p.copy_(p[:1].expand_as(p))
    state = official(model, fused)
    layer = {k: v for k, v in state.items() if k.startswith("layers.1.")}
    whole, part = (
        from_published(part, ("model.",), model.config.decoder) for part in (state, layer)
    )
    assert all(torch.equal(v, whole[k]) for k, v in model.state_dict().items())
    assert whole.keys() == model.state_dict().keys()
    assert part.keys() == {k for k in whole if k.startswith("layers.1.")}


def test_left_padding_changes_no_hidden_state():
    model = tiny()
    tokens = torch.randint(4, 40, (1, 6))
    prompt = torch.randint(4, 40, (1, 3))
    ids = torch.nn.functional.pad(prompt, (5, 0), value=1)
    want = model.teacher_forced(model.tok_embeddings(prompt), prompt > 0, tokens)
    got = model.teacher_forced(model.tok_embeddings(ids), ids != 1, tokens)
    assert torch.allclose(got, want, atol=1e-5)


def test_a_checkpoint_of_another_shape_or_architecture_is_refused(tmp_path):
    def load(cfg: ChameleonConfig, state: dict[str, Tensor]) -> None:
        load_into(lambda: Chameleon(cfg), state, tmp_path, "cpu", torch.float32)

    state = tiny().state_dict()
    load(TINY, dict(state))
    with pytest.raises(UserError, match="another size"):
        load(replace(TINY, hidden=64), dict(state))
    with pytest.raises(UserError, match=r"has no 'layers\.2\."):
        load(replace(TINY, n_layer=3), dict(state))
    with pytest.raises(UserError, match="3 rows for 4 heads"):
        from_published(
            {"model.layers.0.self_attn.q_norm.weight": torch.ones(3, 8)}, ("model.",), TINY.decoder
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "type 'llama'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_a_config_of_another_model_is_refused(change, message):
    config = {
        "model_type": "chameleon",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 40,
    }
    assert config_from_hf(config) == replace(TINY, positions=ChameleonConfig.positions)
    config = {k: v for k, v in (config | change).items() if v is not None}
    with pytest.raises(UserError, match=message):
        config_from_hf(config)


def test_a_tokeniser_s_configuration_says_its_sizes_and_which_levels_have_attention():
    shape = {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1, "z_channels": 256}
    config = {"embed_dim": 8, "n_embed": 16, "ddconfig": shape}
    assert VQConfig.described(config, VQ) == TINY_VQ
    attending = shape | {"attn_resolutions": [16, 99], "resolution": 32}
    assert VQConfig.described(config | attending, VQ) == replace(TINY_VQ, attention=(1,))
    assert VQConfig.described({"embed_dim": 8, "ddconfig": shape}, VQ) == replace(
        TINY_VQ, codebook_size=VQ.codebook_size
    )
    with pytest.raises(UserError, match="double latent"):
        VQConfig.described(config | {"double_z": True}, VQ)


def test_pixels_survive_the_way_in_and_out():
    values = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    back = truncated(from_pixels(values).double() + 1e-9)[0].numpy()
    assert np.abs(back.astype(int) - values).max() <= 1  # truncated, as the official code does
    grey = Image.new("LA", (40, 20), (0, 0))
    assert on_white(grey).getpixel((3, 3)) == (255, 255, 255)
    assert centre_square(on_white(grey), 8).size == (8, 8)


# ---- ids ----


def test_image_ids_and_codebook_indices_are_inverse():
    vocab = published()
    codes = torch.arange(8192).view(2, -1)
    assert torch.equal(codes_of(vocab.to_id[codes], vocab), codes)
    assert codes_of(torch.tensor([0, 3, 4, 8195, 8196, 65535, -1]), vocab).tolist() == [
        -1,
        -1,
        0,
        8191,
        -1,
        -1,
        -1,
    ]


def test_the_published_vocabulary_is_read_from_its_file(tmp_path):
    names = {n: i for n, i in NAMES.items() if n != "<image>"} | {TURN_END: 9}
    path = tmp_path / "text_tokenizer.json"

    def vocabulary(names: dict[str, int]) -> Vocabulary:
        model = {"type": "WordLevel", "vocab": names, "unk_token": "<unk>"}
        path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
        return of_names(IdTokeniser(path, SPECIAL).names)

    vocab = vocabulary(names)
    assert (vocab.to_id.tolist(), vocab.image_start, vocab.image_end, vocab.ids[TURN_END]) == (
        [4, 5],
        7,
        6,
        9,
    )
    for broken, message in (
        (
            {n: i for n, i in names.items() if n != "IMGIMGAZ"},
            "names 1 image tokens but not every one once",
        ),
        (names | {"IMGIMGAAZ": 10}, "names 3 image tokens but not every one once"),
        (names | {"IMGIMG?Z": 10}, "names 3 image tokens but not every one once"),
        ({n: i for n, i in names.items() if n != "<eoss>"}, "has no token <eoss>"),
    ):
        with pytest.raises(UserError, match=message):
            vocabulary(broken)
    path.write_text(json.dumps({"model": []}))
    for where in (path, tmp_path / "absent.json"):
        with pytest.raises(UserError, match=f"cannot read the tokeniser {where}"):
            IdTokeniser(where)


@pytest.mark.parametrize(("side", "ids"), [(512, 1057), (768, 2353), (1024, 4161)])
def test_lumina_forces_one_id_a_row_and_one_at_the_end(side, ids):
    vocab = published()
    rule = lumina_rule(vocab, side, side)
    assert rule.length == ids
    forced = {n: rule.forced(n) for n in range(ids) if rule.forced(n) is not None}
    assert list(forced.values()) == [8803] * (side // 16) + [8196]
    assert sorted([*forced, *rule.drawn().tolist()]) == list(range(ids))
    assert rule.forced(ids) is None
    assert bool(rule.allowed(ids, 9000).all())


def test_an_image_laid_out_as_ids_is_read_back():
    vocab = published()
    for rule in (lumina_rule(vocab, 96, 64), anole_rule(vocab, 5)):
        codes = torch.randint(8192, (2, rule.height * rule.width))
        ids = rule.lay_out(codes)
        assert ids.shape == (2, rule.length)
        assert torch.equal(rule.codes(ids[1]).flatten(), codes[1])
        assert all(bool(rule.allowed(n, 9000)[i]) for n, i in enumerate(ids[0].tolist()))
    with pytest.raises(UserError, match="takes 25"):
        anole_rule(vocab, 5).codes(ids[0, :24])
    ids[0, 7] = 8710
    with pytest.raises(UserError, match="no image token"):
        anole_rule(vocab, 5).codes(ids[0])


def test_anole_draws_every_token_among_the_image_ids():
    rule = anole_rule(published())
    assert rule.length == 1024
    assert all(rule.forced(n) is None for n in range(1030))
    ids = torch.where(rule.allowed(1023, 65536))[0]
    assert (len(ids), int(ids[0]), int(ids[-1])) == (8192, 4, 8195)


def test_prompts_are_framed_as_published():
    vocab = published()
    assert anole_frame(SPECIAL, 512, 512).prompt([300, 301]) == (
        [0, 300, 301, 8710, 8197],
        [0, 8197],
    )
    lumina = lumina_frame(SPECIAL, 768, 512)
    assert (
        lumina.template
        == "Generate an image of 768x512 according to the following prompt:\n{caption}"
    )
    prompt = lumina.prompt([300])
    assert prompt == ([0, 300, 8710, 8197, 8820, 8828], [8197, 8820, 8828])  # the height first
    ids, valid = padded(prompt, SPECIAL[PAD], "left")
    assert ids[1].tolist() == [1, 1, 1, 8197, 8820, 8828]
    assert valid[1].tolist() == [False, False, False, True, True, True]
    at = open_image(prompt.cond, vocab)
    assert at is not None
    assert (at.rule.height, at.rule.width, at.position) == (32, 48, 0)
    for side in (500, 0, -32, 1 << 20):
        with pytest.raises(UserError, match="multiple of 32"):
            lumina_frame(SPECIAL, 768, side)


def test_a_vocabulary_whose_size_ids_mean_something_else_is_refused():
    check_sizes({"<reserved08799>": 8803, "<reserved08816>": 8820})
    check_sizes({"a": 3})
    with pytest.raises(UserError, match="gives '<reserved08824>' the id 7, not 8828"):
        check_sizes({"<reserved08824>": 7})
