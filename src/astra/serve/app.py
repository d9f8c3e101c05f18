"""The application: known hosts alone, addresses, bodies, and what becomes of a request nobody waits for any more."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from astra.serve.openapi import description
from astra.serve.pages import OPENING, PAGES, Page, opened
from astra.serve.worker import BUG, WorkerDied
from astra.serve.workers import KIB, USUAL, Full, ServeLimits, TooLong, Workers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Scripts come from this server alone; pictures and bars bring styles of their own, and every name in them is quoted.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Guard:
    """Around the whole application: no foreign pages, and headers for browsers."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on; either way with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in own)]
            await send(message)

        wrong = self._refusal(dict(scope["headers"]))
        if wrong:
            await _say(with_headers, 403, wrong)
            return
        await self._app(scope, receive, with_headers)

    def _refusal(self, headers: dict[bytes, bytes]) -> str:
        """Why a request is not answered at all.

        A page of another site may be served under a name that it then points at this machine: only names known
        beforehand, and addresses, which cannot be pointed elsewhere, are answered.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._knows(_name_of(host)):
            return "this server is not known under that host name; astra serve --allow-host NAME adds one."
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
            return "pages of other sites may not ask here."
        return ""

    def _knows(self, name: str) -> bool:
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _name_of(host: str) -> str:
    """The name of a Host header, without its port and brackets."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


async def _say(send: Send, status: int, sentence: str) -> None:
    content = msgspec.json.encode({"error": sentence, "where": "", "want": "", "fix": ""})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


if TYPE_CHECKING:
    from starlette.types import ASGIApp

LONG: Final = ("rent", "afford", "sweep", "explain")  # several searches, or one that takes seconds
ASKED: Final = ("plan", "estimate", "rent", "afford", "sweep", "explain", "compare", "view", "report", "trace",
                "export", "import")  # fmt: skip
GONE: Final = 499  # nobody reads it
_JSON: Final = "application/json"


def application(limits: ServeLimits = USUAL, names: Collection[str] = ()) -> ASGIApp:
    """The server's application; ``names`` are the hosts it is known under besides this machine."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        workers = Workers(limits)
        workers.start()
        app.state.workers, app.state.opened = workers, PAGES["/"]
        opening = asyncio.create_task(_open(app, workers))
        try:
            yield
        finally:
            opening.cancel()
            workers.stop()

    routes = [Route(f"/api/{kind}", _post(kind, limits), methods=["POST"]) for kind in ASKED]
    routes += [
        Route("/api/catalog", _catalog, methods=["GET"]),
        Route("/api/openapi.json", _openapi, methods=["GET"]),
        *(Route(path, _page, methods=["GET"]) for path in PAGES),
    ]
    handlers: dict[Any, Any] = {HTTPException: _refuse, Exception: _refuse}
    packed = Middleware(GZipMiddleware, minimum_size=2 * KIB, compresslevel=5)
    return Guard(Starlette(routes=routes, lifespan=life, exception_handlers=handlers, middleware=[packed]), names)


async def _open(app: Starlette, workers: Workers) -> None:
    """Have the answer that the page opens with, as soon as a worker can give it."""
    with suppress(Full, TooLong, WorkerDied):
        found = await workers.answer("view", OPENING)
        if found.status == 200:
            app.state.opened = opened(found.content)


def _post(kind: str, limits: ServeLimits) -> Any:
    async def answer(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise HTTPException(415, "the body must be application/json")
        body = await _body(request, limits)
        return await _work(request, kind, body, limits)

    return answer


async def _body(request: Request, limits: ServeLimits) -> bytes:
    """All of the body, if it is not too large and does not take too long."""
    most = limits.body_bytes

    async def read() -> bytes:
        found = bytearray()
        async for piece in request.stream():
            found += piece
            if len(found) > most:
                raise HTTPException(413, f"a request may have at most {most // KIB:,} KiB")
        return bytes(found)

    if int(request.headers.get("content-length") or 0) > most:
        raise HTTPException(413, f"a request may have at most {most // KIB:,} KiB")
    try:
        return await asyncio.wait_for(read(), limits.body_s)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the request did not come within {limits.body_s:g} s") from None
    except ClientDisconnect:
        raise HTTPException(GONE, "the client went away") from None


async def _work(request: Request, kind: str, body: bytes, limits: ServeLimits) -> Response:
    """The answer of a worker; a client that goes away takes its question along."""
    workers: Workers = request.app.state.workers
    work = asyncio.create_task(workers.answer(kind, body, long=is_long(kind, body)))
    left = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(GONE, "the client went away")
        found = await work
    except Full:
        raise HTTPException(503, "the server has its hands full; ask again in a moment", {"Retry-After": "2"}) from None
    except TooLong:
        sentence = f"the search took longer than {limits.seconds:g} s, which is all this server gives to one"
        raise HTTPException(503, f"{sentence}; run it by astra {kind if kind in ASKED[:6] else 'plan'}") from None
    except WorkerDied:
        raise HTTPException(500) from None
    finally:
        for task in (work, left):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
    headers = {"Content-Disposition": f'attachment; filename="{found.name}"'} if found.name else None
    return Response(found.content, found.status, headers, found.media)


async def _left(request: Request) -> None:
    """Ends when the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def is_long(kind: str, body: bytes) -> bool:
    """Whether a search is of the kind that takes seconds: several in one, several pools, an objective of money."""
    try:
        sent = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    if not isinstance(sent, dict):
        return False
    asked = sent.get("request", sent)
    if kind in LONG or sent.get("verb") in LONG:
        return True
    if kind not in ("plan", "view", "report", "export") or not isinstance(asked, dict):
        return False
    gpus, cluster = asked.get("gpus"), asked.get("cluster")
    pools = cluster.get("pools") if isinstance(cluster, dict) else gpus
    several = len(pools) > 1 if isinstance(pools, list) else isinstance(pools, str) and ("+" in pools or "," in pools)
    return several or any(asked.get(name) is not None for name in ("objective", "budget", "deadline"))


async def _catalog(request: Request) -> Response:
    response = await _work(request, "catalog", b"", USUAL)
    response.headers["Cache-Control"] = "no-cache"
    return response


async def _openapi(request: Request) -> Response:
    del request
    return Response(msgspec.json.encode(description()), media_type=_JSON)


async def _page(request: Request) -> Response:
    """A file of the page, out of memory: no path of a client reaches the disk."""
    plain = request.url.path == "/" and not request.url.query  # an address with a query asks for something else
    found: Page = request.app.state.opened if plain else PAGES[request.url.path]
    headers = {"ETag": found.mark, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == found.mark:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.media)


def _refuse(request: Request, error: Exception) -> Response:
    """What the framework or a limit refuses, in the form of every other error; of a bug, a sentence for the client."""
    del request
    if not isinstance(error, HTTPException) or error.status_code == 500:
        return Response(BUG, 500, media_type=_JSON)
    said = {"error": error.detail, "where": "", "want": "", "fix": ""}
    return Response(msgspec.json.encode(said), error.status_code, dict(error.headers or {}), _JSON)
