"""A small Hugging Face Hub on 127.0.0.1 that serves a folder and counts what it sends.

It has the routes that huggingface_hub asks: a model's info, its file tree, and its files by HEAD
and by GET with ranges.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "some-org/some-model"
TOKEN = "hf_secret"


class FakeHub(ThreadingHTTPServer):
    """`sent` counts body bytes by file; the flags set its manners.

    `failures` are statuses that the next requests get, `fail_once` is a file that gets one 503.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.sent: Counter[str] = Counter()
        self.requests: list[str] = []
        self.ranges = True
        self.gated = False
        self.private = False
        self.portal = False
        self.failures: list[int] = []
        self.fail_once = ""
        self.lists_sizes = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up early is no error here."""


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        hub = self.server
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if hub.failures:
            self.refuse(hub.failures.pop(0), "")
        elif hub.portal:
            self.send("", 200, b"<html>Please log in</html>", {})
        elif hub.fail_once and path.endswith(hub.fail_once):
            hub.fail_once = ""
            self.refuse(503, "")
        elif hub.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401, "RepoNotFound")
        elif match := re.fullmatch(rf"/api/models/{MODEL}(?:/(revision|tree)/(.+))?", path):
            self.describe(match[1] or "revision", match[2] or "main")
        elif match := re.fullmatch(rf"/{MODEL}/resolve/([^/]+)/(.+)", path):
            self.serve(match[1], match[2])
        else:
            self.refuse(404, "RepoNotFound")

    def describe(self, what: str, revision: str) -> None:
        if revision not in {"main", COMMIT}:
            self.refuse(404, "RevisionNotFound")
            return
        files = [path for path in sorted(self.server.folder.rglob("*")) if path.is_file()]
        paths = [(path.relative_to(self.server.folder).as_posix(), path.stat().st_size) for path in files]
        if what == "tree":
            answer: object = [{"type": "file", "path": p, "size": size, "oid": etag(p)} for p, size in paths]
        else:
            siblings = [{"rfilename": p, "size": size} for p, size in paths]
            if not self.server.lists_sizes:
                siblings = [{"rfilename": p} for p, _ in paths]
            answer = {"id": MODEL, "sha": COMMIT, "siblings": siblings}
        self.send("", 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def serve(self, revision: str, name: str) -> None:
        path = self.server.folder / name
        if revision not in {"main", COMMIT}:
            self.refuse(404, "RevisionNotFound")
        elif self.server.gated:
            self.refuse(403, "GatedRepo")
        elif not path.is_file():
            self.refuse(404, "EntryNotFound")
        else:
            self.send_file(name, path.read_bytes())

    def send_file(self, name: str, body: bytes) -> None:
        headers = {"ETag": f'"{etag(name)}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked or not self.server.ranges:
            self.send(name, 200, body, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(body)) + 1, len(body))
        if start >= len(body):
            self.send(name, 416, b"", {"Content-Range": f"bytes */{len(body)}"})
        else:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            self.send(name, 206, body[start:stop], headers)

    def refuse(self, status: int, code: str) -> None:
        self.send("", status, b"", {"X-Error-Code": code} if code else {})

    def send(self, name: str, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        headers = {"X-Repo-Commit": COMMIT, "Content-Length": str(len(body)), **headers}
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            for start in range(0, len(body), 1 << 16):
                chunk = body[start : start + (1 << 16)]
                self.wfile.write(chunk)
                self.server.sent[name] += len(chunk)


def etag(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


@contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """Serves `folder` as the model `some-org/some-model` until the block ends."""
    with FakeHub(folder) as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
