"""Parts that were timed for one batch are those of another."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from astra.api import make_job
from astra.cost.gathered import Gathered
from astra.cost.stage import gather_parts, least_s, over_model
from astra.cost.timed import PartTable, PartTables
from astra.provenance import Floats
from astra.rules.restrictions import Restrictions
from astra.search.bounds import gather_grids
from astra.search.space import Space
from astra.spec.job import Job


def seconds(gathered: Gathered, job: Job) -> Floats:
    return np.asarray(over_model(job, gathered, least_s))


@pytest.mark.parametrize("model", ["llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_a_table_that_grows_has_the_parts_of_each_batch_by_itself(model: str) -> None:
    table, before = PartTable(), 0
    for batch, gpus in ((64, 16), (96, 16), (60, 24), (64, 16)):
        job = make_job(model, gpus=f"{gpus}xH100", batch=batch, seq=4096)
        space = Space(job, Restrictions())
        rows = np.arange(len(space.strategies))
        shared, own = (gather_grids(job, space, rows, some) for some in (table, PartTable()))
        assert seconds(shared.take(rows), job) == pytest.approx(seconds(own.take(rows), job), rel=1e-12)
        known = len(table.timed[0].shard.tp)
        assert known >= before
        before = known
    columns = {name: getattr(table.timed[0].shard, name) for name in ("tp", "cp", "ep", "etp", "mbs", "sp", "flash")}
    assert len(gather_parts(job, columns).shard.tp) == before  # no sharding twice
    some = {name: column[[-1, 0, -1]] for name, column in columns.items()}
    assert seconds(table.rows(job, some), job) == pytest.approx(seconds(gather_parts(job, some), job), rel=1e-12)


def test_jobs_share_a_table_unless_their_micro_batches_differ() -> None:
    tables = PartTables()
    one = make_job("llama-2-7b", gpus="16xH100", batch=64, seq=4096)
    other = make_job("llama-2-7b", gpus="24xH100", batch=96, seq=4096)
    small = make_job("llama-2-7b", gpus="4xH100", batch=96, seq=4096)  # part of a node
    assert tables.of(one) is tables.of(other)
    assert tables.of(one) is not tables.of(small)
    assert tables.of(replace(one, repeats=("mlp",))) is tables.of(one)  # which may recompute anything


def test_a_table_without_a_module_is_not_for_those_that_recompute_it() -> None:
    tables = PartTables()
    plain = replace(make_job("llama-2-7b", gpus="16xH100", batch=64, seq=4096), repeats=())
    table = tables.of(plain)
    assert tables.of(replace(plain, repeats=("mlp",))) is not table
    assert tables.of(plain) is table
