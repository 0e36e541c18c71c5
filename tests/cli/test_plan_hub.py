"""octavo plan org/name against a hub on this machine: which ranges are asked for, and what becomes of them."""

import json
import os
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "1" * 40
CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
WEIGHT_BYTES = 24 * 2**20


def safetensors_file() -> bytes:
    """Returns a file of one tensor that is far larger than its header."""
    header = json.dumps({"x": {"dtype": "BF16", "shape": [WEIGHT_BYTES // 2], "data_offsets": [0, WEIGHT_BYTES]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(WEIGHT_BYTES)


class Hub(ThreadingHTTPServer):
    """A hub with one model.

    Attributes:
        sent: bytes of bodies that were sent, by file.
    """

    def __init__(self, files: dict[str, bytes], *, has_ranges: bool):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.has_ranges = files, has_ranges
        self.sent: Counter[str] = Counter()


class Handler(BaseHTTPRequestHandler):
    """Answers what huggingface_hub asks."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        entries = [{"type": "file", "path": name, "oid": "0", "size": len(body)} for name, body in self.server.files.items()]
        if path.startswith("/api/"):
            listed = "paths-info" in path or "/tree/" in path
            siblings = [{"rfilename": name} for name in self.server.files]
            body: Any = entries if listed else {"id": "org/name", "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
            return
        name = path.rpartition("/")[2]
        if name not in self.server.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        body, wanted = self.server.files[name], self.headers.get("Range")
        status, more = 200, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(body))}
        if wanted and self.server.has_ranges:
            first, last = wanted.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last or len(body)), len(body) - 1)
            status, more["Content-Range"] = 206, f"bytes {start}-{end}/{len(body)}"
            body = body[start : end + 1]
        if self.command != "HEAD":
            self.server.sent[name] += len(body)
        self._send(status, body, more)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running(files: dict[str, bytes], *, has_ranges: bool = True) -> Iterator[Hub]:
    with Hub(files, has_ranges=has_ranges) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def plan(hub: Hub, model: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Runs `octavo plan` in a process of its own, because the hub's client reads its address when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(cache),
        "OCTAVO_CACHE": str(cache),
    }
    command = [sys.executable, "-m", "octavo", "plan", model, "--machine", "dgx-spark", "--json"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_hub_models_weights_are_those_of_its_headers(tmp_path: Path, has_ranges: bool) -> None:
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": safetensors_file()}
    with running(files, has_ranges=has_ranges) as hub:
        result = plan(hub, "org/name", tmp_path)
        sent = hub.sent["model.safetensors"]
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["weights"]["total_bytes"] == WEIGHT_BYTES
    if has_ranges:
        assert sent < 2**20
