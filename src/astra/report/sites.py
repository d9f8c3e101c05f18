"""Sentences on lines between sites, on local steps, and on nodes that are lost."""

from __future__ import annotations

from astra.answer import PlanSet
from astra.report import explain
from astra.search.fleet.records import MixedPlanSet
from astra.units import show_bits


def line_sentences(planset: MixedPlanSet) -> list[str]:
    """From which width lines between sites pay, and what local steps would bring."""
    sentences = []
    for line in planset.lines:
        pays, ends = line.pays_from_bytes_per_s, " and ".join(end for end in line.ends if end)
        where = f"The line between {ends}" if len([end for end in line.ends if end]) == 2 else "The line between pools"
        has = f"{where} has {show_bits(line.bytes_per_s)}"
        if pays is None:
            sentences.append(f"{has}: at no width is a plan over it the fastest.")
        else:
            sentences.append(f"{has}; a plan over it is the fastest from {show_bits(pays)} on.")
    local = planset.local_steps
    if local is not None:
        asked = any(plan.strategy == local.strategy for plan in planset.plans)
        sentences.append(
            f"Local steps (DiLoCo), {local.inner_steps} between meetings of the weights, "
            f"{'take' if asked else 'would take'} {explain.show_step(local.step_s)} a step, {local.times:.2f}x as fast "
            f"as the best plan without, but are another training: published runs with {local.workers} workers lost "
            f"{local.penalty} in loss ({local.source})."
            + ("" if asked else f" --local-steps {local.inner_steps} plans them.")
        )
    return sentences


def lost_sentences(planset: PlanSet) -> list[str]:
    """What happens if a node of a pool is lost."""
    sentences = []
    for loss in planset.lost:
        begins = f"If a node of {loss.pool} ({loss.gpus} GPUs) is lost"
        if loss.step_s is None or loss.times is None:
            sentences.append(f"{begins}, nothing can go on: {loss.why}")
            continue
        moves = ", ".join(f"{size:,.0f} GiB to {pool}" for pool, size in loss.moves_gib.items())
        again = f"{loss.from_checkpoint_gib:,.0f} GiB of state were only there, so that the run goes back to its last "
        sentences.append(
            f"{begins}, the next plan takes {explain.show_step(loss.step_s)} a step ({loss.times:.2f}x): "
            f"{loss.strategy}. {f'State to move between pools: {moves}' if moves else 'No state moves between pools'}, "
            "inside them it is dealt anew; "
            + (f"{again}checkpoint." if loss.from_checkpoint_gib else "all state is still there in another copy.")
        )
    return sentences
