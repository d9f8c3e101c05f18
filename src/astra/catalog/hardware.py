"""GPUs and node types by name: one TOML file each, its stem is the name.

Parsing TOML costs more than reading it, so names are found by scanning the files' text; only the record asked for is
parsed. Adding a GPU or a node type is adding its file.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from astra.errors import InputError, UnknownName, fold
from astra.files import load_toml
from astra.spec.cluster import Device, NodeType
from astra.spec.record import decode

ANY_REACH: Final = 2**31 - 1  # what `reach = "any"` means: a tier that joins any number of GPUs
PRECISIONS: Final = ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32")
DATA: Path = Path(__file__).parent / "data"

Kind = Literal["devices", "nodes"]
_WHERE: Final[Mapping[Kind, str]] = {"devices": "gpu", "nodes": "node"}
_EXAMPLE: Final[Mapping[Kind, str]] = {"devices": "H100", "nodes": "dgx-h100"}
_LISTING: Final[Mapping[Kind, str]] = {"devices": "astra catalog gpus", "nodes": "astra catalog nodes"}
_LISTED: Final = re.compile(r"^(aliases|default_for) = \[([^\]]*)\]", re.MULTILINE)
_GPU: Final = re.compile(r'^gpu = "([^"]*)"', re.MULTILINE)
_QUOTED: Final = re.compile(r'"([^"]*)"')
_WORD_END: Final = re.compile(r"[^0-9a-z]+")
_GIGA: Final = re.compile(r"([0-9])g(?:ib)?$", re.IGNORECASE)  # 80g, as people write 80 GB
_MAKER: Final = re.compile(r"^\s*(?:(?:nvidia|amd|instinct|tesla|geforce)[\s_-]+)+", re.IGNORECASE)
_SHOWN_CANDIDATES: Final = 8


class _Index(NamedTuple):
    """Where each name leads, by folded name."""

    stems: dict[str, str]  # names and aliases
    short: dict[str, tuple[str, ...]]  # leading words of names and aliases -> every record they may mean
    spelled: tuple[str, ...]  # names and aliases as written, for suggestions
    default_for: dict[str, str]  # GPU name -> node
    gpus: dict[str, str]  # node -> GPU name


def device(name: str) -> Device:
    """The GPU called ``name``: its name, an alias or an unambiguous beginning; case and punctuation do not matter."""
    return _device(find("devices", name))


def devices() -> tuple[Device, ...]:
    """Every GPU, by name."""
    return tuple(_device(stem) for stem in names("devices"))


@cache
def measured() -> tuple[str, ...]:
    """GPUs whose kernels were measured: they borrow from no relative."""
    return tuple(one.name for one in devices() if not one.relative)


def node_type(name: str) -> NodeType:
    """The node type called ``name``, found as in `device`."""
    return _node(find("nodes", name))


def node_types() -> tuple[NodeType, ...]:
    """Every node type, by name."""
    return tuple(_node(stem) for stem in names("nodes"))


def nodes_of(gpu: str) -> tuple[NodeType, ...]:
    """Every node type of a GPU, by name."""
    return tuple(_node(stem) for stem in names("nodes") if _index("nodes").gpus[stem] == gpu)


def default_node(gpu: Device | str) -> NodeType:
    """The node meant when only the GPU is named: the vendor's reference server, or a plain PCIe box."""
    name = gpu.name if isinstance(gpu, Device) else find("devices", gpu)
    stem = _index("nodes").default_for.get(name)
    if stem is None:
        raise InputError("node", None, want=f"a node type for {name}", fix="It has no usual one: name it.")
    return _node(stem)


@cache
def names(kind: Kind) -> tuple[str, ...]:
    """Names of all records of a kind, sorted without regard to case."""
    return tuple(sorted(set(_index(kind).stems.values()), key=str.lower))


def has(kind: Kind, name: str) -> bool:
    """Whether a record has this name or alias."""
    return fold(name) in _index(kind).stems


def find(kind: Kind, name: str, *, where: str = "") -> str:
    """The full name behind a name, alias or unambiguous beginning; nothing is parsed."""
    where = where or _WHERE[kind]
    if not isinstance(name, str) or not fold(name):
        raise InputError(where, name, want=f"a name, such as {_EXAMPLE[kind]}")
    fitting = _fitting(kind, name)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(where, name, want=f"one of {_shown(fitting)}", fix="The name fits all of them.")
    raise UnknownName(where, name, _index(kind).spelled, fix=f"List them with: {_LISTING[kind]}.")


def guess(kind: Kind, name: str) -> str | None:
    """As `find`, but None where nothing or several fit: for long lists, most of whose names nobody asked for."""
    fitting = _fitting(kind, name)
    return fitting[0] if len(fitting) == 1 else None


def _fitting(kind: Kind, name: str) -> tuple[str, ...]:
    """The records that a name may mean."""
    index = _index(kind)
    plain = _MAKER.sub("", name)
    for wanted in (fold(name), fold(plain), fold(_GIGA.sub(r"\1gb", plain))):
        if wanted in index.stems:
            return (index.stems[wanted],)
        if index.short.get(wanted):
            return index.short[wanted]
    return ()


@cache
def catalog_hash() -> str:
    """12 hex digits that change whenever a data file of the catalog changes."""
    digest, found = _sha256(), dict[str, str]()
    for folder, _, files in os.walk(DATA):  # there are many, and paths as objects take longer than reading them
        within = os.path.relpath(folder, DATA).replace(os.sep, "/")
        for file in files:
            if file.endswith((".toml", ".csv", ".json")):
                found[file if within == "." else f"{within}/{file}"] = os.path.join(folder, file)
    for name in sorted(found):
        with open(found[name], "rb") as stream:
            # Line ends are made equal, so that every checkout agrees.
            digest.update(name.encode() + b"\0" + stream.read().replace(b"\r\n", b"\n") + b"\0")
    return str(digest.hexdigest()[:12])


def _sha256() -> Any:
    """A new digest from the interpreter's own module: hashlib loads OpenSSL first, which takes longer than the rest."""
    for name in ("_sha2", "_sha256", "hashlib"):  # since Python 3.12, before it, and where neither is built in
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).sha256()
    raise ImportError("hashlib")


def decode_device(table: Mapping[str, Any], *, where: str) -> Device:
    """A GPU from plain data."""
    parsed: Device = decode(Device, table, where=where)
    for precision in parsed.flops_per_s:
        if precision not in PRECISIONS:
            raise UnknownName(f"{where}: flops_per_s", precision, PRECISIONS, fix=f"Known: {', '.join(PRECISIONS)}.")
    if not parsed.flops_per_s:
        raise InputError(f"{where}: flops_per_s", None, want="the peak of at least one precision")
    return parsed


def decode_node(table: Mapping[str, Any], *, where: str) -> NodeType:
    """A node type from plain data; a tier may say ``reach = "any"``."""
    links = table.get("links")
    if isinstance(links, list):
        table = {**table, "links": [reached(link) for link in links]}
    parsed: NodeType = decode(NodeType, table, where=where)
    return parsed


def forget() -> None:
    """Read the files anew: for tests that change them."""
    for cached in (_device, _node, _index, names, measured, catalog_hash):
        cached.cache_clear()


@cache
def _device(stem: str) -> Device:
    return decode_device(load_toml((DATA / "devices" / f"{stem}.toml").read_bytes()), where=f"gpu {stem}")


@cache
def _node(stem: str) -> NodeType:
    return decode_node(load_toml((DATA / "nodes" / f"{stem}.toml").read_bytes()), where=f"node {stem}")


def reached(link: Any) -> Any:
    """A tier that joins any number of GPUs may say so by a word."""
    return {**link, "reach": ANY_REACH} if isinstance(link, dict) and link.get("reach") == "any" else link


@cache
def _index(kind: Kind) -> _Index:
    stems: dict[str, str] = {}
    short: dict[str, list[str]] = {}
    spelled: list[str] = []
    default_for: dict[str, str] = {}
    gpus: dict[str, str] = {}
    for stem, text in _texts(kind):
        gpus[stem] = "".join(_GPU.findall(text))
        listed = dict(_LISTED.findall(text))
        for name in (stem, *_QUOTED.findall(listed.get("aliases", ""))):
            _claim(stems, fold(name), stem, f"{kind}: {name}")
            spelled.append(name)
            for start in _beginnings(name):
                owners = short.setdefault(start, [])
                if stem not in owners:
                    owners.append(stem)
        for gpu in _QUOTED.findall(listed.get("default_for", "")):
            _claim(default_for, gpu, stem, f"{kind}: default node of {gpu}")
    known = {start: tuple(owners) for start, owners in short.items()}
    return _Index(stems, known, tuple(spelled), default_for, gpus)


def _texts(kind: Kind) -> Iterable[tuple[str, str]]:
    folder = os.path.join(DATA, kind)  # pathlib would take longer than the reading
    for file in sorted(os.listdir(folder)):
        if file.endswith(".toml"):
            with open(f"{folder}/{file}", "rb") as stream:
                yield file.removesuffix(".toml"), stream.read().decode()


def _claim(owners: dict[str, str], key: str, stem: str, what: str) -> None:
    owner = owners.setdefault(key, stem)
    if owner != stem:
        raise InputError(what, stem, want=f"a name of its own; {owner} has it already")


def _beginnings(name: str) -> Iterable[str]:
    """The folded name cut at each word: H100-SXM5-80GB begins with h100 and h100sxm5."""
    return accumulate(word for word in _WORD_END.split(name.lower())[:-1] if word)


def _shown(candidates: tuple[str, ...]) -> str:
    listed = ", ".join(candidates[:_SHOWN_CANDIDATES])
    more = len(candidates) - _SHOWN_CANDIDATES
    return f"{listed} and {more} more" if more > 0 else listed
