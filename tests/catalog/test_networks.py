"""Every price row has the node type whose links it is costed with, or stands here with the reason why not."""

from __future__ import annotations

import pytest

from astra.catalog import hardware
from astra.catalog.prices import Price, book, is_of
from astra.money.tags import node_of

# Whole servers whose seller no source says a network of; they are rented one by one. Of Hyperstack's H100 there is a
# most between virtual machines, and no word of what a job reaches.
UNTOLD = """
AWS g7e.48xlarge RTXPRO6000-Blackwell
GCP g4-standard-384 RTXPRO6000-Blackwell
OCI BM.GPU.L40S.4 L40S
Azure Standard_NC64as_T4_v3 T4
CoreWeave A100 A100-SXM4-80GB
CoreWeave L40S L40S
CoreWeave RTX PRO 6000 RTXPRO6000-Blackwell
CoreWeave HGX B300 B300-SXM-288GB
Nebius HGX B300 B300-SXM-288GB
Nebius RTX PRO 6000 RTXPRO6000-Blackwell
Lambda gpu_8x_a100 A100-SXM4-40GB
Lambda gpu_8x_a100_80gb_sxm4 A100-SXM4-80GB
Lambda gpu_8x_v100 V100-SXM2-16GB
Verda 8H200.141S H200-SXM5-141GB
Verda 4H100.80S H100-SXM5-80GB
Seeweb ECS3GPU7 L40S
Seeweb ECS2GPU12 RTXPRO6000-Blackwell
Hyperstack n3-H100-SXM5x8 H100-SXM5-80GB
Hyperstack n3-H100x8 H100-PCIe-80GB
Hyperstack n3-A100-SXM4x8 A100-SXM4-80GB
Hyperstack n3-A100x8 A100-PCIe-80GB
RunPod 8x_H100-SXM_SECURE H100-SXM5-80GB
RunPod 8x_H100_SECURE H100-PCIe-80GB
RunPod 8x_A100-80GB-SXM_SECURE A100-SXM4-80GB
RunPod 8x_H200-SXM_SECURE H200-SXM5-141GB
RunPod 8x_B200_SECURE B200-SXM-180GB
RunPod 8x_L40S_SECURE L40S
Denvr (via Shadeform) A100-sxm4-80GBx8 A100-SXM4-80GB
Yotta 8x_H200 H200-SXM5-141GB
Yotta 8x_RTX5090 RTX5090
Cudo 8x sapphire-rapids-h100 H100-SXM5-80GB
Vast.ai 8x-H100_SXM H100-SXM5-80GB
Vast.ai 8x-H200 H200-SXM5-141GB
Vast.ai 8x-RTX_3090 RTX3090
Vast.ai 8x-RTX_4090 RTX4090
Vast.ai 8x-RTX_5090 RTX5090
Paperspace A100-80Gx8 A100-SXM4-80GB
Paperspace H100x8 H100-SXM5-80GB
Azure Standard_NC48ads_A100_v4 A100-PCIe-80GB
Spheron GB200 superchip (2 GPU) GB200-NVL72
Alibaba Cloud ecs.ebmgn7e.32xlarge A100-SXM4-80GB
Alibaba Cloud ecs.ebmgn8v.48xlarge H20-96GB
Alibaba Cloud ecs.gn6e-c12g1.24xlarge V100-SXM2-32GB
Tencent Cloud GT4.41XLARGE948 A100-SXM4-40GB
"""
# The node types of Lambda's clusters say that single instances have no such network.
TOLD_APART = """
Lambda gpu_8x_b200_sxm6 B200-SXM-180GB
Lambda gpu_8x_h100_sxm5 H100-SXM5-80GB
"""
# A from-price of clusters of several types, and the average of a market: no one machine is sold at them.
NO_MACHINE = """
Together GPU cluster H100..B200 H100-SXM5-80GB
SF Compute market average H100-SXM5-80GB
"""


def listed(text: str) -> set[str]:
    return set(filter(None, text.splitlines()))


def named(price: Price) -> str:
    return f"{price.provider} {price.instance} {price.gpu}"


def test_every_price_row_has_a_node_type_or_a_reason() -> None:
    unmatched = {
        named(price): price.gpus for price in book() if not any(is_of(price, n) for n in hardware.nodes_of(price.gpu))
    }
    parts = {name for name, gpus in unmatched.items() if gpus == 1}  # of a server: nothing is known of links between
    reasons = listed(UNTOLD) | listed(TOLD_APART)
    assert unmatched.keys() - parts - reasons == set(), "add a node type with its source, or a line above"
    assert reasons - unmatched.keys() == set(), "these have a node type now"
    assert listed(NO_MACHINE) <= parts


def test_every_rented_node_type_has_a_price_row_or_is_named() -> None:
    """Node types of clouds that nobody's price list has, each a gap in the prices."""
    unpriced = {
        node.name for node in hardware.node_types()
        if node.provider in {price.provider for price in book()}
        and not any(is_of(price, node) for price in book())
    }  # fmt: skip
    assert unpriced == {
        "aws-p6e-gb200.36xlarge", "azure-nd128isr-gb200-v6", "azure-nd128isr-gb300-v6", "azure-nd96isr-h200-v5",
        "azure-nd96isr-mi300x-v5", "gcp-a4x-highgpu-4g", "gcp-a4x-maxgpu-4g-metal", "lambda-1cc-b200",
        "lambda-1cc-h100", "runpod-cluster-h100", "runpod-pod-h100",
    }  # fmt: skip


@pytest.mark.parametrize("price", book(), ids=lambda price: named(price) + " " + price.market)
def test_a_network_has_a_source_or_is_not_known(price: Price) -> None:
    _, fabric, source = node_of(price)
    assert bool(fabric) == bool(source)


def test_terms_of_bills_carry_their_source() -> None:
    for price in book():
        billed = (price.term_days, price.minimum_s, price.step_s)
        assert bool(price.terms) == any(one is not None for one in billed), named(price)
    aws = next(price for price in book() if price.provider == "AWS" and price.market == "reserved")
    assert (aws.minimum_s, aws.step_s) == (86400, 86400), "Capacity Blocks are sold by the day"
