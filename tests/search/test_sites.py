"""Sites joined by a line: what it carries is its own rate, whoever sends; where another site pays; local steps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import astra
from astra.catalog.clusters import read_cluster
from astra.search.fleet.detail import estimate
from astra.search.fleet.plan import fleet_in
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.search.fleet.search import Costed
from astra.search.fleet.sites import Search, remarks
from astra.search.world import World
from astra.spec.cluster import Cluster
from astra.spec.mixed_text import parse_mixed
from astra.spec.request import requested

TEN_GIGABIT = 1.25e9
REACHED = 0.8  # of a line by TCP
PARAMETERS = 6_738_415_616  # llama-2-7b
GROUPS = "[dp{n} mbs1 m{m}: east tp2 layers=32] [dp{n} mbs1 m{m}: west tp2 layers=32]"
ACROSS = "[dp{n} mbs1 m{m} vp{v}: east tp1 pp1 layers={each} + west tp1 pp1 layers={each}]"


def sites(tmp_path: Any, gpus: int, line: str = f"bytes_per_s = {TEN_GIGABIT}") -> Cluster:
    """Two of a kind, far from each other."""
    file = tmp_path / "sites.toml"
    pools = "".join(f'[[pool]]\ngpu = "H100"\ncount = {gpus}\nname = "{zone}"\nzone = "{zone}"\n'
                    for zone in ("east", "west"))  # fmt: skip
    file.write_text(f'{pools}[[link]]\nzones = ["east", "west"]\nkind = "tcp"\nlatency_s = 0.02\n{line}\n')
    return read_cluster(file)


def timed(cluster: Cluster, strategy: str, batch: int = 64) -> MixedEstimate:
    found = astra.estimate("llama-2-7b", cluster=cluster, batch=batch, seq=2048, strategy=strategy)
    assert isinstance(found, MixedEstimate)
    return found


@pytest.mark.parametrize("gpus", [8, 64])
def test_gradients_of_all_gpus_share_a_line(tmp_path: Any, gpus: int) -> None:
    """A whole gradient in fp32 goes each way, or half of it and half of the weights in bf16, whoever sends them."""
    n = gpus // 2
    step_s = timed(sites(tmp_path, gpus), GROUPS.format(n=n, m=64 // n), batch=128).step_s
    sent_s = 4 * PARAMETERS / (REACHED * TEN_GIGABIT)
    assert (0.5 + 0.25) * sent_s < step_s < 1.15 * sent_s


def test_gradients_of_unlike_groups_share_a_line(tmp_path: Any) -> None:
    """Groups that cut the model otherwise send a whole gradient in fp32 each way."""
    text = "[dp4 mbs1 m16: east tp2 layers=32] [dp2 mbs1 m32: west tp4 layers=32]"
    sent_s = 4 * PARAMETERS / (REACHED * TEN_GIGABIT)
    assert sent_s < timed(sites(tmp_path, 8), text, batch=128).step_s < 1.15 * sent_s


@pytest.mark.parametrize("chunks", [1, 4])
def test_activations_of_all_pipelines_share_a_line(tmp_path: Any, chunks: int) -> None:
    """No schedule ends before the line has carried what crosses it, each chunk's activations among it."""
    layers = "4*4" if chunks == 4 else "16"
    text = ACROSS.format(n=8, m=8, v=chunks, each=layers)
    step_s = timed(sites(tmp_path, 8), text).step_s
    crossed = chunks + (chunks - 1)  # forward there, and gradients of what came back
    assert step_s >= crossed * 64 * 2048 * 4096 * 2 / (REACHED * TEN_GIGABIT)


def test_a_rate_of_its_own_for_each_flow(tmp_path: Any) -> None:
    """One flow may have less than the line; of many flows the line decides."""
    wide = sites(tmp_path, 64, "total_bytes_per_s = 1e12\nbytes_per_s = 1e8")
    each_s = 4 * PARAMETERS / 64 / (REACHED * 1e8)  # a rank owns one part of 64
    found_s = timed(wide, GROUPS.format(n=32, m=2), batch=128).step_s
    assert found_s > each_s
    assert timed(sites(tmp_path, 64, "total_bytes_per_s = 1e12"), GROUPS.format(n=32, m=2), batch=128).step_s < found_s


def test_a_link_between_pools_is_as_one_gpu_sees_it(tmp_path: Any) -> None:
    cluster = sites(tmp_path, 64)
    link = replace(cluster.joints[0].link, total_bytes_per_s=None)
    apart = replace(cluster, joints=(replace(cluster.joints[0], link=link),))
    assert timed(apart, GROUPS.format(n=32, m=2), batch=128).step_s < 2.0


def planned(cluster: Cluster, **asked: Any) -> MixedPlanSet:
    found = astra.plan("llama-3.2-1b", cluster=cluster, batch=32, seq=2048, fix="vp=1", **asked)
    assert isinstance(found, MixedPlanSet)
    return found


def sites_used(answer: MixedPlanSet) -> int:
    assert isinstance(answer.best.estimate, MixedEstimate)
    return len(answer.best.estimate.used)


@pytest.mark.exhaustive
def test_another_site_pays_from_the_width_that_is_told(tmp_path: Any) -> None:
    cluster = sites(tmp_path, 4)
    answer = planned(cluster)
    assert sites_used(answer) == 1
    (line,) = answer.lines
    assert sorted(line.ends) == ["east", "west"]
    assert line.bytes_per_s == TEN_GIGABIT
    assert line.pays_from_bytes_per_s is not None
    for times, used in ((0.95, 1), (1.05, 2)):
        wider = cluster.widened(times * line.pays_from_bytes_per_s / TEN_GIGABIT)
        again = planned(wider)
        assert sites_used(again) == used
        assert again.lines[0].pays_from_bytes_per_s == pytest.approx(line.pays_from_bytes_per_s, rel=0.02)


def test_local_steps_are_offered_and_never_taken(tmp_path: Any) -> None:
    cluster = sites(tmp_path, 2)
    answer = planned(cluster)
    assert not [plan for plan in answer.plans if "local=" in plan.strategy]
    offer = answer.local_steps
    assert offer is not None
    assert parse_mixed(offer.strategy).local == offer.inner_steps
    assert "in loss" in str(answer)
    assert "--local-steps" in str(answer)
    asked = planned(cluster, local_steps=offer.inner_steps)
    assert asked.best.estimate.step_s <= offer.step_s * (1 + 1e-9)
    assert any("another training" in warning for warning in asked.best.estimate.warnings)
    assert isinstance(asked.best.estimate, MixedEstimate)
    assert asked.best.estimate.runs_on == []


def test_weights_meet_once_in_so_many_steps(tmp_path: Any) -> None:
    """What the line takes beyond the groups' own work falls as the steps between meetings grow."""
    cluster, text = sites(tmp_path, 8), GROUPS.format(n=4, m=8)
    sent_s = 4 * PARAMETERS / (REACHED * TEN_GIGABIT)
    few, many = (timed(cluster, f"local={steps} {text}").step_s for steps in (10, 1000))
    assert few - many == pytest.approx(sent_s * (1 / 10 - 1 / 1000), rel=0.03)


def test_local_steps_need_groups() -> None:
    with pytest.raises(astra.InputError, match="several groups"):
        parse_mixed("local=10 [dp4 mbs1 m8: east tp2 layers=32]")
    text = f"zero1 overlap=grad,param,tp local=50 {GROUPS.format(n=4, m=8)}"
    assert parse_mixed(str(parse_mixed(text))) == parse_mixed(text)


def test_what_is_sent_is_paid_for(tmp_path: Any) -> None:
    """Two groups: a whole gradient in fp32 there and one back, every step."""
    cluster = sites(tmp_path, 8, f"bytes_per_s = {TEN_GIGABIT}\nusd_per_gb = 0.05")
    tokens = 1e9
    found = astra.estimate(
        "llama-2-7b", cluster=cluster, batch=64, seq=2048, tokens=tokens, strategy=GROUPS.format(n=4, m=8),
        money={"egress_tb": 2, "usd_per_tb_egress": 90},
    )  # fmt: skip
    assert found.cost is not None
    steps = tokens / (64 * 2048)
    assert found.cost.parts["egress"] == pytest.approx(steps * 2 * 4 * PARAMETERS / 1e9 * 0.05 + 180, rel=1e-3)


def always(found: list[Costed]) -> Search:
    """The same plans, however wide the lines are."""
    return lambda cluster, local: found


def test_local_steps_are_of_groups_with_a_state_of_their_own(tmp_path: Any) -> None:
    """Groups that share one state may suit a wide line best; they cannot train by themselves."""
    own = "[m{m}: east tp1 pp1 dp4 mbs1 {zero} layers=16] [m{m}: west tp1 pp1 dp4 mbs1 {zero} layers=16]"
    asked = {"gpus": ["8xH100"], "batch": 64, "seq": 2048}
    fleet, _ = fleet_in(World.of(requested("plan", "llama-3.2-1b", asked), sites(tmp_path, 4)))
    shared, apart, alone = (
        Costed(strategy, estimate(fleet, strategy))
        for strategy in (
            parse_mixed(f"shares=500,500 {own.format(m=8, zero='zero3')}", fleet.usual),
            parse_mixed(own.format(m=8, zero="zero1"), fleet.usual),
            parse_mixed("[m16: east tp1 pp1 dp4 mbs1 zero1 layers=16]", fleet.usual),
        )
    )
    for wide, workers in (([shared, apart], 2), ([shared], None)):
        offer = remarks(fleet, [alone], always(wide)).local
        assert (offer and offer.workers) == workers


def test_a_line_is_left_out_where_the_time_allowed_is_up(tmp_path: Any) -> None:
    """A search that was cut short cannot say from which width another site pays."""
    soon = planned(sites(tmp_path, 2), time_budget=1e-3)
    assert not soon.lines
    assert any("another site pays was not looked for" in note for note in soon.notes)
