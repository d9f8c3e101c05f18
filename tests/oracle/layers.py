"""The parts of a model restated in plain Python: seconds and bytes of one micro-batch on one rank.

Letters: b micro-batch; t, c, e, x are tp, cp, ep, etp; T tokens of a micro-batch on a rank, U of them where norms run,
R routed by the rank; h hidden, a heads, g kv heads, dq and dv their widths, w bytes of a GEMM input kept for backward.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from astra.efficiency import collectives, operators
from astra.families.kinds import LayerKind, layer_kinds
from astra.spec.job import Job

WAYS = ("forward", "backward")


class Shard(NamedTuple):
    """How a micro-batch is split."""

    b: int
    t: int
    c: int
    e: int
    x: int
    sp: bool
    flash: bool


class Gemm(NamedTuple):
    """A product; ``low`` if fp8 jobs run it in fp8."""

    m: float
    n: float
    k: float
    groups: float = 1
    low: bool = True
    trained: bool = True
    of: str = "mlp"  # or "attention" or "qkv": what may have adapters


class Core(NamedTuple):
    """The attention of one block."""

    causal: bool
    window: int | None
    a: float
    g: float
    dq: int
    dv: int
    seq: float  # tokens that may see each other: of the sample, or of one chunk of it


class Send(NamedTuple):
    """A collective of a part; ``beside`` is the compute that hides it."""

    axis: str
    op: str
    nbytes: float
    ranks: int
    stride: int
    forward: float
    backward: float
    beside: str = ""


class Stream(NamedTuple):
    """A memory-bound operator that runs ``times`` times, in one way or both."""

    kernel: str
    elements: float
    times: float = 1
    ways: tuple[str, ...] = WAYS
    groups: float = 1  # each with kernels of its own
    again: bool = False  # the forward kernel in backward


class Block(NamedTuple):
    """Some operators; kept is (whole, selective, checkpoint, working) bytes."""

    gemms: list[Gemm]
    cores: list[Core]
    streams: list[Stream]
    kept: tuple[float, float, float, float]


class Part(NamedTuple):
    """A layer, the embedding or the head."""

    compute_s: dict[str, float]  # by way: kernels, or the host if that is slower
    weight_s: float  # of backward
    attention_s: float  # of forward
    exposed_s: dict[tuple[str, str], tuple[float, float]]  # (way, axis): with the axis' overlap off, on
    whole: float
    selective: float
    checkpoint: float
    working: float
    adapters: float
    host_s: dict[str, float]  # by way: to issue its kernels
    members: dict[str, float]  # by way: ranks of its tensor-parallel collectives
    busy_s: float  # kernels and tensor-parallel collectives, both ways

    def seconds(self, way: str, on: frozenset[str], collective_s: float = 0.0) -> float:
        """Compute and exposed communication; or the host, which each collective may cost more."""
        shown_s = sum(both[axis in on] for (w, axis), both in self.exposed_s.items() if w == way)
        return max(self.compute_s[way] + shown_s, self.host(way, collective_s))

    def host(self, way: str, collective_s: float) -> float:
        """Time the host needs to issue it."""
        return self.host_s[way] + collective_s * self.members[way]


def hidden(busy_s: float, window_s: float, slow: float) -> float:
    """What shows of communication beside compute: the part that outlasts it, and the slower compute."""
    return max(busy_s - window_s, 0.0) + slow * min(busy_s, window_s)


def in_gaps(exposed_s: Any, kernels_s: float, host_s: float) -> Any:
    """Communication that also runs while kernels wait for the host, without and with overlap: what lasts longer."""
    totals = [sum(both[on] for both in exposed_s.values()) for on in (0, 1)]
    alone_s = max(kernels_s, host_s)
    shares = [(max(kernels_s + total, host_s) - alone_s) / total if total else 1.0 for total in totals]
    return {key: (off * shares[0], on * shares[1]) for key, (off, on) in exposed_s.items()}


class Layers:
    """Part costs of one job. Operators are timed by the package's own functions, one at a time."""

    def __init__(self, job: Job) -> None:
        self.job, self.kinds = job, layer_kinds(job.model)
        self.w = self.z = 1.0 if job.workload.precision == "fp8" else 2.0
        if job.workload.task == "lora":  # inputs are kept for adapters, which compute in bf16
            self.w, self.z = 2.0, 2.0 if job.runtime.recipe.adapted == "all" else 0.0
        self.cheap = 0.0 if job.runtime.recipe.recomputes_cheap else 1.0
        self.wide = 2 if job.workload.precision == "tf32" else 1  # fp32 tensors; all is counted in 2 bytes below
        self.gemm_s, self.stream_s = lru_cache(None)(self._gemm_s), lru_cache(None)(self._stream_s)
        self.send_s, self.core_s = lru_cache(None)(self._send_s), lru_cache(None)(self._core_s)
        self.parts = lru_cache(None)(self._parts)

    def _gemm_s(self, layout: str, gemm: Gemm) -> float:
        precision = self.job.workload.precision
        precision = precision if gemm.low or precision != "fp8" else "bf16"
        m, n, k, groups = (np.array([float(size)]) for size in gemm[:4])
        m, n, k = {"fwd": (m, n, k), "dgrad": (m, k, n), "wgrad": (k, n, m)}[layout]
        timed = operators.gemm(self.job.pool.device, m=m, n=n, k=k, groups=groups, precision=precision, layout=layout)
        return float(timed.seconds[0]) / self.job.runtime.amount("clock") + self.stream_s(
            0.0, self._pieces(gemm.groups) - 1
        )

    def _stream_s(self, nbytes: float, kernels: float) -> float:
        return float(operators.streaming(self.job.pool.device, nbytes=np.array([nbytes]), kernels=kernels).seconds[0])

    def _send_s(self, op: str, nbytes: float, ranks: int, stride: int) -> float:
        size, n, apart = np.array([float(nbytes)]), np.array([ranks]), np.array([stride])
        return float(collectives.collective(self.job.pool, op, nbytes=size, ranks=n, stride=apart).seconds[0])

    def _core_s(self, way: str, s: Shard, core: Core, queries: float, keys: float) -> float:
        device, usual = self.job.pool.device, self.job.runtime.attention
        kernel = operators.best_kernel(device) if usual == "best" else usual
        softmax = self.job.runtime.kernels["softmax"]
        sizes = {
            "batch": s.b * self.job.workload.seq / core.seq,
            "seq_q": queries,
            "seq_kv": keys,
            "heads": core.a,
            "kv_heads": core.g,
        }
        timed = [
            operators.attention(
                device,
                **{name: np.array([float(size)]) for name, size in sizes.items()},
                head_dim=core.dq,
                head_dim_v=core.dv,
                causal=core.causal,
                window=core.window,
                kernel=each,
                direction="fwd" if way == "forward" else "bwd",
                precision={"fp8": "bf16"}.get(self.job.workload.precision, self.job.workload.precision),
                softmax_bytes=self.wide * (softmax.forward_bytes if way == "forward" else softmax.backward_bytes),
            )
            for each in ((kernel,) if s.flash else (kernel, "unfused"))  # the same products, and the scores as well
        ]
        return max(float(one.seconds[0]) for one in timed) / self.job.runtime.amount("attention_rate")

    def tokens(self, s: Shard) -> tuple[float, float, float]:
        """T, U and R."""
        T = s.b * self.job.workload.seq / s.c
        return T, T / s.t if s.sp else T, T / s.t

    def _parts(self, s: Shard) -> dict[LayerKind | str, Part]:
        found: dict[LayerKind | str, Part] = {kind: self._layer(s, kind) for kind in set(self.kinds)}
        return found | {"embedding": self._embedding(s), "head": self._head(s)}

    def _layer(self, s: Shard, kind: LayerKind) -> Part:
        causal = self.job.model.causal and kind.role != "encoder"
        window = self.job.model.window if kind.span == "window" else None
        blocks = [self._attention(s, causal, window)]
        if kind.role == "cross":  # every position of the decoder sees all of the encoder's output
            blocks.append(self._attention(s, False, None))
        blocks.append(self._experts(s) if "experts" in kind.blocks else self._dense(s))
        whole, selective, checkpoint, working = zip(*(block.kept for block in blocks), strict=True)
        joined = Block(
            [gemm for block in blocks for gemm in block.gemms],
            [core for block in blocks for core in block.cores],
            [stream for block in blocks for stream in block.streams],
            (sum(whole), sum(selective), max(checkpoint), max(working)),
        )
        return self._part(s, joined, self._layer_sends(s, kind))

    def _attention(self, s: Shard, causal: bool, window: int | None) -> Block:
        model, runtime, seq = self.job.model, self.job.runtime, float(self.job.workload.seq)
        mla, h, norms, w = model.mla, model.hidden, model.norms_per_layer / 2, self.w
        T, U, _ = self.tokens(s)
        a = model.heads / s.t
        g = a if mla else max(model.kv_heads / s.t, 1)
        dq, dv = (mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim) if mla else (model.head_dim,) * 2
        gemms, latent = [Gemm(T, (a + 2 * g) * dq, h)], 0.0
        y = w * self.cheap
        if mla:
            rank = mla.q_lora_rank
            gemms = [Gemm(U, rank, h), Gemm(T, a * dq, rank)] if rank else [Gemm(T, a * dq, h)]
            gemms.append(Gemm(U, mla.kv_lora_rank + mla.qk_rope_head_dim, h))
            gemms.append(Gemm(T, a * (mla.qk_nope_head_dim + dv), mla.kv_lora_rank))
            latent = (2 + w) * U * ((rank or 0) + mla.kv_lora_rank)
        streams = [Stream("norm", U * h, norms), Stream("residual", U * h), Stream("boundary", T * h)]
        streams += [Stream("bias", T * (a + 2 * g) * dq)] if model.qkv_bias else []
        streams += [Stream("bias", U * h)] if model.out_bias else []
        qkv, context = 2 * T * (a * dq + g * (dq + dv)), T * a * dv
        if not (model.learned_positions or model.relative_buckets or model.vision):
            streams.append(Stream("rotary", T * (a + g) * dq))
            if runtime.memory.keeps_projection and not mla and s.t > model.kv_heads:  # gathered, and kept by the values
                qkv = 2 * T * (model.heads + 2 * model.kv_heads) * dq
            qkv += 2 * T * (a + g) * dq if runtime.memory.keeps_projection else 0
        if model.qk_norm != "none":
            streams.append(Stream("qk_norm", T * (a + g) * dq))
            qkv += 2 * T * (a + g) * dq  # both sides of the norm
        if window is not None and model.chunked:
            seq, window = min(float(window), seq), None
        scores = 4 * T * a if s.flash else 4 * T * a * seq  # a number per row, or all scores and probabilities
        kept = 2 * U * h + y * U * h * norms + qkv + w * context + latent
        working = 2 * qkv + 2 * context + (0 if s.flash else scores) + 4 * T * h
        core = Core(causal, window, a, g, dq, dv, seq)
        gemms = [*(gemm._replace(of="qkv") for gemm in gemms), Gemm(T, h, a * dv, of="attention")]
        return Block(gemms, [core], streams, (kept + scores, kept, 2 * U * h, working))

    def _mlp(self, tokens: float, width: float, groups: float = 1) -> Block:
        h, gates = self.job.model.hidden, 2 if self.job.model.gated_mlp else 1
        inner = groups * tokens * width
        kept = (2 * gates + self.z * self.cheap) * inner
        kept += 2 * inner if gates == 2 and self.job.runtime.amount("keeps_activation") else 0.0
        gemms = [Gemm(tokens, gates * width, h, groups), Gemm(tokens, h, width, groups)]
        return Block(
            gemms, [], [Stream("swiglu" if gates == 2 else "gelu", inner)], (kept, kept, 0.0, 2 * gates * inner)
        )

    def _dense(self, s: Shard) -> Block:
        model, (T, U, _) = self.job.model, self.tokens(s)
        h, norms = model.hidden, model.norms_per_layer / 2
        gemms, _, streams, (whole, _, _, working) = self._mlp(T, model.ffn / s.t)
        kept = whole + 2 * U * h + self.z * self.cheap * U * h * norms
        streams = [*streams, Stream("norm", U * h, norms), Stream("residual", U * h), Stream("boundary", T * h)]
        streams += [Stream("bias", T * model.ffn / s.t), Stream("bias", U * h)] if model.mlp_bias else []
        return Block(gemms, [], streams, (kept, kept, 2 * U * h, working + 4 * T * h))

    def _experts(self, s: Shard) -> Block:
        model, (T, U, R) = self.job.model, self.tokens(s)
        moe, h = model.moe, model.hidden
        assert moe is not None
        copies, local = R * moe.topk * s.x, moe.experts / s.e
        blocks = [self._mlp(copies / local, moe.ffn / s.x, local)]
        blocks += [self._mlp(T, moe.shared_ffn / s.t)] if moe.shared_ffn else []
        gemms = [gemm for block in blocks for gemm in block.gemms] + [Gemm(R, moe.experts, h, low=False)]
        streams = [stream for block in blocks for stream in block.streams]
        streams += [Stream("norm", U * h, model.norms_per_layer / 2), Stream("residual", U * h)]
        streams += [Stream("router", R * moe.experts), Stream("permute", copies * h)]
        streams.append(Stream("sort", copies * h if s.e > 1 and local > 1 else 0.0))
        if moe.expert_bias:
            inner = copies * moe.ffn / s.x
            streams += [Stream("expert_bias", copies * h, groups=local), Stream("expert_clamp", inner)]
            streams.append(Stream("bias", (2 if model.gated_mlp else 1) * inner))
        kept = sum(block.kept[0] for block in blocks)
        kept += (2 + self.z * self.cheap) * U * h + 8 * R * moe.experts + self.z * copies * h
        working = max(block.kept[3] for block in blocks) + 6 * copies * h + 4 * T * h
        return Block(gemms, [], streams, (kept, kept, 2 * U * h, working))

    def _embedding(self, s: Shard) -> Part:
        model, (T, _, _) = self.job.model, self.tokens(s)
        whole, sends = 2 * T * model.hidden, [Send("tp", "all_reduce", 2 * T * model.hidden, s.t, 1, 1, 0)]
        if s.sp:
            sends = [Send("tp", "reduce_scatter", whole, s.t, 1, 1, 0), Send("tp", "all_gather", whole, s.t, 1, 0, 1)]
        pixels = model.vision.channels * model.vision.patch**2 if model.vision else 0
        gemms = [Gemm(T, model.hidden, pixels, low=False)] if pixels else []
        return self._part(s, Block(gemms, [], [Stream("embedding", T * model.hidden)], (0.0, 0.0, 0.0, 0.0)), sends)

    def _head(self, s: Shard) -> Part:
        model, runtime, (T, U, _) = self.job.model, self.job.runtime, self.tokens(s)
        h, whole = model.hidden, 2 * T * model.hidden
        sends = [Send("tp", "all_reduce", 4 * T, s.t, 1, 3, 0)]
        if s.sp:
            sends.append(Send("tp", "all_gather", whole, s.t, 1, 1, 0))
        sends.append(Send("tp", "reduce_scatter" if s.sp else "all_reduce", whole, s.t, 1, 0, 1, "gemm"))
        columns = 0 if model.vision else ceil(model.vocab / (128 * s.t)) * 128
        gemm, streams = Gemm(T, columns, h, low=False), [Stream("norm", U * h)]
        if model.vision:
            gemm = Gemm(s.b, model.vision.classes, h, low=False)
        else:
            streams.append(Stream("cross_entropy", T * columns))
        logits = T * columns / self.wide  # the loss is in fp32 whatever the precision
        kept = (2 + self.w) * U * h + runtime.memory.logits_kept_bytes * logits
        working = (runtime.memory.logits_peak_bytes - runtime.memory.logits_kept_bytes) * logits + (
            0 if model.vision else 4 * T * h
        )
        return self._part(s, Block([gemm], [], streams, (kept, kept, kept, working)), sends)

    def _layer_sends(self, s: Shard, kind: LayerKind) -> list[Send]:
        model, (T, _, R) = self.job.model, self.tokens(s)
        moe, mla, whole = model.moe, model.mla, 2 * T * model.hidden
        n = (2 if kind.role == "cross" else 1) + ("dense" in kind.blocks or bool(moe and moe.shared_ffn))
        if s.sp:  # gather and scatter around each pair of products; backward gathers twice
            fp8 = self.job.workload.precision == "fp8" and self.job.runtime.recipe.gathers_fp8
            part = whole / 2 if fp8 else whole  # quantised before it is gathered
            sends = [Send("tp", "all_gather", part, s.t, 1, n, n), Send("tp", "reduce_scatter", whole, s.t, 1, n, 0)]
            sends.append(Send("tp", "all_gather", part, s.t, 1, 0, n, "gemm"))
            sends.append(Send("tp", "reduce_scatter", whole, s.t, 1, 0, n, "gemm"))
        else:
            sends = [
                Send("tp", "all_reduce", whole, s.t, 1, n, 0),
                Send("tp", "all_reduce", whole, s.t, 1, 0, n, "gemm"),
            ]
        widths = max(model.kv_heads / s.t, 1) * 2 * model.head_dim
        if mla:
            widths = model.heads / s.t * (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
        sends.append(Send("cp", "send_recv", 2 * T * widths, s.c, s.t, s.c - 1, 2 * (s.c - 1), "attention"))
        if moe and "experts" in kind.blocks:
            routed = 2 * R * moe.topk * model.hidden
            sends.append(Send("ep", "all_to_all", routed, s.e, s.x, 2, 2))
            sends += [Send("ep", op, routed * s.x, s.x, 1, 1, 1) for op in ("all_gather", "reduce_scatter")]
        return sends

    def _part(self, s: Shard, block: Block, sends: list[Send]) -> Part:
        runtime, gemms, adapters = self.job.runtime, block.gemms, []
        if self.job.workload.task == "lora":
            of = {"all": ("qkv", "attention", "mlp"), "attention": ("qkv", "attention"), "qkv": ("qkv",)}
            rank, chosen = self.job.workload.lora_rank, of[runtime.recipe.adapted]
            low = [gemm._replace(low=False) for gemm in gemms if gemm.low and gemm.of in chosen]
            adapters = [g._replace(n=rank) for g in low] + [g._replace(k=rank) for g in low]
            gemms = [gemm._replace(trained=False) for gemm in gemms] + adapters
        dgrad_s = sum(self.gemm_s("dgrad", gemm._replace(trained=True)) for gemm in gemms)
        weight_s = sum(self.gemm_s("wgrad", gemm) for gemm in gemms if gemm.trained)
        matrix_s = {"forward": sum(self.gemm_s("fwd", gemm._replace(trained=True)) for gemm in gemms)}
        matrix_s["backward"] = dgrad_s + weight_s
        core_s = {way: sum(self._ring_s(way, s, core) for core in block.cores) for way in WAYS}
        compute_s: dict[str, float] = {}
        members: dict[str, float] = {}
        busy_s = 0.0
        memory_s, host_s = dict.fromkeys(WAYS, 0.0), dict.fromkeys(WAYS, 0.0)
        exposed_s: dict[tuple[str, str], tuple[float, float]] = {}
        streams = block.streams + self._gemm_streams(gemms)
        if runtime.recipe.recomputes_cheap:
            cheap = [s for s in streams if s.kernel in ("norm", "swiglu", "gelu", "expert_clamp")]
            streams += [s._replace(ways=("backward",), again=True) for s in cheap]
        for way in WAYS:
            memory_s[way], host_s[way] = self._traffic(way, block, gemms, streams, sends)
        drained_s = {"forward": self._drained_s(gemms, streams), "backward": 0.0}
        if runtime.amount("clock_follows_power"):
            slower = self._clock_loss(matrix_s, core_s, memory_s, drained_s, host_s)
            matrix_s = {way: slower * matrix_s[way] for way in WAYS}
            core_s = {way: slower * core_s[way] for way in WAYS}
            weight_s *= slower
        for way in WAYS:
            back = way == "backward"
            kernels_s = matrix_s[way] + core_s[way] + memory_s[way]
            compute_s[way] = self._either_s(kernels_s + drained_s[way], host_s[way])
            idle_s = compute_s[way] - kernels_s  # while kernels wait for the host, communication goes on
            window_s = {"gemm": matrix_s[way] + idle_s, "attention": core_s[way] + idle_s, "layer": compute_s[way]}
            shown_s = self._exposed_s(way, s, sends, window_s)
            if runtime.amount("launches_ahead"):
                shown_s = in_gaps(shown_s, kernels_s + drained_s[way], host_s[way])
            exposed_s |= shown_s
            mine = [x for x in sends if x.axis == "tp" and x.ranks > 1]
            members[way] = sum((x.backward if back else x.forward) * x.ranks for x in mine)
            busy_s += kernels_s + sum(
                (x.backward if back else x.forward) * self.send_s(x.op, self.wide * x.nbytes, x.ranks, x.stride)
                for x in mine
            )
        added = sum(gemm.groups * gemm.k * gemm.n for gemm in adapters)
        whole, selective, checkpoint, working = (self.wide * size for size in block.kept)
        if runtime.kernels["accumulate"].backward_bytes:  # a gradient, until it is added to the others
            sizes = (2 * self.wide * gemm.groups * gemm.k * gemm.n for gemm in gemms if gemm.trained)
            working = max([working, *sizes])
        kept = (whole, selective, checkpoint, working)
        return Part(compute_s, weight_s, core_s["forward"], exposed_s, *kept, added, host_s, members, busy_s)

    def _traffic(
        self, way: str, block: Block, gemms: list[Gemm], streams: list[Stream], sends: list[Send]
    ) -> tuple[float, float]:
        """Seconds of what streams through memory, and of the host that launches everything."""
        runtime, back, memory_s = self.job.runtime, way == "backward", 0.0
        launches = (1.0 + back) * sum(self._pieces(gemm.groups) for gemm in gemms) + (1 + 2 * back) * len(block.cores)
        for stream in (stream for stream in streams if way in stream.ways):
            kernel = runtime.kernels[stream.kernel]
            late = back and not stream.again
            each = kernel.backward_bytes if late else kernel.forward_bytes
            each *= 1 if stream.kernel in ("cross_entropy", "accumulate") else self.wide
            count = (
                (kernel.backward_kernels if late else kernel.forward_kernels)
                * stream.times
                * self._pieces(stream.groups)
            )
            memory_s += self.stream_s(each * stream.elements * stream.times, count)
            launches += count
        calls = sum(send.backward if back else send.forward for send in sends if send.ranks > 1)
        launches += runtime.amount("collective_launches") * calls
        return memory_s, launches * (runtime.host.backward_s if back else runtime.host.launch_s)

    def _either_s(self, kernels_s: float, host_s: float) -> float:
        """The longer of the two, smoothed unless the host runs ahead."""
        return (
            max(kernels_s, host_s) if self.job.runtime.amount("launches_ahead") else (kernels_s**4 + host_s**4) ** 0.25
        )

    def _clock_loss(self, *parts: dict[str, float]) -> float:
        """Full clock over the clock that the power limit leaves, found by halving: T g^3 = T + O g."""
        gain, tensor_s, other_s = self.job.runtime.amount("clock"), 0.0, 0.0
        for matrix_s, core_s, memory_s, drained_s, host_s in ([part[way] for part in parts] for way in WAYS):
            tensor_s += gain * matrix_s + core_s / 2
            whole_s = self._either_s(matrix_s + core_s + memory_s + drained_s, host_s)
            other_s += whole_s - matrix_s - core_s / 2
        low, high = 1.0, gain
        for _ in range(60):
            middle = (low + high) / 2
            within = tensor_s * middle**3 <= tensor_s + other_s * middle
            low, high = (middle, high) if within else (low, middle)
        return gain / high

    def _gemm_streams(self, gemms: list[Gemm]) -> list[Stream]:
        """What runs beside products: quantising their operands in fp8, and adding up weight gradients."""
        streams = []
        if self.job.workload.precision == "fp8":
            low = [gemm for gemm in gemms if gemm.low]
            streams += [Stream("fp8_cast", g.groups * g.m * g.k, 1, WAYS[:1], g.groups) for g in low]
            streams += [Stream("fp8_cast", g.groups * g.m * g.n, 1, WAYS[1:], g.groups) for g in low]
        size = sum(gemm.groups * gemm.k * gemm.n for gemm in gemms if gemm.trained)
        return [*streams, Stream("accumulate", size, 1, WAYS[1:])]

    def _pieces(self, groups: float) -> float:
        """Kernels of what experts do: one for each, or one for all."""
        return 1.0 if self.job.runtime.amount("experts_together") else groups

    def _drained_s(self, gemms: list[Gemm], streams: list[Stream]) -> float:
        """Forward, experts only: kernels issued between knowing the routing and the first expert's product."""
        if "permute" not in [stream.kernel for stream in streams]:
            return 0.0
        runtime, experts = self.job.runtime, max(self._pieces(gemm.groups) for gemm in gemms)
        casts = experts if self.job.workload.precision == "fp8" else 0
        return (runtime.kernels["permute"].forward_kernels / 2 + casts) * runtime.host.launch_s

    def _once(self, send: Send) -> float:
        """Share of an all-to-all that is left where a token goes to each rank, or node if there are several, once."""
        moe, links = self.job.model.moe, self.job.pool.node.links
        if send.op != "all_to_all" or self.job.runtime.recipe.dispatch == "copies" or moe is None:
            return 1.0
        nodes = send.ranks * send.stride / (links[0].reach if links else 1)
        places = nodes if nodes > 1 else send.ranks
        return places * (1 - (1 - 1 / places) ** moe.topk) / moe.topk

    def _ring_s(self, way: str, s: Shard, core: Core) -> float:
        """Own keys under the mask, then the other ranks' in turn; half of those matter under a causal mask."""
        keys = core.seq / s.c
        if s.c > 1 and core.window is not None:
            return self.core_s(way, s, core, keys, core.seq)
        total_s = self.core_s(way, s, core, keys, keys)
        if s.c > 1:
            other = core._replace(causal=False)
            total_s += (s.c - 1) * self.core_s(way, s, other, keys, keys / 2 if core.causal else keys)
        return total_s

    def _exposed_s(self, way: str, s: Shard, sends: list[Send], window_s: dict[str, float]) -> Any:
        """What is not hidden, without and with the overlap of tensor parallelism."""
        slow = collectives.overlap_slowdown(self.job.pool, "node")
        found = {}
        for axis in ("tp", "cp", "ep"):
            busy_s = {"": 0.0, "gemm": 0.0, "attention": 0.0, "layer": 0.0}
            for send in sends:
                times = send.forward if way == "forward" else send.backward
                if send.axis == axis and send.ranks > 1 and times:
                    nbytes = self.wide * send.nbytes * self._once(send)
                    away = send.op == "all_to_all" and self.job.runtime.recipe.hides_all_to_all
                    beside = "layer" if away else send.beside
                    busy_s[beside] += times * self.send_s(send.op, nbytes, send.ranks, send.stride)
            shown_s = sum(hidden(busy_s[name], window_s[name], slow) for name in window_s)
            bare_s = on_s = busy_s[""]
            if axis == "tp":  # cut into t pieces: the first has nothing to hide behind
                room_s = max(window_s["gemm"] - busy_s["gemm"], 0.0)
                on_s = min(bare_s / s.t + hidden(bare_s - bare_s / s.t, room_s, slow), bare_s)
            found[way, axis] = (bare_s + shown_s, on_s + shown_s)
        return found
