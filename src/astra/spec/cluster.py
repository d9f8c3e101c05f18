"""GPUs, how they are joined, and pools of them. Every quantity is SI; bandwidths are one direction, per GPU."""

from typing import Final, Literal, get_args

import msgspec

from astra.errors import InputError
from astra.spec.names import Amount, Line, Name, Positive, Size, check_fields
from astra.spec.record import Spec, check, finite
from astra.spec.workload import PEAKS, PRECISIONS

Generation = Literal[
    "", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"
]  # fmt: skip
_NEAR_HOST_BYTES_PER_S: Final = 1e11
FASTEST_HOST: Final = 100.0  # times as fast as those we measured; as many times slower at most


class Device(Spec, frozen=True, kw_only=True):
    """One GPU. Peaks are dense (no sparsity); memory is what software can allocate."""

    name: Name
    vendor: Name
    arch: Name
    generation: Generation = ""  # whose kernels and rules it has; empty: that of arch if arch names one, else not known
    fp8_recipe: Literal["", "tensorwise", "mxfp8"] = ""  # how FP8 products are scaled; empty: tensorwise
    fp8_attention: bool = False  # whether attention can be trained in FP8
    flops_per_s: dict[Name, float]  # by precision: bf16, fp16, fp8, fp4, tf32, fp32
    memory_bytes: Positive
    memory_bytes_per_s: Positive
    sms: Size
    power_w: Positive
    host_bytes_per_s: Positive  # to the CPU's memory
    relative: Name = ""  # the measured GPU whose efficiency this one borrows
    aliases: tuple[Name, ...] = ()
    source: Line
    date: Name
    notes: Line = ""

    def __post_init__(self) -> None:
        where = f"gpu {self.name}"
        check_fields("gpu", self, where)
        for name, peak in self.flops_per_s.items():
            check(finite(peak) and peak > 0, f"{where}.flops_per_s.{name}", peak, "a finite number above zero")
        check(bool(self.source), f"{where}.source", self.source, "where the numbers come from")
        if not self.generation and self.arch.lower() in get_args(Generation):
            msgspec.structs.force_setattr(self, "generation", self.arch.lower())

    def computes(self, precision: str) -> bool:
        """Whether its tensor cores have a precision: narrow scales of groups are of Blackwell and later."""
        scaled = {"mxfp8": self.fp8_recipe == "mxfp8", "nvfp4": self.generation == "blackwell"}
        return PEAKS.get(precision, precision) in self.flops_per_s and scaled.get(precision, True)

    @property
    def near_host(self) -> bool:
        """Whether recipes send activations to the host's memory: over links like NVLink-C2C."""
        return self.host_bytes_per_s > _NEAR_HOST_BYTES_PER_S

    def peak(self, precision: str) -> float:
        """Dense FLOP/s at a precision; an InputError if the GPU lacks it."""
        if not self.computes(precision):
            has = ", ".join(name for name in PRECISIONS if self.computes(name))
            raise InputError("precision", precision, want=f"one that {self.name} has: {has}")
        return self.flops_per_s[PEAKS.get(precision, precision)]


class Link(Spec, frozen=True, kw_only=True):
    """One network tier as one GPU sees it, one direction; a line between sites is one for all of them together."""

    reach: int  # GPUs joined by this tier (a power of the topology, not of the job)
    kind: Literal["nvswitch", "nvlink-mesh", "xgmi", "pcie", "infiniband", "roce", "efa", "tcp", "rack"]
    bytes_per_s: Positive
    latency_s: Positive
    oversubscription: float = 1.0  # 7 means 1:7
    total_bytes_per_s: Positive | None = None  # of all GPUs together, where it is one line; None: each has its own
    usd_per_gb: Amount = 0.0  # of what is sent, either way (egress)
    source: Line

    def __post_init__(self) -> None:
        check_fields("link", self)
        check(self.reach >= 2, "link.reach", self.reach, "2 GPUs or more", "Drop the tier if a node has one GPU.")
        check(self.oversubscription >= 1, "link.oversubscription", self.oversubscription, "1 or more (7 means 1:7)")

    def widened(self, times: float) -> "Link":
        """A line so many times as wide; what is no line stays as it is."""
        if self.total_bytes_per_s is None:
            return self
        rates = {"bytes_per_s": self.bytes_per_s * times, "total_bytes_per_s": self.total_bytes_per_s * times}
        return msgspec.structs.replace(self, **rates)


class CollectiveSweep(Spec, frozen=True, kw_only=True):
    """One collective of one kind of group, timed over sizes: ``ranks`` members that are ``stride`` apart."""

    op: Name
    ranks: int
    stride: int
    nbytes: tuple[float, ...]  # as nccl-tests counts them, rising
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        check_fields("sweep", self)
        where = f"sweep of {self.op} over {self.ranks}"
        check(self.ranks >= 2 and self.stride >= 1, where, self.ranks, "2 ranks or more, 1 or more apart")
        check(0 < len(self.nbytes) == len(self.seconds), where, len(self.seconds), "a time for each size")
        check(list(self.nbytes) == sorted(set(self.nbytes)), where, None, "rising sizes")
        check(min(*self.nbytes, *self.seconds) > 0, where, None, "sizes and times above zero")


class NodeType(Spec, frozen=True, kw_only=True):
    """A server: its GPUs and the tiers that join them, nearest first; the last tier joins any number of nodes."""

    name: Name
    provider: Name
    gpu: Name  # a device name
    gpus: Size  # GPUs in one server (the unit that is bought or rented)
    links: tuple[Link, ...]
    host_memory_bytes: float | None = None
    host_speed: Positive = 1.0  # operators its host issues while that of the machines we measured issues one
    aliases: tuple[Name, ...] = ()
    default_for: tuple[Name, ...] = ()  # GPU names for which this node is meant when only the GPU is named
    measured: tuple[CollectiveSweep, ...] = ()  # collectives of the user's own machines
    source: Line
    date: Name

    def __post_init__(self) -> None:
        check_fields("node", self, f"node {self.name}")
        speed, want = self.host_speed, f"between {1 / FASTEST_HOST:g} and {FASTEST_HOST:g}, 1 as those we measured"
        check(1 / FASTEST_HOST <= speed <= FASTEST_HOST, f"node {self.name}.host_speed", speed, want)
        reaches, want = [link.reach for link in self.links], "tiers with growing reach, each once"
        check(reaches == sorted(set(reaches)), f"node {self.name}.links", reaches, want)


class Pool(Spec, frozen=True, kw_only=True):
    """A number of equal nodes."""

    device: Device
    node: NodeType
    gpus: int
    name: Name = ""
    zone: Name = ""  # where it stands; links may join zones
    usd_per_gpu_h: Amount | None = None
    price_source: Line = ""
    mtbf_gpu_h: Positive | None = None  # hours between failures of one GPU; None: as of all
    preemptions_per_node_day: Amount | None = None  # how often a server is taken away; None: as its market's are
    available: float = 1.0  # share of the time that it is there

    def __post_init__(self) -> None:
        check_fields("pool", self)
        check(0 < self.available <= 1, "pool.available", self.available, "a share of the time above 0, 1 at most")
        some = isinstance(self.gpus, int) and 1 <= self.gpus <= 10_000_000
        check(some, "gpus", self.gpus, "between 1 and 10,000,000 GPUs")
        each = self.node.gpus
        lower, want = self.gpus // each * each, f"whole nodes of {each} ({self.node.name}), or fewer GPUs than one node"
        whole = self.gpus % each == 0 or self.gpus < each
        check(whole, "gpus", self.gpus, want, f"Try {lower}x or {lower + each}x.")

    @property
    def gpus_per_node(self) -> int:
        """GPUs of this pool in one server."""
        return min(self.node.gpus, self.gpus)

    @property
    def scaleup_gpus(self) -> int:
        """GPUs of this pool joined by the innermost links."""
        return min(self.node.links[0].reach, self.gpus) if self.node.links else 1

    def tier(self, span: int) -> Link | None:
        """The nearest tier that joins ``span`` consecutive GPUs; the outermost if none reaches that far."""
        if span <= 1:
            return None
        for link in self.node.links:
            if link.reach >= span:
                return link
        return self.node.links[-1] if self.node.links else None


class Joint(Spec, frozen=True, kw_only=True):
    """The network between two pools, or between two zones (or inside one), by name."""

    ends: tuple[Name, Name]
    link: Link

    def __post_init__(self) -> None:
        check_fields("link", self)


class Cluster(Spec, frozen=True, kw_only=True):
    """The pools a job may use. One pool: homogeneous. Several: mixed."""

    pools: tuple[Pool, ...]
    between: Link | None = None  # the tier that joins pools
    joints: tuple[Joint, ...] = ()  # where it is another

    def __post_init__(self) -> None:
        check(len(self.pools) >= 1, "cluster.pools", len(self.pools), "at least one pool")
        known = {name for pool in self.pools for name in (pool.name, pool.zone) if name}
        said: dict[frozenset[str], Link] = {}
        for joint in self.joints:
            for end in joint.ends:
                check(end in known, "link", end, f"a pool or zone of this cluster: {', '.join(sorted(known))}")
            pair = frozenset(joint.ends)
            want = "one description of a link; two contradict each other"
            check(said.setdefault(pair, joint.link) == joint.link, f"link {' - '.join(joint.ends)}", None, want)

    def joined_by(self, here: int, there: int) -> Link | None:
        """What joins two pools: their own link, that of their zones, or the common one; None if nothing is said."""
        return self.crossed(here, there)[0]

    def crossed(self, here: int, there: int) -> tuple[Link | None, tuple[str, str]]:
        """What joins two pools, and its ends in the direction of the second: pools that share a line share both."""
        one, other = self.pools[here], self.pools[there]
        for ends in ((one.name, other.name), (one.zone, other.zone)):
            for joint in self.joints:
                if frozenset(joint.ends) == frozenset(ends) and all(ends):
                    return joint.link, ends
        return self.between, ("", "in") if here < there else ("in", "")

    def widened(self, times: float) -> "Cluster":
        """The same pools with lines so many times as wide."""
        joints = tuple(msgspec.structs.replace(joint, link=joint.link.widened(times)) for joint in self.joints)
        between = self.between and self.between.widened(times)
        return msgspec.structs.replace(self, joints=joints, between=between)

    @property
    def lines(self) -> tuple[tuple[int, int], ...]:
        """Pairs of pools with one line between them, which all their GPUs share."""
        places = range(len(self.pools))
        pairs = [(here, there) for here in places for there in places if here < there]
        return tuple(pair for pair in pairs if (link := self.joined_by(*pair)) and link.total_bytes_per_s is not None)

    @property
    def gpus(self) -> int:
        """GPUs in all pools."""
        return sum(pool.gpus for pool in self.pools)
