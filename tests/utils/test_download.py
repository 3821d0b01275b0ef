"""A download continues where it stopped and is never taken for whole when it is not."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lanternbench.errors import UserError
from lanternbench.utils.download import Remote, download

CONTENT = bytes(range(256)) * 9000  # 2.3 MB
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    """Serves ``content`` with ranges; closes the connection after ``cut`` bytes where that is set."""

    class Handler(BaseHTTPRequestHandler):
        content, cut, ranges = CONTENT, None, []

        def do_GET(self):
            if self.path != "/file":
                self.send_error(404)
                return
            wanted = self.headers.get("Range")
            Handler.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(self.content) - start))
            self.end_headers()
            self.wfile.write(self.content[start : self.cut])

        def log_message(self, *args):
            pass

    Handler.ranges = []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, args=[0.01], daemon=True).start()
    Handler.url = f"http://127.0.0.1:{running.server_port}/file"
    yield Handler
    running.shutdown()


def test_a_file_arrives_whole_and_is_fetched_once(server, tmp_path):
    path = download(Remote("it", server.url, tmp_path / "a" / "it", SHA))
    assert path.read_bytes() == CONTENT
    download(Remote("it", server.url, path, SHA))
    assert server.ranges == [None]


def test_an_interrupted_download_continues_where_it_stopped(server, tmp_path):
    server.cut = 1_500_000
    with pytest.raises(UserError, match="it continues"):
        download(Remote("it", server.url, tmp_path / "it", SHA))
    assert not (tmp_path / "it").exists()
    server.cut = None
    assert download(Remote("it", server.url, tmp_path / "it", SHA)).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1500000-"]


def test_a_file_of_another_content_is_refused_and_removed(server, tmp_path):
    with pytest.raises(UserError, match="not the published file"):
        download(Remote("it", server.url, tmp_path / "it", "0" * 64))
    assert list(tmp_path.iterdir()) == []


def test_only_the_wanted_member_of_an_archive_is_kept(server, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("other/../../evil.txt", "no")
        archive.writestr("annotations/captions.json", "{}")
    server.content = packed.getvalue()
    sha = hashlib.sha256(b"{}").hexdigest()
    made = download(
        Remote("it", server.url, tmp_path / "c.json", sha, "annotations/captions.json")
    )
    assert made.read_text() == "{}"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".c.json.sha256", "c.json"]


@pytest.mark.parametrize(("where", "says"), [("x", "answers 404"), (None, "no connection")])
def test_an_address_that_does_not_serve_is_one_sentence(server, tmp_path, where, says):
    url = server.url + where if where else "http://127.0.0.1:9/file"
    with pytest.raises(UserError, match=says):
        download(Remote("it", url, tmp_path / "it"))
