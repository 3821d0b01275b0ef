"""Lumina-mGPT 2.0: its published files become a target whose prompts, laws and images are those of
the published code.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import small_row
from golden_checks.common import Vectors, read
from safetensors.torch import save_file

from lanternbench import settings
from lanternbench.engine.cache import raster
from lanternbench.engine.decode import generate
from lanternbench.engine.opening import teacher_forced
from lanternbench.engine.sampling import Warp
from lanternbench.errors import UserError
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue
from lanternbench.models.drafters.eagle import new_eagle
from lanternbench.models.entries import Entry, entry
from lanternbench.models.loading import random_net
from lanternbench.models.lumina2.checkpoint import VQ, Lumina2Checkpoint, Lumina2Family
from lanternbench.models.packing import packed
from lanternbench.models.places import NO_FILES
from lanternbench.models.target import Target
from lanternbench.settings import Sampling

CAPTIONS = ["a red cat", "a blue house my darling dog"]
SMALL_VQ = {"base_channels": 32, "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1}
SMALL_VQ |= {"hidden_size": 32, "codebook_size": 24}
FRAME = 3  # start, height and width


@pytest.fixture(scope="module")
def vectors(shared) -> Vectors:
    return read(shared / "golden" / "lumina2_lm.safetensors")


@pytest.fixture(scope="module")
def prompts(shared) -> Any:
    return json.loads((shared / "golden" / "lumina2_prompt.json").read_text())


def small(vectors: Vectors, dialect: str = "") -> Any:
    """A row of the recorded model's sizes."""
    names = vectors.meta["vocabulary"]
    shape = {"grid": vectors.meta["latent"], "vocab_size": names["codes"], "vq": SMALL_VQ}
    shape |= {"first_image_id": names["image"][0], "dialect": dialect}
    return small_row(shape, 4.0, 12)


def without_files(row: Entry) -> Lumina2Checkpoint:
    return Lumina2Checkpoint(row, NO_FILES, "cpu", torch.float32)


def write(folder: Path, vectors: Vectors) -> Path:
    """Write the recorded weights, a tokeniser of words, and a small image decoder."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    here = folder / "model"
    here.mkdir()
    save_file(vectors.under("sd."), here / "model.safetensors")
    config = vectors.meta["config"] | {"model_type": "chameleon"}
    (here / "config.json").write_text(json.dumps(config))
    words = vectors.meta["vocabulary"]["names"]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="spare"))
    split = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.WhitespaceSplit()])
    added = [word for word in words if word.startswith("<")]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in added])
    tokenizer.save(str(here / "tokenizer.json"))
    ends = {"bos_token": None, "eos_token": {"content": "<|endoftext|>"}}
    (here / "tokenizer_config.json").write_text(json.dumps(ends))
    (folder / "vq").mkdir()
    checkpoint = without_files(small(vectors))
    vq = random_net(checkpoint.new_vq, "cpu", torch.float32)
    torch.save(vq.state_dict(), folder / "vq" / "movqgan_270M.ckpt")
    return folder


@pytest.fixture(scope="module")
def folder(vectors, tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("lumina2"), vectors)


@pytest.fixture(scope="module")
def loaded(vectors, folder) -> Target:
    return Lumina2Family().load(small(vectors), folder, "cpu")


@pytest.fixture(scope="module")
def target(loaded) -> Target:
    """The same, packed, with an EAGLE drafter."""
    torch.manual_seed(1)
    eagle = new_eagle(loaded.model).eval().requires_grad_(False)
    return packed(replace(loaded, drafters={"eagle": eagle}))


def rows(target: Target) -> list[list[int]]:
    """The ids of the conditional and the unconditional prompt."""
    prefix = target.prefix(["a red cat"], 4.0)
    return [ids[seen].tolist() for ids, seen in zip(prefix.features, prefix.valid, strict=True)]


def test_prompts_are_the_published_ones(loaded, prompts):
    names = prompts["vocabulary"]
    size = names["size0"]
    frame = [names["start"], size + 1, size + 2]  # the height first
    want = prompts["prompt"]
    assert rows(loaded) == [want["ids"] + frame, frame]
    assert want["training_item"]["unconditional_form"][:FRAME] == frame
    assert loaded.row_end == names["row_end"]
    assert loaded.prompt_template == prompts["released"]["template"].format(
        width=64, height=32, prompt="{caption}"
    )


def test_the_variant_has_the_unconditional_prompt_of_the_published_jacobi_decoding(
    vectors, folder, prompts
):
    variant = Lumina2Family().load(small(vectors, "jacobi"), folder, "cpu")
    cond, uncond = rows(variant)
    assert uncond == [prompts["vocabulary"]["turn_end"], *cond[-FRAME:]]


def test_the_variant_finds_the_files_that_fetch_brought_for_the_target(
    vectors, tmp_path, monkeypatch
):
    monkeypatch.setattr("lanternbench.models.entries.cache_dir", lambda: tmp_path)
    variant = entry("lumina-mgpt-2-jacobi")
    assert variant.absent(variant.folder) == ["model", "vq"]
    fetched = entry("lumina-mgpt-2").folder
    fetched.mkdir(parents=True)
    write(fetched, vectors)
    assert variant.absent(variant.folder) == []
    variant.folder.mkdir()
    assert variant.absent(variant.folder) == []
    assert variant.locate(variant.folder).get("vq").samefile(fetched / "vq")


def test_the_law_of_every_token_is_the_recorded_one(loaded, vectors):
    run = vectors.meta["sequential"]["plain"]
    want = vectors.under("seq.plain.")
    first, last = vectors.meta["vocabulary"]["image"]
    drawn = want["tokens"][run["prompt_len"] :]
    is_code = (drawn >= first) & (drawn <= last)
    tokens = (drawn[is_code] - first)[None]
    warp = Warp(Sampling(top_k=run["image_top_k"], temperature=run["temperature"]))
    prefix = loaded.prefix(["a red cat"], run["guidance"])
    found = teacher_forced(loaded, prefix, tokens, run["guidance"], warp)[0]
    assert (found - want["probs"][is_code][:, first : last + 1]).abs().max() < 1e-4


def test_row_ends_stand_where_the_published_rules_force_them(prompts):
    grids = prompts["rules"]["grids"]
    for grid in grids:
        height, width = grid["latent"]
        if min(height, width) < 2:
            continue
        rule = grid["sequential"][FRAME:]
        layout = raster(height * width, width, 0, 0, 999, torch.device("cpu"))
        drawn = [place for place, kind in enumerate(rule) if kind == "i"]
        assert list(layout.slots[1 : height * width + 1]) == drawn
    assert len(grids) > 3


def test_the_recommended_guidance_is_constant_in_the_published_schedule(prompts):
    runs = prompts["guidance"]
    scale = entry("lumina-mgpt-2").guidance
    constant = [run["after_k_ids"] for run in runs if run["guidance"] == scale]
    assert constant
    assert {value for values in constant for value in values} == {scale}


def test_images_are_decoded_from_the_codes_that_the_published_ids_mean(prompts):
    real = prompts["real_ids"]
    checkpoint = without_files(entry("lumina-mgpt-2"))
    ids = checkpoint.named_image_ids().tolist()
    assert [ids[0], ids[-1], len(ids)] == real["allowed_inside_an_image"]
    assert checkpoint.config.prompt_ids == real["vocab_size"]
    case = next(case for case in real["decode_ids"] if case["name"] == "whole")
    codes = [ids.index(number) for number in case["tokens"] if number in ids]
    assert codes == case["decoder_calls"][0]["codes"]


GREEDY = [
    *((name, {}) for name in ("scd", "eagle-1", "cool-sd")),
    ("zipar", {"window": 99}),
    ("pjd", {"c": 99}),
]
METHODS = [*GREEDY[:3], ("zipar", {"window": 2}), ("pjd", {"c": 2, "window": 3})]


@pytest.mark.parametrize(("name", "options"), GREEDY)
def test_every_method_draws_what_ar_draws_at_temperature_0(target, name, options):
    found, want = (
        generate(build(target, method(kind, **chosen), settings.GREEDY), CAPTIONS)
        for kind, chosen in ((name, options), ("ar", {}))
    )
    for made, plain in zip(found, want, strict=True):
        assert torch.equal(made.tokens, plain.tokens)
    assert len(want[0].tokens.unique()) > 4


@pytest.mark.parametrize(("name", "options"), [("ar", {}), *METHODS])
def test_a_batch_draws_what_single_prompts_draw(target, name, options):
    decoder = build(target, method(name, **options))
    together = generate(decoder, CAPTIONS, trace=True)
    for made, caption in zip(together, CAPTIONS, strict=True):
        (alone,) = generate(decoder, [caption], trace=True)
        assert torch.equal(made.tokens, alone.tokens)
        assert made.accept_lengths == alone.accept_lengths
    assert not torch.equal(*(made.tokens for made in together))


def test_random_weights_decode_with_row_ends_and_have_images():
    shape = {"dim": 32, "n_layer": 2, "n_head": 2, "hidden": 48, "grid": [4, 8]}
    shape |= {"vocab_size": 24, "prompt_ids": 8192, "first_image_id": 100, "vq": SMALL_VQ}
    made = Lumina2Family().random_target(small_row(shape, 4.0, 12), "cpu")
    for name in ("ar", "scd", "eagle-1", "cool-sd", "zipar", "pjd"):
        (image,) = generate(build(made, method(name)), ["a red cat"])
        assert len(image.tokens) == 32
    assert made.images(image.tokens[None])[0].size == (64, 32)
    assert made.image_slots == 36


def test_an_image_has_eight_pixels_a_token(loaded):
    height, width = loaded.grid
    tokens = torch.arange(height * width)[None] % loaded.vocab
    assert loaded.images(tokens)[0].size == (8 * width, 8 * height)


def test_no_caption_writes_a_token_that_was_added(loaded):
    cunning = "a <|image|> red <MOVQGAN3> cat <reserved08799>"
    assert loaded.text.encode(cunning) == loaded.text.encode("a red cat")


def test_norms_of_queries_and_keys_may_have_a_row_for_every_head(vectors, folder, tmp_path):
    wide = dict(vectors.tensors)
    heads = vectors.meta["config"]["num_attention_heads"]
    for name, value in vectors.tensors.items():
        if "q_norm" in name or "k_norm" in name:
            wide[name] = value.repeat(heads, 1)
    write(tmp_path, Vectors(wide, vectors.meta))
    row = small(vectors)
    state = Lumina2Family().decoder(row, folder, "cpu").state_dict()
    for name, value in Lumina2Family().decoder(row, tmp_path, "cpu").state_dict().items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("tokenizer_config.json", {}, "names no bos_token and no eos_token"),
        ("tokenizer_config.json", None, "tokenizer_config.json"),
        ("config.json", {"model_type": "llama"}, r"not Lumina-mGPT 2\.0"),
    ],
)
def test_what_is_missing_is_named(vectors, tmp_path, name, change, says):
    path = write(tmp_path, vectors) / "model" / name
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps(change))
    with pytest.raises(UserError, match=says):
        Lumina2Family().load(small(vectors), tmp_path, "cpu")


def test_a_tokeniser_that_numbers_image_tokens_otherwise_is_refused(vectors, folder):
    row = small(vectors)
    shape = row.shape | {"first_image_id": 39}
    with pytest.raises(UserError, match=r"gives 24 image tokens other ids than Lumina-mGPT 2\.0"):
        Lumina2Family().load(row.model_copy(update={"shape": shape}), folder, "cpu")


def test_a_size_that_has_no_token_is_refused(vectors, folder):
    row = small(vectors)
    with pytest.raises(UserError, match="multiple of 32"):
        Lumina2Family().load(
            row.model_copy(update={"shape": row.shape | {"grid": [4, 6]}}), folder, "cpu"
        )
    with pytest.raises(UserError, match="no token <reserved08816>"):
        Lumina2Family().load(
            row.model_copy(update={"shape": row.shape | {"grid": [4, 64]}}), folder, "cpu"
        )


def test_the_catalogue_has_the_published_sizes_and_defaults(shared):
    facts = json.loads((shared / "golden" / "lumina2_facts.json").read_text())
    sampling = facts["sampling"]
    row = entry("lumina-mgpt-2")
    assert row.guidance == sampling["guidance"]["value"]
    assert row.top_k == sampling["image_top_k"]["value"]
    assert row.temperature == sampling["temperature"]["value"]
    checkpoint = without_files(row)
    config = checkpoint.config
    published = {name: fact["value"] for name, fact in facts["decoder"].items()}
    assert config.positions == published["max_position_embeddings"]
    described = checkpoint.described(published | {"model_type": "chameleon"})
    for name in ("dim", "n_layer", "head_dim", "kv_heads", "hidden", "prompt_ids", "norm_eps"):
        assert getattr(described, name) == getattr(config, name), name
    vq = facts["movqgan"]["config"]["value"]
    assert VQ["base_channels"] == vq["ch"]
    assert VQ["channel_multiplier"] == vq["ch_mult"]
    assert VQ["codebook_size"] == vq["n_embed"] == config.vocab_size
    for grid in row.grids:
        assert catalogue.resized(row, f"grid={grid}", random_weights=False).shape["grid"]
        without_files(row.model_copy(update={"shape": {"grid": grid}})).frame()
