"""Protocols of the suite, one a target: what is frozen, and what of a run departs from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lanternbench import prompts
from lanternbench.errors import UserError, unknown
from lanternbench.experiment.config import Sweep, sweep
from lanternbench.measure.figures import BASELINE
from lanternbench.utils.files import read_yaml
from lanternbench.utils.json_values import config_hash

VERSION = "v1"
FOLDER = Path(__file__).parent
_OFF = ("random_weights", "simulate_acceptance", "until_told_apart")  # settings that no protocol has


class Protocol(NamedTuple):
    """``settings``: the frozen ones; ``methods``: entries of a sweep file that are measured by default."""

    name: str  # v1/tiny
    settings: dict[str, Any]
    methods: list[Any]

    @property
    def stamp(self) -> str:
        """Name and hash, as every result has them."""
        return f"{self.name} {config_hash(self.settings)[:16]}"

    @property
    def recipe(self) -> str:
        """The most important frozen settings."""
        s = self.settings
        top_k = f"top-k {s['top_k']}" if s["top_k"] else "no top-k"
        return f"{s['num_prompts']} prompts of {s['prompts']}, T {s['temperature']:g}, {top_k}, CFG {s['guidance']:g}"

    def sweep(self, settings: Mapping[str, Any]) -> Sweep:
        """The run of the protocol, with ``settings`` that it leaves open.  Raises UserError for other prompts."""
        frozen = {k: v for k, v in self.settings.items() if k not in ("prompts_hash", "weights")}
        values = frozen | {"name": f"suite-{self.name.replace('/', '-')}", "methods": self.methods} | dict(settings)
        config = sweep(values, self.name).model_copy(update={"suite": self.stamp})
        chosen = prompts.load(config.prompts, config.num_prompts, config.seed, config.caption)
        if chosen.hash != self.settings["prompts_hash"]:
            text = f"the prompts of {config.prompts} are not those of {self.name} (hash {chosen.hash[:8]}…, not"
            fix = f"give the official file, --prompts {self.settings['prompts']}:FILE"
            raise UserError(f"{text} {self.settings['prompts_hash'][:8]}…): {fix}")
        return config

    def deviations(self, run: Mapping[str, Any]) -> list[str]:
        """What of a run, by its run.json, is not as the protocol has it."""
        config, target = run.get("config") or {}, run.get("target") or {}
        weights = target.get("weights") or {}
        actual = {"repeats": 1} | config | {
            "target": target.get("name"),
            "prompts_hash": (run.get("prompts") or {}).get("hash"),
            "weights": {part: weights.get(part) for part in self.settings.get("weights", ())},
        }  # fmt: skip
        frozen = {name: value for name, value in self.settings.items() if name != "prompts"}  # compared by their hash
        other = {name: value for name, value in frozen.items() if actual.get(name) != value}
        wrong = [f"{name} is {actual.get(name)}, not {value}" for name, value in other.items()]
        wrong += [f"{name} is {config[name]}" for name in _OFF if config.get(name)]
        labels = [method.get("label") for method in run.get("methods") or []]
        return wrong + ([] if BASELINE in labels else [f"it has no baseline {BASELINE}"])


def names() -> list[str]:
    """Targets that have a protocol."""
    return sorted(path.stem for path in (FOLDER / VERSION).glob("*.yaml"))


def protocol(target: str) -> Protocol:
    """The protocol of a target.  Raises UserError for one that has none."""
    if target not in names():
        raise unknown(f"the suite has no target '{target}'", target, names())
    values = read_yaml(FOLDER / VERSION / f"{target}.yaml", "a protocol")
    return Protocol(f"{VERSION}/{target}", values, values.pop("methods"))


def of_stamp(stamp: str | None) -> Protocol | None:
    """The protocol of a name and hash; None where this version does not have it."""
    return next((one for one in map(protocol, names()) if one.stamp == stamp), None)
