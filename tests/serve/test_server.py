"""The server itself, started as users start it and spoken to over a socket."""

from __future__ import annotations

import gzip
import html
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from astra.serve.pages import OPENING
from tests.serve.server import JSON, Server

pytest.importorskip("starlette", reason="astra serve needs the extra [serve]")
pytest.importorskip("uvicorn", reason="astra serve needs the extra [serve]")

ASKED = {"model": "llama-2-7b", "gpus": ["8xH100"], "batch": 64, "seq": 2048}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    code, said = started.end()
    assert code == 0
    assert "Traceback" not in said


def test_the_page_and_its_parts_come_with_headers_for_browsers(server: Server) -> None:
    status, headers, page = server.ask("GET", "/")
    assert status == 200
    parts = re.findall(r'(?:href|src)="(/[a-z.]+)"', page.decode())
    assert len(parts) >= 4
    for part in ("/", *parts, "/fleet.js", "/form.js", "/api.js"):
        status, headers, _ = server.ask("GET", part)
        assert status == 200, part
        policy = headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert server.ask("GET", part, None, {"If-None-Match": headers["etag"]})[0] == 304
    assert not re.search(rb"<script(?![^>]*\bsrc=)|\son[a-z]+=|(?:href|src)=\"(?:https?:)?//", page)


def test_the_page_comes_with_the_answer_to_what_its_form_asks(server: Server) -> None:
    assert server.ask("POST", "/api/view", OPENING, JSON)[0] == 200
    until_s = time.monotonic() + 300
    while b"data-asked" not in (page := server.ask("GET", "/")[2]):  # a worker is asked as soon as there is one
        assert time.monotonic() < until_s, "the page comes without its answer"
        time.sleep(0.05)
    found = re.search(r'<div id="result" data-asked="([^"]*)">', page.decode())
    assert found is not None
    assert html.unescape(found.group(1)).encode() == OPENING
    other = server.ask("GET", "/?model=llama-2-7b")[2]
    assert b"data-asked" not in other, "another address asks for something else"


def test_what_is_long_is_packed_for_whoever_can_unpack(server: Server) -> None:
    _, _, plain = server.ask("GET", "/api/catalog")
    status, headers, packed = server.ask("GET", "/api/catalog", None, {"Accept-Encoding": "gzip"})
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 5


def test_answers_come_and_wrong_ones_are_told(server: Server) -> None:
    status, plan = server.post("plan", ASKED)
    assert status == 200
    assert plan["schema"] == "astra.plan/1"
    status, said = server.post("plan", {**ASKED, "batch": 0})
    assert status == 422
    assert said["where"] == "batch"
    assert server.ask("GET", "/api/catalog")[0] == 200
    assert json.loads(server.ask("GET", "/api/openapi.json")[2])["openapi"].startswith("3.1")


@pytest.mark.parametrize(
    ("host", "answered"),
    [("127.0.0.1", True), ("localhost", True), ("LOCALHOST.", True), ("[::1]", True), ("10.1.2.3", True),
     ("planner.example", True), ("evil.example", False), ("127.0.0.1.evil.example", False), ("localhost.evil", False),
     ("", False)],
)  # fmt: skip
def test_only_known_hosts_are_answered(server: Server, host: str, answered: bool) -> None:
    for name in (host, f"{host}:{server.port}"):
        status, headers, content = server.ask("GET", "/api/openapi.json", None, {"Host": name})
        assert status == (200 if answered else 403), name
        assert "content-security-policy" in headers
        if not answered:
            assert "host name" in json.loads(content)["error"]


def test_pages_of_other_sites_may_not_ask(server: Server) -> None:
    assert server.post("estimate", {**ASKED, "strategy": "tp8"}, Origin="https://evil.example")[0] == 403
    assert server.post("estimate", {**ASKED, "strategy": "tp8"}, Origin="null")[0] == 403
    own = f"127.0.0.1:{server.port}"
    assert server.post("estimate", {**ASKED, "strategy": "tp8"}, Origin=f"http://{own}", Host=own)[0] == 200
    # What a form of another site may send without asking first.
    status, _, _ = server.ask("POST", "/api/plan", json.dumps(ASKED).encode(), {"Content-Type": "text/plain"})
    assert status == 415


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/api/plan", 405), ("POST", "/", 405), ("DELETE", "/api/catalog", 405), ("GET", "/nothing", 404),
     ("GET", "/../pyproject.toml", 404), ("GET", "/%2e%2e/app.py", 404), ("GET", "/static/main.js", 404),
     ("GET", "//etc/passwd", 404), ("GET", "/api/", 404)],
)  # fmt: skip
def test_there_is_nothing_else(server: Server, method: str, path: str, status: int) -> None:
    found, headers, content = server.ask(method, path)
    assert found == status
    assert set(json.loads(content)) == {"error", "where", "want", "fix"}
    assert headers["x-content-type-options"] == "nosniff"


def test_bodies_are_bounded(server: Server) -> None:
    large = b" " * (1024 * 1024 + 1)
    assert server.ask("POST", "/api/plan", large, JSON)[0] == 413
    link = socket.create_connection(("127.0.0.1", server.port), 30)
    head = (
        "POST /api/plan HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    )
    link.sendall("\r\n".join([*head, "", ""]).encode())
    try:
        for _ in range(40):
            link.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    except OSError:
        pass  # it has hung up already
    assert b" 413 " in link.recv(100)
    link.close()


def test_a_client_that_goes_away_leaves_the_server_free(server: Server) -> None:
    """Many long searches are begun and left; a short one is answered at once, not after all of them."""
    long = {"model": "llama-2-70b", "tokens": "1T", "mixes": "all", "max_gpus": 2048}
    for number in range(12):
        body = json.dumps({**long, "batch": 512 + number}).encode()
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        link.request("POST", "/api/rent", body, JSON)
        link.close()
    began = time.monotonic()
    assert server.post("estimate", {**ASKED, "batch": 32, "strategy": "tp8"})[0] == 200
    assert time.monotonic() - began < 60


def test_a_port_that_is_taken_is_told_in_a_sentence(server: Server) -> None:
    words = [sys.executable, "-m", "astra", "serve", "--port", str(server.port)]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 5
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr
