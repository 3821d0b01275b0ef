"""A drafter of the user's choice: a smaller target, or an EAGLE drafter from a file of theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from lanternbench.engine import decode as engine
from lanternbench.errors import UserError
from lanternbench.experiment import config as settings
from lanternbench.experiment import runner as sweep
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.models import catalogue, entries
from lanternbench.models.catalogue import with_drafter
from lanternbench.models.drafters.eagle import new_eagle, to_file
from lanternbench.models.entries import Entry
from lanternbench.models.llamagen import checkpoint as llamagen
from lanternbench.models.llamagen.checkpoint import LlamaGen, LlamaGenConfig
from lanternbench.models.target import Target
from lanternbench.models.tiny import checkpoint as tiny
from lanternbench.models.vq import VQConfig, VQModel
from lanternbench.settings import Sampling

CAPTION = "a large red star on the left on a noisy blue background"
SHAPE = {"dim": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "grid": 4, "model_type": "c2i"}


def decoded(
    target: Target, name: str, caption: str = CAPTION, temperature: float = 0.0
) -> engine.Generation:
    return engine.generate(
        build(target, method(name), Sampling(temperature=temperature)), [caption]
    )[0]


def random_llamagen(seed: int, **changes: object) -> LlamaGen:
    torch.manual_seed(seed)
    net = LlamaGen(LlamaGenConfig(**SHAPE | changes)).eval().requires_grad_(False)  # type: ignore[arg-type]
    for p in net.parameters():
        p.copy_(torch.randn_like(p) * 0.3)
    return net


@pytest.fixture
def classes() -> Target:
    """A class-conditional target, small, without a drafter."""
    vq = VQModel(
        VQConfig(32, (1, 2), 1, z_channels=16, codebook_size=64, codebook_dim=8, attention=False)
    )
    labels = lambda captions: llamagen.class_labels(captions, "cpu")  # noqa: E731
    return Target(
        "classes",
        random_llamagen(0, n_layer=2),
        vq,
        labels,
        sampling=Sampling(guidance=4.0),
        eagle_pads="uniform",
    )


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A catalogue with one small model more, whose official file is here."""
    row = Entry(name="small-c2i", family="llamagen", about="small", shape=SHAPE)
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    rows = catalogue.catalogue() | {"small-c2i": row}
    for module in (catalogue, entries):
        monkeypatch.setattr(module, "catalogue", lambda: rows)
    (row.folder / "model").mkdir(parents=True)
    torch.save(
        {"model": llamagen.to_official(random_llamagen(1).state_dict())},
        row.folder / "model" / "small.pt",
    )
    return row


@pytest.mark.slow
def test_a_target_that_drafts_for_itself_is_always_accepted(target):
    made, kind = with_drafter(target, "tiny")
    drafted = decoded(made, "sd")
    assert kind == "model"
    assert set(drafted.accept_lengths[:-1]) == {4}  # a chain of three and the bonus token
    assert torch.equal(drafted.tokens, decoded(target, "ar").tokens)


def test_a_smaller_target_drafts_by_name_and_from_a_folder(classes, known):
    want = decoded(classes, "ar", "7")
    for spec in ("small-c2i", f"small-c2i={known.folder}"):
        made, kind = with_drafter(classes, spec)
        assert kind == "model"
        assert torch.equal(
            made.drafters["model"].tok_embeddings.weight, random_llamagen(1).tok_embeddings.weight
        )
        assert torch.equal(decoded(made, "sd", "7").tokens, want.tokens)
    assert not classes.drafters


def test_an_eagle_drafter_is_read_from_a_file_or_folder(shallow_8x8, tmp_path):
    own = decoded(shallow_8x8, "eagle-1", temperature=1.0)
    save_file(
        {k: v.float() for k, v in tiny.read(tiny.WEIGHTS / "eagle.safetensors")[0].items()},
        tmp_path / "a.safetensors",
    )
    bare = replace(shallow_8x8, drafters={})
    for path in (tmp_path, tmp_path / "a.safetensors"):
        made, kind = with_drafter(bare, str(path))
        drafted = decoded(made, "eagle-1", temperature=1.0)
        assert kind == "eagle"
        assert torch.equal(drafted.tokens, own.tokens)
        assert drafted.accept_lengths == own.accept_lengths


def test_a_drafter_has_the_dtype_of_its_target(classes, known, tmp_path):
    halved = replace(classes, model=classes.model.bfloat16())
    save_file(to_file(new_eagle(classes.model), classes.model), tmp_path / "a.safetensors")
    for spec, given in (
        ("small-c2i", False),
        ("small-c2i", True),
        (str(tmp_path / "a.safetensors"), False),
    ):
        made, kind = with_drafter(halved, spec, random_weights=given)
        assert {p.dtype for p in made.drafters[kind].parameters()} == {torch.bfloat16}
        assert len(decoded(made, "sd" if kind == "model" else "eagle-1", "7").tokens) == 16
    made, _ = with_drafter(tiny.load(dtype=torch.bfloat16), "tiny")
    assert made.drafters["model"].output.weight.dtype == torch.bfloat16


def test_a_drafter_for_llamagen_expects_pads_as_lantern_has_them(classes, target, tmp_path):
    save_file(to_file(new_eagle(classes.model), classes.model), tmp_path / "a.safetensors")
    assert with_drafter(classes, str(tmp_path))[0].pad_rows == "uniform"
    assert target.pad_rows == "alone"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vocab_size": 32}, "it has 32 image tokens to choose from, the target 64"),
        ({"grid": 5}, "it has 5×5 image tokens, the target 4×4"),
        ({"model_type": "t2i"}, "it has t2i as conditioning, the target c2i"),
    ],
)
def test_a_smaller_model_of_another_kind_is_refused(classes, changes, reason):
    made = replace(classes, drafters={"model": random_llamagen(1, **changes)})
    with pytest.raises(UserError, match=f"does not fit target 'classes': {reason}"):
        build(made, method("sd"))


def test_what_is_no_drafter_is_refused(classes, target, known, tmp_path):
    with pytest.raises(UserError, match="unknown drafter 'nope'"):
        with_drafter(target, "nope")
    with pytest.raises(UserError, match=r"holds no EAGLE drafter: it has no 'fc\.weight'"):
        with_drafter(target, str(known.folder / "model"))
    with pytest.raises(UserError, match=r"another size|no EAGLE drafter of this target"):
        with_drafter(classes, str(tiny.WEIGHTS / "eagle.safetensors"))
    with pytest.raises(UserError, match="empty, given for drafter 'small-c2i', does not exist"):
        with_drafter(target, f"small-c2i={tmp_path / 'empty'}")
    with pytest.raises(UserError, match="'small-c2i' lacks its model"):
        with_drafter(target, f"small-c2i={tmp_path}")
    config = settings.sweep({"methods": ["eagle-1"], "drafter": "tiny", "num_prompts": 1})
    with pytest.raises(
        UserError, match="'tiny' is a drafter of kind 'model', which no method of this run uses"
    ):
        sweep.run(config, tmp_path)


def test_the_drafter_counts_in_the_fingerprint_and_nothing_changes_without_one():
    plain, drafted = (
        settings.sweep({"methods": ["sd"], "drafter": d}).record() for d in (None, "tiny")
    )
    assert drafted == plain | {"drafter": "tiny"}
    assert "drafter" not in plain
