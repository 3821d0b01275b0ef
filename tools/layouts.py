"""The layouts of published files that load, target by target: benchmarks/results/layouts.csv and
the list in docs/checkpoints.md.

    python -m tools.layouts

writes small random checkpoints as the hub has them, leaves each on the disk as a download, a clone
or a training script would, loads it, and records the outcome.  What "loads" has the weights of the
first layout.  Tests check that both are current.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lanternbench.errors import UserError
from lanternbench.models.catalogue import load_unpacked
from lanternbench.models.family import drafter_at
from lanternbench.models.places import WEIGHTS
from lanternbench.models.state_files import read_state
from tools.small_targets import WORLDS, World, small_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "checkpoints.md"
RESULTS = ROOT / "benchmarks" / "results" / "layouts.csv"
BEGIN, END = "<!-- layouts: begin -->", "<!-- layouts: end -->"
Layout = Callable[[World, Path, Path], Path]  # (target, its hub, an empty folder) -> what is named
LAYOUTS: dict[str, Layout] = {}


def layout(title: str) -> Callable[[Layout], Layout]:
    def add(function: Layout) -> Layout:
        LAYOUTS[title] = function
        return function

    return add


# ---- downloads ----


@layout("the folders of `fetch`")
def fetched(world: World, hub: Path, place: Path) -> Path:
    for role, source in world.published.items():
        repository = hub / source.repo
        for pattern in source.files:
            for file in sorted(repository.glob(pattern)):
                copy(file, place / role / file.relative_to(repository))
    return place if world.role is None else place / world.role


@layout("the hub's cache, nothing named")
def hub_cache(world: World, hub: Path, place: Path) -> Path:
    os.environ["HF_HUB_CACHE"] = str(place)
    for repository in repositories(hub):
        cached(repository, hub, place)
    if world.role is not None:
        return place / f"models--{world.repository.replace('/', '--')}"
    return world.row.folder


@layout("a snapshot in the hub's cache")
def cached_snapshot(world: World, hub: Path, place: Path) -> Path:
    hub_cache(world, hub, place)
    name = world.repository.replace("/", "--")
    return next((place / f"models--{name}" / "snapshots").iterdir())


@layout("`hf download --local-dir`, side by side")
def local_dir(world: World, hub: Path, place: Path) -> Path:
    for repository in repositories(hub):
        here = place / repository.name
        shutil.copytree(repository, here)
        state = here / ".cache" / "huggingface" / "download"
        state.mkdir(parents=True)
        (state / "model.safetensors.metadata").write_text("commit\netag\n0\n")
        (state / "left.incomplete").write_bytes(b"half")
    return place / PurePosixPath(world.repository).name if world.role else place


@layout("clones of whole repositories")
def clones(world: World, hub: Path, place: Path) -> Path:
    for repository in repositories(hub):
        here = place / repository.name
        shutil.copytree(repository, here)
        (here / "README.md").write_text("A model.")
        (here / ".git").mkdir()
        (here / ".git" / "index.bin").write_bytes(b"git")
    clone = place / PurePosixPath(world.repository).name
    if world.role is not None:
        return clone
    for source in world.published.values():
        other = place / PurePosixPath(source.repo).name
        if other != clone and other.exists():  # as people link what belongs together
            (clone / other.name).symlink_to(other)
    return clone


@layout("one flat folder")
def flat(world: World, hub: Path, place: Path) -> Path:
    for role, source in world.published.items():
        if world.role is None and "config.json" in source.files and role in ("eagle", "vq"):
            continue  # whose config.json would replace the model's
        if world.role is None and role == "diffusion":
            continue
        if world.role is not None and role != world.role:
            continue
        here = place / "flan-t5-xl" if role == "text" else place
        for pattern in source.files:
            for file in sorted((hub / source.repo).glob(pattern)):
                copy(file, here / file.name)
    return place


@layout("the weights file named")
def single_file(world: World, hub: Path, place: Path) -> Path:
    return first_weights(world, flat(world, hub, place))


# ---- training scripts ----


def saved(world: World, hub: Path, place: Path, wrap: Callable[[dict[str, Tensor]], Any]) -> Path:
    """Replace the weights of ``fetch``'s folders by one file that a training script wrote."""
    fetched(world, hub, place)
    where = first_weights(world, place / (world.role or "model"))
    state = read_state(where.parent)
    state = {name: value.clone() for name, value in state.items()}
    for file in [*where.parent.glob("*.safetensors"), *where.parent.glob("*.index.json")]:
        file.unlink()
    where.unlink(missing_ok=True)
    name = where.name if where.suffix == ".pt" else "pytorch_model.bin"
    torch.save(wrap(state), where.parent / name)
    return place / world.role if world.role else place


def renamed(prefix: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {f"{prefix}{name}": value for name, value in state.items()}


@layout("`{model, args: Namespace}`")
def with_arguments(world: World, hub: Path, place: Path) -> Path:
    arguments = argparse.Namespace(lr=1e-4, results="results")
    return saved(world, hub, place, lambda state: {"model": state, "args": arguments, "steps": 9})


@layout("names with `module.`")
def of_ddp(world: World, hub: Path, place: Path) -> Path:
    return saved(world, hub, place, renamed("module."))


@layout("names with `_orig_mod.`")
def of_compile(world: World, hub: Path, place: Path) -> Path:
    return saved(world, hub, place, renamed("_orig_mod."))


@layout("names with `module._orig_mod.`")
def of_both(world: World, hub: Path, place: Path) -> Path:
    return saved(world, hub, place, renamed("module._orig_mod."))


@layout("`{module: {module.…}}`")
def of_deepspeed(world: World, hub: Path, place: Path) -> Path:
    return saved(world, hub, place, lambda state: {"module": renamed("module.")(state)})


@layout("`optimizer.bin` next to it")
def with_optimiser(world: World, hub: Path, place: Path) -> Path:
    named = saved(world, hub, place, dict)
    folder = first_weights(world, place / (world.role or "model")).parent
    for name in ("optimizer.bin", "scheduler.bin", "training_args.bin"):
        torch.save({"state": torch.zeros(2)}, folder / name)
    torch.save({"step": torch.zeros(1)}, folder / "random_states_0.pt")
    return named


def sharded(folder: Path, where: Path) -> list[Path]:
    """Split the weights at ``where`` into three shards without an index."""
    state = read_state(where.parent)
    state = {name: value.clone() for name, value in state.items()}
    for file in [*where.parent.glob("*.index.json"), *where.parent.glob("*.safetensors"), where]:
        file.unlink(missing_ok=True)
    names = sorted(state)
    shards = []
    for number in range(3):
        shard = where.parent / f"model-{number + 1:05d}-of-00003.safetensors"
        save_file({name: state[name].contiguous() for name in names[number::3]}, shard)
        shards.append(shard)
    return shards


@layout("shards without an index")
def shards_alone(world: World, hub: Path, place: Path) -> Path:
    named = fetched(world, hub, place)
    folder = place / (world.role or "model")
    sharded(folder, first_weights(world, folder))
    return named


# ---- damage ----


@layout("a shard missing")
def shard_missing(world: World, hub: Path, place: Path) -> Path:
    named = fetched(world, hub, place)
    folder = place / (world.role or "model")
    sharded(folder, first_weights(world, folder))[1].unlink()
    return named


@layout("one tensor missing")
def tensor_missing(world: World, hub: Path, place: Path) -> Path:
    def without_one(state: dict[str, Tensor]) -> dict[str, Tensor]:
        lost = next(name for name in state if re.search(r"layers\.1\..*(wo|o_proj)\.weight", name))
        return {name: value for name, value in state.items() if name != lost}

    def without_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
        lost = next(name for name in state if name.endswith(("o_proj.weight", "wo.weight")))
        return {name: value for name, value in state.items() if name != lost}

    return saved(world, hub, place, without_norm if world.role else without_one)


def replaced(world: World, hub: Path, place: Path, content: bytes | None) -> Path:
    """Put ``content`` in place of the first weights file; None: its first half."""
    named = fetched(world, hub, place)
    where = first_weights(world, place / (world.role or "model"))
    whole = where.read_bytes()
    where.write_bytes(whole[: len(whole) // 2] if content is None else content)
    return named


@layout("a git-LFS pointer")
def pointer(world: World, hub: Path, place: Path) -> Path:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3100000000\n"
    return replaced(world, hub, place, text.encode())


@layout("a web page")
def web_page(world: World, hub: Path, place: Path) -> Path:
    return replaced(world, hub, place, b"<!DOCTYPE html><html>log in</html>")


@layout("a truncated file")
def truncated(world: World, hub: Path, place: Path) -> Path:
    return replaced(world, hub, place, None)


@layout("links that lead nowhere")
def dangling(world: World, hub: Path, place: Path) -> Path:
    named = fetched(world, hub, place)
    folder = place / (world.role or "model")
    for file in [path for path in folder.rglob("*") if path.suffix in WEIGHTS]:
        file.unlink()
        file.symlink_to("../blobs/gone")
    return named


@layout("a folder of something else")
def something_else(world: World, hub: Path, place: Path) -> Path:
    (place / "notes.txt").write_text("nothing")
    return place


@layout("no such path")
def no_path(world: World, hub: Path, place: Path) -> Path:
    return place / "nowhere"


# ---- trying a cell ----


def copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)


def repositories(hub: Path) -> list[Path]:
    return sorted(path for owner in hub.iterdir() for path in owner.iterdir())


def cached(repository: Path, hub: Path, cache: Path) -> None:
    """Store a repository as the hub's tools do: content under blobs, links to it in a snapshot."""
    here = cache / f"models--{'--'.join(repository.relative_to(hub).parts)}"
    (here / "blobs").mkdir(parents=True)
    (here / "refs").mkdir()
    (here / "refs" / "main").write_text("0123")
    files = [path for path in repository.rglob("*") if path.is_file()]
    for number, file in enumerate(sorted(files)):
        blob = here / "blobs" / f"{number:040x}"
        shutil.copyfile(file, blob)
        link = here / "snapshots" / "0123" / file.relative_to(repository)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))


def first_weights(world: World, folder: Path) -> Path:
    """Return the first weights file of the model, or of the drafter, under a folder."""
    source = world.published[world.role or "model"]
    names = [PurePosixPath(pattern).name for pattern in source.files]
    names += ["model*.safetensors", "pytorch_model.bin", "*.pth"]
    for name in names:
        for file in sorted(folder.rglob(name)):
            if file.suffix in WEIGHTS:
                return file
    raise FileNotFoundError(folder)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep files of this machine's user out: the homes of fetched files and of the hub."""
    before = dict(os.environ)
    os.environ["LANTERNBENCH_HOME"] = str(folder / "home")
    os.environ["HF_HUB_CACHE"] = str(folder / "no-cache")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def weights_of(world: World, path: Path, target: Any) -> dict[str, Tensor]:
    if world.role is not None:
        return drafter_at(path, target, "cpu").state_dict()
    is_home = path == world.row.folder
    name = world.row.name if is_home else f"{world.row.name}={path}"
    return load_unpacked(name).model.state_dict()


_HUBS = tempfile.TemporaryDirectory()  # until this process ends


@cache
def written(world: World) -> tuple[Path, Any]:
    """Return the hub with a world's repositories, which layouts only read, and what ``write``
    returns.
    """
    hub = Path(tempfile.mkdtemp(dir=_HUBS.name))
    return hub, world.write(hub)


def try_cell(world: World, title: str, folder: Path) -> str:
    """Return "loads", or the sentence that is said, with FOLDER for the folder's path."""
    hub, target = written(world)
    place = folder / "place"
    place.mkdir(parents=True)
    with alone(folder), small_rows(world):
        path = LAYOUTS[title](world, hub, place)
        try:
            found = weights_of(world, path, target)
        except UserError as error:
            said = str(error).replace(str(path), "FOLDER").replace(str(place), "FOLDER")
            return said.split(", which holds")[0].split(": `lanternbench fetch")[0]
    wanted = reference(world) if title != next(iter(LAYOUTS)) else found
    assert found.keys() == wanted.keys(), (world.title, title)
    same = [torch.equal(value, wanted[name]) for name, value in found.items()]
    assert all(same), (world.title, title)
    return "loads"


@cache
def reference(world: World) -> dict[str, Tensor]:
    """Return the weights that the folders of ``fetch`` give."""
    with tempfile.TemporaryDirectory() as name, alone(Path(name)), small_rows(world):
        hub, target = written(world)
        loaded = weights_of(world, fetched(world, hub, Path(name)), target)
        return {key: value.clone() for key, value in loaded.items()}


Outcomes = dict[str, dict[str, str]]  # layout -> target -> "loads", or the sentence that is said


def outcomes() -> Outcomes:
    """Try every layout of every target."""
    found: Outcomes = {}
    for title in LAYOUTS:
        found[title] = {}
        for world in WORLDS:
            with tempfile.TemporaryDirectory() as folder:
                found[title][world.title] = general(try_cell(world, title, Path(folder)))
    return found


def recorded() -> Outcomes:
    """Return what ``RESULTS`` says."""
    found: Outcomes = {}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["layout"], {})[row["target"]] = row["result"]
    return found


def record(found: Outcomes) -> None:
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["layout", "target", "result"])
        for title, by_target in found.items():
            writer.writerows((title, target, said) for target, said in by_target.items())


def summary(found: Outcomes) -> str:
    """Return a list in Markdown: which layouts load for all targets, for which not, for none."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for title, by_target in found.items():
        refused = tuple(target for target, said in by_target.items() if said != "loads")
        groups.setdefault(refused, []).append(title)
    lines = []
    for refused, titles in sorted(groups.items(), key=lambda group: len(group[0])):
        if not refused:
            intro = "All load"
        elif len(refused) == len(WORLDS):
            intro = "Refused by all, with the file and the fix"
        else:
            intro = f"All load but {' and '.join(refused)}"
        lines.append(f"- {intro}: {'; '.join(titles)}.")
    return "\n".join(lines)


def general(said: str) -> str:
    """Return a sentence without what differs from target to target."""
    said = re.sub(r"FOLDER\S*?/([\w.-]+)(?=[ ,)])", "FILE", said)
    said = re.sub(r"'(model\.|language_model\.|text_model\.)*(layers\.\d+\.\S+?)'", "'NAME'", said)
    said = re.sub(r"\d+ of \d+ weights", "1 of N weights", said)
    said = re.sub(r"target '[\w.-]+'|the drafter", "target 'NAME'", said)
    said = re.sub(r"[\d,]+ of [\d,]+ bytes|[\d,]+ bytes", "N bytes", said)
    said = re.sub(r"\S+\.(safetensors|pt|bin|pth)\b", "FILE", said)
    return re.sub(r"its \w+( and \w+)* in", "its model in", said)


def current(found: Outcomes) -> tuple[str, str]:
    """Return the page's text, and its text with the list as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return text, f"{before}{BEGIN}\n\n{summary(found)}\n\n{END}{after}"


def main() -> None:
    found = outcomes()
    record(found)
    PAGE.write_text(current(found)[1], encoding="utf-8")
    print(f"{PAGE.name}: {len(LAYOUTS)} layouts × {len(WORLDS)} targets")


if __name__ == "__main__":
    main()
