"""Searches shared among a few workers: bounded in number, time and memory; those nobody waits for are given up."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from astra.serve.worker import Work, Worker, WorkerDied, work

if TYPE_CHECKING:
    from astra.serve.answers import Document


SHORT: Final = frozenset(["estimate", "compare", "trace", "import", "catalog"])  # no search: they go before others
KIB: Final = 1024
MIB: Final = 1024**2


class Full(Exception):
    """So many wait already that one more would wait too long."""


class TooLong(Exception):
    """The answer took longer than it may."""


class Workers:
    """The workers, what they have answered, and who waits for them."""

    def __init__(self, limits: ServeLimits, work: Work = work) -> None:
        self._limits, self._work = limits, work
        self._idle = Idle()
        self._all: set[Worker] = set()
        # Searches known to be long leave a worker to the others.
        self._long = asyncio.Semaphore(max(limits.workers - 1, 1))
        self._threads = ThreadPoolExecutor(4 * limits.workers, "astra-ask")
        self._waiting = 0
        self._kept = KeptAnswers(limits.kept_bytes)
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def start(self) -> None:
        """Start them; they load the planner while the first page is shown."""
        for _ in range(self._limits.workers):
            self._start_one()

    def _start_one(self) -> None:
        worker = Worker(self._work, self._limits.memory_bytes)
        self._all.add(worker)
        self._idle.put(worker)

    def stop(self) -> None:
        """End them all; none is started any more."""
        self._stopped = True
        for task in self._ending:
            task.cancel()
        for worker in self._all:
            worker.end()
        self._all.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, kind: str, body: bytes, *, long: bool = False) -> Document:
        """The answer to a body. Cancelled, it gives up its place, and its search if that would go on for long."""
        key = kind, sha256(body).digest()
        known = self._kept.get(key)
        if known is not None:
            return known
        if self._waiting >= self._limits.waiting:
            raise Full
        self._waiting += 1
        try:
            async with AsyncExitStack() as lane:
                if long:
                    await lane.enter_async_context(self._long)
                worker = await self._idle.get(0 if kind in SHORT else 1)
                known = self._kept.get(key)  # somebody asked the same meanwhile
                if known is not None:
                    self._idle.put(worker)
                    return known
                found = await self._ask(worker, kind, body)
        finally:
            self._waiting -= 1
        if found.status < 500:
            self._kept.put(key, found)
        return found

    async def _ask(self, worker: Worker, kind: str, body: bytes) -> Document:
        asked = asyncio.get_running_loop().run_in_executor(self._threads, worker.ask, kind, body)
        try:
            found = await asyncio.wait_for(asyncio.shield(asked), self._limits.seconds)
        except asyncio.TimeoutError:
            self._meanwhile(self._replace(worker, asked))
            raise TooLong from None
        except asyncio.CancelledError:
            self._meanwhile(self._give_up(worker, asked))
            raise
        except WorkerDied:
            self._meanwhile(self._replace(worker, asked))
            raise
        self._idle.put(worker)
        return found

    def _meanwhile(self, work: Coroutine[None, None, None]) -> None:
        """Done whether or not the client that it began with still waits: no worker is ever lost."""
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _give_up(self, worker: Worker, asked: asyncio.Future[Document]) -> None:
        """A short search is let finish, which is cheaper than a new worker; a long one is ended."""
        try:
            await asyncio.wait_for(asyncio.shield(asked), self._limits.outdated_s)
        except (asyncio.TimeoutError, WorkerDied):
            await self._replace(worker, asked)
        else:
            self._idle.put(worker)

    async def _replace(self, worker: Worker, asked: asyncio.Future[Document]) -> None:
        self._all.discard(worker)
        await asyncio.to_thread(worker.end)
        with suppress(WorkerDied):
            await asked
        self._start_one()


class Idle:
    """Workers without work, and who waits for one: by the class of the question, then by who came first."""

    def __init__(self) -> None:
        self._free: list[Worker] = []
        self._waiting: list[tuple[int, int, asyncio.Future[Worker]]] = []
        self._came = 0

    def put(self, worker: Worker) -> None:
        """A worker is free."""
        while self._waiting:
            _, _, place = heappop(self._waiting)
            if not place.done():
                place.set_result(worker)
                return
        self._free.append(worker)

    async def get(self, rank: int) -> Worker:
        """A free worker; the lowest rank has it first."""
        if self._free:
            return self._free.pop()
        place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._came += 1
        heappush(self._waiting, (rank, self._came, place))
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given one at the same moment
                self.put(place.result())
            raise


class KeptAnswers:
    """The answers given last, as many as there is room for."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._held = most_bytes, 0
        self._found: OrderedDict[tuple[str, bytes], Document] = OrderedDict()

    def get(self, key: tuple[str, bytes]) -> Document | None:
        """An answer that was given before."""
        found = self._found.get(key)
        if found is not None:
            self._found.move_to_end(key)
        return found

    def put(self, key: tuple[str, bytes], document: Document) -> None:
        """Keep one; those not asked for the longest go."""
        if len(document.content) > self._most // 4 or key in self._found:
            return
        self._found[key] = document
        self._held += len(document.content)
        while self._held > self._most:
            _, gone = self._found.popitem(last=False)
            self._held -= len(gone.content)


class ServeLimits(NamedTuple):
    """How much of everything there may be; tests ask for less."""

    workers: int = 2  # searches at the same time
    seconds: float = 30.0  # of one answer, then its worker is ended
    outdated_s: float = 0.5  # a search that nobody waits for any more may go on for so long
    waiting: int = 64  # answers being worked on or waited for; more are told to come back
    body_bytes: int = MIB  # of a request, a dropped config.json among it
    body_s: float = 10.0  # until all of a request has come
    memory_bytes: int = 6 * 1024 * MIB  # addresses of a worker
    kept_bytes: int = 48 * MIB  # of answers that are given again without a search
    connections: int = 256


USUAL: Final = ServeLimits()
