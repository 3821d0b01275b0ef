"""Ctrl-C at any moment ends a command with one sentence and exit code 130.

``python tests/cli/test_interrupt.py 200`` interrupts so often and prints what came of it, every 20
times so far.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from lanternbench.cli import interrupts

# Python's own start, before any code of ours, answers Ctrl-C with a traceback: so much of it is
# waited for
START = "print('started', flush=True); from lanternbench.__main__ import main; main()"
PROMPTS = 2
RUN = ["run", "-m", "cool-sd", "-n", str(PROMPTS), "--batch", "2", "--no-baseline"]
FIRST = 0.02  # seconds in which the handler is installed


class Ended(NamedTuple):
    code: int
    said: str
    seconds: float


def interrupt(after: float | None, folder: Path, *args: str) -> Ended:
    """Run a command and press Ctrl-C ``after`` seconds: a terminal sends it to the whole process
    group.
    """

    def hears_ctrl_c() -> None:  # a shell's background jobs, and what they start, ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [sys.executable, "-c", START, *(args or (*RUN, "--out", str(folder)))]
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    process = subprocess.Popen(command, preexec_fn=hears_ctrl_c, cwd=folder, **pipes)
    try:
        assert process.stdout.readline() == "started\n"
        begun = time.monotonic()
        if after is not None:
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    return Ended(process.returncode, said, time.monotonic() - begun)


def fault(ended: Ended) -> str | None:
    """What is wrong with the end of an interrupted command."""
    if ended.code != interrupts.CODE:
        return f"exit code {ended.code}: {ended.said}"
    if "Traceback" in ended.said or ended.said.count(interrupts.SENTENCE) != 1:
        return ended.said
    return None


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 0.15, 0.35, 0.55, 0.75, 0.95])
def test_ctrl_c_at_a_random_moment_ends_with_one_sentence_and_130(share, tmp_path_factory):
    from conftest import write_two_layers  # which the script below is without

    folder = tmp_path_factory.getbasetemp() / "interrupted"
    whole = tmp_path_factory.getbasetemp() / "seconds"
    run = [*RUN, "--target", "shallow", "--out"]
    if not whole.exists():
        write_two_layers(folder / "shallow")
        undisturbed = interrupt(None, folder, *run, str(tmp_path_factory.mktemp("whole")))
        assert undisturbed.code == 0
        whole.write_text(str(undisturbed.seconds))
    rng, seconds = random.Random(share), float(whole.read_text())
    for _ in range(8):
        after = FIRST + share * (0.9 + 0.1 * rng.random()) * seconds
        ended = interrupt(after, folder, *run, str(folder / "results"), "--fresh")
        if ended.seconds > after:
            assert fault(ended) is None
            return
        # it was done before: the machine is faster than when first timed
        seconds = 0.9 * min(seconds, ended.seconds)
    pytest.fail("the command always ended before it was interrupted")


def test_a_second_ctrl_c_does_not_wait_for_the_command_to_clean_up(tmp_path):
    code = (
        "from lanternbench.cli import interrupts, main\n"
        "import os, signal, time\n"
        "interrupts.install()\n"
        "def app(standalone_mode):\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGINT); time.sleep(600)\n"
        "    finally:\n        os.kill(os.getpid(), signal.SIGINT); time.sleep(600)\n"
        "main.app = app\nmain.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (130, interrupts.SENTENCE + "\n")


@pytest.mark.parametrize(
    "swallowed",
    [
        "try:\n    press()\nexcept BaseException:\n    raise RuntimeError('something else')",
        "class Dies:\n    def __del__(self):\n        press()\nDies()\ntime.sleep(600)",
        "import types, builtins\nbuiltins.press = press\nimport presses\ntime.sleep(600)",
    ],
    ids=["becomes another error", "in a finaliser", "in a module that swallows it"],
)
def test_ctrl_c_is_not_lost_in_other_people_s_code(swallowed, tmp_path):
    (tmp_path / "presses.py").write_text("try:\n    press()\nexcept BaseException:\n    pass\n")
    body = swallowed.replace("\n", "\n    ")
    code = (
        "from lanternbench.cli import interrupts, main\n"
        "import os, signal, time\n"
        "interrupts.install()\n"
        "def press():\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(1)\n"
        f"def app(standalone_mode):\n    {body}\n"
        "main.app = app\nmain.main()"
    )
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env
    )
    assert (done.returncode, done.stderr) == (130, interrupts.SENTENCE + "\n")


def resumed_fault(folder: Path) -> str | None:
    """What is wrong with the same command run again in ``folder``, where it was interrupted."""
    ended = interrupt(None, folder, *RUN, "--out", str(folder))
    found = [
        path
        for path in folder.glob("*/samples.jsonl")
        if len(path.read_text().splitlines()) == PROMPTS
    ]
    return (
        None
        if ended.code == 0 and len(found) == 1
        else f"resumed: exit code {ended.code}, {ended.said}"
    )


if __name__ == "__main__":
    trials, rng = int(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        whole = interrupt(None, Path(name)).seconds
        while (done := outcomes["right"] + outcomes["wrong"]) < trials:
            folder = Path(name, f"{sum(outcomes.values())}")
            folder.mkdir()
            moment = FIRST + 1.05 * whole * rng.random()
            ended = interrupt(moment, folder, *RUN, "--out", str(folder))
            if ended.seconds <= moment:
                outcomes["had ended"] += 1
                continue
            bad = fault(ended)
            if bad is None and done % 10 == 0:
                bad = resumed_fault(folder)
                outcomes["resumed"] += 1
            if bad is not None:
                print(f"{moment:.3f} of {whole:.1f} s: {bad}", flush=True)
            outcomes["right" if bad is None else "wrong"] += 1
            if done % 20 == 19:
                print(dict(outcomes), flush=True)
    print(dict(outcomes))
