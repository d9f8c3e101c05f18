"""Workers: bounded in time and number, one slow question does not hold up others, what is outdated is given up."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from astra.serve.worker import Worker, WorkerDied, work
from astra.serve.workers import USUAL, Full, ServeLimits, TooLong, Workers
from tests.serve.sleeping import sleep_when_asked

T = TypeVar("T")
LONG = b"600"  # nobody waits so long: what has to come sooner has two minutes, on a busy machine too
SOON_S = 120
PATIENT = ServeLimits(seconds=600)


def tried(scene: Callable[[Workers], Awaitable[T]], limits: ServeLimits = USUAL) -> T:
    """A scene with real processes; they are warm before it begins."""

    async def play() -> T:
        workers = Workers(limits, sleep_when_asked)
        workers.start()
        try:
            await asyncio.gather(*(warm(workers, n) for n in range(limits.workers)))
            return await scene(workers)
        finally:
            workers.stop()

    return asyncio.run(play())


async def warm(workers: Workers, number: int) -> None:
    """The first process loads what others are forked from, which a busy machine may take long for."""
    for _ in range(20):
        with suppress(TooLong):
            await workers.answer(f"warm {number}", b"0.2")
            return


def test_an_answer_that_takes_too_long_is_ended_and_its_worker_replaced() -> None:
    async def scene(workers: Workers) -> float:
        with pytest.raises(TooLong):
            await workers.answer("a", LONG)
        began = time.monotonic()
        assert (await workers.answer("b", b"0")).status == 200
        return time.monotonic() - began

    assert tried(scene, ServeLimits(workers=1, seconds=6.0)) < SOON_S


def test_long_searches_leave_a_worker_to_the_others() -> None:
    async def scene(workers: Workers) -> float:
        slow = [asyncio.create_task(workers.answer(f"slow {n}", LONG, long=True)) for n in range(4)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await asyncio.gather(*(workers.answer(f"quick {n}", b"0.01") for n in range(5)))
        took = time.monotonic() - began
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        return took

    assert tried(scene, PATIENT) < SOON_S


def test_one_more_than_may_wait_is_refused_and_others_are_not_harmed() -> None:
    async def scene(workers: Workers) -> None:
        waiting = [asyncio.create_task(workers.answer(f"{n}", b"0.3")) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await workers.answer("one more", b"0")
        assert all(found.status == 200 for found in await asyncio.gather(*waiting))
        assert (await workers.answer("later", b"0")).status == 200

    tried(scene, ServeLimits(workers=1, waiting=3))


def test_short_questions_go_before_searches() -> None:
    async def scene(workers: Workers) -> list[str]:
        done: list[str] = []

        async def ask(kind: str, body: bytes) -> None:
            await workers.answer(kind, body)
            done.append(kind)

        searches = [asyncio.create_task(ask(f"plan {n}", b"0.7")) for n in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.gather(ask("estimate", b"0"), *searches)
        return done

    done = tried(scene, ServeLimits(workers=1))
    assert done.index("estimate") == 1, "after the one that was being worked on"


def test_a_place_given_up_as_it_is_given_is_not_lost() -> None:
    async def scene(workers: Workers) -> None:
        for n in range(20):
            first = asyncio.create_task(workers.answer(f"first {n}", b"0.01"))
            others = [asyncio.create_task(workers.answer(f"{n} {m}", b"0.01")) for m in range(3)]
            await first
            for other in others:
                other.cancel()
        assert (await asyncio.wait_for(workers.answer("the last", b"0"), SOON_S)).status == 200

    tried(scene, PATIENT._replace(workers=1, outdated_s=10))


def test_what_nobody_waits_for_any_more_frees_its_worker() -> None:
    async def scene(workers: Workers) -> None:
        for n in range(3):  # a control that moves: every question is outdated by the next
            outdated = asyncio.create_task(workers.answer(f"{n}", LONG))
            await asyncio.sleep(0.1)
            outdated.cancel()
        assert (await asyncio.wait_for(workers.answer("the last", b"0"), SOON_S)).status == 200

    tried(scene, PATIENT._replace(workers=1))


def test_a_short_search_is_not_worth_a_new_worker() -> None:
    async def scene(workers: Workers) -> tuple[bytes, bytes]:
        before = (await workers.answer("before", b"0")).content.split()[0]
        outdated = asyncio.create_task(workers.answer("outdated", b"0.2"))
        await asyncio.sleep(0.05)
        outdated.cancel()
        return before, (await workers.answer("after", b"0")).content.split()[0]

    before, after = tried(scene, ServeLimits(workers=1, outdated_s=10))
    assert before == after


def test_a_worker_that_dies_is_replaced() -> None:
    async def scene(workers: Workers) -> int:
        with pytest.raises(WorkerDied):
            await workers.answer("a", b"die")
        return (await workers.answer("b", b"0")).status

    assert tried(scene, ServeLimits(workers=1)) == 200


def test_nothing_is_started_or_left_over_by_who_stops_in_the_middle() -> None:
    async def scene(workers: Workers) -> None:
        asked = [asyncio.create_task(workers.answer(f"{n}", LONG)) for n in range(2)]
        await asyncio.sleep(0.1)
        asked[0].cancel()
        await asyncio.sleep(0.1)  # it is being given up
        asked[1].cancel()  # and this one will be, when all have ended
        workers.stop()
        await asyncio.wait(asked)
        until_s = time.monotonic() + SOON_S
        while any(child not in before for child in multiprocessing.active_children()):
            assert time.monotonic() < until_s, "a worker is left over"
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [child for child in multiprocessing.active_children() if child not in before] == []

    before = multiprocessing.active_children()
    tried(scene, ServeLimits(workers=2))


def test_the_same_question_is_answered_once_even_at_the_same_time() -> None:
    async def scene(workers: Workers) -> set[bytes]:
        found = await asyncio.gather(*(workers.answer("same", b"0.1") for _ in range(6)))
        return {one.content for one in found} | {(await workers.answer("same", b"0.1")).content}

    assert len(tried(scene, ServeLimits(workers=1))) == 1


def test_kept_answers_are_bounded() -> None:
    async def scene(workers: Workers) -> bool:
        first = await workers.answer("first", b"0")
        for n in range(20):
            await workers.answer(f"{n}", b"0")
        return (await workers.answer("first", b"0")).content == first.content

    assert tried(scene, ServeLimits(workers=1)) is True
    assert tried(scene, ServeLimits(workers=1, kept_bytes=300)) is False


def test_a_bug_is_told_without_where_it_happened() -> None:
    worker = Worker(work, USUAL.memory_bytes)
    try:
        found = worker.ask("a kind that there is not", b"{}")
        assert found.status == 500
        assert b"bug in Astra" in found.content
        assert b"Traceback" not in found.content
        assert b"KeyError" not in found.content
        again = worker.ask("estimate", b'{"model":"llama-2-7b","gpus":"8xH100","strategy":"tp8"}')
        assert again.status == 200, "the worker lives on"
    finally:
        worker.end()
