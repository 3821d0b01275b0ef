"""``doctor --gpu`` without typer and rich, for a GPU machine that has little more than torch."""

import sys

from lanternbench.errors import UserError


def main() -> None:
    """Run ``doctor --gpu``; say what is missing for any other command."""
    try:
        checked = _checks(sys.argv[1:])
    except UserError as error:
        print(f"lanternbench: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if not checked:
        raise SystemExit(1)


def _checks(arguments: list[str]) -> bool:
    """Print the checks; return whether none failed."""
    if arguments != ["doctor", "--gpu"]:
        raise UserError(
            "this Python lacks typer, which every command but `doctor --gpu` needs: "
            "`pip install --editable .` in the checkout brings it"
        )
    from lanternbench.doctor.gpu import check_gpu
    from lanternbench.experiment.environment import environment
    from lanternbench.utils.device import choose

    checks = check_gpu(choose("auto"), environment()["gpus"])
    for check in checks:
        verdict = {True: "ok", False: "FAILED", None: ""}[check.ok]
        print(f"{check.item:24} {check.value}  {verdict}".rstrip())
    return all(check.ok is not False for check in checks)
