"""Checkpoints in every official layout load as they are; what is not one of them is refused in one
sentence.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from families import small_row
from safetensors.torch import load_file, save_file
from test_anole import CODES, GUIDANCE, WORDS, halves, official, scrambled
from test_anole import PUBLISHED as CONFIG
from test_anole import VQ as SMALL_VQ
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.experiment.worker import make_samples
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import family as families
from lanternbench.models.chameleon import checkpoint as published_chameleon
from lanternbench.models.chameleon.checkpoint import (
    ROW_END,
    Chameleon,
    ChameleonConfig,
    ChameleonFamily,
)
from lanternbench.models.drafters.eagle import Eagle, new_eagle
from lanternbench.models.entries import entry
from lanternbench.models.family import drafter_at
from lanternbench.models.key_names import image_tables, to_published
from lanternbench.models.llamagen import checkpoint as llamagen
from lanternbench.models.llamagen.checkpoint import (
    FLAN_T5_XL,
    LlamaGen,
    LlamaGenConfig,
    LlamaGenFamily,
    RandomT5Features,
    T5Features,
)
from lanternbench.models.token_decoder import IdTokeniser
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.prompts import Prompt
from lanternbench.settings import GREEDY

SHAPE = {"dim": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64, "grid": 4, "multiple_of": 16}
TEXT = SHAPE | {"caption_dim": 16, "cls_token_num": 8}
CLASSES = SHAPE | {"model_type": "c2i"}
VQ = VQConfig(32, (1, 2), 1, z_channels=16, codebook_size=64, codebook_dim=8, attention=False)
CAPTION = "a red circle"


def equal(net: Any, state: dict[str, Tensor]) -> bool:
    own = net.state_dict()
    return own.keys() == state.keys() and all(torch.equal(v, state[k]) for k, v in own.items())


def save_shards(here: Path, state: dict[str, Tensor], count: int = 3) -> None:
    """As the hub's libraries write them; a layer's tensors may lie in several files."""
    where = {key: f"model-{i % count + 1}-of-{count}.safetensors" for i, key in enumerate(state)}
    for file in sorted(set(where.values())):
        save_file({k: v.contiguous() for k, v in state.items() if where[k] == file}, here / file)
    (here / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def hugging_face(net: Any, layers: dict[str, Tensor]) -> dict[str, Tensor]:
    top = {"tok_embeddings.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
    state = net.state_dict()
    return {f"model.{k}": v for k, v in layers.items() if k not in top} | {
        top[k]: state[k] for k in top
    }


# ---- LlamaGen ----


def write(here: Path, net: LlamaGen, layout: str) -> None:
    here.mkdir(parents=True, exist_ok=True)
    state = llamagen.to_official(net.state_dict())
    if layout == ".pt":
        torch.save({"model": state | {"freqs_cis": torch.ones(2)}, "steps": 5}, here / "t2i.pt")
    elif layout == ".pt of FSDP":
        torch.save(state, here / "c2i_3B.pt")
    elif layout == ".pt as torch once wrote it":
        torch.save({"model": state}, here / "old.pt", _use_new_zipfile_serialization=False)
    else:
        state = hugging_face(net, to_published(net.state_dict()))
        if layout == "LANTERN's shards":
            save_shards(here, state)
        else:
            torch.save(state, here / "pytorch_model.bin")


@pytest.fixture
def t5(tmp_path, monkeypatch):
    """A text encoder with random weights, and its tokeniser, as transformers writes them."""
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    words = {
        w: i for i, w in enumerate(["<pad>", "</s>", "<unk>", "a", "red", "circle", "square"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", special_tokens=[("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    net = T5EncoderModel(
        T5Config(vocab_size=7, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    ).eval()
    fast.save_pretrained(tmp_path / "text")
    net.save_pretrained(tmp_path / "text")
    return net


@pytest.fixture
def small_vq(tmp_path, monkeypatch):
    monkeypatch.setattr(families, "VQConfig", lambda: VQ)
    net = scrambled(VQModel(VQ), 3)
    (tmp_path / "vq").mkdir()
    torch.save({"model": net.state_dict()}, tmp_path / "vq" / "vq_ds16.pt")
    return net


def test_a_checkpoint_of_another_image_size_is_refused(tmp_path):
    net = scrambled(LlamaGen(LlamaGenConfig(**TEXT)), 0)
    (tmp_path / "model").mkdir()
    table = {"freqs_cis": torch.zeros(net.config.prefix + 4 * net.config.grid[0] ** 2, 4, 2)}
    torch.save(
        {"model": llamagen.to_official(net.state_dict()) | table}, tmp_path / "model" / "t2i.pt"
    )
    with pytest.raises(UserError, match="it is of another image size"):
        LlamaGenFamily().decoder(small_row(TEXT), tmp_path, "cpu")


def test_a_file_published_as_another_target_s_is_refused(tmp_path):
    write(tmp_path / "model", scrambled(LlamaGen(LlamaGenConfig(**TEXT)), 0), ".pt")
    row = entry("llamagen-xl-stage2").model_copy(update={"shape": TEXT})
    file = tmp_path / "model" / "t2i.pt"
    torch.save({"model": torch.load(file)["model"] | {"freqs_cis": torch.ones(2)}}, file)
    LlamaGenFamily().decoder(row, tmp_path, "cpu")
    stage_1 = file.rename(file.with_name("t2i_XL_stage1_256.pt"))
    with pytest.raises(UserError, match="published as the model of llamagen-xl-stage1"):
        LlamaGenFamily().decoder(row, tmp_path, "cpu")
    stage_1.rename(file.with_name("t2i_XL_stage2_512.pt"))
    LlamaGenFamily().decoder(row, tmp_path, "cpu")


def test_a_text_encoder_without_its_tokeniser_is_refused(tmp_path):
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=32_128, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(tmp_path / "text")
    with pytest.raises(UserError, match=r"pieces for an embedding table of 32,128.*spiece.model"):
        T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)(["a red circle"])


def test_a_text_encoder_of_another_size_is_refused(tmp_path, t5):
    features = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 2048)
    with pytest.raises(
        UserError,
        match="gives features 16 wide but this target reads 2048: it has to be Flan-T5-XL",
    ):
        features(["a red circle"])


@pytest.mark.parametrize(
    "layout",
    [".pt", ".pt of FSDP", ".pt as torch once wrote it", "LANTERN's shards", "LANTERN's .bin"],
)
@pytest.mark.parametrize("shape", [TEXT, CLASSES])
def test_a_llamagen_decoder_comes_back_from_every_layout(tmp_path, layout, shape):
    net = scrambled(LlamaGen(LlamaGenConfig(**shape)), 0)
    write(tmp_path / "model", net, layout)
    assert equal(LlamaGenFamily().decoder(small_row(shape), tmp_path, "cpu"), net.state_dict())


def test_a_llamagen_target_decodes_from_its_folder(tmp_path, t5, small_vq):
    net = scrambled(LlamaGen(LlamaGenConfig(**TEXT)), 0)
    drafter = scrambled(Eagle(replace(net.config.decoder, first_norm=False)), 1)
    write(tmp_path / "model", net, ".pt")
    (tmp_path / "eagle").mkdir()
    # LANTERN's files have a table of their own
    embedding = {"embed_tokens.weight": torch.randn(64, 32)}
    torch.save(
        to_published(drafter.state_dict()) | embedding, tmp_path / "eagle" / "pytorch_model.bin"
    )
    made = LlamaGenFamily().load(small_row(TEXT, 7.5, 8), tmp_path, "cpu")
    assert equal(made.model, net.state_dict())
    assert equal(made.vq, small_vq.state_dict())
    assert equal(
        made.drafters["eagle"],
        drafter.state_dict() | {"tok_embeddings.weight": embedding["embed_tokens.weight"]},
    )
    assert (made.pad_rows, made.guidance, made.sampling.top_k) == ("uniform", 7.5, 8)
    ar, drafted = (
        engine.generate(build(made, method(m), GREEDY), [CAPTION]) for m in ("ar", "eagle-1")
    )
    assert torch.equal(ar[0].tokens, drafted[0].tokens)
    assert made.images(ar[0].tokens[None])[0].size == (8, 8)


def test_a_llamagen_target_comes_in_the_dtype_asked_for_and_its_image_tokeniser_in_float32(
    tmp_path, t5, small_vq
):
    net = scrambled(LlamaGen(LlamaGenConfig(**TEXT)), 0)
    drafter = scrambled(Eagle(replace(net.config.decoder, first_norm=False)), 1)
    write(tmp_path / "model", net, ".pt")
    (tmp_path / "eagle").mkdir()
    torch.save(to_published(drafter.state_dict()), tmp_path / "eagle" / "pytorch_model.bin")
    made = LlamaGenFamily().load(small_row(TEXT, 7.5, 8), tmp_path, "cpu", torch.bfloat16)
    assert equal(made.model, {k: v.bfloat16() for k, v in net.state_dict().items()})
    assert equal(
        made.drafters["eagle"], {k: v.bfloat16() for k, v in drafter.state_dict().items()}
    )
    assert equal(made.vq, small_vq.state_dict())
    assert made.text([CAPTION])[0].dtype == torch.bfloat16
    assert len(engine.generate(build(made, method("eagle-1")), [CAPTION])[0].tokens) == 16


def test_captions_become_the_encoder_s_states_and_are_kept_on_disk(tmp_path, t5, monkeypatch):
    features, mask = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)(
        ["A  RED circle!", "square"]
    )
    # the end of the sentence counts
    assert mask.tolist() == [[1] * 4 + [0] * 4, [1] * 2 + [0] * 6]
    want = t5(input_ids=torch.tensor([[3, 4, 2, 1]])).last_hidden_state[0]
    assert torch.allclose(features[0, :4], want, atol=1e-6)
    assert features[0, 4:].abs().max() == 0
    assert not (tmp_path / "features").exists()  # checkpoints may lie on a read-only disk
    with monkeypatch.context() as patch:
        patch.delattr(T5Features, "_encoder")
        kept = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)
        assert torch.equal(kept(["square", "a red circle!"])[0], features.flip(0))
        # for its own dtype and length alone
        for dtype, length in ((torch.bfloat16, 8), (torch.float32, 9)):
            with pytest.raises(AttributeError, match="_encoder"):
                T5Features(tmp_path / "text", length, "cpu", dtype, 16)(["square"])


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_features_are_made_again_when_encoder_or_tokeniser_changes(name, tmp_path, t5):
    before = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)([CAPTION])[0]
    file = tmp_path / "text" / name
    if name == "tokenizer.json":
        file.write_text(
            file.read_text().replace('"red": 4', '"red": 6').replace('re": 6', 're": 4')
        )
    else:
        save_file({k: v + 0.1 for k, v in load_file(file).items()}, file, {"format": "pt"})
    after = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)([CAPTION])[0]
    assert not torch.equal(before, after)


def test_what_a_tokeniser_file_keeps_of_truncation_and_padding_changes_no_ids(tmp_path, t5):
    from tokenizers import Tokenizer

    file = tmp_path / "text" / "tokenizer.json"
    captions = ["a red red circle", "square"]
    before = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)(captions)
    ids = IdTokeniser(file)(captions)
    stored = Tokenizer.from_file(str(file))
    stored.enable_truncation(2)
    stored.enable_padding(length=6, pad_id=0, pad_token="<pad>")
    stored.save(str(file))
    for now, was in zip(IdTokeniser(file)(captions), ids):
        assert torch.equal(now, was)
    again = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)(captions)
    assert torch.equal(again[0], before[0])
    assert torch.equal(again[1], before[1])


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 1]}}, True),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, True),
        ({"eagle_aux_hidden_state_layer_ids": [2, 1, 0]}, False),
        ({"dflash_config": {"target_layer_ids": [0, 0]}}, True),
        ({"target_layer_ids": [1, 1]}, False),
        ({"target_layer_ids": "all"}, False),
        ({"num_attention_heads": 2}, True),
    ],
)
def test_a_drafter_whose_config_names_other_layers_than_it_is_run_on_is_refused(
    tmp_path, config, fits
):
    net = scrambled(LlamaGen(LlamaGenConfig(**TEXT)), 0)
    drafter = scrambled(new_eagle(net, True), 1)
    assert drafter.aux_layers(net) == (1, 1)
    torch.save(to_published(drafter.state_dict()), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    if fits:
        assert drafter_at(tmp_path, net, "cpu").kind == "eagle-3"
    else:
        with pytest.raises(UserError, match=r"config.json says that the drafter reads .* layers"):
            drafter_at(tmp_path, net, "cpu")


def test_random_weights_bring_a_text_encoder_of_the_real_size_that_end_to_end_time_counts(
    small_vq,
):
    features = RandomT5Features(120, "meta", torch.float32, 2048, 36)
    encoder, _ = features._encoder()
    assert sum(p.numel() for p in encoder.parameters()) == 1_223_527_424  # Flan-T5-XL's encoder
    row = small_row(TEXT)
    made, again = (LlamaGenFamily().random_target(row, "cpu") for _ in range(2))
    texts, mask = made.text(["a red circle", "square"])
    assert mask.sum(1).tolist() == [4, 2]  # the end of the sentence counts
    assert texts.isfinite().all()
    assert not torch.equal(texts[0, 0], texts[1, 0])
    assert torch.equal(again.text(["a red circle"])[0][0], texts[0])
    assert made.encode_seconds(["square"]) > 0
    # NAME:layers=N cuts it as well
    assert made.text.layers == TEXT["n_layer"] < FLAN_T5_XL["num_layers"]


def test_features_kept_from_before_the_clock_count_what_they_cost_the_encoder(
    tmp_path, t5, small_vq
):
    write(tmp_path / "model", scrambled(LlamaGen(LlamaGenConfig(**TEXT)), 0), ".pt")
    made = LlamaGenFamily().load(small_row(TEXT, 7.5, 8), tmp_path, "cpu")
    made.prepare([CAPTION, "a square"])
    each = [made.encode_seconds([caption]) for caption in (CAPTION, "a square")]
    assert min(each) > 0
    assert made.encode_seconds([CAPTION, "a square"]) == pytest.approx(sum(each))
    (path,) = made.text.prepare([CAPTION])
    # as a large encoder on a slow machine
    save_file(load_file(path), path, {"encode_seconds": "1000.0"})
    ((sample, *_),) = make_samples(build(made, method("ar")), [Prompt("0", CAPTION)], 0, True)
    assert 1000 < sample.encode_s < 1100
    assert sample.decode_s < 100


def test_a_long_caption_is_cut_to_the_conditioning_positions(tmp_path, t5):
    _, mask = T5Features(tmp_path / "text", 8, "cpu", torch.float32, 16)(["red " * 50])
    assert mask.tolist() == [[1] * 8]


# ---- Chameleon ----

# <reservedN> has id N + 4
NUMBERED = [*WORDS, *(f"<reserved{n:05d}>" for n in range(len(WORDS) - 4, 8820))]


@pytest.fixture
def chameleon(tmp_path) -> tuple[Chameleon, Any]:
    """A folder with tokeniser and image decoder, but no weights of the language model yet."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = {w: i for i, w in enumerate(NUMBERED) if w != "<reserved08706>"} | {
        "<reserved08706>": 8710
    }
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    net = scrambled(Chameleon(ChameleonConfig(32, 2, 2, 48, vocab_size=len(NUMBERED), grid=4)), 4)
    for name, p in net.named_parameters():
        if ".q_norm." in name or ".k_norm." in name:
            p.copy_(p[:1].expand_as(p))  # one row for all heads, as in the files of a 7B model
    vq = scrambled(VQModel(SMALL_VQ, comparison="distance"), 5)
    (tmp_path / "vq" / "tokenizer").mkdir(parents=True)  # where the hub has it
    torch.save(
        {"state_dict": official(vq.state_dict(), 1)}, tmp_path / "vq" / "tokenizer" / "vqgan.ckpt"
    )
    return net, vq


def one_row(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v[:1].clone() if re.search(r"[qk]_norm\.", k) else v for k, v in state.items()}


def lumina_files(here: Path, net: Chameleon) -> None:
    """Hugging Face shards of Lumina-mGPT: a single row of query and key norms."""
    (here / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": len(NUMBERED)}))
    save_shards(here, one_row(hugging_face(net, halves(net.state_dict(), 16))))


def meta_files(here: Path, net: Chameleon) -> None:
    """As Meta and the authors of Anole released them."""
    (here / "tokenizer.json").rename(here / "text_tokenizer.json")
    model = {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "norm_eps": 1e-5,
        "vocab_size": len(NUMBERED),
        "multiple_of": 16,
    }
    (here / "params.json").write_text(json.dumps({"model": model | {"ffn_dim_multiplier": 0.5}}))
    state = {"rope.freqs": torch.ones(1)}
    for key, value in net.state_dict().items():
        if "_norm." in key and re.search(r"[qk]_norm", key):
            state[key.replace("_norm.", "_normalization.")] = value[0].clone()
        elif ".wqkv." in key:
            state |= {
                key.replace("wqkv", f"w{c}"): v.clone()
                for c, v in zip("qkv", value.chunk(3), strict=True)
            }
        elif ".w13." in key:
            state |= {
                key.replace("w13", f"w{c}"): v.clone()
                for c, v in zip("13", value.chunk(2), strict=True)
            }
        else:
            state[key] = value
    torch.save(state, here / "consolidated.pth")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("files", "dialect"), [(lumina_files, "lumina"), (meta_files, "anole")])
def test_a_chameleon_target_decodes_from_its_folder(
    tmp_path, chameleon, files, dialect, dtype, monkeypatch
):
    net, vq = chameleon
    here = tmp_path / "model"
    files(here, net)
    monkeypatch.setattr(published_chameleon, "VQ", SMALL_VQ)
    shape = {"grid": 4, "vocab_size": CODES, "prompt_ids": len(NUMBERED), "dialect": dialect}
    made = ChameleonFamily().load(small_row(shape, GUIDANCE, 8), tmp_path, "cpu", dtype)
    tables = image_tables(
        net.state_dict(), ChameleonFamily().at(small_row({}), tmp_path, "cpu").image_ids
    )
    assert equal(made.model, {name: table.to(dtype) for name, table in tables.items()})
    assert equal(made.vq, vq.state_dict())
    assert made.row_end == (ROW_END if dialect == "lumina" else None)
    assert len(engine.generate(build(made, method("ar"), GREEDY), [CAPTION])[0].tokens) == 16


# ---- what is no such checkpoint ----


def test_a_checkpoint_of_another_architecture_is_one_sentence(tmp_path, chameleon):
    net, _ = chameleon
    here = tmp_path / "model"
    lumina_files(here, net)
    with pytest.raises(
        UserError, match=r"has no 'cls_embedding|another size|of another architecture"
    ):
        LlamaGenFamily().decoder(small_row(CLASSES), tmp_path, "cpu")  # the files of a Chameleon
    broken = halves(scrambled(Eagle(net.config.decoder), 0).state_dict(), 16)
    for name, change, says in (
        (
            "key absent",
            {"layers.0.self_attn.k_proj.weight": None},
            r"is damaged: 1 of 15 weights is absent, such as 'layers\.0\.self_attn\.k_proj\.weight'",
        ),
        (
            "another width",
            {"layers.0.self_attn.q_proj.weight": torch.ones(7, 32)},
            r"of another architecture or size \(\w+Error: .*\): use the (official file|file of this target)",
        ),
    ):
        state = {k: v for k, v in (broken | change).items() if v is not None}
        torch.save(state, tmp_path / f"{name}.bin")
        with pytest.raises(UserError, match=says):
            drafter_at(tmp_path / f"{name}.bin", net, "cpu")


def test_meta_s_parameters_without_a_width_are_refused(tmp_path, chameleon):
    meta_files(tmp_path / "model", chameleon[0])
    (tmp_path / "model" / "params.json").write_text(json.dumps({"model": {"n_layers": 2}}))
    with pytest.raises(
        UserError, match=r"params\.json is no config of Chameleon \(it has no 'dim'\)"
    ):
        ChameleonFamily().decoder(small_row({}), tmp_path, "cpu")


@pytest.mark.slow
def test_loading_takes_hardly_more_memory_than_the_checkpoint_s_size():
    script = ROOT / "benchmarks" / "loading.py"
    done = subprocess.run(
        [sys.executable, str(script), "150"], capture_output=True, text=True, check=True
    )
    ratios = [float(r) for r in re.findall(r"([\d.]+) ×", done.stdout)]
    assert len(ratios) == 4
    assert max(ratios) < 1.2, done.stdout
    assert ratios[3] < 0.85, done.stdout  # bfloat16: cast as it is read
