"""What every request passes and every response carries: known hosts, no foreign pages, headers for browsers."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import msgspec

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
    """Around the whole application."""

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
