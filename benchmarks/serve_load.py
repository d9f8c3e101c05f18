"""Many people at one ``astra serve``. Run: python benchmarks/serve_load.py [--clients 50] [--seconds 60] [--save].

Each client asks as somebody at the page does: moves a control a few times, looks at the step of a plan, now and then
at what to rent, and pauses in between (--pause 0: never). Every answer must be one; the latencies of each kind are
told, and of what the server had answered before apart. ``--save`` writes benchmarks/results/<date>_serve_load.json.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

MODELS = ("llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3.1-70b", "qwen3-8b", "mixtral-8x7b")
GPUS = ("16xH100", "32xH100", "64xH100", "128xH100", "64xA100-80", "64xH200", "128xB200")
BATCHES = (64, 128, 256, 512, 1024, 2048)
SEQS = (2048, 4096, 8192)


class Timed(NamedTuple):
    """One answer."""

    kind: str
    status: int
    seconds: float


def question(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """What a client asks next."""
    asked = {"model": draw.choice(MODELS), "batch": draw.choice(BATCHES), "seq": draw.choice(SEQS), "tokens": "1T"}
    kind = draw.choices(("plan", "estimate", "trace", "rent", "fleet"), (70, 10, 14, 3, 3))[0]
    if kind == "rent":
        rented = {**asked, "gpus": "H100,A100-80", "max_gpus": 256, "mixes": "none"}
        return "view", {"verb": "rent", "request": rented}
    asked["gpus"] = [draw.choice(GPUS)]
    if kind in ("estimate", "trace"):
        return kind, {**asked, "gpus": ["64xH100"], "strategy": "tp8 pp2 dp4 mbs1 sp zero1"}
    if kind == "fleet":
        asked["gpus"] = ["32xH100", "32xA100-80"]
    return "view", {"verb": "plan", "request": asked}


def name_of(kind: str, body: dict[str, Any]) -> str:
    if kind != "view":
        return kind
    several = len(body["request"]["gpus"]) == 2 and isinstance(body["request"]["gpus"], list)
    return "fleet" if several else str(body["verb"])


async def ask(port: int, kind: str, body: dict[str, Any]) -> int:
    """The status of an answer, read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        content = json.dumps(body).encode()
        head = (
            f"POST /api/{kind} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + content)
        answer = await reader.read()
        return int(answer.split(b" ", 2)[1]) if answer else 0
    finally:
        writer.close()


async def client(port: int, seed: int, until: float, pause_s: float, found: list[Timed], seen: set[str]) -> None:
    draw = random.Random(seed)
    await asyncio.sleep(draw.random() * min(pause_s, 1.0))
    while time.monotonic() < until:
        kind, body = question(draw)
        key = json.dumps([kind, body])
        again = " again" if key in seen else ""
        began = time.monotonic()
        try:
            status = await ask(port, kind, body)
        except OSError:
            status = 0
        found.append(Timed(name_of(kind, body) + again, status, time.monotonic() - began))
        seen.add(key)
        await asyncio.sleep(draw.random() * 2 * pause_s)


def start() -> tuple[subprocess.Popen[str], int]:
    words = [sys.executable, "-m", "astra", "serve", "--port", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    line = server.stderr.readline()
    address = re.search(r":(\d+)/", line)
    if address is None:
        raise SystemExit(line + server.stderr.read())
    return server, int(address.group(1))


async def load(port: int, clients: int, seconds: float, pause_s: float) -> list[Timed]:
    found: list[Timed] = []
    seen: set[str] = set()
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(port, seed, until, pause_s, found, seen) for seed in range(clients)))
    return found


def told(found: list[Timed]) -> dict[str, dict[str, float]]:
    rows = {}
    for kind in ["all", *sorted({one.kind for one in found})]:
        times = sorted(one.seconds for one in found if kind in ("all", one.kind))
        parts = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}
        row = {name: times[min(int(part * len(times)), len(times) - 1)] for name, part in parts.items()}
        rows[kind] = {"answers": len(times), "mean_s": statistics.mean(times), **row, "max_s": times[-1]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between an answer and the next question")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    server, port = start()
    try:
        time.sleep(3.0)  # workers load the planner
        found = asyncio.run(load(port, args.clients, args.seconds, args.pause))
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    wrong = [one for one in found if one.status != 200]
    rows = told(found)
    for kind, row in rows.items():
        print(f"{kind:16}" + "".join(f"  {name} {value:8.3f}" for name, value in row.items()))
    print(
        f"{len(found) / args.seconds:.1f} answers per second, {len(wrong)} errors {sorted({w.status for w in wrong})}"
    )
    if args.save:
        record = {
            "clients": args.clients, "seconds": args.seconds, "pause_s": args.pause, "errors": len(wrong), "rows": rows,
            "cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version(),
        }  # fmt: skip
        path = Path(__file__).parent / "results" / f"{datetime.date.today()}_serve_load.json"
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(f"wrote {path}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
