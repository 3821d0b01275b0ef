"""Fetching: resumable, checked, and every failure one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment import fetching as fetch
from lanternbench.metrics import scorers_for
from lanternbench.models.catalogue import load_target
from lanternbench.models.entries import Entry, catalogue, missing
from lanternbench.models.places import Source
from lanternbench.registry import components
from lanternbench.utils import download as downloads
from lanternbench.utils.download import Remote
from lanternbench.utils.files import acquire

CONTENT = b"weights" * 100


@pytest.fixture
def entry(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-hub"))
    return Entry(
        name="toy",
        family="llamagen",
        about="a toy",
        files={"model": Source(repo="someone/toy", files=("toy.pt", "part-*.bin"))},
    )


class Hub:
    """A hub with two files; ``served`` is what a download brings, ``calls`` what was asked for."""

    def __init__(self, monkeypatch):
        self.served, self.calls, self.sha256 = CONTENT, [], hashlib.sha256(CONTENT).hexdigest()
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)

    def model_info(self, repo, files_metadata):
        lfs = SimpleNamespace(sha256=self.sha256) if self.sha256 else None
        names = ("README.md", "toy.pt", "part-1.bin")
        return SimpleNamespace(
            siblings=[SimpleNamespace(rfilename=n, size=len(CONTENT), lfs=lfs) for n in names]
        )

    def download(self, repo, name, local_dir):
        self.calls.append(name)
        (local_dir / name).write_bytes(self.served)


def test_the_plan_lists_what_the_patterns_name_and_nothing_else(entry, monkeypatch):
    Hub(monkeypatch)
    assert [f.name for f in fetch.plan(entry)] == ["toy.pt", "part-1.bin"]


def test_a_second_fetch_downloads_nothing(entry, monkeypatch):
    hub = Hub(monkeypatch)
    folder = fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert (folder / "model" / "toy.pt").read_bytes() == CONTENT
    assert entry.absent(folder) == []
    fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert hub.calls == ["toy.pt", "part-1.bin"]


def test_a_damaged_file_is_removed_and_never_taken_for_whole(entry, monkeypatch):
    hub = Hub(monkeypatch)
    hub.served = CONTENT[:-1] + b"?"
    with pytest.raises(UserError, match="damaged"):
        fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert not (entry.folder / "model" / "toy.pt").exists()
    assert entry.absent(entry.folder) == ["model"]
    hub.served = CONTENT
    fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert entry.absent(entry.folder) == []


@pytest.mark.parametrize("published", [True, False])
def test_a_byte_that_changes_after_the_download_is_found(entry, monkeypatch, published):
    hub = Hub(monkeypatch)
    hub.sha256 = hub.sha256 if published else None
    read: list[Path] = []
    counted = lambda path, whole=downloads.digest: read.append(path) or whole(path)  # noqa: E731
    monkeypatch.setattr(downloads, "digest", counted)
    monkeypatch.setattr(fetch, "digest", counted)

    def fetched(**options):
        return fetch.fetch(entry, fetch.plan(entry), log=lambda line: None, **options)

    path = fetched() / "model" / "toy.pt"
    assert len(read) == 2
    fetched()
    assert len(read) == 2  # the digest is remembered
    fetched(verify=True)
    assert len(read) == 4
    before = path.stat()
    path.write_bytes(b"W" + CONTENT[1:])
    with pytest.raises(
        UserError, match=r"toy\.pt is not the .*: delete it, and `fetch` gets it again"
    ):
        fetched()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk that errs
    fetched()
    with pytest.raises(UserError, match=r"toy\.pt is not the"):
        fetched(verify=True)
    path.unlink()
    fetched(verify=True)
    assert path.read_bytes() == CONTENT


def test_a_changed_file_of_a_metric_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    remote = Remote("toy", "http://nowhere/toy.bin", tmp_path / "toy.bin")
    monkeypatch.setattr(fetch, "plain_files", lambda name: [remote])
    remote.path.write_bytes(CONTENT)
    for given in ([], ["--verify"]):
        assert (
            "toy: downloaded"
            in CliRunner().invoke(app, ["fetch", "toy", *given], catch_exceptions=False).stdout
        )
    remote.path.write_bytes(CONTENT + b"?")
    with pytest.raises(UserError, match=r"toy\.bin is not the file that was downloaded"):
        CliRunner().invoke(app, ["fetch", "toy"], catch_exceptions=False)


def test_a_second_fetch_of_one_target_is_refused(entry, monkeypatch):
    hub = Hub(monkeypatch)
    entry.folder.mkdir(parents=True)
    with (
        acquire(entry.folder, "wait"),
        pytest.raises(UserError, match="in use by another process"),
    ):
        fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert hub.calls == []


def test_a_file_of_another_length_is_removed(entry, monkeypatch):
    hub = Hub(monkeypatch)
    hub.sha256, hub.served = None, CONTENT[:-1]
    with pytest.raises(UserError, match="damaged"):
        fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)


@pytest.mark.parametrize(
    "answer",
    [
        "<html>",
        SimpleNamespace(siblings=[SimpleNamespace(rfilename=3, size=1, lfs=None)]),
        SimpleNamespace(siblings=[SimpleNamespace(rfilename="toy.pt", size="1", lfs=None)]),
        SimpleNamespace(siblings=["toy.pt"]),
        SimpleNamespace(siblings=3),
    ],
)
def test_a_hub_that_lists_no_files_is_one_sentence(entry, monkeypatch, answer):
    def info(repo, files_metadata):
        return json.loads(answer) if isinstance(answer, str) else answer

    Hub(monkeypatch).model_info = info
    with pytest.raises(UserError, match=r"the hub's answer for someone/toy is no list of files"):
        fetch.plan(entry)


def test_an_interrupted_fetch_leaves_the_target_missing(entry, monkeypatch):
    hub = Hub(monkeypatch)

    def cut(repo, name, local_dir):
        if name == "toy.pt":
            return hub.download(repo, name, local_dir)
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", cut)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert missing(entry) == ["model"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(28, "No space left on device"), "disk is full"),
        (OSError(101, "Network is unreachable"), "no connection"),
        (PermissionError(13, "Permission denied", "/x"), "LANTERNBENCH_HOME"),
        (NotADirectoryError(20, "Not a directory", "/x/y"), "cannot write /x/y .Not a directory"),
        (OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE"),
    ],
)
def test_what_goes_wrong_is_one_sentence(entry, monkeypatch, error, says):
    Hub(monkeypatch)

    def fails(repo, name, local_dir):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    with pytest.raises(UserError, match=says):
        fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, r"does not accept your token for someone/toy: `hf auth login`"),
        (500, r"the hub refused someone/toy"),
    ],
)
def test_a_token_that_the_hub_refuses_is_answered_with_the_login(entry, monkeypatch, status, says):
    def refused(repo, files_metadata):
        answer = SimpleNamespace(status_code=status, headers={}, request=None)
        raise HfHubHTTPError("Invalid credentials in Authorization header", response=answer)

    Hub(monkeypatch).model_info = refused
    with pytest.raises(UserError, match=says):
        fetch.plan(entry)


def test_files_in_the_cache_of_the_hub_are_not_fetched_again(entry, monkeypatch, tmp_path):
    hub = Hub(monkeypatch)
    snapshot = tmp_path / "hub" / "models--someone--toy" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "toy.pt").write_bytes(CONTENT)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    said: list[str] = []
    fetch.fetch(entry, fetch.plan(entry), log=said.append)
    assert said == [f"model: in the hub's cache, {snapshot}"]
    assert hub.calls == []


def test_a_disk_without_room_is_found_before_the_download(entry, monkeypatch):
    hub = Hub(monkeypatch)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(UserError, match="make room"):
        fetch.fetch(entry, fetch.plan(entry), log=lambda line: None)
    assert hub.calls == []


def test_a_repository_without_the_named_files_is_reported(entry, monkeypatch):
    Hub(monkeypatch)
    other = entry.model_copy(
        update={"files": {"model": Source(repo="someone/toy", files=("gone.pt",))}}
    )
    with pytest.raises(UserError, match="no longer holds"):
        fetch.plan(other)


def test_a_metric_brings_every_file_that_it_needs_and_an_embedded_one_none():
    for name in ("image-reward", "aesthetic"):
        assert len(fetch.plain_files(name)) == len(scorers_for([name], "full")[0].weights) == 2
    assert fetch.plain_files("clip-tiny") == []
    assert fetch.plain_files("nobody") is None


def test_a_dry_run_without_a_network_lists_what_the_catalogue_says(monkeypatch):
    def unreachable():
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "HfApi", unreachable)
    done = CliRunner().invoke(
        app, ["fetch", "llamagen-xl-stage1", "clip-tiny", "--dry-run"], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "14.7 GB" in done.stdout
    assert "sizes are unknown: no connection" in done.stdout
    assert "clip-tiny comes with the package" in done.stdout


def test_a_dry_run_lists_every_file_of_glm_image_with_its_size(monkeypatch, tmp_path):
    sizes = {
        f"vision_language_encoder/model-0000{i}-of-00004.safetensors": 5 * 10**9
        for i in range(1, 5)
    }
    sizes |= {"processor/tokenizer.json": 20 * 10**6, "vision_language_encoder/config.json": 4096}
    sizes |= {
        "transformer/diffusion_pytorch_model.safetensors": 14 * 10**9,
        "vae/config.json": 1000,
    }
    sizes |= {"model_index.json": 500, "README.md": 9000}

    def info(repo, files_metadata):
        assert (repo, files_metadata) == ("zai-org/GLM-Image", True)
        return SimpleNamespace(
            siblings=[SimpleNamespace(rfilename=n, size=s, lfs=None) for n, s in sizes.items()]
        )

    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=info))
    done = CliRunner().invoke(app, ["fetch", "glm-image", "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0
    *lines, total = done.stdout.splitlines()
    of = "of zai-org/GLM-Image"
    assert (
        f"model: vision_language_encoder/model-00001-of-00004.safetensors {of}, 5.00 GB" in lines
    )
    assert f"model: processor/tokenizer.json {of}, 0.02 GB" in lines
    assert f"diffusion: transformer/diffusion_pytorch_model.safetensors {of}, 14.00 GB" in lines
    assert len(lines) == len(sizes) - 1
    assert "README" not in done.stdout
    assert total.startswith("34.02 GB into")
    assert total.endswith("(licence: MIT; gate: unknown)")
    assert not any(tmp_path.iterdir())


def test_targets_lists_every_size_grid_and_licence():
    done = CliRunner().invoke(app, ["targets", "--json"], catch_exceptions=False)
    rows = {row["target"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == catalogue().keys()
    assert all(
        row["licence"] and row["gate"] and (row["size"].endswith(" GB") or name == "tiny")
        for name, row in rows.items()
    )
    new = [
        (rows[name]["size"], rows[name]["grid"], rows[name]["licence"])
        for name in ("glm-image", "emu3.5-image")
    ]
    assert new == [("36 GB", "16×16 + 32×32", "MIT"), ("70 GB", "64×64", "Apache-2.0")]


@pytest.mark.parametrize(
    ("length", "size"), [("353976522", "0.35 GB, https"), (None, "about 0.35 GB, https")]
)
def test_a_dry_run_names_the_size_of_a_metric_s_file(length, size, monkeypatch, tmp_path):
    @contextlib.contextmanager
    def answer(request, timeout):
        assert request.get_method() == "HEAD"
        if length is None:
            raise OSError("no route")
        yield SimpleNamespace(headers={"Content-Length": length})

    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", answer)
    done = CliRunner().invoke(app, ["fetch", "clip", "--dry-run"], catch_exceptions=False)
    assert f"CLIP ViT-B/32 (OpenAI): {size}" in done.stdout


def test_every_file_of_a_metric_has_a_size():
    files = {
        w.name: w for metric in components("metric").values() for w in metric.weights if w.url
    }
    assert [name for name, w in files.items() if not w.gigabytes] == [
        "geneval-prompts",
    ]


def test_every_target_of_the_catalogue_is_complete():
    for name, row in catalogue().items():
        assert row.about, name
        assert row.family == "tiny" or "model" in row.files, name
        assert row.family not in ("llamagen", "chameleon") or "vq" in row.files, name
        assert row.shape["grid"] > 1, name


def test_a_target_that_is_not_here_names_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match="lanternbench fetch llamagen-xl-stage1"):
        load_target("llamagen-xl-stage1")
    with pytest.raises(UserError, match="did you mean 'llamagen-b-c2i'"):
        load_target("llamagen-b-c2")
