"""Closed streams, users without a home, limits of memory, systems without locks: one sentence."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import mistake
from pydantic import BaseModel

from lanternbench.errors import UserError
from lanternbench.models.grids import grid_of
from lanternbench.utils import memory
from lanternbench.utils.files import load_yaml, read_yaml
from lanternbench.utils.ledger import Lines

COMMAND = f"{sys.executable} -m lanternbench"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


def test_a_closed_output_is_one_sentence():
    done = shell(f"{COMMAND} prompts demo -n 1 >&-")
    assert done.returncode == 2
    assert done.stderr == "lanternbench: the output is closed: give it a file or /dev/null\n"


@pytest.mark.parametrize(("args", "code"), [("prompts demo -n 1", 0), ("prompts nothing", 2)])
def test_without_stderr_the_exit_code_says_it(args, code):
    done = shell(f"{COMMAND} {args} 2>&-")
    assert (done.returncode, done.stderr) == (code, "")
    assert (done.stdout != "") is (code == 0)


def test_a_limit_of_virtual_memory_is_named_before_torch_crashes(tmp_path):
    done = shell(f"cd {tmp_path} && ulimit -v 3000000 && {COMMAND} run -m ar")
    assert done.returncode == 2
    assert done.stderr.startswith("lanternbench: virtual memory is limited to 3.1 GB (ulimit -v)")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_system_without_limits_has_none(monkeypatch):
    monkeypatch.setattr(memory, "resource", None)
    memory.check_address_space()
    assert memory.peak_memory() is None
    monkeypatch.setattr(memory, "resource", resource)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10**9, 10**9))
    with pytest.raises(UserError, match=r"limited to 1\.0 GB"):
        memory.check_address_space()


@pytest.mark.parametrize(
    "args",
    [
        ("prompts", "~nosuchuser/a.txt"),
        ("run", "-m", "ar", "--target", "~nosuchuser/model"),
        ("prompts", "coco2017"),
    ],
    ids=" ".join,
)
def test_a_user_without_a_home_is_one_sentence(args, tmp_path, monkeypatch, capfd):
    def no_user(_: object) -> None:
        raise KeyError

    for name in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(pwd, name, no_user)
    for name in ("HOME", "LANTERNBENCH_HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert "has no home folder: write paths out, set LANTERNBENCH_HOME" in mistake(
        monkeypatch, capfd, *args
    )
    assert not list(tmp_path.iterdir())


class Entry(BaseModel):
    key: str


def test_a_file_that_cannot_be_locked_is_not_written(tmp_path, monkeypatch):
    """Two processes could append to it at once."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UserError, match=r"cannot lock .*a\.jsonl \(No locks available\): choose"):
        Lines(tmp_path / "a.jsonl", Entry, lambda entry: entry.key)


@pytest.mark.parametrize("number", ["1:30", "190:20:30", "-1:30.5", "010", "0_1", "-07"])
def test_a_number_that_yaml_reads_in_another_base_is_refused(number, tmp_path):
    (tmp_path / "a.yaml").write_text(f"methods: [ar]\nseed: {number}\n")
    with pytest.raises(UserError, match=r"a\.yaml line 2, column 7 .* base 60 or 8"):
        read_yaml(tmp_path / "a.yaml", "a sweep file")
    assert load_yaml(f"'{number}'") == number


@pytest.mark.parametrize("number", [0, 7, -3, 10, 0.5, 1e-3, 0x10])
def test_other_numbers_of_yaml_are_read(number):
    assert load_yaml(f"{number}") == number


@pytest.mark.parametrize("size", ["08", "8x08", "+8", " 8", "1_0", "8.0", "", "x8"])
def test_a_size_is_written_in_one_way(size):
    with pytest.raises(ValueError, match="is no size: write it as"):
        grid_of(size)


def test_a_pipe_in_place_of_a_sweep_file_keeps_nobody_waiting(tmp_path, in_time):
    path: Path = tmp_path / "a.yaml"
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file"):
        read_yaml(path, "a sweep file")
