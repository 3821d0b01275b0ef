"""The command ``lanternbench``, also as ``python -m lanternbench``."""

import sys
from importlib.util import find_spec

from lanternbench.cli import interrupts


def main() -> None:
    """Run the command line.  Ctrl-C is handled from the first import until Python's exit."""
    interrupts.install()
    code: object = None
    try:
        if find_spec("typer") is None:
            from lanternbench.doctor.bare import main as command_line
        else:
            from lanternbench.cli.main import main as command_line

        command_line()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    interrupts.finish(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
