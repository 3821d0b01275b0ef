"""What networks do to downloads: a file is under its name only if it is the file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from lanternbench.errors import UserError
from lanternbench.experiment import fetching
from lanternbench.models.entries import entry
from lanternbench.utils.download import Remote, download

pytestmark = pytest.mark.usefixtures("in_time")
CONTENT = bytes(range(256)) * 4000
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def serve():
    """Starts a server that answers each request as a function tells, and returns its address."""
    running = []

    def start(answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer(self)

            def log_message(self, *args):
                pass

        running.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[0].serve_forever, args=[0.01], daemon=True).start()
        return f"http://127.0.0.1:{running[0].server_port}/file"

    yield start
    for server in running:
        server.shutdown()


def send(request, body: bytes, status: int = 200, **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)


def chunked(request, body: bytes) -> None:
    request.protocol_version = "HTTP/1.1"
    send(request, body, Transfer_Encoding="chunked")


FAULTS = {
    "a login page": (
        lambda r: send(r, b"<html>log in", Content_Type="text/html", Content_Length="12"),
        "",
        "web page",
    ),
    "a login page in place of a known file": (
        lambda r: send(
            r, b"<html>log in", Content_Type="text/html; charset=utf-8", Content_Length="12"
        ),
        SHA,
        "web page",
    ),
    "half a body": (
        lambda r: send(r, CONTENT[:100], Content_Length=str(len(CONTENT))),
        "",
        "no connection",
    ),
    "half a body of no stated length": (lambda r: send(r, CONTENT[:100]), "", "gives no length"),
    "half a body of a known file": (
        lambda r: send(r, CONTENT[:100]),
        SHA,
        "not the published file",
    ),
    "half a chunk": (lambda r: chunked(r, b"ff\r\nabc"), SHA, "broke"),
    "a length that is none": (
        lambda r: send(r, CONTENT, Content_Length="many"),
        "",
        "gives no length",
    ),
    "an answer that is no HTTP": (lambda r: r.wfile.write(b"220 smtp ready\r\n"), SHA, "broke"),
    "a redirection without end": (
        lambda r: send(r, b"", 302, Location="/file"),
        SHA,
        "answers 302",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_the_file_is_refused_in_one_sentence(fault, serve, tmp_path):
    answer, sha, says = FAULTS[fault]
    with pytest.raises(UserError, match=says) as refused:
        download(Remote("it", serve(answer), tmp_path / "it.bin", sha))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "it.bin").exists()


def test_a_file_that_nothing_checks_starts_again_from_nothing(serve, tmp_path):
    (tmp_path / "it.bin.part").write_bytes(b"of an older version")
    asked = []

    def answer(request):
        asked.append(request.headers.get("Range"))
        send(request, CONTENT, Content_Length=str(len(CONTENT)))

    assert download(Remote("it", serve(answer), tmp_path / "it.bin")).read_bytes() == CONTENT
    assert asked == [None]


def test_a_server_that_continues_elsewhere_is_not_believed(serve, tmp_path):
    (tmp_path / "it.bin.part").write_bytes(CONTENT[:500])
    url = serve(
        lambda r: send(r, CONTENT, 206, Content_Range=f"bytes 0-{len(CONTENT)}/{len(CONTENT)}")
    )
    with pytest.raises(UserError, match="does not continue at byte 500"):
        download(Remote("it", url, tmp_path / "it.bin", SHA))


def test_a_planted_link_is_not_followed(serve, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "it.bin.part").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"it\.bin\.part"):
        download(Remote("it", serve(lambda r: send(r, CONTENT)), tmp_path / "it.bin", SHA))
    assert (tmp_path / "victim").read_text() == "precious"


def test_two_processes_that_fetch_one_file_transfer_it_once(serve, tmp_path):
    asked = []

    def answer(request):
        asked.append(request.path)
        request.send_response(200)
        request.send_header("Content-Length", str(len(CONTENT)))
        request.end_headers()
        for start in range(0, len(CONTENT), 2**17):
            request.wfile.write(CONTENT[start : start + 2**17])
            time.sleep(0.1)

    url, path = serve(answer), tmp_path / "it.bin"
    code = (
        "import sys; from pathlib import Path; from lanternbench.utils.download import *\n"
        "download(Remote('it', sys.argv[1], Path(sys.argv[2]), sys.argv[3]))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url, str(path), SHA]) for _ in range(3)
    ]
    assert [p.wait() for p in processes] == [0, 0, 0]
    assert path.read_bytes() == CONTENT
    assert asked == ["/file"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".it.bin.sha256", "it.bin"]


@pytest.mark.parametrize("name", ["../../evil.json", "/etc/evil.json", "a/../../evil.json"])
def test_a_repository_that_names_files_outside_itself_is_refused(name, monkeypatch):
    row = entry("llamagen-xl-stage1")
    pattern = next(iter(row.files.values())).files[0]
    listed = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=1, lfs=None)])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **options: listed)
    monkeypatch.setattr(fetching.fnmatch, "fnmatch", lambda found, wanted: wanted == pattern)
    with pytest.raises(UserError, match="outside itself"):
        fetching.plan(row)
