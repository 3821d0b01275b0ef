"""A target's files are found where downloads, clones and people leave them, and nowhere else."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.models.catalogue import load_target, with_drafter
from lanternbench.models.entries import entry, lacking, role_fingerprints
from lanternbench.models.places import cached, locate
from lanternbench.models.state_files import read_state, state_files
from lanternbench.utils.damage import damage
from lanternbench.utils.quiet import quiet_transformers
from tools.small_targets import WORLDS, small_rows

XL = entry("llamagen-xl-stage1").files
ANOLE = entry("anole-7b").files


@pytest.fixture(autouse=True)
def homes(tmp_path, monkeypatch) -> Path:
    """Homes of this tool and of the hub's without any file."""
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "home"


def put(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_the_catalogue_s_file_of_several_is_taken(tmp_path):
    names = ("t2i_XL_stage1_256.pt", "t2i_XL_stage2_512.pt", "vq_ds16_t2i.pt", "own.pt")
    put(*(tmp_path / name for name in names))
    for name, file in (("llamagen-xl-stage1", names[0]), ("llamagen-xl-stage2", names[1])):
        found = locate(entry(name).files, tmp_path).paths
        assert found == {"model": tmp_path / file, "vq": tmp_path / names[2]}


def test_the_tree_of_lantern_s_code_is_known(tmp_path):
    root = tmp_path / "ckpts"
    put(
        root / "LlamaGen-T2I" / "model.safetensors",
        root / "LlamaGen-T2I-2" / "model.safetensors",
        root / "vq_ds16_t2i.pt",
        root / "t5" / "flan-t5-xl" / "model.safetensors",
        root / "trained_drafters" / "llamagen_drafter" / "pytorch_model.bin",
    )
    found = locate(XL, root).paths
    assert found == {
        "model": root / "LlamaGen-T2I",
        "vq": root / "vq_ds16_t2i.pt",
        "text": root / "t5" / "flan-t5-xl",
        "eagle": root / "trained_drafters" / "llamagen_drafter",
    }
    inside = locate(XL, root / "LlamaGen-T2I").paths
    assert inside["model"] == root / "LlamaGen-T2I"
    assert inside["vq"].samefile(root / "vq_ds16_t2i.pt")
    assert inside["text"].samefile(root / "t5" / "flan-t5-xl")


def test_lumina_s_links_to_the_image_tokeniser_are_followed(tmp_path):
    put(tmp_path / "model.safetensors", tmp_path.parent / "chameleon" / "vqgan.ckpt")
    (tmp_path / "vqgan").mkdir()
    (tmp_path / "vqgan" / "vqgan.ckpt").symlink_to(tmp_path.parent / "chameleon" / "vqgan.ckpt")
    found = locate(entry("lumina-mgpt-7b-768").files, tmp_path).paths
    assert found["vq"] == tmp_path / "vqgan"


def test_a_model_of_the_user_s_gets_the_published_tokenisers_but_no_published_drafter(
    tmp_path, homes
):
    here = tmp_path / "mine"
    put(here / "consolidated.pth")
    row = entry("anole-7b")
    put(row.folder / "vq" / "vqgan.ckpt", row.folder / "eagle" / "pytorch_model.bin")
    put(row.folder / "model" / "model.safetensors")
    assert row.locate(here).paths == {"model": here, "vq": row.folder / "vq"}
    assert row.locate(row.folder).paths["eagle"] == row.folder / "eagle"


def test_the_latest_snapshot_counts_where_no_branch_is_stored(tmp_path):
    snapshots = tmp_path / "hub" / "models--a--b" / "snapshots"
    for age, name in ((20, "old"), (10, "new")):
        put(snapshots / name / "config.json")
        os.utime(snapshots / name, (1e9 - age, 1e9 - age))
    assert cached("a/b") == snapshots / "new"
    put(tmp_path / "hub" / "models--a--b" / "refs" / "main")
    (tmp_path / "hub" / "models--a--b" / "refs" / "main").write_text("old")
    assert cached("a/b") == snapshots / "old"
    assert cached("a/c") is None


def test_targets_and_doctor_notice_links_that_lead_nowhere_and_missing_shards(tmp_path):
    row = entry("emu3-gen")
    snapshot = tmp_path / "hub" / "models--BAAI--Emu3-Gen-hf" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "model-00001-of-00002.safetensors").symlink_to("../../blobs/0")
    model = row.folder / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").symlink_to("gone")
    assert lacking(row) == "model (model.safetensors is a link to a file that does not exist)"
    listed = CliRunner().invoke(app, ["targets", "--json"], catch_exceptions=False).stdout
    states = {each["target"]: each["downloaded"] for each in json.loads(listed)}
    assert states["emu3-gen"] == f"lacks {lacking(row)}"
    page = CliRunner().invoke(app, ["targets", "emu3-gen", "--json"], catch_exceptions=False)
    assert "model.safetensors is a link to a file" in json.loads(page.stdout)["page"]["files"]
    (model / "model.safetensors").unlink()
    put(model / "model-00001-of-00002.safetensors")
    assert lacking(row) == "model (model-00002-of-00002.safetensors is absent)"
    with pytest.raises(UserError, match=r"model: model-00002-of-00002\.safetensors is absent"):
        load_target("emu3-gen")


def test_a_home_is_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "files" / "notes.txt")
    with pytest.raises(UserError, match=f"lacks its model in {tmp_path}/files"):
        load_target("anole-7b=~/files")
    with pytest.raises(UserError, match=f"{tmp_path}/files/notes.txt, .* is no file of weights"):
        load_target("anole-7b=~/files/notes.txt")
    with pytest.raises(UserError, match=f"{tmp_path}/away, given for target 'anole-7b', does not"):
        load_target("anole-7b=~/away")
    with pytest.raises(UserError, match=f"{tmp_path}/files/lanternbench.yaml is missing"):
        load_target("hf:~/files")


def test_a_path_that_does_not_exist_is_said_to_be_none(tmp_path):
    with pytest.raises(UserError, match="unknown target '/no/where', a path that does not exist"):
        load_target("/no/where")
    with pytest.raises(UserError, match=r"a folder with no target\.safetensors: name the target"):
        load_target(str(tmp_path))
    with pytest.raises(UserError, match="/no/where, given for the drafter, does not exist"):
        with_drafter(load_target("tiny"), "/no/where")


def test_a_folder_of_something_else_is_answered_with_the_tree_that_is_expected(tmp_path):
    put(tmp_path / "holiday.jpg", tmp_path / "notes" / "a.txt")
    with pytest.raises(UserError) as said:
        load_target(f"llamagen-xl-stage1={tmp_path}")
    first, *lines = str(said.value).splitlines()
    assert "which holds holiday.jpg, notes: `lanternbench fetch llamagen-xl-stage1`" in first
    tree = [line.strip() for line in lines if line.startswith("  ")]
    assert tree[0] == f"{tmp_path}/model/t2i_XL_stage1_256.pt"
    assert tree[2].startswith(f"{tmp_path}/text/{{config.json, spiece.model")
    assert len(tree) == len(XL)


# ---- files ----


def test_settings_of_training_libraries_are_read_as_nothing(tmp_path):
    import lanternbench.models.state_files as reader

    class Setting:
        """Pickled as a class of a training library that is not installed."""

    Setting.__module__, Setting.__qualname__ = "omegaconf.dictconfig", "DictConfig"
    Setting.__name__ = "DictConfig"
    import sys
    import types

    module = types.ModuleType("omegaconf.dictconfig")
    module.DictConfig = Setting
    sys.modules |= {"omegaconf": types.ModuleType("omegaconf"), module.__name__: module}
    try:
        setting = Setting()
        setting.lr = 0.1
        arguments = argparse.Namespace(config=setting)
        torch.save({"state_dict": {"a": torch.ones(2)}, "args": arguments}, tmp_path / "a.ckpt")
    finally:
        del sys.modules["omegaconf"], sys.modules["omegaconf.dictconfig"]
    assert read_state(tmp_path)["a"].tolist() == [1, 1]
    assert "omegaconf" not in sys.modules
    assert vars(reader.Inert()) == {}


def test_states_of_an_optimiser_are_no_weights(tmp_path):
    kept = "pytorch_model.bin"
    names = ("optimizer.bin", "scheduler.bin", "random_states_0.pt", "training_args.bin")
    for name in (kept, *names, "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save({"a": torch.ones(1)}, tmp_path / name)
    assert [file.name for file in state_files(tmp_path)] == [kept]


@pytest.mark.parametrize("start", [1, 0])
def test_shards_without_an_index_are_complete_or_the_missing_one_is_named(tmp_path, start):
    for number in range(start, start + 3):
        save_file(
            {f"a{number}": torch.ones(1)}, tmp_path / f"model-0000{number}-of-00003.safetensors"
        )
    assert len(read_state(tmp_path)) == 3
    (tmp_path / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks the shard model-00001-of-00003\.safetensors"):
        read_state(tmp_path)


def test_what_lies_in_place_of_a_file_is_told_by_its_start(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000)}, file)
    assert damage(file) is None
    whole = file.read_bytes()
    contents = {
        b"": "is empty",
        b"version https://git-lfs.github.com/spec/v1\noid x\nsize 9876543210\n": "pointer to 9.88 GB",
        b"\n<!DOCTYPE HTML><html>": "is a web page",
        whole[:-1]: "is truncated (4,071 bytes of 4,072 bytes are there)",
        whole[:40]: "is truncated or damaged",
    }
    for content, says in contents.items():
        file.write_bytes(content)
        assert says in (damage(file) or "nothing"), content[:30]
    file.unlink()
    file.symlink_to("blob")
    assert "is a link to blob, which does not exist" in (damage(file) or "")
    config = tmp_path / "config.json"
    config.write_text("<html>")
    assert "is a web page" in (damage(config) or "")


def test_layers_that_a_configuration_leaves_out_are_said(tmp_path):
    world = next(world for world in WORLDS if world.title == "Janus-Pro")
    with small_rows(world):
        world.write(tmp_path)
        folder = tmp_path / world.repository
        assert load_target(f"{world.name}={folder}").remark == ""
        config = json.loads((folder / "config.json").read_text())
        config["text_config"]["num_hidden_layers"] = 1
        (folder / "config.json").write_text(json.dumps(config))
        loaded = load_target(f"{world.name}={folder}")
    said = "1 of 2 layers of this checkpoint are used, as its configuration says."
    assert loaded.remark == said
    assert loaded.model.config.n_layer == 1


def test_a_text_encoder_loads_without_a_report_of_what_it_leaves_out(tmp_path, capfd):
    from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration
    from transformers.utils import logging

    config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    capfd.readouterr()
    level = logging.get_verbosity()
    with quiet_transformers():
        T5EncoderModel.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == level
    T5EncoderModel.from_pretrained(tmp_path)
    assert "Loading weights" in "".join(capfd.readouterr())


def test_a_file_that_changes_anywhere_changes_the_digest_of_its_role(tmp_path):
    row = entry("anole-7b")
    mine = tmp_path / "mine"
    put(mine / "model.safetensors", mine / "config.json", tmp_path / "notes.json")
    put(row.folder / "vq" / "tokenizer" / "vqgan.ckpt")
    before = role_fingerprints(row.locate(mine))
    assert before.keys() == {"model", "vq"}
    (tmp_path / "notes.json").write_text("{}")  # outside both
    assert role_fingerprints(row.locate(mine)) == before
    (row.folder / "vq" / "tokenizer" / "vqgan.ckpt").write_bytes(b"y")
    after = role_fingerprints(row.locate(mine))
    assert after["model"] == before["model"]
    assert after["vq"] != before["vq"]
    (mine / "config.json").write_text("{}")
    assert role_fingerprints(row.locate(mine))["model"] != before["model"]
