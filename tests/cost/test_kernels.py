"""Kernels of a layer: what each expert's own products cost, and what the host issues before the first of them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from astra import api
from astra.catalog.runtimes import runtime as catalog_runtime
from astra.cost.effects import clock
from astra.cost.kernels import GemmSeconds, drained_s, gemm_seconds
from astra.cost.layers import layers_of
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Layer, SameShardings, Stream
from astra.operators.gemm import gemm
from astra.spec.job import Job
from astra.spec.runtime import changed
from tests.layers.test_operators import shard

EXPERTS = 8  # of Mixtral


def on(gpu: str, precision: str = "bf16") -> Job:
    return api.make_job("mixtral-8x7b", gpus=f"8x{gpu}", batch=64, seq=4096, precision=precision, runtime="megatron")


def products_of_experts(asked: Job) -> list[GemmSeconds]:
    one = shard(4096)
    found = gemm_seconds(asked, layers_of(asked, one), SameShardings(one))
    return [seconds for (_, name), seconds in found.items() if name.startswith("experts")]


@pytest.mark.parametrize("gpu", ["A100-80", "H100", "B200"])
def test_an_expert_whose_products_are_kernels_of_their_own_takes_microseconds_more(gpu: str) -> None:
    """4 to 5 us each on B200 (108 grouped products of MooreThreads/SimuMax); the first kernel is there anyway."""
    apart = on(gpu)
    together = msgspec.structs.replace(apart, runtime=changed(apart.runtime, experts_together=1))
    for each, at_once in zip(products_of_experts(apart), products_of_experts(together), strict=True):
        for way in ("forward", "dgrad", "wgrad"):
            more_s = float((getattr(each, way) - getattr(at_once, way))[0]) / (EXPERTS - 1)
            assert 2e-6 < more_s < 5e-6


def test_a_product_by_itself_takes_what_the_kernel_takes() -> None:
    asked, one = on("B200"), shard(4096)
    layers = layers_of(asked, one)
    product = next(each for each in layers[layer_kinds(asked.model)[0]].gemms if each.name == "qkv")
    found = gemm_seconds(asked, layers, SameShardings(one))[layer_kinds(asked.model)[0], "qkv"]
    alone = gemm(asked.pool.device, m=product.m, n=product.n, k=product.k, precision="bf16", layout="fwd")
    assert float(found.forward[0]) * clock(asked.runtime) == pytest.approx(float(alone.seconds[0]))


@pytest.mark.parametrize("runtime", ["fsdp", "fsdp-liger", "composer", "megatron", "internevo"])
def test_a_clock_found_on_ampere_is_that_of_gpus_up_to_ampere_alone(runtime: str) -> None:
    """What was fitted on A100 says nothing of GPUs that run into their power limit: there the general clock holds."""
    layers: dict[str, list[float]] = {}
    for gpu in ("A100-80", "H100", "B200"):
        asked, one = on(gpu), shard(4096)
        asked = msgspec.structs.replace(asked, runtime=catalog_runtime(runtime))
        plain = msgspec.structs.replace(asked, runtime=changed(asked.runtime, clock_ampere=0))
        layers[gpu] = [
            float(
                gemm_seconds(each, layers_of(each, one), SameShardings(one))[layer_kinds(each.model)[0], "qkv"].forward[
                    0
                ]
            )
            for each in (asked, plain)
        ]
    early = catalog_runtime(runtime).amount("clock_ampere")
    assert layers["A100-80"][1] / layers["A100-80"][0] == pytest.approx(
        (early or clock(asked.runtime)) / clock(asked.runtime)
    )
    assert all(layers[gpu][0] == layers[gpu][1] for gpu in ("H100", "B200"))
    assert (early > 0) == (runtime in ("fsdp", "fsdp-liger", "composer"))


def layer_with_experts(asked: Job) -> Layer:
    return layers_of(asked, shard(4096))[layer_kinds(asked.model)[0]]


def test_experts_wait_for_the_casts_of_their_own_input_alone() -> None:
    """One for each expert: the host knows no sizes before the routing. Casts of other products are issued by then."""
    asked = on("H100", "fp8")
    layer, launch_s = layer_with_experts(asked), asked.runtime.host.launch_s
    in_fp8, in_bf16 = (float(drained_s(job, layer_with_experts(job), 1)[0]) for job in (asked, on("H100")))
    assert in_fp8 - in_bf16 == pytest.approx(EXPERTS * launch_s)
    more = Stream("fp8_cast", np.ones(1), way="forward", groups=np.full(1, EXPERTS / 2))
    for streams in ((more, *layer.streams), (*layer.streams, more)):
        assert float(drained_s(asked, layer._replace(streams=streams), 1)[0]) == in_fp8
    assert not drained_s(asked, layer._replace(streams=(more,)), 1).any()  # nothing is routed
