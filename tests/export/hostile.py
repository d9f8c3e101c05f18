"""Names that would run, break or hide something if they were ever taken for syntax."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from astra.export.base import Launch, Mesh
from tests.export.launching import given

HOSTILE: Final = (
    "$(touch PWNED)",
    "`touch PWNED`",
    "a; touch PWNED #",
    "a' ; touch PWNED ; '",
    'a" ; touch PWNED ; "',
    "a\ntouch PWNED\n",
    "a\r\ntouch PWNED",
    "a\\\ntouch PWNED",
    "${IFS}touch${IFS}PWNED",
    "a && touch PWNED",
    "a | touch PWNED",
    "END_OF_FILE_0\ntouch PWNED",
    "'''\nimport os; os.system('touch PWNED')\n'''",
    '"""\nimport os; os.system("touch PWNED")\n"""',
    "a: {b: [c",
    "- a\n- b",
    "# comment",
    "yes",
    "1e3",
    "null",
    "|\n  text",
    "!!python/object/apply:os.system ['touch PWNED']",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "-rf /",
    "\u2028touch PWNED",
    "\x85touch PWNED",
    "\x1b[2Jgone",
    "\u202egnp.exe",
    "a\tb",
    "\x9b2Jgone",
    "\x1b]0;title\x07",
    "\ud800",
    "\x7f",
    "\ufeffname",
    "\U000e0041tag",
    "a\x00b",
    "\x0btouch PWNED",
    "# -*- coding: utf-7 -*-",
    "coding:utf7 +AAo-import os;os.system('touch PWNED')+AAo-#",
    "${oc.env:HOME}",
    "$(HOSTNAME)",
    "[bold red]shout[/]",
    "[link](javascript:alert(1)) ![x](http://x) `code` | cell",
    "&lt;b&gt; __bold__ ~~gone~~ \\",
    "x slots=999 type=y",
    "#SBATCH --uid=0",
    "a" * 81,
    "ünïcödé 模型 🚀",
    " ",
)

# Whatever of a launch a user can have named, by the record it stands in.
FIELDS: Final = {
    "model": ("name", "source", "date", "aliases"),
    "device": ("name", "vendor", "arch", "relative", "source", "date", "notes", "aliases"),
    "node": ("name", "provider", "gpu", "source", "date", "aliases"),
    "pool": ("name", "zone", "price_source"),
    "launch": ("version", "runtime"),
}
EVERY_FIELD: Final = tuple((record, field) for record, fields in FIELDS.items() for field in fields)


def forged(launch: Launch, *places: tuple[str, str], name: str) -> Launch:
    """The launch with a name that no check has seen in some fields (of every pool)."""
    model = _forged(launch.model, "model", places, name)
    meshes = []
    for mesh in launch.meshes:
        pool = _forged(mesh.pool, "pool", places, name)
        msgspec.structs.force_setattr(pool, "device", _forged(pool.device, "device", places, name))
        msgspec.structs.force_setattr(pool, "node", _forged(pool.node, "node", places, name))
        meshes.append(mesh._replace(pool=pool))
    own: dict[str, Any] = {field: name for record, field in places if record == "launch"}
    return launch._replace(model=model, meshes=tuple(meshes))._replace(**own)


def _forged(record: Any, kind: str, places: tuple[tuple[str, str], ...], name: str) -> Any:
    made = copy.copy(record)
    for place, field in places:
        if place == kind:
            value = (name,) if isinstance(getattr(record, field), tuple) else name
            msgspec.structs.force_setattr(made, field, value)
    return made


def two_pools(strategy: str = "tp2 pp2 dp4 mbs1 sp zero1 layers=20,12") -> Launch:
    """A plan whose stages live on two GPU types."""
    pools = [given("llama-3.1-8b", gpus, "tp2 dp4 mbs1 sp zero1", batch=128).pool for gpus in ("8xH100", "8xA100-80")]
    launch = given("llama-3.1-8b", "16xH100", strategy, batch=128)
    return launch._replace(meshes=tuple(Mesh(pool, 2, 1, 1, 4, 1) for pool in pools))


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every text in plain data."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(inner, (*path, key))


def keys(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every key in plain data."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                yield (*path, key)
            yield from keys(inner, (*path, key))


def tampered(record: Any, path: tuple[Any, ...], text: str, *, key: bool = False) -> Any:
    """A copy of plain data with another text at one place, or another key."""
    changed = copy.deepcopy(record)
    inside = changed
    for step in path[:-1]:
        inside = inside[step]
    if key:
        inside[text] = inside.pop(path[-1])
    else:
        inside[path[-1]] = text
    return changed
