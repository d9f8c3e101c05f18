"""Every word of a strategy that Megatron-LM has a flag for arrives in its own configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.import_megatron import from_words
from astra.export.imported import ImportAsked
from tests.export.launching import given, run_script, write
from tests.frameworks.conftest import Harness
from tests.frameworks.test_megatron import take

PLAIN: dict[str, Any] = {
    "dispatch": "alltoall", "backend": None, "overlap_ep": False, "graphs": "none", "captured": [], "modules": [],
    "moments": "float32", "aware": False, "offload_layers": 0, "fp8": None, "fp4": None, "params": False,
    "grads": "fp32", "instances": 1, "mtp": None, "meta": False,
    "experts_room": None, "experts_fused": False,
}  # fmt: skip
DENSE, SPARSE, LATENT = "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"
TE = "transformer_engine"
CASES: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    (SPARSE, "32xH100", "ep8 dp32 mbs1 zero1 dispatch=deepep", {}, {"dispatch": "flex", "backend": "deepep"}),
    (SPARSE, "32xB200", "ep8 dp32 mbs1 zero1 dispatch=hybridep", {}, {"dispatch": "flex", "backend": "hybridep"}),
    (SPARSE, "32xH100", "ep8 dp32 mbs1 zero1 overlap=grad,param,ep dispatch=alltoall", {}, {"overlap_ep": True}),
    (SPARSE, "32xH100", "pp2 vp2 ep8 dp16 mbs1 zero1 overlap=grad,p2p,ep dispatch=deepep", {},
     {"overlap_ep": True, "dispatch": "flex", "backend": "deepep"}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 graphs=partial", {}, {"graphs": TE, "captured": ["attn", "mlp"]}),
    (SPARSE, "32xH100", "ep8 dp32 mbs1 zero1 graphs=partial dispatch=deepep", {},
     {"graphs": TE, "captured": ["attn", "moe_router", "moe_preprocess"], "dispatch": "flex", "backend": "deepep"}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 graphs=full", {}, {"graphs": "full_iteration"}),
    (SPARSE, "32xB200", "ep8 dp32 mbs1 zero1 graphs=full dispatch=hybridep", {"precision": "mxfp8"},
     {"graphs": "full_iteration", "dispatch": "flex", "backend": "hybridep", "fp8": ["e4m3", "mxfp8"],
      "experts_room": 1.5, "experts_fused": True}),
    (LATENT, "256xH100",
     "tp2 pp8 ep32 dp16 mbs1 sp zero1 recompute=selective:core_attn,mla_up_proj,moe_act,layernorm dispatch=alltoall "
     "layers=8*7,5", {}, {"modules": ["core_attn", "moe_act", "layernorm", "mla_up_proj"]}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 recompute=selective:mlp", {}, {"modules": ["mlp"]}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 moments=bf16", {}, {"moments": "bfloat16", "aware": True}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 offload=activations:8", {}, {"offload_layers": 8}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 params=fp8", {"precision": "fp8"},
     {"params": True, "fp8": ["hybrid", "tensorwise"]}),
    (DENSE, "16xB200", "dp16 mbs1 zero1 params=fp8", {"precision": "fp8"}, {"params": True, "fp8": ["e4m3", "mxfp8"]}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 grads=bf16", {}, {"grads": "bf16"}),
    (DENSE, "16xH100", "dp16 mbs1 zero1 shard8", {}, {"instances": 2}),
    (DENSE, "16xH100", "dp16 mbs1 zero3 shard8", {}, {"instances": 2, "meta": True}),
    (DENSE, "16xH100", "dp16 mbs1 zero2", {}, {"meta": True}),
    (LATENT, "256xH100", "tp2 pp8 ep32 dp16 mbs1 sp zero1 dispatch=alltoall layers=8*7,5", {"mtp": 1}, {"mtp": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "strategy", "request_", "wanted"), CASES)
def test_the_word_arrives(
    megatron: Harness,
    tmp_path: Path,
    model: str,
    gpus: str,
    strategy: str,
    request_: dict[str, Any],
    wanted: dict[str, Any],
) -> None:
    launch = given(model, gpus, strategy, batch=2048, **request_)
    assert refusals(EXPORTERS["megatron"], launch) == []
    verdict = take(megatron, launch, tmp_path, ranks=[0])
    assert verdict["accepted"], verdict
    plain = PLAIN | {"dispatch": None if model == DENSE else "alltoall"}
    assert verdict["words"] == plain | wanted
    started = run_script(write(tmp_path, EXPORTERS["megatron"].files(launch)))
    found = from_words(started.argv, {}, ImportAsked("launch.sh", launch.gpus))
    assert found.strategy == launch.strategy
    assert found.ignored == ()
