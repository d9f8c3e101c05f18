"""Parts of a model: compute, what communication shows of itself, and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import astra
from astra.axes import AXES
from astra.catalog import models
from astra.catalog.clusters import parse_gpus
from astra.columns import Columns
from astra.cost import effects
from astra.cost.exchanges import places_met
from astra.cost.layers import EMBEDDING, HEAD, layers_of
from astra.cost.parts import Direction, Part, clock_loss, forward_again, parts, pieces, worst_source
from astra.cost.stage import gather_parts, retention
from astra.layers.block import LayerKind
from astra.operators.basis import FULL_CLOCK
from astra.provenance import Source
from astra.search.world import World
from astra.spec.job import Job, Words
from astra.spec.model import MoE
from astra.spec.request import PlanRequest
from astra.spec.runtime import Kernel, changed
from tests.layers.test_operators import shard
from tests.oracle.requests import model
from tests.properties.jobs import job, jobs, with_work
from tests.tiers import drawn


def shards(asked: Job) -> Columns:
    """A few shardings that any tiny model allows."""
    rows = [(1, 1, 1, 1, False), (2, 1, 1, 2, True), (2, 1, 2, 1, False), (4, 2, 1, 1, True), (1, 2, 2, 4, False)]
    tp, cp, ep, mbs, sp = (np.array(column) for column in zip(*rows, strict=True))
    ep = ep if asked.model.moe else np.ones_like(ep)
    return {"tp": tp, "cp": cp, "ep": ep, "etp": np.ones_like(tp), "mbs": mbs, "sp": sp, "flash": np.ones_like(sp)}


def directions(found: Mapping[LayerKind | str, Part]) -> list[Direction]:
    return [way for part in found.values() for way in (part.forward, part.backward)]


@drawn(30, few=10)
@given(jobs)
def test_exposed_is_at_most_busy_and_overlap_helps(asked: Job) -> None:
    for way in directions(gather_parts(asked, shards(asked)).parts):
        for axis in AXES:
            busy, exposed, hidden = way.busy_s[axis.name], way.exposed_s[axis.name], way.overlapped_s[axis.name]
            assert np.all(hidden >= 0)
            assert np.all(hidden <= exposed * (1 + 1e-12))
            assert np.all(exposed <= busy * (1 + 1e-12))
        kernels_s = way.gemm_s + way.attention_s + way.stream_s
        assert np.all(way.compute_s >= np.maximum(kernels_s, way.host_s) * (1 - 1e-12))


@drawn(30, few=10)
@given(jobs)
def test_each_sharding_costs_the_same_alone(asked: Job) -> None:
    columns = shards(asked)
    together = gather_parts(asked, columns)
    for row in range(len(columns["tp"])):
        alone = gather_parts(asked, {name: column[row : row + 1] for name, column in columns.items()})
        for key, part in together.parts.items():
            place = together.place[row]
            single = alone.parts[key]
            for many, one in ((part.forward, single.forward), (part.backward, single.backward)):
                assert many.compute_s[place] == pytest.approx(one.compute_s[0], rel=1e-5)
                for axis in AXES:
                    assert many.busy_s[axis.name][place] == pytest.approx(one.busy_s[axis.name][0])


@drawn(20, few=8)
@given(jobs)
def test_shardings_that_are_alike_are_timed_once_and_alike(asked: Job) -> None:
    degrees = np.array(np.meshgrid((1, 2), (1, 2), (1, 2), (1, 2), (1, 2, 4))).reshape(5, -1)
    tp, cp, ep, etp, mbs = degrees[:, degrees[3] <= degrees[0]]
    one = np.ones_like(tp)
    ep, etp = (ep, etp) if asked.model.moe else (one, one)
    columns = {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "mbs": mbs, "sp": tp > 1, "flash": one.astype(bool)}
    each = gather_parts(asked, columns)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("astra.layers.operators._FEW", 0)
        once = gather_parts(asked, columns)
    for key, part in each.parts.items():
        assert np.array_equal(part.source["gemm"], once.parts[key].source["gemm"])
        for one_way, way in zip(directions({key: part}), directions({key: once.parts[key]}), strict=True):
            assert np.array_equal(one_way.gemm_s, way.gemm_s)
            for axis in AXES:
                assert np.array_equal(one_way.busy_s[axis.name], way.busy_s[axis.name])
                assert np.array_equal(one_way.exposed_s[axis.name], way.exposed_s[axis.name])


def test_backward_takes_longer_and_holds_the_weight_gradients() -> None:
    found = parts(job(2), shard(128))
    for part in found.values():
        assert np.all(part.weight_s <= part.backward.gemm_s)
        assert np.all(part.backward.gemm_s >= part.forward.gemm_s)


def test_frozen_weights_have_no_gradients_but_adapters_do() -> None:
    large = model("dense", hidden=4096, ffn=11008, heads=32, kv_heads=32, head_dim=128)
    asked = with_work(msgspec.structs.replace(job(2), model=large), task="pretrain")
    full, lora = parts(asked, shard(4096)), parts(with_work(asked, task="lora", lora_rank=8), shard(4096))
    for key, part in lora.items():
        if key not in (EMBEDDING, HEAD):
            assert 0 < float(part.weight_s[0]) < float(full[key].weight_s[0])
            assert float(part.adapters[0]) > 0 == float(full[key].adapters[0])
        assert np.all(part.forward.gemm_s >= full[key].forward.gemm_s)


def test_a_fast_gpu_waits_for_its_host() -> None:
    asked = job(2)
    slow_host = changed(asked.runtime, launch_s=1e-2, backward_s=1e-2)
    found = parts(msgspec.structs.replace(asked, runtime=slow_host), shard(128))
    for way in directions(found):
        assert way.compute_s == pytest.approx(way.host_s, rel=1e-3)


def clocked(gemm_s: float, stream_s: float) -> float:
    """Seconds of a part of GEMMs (at the full clock) and memory-bound kernels, its clock limited by power."""
    runtime = changed(job(2).runtime, clock_follows_power=True)
    zero, total_s = np.zeros(1), np.array([gemm_s + stream_s])
    way = Direction(np.array([gemm_s]), zero, np.array([stream_s]), zero, zero, {}, {}, {}, zero, total_s)
    return float(clock_loss(runtime, [way])[0] * gemm_s + stream_s)


def test_the_clock_is_what_power_allows() -> None:
    assert clocked(1.0, 0.0) == pytest.approx(FULL_CLOCK)  # GEMMs alone: the clock that was measured in hours of them
    assert clocked(1.0, 1.0) == pytest.approx(2.0)  # half of the time: all of the gain
    between = clocked(1.0, 0.3)
    clock = FULL_CLOCK / (between - 0.3)
    assert clock**3 * (between - 0.3) == pytest.approx(between)  # mean power is that of GEMMs alone
    assert 1.3 < between < 1.5


@drawn(60, few=20)
@given(st.floats(1e-6, 10), st.floats(0, 10), st.floats(0, 1))
def test_less_work_is_never_slower_under_a_power_limit(gemm_s: float, stream_s: float, less: float) -> None:
    whole = clocked(gemm_s, stream_s) * (1 + 1e-9)
    assert clocked(gemm_s, stream_s * less) <= whole
    assert clocked(max(gemm_s * less, 1e-9), stream_s) <= whole


def test_products_and_attention_have_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU has one clock: where power limits it, all that its tensor cores do takes as much longer."""
    asked = World.of(PlanRequest(model="llama-2-7b", gpus=("8xH100",))).job
    one = {name: np.ones(1, np.int64) for name in ("tp", "cp", "ep", "etp", "mbs")}
    one |= {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}
    asked = msgspec.structs.replace(asked, runtime=changed(asked.runtime, clock_follows_power=True))
    limited = gather_parts(asked, one).parts
    monkeypatch.setattr("astra.cost.parts.clock_loss", lambda *_: 1.0)
    free = gather_parts(asked, one).parts
    slower = []
    for key in (each for each in limited if each != EMBEDDING):
        for way in ("forward", "backward"):
            slowed, full = getattr(limited[key], way), getattr(free[key], way)
            slower.append(float(np.max(slowed.gemm_s / full.gemm_s)))
            assert slowed.attention_s == pytest.approx(slower[-1] * full.attention_s)
    assert min(slower) >= 1
    assert 1.01 < max(slower) <= FULL_CLOCK * (1 + 1e-9)
    assert any(np.max(part.forward.attention_s) > 0 for part in limited.values())


def test_a_router_in_fp32_runs_outside_of_tensor_cores() -> None:
    asked = World.of(PlanRequest(model="qwen3-235b-a22b", gpus=("64xH200",))).job
    columns = {name: np.ones(1, np.int64) for name in ("tp", "cp", "ep", "etp", "mbs")}
    columns |= {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}
    half, full = (
        gather_parts(msgspec.structs.replace(asked, runtime=changed(asked.runtime, fp32_router=each)), columns).parts
        for each in (0.0, 1.0)
    )
    tokens, moe, device = asked.workload.seq, asked.model.moe, asked.pool.device
    assert moe is not None
    flops = 2 * tokens * moe.experts * asked.model.hidden
    for key in (each for each in full if isinstance(each, LayerKind)):
        for way, products in (("forward", 1), ("backward", 2)):
            more_s = getattr(full[key], way).gemm_s - getattr(half[key], way).gemm_s
            assert np.all(more_s > 0.9 * products * flops * (1 / device.peak("fp32") - 1 / device.peak("bf16")))


@pytest.mark.parametrize(("name", "products"), [("llama-2-7b", 1), ("mixtral-8x7b", 0), ("gemma-2-9b", 0)])
def test_torch_stops_when_all_that_backward_needs_is_back(name: str, products: int) -> None:
    """Of a layer of seven products torch runs six again (27 L + 3 of 28 L + 3 were counted in ranks on an H200)."""
    asked = World.of(PlanRequest(model=name, gpus=("64xH200",), runtime="fsdp")).job
    columns = {each: np.ones(1, np.int64) for each in ("tp", "cp", "ep", "etp", "mbs")}
    columns |= {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}
    found = gather_parts(asked, columns).parts
    whole = msgspec.structs.replace(asked, runtime=changed(asked.runtime, stops_recompute=0.0))
    for key in (each for each in found if isinstance(each, LayerKind)):
        part = found[key]
        spared_s = part.forward.gemm_s - forward_again(asked.runtime, part).gemm_s
        assert np.all(gather_parts(whole, columns).parts[key].unrepeated_s == 0)
        share = asked.model.ffn / (asked.model.ffn * 3 + asked.model.hidden * 4) if products else 0.0
        assert spared_s == pytest.approx(share * part.forward.gemm_s, rel=0.05)


def test_collectives_take_the_hosts_time_where_a_runtime_says_so() -> None:
    some = shard(128, tp=2, sp=True)
    asked, calls = (
        msgspec.structs.replace(job(2), runtime=changed(job(2).runtime, collective_launches=each))
        for each in (0.0, 1.0)
    )
    for key, part in parts(calls, some).items():
        plain = parts(asked, some)[key]
        assert np.all(part.forward.host_s > plain.forward.host_s)
    alone = shard(128)
    for key, part in parts(calls, alone).items():
        assert part.forward.host_s == pytest.approx(parts(asked, alone)[key].forward.host_s)


def test_a_gradient_waits_in_bf16_where_it_is_added_apart() -> None:
    asked = with_work(job(2), task="pretrain")
    apart = asked.runtime.kernels | {"accumulate": Kernel(forward_bytes=0, backward_bytes=10)}
    fused = asked.runtime.kernels | {"accumulate": Kernel(forward_bytes=0, backward_bytes=0)}
    short = shard(1)  # activations of one token: the gradient of the largest matrix is more
    one, two = (
        parts(msgspec.structs.replace(asked, runtime=msgspec.structs.replace(asked.runtime, kernels=each)), short)[HEAD]
        for each in (apart, fused)
    )
    columns = -(-asked.model.vocab // 128) * 128
    assert float(one.kept.working[0]) == 2 * columns * asked.model.hidden > float(two.kept.working[0])


def run_as(asked: Job, **changes: object) -> Job:
    return msgspec.structs.replace(asked, runtime=changed(asked.runtime, **changes))


def only_layer(asked: Job, tokens: int = 4096) -> Part:
    found = parts(asked, shard(tokens)._replace(keeps=retention(asked)))
    return next(part for key, part in found.items() if isinstance(key, LayerKind))


def test_adapters_are_not_quantised() -> None:
    """An fp8 job with adapters casts what it casts without them."""
    large = model("dense", hidden=4096, ffn=11008, heads=32, kv_heads=32, head_dim=128)
    asked = with_work(msgspec.structs.replace(job(2), model=large), task="pretrain", precision="fp8")
    lora = with_work(asked, task="lora")
    assert only_layer(lora).forward.stream_s == pytest.approx(only_layer(asked).forward.stream_s)
    few, some, all_of_them = (only_layer(with_work(lora, lora_targets=of)) for of in ("qkv", "attention", "all"))
    assert few.adapters < some.adapters < all_of_them.adapters
    assert few.kept.whole < all_of_them.kept.whole  # inputs of frozen matrices are kept for adapters alone


def test_modules_are_parts_of_a_layer() -> None:
    """Each is run again in less than the forward pass, and saves less than all; together they save no more than all."""
    latent = msgspec.structs.replace(job(2), model=model("mla"))
    for asked in (with_work(job(2), task="pretrain"), with_work(latent, task="pretrain", precision="bf16")):
        part = only_layer(asked)
        forward_s = part.forward.gemm_s + part.forward.attention_s + part.forward.stream_s + part.forward.drained_s
        for module in part.modules.values():
            assert np.all(module.compute_s > 0)
            assert np.all(module.compute_s < forward_s)
            assert np.all(module.saved > 0)
            assert np.all(module.saved < part.kept.whole)
        apart = [one.saved for name, one in part.modules.items() if name not in ("moe_act", "shared_experts")]
        assert np.all(sum(apart) < part.kept.whole)


def test_output_discarding_modules_repeat_memory_traffic_alone() -> None:
    """Norms and activations are cheap to run again: at most the time of moving their tensors a few times."""
    asked = with_work(msgspec.structs.replace(job(2), model=model("moe")), task="pretrain", precision="bf16")
    part = only_layer(asked)
    for name in ("layernorm", "moe_act"):
        again = part.modules[name]
        assert np.all(again.compute_s < 0.5 * part.forward.stream_s + 5e-5)
        assert again.sends == {}
    assert part.modules["moe"].sends == {"ep": 1.0}


def saying(asked: Job, **words: Any) -> Job:
    return msgspec.structs.replace(asked, settled=Words(**words))


def test_graphs_take_the_launches() -> None:
    """A graph of the step takes all launches, graphs of parts those of models without experts."""
    for kind, partial in (("dense", True), ("moe", False)):
        asked = with_work(msgspec.structs.replace(job(2), model=model(kind)), task="pretrain", precision="bf16")
        asked = run_as(asked, launch_s=4e-5, backward_s=2.5e-5)
        none, some, full = (only_layer(saying(asked, graphs=how), 128) for how in ("none", "partial", "full"))
        assert full.forward.host_s < 0.06 * none.forward.host_s
        assert (some.forward.host_s < none.forward.host_s) == partial
        assert full.forward.compute_s < none.forward.compute_s


def test_imbalance_slows_the_fullest_rank() -> None:
    """Experts and their exchanges take as many times longer as the fullest rank has tokens; the rest does not."""
    moe = msgspec.structs.replace(model("moe"), hidden=2048, moe=MoE(experts=16, topk=4, ffn=4096))
    asked = with_work(msgspec.structs.replace(job(2), model=moe, pool=parse_gpus("64xH100")), task="pretrain")
    split = shard(65536)._replace(ep=np.array([16]))

    def fullest(imbalance: float) -> Part:
        found = parts(with_work(asked, imbalance=imbalance), split._replace(imbalance=imbalance))
        return next(part for key, part in found.items() if isinstance(key, LayerKind))

    even, uneven = fullest(1.0), fullest(2.0)
    assert float(uneven.forward.busy_s["ep"][0]) == pytest.approx(2 * float(even.forward.busy_s["ep"][0]), rel=0.05)
    assert even.forward.gemm_s < uneven.forward.gemm_s < 2 * even.forward.gemm_s
    assert uneven.forward.attention_s == even.forward.attention_s
    assert uneven.kept.whole > even.kept.whole


def test_experts_keep_the_host_busy() -> None:
    """Each expert has products of its own, and the first of them waits for the routing."""

    def launching(experts: int) -> Part:
        moe = msgspec.structs.replace(model("moe"), moe=MoE(experts=experts, topk=2, ffn=128))
        asked = with_work(msgspec.structs.replace(job(2), model=moe), task="pretrain", precision="bf16")
        return only_layer(run_as(asked, launch_s=4e-5, backward_s=2.5e-5), 128)

    few, many = launching(4), launching(32)
    assert float(many.forward.host_s[0] - few.forward.host_s[0]) == pytest.approx(2 * 28 * 4e-5)
    assert float(many.backward.host_s[0] - few.backward.host_s[0]) == pytest.approx(4 * 28 * 2.5e-5)
    assert few.forward.drained_s > 0 == few.backward.drained_s


def test_a_token_sent_once_for_each_rank_moves_less() -> None:
    moe = msgspec.structs.replace(model("moe"), hidden=2048, moe=MoE(experts=16, topk=8, ffn=128))
    asked = with_work(msgspec.structs.replace(job(2), model=moe, pool=parse_gpus("8xH100")), task="pretrain")
    split = shard(4096)._replace(ep=np.array([8]))

    def exchange(**words: Any) -> Direction:
        found = parts(saying(asked, **words), split._replace(does=Words(**words)))
        return next(part for key, part in found.items() if isinstance(key, LayerKind)).forward

    every, once, narrow = exchange(), exchange(dispatch="deepep"), exchange(dispatch="deepep", dispatch_fp8=True)
    assert 0.5 < float(once.busy_s["ep"][0] / every.busy_s["ep"][0]) < 0.85
    assert 0.7 < float(narrow.busy_s["ep"][0] / once.busy_s["ep"][0]) < 0.85  # a byte out, two back
    assert every.overlapped_s["ep"] < every.exposed_s["ep"] == every.busy_s["ep"]


def test_bytes_to_other_nodes_are_those_of_the_published_dispatcher() -> None:
    """h w (D - 1) (1 - (1 - 1/D)^k) bytes a token leave a node of D (DeepSeek-V3: at most four nodes of eight).

    The time over the network follows the bytes, so that the ratio of two dispatchers is that of their bytes.
    """
    nodes, topk = 8, 8
    moe = msgspec.structs.replace(model("moe"), hidden=7168, moe=MoE(experts=256, topk=topk, ffn=2048))
    asked = with_work(msgspec.structs.replace(job(2), model=moe, pool=parse_gpus("64xH100")), task="pretrain")
    split = shard(65536)._replace(ep=np.array([8 * nodes]))

    def exchange_s(**words: Any) -> float:
        found = parts(saying(asked, **words), split._replace(does=Words(**words)))
        part = next(part for key, part in found.items() if isinstance(key, LayerKind))
        return float(part.forward.busy_s["ep"][0])

    copies = topk * (nodes - 1) / nodes
    once = (nodes - 1) * (1 - (1 - 1 / nodes) ** topk)
    assert exchange_s(dispatch="deepep") / exchange_s() == pytest.approx(once / copies, rel=0.03)


def test_an_axis_has_a_provenance_only_where_it_speaks() -> None:
    asked = msgspec.structs.replace(job(2), pool=parse_gpus("8xH100"))
    columns = shards(asked)
    gathered = gather_parts(asked, columns)
    for row, (tp, cp) in enumerate(zip(columns["tp"], columns["cp"], strict=True)):
        found = worst_source(gathered.parts, int(gathered.place[row]))
        assert ("tp" in found) == (tp > 1)
        assert ("cp" in found) == (cp > 1)
        assert {"gemm", "attention", "streaming"} <= found.keys()
        assert all(isinstance(source, Source) for source in found.values())


@pytest.mark.parametrize("source", list(Source))
def test_a_term_all_of_whose_parts_are_known_alike_is_known_so(source: Source) -> None:
    asked = job(2)
    gathered = gather_parts(asked, shards(asked))
    alike = {key: part._replace(source={"gemm": np.full(len(part.adapters), source, np.int8)})
             for key, part in gathered.parts.items()}  # fmt: skip
    assert worst_source(alike, 0) == {"gemm": source}


def test_a_term_is_as_well_known_as_its_least_known_part() -> None:
    """Products of a hybrid's attention were measured, those of its state-space layers nobody has."""
    asked: dict[str, Any] = {"gpus": "8xH100", "batch": 64, "strategy": "tp2 dp4 sp"}
    assert astra.estimate("nemotron-h-8b", **asked).provenance["gemm"] == "assumed"
    assert astra.estimate("llama-2-7b", **asked).provenance["gemm"] in ("measured", "interpolated")


def test_whole_graphs_spare_what_passes_between_an_experts_products() -> None:
    """cuDNN's grouped product with SwiGLU writes its result activated and quantised: no kernel reads it in between.

    Of k f elements a token that spares at least reading both halves in forward (4 bytes), and reading the gradient of
    the activation and writing those of the halves in backward (6 bytes); only operands scaled by groups have it.
    """
    tokens, topk, inner = 8192.0, 8, 768
    columns = {name: np.ones(1, np.int64) for name in ("tp", "cp", "etp", "mbs")} | {"ep": np.array([8])}
    columns |= {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}

    def stream_s(precision: Any, graphs: Any) -> float:
        asked = World.of(PlanRequest(model="qwen3-30b-a3b", gpus=("8xGB200",), batch=8, seq=8192, precision=precision,
                                     runtime="megatron-bridge")).job  # fmt: skip
        said = msgspec.structs.replace(asked, settled=Words(dispatch="hybridep", graphs=graphs))
        found = gather_parts(said, columns).parts
        return sum(float(way.stream_s[0]) for way in directions(found))

    spared_s = stream_s("mxfp8", "partial") - stream_s("mxfp8", "full")
    assert spared_s > tokens * topk * inner * (4 + 6) / parse_gpus("8xGB200").device.memory_bytes_per_s
    assert stream_s("bf16", "partial") == stream_s("bf16", "full")


def test_four_bits_are_for_every_layer() -> None:
    """Megatron-Bridge's nvfp4 keeps no layer in bf16 (mixed_precision.py, 0.2 to 0.6): a tripled peak shows in full."""
    columns = {name: np.ones(1, np.int64) for name in ("tp", "cp", "ep", "etp")} | {"mbs": np.array([4])}
    columns |= {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}
    device = parse_gpus("8xGB300").device

    def layer_s(precision: Any) -> float:
        asked = PlanRequest(model="llama-3-70b", gpus=("8xGB300",), batch=8, seq=8192, precision=precision)
        found = gather_parts(World.of(asked).job, columns).parts
        return next(float(part.forward.gemm_s[0]) for key, part in found.items() if isinstance(key, LayerKind))

    assert layer_s("nvfp4") < 1.25 * device.peak("fp8") / device.peak("nvfp4") * layer_s("mxfp8")


@drawn(30, few=10)
@given(jobs)
def test_pieces_are_those_of_the_parts(asked: Job) -> None:
    found = gather_parts(asked, shards(asked))
    for key, own in pieces(asked, found.shard).items():
        ways = (found.parts[key].forward, found.parts[key].backward)
        if not effects.clock_follows_power(asked.runtime):  # which slows attention too
            assert np.array_equal(own.attention_s, ways[0].attention_s + ways[1].attention_s)
        assert np.array_equal(own.sent_s, ways[0].busy_s["cp"] + ways[1].busy_s["cp"])


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v2-lite"])
def test_attention_of_many_shardings_is_that_of_each_alone(name: str) -> None:
    asked = World.of(PlanRequest(model=name, gpus=("64xH100",), batch=256, seq=8192)).job
    rows = np.array(list(product((1, 2, 4, 8), (1, 2, 8), (1, 2, 4, 8, 16), (1, 2, 4), (0, 1))))
    tp, cp, mbs, ep, sp = rows.T
    one = np.ones_like(tp)
    columns = {"tp": tp, "cp": cp, "ep": ep, "etp": one, "mbs": mbs, "sp": sp > 0}
    columns["flash"] = mbs < 8
    many = gather_parts(asked, columns)
    assert len(many.shard.tp) == len(rows) > 256  # so many that they are compared
    for row in range(0, len(rows), 37):
        alone = gather_parts(asked, {name: column[row : row + 1] for name, column in columns.items()})
        for key in alone.parts:
            for way in ("forward", "backward"):
                own, of_many = (getattr(found.parts[key], way).attention_s for found in (alone, many))
                assert of_many[many.place[row]] == pytest.approx(own[0], rel=1e-12)


def test_separate_products_do_the_same_work() -> None:
    """Queries, keys and values by themselves, and both halves of a gate: as many FLOPs, in more time."""
    job = World.of(PlanRequest(model="llama-3-8b", gpus=("64xH100",), batch=512, seq=8192, runtime="torchtitan")).job
    joint = msgspec.structs.replace(job, runtime=changed(job.runtime, separate_products=0.0))
    split, whole = (layers_of(one, shard(tp=8, mbs=12)) for one in (job, joint))
    for key, layer in split.items():
        flops = [sum(float(np.sum(g.groups * g.m * g.n * g.k)) for g in each.gemms) for each in (layer, whole[key])]
        assert flops[0] == pytest.approx(flops[1], rel=1e-12)
    kind = next(key for key in split if isinstance(key, LayerKind))
    assert len(split[kind].gemms) == len(whole[kind].gemms) + 3
    assert len({gemm.name for gemm in split[kind].gemms}) == len(split[kind].gemms)
    one, no = np.array([1]), np.array([False])
    degrees = dict.fromkeys(("cp", "ep", "etp"), one) | {"tp": np.array([8]), "mbs": np.array([12])}
    columns = degrees | {"sp": ~no, "flash": ~no, "overlap_tp": no}
    times = [gather_parts(each, columns).parts[kind] for each in (job, joint)]
    assert times[0].backward.gemm_s > times[1].backward.gemm_s  # slices of 128 columns read the whole input again


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "qwen3-30b-a3b"])
def test_tokens_that_keep_groups_of_experts_meet_few_places(name: str) -> None:
    """As routing with scores drawn evenly: groups by their two best, then the best experts of those that are kept."""
    moe = models.model(name).moe
    assert moe is not None
    tokens, each = 4000, moe.experts // moe.groups
    scores = np.random.default_rng(0).random((tokens, moe.groups, each))
    best = np.argsort(-np.sort(scores)[..., -2:].sum(axis=-1))[:, : moe.groups_kept]
    kept = np.zeros((tokens, moe.groups), bool)
    np.put_along_axis(kept, best, values=True, axis=1)
    open_scores = np.where(kept[..., None], scores, -1.0).reshape(tokens, -1)
    chosen = np.argsort(-open_scores, axis=1)[:, : moe.topk]
    for places in (number for number in (1, 2, 4, 8, 16, 32) if moe.experts % number == 0):
        met = np.mean([len({*row}) for row in (chosen // (moe.experts // places)).tolist()])
        assert float(places_met(moe, np.array([float(places)]))[0]) == pytest.approx(met, rel=0.04), places
