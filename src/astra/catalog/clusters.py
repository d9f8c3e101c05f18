"""The GPUs a user has: ``512xH100`` on the command line, or a TOML file for what the catalog does not know."""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from astra.catalog import hardware
from astra.errors import AstraError, InputError, UnknownName, fold, within
from astra.files import read_json, read_toml
from astra.spec.cluster import Cluster, CollectiveSweep, Device, Joint, Link, NodeType, Pool
from astra.spec.names import Line, Name, as_line, check_fields
from astra.spec.record import Spec, check, decode

_PROFILE: Final = "a profile written by astra profile on several GPUs"


def read_sweeps(path: Path, gpu: Device) -> tuple[CollectiveSweep, ...]:
    """The sweeps of a profile that was measured between GPUs of this type, or of the type it is a variant of."""
    try:
        document = read_json(path, "profile")
        between = document.get("collectives") or {}
        rows = [row for row in document["rows"] if row["op"] == "collective" and "seconds" in row]
        measured_on, backend = str(between.get("gpu", "")), between.get("backend")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("profile", str(path), want=_PROFILE) from None
    if not rows:
        raise InputError("profile", str(path), want=_PROFILE, fix="It holds no collectives: one GPU has none.")
    if backend != "nccl" or not _same(measured_on, gpu):
        want = f"one measured between {gpu.name} by NCCL, not between {measured_on} by {backend}"
        raise InputError("profile", str(path), want=want)
    try:
        return _sweeps(rows)
    except (ValueError, KeyError, TypeError):
        raise InputError("profile", str(path), want=f"{_PROFILE}; its rows cannot be read") from None


def _sweeps(rows: list[dict[str, Any]]) -> tuple[CollectiveSweep, ...]:
    groups: dict[tuple[str, int, int], dict[float, float]] = defaultdict(dict)
    for row in rows:
        groups[row["collective"], row["ranks"], row["stride"]][float(row["bytes"])] = float(row["seconds"])
    return tuple(
        CollectiveSweep(
            op=op,
            ranks=ranks,
            stride=stride,
            nbytes=tuple(sorted(found)),
            seconds=tuple(found[x] for x in sorted(found)),
        )
        for (op, ranks, stride), found in sorted(groups.items())
    )


def _same(measured_on: str, gpu: Device) -> bool:
    try:
        return hardware.device(measured_on).name in (gpu.name, gpu.relative)
    except AstraError:  # not in the catalog: a GPU of the user's own goes by its own name
        return measured_on == gpu.name


_WANTED: Final = "a number of GPUs and their type, such as 512xH100 or 512xH100@aws-p5.48xlarge"
_FORM: Final = re.compile(r"\s*([0-9]+)(?:\s*[x×*]\s*|\s+)([^@]*?)\s*(?:@\s*([^@]*?)\s*)?", re.IGNORECASE)  # noqa: RUF001
_NUMBER_FIRST: Final = re.compile(r"\s*([-+.0-9][-+.0-9e_]*|nan|[-+]?inf)\s*[x×*]", re.IGNORECASE)  # noqa: RUF001
_REVERSED: Final = re.compile(r"\s*(.*?)\s*[x×*:]\s*([0-9]+)\s*", re.IGNORECASE)  # noqa: RUF001
_MOST_DIGITS: Final = 8
_RISKS: Final = ("mtbf_gpu_h", "preemptions_per_node_day", "available")
_MOST_BEFORE_NUMBER: Final = 70  # letters of a GPU's name in that of its second pool
_MOST_GPUS: Final = 10_000_000
_LEAST_RATE: Final = 1e3  # bytes/s between pools: slower or faster ones are numbers in another unit
_MOST_RATE: Final = 1e15
_COUNTS: Final = f"a whole number of GPUs between 1 and {_MOST_GPUS:,}"


def parse_gpus(text: str, node: str | None = None) -> Pool:
    """The pool that ``512xH100`` or ``512xH100@aws-p5.48xlarge`` means; ``node`` may be given apart."""
    return _pool(*_asked(text, node))


def _asked(text: str, node: str | None = None) -> tuple[Device, NodeType, int]:
    """The GPU, its server and how many, as a text says."""
    count, gpu, named = _split(text)
    device = hardware.device(gpu)
    if named and node and hardware.find("nodes", named) != hardware.find("nodes", node):
        raise InputError("node", node, want=f"one node type; {text.strip()!r} names another")
    chosen = named or node
    return device, hardware.node_type(chosen) if chosen else hardware.default_node(device), count


def parse_cluster(text: str, node: str | None = None) -> Cluster:
    """One pool, or several joined by ``+`` or commas: ``64xH100+64xA100``; a broken server is a pool of its own."""
    if not isinstance(text, str):
        raise InputError("gpus", text, want=_WANTED)
    pools = [pool for part in re.split(r"[+,]", text) for pool in _whole_and_broken(*_asked(part, node))]
    return Cluster(pools=_named(pools))


def _whole_and_broken(device: Device, node: NodeType, count: int) -> list[Pool]:
    """So many GPUs as whole servers and, where some of the last one are missing, what is left of it."""
    rest = count % node.gpus if count > node.gpus else 0
    return [_pool(device, node, part) for part in (count - rest, rest) if part]


def read_cluster(path: str | Path) -> Cluster:
    """The cluster a TOML file describes (docs/clusters.md); any fault is an InputError that names its place."""
    where = str(path)
    tables = read_toml(path, "cluster")
    with within(where):
        return _build(decode(_File, _plain(tables), where=where), where)


class _PoolTable(Spec, frozen=True, kw_only=True):
    count: int
    gpu: Name = ""
    node: Name = ""
    name: Name = ""
    zone: Name = ""
    usd_per_gpu_h: float | None = None
    price_source: Line = ""
    mtbf_gpu_h: float | None = None
    preemptions_per_node_day: float | None = None
    available: float = 1.0

    def __post_init__(self) -> None:
        check_fields("pool", self)


class _File(Spec, frozen=True, kw_only=True):
    pool: tuple[_PoolTable, ...]
    gpu: tuple[dict[str, Any], ...] = ()
    node: tuple[dict[str, Any], ...] = ()
    between: dict[str, Any] | None = None  # the network that joins the pools
    link: tuple[dict[str, Any], ...] = ()  # between two pools or zones, where it is another


class _OwnCluster:
    """The file's own GPUs and node types, on top of the catalog's."""

    def __init__(self, file: _File, where: str) -> None:
        self._folder = Path(where).parent
        self._defaults = {"source": _file_source(where), "date": "undated"}
        self._devices: dict[str, Device] = {}
        self._nodes: dict[str, NodeType] = {}
        for number, table in enumerate(file.gpu):
            with within(f"gpu[{number}]"):
                device = self._read_device(table)
                _add(self._devices, device.name, device)
        for number, table in enumerate(file.node):
            with within(f"node[{number}]"):
                node = self._read_node(table)
                _add(self._nodes, node.name, node)

    def device(self, name: str) -> Device:
        return self._devices.get(fold(name)) or hardware.device(name)

    def node(self, name: str) -> NodeType:
        return self._nodes.get(fold(name)) or hardware.node_type(name)

    def default_node(self, device: Device) -> NodeType:
        """The file's node type for the GPU if it has one (and only one), else the catalog's."""
        holding = {id(node): node for node in self._nodes.values() if node.gpu == device.name}
        meant = [node for node in holding.values() if device.name in node.default_for or len(holding) == 1]
        check(len(meant) <= 1, "node", None, "one of " + ", ".join(node.name for node in meant))
        return meant[0] if meant else hardware.default_node(device)

    def _read_device(self, table: dict[str, Any]) -> Device:
        base: dict[str, Any] = {}
        if like := _taken(table, "like"):
            parent = self.device(like)
            relative = parent.name if parent.name in hardware.measured() else parent.relative
            base = msgspec.to_builtins(parent) | {"relative": relative, "aliases": [], "notes": ""}
            base["source"] = f"{self._defaults['source']}, like {parent.name}"
            del base["name"]
        device = hardware.decode_device({**self._defaults, **base, **_without_like(table)}, where="")
        if device.relative:
            relative = hardware.find("devices", device.relative, where="relative")
            check(relative in hardware.measured(), "relative", relative, f"one of {', '.join(hardware.measured())}")
            device = msgspec.structs.replace(device, relative=relative)
        _refuse_known("devices", (device.name, *device.aliases))
        return device

    def _read_node(self, table: dict[str, Any]) -> NodeType:
        base: dict[str, Any] = {"provider": "own"}
        if like := _taken(table, "like"):
            parent = self.node(like)
            base |= msgspec.to_builtins(parent) | {"aliases": [], "default_for": []}
            base["source"] = f"{self._defaults['source']}, like {parent.name}"
            del base["name"]
        table, profile = _without_like(table), _taken(table, "profile")
        if profile:
            gpu = self.device(str(table.get("gpu", base.get("gpu", ""))))
            table = {key: value for key, value in table.items() if key != "profile"}
            table["measured"] = msgspec.to_builtins(read_sweeps(self._folder / profile, gpu))
        if isinstance(table.get("links"), list):
            table["links"] = [_sourced(link, self._defaults["source"]) for link in table["links"]]
        node = hardware.decode_node({**self._defaults, **base, **table}, where="")
        _refuse_known("nodes", (node.name, *node.aliases))
        default_for = tuple(self.device(name).name for name in node.default_for)
        return msgspec.structs.replace(node, gpu=self.device(node.gpu).name, default_for=default_for)


def _build(file: _File, where: str) -> Cluster:
    own = _OwnCluster(file, where)
    pools = []
    for number, table in enumerate(file.pool):
        with within(f"pool[{number}]"):
            pools += _pools_of(table, own, where)
    between = None
    if file.between is not None:
        with within("between"):
            between = _link(file.between, where, line=False)
    check(bool(pools), "pool", None, "at least one [[pool]] table")
    joints = []
    for number, joint in enumerate(file.link):
        with within(f"link[{number}]"):
            joints.append(_joint(joint, where))
    return Cluster(pools=_named(pools), between=between, joints=tuple(joints))


def _file_source(where: str) -> str:
    """How a record says that it comes from a user's file."""
    return as_line(f"user file {Path(where).name}")


def _joint(table: dict[str, Any], where: str) -> Joint:
    """``[[link]]``: two pools or two zones, and a link without a reach."""
    ends = table.get("pools", table.get("zones"))
    both = "pools" in table and "zones" in table
    good = isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, str) and end for end in ends)
    check(good and not both, "ends", None, 'pools = ["a", "b"] or zones = ["a", "b"], with names from this file')
    rest = {key: value for key, value in table.items() if key not in ("pools", "zones")}
    assert isinstance(ends, list)
    return Joint(ends=(ends[0], ends[1]), link=_link(rest, where, line="zones" in table))


def _link(table: dict[str, Any], where: str, *, line: bool) -> Link:
    """What joins pools or zones, at rates that somebody may mean."""
    given = _sourced({"reach": hardware.ANY_REACH, **_line(table, line=line)}, _file_source(where))
    link: Link = decode(Link, given, where="")
    for name, rate in (("bytes_per_s", link.bytes_per_s), ("total_bytes_per_s", link.total_bytes_per_s)):
        possible = rate is None or _LEAST_RATE <= rate <= _MOST_RATE
        check(possible, name, rate, f"{_LEAST_RATE:g} to {_MOST_RATE:g} bytes a second: 10 Gb/s are 1.25e9")
    return link


def _line(table: dict[str, Any], *, line: bool) -> dict[str, Any]:
    """A rate and a total, of which one may be left out: one flow may have all of a line, and zones have one line."""
    if "total_bytes_per_s" in table:
        return {"bytes_per_s": table["total_bytes_per_s"], **table}
    return {**table, "total_bytes_per_s": table["bytes_per_s"]} if line and "bytes_per_s" in table else table


def _pools_of(table: _PoolTable, own: _OwnCluster, where: str) -> list[Pool]:
    """The pool of a table; what is left of a broken server is one of its own, as ``NAME #2``."""
    check(bool(table.gpu or table.node), "gpu", None, "the GPU's name, or a node type's in node")
    check(1 <= table.count <= _MOST_GPUS, "count", table.count, _COUNTS)
    if table.node:
        node = own.node(table.node)
        device = own.device(table.gpu or node.gpu)
    else:
        device = own.device(table.gpu)
        node = own.default_node(device)
    price_source = table.price_source
    if table.usd_per_gpu_h is not None and not price_source:
        price_source = _file_source(where)
    said = {name: getattr(table, name) for name in ("zone", "usd_per_gpu_h", *_RISKS)} | {"price_source": price_source}
    names = [table.name, f"{table.name} #2" if table.name else ""]
    pools = _whole_and_broken(device, node, table.count)
    return [msgspec.structs.replace(pool, name=name, **said) for pool, name in zip(pools, names, strict=False)]


def _split(text: object) -> tuple[int, str, str]:
    """The count, the GPU and the node type (empty if none) of ``512xH100@node``."""
    if not isinstance(text, str) or not text.strip():
        raise InputError("gpus", text, want=_WANTED)
    match = _FORM.fullmatch(text)
    if match is None:
        raise _malformed(text)
    digits, gpu, node = match.groups()
    check(bool(gpu) and node != "", "gpus", text.strip(), _WANTED)
    check(len(digits.lstrip("0")) <= _MOST_DIGITS and int(digits[-_MOST_DIGITS:]) > 0, "gpus", text.strip(), _COUNTS)
    return int(digits[-_MOST_DIGITS:]), gpu, node or ""


def _malformed(text: str) -> InputError:
    shown = text.strip()
    number = _NUMBER_FIRST.match(text)
    if number and not number.group(1).isdigit():
        return InputError("gpus", shown, want=_COUNTS)
    gpu = shown.partition("@")[0]
    if _is_gpu(gpu):
        return InputError("gpus", shown, want=_WANTED, fix=f"Say how many: 8x{shown}, for one.")
    match = _REVERSED.fullmatch(gpu)
    if match and _is_gpu(match.group(1)):
        return InputError("gpus", shown, want=_WANTED, fix=f"Write {match.group(2)[:12]}x{match.group(1)}.")
    return InputError("gpus", shown, want=_WANTED)


def _is_gpu(name: str) -> bool:
    try:
        hardware.find("devices", name)
    except UnknownName:
        return False
    except InputError:  # several GPUs fit, or none is named
        return bool(fold(name))
    return True


def _pool(device: Device, node: NodeType, count: int) -> Pool:
    fix = f"{node.name} holds {node.gpu}."
    check(node.gpu == device.name, "node", node.name, f"a node type with {device.name}", fix)
    reach = node.links[-1].reach if node.links else 1
    fix = 'Give it an outer link with reach = "any".'
    check(count <= reach, "node", node.name, f"links that join {count:,} GPUs, not only {reach:,}", fix)
    return Pool(device=device, node=node, gpus=count)


def _named(pools: list[Pool]) -> tuple[Pool, ...]:
    """The pools with a name each: as given, else the GPU's, numbered from the second on."""
    given = [fold(pool.name) for pool in pools if pool.name]
    check(len(set(given)) == len(given), "pool", None, "a different name for each pool")
    taken, named = set(given), []
    for pool in pools:
        name, number = pool.name or pool.device.name, 2
        while not pool.name and fold(name) in taken:
            name, number = f"{pool.device.name[:_MOST_BEFORE_NUMBER].rstrip()} #{number}", number + 1
        taken.add(fold(name))
        named.append(msgspec.structs.replace(pool, name=name))
    return tuple(named)


def _add(records: dict[str, Any], name: str, record: Device | NodeType) -> None:
    for known in (name, *record.aliases):
        check(bool(fold(known)), "name", known, "a name with letters or digits")
        check(fold(known) not in records, "name", known, "a name not used before in this file")
        records[fold(known)] = record


def _refuse_known(kind: hardware.Kind, given: tuple[str, ...]) -> None:
    for name in given:
        fix = 'Choose another and say like = "..." to vary the known one.'
        check(not hardware.has(kind, name), "name", name, "a name the catalog does not have", fix)


def _taken(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        want = "the name of a file" if key == "profile" else "a name from the catalog or from this file"
        raise InputError(key, value, want=want)
    return value


def _without_like(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "like"}


def _sourced(link: Any, source: str) -> Any:
    if not isinstance(link, dict):
        return link
    return hardware.reached({"source": source, **link})


def _plain(value: Any) -> Any:
    """TOML data with its dates as text, which is how records hold them."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, (dt.date, dt.time)) else value
