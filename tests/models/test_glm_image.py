"""GLM-Image: two grids and three-dimensional positions, token for token as transformers' class
draws them.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import slow_but
from fake_cuda_graph import frozen
from families import small_row
from safetensors.torch import save_file
from torch import Tensor

from lanternbench.engine.decode import generate
from lanternbench.engine.opening import row_seed, row_uniforms
from lanternbench.engine.sampling import Warp, draw
from lanternbench.errors import UserError
from lanternbench.experiment.worker import trace_fields
from lanternbench.measure.fidelity import row_losses
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue
from lanternbench.models.drafters.eagle import new_eagle, to_file
from lanternbench.models.entries import entry
from lanternbench.models.family import drafter_at
from lanternbench.models.glm_image import checkpoint
from lanternbench.models.glm_image.checkpoint import GlmImageFamily, positions
from lanternbench.models.grids import coarse, grid_of, neighbours, place
from lanternbench.models.packing import packed
from lanternbench.models.target import Target
from lanternbench.settings import Sampling, Sweep, checked
from lanternbench.utils.graph_capture import Graphs

CODES, HEAD = 40, 48  # image tokens, and outputs of transformers' head
FINE, COARSE = (6, 4), (19, 13)
START, END = 44, 45
WORDS = re.findall(r"\S+", "<|user|> <sop> <eop> a red blue ring cat 4 6 13 19 , <unk>")
VOCAB = {f"<|dit_token_{i}|>": i for i in range(HEAD)} | {w: HEAD + i for i, w in enumerate(WORDS)}
SPECIAL = ["<|user|>", "<sop>", "<eop>", f"<|dit_token_{START}|>", f"<|dit_token_{END}|>"]
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|> {{ m.content[0].text | trim }}{% endfor %}"
CAPTIONS = ["a red ring", "a blue ring , a red cat"]
PREVIEW = COARSE[0] * COARSE[1]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Random weights so large that every token depends on what was drawn before it."""
    from transformers import GlmImageConfig, GlmImageForConditionalGeneration

    torch.manual_seed(0)
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 2, 1],
    }
    text = {"vocab_size": len(VOCAB), "vision_vocab_size": HEAD, "hidden_size": 64, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": rope,
            "max_position_embeddings": 2048, "pad_token_id": 0, "eos_token_id": END}  # fmt: skip
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "image_size": 64,
    }
    images = {"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 16}
    config = GlmImageConfig(
        text_config=text, vision_config=vision, vq_config=images, image_start_token_id=START, image_end_token_id=END,
        image_token_id=HEAD + 1,
    )  # fmt: skip
    net = GlmImageForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    net.requires_grad_(False)
    for name, p in net.named_parameters():
        scale = 0.02 if "visual" in name else 2.0 if "embed_tokens" in name else 0.3
        p.copy_(torch.randn_like(p) * scale + ("norm" in name))
    return net


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory) -> Path:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    root: Path = tmp_path_factory.mktemp("glm-image")
    weights, words = root / "model" / "vision_language_encoder", root / "model" / "processor"
    for here in (weights, words):
        here.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel(VOCAB, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in SPECIAL])
    tokenizer.save(str(words / "tokenizer.json"))
    (words / "chat_template.jinja").write_text(TEMPLATE)
    save_file(
        {k: v.clone() for k, v in theirs.state_dict().items()}, weights / "model.safetensors"
    )
    (weights / "config.json").write_text(json.dumps(theirs.config.to_dict()))
    return root


@pytest.fixture(scope="module")
def loaded(folder) -> Target:
    return GlmImageFamily().load(row(), folder, "cpu")


@pytest.fixture(scope="module")
def target(folder) -> Target:
    """The same, packed, with an EAGLE drafter."""
    made = GlmImageFamily().load(row(), folder, "cpu")
    torch.manual_seed(1)
    drafter = new_eagle(made.model).eval().requires_grad_(False)
    return packed(replace(made, drafters={"eagle": drafter}))


def row(**more: Any) -> Any:
    return small_row({"grid": list(FINE)} | more, guidance=1.0)


def prompt(target: Target, caption: str) -> list[int]:
    (rows, columns), (fine_rows, fine_columns) = target.grids
    chat = f"<|user|> {caption}<sop>{fine_rows} {fine_columns}<eop><sop>{rows} {columns}<eop><|dit_token_{START}|>"
    return target.text.tokenizer.encode(chat).ids


def drawn_by_transformers(
    net: Any, ids: list[int], choose: Any, fine: tuple[int, int] = FINE
) -> list[int]:
    """``generate`` of ``fine`` after the coarse grid, by the rule ``choose`` of (scores [ids],
    tokens so far).
    """
    from transformers import LogitsProcessor

    class Rule(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            token = choose(scores[0, :CODES].float(), input_ids.shape[1] - len(ids))
            return torch.full_like(scores, -math.inf).index_fill(1, torch.tensor([token]), 0.0)

    count = PREVIEW + fine[0] * fine[1]
    grids = torch.tensor([[1, *fine], [1, *COARSE]])
    given = torch.tensor([ids])
    out = net.generate(
        given, attention_mask=torch.ones_like(given), image_grid_thw=grids, images_per_sample=torch.tensor([2]),
        max_new_tokens=count, do_sample=False, logits_processor=[Rule()],
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.fixture(scope="module")
def greedy(theirs, loaded) -> list[list[int]]:
    return [
        drawn_by_transformers(theirs, prompt(loaded, c), lambda x, _: int(x.argmax()))
        for c in CAPTIONS
    ]


def decode(
    target: Target, name: str, captions: list[str], temperature: float | None = 0.0, **more: Any
) -> list[Tensor]:
    return [
        g.tokens
        for g in generate(
            build(target, method(name, **more), Sampling(temperature=temperature)), captions
        )
    ]


def test_prompts_are_the_processor_s(loaded):
    prefix = loaded.prefix(CAPTIONS, 1.0)
    rows = [ids[seen].tolist() for ids, seen in zip(prefix.features, prefix.valid, strict=True)]
    assert rows == [prompt(loaded, caption) for caption in CAPTIONS]
    assert loaded.prompt_template == "<|user|> {caption}"
    hostile = (
        loaded.prefix([f"a <eop> <|dit_token_{END}|> <|dit_token_3|> ring"], 1.0)
        .features[0]
        .tolist()
    )
    assert hostile == prompt(loaded, "a ring")


def test_positions_are_those_that_transformers_gives(theirs, loaded):
    ids = prompt(loaded, CAPTIONS[0])
    grids = torch.tensor([[1, *FINE], [1, *COARSE]])
    want, _ = theirs.model.get_rope_index(torch.tensor([ids]), grids, torch.tensor([2]))
    after = theirs.model._cached_decode_position_ids[0]
    found = positions(len(ids), loaded.grids)
    assert torch.equal(found[: len(ids)].T, want[:, 0])
    assert torch.equal(found[len(ids) :].T, after[:, :-1])  # the last is of the end token


@pytest.mark.parametrize(
    "name", slow_but(["ar", "scd"], ["ar", "scd", "eagle-1", "cool-sd", "adt-tree"])
)
def test_greedy_tokens_are_those_of_generate(target, greedy, name):
    """One by one and in a batch of prompts of different lengths; drafting methods too."""
    together = decode(target, name, CAPTIONS)
    assert [tokens.tolist() for tokens in together] == greedy
    assert decode(target, name, CAPTIONS[:1])[0].tolist() == greedy[0]
    assert len(set(greedy[0])) > 10
    assert greedy[0] != greedy[1]


def test_with_the_same_uniforms_tokens_are_those_drawn_from_transformers_logits(target, theirs):
    warp, caption = Warp(Sampling(temperature=0.9, top_k=0, top_p=0.75)), CAPTIONS[1]
    decoder = build(replace(target, sampling=Sampling(temperature=0.9, top_p=0.75)), method("ar"))
    assert decoder.warp == warp
    seed = row_seed(0, caption, decoder.method.key)
    made = generate(decoder, [caption])[0].tokens.tolist()
    size = decoder.proposer.size
    u = row_uniforms([seed], target.length, size.nodes + size.uniforms, target.device)[0, :, 0]

    def inverse_cdf(scores: Tensor, position: int) -> int:
        return int(draw(warp(scores)[None], u[position - 1][None]))

    assert made == drawn_by_transformers(theirs, prompt(target, caption), inverse_cdf)


@pytest.mark.parametrize("name", slow_but(["scd"], ["ar", "scd", "eagle-1", "cool-sd"]))
def test_a_batch_draws_what_single_prompts_draw(target, name):
    together = decode(target, name, CAPTIONS, 1.0)
    for caption, tokens in zip(CAPTIONS, together, strict=True):
        assert torch.equal(tokens, decode(target, name, [caption], 1.0)[0])


@pytest.mark.parametrize("name", slow_but(["ar"], ["ar", "scd", "eagle-1"]))
def test_recorded_steps_draw_the_same_with_prompts_of_any_length(target, name):
    """A recording's rotary table is that of the prompt at hand."""
    # the caches are one prompt's after the other's
    recorded = replace(target, graphs=Graphs(frozen))
    for caption in CAPTIONS:
        assert torch.equal(
            decode(recorded, name, [caption])[0], decode(target, name, [caption])[0]
        )


def test_no_id_that_is_not_an_image_token_is_drawn(target, loaded, theirs):
    """Transformers' head has 8 outputs more, which are likely here."""
    state = theirs.lm_head(torch.randn(64, 64)).argmax(-1)
    assert (state >= CODES).any()
    assert target.vocab == len(loaded.model.output.weight) == CODES
    assert int(torch.stack(decode(target, "ar", CAPTIONS, 1.0)).max()) < CODES


def test_the_published_size_has_a_coarse_grid_of_the_same_proportions():
    made = GlmImageFamily().random_target(
        catalogue.resized(entry("glm-image"), "layers=1,grid=36x24", True), "meta"
    )
    assert made.grids == ((19, 13), (36, 24))
    assert made.length == 19 * 13 + 36 * 24
    at = positions(7, made.grids)
    assert at[6:9].tolist() == [[6, 6, 6], [7, 7, 7], [7, 7, 8]]
    assert at[7 + 247 - 1].tolist() == [7, 25, 19]
    assert at[7 + 247].tolist() == [26, 26, 26]  # 7 + max(19, 13)
    assert at[-1].tolist() == [26, 26 + 35, 26 + 23]
    assert [coarse(g) for g in ((32, 32), (36, 32), (1, 900))] == [(16, 16), (16, 15), (1, 480)]


@pytest.mark.parametrize(
    "fine",
    [FINE, *map(grid_of, entry("glm-image").grids), grid_of(entry("glm-image").shape["grid"])],
)
def test_the_grids_are_those_that_the_processor_asks_for(fine):
    from transformers.models.glm_image.processing_glm_image import GlmImageProcessor

    of_pixels: Any = GlmImageProcessor._get_target_shape
    rows, columns = fine
    assert of_pixels(None, height=32 * rows, width=32 * columns) == (*fine, *coarse(fine))


@pytest.mark.slow
def test_a_36_x_24_image_after_19_x_13_tokens_is_generate_s_token_for_token(theirs, folder):
    """At a size that people run, 1152 × 768 pixels: one by one, in windows, with a drafter, in
    both orders.
    """
    large = GlmImageFamily().load(row(grid=[36, 24]), folder, "cpu")
    torch.manual_seed(1)
    drafter = new_eagle(large.model).eval().requires_grad_(False)
    large = packed(replace(large, drafters={"eagle": drafter}))
    assert (large.grids, large.length) == ((COARSE, (36, 24)), 1111)
    want = drawn_by_transformers(
        theirs, prompt(large, CAPTIONS[0]), lambda x, _: int(x.argmax()), (36, 24)
    )
    assert len(set(want)) > 10
    for name, options in {
        "ar": {},
        "scd": {},
        "eagle-1": {},
        "cool-sd": {},
        "zipar": {"window": 24},
    }.items():
        assert decode(large, name, CAPTIONS[:1], **options)[0].tolist() == want
    (made,) = generate(
        build(large, method("zipar", window=8), Sampling(temperature=1.0)), CAPTIONS[:1]
    )
    assert 1 + made.steps == PREVIEW + 2 * 24 + 34 * 8


def test_the_catalogue_s_defaults_are_the_published_ones_unless_given():
    row = entry("glm-image")
    published = Sampling(guidance=1.0, top_k=0, temperature=0.9, top_p=0.75)
    assert row.part(Sampling) == published
    unset = checked(Sweep, {"methods": ["ar"], "temperature": None})
    assert row.part(Sampling).updated(unset.part(Sampling)) == published
    assert unset.record(published)["temperature"] == 0.9
    given = checked(Sweep, {"methods": ["ar"], "temperature": 0.0, "top_p": 1.0})
    used = row.part(Sampling).updated(given.part(Sampling))
    assert (used.temperature, used.top_p, used.guidance) == (0.0, 1.0, 1.0)


def test_neighbours_are_looked_for_in_a_token_s_own_grid():
    grids = ((2, 3), (2, 2))
    rows, above = neighbours(grids, 12)
    assert rows == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert above == [-1, -1, -1, 0, 1, 2, -1, -1, 6, 7, 8, 9]
    assert [place(grids, n) for n in (0, 5, 6, 99)] == [(0, 3), (0, 3), (6, 2), (6, 2)]


@pytest.mark.parametrize("init", ["horizontal-sample", "vertical-sample", "vertical-repeat"])
def test_windows_that_look_at_neighbours_are_lossless_across_grids(target, greedy, init):
    assert decode(target, "sjd", CAPTIONS[:1], init=init)[0].tolist() == greedy[0]


@pytest.mark.parametrize("init", ["vertical", "token-flock"])
def test_adaptive_trees_that_look_at_neighbours_are_lossless_across_grids(target, greedy, init):
    assert decode(target, "adt-tree", CAPTIONS[:1], init=init)[0].tolist() == greedy[0]


def test_a_drafter_is_written_and_read_whole(target, tmp_path):
    """Biases, sandwich norms and the order of rotary pairs included."""
    net = new_eagle(target.model)
    for p in net.parameters():
        torch.nn.init.normal_(p)
    save_file(
        {k: v.contiguous() for k, v in to_file(net, target.model).items()},
        tmp_path / "eagle.safetensors",
    )
    assert "layers.0.post_mlp_layernorm.weight" in to_file(net, target.model)
    found = drafter_at(tmp_path / "eagle.safetensors", target.model, "cpu").state_dict()
    assert found.keys() == net.state_dict().keys()
    assert all(torch.equal(found[key], value) for key, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "glm4v"}, "describes a model of type 'glm4v', not GLM-Image"),
        (
            {"text_config": {"hidden_size": 64}},
            r"no config of GLM-Image \(it has no 'num_hidden_layers'\): use the official",
        ),
        ({"text_config": None}, "is no config of GLM-Image"),
        ({"rope": {"mrope_section": [8, 12, 12]}}, r"rotary sections \[8, 12, 12\] of 8"),
        ({"rope": {"rope_type": "yarn"}}, "asks for rope_scaling"),
    ],
)
def test_a_config_of_something_else_is_one_sentence(folder, tmp_path, change, says):
    shutil.copytree(folder / "model", tmp_path / "model")
    path = tmp_path / "model" / "vision_language_encoder" / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["rope_parameters"] |= change.pop("rope", {})
    path.write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=says) as error:
        GlmImageFamily().load(row(), tmp_path, "cpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "template", ["{{ messages[", "no caption", "{{ ''.__class__.__mro__ }}{{ 1 / 0 }}"]
)
def test_a_chat_template_that_cannot_be_used_is_one_sentence(folder, tmp_path, template):
    shutil.copytree(folder / "model", tmp_path / "model")
    (tmp_path / "model" / "processor" / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match=r"the chat template in .* cannot be used"):
        GlmImageFamily().load(row(), tmp_path, "cpu")


def test_without_a_template_a_prompt_is_the_caption_and_the_files_may_lie_in_one_folder(
    folder, tmp_path, greedy
):
    (tmp_path / "model").mkdir()
    for path in folder.rglob("*.*"):
        if path.is_file() and path.suffix != ".jinja":
            shutil.copy(path, tmp_path / "model")
    made = GlmImageFamily().load(row(), tmp_path, "cpu")
    assert made.prompt_template == "{caption}"
    assert made.prefix(["a ring"], 1.0).features[0].tolist() == prompt(made, "a ring")[1:]


def test_without_the_diffusion_model_there_are_tokens_and_a_sentence(loaded):
    assert (loaded.vq, loaded.evaluators) == (None, "none")
    assert loaded.images(torch.zeros(1, loaded.length, dtype=torch.long)) == [None]
    assert "lanternbench[glm-image]" in loaded.remark


@pytest.fixture(scope="module")
def drawing(folder, tmp_path_factory) -> Path:
    """The same folder with a small diffusion model of random weights, as the pipeline's own code
    saves it.
    """
    diffusers = pytest.importorskip("diffusers")
    from transformers import ByT5Tokenizer, T5Config, T5EncoderModel

    torch.manual_seed(2)
    text = T5EncoderModel(
        T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=384)
    )
    transformer = diffusers.GlmImageTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2, text_embed_dim=16,
        time_embed_dim=16, condition_dim=8, prior_vq_quantizer_codebook_size=CODES,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        block_out_channels=[8] * 4, layers_per_block=1, norm_num_groups=4, latent_channels=4,
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4, sample_size=64,
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    made = diffusers.GlmImagePipeline(
        ByT5Tokenizer(), None, text, None, vae, transformer, scheduler
    )
    root: Path = tmp_path_factory.mktemp("drawing")
    shutil.copytree(folder, root, dirs_exist_ok=True)
    made.save_pretrained(root / "diffusion")
    return root


def test_images_are_the_pipeline_s_for_the_tokens_of_the_fine_grid(drawing, monkeypatch):
    import diffusers

    monkeypatch.setattr(checkpoint, "STEPS", 2)
    made = GlmImageFamily().load(row(), drawing, "cpu")
    assert (made.evaluators, made.remark) == ("full", "")
    tokens = torch.randint(0, CODES, (2, made.length))
    images = made.images(tokens, CAPTIONS)
    assert [image.size for image in images] == [(32 * FINE[1], 32 * FINE[0])] * 2
    again = made.images(tokens[1:], CAPTIONS[1:])[0]
    assert images[1].tobytes() == again.tobytes() != images[0].tobytes()
    coarse_changed = tokens.clone()
    coarse_changed[:, :PREVIEW] = 0
    assert made.images(coarse_changed, CAPTIONS)[0].tobytes() == images[0].tobytes()
    pipeline = diffusers.GlmImagePipeline.from_pretrained(
        drawing / "diffusion", vision_language_encoder=None, processor=None
    )
    fine = tokens[:1, PREVIEW:].contiguous()
    noise = torch.Generator().manual_seed(zlib.crc32(fine.view(FINE).numpy().tobytes()))
    prior = pipeline._upsample_token_ids(fine, *FINE)
    want = pipeline(
        CAPTIONS[0], prior_token_ids=prior, height=32 * FINE[0], width=32 * FINE[1], num_inference_steps=2,
        guidance_scale=1.5, generator=noise,
    )  # fmt: skip
    assert want.images[0].tobytes() == images[0].tobytes()


def test_a_damaged_diffusion_model_is_one_sentence(drawing, tmp_path):
    shutil.copytree(drawing, tmp_path / "g")
    (tmp_path / "g" / "diffusion" / "vae" / "config.json").write_text("{")
    with pytest.raises(UserError, match="is no diffusion decoder of GLM-Image") as error:
        GlmImageFamily().load(row(), tmp_path / "g", "cpu")
    assert "\n" not in str(error.value)


ROWS = [
    ("zipar", {"window": 2}),
    ("zipar", {"window": "adaptive", "s_min": 1}),
    ("pjd", {"c": 2, "window": 3}),
]


@pytest.mark.parametrize(
    ("name", "options"), [("zipar", {"window": 99}), ("pjd", {"c": 99}), ("pjd", {"c": 4})]
)
def test_one_row_at_a_time_is_raster_order_over_both_grids(target, greedy, name, options):
    assert [tokens.tolist() for tokens in decode(target, name, CAPTIONS, **options)] == greedy


@pytest.mark.parametrize("s", [1, 2, 3])
def test_zipar_draws_the_coarse_grid_token_by_token_and_then_rows_of_the_fine_one(target, s):
    (made,) = generate(
        build(target, method("zipar", window=s), Sampling(temperature=1.0)), CAPTIONS[:1]
    )
    assert 1 + made.steps == PREVIEW + 2 * FINE[1] + (FINE[0] - 2) * s


@pytest.mark.parametrize(("name", "options"), slow_but(ROWS[1:2], ROWS))
def test_rows_lose_nothing_on_the_coarse_grid_and_draw_in_a_batch_what_they_draw_alone(
    target, name, options
):
    decoder = build(target, method(name, **options), Sampling(temperature=1.0))
    together = generate(decoder, CAPTIONS, trace=True)
    for caption, made in zip(CAPTIONS, together, strict=True):
        assert torch.equal(made.tokens, decode(target, name, [caption], 1.0, **options)[0])
    trace: Any = together[0].trace
    losses = row_losses(trace, decoder.rule, decoder.residual)
    for one, of_tokens in zip(
        trace_fields(decoder, together), losses[:, PREVIEW:].view(-1, *FINE), strict=True
    ):
        assert one["row_loss"] == pytest.approx(of_tokens.mean(1).tolist(), abs=1e-5)
        assert one["column_loss"] == pytest.approx(of_tokens.mean(0).tolist(), abs=1e-5)
    assert losses[:, : PREVIEW + 1].max() < 1e-4
    assert losses[:, PREVIEW + FINE[1] :].mean() > 0.01


@pytest.mark.parametrize(("name", "options"), slow_but(ROWS[:1], ROWS))
def test_recorded_steps_over_rows_of_the_fine_grid_draw_the_same(target, name, options):
    recorded = replace(target, graphs=Graphs(frozen))
    for caption in CAPTIONS:
        want, made = (decode(t, name, [caption], 1.0, **options)[0] for t in (target, recorded))
        assert torch.equal(made, want)


def test_the_grid_after_a_wide_one_begins_after_its_columns():
    """A grid of 1 × 3 behind two prompt positions; the next begins at 2 + 3."""
    found = positions(2, [(1, 3), (2, 1)]).tolist()
    assert found[:2] == [[0, 0, 0], [1, 1, 1]]
    assert found[2:5] == [[2, 2, 2], [2, 2, 3], [2, 2, 4]]
    assert found[5:] == [[5, 5, 5], [5, 6, 5]]
