"""``python -m lanternbench``: the command line."""

from lanternbench.cli.main import main

main()
