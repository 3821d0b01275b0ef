"""What other code decoded, in our tables: scored by the target as ar is, never timed, and always
marked imported.
"""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import mistake, slow_but, two_layers
from PIL import Image
from safetensors.numpy import save_file

from lanternbench import prompts, report
from lanternbench.engine.decode import generate
from lanternbench.errors import UserError
from lanternbench.experiment import read_run, read_samples, worker
from lanternbench.experiment.config import sweep
from lanternbench.imported.layouts import Entry, read
from lanternbench.imported.run import LOG_PROB, import_run, log_probs, matched
from lanternbench.measure.summary import read_summary
from lanternbench.methods.build import build
from lanternbench.methods.method import method
from lanternbench.metrics import read_image
from lanternbench.models.target import Target
from lanternbench.prompts import Prompt, PromptSet
from lanternbench.settings import Sampling

CAPTIONS = [p.text for p in prompts.load("demo", 2)]
LENGTH = 64
GOOD = [[5] * LENGTH] * 2


def settings(**given):
    values = {
        "name": "import-tiny",
        "prompts": "captions",
        "metrics": [],
        "methods": ["ar"],
        "num_prompts": 1,
    }
    return sweep(values | given)


@pytest.fixture(scope="module")
def target() -> Target:
    """The weights of ``shallow_8x8`` as runs have them, in float32."""
    return two_layers(side=8, dtype=torch.float32)


@pytest.fixture(scope="module", autouse=True)
def loaded(target) -> Iterator[None]:
    """Runs in this process load ``target``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "load_with_drafter", lambda *_: target)
        yield


@pytest.fixture(scope="module")
def ar(target):
    """``ar``'s images of two captions, as a run with seed 0 draws them."""
    return generate(build(target, method("ar")), CAPTIONS, ["1", "2"], seed=0, trace=True)


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows(tokens, **more) -> list[dict]:
    return [
        {"caption": c, "tokens": np.asarray(t).tolist()} | more for c, t in zip(CAPTIONS, tokens)
    ]


# --- log-probabilities ---


@torch.inference_mode()
def plainly(
    target, caption: str, tokens, temperature: float, top_k: int, scale: float
) -> list[float]:
    """The same without cache or warp: one uncached forward, then softmax by its definition in
    float64.
    """
    prefix = target.prefix([caption], scale)
    hidden = target.model.teacher_forced(
        prefix.embeddings, prefix.valid, tokens[None].repeat(2, 1)
    )
    cond, uncond = target.model.output(hidden).double().numpy()
    found = []
    for logits, x in zip((uncond + scale * (cond - uncond)) / temperature, tokens.tolist()):
        best = np.sort(logits)[::-1][:top_k]
        inside = logits[x] >= best[-1]
        found.append(
            float(logits[x] - best[0] - np.log(np.exp(best - best[0]).sum()))
            if inside
            else np.log(1e-10)
        )
    return found


@pytest.mark.parametrize(
    ("temperature", "top_k", "scale"),
    slow_but([(0.7, 200, 1.5)], [(1.0, 64, 3.0), (0.7, 200, 1.5)]),
)
def test_log_probabilities_are_those_of_an_independent_computation(
    target, shallow_8x8, ar, temperature, top_k, scale
):
    """Token by token in float64; their mean in float32, whose rounding moves single tokens by up
    to 1e-5.
    """
    tokens = torch.stack([made.tokens for made in ar])
    for i, caption in enumerate(CAPTIONS):
        want = torch.tensor(plainly(shallow_8x8, caption, tokens[i], temperature, top_k, scale))
        assert want.std() > 0.5  # they are not all alike
        for model, within in ((shallow_8x8, 1e-5), (target, None)):
            got = log_probs(
                build(
                    model,
                    method("ar"),
                    Sampling(temperature=temperature, top_k=top_k, guidance=scale),
                ),
                [caption],
                tokens[i, None],
            )
            assert (got[0] - want).abs().max() < (within or 1e-3)
            assert abs(float(got.mean() - want.mean())) < 1e-5


def test_log_probabilities_are_those_that_the_decode_met(target, ar):
    tokens = torch.stack([made.tokens for made in ar])
    met = ar[0].trace.q.gather(-1, tokens[..., None])[..., 0].log()
    assert (log_probs(build(target, method("ar")), CAPTIONS, tokens) - met).mean(
        1
    ).abs().max() < 1e-5


# --- a run folder ---


@pytest.fixture(scope="module")
def imported(target, ar, tmp_path_factory):
    """Two decoders in one folder beside ar: ar's own tokens, and tokens drawn at random."""
    folder = tmp_path_factory.mktemp("imported")
    own = jsonl(folder / "own.jsonl", rows([made.tokens for made in ar], seconds=3.25, steps=50))
    noise = np.random.default_rng(0).integers(0, target.vocab, (2, LENGTH))
    np.savez(
        folder / "noise.npz",
        tokens=noise.reshape(2, 8, 8),
        captions=np.array(CAPTIONS),
        steps=[64, 32],
    )
    for label, path in (("own", own), ("noise", folder / "noise.npz")):
        made = import_run(read(path), label, settings(), None, folder / "results", "cpu")
    return made


def test_ar_s_own_tokens_differ_by_0_with_p_1(imported):
    summary = read_summary(imported)
    ar, own, noise = summary.rows
    assert [row.label for row in summary.rows] == ["ar", "own (imported)", "noise (imported)"]
    assert own.figure(LOG_PROB)[:3] == ar.figure(LOG_PROB)[:3]
    assert own.figure(LOG_PROB).p == 1.0
    assert noise.value(LOG_PROB) < ar.value(LOG_PROB) - 5
    for i in range(2):  # the seeds of a run: ar draws them again
        by_label = {
            s.label: s.token_ids for s in read_samples(imported) if s.prompt_id == str(i + 1)
        }
        assert by_label["ar"] == by_label["own (imported)"] != by_label["noise (imported)"]


def test_imported_times_are_as_stated_and_never_measured(imported):
    ar, own, noise = read_summary(imported).rows
    assert (own.value("stated_s"), own.value("step_compression")) == (3.25, LENGTH / 50)
    assert noise.value("step_compression") == pytest.approx(2 * LENGTH / 96)
    assert noise.value("stated_s") is None
    clocked = (
        "latency_s",
        "speedup",
        "robust_latency_s",
        "end_to_end_s",
        "tokens_per_s",
        "images_per_s",
        "accept_len",
    )
    assert all(row.value(name) is None for row in (own, noise) for name in clocked)
    assert ar.value("latency_s") is not None
    notes = [note.text for note in read_summary(imported).notes]
    for label in ("own (imported)", "noise (imported)"):
        assert any(text.startswith(f"{label} was not measured by this run") for text in notes)
    assert not any("only valid at batch 1" in text for text in notes)


def test_tokens_outside_the_target_s_top_k_are_noted(imported):
    notes = [note for note in read_summary(imported).notes if note.metric == LOG_PROB]
    assert "of the tokens of noise (imported) are outside the target's top-k" in notes[0].text


def test_every_table_says_imported(imported, quick_pictures, tmp_path):
    files = report([imported], out=tmp_path).files
    for name in ("table.md", "table.csv", "table.tex", "table.json", "report.html", "pairs.md"):
        text = next(file for file in files if file.name == name).read_text()
        assert "own (imported)" in text, name
        assert text.count("imported") >= text.replace("(imported)", "").count("own "), name
    assert "| 3.250 " in (tmp_path / "table.md").read_text()


def test_the_same_import_again_changes_nothing_and_other_images_need_another_label(
    imported, ar, tmp_path
):
    results = imported.parent
    before = (imported / "samples.jsonl").read_bytes()
    again = jsonl(
        tmp_path / "own.jsonl", rows([made.tokens for made in ar], seconds=3.25, steps=50)
    )
    assert import_run(read(again), "own", settings(), None, results, "cpu") == imported
    assert (imported / "samples.jsonl").read_bytes() == before
    other = jsonl(tmp_path / "other.jsonl", rows([made.tokens.flip(0) for made in ar]))
    with pytest.raises(UserError, match="give another --label"):
        import_run(read(other), "own", settings(), None, results, "cpu")


def test_several_images_of_a_caption_are_seeds_of_one_prompt():
    entries = [Entry(f"image {i}", CAPTIONS[i % 2]) for i in range(4)]
    found = matched(entries, None, first=5)
    assert [(m.prompt.id, m.seed) for m in found] == [("1", 5), ("2", 5), ("1", 6), ("2", 6)]


# --- layouts ---


def test_every_layout_of_tokens_gives_the_same_entries(ar, tmp_path):
    tokens = np.stack([made.tokens.numpy() for made in ar])
    np.savez(
        tmp_path / "a.npz",
        tokens=tokens,
        captions=np.array(CAPTIONS),
        steps=np.array([9, 8]),
        seconds=[1.5, 2],
    )
    meta = {"captions": json.dumps(CAPTIONS)}
    columns = {
        "tokens": tokens.astype(np.int32),
        "steps": np.array([9, 8]),
        "seconds": np.array([1.5, 2.0]),
    }
    save_file(columns, tmp_path / "a.safetensors", meta)
    lines = [
        row | {"steps": s, "seconds": t} for row, s, t in zip(rows(tokens), (9, 8), (1.5, 2.0))
    ]
    jsonl(tmp_path / "a.jsonl", lines)
    told = []
    for name in ("a.npz", "a.safetensors", "a.jsonl"):
        entries = read(tmp_path / name)
        told.append([(e.caption, e.tokens.tolist(), e.steps, e.seconds) for e in entries])
    assert (
        told[0] == told[1] == told[2] == list(zip(CAPTIONS, tokens.tolist(), (9, 8), (1.5, 2.0)))
    )


def test_our_own_samples_are_a_layout(imported, tmp_path):
    lines = [
        line
        for line in (imported / "samples.jsonl").read_text().splitlines()
        if '"label":"ar"' in line
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines))
    assert [len(entry.tokens) for entry in read(tmp_path / "samples.jsonl")] == [LENGTH] * 2
    with pytest.raises(UserError, match="has images of 3 methods"):
        read(imported / "samples.jsonl")


def png(path: Path, colour: str) -> None:
    Image.new("RGB", (64, 64), colour).save(path)


def test_what_lantern_writes_is_imported_with_its_prompts_steps_and_seconds(tmp_path):
    """The layout of its entrypoints/generate_images.py."""
    said = {}
    for i, (caption, tau, seconds) in enumerate(zip(CAPTIONS, (2.0, 3.2), (1.25, 1.5))):
        png(tmp_path / f"prompt_{i}.png", "red")
        said[f"prompt_{i}"] = {"prompt": caption, "step_compression": tau, "latency": seconds}
    (tmp_path / "global_statistics_0_10000.json").write_text(json.dumps(said, indent=4))
    (tmp_path / "generation_configs.json").write_text(
        json.dumps({"model": "llamagen", "temperature": 1.0})
    )
    folder = import_run(read(tmp_path), "LANTERN", settings(), None, tmp_path / "results", "cpu")
    found = [s for s in read_samples(folder) if s.label == "LANTERN (imported)"]
    assert [(s.prompt, s.steps, s.stated_s) for s in found] == [
        (CAPTIONS[0], 32, 1.25),
        (CAPTIONS[1], 20, 1.5),
    ]
    assert all(Image.open(folder / s.image).getpixel((0, 0)) == (255, 0, 0) for s in found)
    assert all(LOG_PROB not in s.metrics and not s.timed for s in found)
    (tmp_path / "global_statistics_0_10000.json").write_text('{"prompt_0": {"prompt": 3}}')
    with pytest.raises(UserError, match=r"global_statistics_0_10000\.json is damaged \(prompt_0"):
        read(tmp_path)


def test_what_sjd_and_zipar_write_is_imported_by_the_number_of_the_prompt(tmp_path):
    """N.png, N from 0, as SJD's eval_model.py writes; NNNNNN.png and arr_0 as ZipAR's sampler for
    LlamaGen does.
    """
    chosen = prompts.load("demo")
    for names in (["1.png", "10.png"], ["000001.png", "000010.png"]):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name in names:
            png(folder / name, "blue")
        found = matched(read(folder), chosen)
        assert [m.prompt for m in found] == [chosen.prompts[1], chosen.prompts[10]]
    np.savez(tmp_path / "samples.npz", arr_0=np.zeros((3, 8, 8, 3), np.uint8))
    found = matched(read(tmp_path / "samples.npz"), chosen)
    assert [m.prompt for m in found] == list(chosen.prompts[:3])
    assert found[0].entry.image.shape == (8, 8, 3)


# --- mistakes ---


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (rows([[5] * 63] * 2), r"line 1 has 63 tokens, and tiny draws 64 \(8 × 8\)"),
        (
            rows([[5] * 63 + [1024]] * 2),
            "line 1 has token 1024, and the codebook of tiny 1024: give indices",
        ),
        (rows([[-1] + [5] * 63] * 2), "line 1 has token -1"),
        (rows(GOOD, seconds=-1), "line 1: seconds must be at least 0"),
        (rows(GOOD, steps=0), "line 1: steps must be at least 1"),
        (rows([[0.5] * LENGTH] * 2), "line 1: tokens"),
        ([{"caption": "a red circle"}], "line 1: it has neither tokens nor image"),
        ([{"tokens": [1]}], "line 1: it has neither caption nor id"),
        (rows(GOOD, steps=10**9), "line 1: steps must be at most"),
        (rows(GOOD, seconds=1e10), "line 1: seconds must be at most"),
        (rows(GOOD, steps=65), "line 1 has 65 steps .*, and an image of tiny has 64 tokens"),
        (rows([[10**30] * LENGTH] * 2), "line 1: tokens"),
        (rows([[[5] * 4] * 16] * 2), "line 1 has 16 × 4 tokens, and tiny draws 8 × 8"),
        (
            [{"caption": "x", "tokens": [[5] * 4, [5] * 60]}],
            "line 1: its rows of tokens have different lengths",
        ),
        (
            [{"caption": "x", "image": "../../etc/passwd"}],
            "image '../../etc/passwd' is outside its folder",
        ),
        ([], "has no images"),
    ],
)
def test_a_bad_line_is_one_sentence(lines, says, tmp_path, target):
    path = jsonl(tmp_path / "a.jsonl", lines)
    with pytest.raises(UserError, match=says):
        import_run(read(path), "x", settings(), None, tmp_path / "results", "cpu")
    assert not (tmp_path / "results").exists()


def test_nan_is_one_sentence(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(rows(GOOD)[0] | {"seconds": float("nan")}))
    with pytest.raises(UserError, match="line 1: seconds"):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"tokens": np.full((2, 4), np.nan)}, "tokens are float64"),
        (
            {"tokens": np.ones((2, 4), int), "seconds": [1.0, np.nan]},
            r"seconds\.1 must be a finite number",
        ),
        (
            {"tokens": np.ones((2, 4), int), "captions": np.array(["a"])},
            "captions are 1, and not one for each of 2",
        ),
        (
            {"tokens": np.ones((2, 4), int), "steps": [0, 1]},
            r"steps\.0 must be at least 1",
        ),
        ({"tokens": np.array([{"a": 1}], object)}, "save them with dtype=str or dtype=int"),
        (
            {"tokens": np.ones((1, 4), int), "captions": np.array(["a"], object)},
            "captions are Python objects: save them with dtype=str",
        ),
        ({"tokens": np.ones((1, 4), int), "steps": [10**9]}, r"steps\.0 must be at most"),
        (
            {"tokens": np.ones((1, 4), int), "seconds": [np.inf]},
            r"seconds\.0 must be a finite number",
        ),
        ({"tokens": np.full((1, 4), 2**63, np.uint64)}, "which no codebook has"),
        ({"images": np.zeros((1, 0, 4, 3), np.uint8)}, "images are uint8"),
        ({"images": np.zeros((2, 4, 4), np.uint8)}, "images are uint8"),
        ({"other": np.zeros(3)}, "it has no 'tokens'"),
    ],
)
def test_a_bad_array_is_one_sentence_and_nothing_is_unpickled(columns, says, tmp_path):
    np.savez(tmp_path / "a.npz", **columns)
    with pytest.raises(UserError, match=says):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.jsonl", "a.pt"])
def test_a_file_of_something_else_is_one_sentence(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x04garbage\n" * 9)
    with pytest.raises(UserError, match=r"cannot be imported|nothing to import"):
        read(tmp_path / name)
    with pytest.raises(UserError, match=r"cannot be imported|nothing to import"):
        read(tmp_path / f"absent-{name}")


def test_captions_that_are_not_the_prompts_are_named(tmp_path):
    chosen = prompts.load("demo")
    entries = [Entry("line 1", "an elephant", np.ones(4, np.int64))]
    with pytest.raises(
        UserError,
        match="line 1: there is no caption 'an elephant' among the prompts: demo is another",
    ):
        matched(entries, chosen)
    with pytest.raises(UserError, match="there is no prompt '999' among"):
        matched([Entry("999.png", number=999)], chosen)
    with pytest.raises(UserError, match="give the --prompts that it was made with"):
        matched([Entry("999.png", number=999)], None)


def test_a_folder_of_pickled_tensors_says_what_to_save_instead(tmp_path):
    (tmp_path / "0.pt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"save them as \.npz"):
        read(tmp_path)


def test_the_command_imports_images_with_stated_figures_and_without_ar(
    tmp_path, monkeypatch, capfd
):
    from lanternbench.cli.main import main

    folder = tmp_path / "images"
    folder.mkdir()
    png(folder / "0.png", "red")
    command = [
        "import",
        str(folder),
        "--label",
        "mine",
        "--prompts",
        "demo",
        "--steps",
        "16",
        "--seconds",
        "0.5",
    ]
    command += ["--no-baseline", "--metrics", "clip", "--out", str(tmp_path / "results"), "--json"]
    monkeypatch.setattr("sys.argv", ["lanternbench", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = json.loads(capfd.readouterr().out)
    assert [(row["label"], row["stated_s"], row["step_compression"]) for row in found["rows"]] == [
        ("mine (imported)", 0.5, 4.0)
    ]
    assert found["rows"][0]["clip-tiny"] is not None
    assert read_run(Path(found["run"])).methods[0].method == "imported"
    assert "nothing to import" in mistake(monkeypatch, capfd, "import", "x.pt", "--label", "mine")


# --- which prompt an image is of ---


def folder_of(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        png(path / name, "blue")
    return path


def prompts_of(*ids: str, images: bool = False) -> PromptSet:
    chosen = [Prompt(i, f"caption {i}", image=f"{i}.jpg" if images else None) for i in ids]
    return PromptSet(tuple(chosen), "mine.txt", "mine.txt", 0)


def places(folder: Path, chosen: PromptSet) -> list[tuple[str, str, int]]:
    return [(m.entry.where, m.prompt.id, m.seed) for m in matched(read(folder), chosen)]


def test_images_are_of_the_prompt_and_sample_that_their_names_say(tmp_path):
    names = [f"{prompt}_{sample}.png" for prompt in range(3) for sample in (0, 1, 10, 2)]
    folder = folder_of(tmp_path / "a", *names)
    found = places(folder, prompts_of("a", "b", "c"))
    assert found == [
        (f"{prompt}_{sample}.png", name, seed)
        for prompt, name in enumerate("abc")
        for seed, sample in enumerate((0, 1, 2, 10))
    ]


def test_ids_are_matched_where_names_or_files_have_them(tmp_path):
    chosen = prompts_of("139", "285", "1", images=True)
    folder = folder_of(tmp_path / "a", "285.png", "139.PNG")
    assert places(folder, chosen) == [("139.PNG", "139", 0), ("285.png", "285", 0)]
    assert places(folder_of(tmp_path / "b", "139_1.png"), chosen) == [("139_1.png", "139", 0)]
    np.savez(tmp_path / "a.npz", tokens=np.ones((2, 4), int), ids=np.array([285, 1]))
    lines = [{"id": 285, "tokens": [1]}, {"id": "1", "tokens": [1]}]
    for path in (tmp_path / "a.npz", jsonl(tmp_path / "a.jsonl", lines)):
        assert [m.prompt.id for m in matched(read(path), chosen)] == ["285", "1"], path
    jsonl(tmp_path / "b.jsonl", [{"id": "7", "tokens": [1]}])
    with pytest.raises(UserError, match="line 1: there is no prompt '7' among the prompts"):
        matched(read(tmp_path / "b.jsonl"), chosen)


def test_of_two_prompts_with_one_caption_the_id_decides(tmp_path):
    same = [Prompt(name, "a cat") for name in ("4", "9")]
    chosen = PromptSet(tuple(same), "coco2017", "coco2017", 0)
    lines = [{"id": name, "caption": "a cat", "tokens": [1]} for name in ("9", "4")]
    entries = read(jsonl(tmp_path / "a.jsonl", lines))
    for given in (chosen, None):
        assert [(m.prompt.id, m.seed) for m in matched(entries, given)] == [("9", 0), ("4", 0)]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["5.png"], "5.png may be the prompt with that id or the one with that number"),
        (["1_2_3.png"], "1_2_3.png: there is no prompt '1_2_3'"),
        (["v2_1.png"], "v2_1.png: there is no prompt 'v2_1'"),
        (["cat.png"], "cat.png: there is no prompt 'cat'"),
        (["0.png", "0.jpg"], "has both 0.jpg and 0.png"),
    ],
)
def test_a_name_that_may_be_of_two_prompts_or_of_none_is_refused(names, says, tmp_path):
    folder = folder_of(tmp_path / "a", *names)
    chosen = prompts_of(*[str(number) for number in range(2, 12)])
    with pytest.raises(UserError, match=says):
        matched(read(folder), chosen)


def test_images_without_ending_are_not_left_out(tmp_path):
    folder = folder_of(tmp_path / "a", "0.png")
    (folder / "0.png").rename(folder / "1")
    png(folder / "0.png", "blue")
    with pytest.raises(UserError, match=r"1 has no ending: rename it to 1\.png"):
        read(folder)


def test_the_ending_of_a_file_may_be_in_capitals(tmp_path):
    np.savez(tmp_path / "a.npz", tokens=np.ones((1, 4), int))
    (tmp_path / "a.npz").rename(tmp_path / "A.NPZ")
    assert len(read(tmp_path / "A.NPZ")) == 1


def test_a_choice_of_captions_without_prompts_is_refused(tmp_path, monkeypatch, capfd):
    path = str(jsonl(tmp_path / "a.jsonl", rows(GOOD)))
    args = ("import", path, "--label", "x", "--caption", "longest")
    assert "--caption longest chooses among" in mistake(monkeypatch, capfd, *args)


@pytest.mark.parametrize(
    "given", [["--seconds", "nan"], ["--seconds", "inf"], ["--steps", "1000000000"]]
)
def test_stated_numbers_of_the_command_line_have_bounds(given, tmp_path, monkeypatch, capfd):
    path = str(jsonl(tmp_path / "a.jsonl", rows(GOOD)))
    said = mistake(monkeypatch, capfd, "import", path, "--label", "x", *given)
    assert f"'{given[0][2:]}' is wrong" in said


# --- files that would take all memory, or all time ---


def npz_of(path: Path, name: str, header: bytes, body: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = header.ljust(117) + b"\n"
        archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body)
    return path


@pytest.mark.parametrize(
    ("shape", "body", "says"),
    [
        ("(1000000, 1000)", b"\0" * 80, r"should have 8,000,000,000 bytes, and there are 80"),
        ("(1, 4)", b"\0" * 80, r"should have 32 bytes, and there are 80"),
        ("(1048576, 9)", b"\0" * (8 * 9 << 20), "bytes that inflate to"),
        ("(" + "(" * 5000, b"", "cannot be imported"),
    ],
)
def test_an_array_that_does_not_fit_its_file_is_refused_before_memory_is_taken(
    shape, body, says, tmp_path
):
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': %s, }" % shape.encode()
    path = npz_of(tmp_path / "a.npz", "tokens.npy", header[:5100], body)
    tracemalloc.start()
    with pytest.raises(UserError, match=says):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize(
    ("dtype", "metadata", "says"),
    [
        ("BF16", {}, "tokens are bfloat16: save them as whole numbers"),
        ("F32", {}, "tokens are float32"),
        ("F8_E4M3", {}, "cannot be imported"),
        ("I64", {"captions": "[" * 10**5 + "]" * 10**5}, "cannot be imported"),
        ("I64", {"captions": "[3]"}, "captions.0 must be text"),
    ],
)
def test_a_safetensors_file_of_other_values_is_one_sentence(dtype, metadata, says, tmp_path):
    size = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8}[dtype] * 4
    row = {"dtype": dtype, "shape": [1, 4], "data_offsets": [0, size]}
    text = json.dumps({"__metadata__": metadata, "tokens": row}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    with pytest.raises(UserError, match=says):
        read(tmp_path / "a.safetensors")


@pytest.mark.parametrize("name", ["a.jsonl", "a.npz", "a.safetensors", "a.png"])
def test_a_pipe_keeps_nobody_waiting(name, tmp_path, in_time):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="not a regular file"):
        read_image(tmp_path / name) if name == "a.png" else read(tmp_path / name)
