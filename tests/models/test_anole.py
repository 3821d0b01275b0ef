"""Anole as a target: what its decoder means is what the engine decodes, with any method, from
files or without.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import random_chameleon, small_row
from image_ids import Vocabulary, published
from safetensors.torch import save_file
from torch import Tensor

from lanternbench.engine import decode as engine
from lanternbench.engine import opening
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.methods.proposals.drafting import EagleDrafter
from lanternbench.models.catalogue import load_target
from lanternbench.models.chameleon.checkpoint import Chameleon, ChameleonConfig, ChameleonFamily
from lanternbench.models.drafters.dflash import Medusa
from lanternbench.models.drafters.eagle import Eagle
from lanternbench.models.entries import entry
from lanternbench.models.key_names import image_tables, to_published
from lanternbench.models.loading import read_state
from lanternbench.models.target import Target
from lanternbench.models.token_decoder import WordIds
from lanternbench.models.transformer import guide
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.settings import GREEDY, Sampling

CODES, GRID, GUIDANCE = 16, 5, 3.0
CAPTIONS = ["a red circle", "two small green squares above a very large yellow ring"]
LOSSLESS = ["sd", "medusa", "eagle-1", "eagle-2", "adt-tree", "sjd", "jacobi"]
ALL_IDS = ChameleonConfig(32, 2, 2, 48, vocab_size=16384, positions=128, grid=GRID)
IMAGES = replace(ALL_IDS, vocab_size=CODES, prompt_ids=ALL_IDS.vocab_size)
VQ = VQConfig(32, (1, 2), 1, z_channels=16, codebook_size=CODES, codebook_dim=8, attention=False)
SMALL_TREES = {
    "static": "twig-8",
    "chain": "chain-3",
    "medusa": "twig-8",
    "depth": 3,
    "draft_top_k": 3,
}
SMALL_TREES |= {"total_nodes": 8, "width_range": (1, 9), "l_k": 1, "near": 8}


def scrambled(net: Any, seed: int) -> Any:
    """Weights so large that tokens depend on all before them, norms included."""
    torch.manual_seed(seed)
    for name, p in net.requires_grad_(False).eval().named_parameters():
        p.copy_(torch.randn_like(p) * 0.3 + ("norm" in name and name.endswith("weight")))
    return net


def small(dialect: str, device: str = "cpu") -> Target:
    """A Chameleon of 4 × 4 tokens with an EAGLE drafter."""
    shape = vars(IMAGES) | {"grid": 4, "dialect": dialect}
    made = random_chameleon(shape, GUIDANCE, VQ, f"{dialect}-small")
    net = Eagle(IMAGES.decoder, norm_eps=IMAGES.norm_eps)
    for seed, part in enumerate((made.model, net, made.vq)):
        scrambled(part, seed).to(device)
    return replace(made, drafters={"eagle": net}, options=SMALL_TREES)


def of_images(whole: Chameleon, vocab: Vocabulary) -> Chameleon:
    net = Chameleon(
        IMAGES if whole.config == ALL_IDS else replace(IMAGES, prompt_ids=whole.config.vocab_size)
    )
    net.load_state_dict(image_tables(whole.state_dict(), vocab.to_id))
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def whole() -> Chameleon:
    """The decoder as published: one table of all ids."""
    return scrambled(Chameleon(ALL_IDS), 0)


@pytest.fixture(scope="module")
def anole(whole) -> Target:
    vocab = published(CODES)
    made = random_chameleon(vars(IMAGES), GUIDANCE, VQ, "anole-small")
    drafters = {
        "eagle": scrambled(Eagle(IMAGES.decoder, norm_eps=IMAGES.norm_eps), 1),
        "model": of_images(scrambled(Chameleon(ALL_IDS), 2), vocab),
        "medusa": scrambled(Medusa(IMAGES.dim, 4), 3),
    }
    return replace(made, model=of_images(whole, vocab), drafters=drafters, options=SMALL_TREES)


def decoded(
    target: Target,
    name: str,
    captions: list[str] = CAPTIONS,
    temperature: float = 0.0,
    **options: Any,
):
    return engine.generate(
        build(target, method(name, **options), Sampling(temperature=temperature)), captions
    )


@pytest.fixture(scope="module")
def greedy(anole) -> Tensor:
    return torch.stack([g.tokens for g in decoded(anole, "ar")])


def test_greedy_tokens_are_what_the_whole_vocabulary_says_when_only_image_ids_may_be_drawn(
    anole, whole, greedy
):
    ids, mask = anole.text(CAPTIONS)
    for row, seen, tokens in zip(ids, mask.bool(), greedy, strict=True):
        logits = []
        # each alone: no row is padded
        for prompt in ([0, *row[seen].tolist(), 8710, 8197], [0, 8197]):
            prefix = whole.tok_embeddings(torch.tensor([prompt]))
            valid = torch.ones(prefix.shape[:2], dtype=torch.bool)
            logits.append(whole.output(whole.teacher_forced(prefix, valid, tokens[None] + 4)))
        guided = logits[1] + (logits[0] - logits[1]) * GUIDANCE
        assert torch.equal(guided[0, :, 4 : 4 + CODES].argmax(-1), tokens)
        # without the rule other ids would win
        assert not torch.equal(guided[0].argmax(-1) - 4, tokens)
    assert len(greedy.unique()) > 4
    assert not torch.equal(*greedy)


@pytest.mark.parametrize("name", LOSSLESS)
def test_greedy_output_of_lossless_methods_is_that_of_ar(anole, greedy, name):
    made = decoded(anole, name)
    assert torch.equal(torch.stack([g.tokens for g in made]), greedy)
    assert name == "jacobi" or sum(g.steps for g in made) < 2 * (anole.length - 1)


@pytest.mark.parametrize("name", ["eagle-2", "cool-sd"])
def test_left_padding_changes_no_image(anole, name):
    together, alone = (
        decoded(anole, name, temperature=1.0),
        decoded(anole, name, CAPTIONS[:1], 1.0),
    )
    assert torch.equal(together[0].tokens, alone[0].tokens)
    assert together[0].accept_lengths == alone[0].accept_lengths


def test_without_guidance_there_is_one_row_a_prompt(anole):
    prefix = anole.prefix(CAPTIONS, 1.0)
    assert prefix.valid.tolist() == [[False] * 7 + [True] * 6, [True] * 13]
    decoders = (
        build(anole, method(name), Sampling(temperature=0.0, guidance=1.0))
        for name in ("ar", "eagle-1")
    )
    made = (engine.generate(decoder, CAPTIONS) for decoder in decoders)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(*made, strict=True))


def test_the_eagle_drafter_reads_the_prompt_one_id_ahead_and_no_padding(anole):
    model, net = anole.model, anole.drafters["eagle"]
    decoder = build(anole, method("eagle-1", shape="chain-3"), GREEDY)
    with torch.inference_mode():
        state = opening.start(decoder, CAPTIONS, [0, 1], trace=False)
        prefix, hidden = state.prefix, state.prefix_states
        drafter = EagleDrafter(net, model)
        expand = drafter.expander(state, drafter.begin(state, 4))
        got = expand(state.now.root[:, None], None, None, 0)[:, 0]
        last = []
        for row, (ids, valid) in enumerate(zip(prefix.features, prefix.valid, strict=True)):
            first = model.tok_embeddings(state.now.tokens[row % 2, :1])
            ahead = torch.cat([model.cls_embedding(ids[valid][1:]), first])[None]
            n = ahead.shape[1]
            x = net.fuse(ahead, hidden[row, valid][None])
            last.append(net(x, model.rope[None, :n, None], "causal")[:, -1])
        want = guide(model.output(torch.cat(last)), GUIDANCE)
    assert torch.allclose(got, want, atol=1e-4)


def test_images_are_pictures_of_the_grid(anole, greedy):
    images = anole.images(greedy)
    assert [(i.size, i.mode) for i in images] == [((2 * GRID, 2 * GRID), "RGB")] * 2


def test_a_caption_that_leaves_no_room_for_the_image_is_refused(anole):
    with pytest.raises(UserError, match="room for 103"):
        anole.prefix(["word " * 200], GUIDANCE)


def test_random_weights_decode_without_any_file(anole):
    made = random_chameleon(vars(IMAGES), GUIDANCE, VQ, "anole-small")
    assert made.options["static"] == "naive_extend_57"
    ar, drafted = decoded(made, "ar", CAPTIONS[:1]), decoded(made, "eagle-1", CAPTIONS[:1])
    assert torch.equal(ar[0].tokens, drafted[0].tokens)
    one, two = (WordIds(65536, {})([c])[0] for c in CAPTIONS)
    assert one[0, 0] > 61440
    assert not torch.equal(one[0], two[0, :3])


def test_the_catalogue_knows_the_shape_licence_and_files_of_anole(tmp_path):
    row = entry("anole-7b")
    cfg = ChameleonConfig(**row.shape)
    assert (cfg.dim, cfg.n_layer, cfg.grid, cfg.vocab_size, row.guidance) == (
        4096,
        32,
        (32, 32),
        8192,
        3.0,
    )
    assert row.licence.startswith("Chameleon Research License")
    assert row.gate.startswith("none")
    with pytest.raises(UserError, match="'anole-7b' lacks its model"):
        load_target(f"anole-7b={tmp_path}")


# ---- files ----

LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
WORDS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    *(f"IMGIMG{str(c).translate(LETTERS)}Z" for c in range(CODES)),
]
WORDS += ["<eoss>", "<racm3:break>", "<reserved08706>", "a", "red", "circle", "<"]
SHAPE = {"grid": 4, "vocab_size": CODES, "prompt_ids": len(WORDS)}
PUBLISHED = {
    "model_type": "chameleon",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": len(WORDS),
    "vq_config": {
        "ch": 32,
        "ch_mult": [1, 2],
        "num_res_blocks": 1,
        "z_channels": 16,
        "n_embed": CODES,
        "embed_dim": 8,
    },
}


def halves(state: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """LANTERN's and transformers' key names; queries and keys rotate halves instead of pairs."""
    found = to_published(state)
    for key, value in found.items():
        if any(part in key for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
            rows = value.reshape(-1, *value.shape[1:]) if "proj" in key else value.flatten()
            moved = rows.unflatten(0, (-1, width // 2, 2)).transpose(1, 2).flatten(0, 2)
            found[key] = moved.reshape(value.shape).contiguous()
    return found


def official(state: dict[str, Tensor], last: int) -> dict[str, Tensor]:
    """The tokeniser's weights under the official names: the finest level of the decoder first."""
    found = {}
    for key, value in state.items():
        key = re.sub(
            r"^decoder\.conv_blocks\.(\d+)", lambda m: f"decoder.up.{last - int(m[1])}", key
        )
        key = re.sub(r"^encoder\.conv_blocks", "encoder.down", key)
        key = re.sub(r"((?:up|down)\.\d+)\.res\.", r"\1.block.", key)
        for ours, theirs in (
            ("mid.0.", "mid.block_1."),
            ("mid.1.", "mid.attn_1."),
            ("mid.2.", "mid.block_2."),
        ):
            key = key.replace(ours, theirs)
        found[key] = value
    return found


@pytest.fixture
def files(written, tmp_path) -> tuple[Path, Chameleon, Any, Any]:
    """A folder as ``fetch`` leaves it, and what is in it: decoder, tokeniser, drafter."""
    folder, *held = written
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path, *held


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, Chameleon, Any, Any]:
    """What ``files`` copies, made once."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tmp_path = tmp_path_factory.mktemp("files")
    for role in ("model", "eagle"):
        (tmp_path / role).mkdir()
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "model" / "config.json").write_text(json.dumps(PUBLISHED))
    net = scrambled(Chameleon(replace(ALL_IDS, vocab_size=len(WORDS))), 4)
    vq, drafter = (
        scrambled(VQModel(VQ, comparison="distance"), 5),
        scrambled(Eagle(IMAGES.decoder), 6),
    )
    top = {"tok_embeddings.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
    state = {top[k]: v for k, v in net.state_dict().items() if k in top}
    layers = halves({k: v for k, v in net.state_dict().items() if k not in top}, 16)
    state |= {f"model.{k}": v for k, v in layers.items()}
    state |= {f"model.vqmodel.{k}": v for k, v in official(vq.state_dict(), 1).items()}
    save_file(state, tmp_path / "model" / "model.safetensors")
    torch.save(halves(drafter.state_dict(), 16), tmp_path / "eagle" / "pytorch_model.bin")
    return tmp_path, net, vq, drafter


def equal(net: Any, state: dict[str, Tensor]) -> bool:
    return net.state_dict().keys() == state.keys() and all(
        torch.equal(v, state[k]) for k, v in net.state_dict().items()
    )


def load(folder: Path) -> Target:
    return ChameleonFamily().load(small_row(SHAPE, GUIDANCE), folder, "cpu")


def test_published_files_give_decoder_tokeniser_drafter_and_prompts(files):
    folder, net, vq, drafter = files
    made = load(folder)
    to_id = ChameleonFamily().at(small_row(SHAPE), folder, "cpu").image_ids
    assert equal(made.model, image_tables(net.state_dict(), to_id))
    assert equal(made.vq, vq.state_dict())
    assert equal(made.drafters["eagle"], drafter.state_dict())
    assert made.drafters["eagle"].config.norm_eps == made.model.config.norm_eps
    prefix = made.prefix(["a red circle", "circle"], GUIDANCE)
    frame = [WORDS.index(w) for w in ("<s>", "<reserved08706>", "<racm3:break>")]
    a, red, circle = (WORDS.index(w) for w in ("a", "red", "circle"))
    ids = [[frame[0], *words, *frame[1:]] for words in ([a, red, circle], [circle])]
    assert prefix.features[:2].tolist() == [ids[0], [1, 1, *ids[1]]]
    assert prefix.features[2:].tolist() == [[1, 1, 1, 1, frame[0], frame[2]]] * 2
    assert len(decoded(made, "eagle-1", ["a red circle"])[0].tokens) == 16


def test_no_caption_writes_a_special_or_an_image_token(files):
    text = ChameleonFamily().at(small_row(SHAPE), files[0], "cpu").text
    ids, mask = text(["a <racm3:break> IMGIMGBZ < </s> circle", ""])
    assert ids.tolist() == [[WORDS.index(w) for w in ("a", "<", "circle")], [0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_the_official_tokeniser_serves_where_the_checkpoint_has_no_decoder(files):
    folder, _, vq, _ = files
    (folder / "eagle" / "pytorch_model.bin").unlink()
    state = {
        k: v.clone() for k, v in read_state(folder / "model").items() if "vqmodel.decoder" not in k
    }
    save_file(state, folder / "model" / "model.safetensors")
    with pytest.raises(UserError, match=r"no image decoder: put Meta's vqgan\.ckpt into"):
        load(folder)
    (folder / "vq").mkdir()
    torch.save({"state_dict": official(vq.state_dict(), 1)}, folder / "vq" / "vqgan.ckpt")
    made = load(folder)
    assert equal(made.vq, vq.state_dict())
    assert not made.drafters


def test_files_that_do_not_belong_together_are_refused(files):
    folder = files[0] / "model"
    tokeniser = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(re.sub(r'("IMGIMGBFZ":\s*)19', r"\g<1>99", tokeniser))
    with pytest.raises(UserError, match="up to id 99"):
        load(files[0])
    (folder / "tokenizer.json").write_text(tokeniser)
    (folder / "config.json").write_text(json.dumps(PUBLISHED | {"hidden_size": 64}))
    with pytest.raises(UserError, match="another size"):
        load(files[0])
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match="no JSON object"):
        load(files[0])
