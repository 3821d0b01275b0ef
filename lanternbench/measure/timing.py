"""The setting in which a sample was timed: what of its environment changes a time."""

from collections.abc import Iterable, Mapping
from typing import Any

from lanternbench.utils.json_values import config_hash, differences

SETTING = (  # from other machines to other versions
    *("lanternbench", "python", "torch", "platform", "cpu", "cores", "threads", "cuda", "gpus"),
    *("device", "dtype", "compile", "executor", "workers"),
)
MOMENTARY = ("sm_clock_mhz", "memory_clock_mhz")


def without_momentary(environment: Any) -> Any:
    """An environment without what changes from moment to moment."""
    if isinstance(environment, Mapping):
        return {k: without_momentary(v) for k, v in environment.items() if k not in MOMENTARY}
    return [without_momentary(item) for item in environment] if isinstance(environment, list) else environment


def setting(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of an environment that changes times."""
    return {k: v for k, v in without_momentary(environment or {}).items() if k in SETTING}


def setting_name(environment: Mapping[str, Any] | None) -> str | None:
    """A name that two environments share if their settings are the same; None where there is none."""
    values = setting(environment)
    return config_hash(values)[:8] if values else None


def setting_changes(environments: Iterable[Mapping[str, Any]]) -> list[str]:
    """What differs between the first environment's setting and the others', each once."""
    settings = [values for environment in environments if (values := setting(environment))]
    return list(dict.fromkeys(line for other in settings[1:] for line in differences(settings[0], other)))
