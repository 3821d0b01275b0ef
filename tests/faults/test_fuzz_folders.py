"""``tune``, ``predict``, ``compare`` and ``score`` with any folder: one sentence and exit code 2,
or a right end.

FUZZ_INPUTS is the number of inputs of each test, by default a fast few: ``FUZZ_INPUTS=250 pytest
-s`` tries 1,750 and prints how they ended.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from run_records import run_record
from test_fuzz import METHODS, OPTIONS, SENSIBLE, VALUES, one_sentence
from test_fuzz_files import ODD, SAMPLE, written
from test_tuning_faults import CONTENTS, WHOLE, search
from typer.testing import CliRunner

from lanternbench.cli.main import app
from lanternbench.errors import UserError
from lanternbench.experiment import RunFolder, Sample
from lanternbench.measure.figures import Figures
from lanternbench.measure.samples import sample_key
from lanternbench.measure.summary import summarise
from lanternbench.methods.method import method
from lanternbench.settings import checked
from lanternbench.tune.result import Tune
from lanternbench.tune.tuning import search_kind

INPUTS = int(os.environ.get("FUZZ_INPUTS", "12"))
FUZZ = settings(
    max_examples=INPUTS, deadline=300_000, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
COUNTS: Counter[str] = Counter()
RUN = {"run_id", "created", "config", "environment", "prompts", "target", "methods", "resumed"}
CONFIG = [
    "batch",
    "seed",
    "target",
    "drafter",
    "guidance",
    "prompts",
    "temperature",
    "top_k",
    "methods",
    "dtype",
]
BYTES = st.binary(max_size=80) | st.sampled_from(list(CONTENTS.values()))


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    """States how many inputs there were."""
    COUNTS.clear()
    yield
    print(
        f"\n{sum(COUNTS.values())} inputs: "
        + ", ".join(f"{n} {how}" for how, n in COUNTS.most_common())
    )
    assert set(COUNTS) <= {"one sentence", "right"}


def judged(work: Any) -> Any:
    """Run ``work``, which may end well or with a UserError of one line."""
    try:
        found = work()
    except UserError as error:
        one_sentence(error)
        COUNTS["one sentence"] += 1
        return None
    except BaseException:
        COUNTS["another end"] += 1
        raise
    COUNTS["right"] += 1
    return found


def command(*args: str) -> Any:
    """The JSON of a command; raises what it raises."""
    done = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of two methods and two prompts with images."""
    root, config = tmp_path_factory.mktemp("fuzz"), {"seed": 0, "target": "tiny", "batch": 1}
    methods = [{"label": label, "method": label, "lossless": True} for label in ("ar", "eagle-1")]
    with RunFolder.open(
        root,
        run_record("r", config, target={"name": "tiny", "evaluators": "tiny"}, methods=methods),
    ) as run:
        for prompt in "12":
            for label in ("ar", "eagle-1"):
                made = {
                    "key": sample_key(prompt, label, 0),
                    "prompt_id": prompt,
                    "label": label,
                    "method": label,
                }
                run.append(
                    Sample(**SAMPLE | made | {"tree_nodes": [6, 6]}),
                    Image.new("RGB", (8, 8), "red"),
                )
        run.finish(summarise(Figures(run.samples), run.run))
    return run.path


@pytest.fixture
def copy(folder, tmp_path_factory) -> Path:
    """A copy that a test may spoil."""
    return tmp_path_factory.mktemp("copy") / "r"


def spoiled(
    source: Path,
    to: Path,
    run: dict,
    config: dict,
    sample: dict,
    content: tuple[str, bytes] | None,
) -> Path:
    """A copy of a run with these changes in run.json and the last sample, and other content of one
    file.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to)
    facts = json.loads((to / "run.json").read_text())
    (to / "run.json").write_bytes(written(facts | {"config": facts["config"] | config} | run))
    lines = (to / "samples.jsonl").read_bytes().splitlines()
    lines[-1] = written(json.loads(lines[-1]) | sample)
    (to / "samples.jsonl").write_bytes(b"\n".join([*lines, b""]))
    if content is not None:
        name, data = content
        path = next(iter((to / "images").iterdir())) if name == "an image" else to / name
        path.write_bytes(data)
    return to


CHANGES = {
    "run": st.dictionaries(st.sampled_from(sorted(RUN)), ODD, max_size=1),
    "config": st.dictionaries(st.sampled_from(CONFIG), ODD, max_size=2),
    "sample": st.dictionaries(st.sampled_from([*SAMPLE, "tree_nodes", "later"]), ODD, max_size=2),
    "content": st.none()
    | st.tuples(
        st.sampled_from(["scores.jsonl", "summary.json", "samples.jsonl", "run.json", "an image"]),
        BYTES,
    ),
}


@pytest.mark.slow
@FUZZ
@given(
    **CHANGES,
    device=st.sampled_from(["h100", "a100", "", "this\n", "x"]),
    batch=st.text("0189,-", max_size=4),
)
def test_any_folder_is_predicted_or_one_sentence(
    run, config, sample, content, device, batch, folder, copy
):
    place = spoiled(folder, copy, run, config, sample, content)
    options = [
        "--device",
        device if device in ("", "x") else "h100",
        "--batch",
        batch if len(batch) > 2 else "1,8",
    ]
    found = judged(lambda: command("predict", str(place), *options))
    assert found is None or found["predicted"] is True


@pytest.mark.slow
@FUZZ
@given(
    **CHANGES,
    condition=st.sampled_from(["speedup<-5%", "tokens>1", "x", "clip-tiny<0", "accept_len>1e9"]),
)
def test_any_folder_is_compared_or_one_sentence(
    run, config, sample, content, condition, folder, copy
):
    place = spoiled(folder, copy, run, config, sample, content)
    for pair in ([str(folder), str(place)], [str(place), str(folder), "--fail-if", condition]):
        judged(lambda pair=pair: command("compare", *pair))


@pytest.mark.slow
@FUZZ
@given(
    **CHANGES, metric=st.sampled_from(["clip", "fid", "clip-tiny", "x", ""]), again=st.booleans()
)
def test_any_folder_is_scored_or_one_sentence(
    run, config, sample, content, metric, again, folder, copy
):
    place = spoiled(folder, copy, run, config, sample, content)
    judged(
        lambda: command("score", str(place), "--metrics", metric, *(["--again"] if again else []))
    )


@pytest.mark.slow
@FUZZ
@given(
    image=BYTES,
    captions=BYTES | st.just(b"image\tprompt\na.png\ta fox\n"),
    name=st.sampled_from(["c.tsv", "c.json"]),
)
def test_any_plain_folder_is_scored_or_one_sentence(image, captions, name, tmp_path, monkeypatch):
    monkeypatch.setenv("LANTERNBENCH_HOME", str(tmp_path / "home"))
    (tmp_path / "images").mkdir(exist_ok=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.png").write_bytes(image)
    (tmp_path / name).write_bytes(captions)
    options = ["--captions", str(tmp_path / name), "--metrics", "clip-tiny"]
    judged(lambda: command("score", str(tmp_path / "images"), *options))


@pytest.mark.slow
@FUZZ
@given(
    name=st.sampled_from(
        ["tune.json", "digests.json", "costs.json", "chain-0.npz", "measured.jsonl"]
    ),
    content=BYTES | ODD.map(written),
)
def test_any_folder_of_a_search_goes_on_or_is_one_sentence(name, content, tmp_path):
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    search(tmp_path / "s")
    (tmp_path / "s" / name).write_bytes(content)
    found = judged(lambda: search(tmp_path / "s"))
    assert found in (None, WHOLE)


@pytest.mark.slow
@FUZZ
@given(
    name=st.sampled_from(METHODS),
    options=st.dictionaries(
        st.sampled_from([*OPTIONS, "name", "method"]), SENSIBLE | VALUES, max_size=2
    ),
    fields=st.dictionaries(
        st.sampled_from([f for f in Tune.model_fields if f not in ("method", "options")]), ODD
    ),
)
def test_any_settings_of_a_search_are_one_sentence_or_valid(name, options, fields):
    def work() -> None:
        config = checked(Tune, {"method": name, "options": options} | fields)
        search_kind(method(config.method, **config.options))

    judged(work)
