"""A sweep shared out to workers on Ray: the same results, whatever becomes of the workers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import interrupted, mistake

from lanternbench import experiment as results
from lanternbench.cli.main import main
from lanternbench.errors import UserError
from lanternbench.experiment import config, on_ray, worker
from lanternbench.experiment import runner as sweeps
from lanternbench.experiment.config import read_sweeps

ALONE = config.sweep(
    {
        "methods": ["eagle-1", {"method": "cool-sd", "lambda": 2}],
        "num_prompts": 2,
        "metrics": ["clip"],
    }
)
SCORED = config.sweep(
    {
        "target": "shallow",
        "methods": ["eagle-1", {"method": "cool-sd", "lambda": 2}],
        "num_prompts": 2,
        "metrics": ["clip"],
    }
)
BATCHED = config.sweep(
    {"target": "shallow", "methods": ["sjd"], "num_prompts": 4, "batch": 2, "metrics": []}
)


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """A local cluster that the tests of this file share."""
    if not importlib.util.find_spec("ray"):
        pytest.skip("Ray is not installed")
    assert on_ray.connect("local", cpus=2)
    yield
    on_ray.ray().shutdown()


def at(count: int, act: Callable[[], None]) -> sweeps.Progress:
    """Acts once, when so many samples are done."""
    left = [act]

    def progress(done: int, of: int, what: str) -> None:
        if done >= count and left:
            left.pop()()

    return progress


def interrupt() -> None:
    raise KeyboardInterrupt


def killed(folder: Path) -> Callable[[], None]:
    """Kills the worker that made the last sample."""

    def kill() -> None:
        os.kill(devices(folder)[-1]["process"], signal.SIGKILL)

    return kill


def devices(folder: Path) -> list[dict]:
    return [
        json.loads(line)
        for path in folder.glob("*/devices.jsonl")
        for line in path.read_text().splitlines()
    ]


def known(folder: Path) -> dict[str, tuple]:
    """What must be the same, by key."""
    samples = results.read_samples(results.latest(folder))
    assert len({s.key for s in samples}) == len(samples)
    return {s.key: (s.token_ids, s.metrics, s.fidelity_loss, s.accept_lengths) for s in samples}


@pytest.mark.slow
def test_workers_continue_a_local_sweep_to_its_results_though_one_is_killed(
    ray, two_layers_here, tmp_path
):
    undisturbed, shared = tmp_path / "local", tmp_path / "ray"
    sweeps.run(SCORED, undisturbed)
    with pytest.raises(KeyboardInterrupt):
        sweeps.run(SCORED, shared, watch=sweeps.Callbacks(at(1, interrupt)))
    before = results.read_samples(results.latest(shared))
    assert len(before) == 1
    workers = worker.executor("ray", workers=2)
    path, summary = sweeps.run(
        SCORED, shared, executor=workers, watch=sweeps.Callbacks(at(3, killed(shared)))
    )
    after = results.read_samples(path)
    # times included
    assert [s.model_dump() for s in after[:1]] == [s.model_dump() for s in before]
    assert known(shared) == known(undisturbed)
    assert len(devices(shared)) == 5
    assert len({d["process"] for d in devices(shared)}) in (2, 3)
    assert results.read_run(path).resumed[0].environment.workers == 2
    assert any(
        "2 workers measured latencies at the same time" in note.text for note in summary.notes
    )
    assert summary.costs["clip-tiny"].images == 5


@pytest.mark.slow
def test_workers_compute_at_the_priority_of_the_command(ray):
    module = on_ray.ray()
    assert module.get(module.remote(lambda: os.nice(0)).remote()) == os.nice(0)


@pytest.mark.slow
def test_too_many_losses_are_one_sentence_and_another_executor_continues(
    ray, two_layers_here, tmp_path, monkeypatch
):
    monkeypatch.setattr(on_ray, "ATTEMPTS", 1)
    undisturbed, shared = tmp_path / "local", tmp_path / "ray"
    workers = worker.executor("ray", workers=2)
    with pytest.raises(
        UserError, match=r"lost 1 worker\(s\) in turn over (ar|sjd) · .*the same command continues"
    ):
        sweeps.run(
            BATCHED, shared, executor=workers, watch=sweeps.Callbacks(at(2, killed(shared)))
        )
    before = results.read_samples(results.latest(shared))
    assert 2 <= len(before) < 8
    sweeps.run(BATCHED, shared)
    after = results.read_samples(results.latest(shared))
    assert [s.model_dump() for s in after[: len(before)]] == [s.model_dump() for s in before]
    sweeps.run(BATCHED, undisturbed)
    assert known(shared) == known(undisturbed)


@pytest.mark.slow
def test_a_worker_s_mistake_is_the_caller_s(ray, tmp_path):
    wrong = config.sweep({"methods": ["ar"], "target": "nope"})
    with pytest.raises(UserError, match="unknown target 'nope'"):
        sweeps.run(wrong, tmp_path, executor=worker.executor("ray", workers=1))
    with pytest.raises(
        UserError, match=r"9 worker\(s\) with 1 CPU\(s\) each are more than the cluster has free"
    ):
        sweeps.run(wrong, tmp_path, executor=worker.executor("ray", workers=9))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "ar.yaml").write_text("methods: [ar]\nmetrics: []\n")
    command = [
        sys.executable,
        "-m",
        "lanternbench",
        "sweep",
        "ar.yaml",
        "--executor",
        "ray",
        "--workers",
        "1",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    said = interrupted(
        command, tmp_path, lambda: bool(devices(tmp_path / "results")), env=environment
    )
    progress = r"\[|The load is|.*so far$"  # the machine may be busy
    assert [line for line in said.splitlines() if not re.match(progress, line)] == [
        "lanternbench: interrupted; the same command continues where it stopped"
    ]
    worker = Path(f"/proc/{devices(tmp_path / 'results')[0]['process']}/cmdline")
    assert not worker.exists() or "lanternbench" not in worker.read_text()


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "127.0.0.1:1", "127.0.0.1"])
def test_an_address_where_no_cluster_answers_is_one_sentence(
    address, tmp_path, monkeypatch, capfd
):
    """Not what Ray prints about it either, though something else may listen there."""
    pytest.importorskip("ray")
    monkeypatch.setattr(on_ray, "PATIENCE", 1.0)
    monkeypatch.setattr(on_ray.ray(), "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = address.format(port=silent.getsockname()[1])
        options = ("--executor", "ray", "--ray-address", where, "--out", str(tmp_path))
        said = mistake(monkeypatch, capfd, "sweep", "configs/demo.yaml", *options)
    assert f"no Ray cluster answers at {where} (" in said
    assert said.strip().endswith("give HOST:PORT of a running one, or --executor local")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--executor", "ray"], "pip install 'lanternbench[ray]'"),
        (["--executor", "slurm"], "unknown executor 'slurm': use local or ray"),
        (["--workers", "2"], "--workers goes with --executor ray"),
        (["--executor", "ray", "--workers", "0"], "'workers' is wrong (must be at least 1)"),
        (["--time-budget", "-1"], "'time_budget' is wrong (must be at least 0)"),
        (["--ray-address", "auto"], "--ray-address goes with --executor ray"),
    ],
)
def test_a_mistake_about_executors_is_one_sentence(args, says, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    assert says in mistake(
        monkeypatch, capfd, "sweep", "configs/demo.yaml", *args, "--out", str(tmp_path)
    )
    assert not list(tmp_path.iterdir())


def process_of_the_cluster(name: str) -> int:
    """Its process id, of the cluster that this process started."""
    processes = [path.read_text().split() for path in Path("/proc").glob("[0-9]*/stat")]
    [found] = [int(p[0]) for p in processes if p[1] == f"({name})" and int(p[3]) == os.getpid()]
    return found


@pytest.mark.slow
def test_a_large_answer_is_not_asked_for_where_ray_would_end_this_process(monkeypatch):
    pytest.importorskip("ray")
    on_ray.connect("local", cpus=2)
    monkeypatch.setattr(on_ray, "RESTART", 1.0)
    workers = on_ray.RayExecutor()
    workers.connection = on_ray.Connection()
    # it is waited for more than once, as on a slow machine
    monkeypatch.setattr(on_ray, "PULSE", 0.05)

    def answer() -> bytes:
        time.sleep(1)
        return bytes(2**20)  # too large for anything but the node's object store

    call = on_ray.ray().remote(answer).remote()
    assert workers._first([call]) == call
    os.kill(process_of_the_cluster("raylet"), signal.SIGKILL)
    while on_ray.is_listening(workers.connection.raylet):  # it takes a moment to die
        time.sleep(0.1)
    with pytest.raises(
        UserError, match=r"the node process \(raylet\) of the Ray cluster at .* is gone"
    ):
        workers._get(call)
    assert list(workers._finished({call: (None, [])})) == []
    on_ray.ray().shutdown()  # another test gets another cluster


@pytest.mark.slow
def test_workers_whose_last_node_is_lost_are_not_waited_for_without_end(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    on_ray.ray().shutdown()  # another test gets another cluster
    monkeypatch.setattr(on_ray, "NEW_NODE", 1.0)
    here = {"include_dashboard": False, "object_store_memory": on_ray.STORE}
    nodes = Cluster(initialize_head=True, head_node_args=here | {"num_cpus": 0})
    try:
        node = nodes.add_node(num_cpus=1, **here)
        workers = worker.executor("ray", workers=1, address=nodes.address)
        lost = sweeps.Callbacks(at(1, lambda: nodes.remove_node(node, allow_graceful=False)))
        with pytest.raises(
            UserError,
            match=r"no node that is left in the Ray cluster has 1 CPU\(s\) for a worker: .*",
        ):
            sweeps.run(ALONE, tmp_path, executor=workers, watch=lost)
        assert 1 <= len(results.read_samples(results.latest(tmp_path))) < 6
    finally:
        on_ray.ray().shutdown()
        nodes.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "name"), [("gcs_server", "control process"), ("raylet", "node process (raylet)")]
)
def test_a_lost_process_of_the_cluster_is_one_sentence_and_the_finished_images_stay(
    process, name, two_layers_here, monkeypatch, capfd
):
    pytest.importorskip("ray")
    # where there is none: the sweep joins it, as it would another's
    on_ray.connect("local", cpus=2)
    monkeypatch.setattr(on_ray, "RESTART", 1.0)
    monkeypatch.setattr(on_ray, "PULSE", 0.2)  # nine images take seconds
    Path("ar.yaml").write_text("target: shallow\nmethods: [ar]\nnum_prompts: 9\nmetrics: []\n")
    command = ["lanternbench", "sweep", "ar.yaml", "--executor", "ray", "--workers", "1"]
    lost = process_of_the_cluster(process)

    def kill_after_an_image() -> None:
        while not devices(Path("results")):
            time.sleep(0.1)
        os.kill(lost, signal.SIGKILL)

    threading.Thread(target=kill_after_an_image, daemon=True).start()
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as exit_:
        main()
    on_ray.ray().shutdown()  # another test gets another cluster
    assert exit_.value.code == 2
    *lines, sentence = capfd.readouterr().err.splitlines()
    images = [line for line in lines if line.startswith("[")]
    assert sentence.startswith(f"lanternbench: the {name} of the Ray cluster at ")
    assert sentence.endswith(
        "the same command continues on a running cluster, or with --executor local"
    )
    before = results.read_samples(results.latest(Path("results")))
    assert 0 < len(images) == len(before) < 9
    sweeps.run(*read_sweeps(Path("ar.yaml"), {}), Path("results"))
    after = results.read_samples(results.latest(Path("results")))
    assert len(after) == 9
    assert [s.model_dump() for s in after[: len(before)]] == [s.model_dump() for s in before]
