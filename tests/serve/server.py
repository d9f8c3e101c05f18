"""A server of one's own, on a port that is free."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from typing import Any

JSON = {"Content-Type": "application/json"}
# As users start it, but for how long an answer may take, which a busy machine is no reason to give up.
PROGRAM = """
import sys
from astra.serve import workers
workers.USUAL = workers.USUAL._replace(seconds=300.0)
from astra.cli import program
sys.exit(program())
"""


class Server:
    """One process and its port."""

    def __init__(self, python: str = sys.executable) -> None:
        words = [python, "-c", PROGRAM, "serve", "--port", "0", "--allow-host", "planner.example"]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line + self.process.stderr.read()
        self.port = int(found.group(1))

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        for _ in range(1200):  # the door is open before anybody listens
            try:
                link.connect()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        link.request(method, path, body, headers or {})
        answer = link.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        link.close()
        return found

    def post(self, kind: str, body: object, **headers: str) -> tuple[int, Any]:
        status, _, content = self.ask("POST", f"/api/{kind}", json.dumps(body).encode(), {**JSON, **headers})
        return status, json.loads(content)

    def end(self) -> tuple[int, str]:
        """Interrupt it as a user does: its exit code, and what it said meanwhile."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=300)
        return self.process.returncode, said
