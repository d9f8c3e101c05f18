"""One job: the memory it may use, and a precision its GPUs have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError
from astra.spec.job import Job
from astra.spec.workload import Workload
from tests.oracle.requests import device, model, pool, runtime
from tests.properties.jobs import law


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "model": model(),
        "pool": pool(4),
        "workload": Workload(global_batch=8, seq=512),
        "runtime": runtime(),
        **changes,
    }
    return Job(**fields)


@law(60)
@given(st.floats(0, 0.99))
def test_headroom_is_kept_of_what_is_usable(headroom: float) -> None:
    made = job(headroom=headroom)
    assert made.usable_bytes == made.pool.device.memory_bytes - made.runtime.memory.context_bytes
    assert made.limit_bytes == pytest.approx(made.usable_bytes * (1 - headroom))


def test_eight_percent_is_kept_by_default() -> None:
    assert job().limit_bytes == pytest.approx(0.92 * job().usable_bytes)


@pytest.mark.parametrize("headroom", [-0.1, 1.0, 2.0, float("nan")])
def test_headroom_is_a_fraction(headroom: float) -> None:
    with pytest.raises(InputError, match="headroom"):
        job(headroom=headroom)


def test_the_gpu_has_the_precision() -> None:
    old = pool(4, gpu=device(flops_per_s={"fp16": 1e12}))
    with pytest.raises(InputError, match="precision: got 'bf16'"):
        job(pool=old)
    assert job(pool=old, workload=Workload(global_batch=8, seq=512, precision="fp16"))


def test_stragglers_grow_with_the_nodes() -> None:
    lost = [job(pool=pool(gpus)).straggling for gpus in (2, 4, 8, 64)]
    assert lost[0] == lost[1] == 0 < lost[2] < lost[3]


def test_jobs_are_plain_data() -> None:
    assert msgspec.convert(msgspec.to_builtins(job()), Job) == job()
