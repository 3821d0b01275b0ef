"""The command ``lanternbench``, also as ``python -m lanternbench``."""

from __future__ import annotations

from lanternbench.cli import interrupts


def main() -> None:
    """Handle Ctrl-C first: the imports of the commands take seconds."""
    interrupts.install()
    from lanternbench.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
