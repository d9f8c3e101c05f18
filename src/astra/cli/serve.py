"""``astra serve``: the planner as a page in the browser and as an HTTP API."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Final

from astra.cli import options
from astra.cli.output import VerbAnswer
from astra.errors import InputError, OutputError

if TYPE_CHECKING:
    import socket

SERVE_SCHEMA: Final = "astra.serve/1"
HELP: Final = "a page in the browser, and an HTTP API, over all of this"
DESCRIPTION: Final = (
    "Serve a page to choose a model, GPUs and a workload and to see plans change as they do, and the same answers as "
    "an HTTP API (/api/openapi.json). Nothing is fetched from elsewhere. Needs the extra [serve]."
)
EPILOG: Final = """\
Anybody who reaches the address may ask: keep it on this machine, or behind something that asks for a password
(docs/serve.md). Ctrl-C ends it.

examples:
  astra serve
  astra serve --port 9000
  astra serve --host 0.0.0.0 --allow-host planner.example.org
"""
HOST: Final = "127.0.0.1"
PORT: Final = 8765


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument(
        "--host", metavar="ADDRESS", default=HOST, help=f"where to listen (default {HOST}, this machine alone)"
    )
    parser.add_argument("--port", metavar="N", type=options.whole("--port", at_least=0, at_most=65535), default=PORT,
                        help=f"the port (default {PORT}; 0 takes a free one)")  # fmt: skip
    parser.add_argument("--allow-host", metavar="NAME", action="append", default=[],
                        help="a name under which the page is reached, such as a proxy's; may be repeated")  # fmt: skip
    options.add_output(parser, detail=False, file=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Serve until interrupted."""
    try:
        import uvicorn  # noqa: PLC0415

        from astra.serve.app import application  # noqa: PLC0415
        from astra.serve.workers import USUAL  # noqa: PLC0415
    except ImportError as error:
        fix = "pip install 'astra-planner[serve]' has them."
        raise InputError(
            "astra serve", None, want=f"Starlette and uvicorn ({error.name} is missing)", fix=fix
        ) from None
    listening = _listen(args.host, args.port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    print(f"astra: serving at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        application(names=(args.host, *args.allow_host)), log_level="warning", access_log=False, server_header=False,
        limit_concurrency=USUAL.connections, timeout_keep_alive=10, timeout_graceful_shutdown=2, proxy_headers=False,
        ws="none",
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
    record = {"schema": SERVE_SCHEMA, "address": address}
    return VerbAnswer(lambda width, color: "", lambda: json.dumps(record, indent=2))


def _listen(host: str, port: int) -> socket.socket:
    """The open door, or why it cannot be opened."""
    import socket  # noqa: PLC0415

    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{host} port {port}: {reason}. Another --port, or --host, may be free.") from None
    return listening
