"""The text form of a strategy reads back to itself, and no text makes the parser fail but with an InputError."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astra.catalog.clusters import parse_gpus
from astra.catalog.models import model
from astra.catalog.runtimes import runtime, runtime_names
from astra.columns import from_strategy
from astra.errors import InputError
from astra.spec.job import Job
from astra.spec.strategy import MAX_DEGREE, MAX_LAYERS, MAX_STAGES, Strategy, parse_strategy, replace, usual_overlap
from astra.spec.strategy_fields import (
    CHOICES,
    DEGREES,
    GPU_DEGREES,
    METHODS,
    MODULES,
    OFFLOADS,
    OVERLAPS,
    RECOMPUTES,
    RUNTIME_WORDS,
    SCHEDULES,
    STRATEGY_FIELDS,
)
from astra.spec.workload import Workload

SMALL = st.integers(1, 64)
DEGREE = st.one_of(SMALL, st.integers(1, MAX_DEGREE))


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    degrees: dict[str, Any] = {name: draw(DEGREE) for name in DEGREES}
    layers: tuple[int, ...] = ()
    if draw(st.booleans()):
        degrees |= {"pp": draw(st.integers(1, 12)), "vp": draw(st.integers(1, 4))}
        stages = degrees["pp"] * degrees["vp"]
        layers = tuple(draw(st.lists(st.integers(0, MAX_LAYERS), min_size=stages, max_size=stages)))
    fields: dict[str, Any] = {
        "sp": draw(st.booleans()),
        "flash": draw(st.booleans()),
        "zero": draw(st.integers(0, 3)),
        "recompute": draw(st.sampled_from(RECOMPUTES)),
        "method": draw(st.sampled_from(METHODS)),
        "recompute_layers": draw(st.integers(1, MAX_LAYERS)),
        "offload": draw(st.sampled_from(OFFLOADS)),
        "overlap": tuple(draw(st.lists(st.sampled_from(OVERLAPS), max_size=6))),
        "schedule": draw(st.sampled_from(SCHEDULES)),
        "modules": tuple(draw(st.lists(st.sampled_from(MODULES), max_size=4))),
        "offload_layers": draw(st.integers(0, MAX_LAYERS)),
        "shard": draw(st.integers(0, MAX_DEGREE)),
        "dispatch_fp8": draw(st.booleans()),
        **{name: draw(st.sampled_from(CHOICES[name])) for name in RUNTIME_WORDS if name in CHOICES},
    }
    fields["dispatch_fp8"] &= fields["dispatch"] != "alltoall"
    return Strategy(**degrees, **fields, layers=layers)


@settings(deadline=None)
@given(strategies())
@example(Strategy(overlap=("param", "grad", "grad")))
@example(Strategy(recompute="none", method="block", recompute_layers=7))
@example(Strategy(tp=MAX_DEGREE))
@example(Strategy(pp=MAX_STAGES, layers=(1,) * MAX_STAGES))
def test_text_reads_back_to_the_same_strategy(strategy: Strategy) -> None:
    assert parse_strategy(str(strategy)) == strategy


@settings(deadline=None)
@given(strategies(), st.booleans())
@example(Strategy(pp=3, layers=(1, 2, 3)), True)
@example(Strategy(recompute="none", method="block", recompute_layers=7), True)
def test_the_short_text_reads_back_to_the_same_strategy(strategy: Strategy, usual: bool) -> None:
    strategy = replace(strategy, overlap=usual_overlap(strategy)) if usual else strategy
    short = "\n".join(strategy.short())
    assert parse_strategy(short) == strategy
    assert len(short) <= len(str(strategy)) + short.count(", ")
    assert ("overlap" in short) == (strategy.overlap != usual_overlap(strategy) or strategy.ep > 1)


@settings(deadline=None)
@given(strategies(), st.sampled_from(runtime_names()), st.sampled_from(("64xH100", "64xB200", "64xA100")))
def test_the_short_text_leaves_out_what_the_job_would_choose(strategy: Strategy, name: str, gpus: str) -> None:
    """Whatever the runtime and the GPU: the text read by the job is the strategy again, and no word of it is idle."""
    work = Workload(global_batch=4096, seq=4096)
    job = Job(model=model("mixtral-8x7b"), pool=parse_gpus(gpus), workload=work, runtime=runtime(name))
    usual = replace(strategy, **job.usual(strategy))
    for one in (strategy, usual):
        assert job.strategy(" ".join(one.short(job.chosen(one)))) == one
    words = " ".join(usual.short(job.chosen(usual)))
    assert not [word for word in ("graphs=", "params=", "grads=", "dispatch=", "moments=", "overlap=") if word in words]


@settings(deadline=None)
@given(strategies(), st.sampled_from(("64xGB200", "64xGB300", "64xH100")))
def test_both_texts_read_by_an_fp8_job_are_the_strategy_again(strategy: Strategy, gpus: str) -> None:
    """Attention in fp8 is usual with graphs of whole steps alone, which the text may leave out too."""
    work = Workload(global_batch=4096, seq=4096, precision="fp8")
    job = Job(model=model("qwen3-30b-a3b"), pool=parse_gpus(gpus), workload=work, runtime=runtime("megatron-bridge"))
    for one in (strategy, job.strategy("ep8"), job.strategy("ep8 graphs=none")):
        assert job.strategy(str(one)) == one
        assert job.strategy(" ".join(one.short(job.chosen(one)))) == one
    usual = job.strategy("ep8")
    assert (usual.graphs, usual.attention) == (("full", "fp8") if "GB" in gpus else ("none", "bf16"))
    assert job.strategy("ep8 graphs=partial").attention == "bf16"


@settings(deadline=None)
@given(strategies())
def test_what_a_text_leaves_out_is_what_python_leaves_out(strategy: Strategy) -> None:
    fields = {name: getattr(strategy, name) for name in strategy.__struct_fields__ if name != "overlap"}
    text = " ".join(word for word in str(strategy).split() if not word.startswith("overlap="))
    assert parse_strategy(text) == Strategy(**fields)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("dp8", "grad,param"),
        ("dp8 zero0", "grad"),
        ("tp4 sp dp2", "grad,param,tp"),
        ("tp4 dp2", "grad,param"),
        ("pp2 vp2 dp2", "grad,param,p2p"),
        ("tp2 sp pp2 vp2 zero0", "grad,tp,p2p"),
        ("tp2 sp pp2 vp2 overlap=none", ""),
        ("tp2 sp pp2 vp2 overlap=grad", "grad"),
    ],
)
def test_all_communication_that_can_be_hidden_is_unless_said_otherwise(text: str, hidden: str) -> None:
    assert ",".join(parse_strategy(text).overlap) == hidden


@settings(deadline=None)
@given(strategies())
def test_equal_strategies_print_alike(strategy: Strategy) -> None:
    shuffled = replace(strategy, overlap=(*reversed(strategy.overlap), *strategy.overlap))
    assert shuffled == strategy
    assert hash(shuffled) == hash(strategy)
    assert str(shuffled) == str(strategy)


@settings(deadline=None)
@given(strategies(), st.randoms(use_true_random=False))
def test_the_order_of_words_does_not_matter(strategy: Strategy, random: Any) -> None:
    words = str(strategy).split()
    random.shuffle(words)
    assert parse_strategy("; ".join(words).upper()) == strategy


WORDS = st.one_of(
    st.from_regex(r"(tp|pp|vp|cp|ep|etp|dp|mbs|zero)=?[0-9]{0,12}", fullmatch=True),
    st.from_regex(r"(recompute|method|offload|overlap|flash|schedule|layers|recompute_layers|sp)=[a-z0-9,*]{0,12}"),
    st.sampled_from(["sp", "nosp", "tp٣", "tp²", "=", "==", "layers=1*0", "layers=9*999999", "zero4", "tp-1", "tp1.5"]),
    st.text(max_size=20),
)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8).map(" ".join), st.one_of(st.none(), st.integers(-8, 4096)))
def test_hostile_text_gives_a_strategy_or_an_input_error(text: str, gpus: int | None) -> None:
    try:
        strategy = parse_strategy(text, gpus=gpus)
    except InputError:
        return
    assert parse_strategy(str(strategy)) == strategy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp8 tp4", "tp is given twice"),
        ("sp nosp", "sp is given twice"),
        ("tq8", "Did you mean"),
        ("zero4", "0, 1, 2 or 3"),
        ("tp0", "from 1 to 999,999,999"),
        ("tp9999999999", "up to 999,999,999"),
        ("recompute=ful", "one of none, selective, full"),
        ("recompute=full:blok:4", "method=one of uniform, block"),
        ("recompute=full:block:x", "a number of layers"),
        ("recompute=full:block:4:1", "recompute=full:block:4"),
        ("recompute=full:block:4 method=block", "method is given twice"),
        ("overlap=grad,none", "none, or some of grad,param,tp,p2p"),
        ("pp2 layers=20*0", "layers per virtual stage"),
        ("pp2 layers=20,20,20", "pp*vp = 2"),
        ("tp٣", "words like"),
        ("flash", "flash=on or off"),
        ("offload=none,activations:4", "each of optimizer and activations:N once"),
        ("offload=activations:4,activations:5", "each of optimizer and activations:N once"),
    ],
)
def test_refused_text_says_why(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_strategy(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in CHOICES for value in CHOICES[field]])
def test_a_value_without_its_field_is_told_the_field(field: str, value: str) -> None:
    with pytest.raises(InputError, match=rf"\b{field}={value}\b"):
        parse_strategy(f"tp2 {value}")
    assert getattr(parse_strategy(f"tp2 {field}={value}"), field) == value


def test_a_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(InputError) as caught:
        parse_strategy("x" * 100_000)
    assert len(str(caught.value)) < 500


@settings(deadline=None)
@given(tp=SMALL, cp=SMALL, pp=SMALL, dp=SMALL)
def test_dp_is_what_is_left_of_the_gpus(tp: int, cp: int, pp: int, dp: int) -> None:
    strategy = parse_strategy(f"tp{tp} cp{cp} pp{pp}", gpus=tp * cp * pp * dp)
    assert strategy.dp == dp
    assert strategy.gpus == tp * cp * pp * dp


@pytest.mark.parametrize("gpus", [0, -8, 7])
def test_gpus_that_do_not_divide_are_refused(gpus: int) -> None:
    with pytest.raises(InputError, match="to divide the"):
        parse_strategy("tp8", gpus=gpus)


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 0},
        {"tp": MAX_DEGREE + 1},
        {"tp": float("nan")},
        {"recompute_layers": MAX_LAYERS + 1},
        {"zero": -1},
        {"overlap": ("gradient",)},
        {"recompute": "some"},
        {"schedule": "2f2b"},
        {"layers": (-1,)},
        {"pp": 10**6, "layers": (1,) * 10**6},
    ],
)
def test_fields_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Strategy(**fields)


def test_the_documentation_tells_every_word() -> None:
    text = (Path(__file__).parents[2] / "docs" / "strategy.md").read_text(encoding="utf-8")
    for field in STRATEGY_FIELDS:
        word = f"`{field.name}`" if field.name not in DEGREES else f"`{field.name}"
        last = field.name.removeprefix("overlap_").removeprefix("recompute_").removeprefix("dispatch_")
        told = word in text or f"{field.name}=" in text or f"`{last}`" in text
        assert told or f"`{field.name}" in text, field.name
        assert all(choice in text for choice in field.choices)


def test_one_table_of_fields_makes_the_strategy_and_its_columns() -> None:
    strategy = Strategy(overlap=(), zero=0)
    for field in STRATEGY_FIELDS:
        if not field.name.startswith(("overlap_", "recompute_")) or field.name == "recompute_layers":
            assert getattr(strategy, field.name) == field.plain
    columns = from_strategy(strategy)
    assert set(columns) == {field.name for field in STRATEGY_FIELDS}
    degrees: dict[str, Any] = dict(zip(DEGREES, (2, 3, 5, 7, 11, 13, 17, 19), strict=True))
    assert Strategy(**degrees).gpus == math.prod(degrees[name] for name in GPU_DEGREES)
