"""Runs of a short suite without any clock: every time is set by hand."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator
from run_records import run_record

from lanternbench import prompts
from lanternbench.experiment import RunFolder
from lanternbench.experiment.config import expand
from lanternbench.experiment.run_folder import read_run
from lanternbench.measure.samples import Sample, sample_key
from lanternbench.measure.summary import summarise
from lanternbench.methods.method import method
from lanternbench.suite import protocol
from tools.schemas import FOLDER

PROMPTS = 6
ENVIRONMENT = {
    "lanternbench": "0.2.0", "commit": "a" * 40, "torch": "2.9", "cpu": "Quiet CPU", "cores": 2, "threads": 1,
    "gpus": [], "device": "cpu", "dtype": "float32", "compile": "eager",
}  # fmt: skip


def short_protocol(monkeypatch, tmp_path: Path) -> protocol.Protocol:
    """The tiny protocol on a few prompts, in place of the package's."""
    whole = protocol.protocol("tiny")
    short = prompts.load("demo", PROMPTS)
    text = (protocol.FOLDER / "v1" / "tiny.yaml").read_text()
    text = text.replace(whole.settings["prompts_hash"], short.hash).replace(
        "num_prompts: 32", f"num_prompts: {PROMPTS}"
    )
    (tmp_path / "protocols" / "v1").mkdir(parents=True)
    (tmp_path / "protocols" / "v1" / "tiny.yaml").write_text(text)
    monkeypatch.setattr(protocol, "FOLDER", tmp_path / "protocols")
    return protocol.protocol("tiny")


def measured(prompt: prompts.Prompt, name: str, i: int, **changes) -> Sample:
    """One image of four tokens; ``ar`` takes a step for each, another method half as many."""
    made, lengths = method(name), [1, 1, 1, 1] if name == "ar" else [1, 3]
    step = 0.01 * (1 + i / 10)
    fields = {
        "key": sample_key(prompt.id, made.key, 0), "prompt_id": prompt.id, "prompt": prompt.text, "label": made.label,
        "method": name, "options": made.options, "seed": 0, "tokens": 4, "steps": len(lengths),
        "accept_lengths": lengths, "tree_depths": [0] + [0 if name == "ar" else 5] * (len(lengths) - 1),
        "decode_s": step * (len(lengths) + 1), "step_s": [step] * len(lengths), "cpu_s": step * (len(lengths) + 1),
        "threads": 1, "load": 1.0, "fidelity_loss": 0.0, "metrics": {"clip-tiny": 0.3 + i / 100},
        "token_ids": [1, 2, 3, 4],
    }  # fmt: skip
    return Sample(**(fields | changes))


def suite_run(
    root: Path, found: protocol.Protocol, skip=(), environment=ENVIRONMENT, **changes
) -> Path:
    """A finished run folder of ``ar`` and ``eagle-1``; ``skip``: (method, index of prompt) left
    out.
    """
    config = found.sweep({"methods": ["eagle-1"], "prompts": "demo"})
    chosen = prompts.load("demo", config.num_prompts)
    weights = found.settings["weights"] | {"eagle": "ab"}
    with RunFolder.open(root, run_record("suite-v1-tiny-0", config.record() | {"device": "cpu"}, environment=environment, prompts=chosen.record(), target={"name": "tiny", "grid": [2, 2], "evaluators": "tiny", "weights": weights}, methods=[{"label": m.label, "key": m.key, "method": m.preset, "options": m.options, "lossless": True}
                 for m in expand(config)])) as folder:  # fmt: skip
        for i, prompt in enumerate(chosen):
            for name in ("eagle-1", "ar"):
                if (name, i) not in skip and sample_key(
                    prompt.id, method(name).key, 0
                ) not in folder.samples.keys:
                    folder.append(measured(prompt, name, i, **changes))
        folder.finish(summarise(folder.figures, read_run(folder.path)))
        return folder.path


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / f"{name}.schema.json").read_text()))
