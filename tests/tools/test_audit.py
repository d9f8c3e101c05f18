"""Known faults are told of the version that was asked about, and of no other."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tools import audit

FAULT = {"id": "PYSEC-1"}
RECORDS = {
    "/whole/json": {"info": {"version": "2"}, "vulnerabilities": [FAULT, {"id": "OLD", "withdrawn": "2020-01-01"}]},
    "/each/1/json": {"info": {"version": "1"}, "vulnerabilities": []},
    "/each/json": {"info": {"version": "3"}, "vulnerabilities": [FAULT]},
}


class _Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = RECORDS.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode() if found else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), _Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(audit, "INDEX", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("package", "faults"),
    [
        (("whole", "2"), ("PYSEC-1",)),  # the newest version, told by the project; what was withdrawn is none
        (("whole", "1"), None),  # an older one of which nobody tells
        (("each", "1"), ()),  # told by the version itself, whatever the newest has
        (("nobody", "1"), None),
    ],
)
def test_faults_are_of_the_version_asked_about(package: tuple[str, str], faults: tuple[str, ...] | None) -> None:
    assert audit.audited(package).faults == faults


def test_a_lock_file_is_read_with_its_markers_and_hashes() -> None:
    lock = (
        "# made by uv\nnumpy==2.2.6 ; python_version < '3.11' \\\n    --hash=sha256:ab==\nnumpy==2.5.4\nrich==15.0.0\n"
    )
    assert audit.pinned(lock) == [("numpy", "2.2.6"), ("numpy", "2.5.4"), ("rich", "15.0.0")]
