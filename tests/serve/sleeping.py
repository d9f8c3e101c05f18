"""A worker whose answers take as long as they are asked to: ``3`` sleeps three seconds, ``die`` ends the process."""

from __future__ import annotations

import os
import time
import uuid
from multiprocessing.connection import Connection

from astra.serve.answers import Document


def sleep_when_asked(pipe: Connection, memory_bytes: int) -> None:
    del memory_bytes
    while True:
        try:
            _, body = pipe.recv()
        except EOFError:
            return
        if body == b"die":
            os._exit(1)
        time.sleep(float(body))
        pipe.send(Document(200, "text/plain", f"{os.getpid()} {uuid.uuid4()}".encode()))
