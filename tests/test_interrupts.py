"""Ctrl-C at a bad moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from astra.interrupts import start

SCENE = """
import os, signal
from astra.errors import uninterrupted
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts a program in the background has it ignored
try:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        print("done")
except KeyboardInterrupt:
    print("interrupted")
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


# While msgspec loads, what it loads is interrupted: it forgets that, and crashes at the first record.
LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "_datetime":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from astra.cli import main
sys.exit(main(["model", "llama-2-7b"]))
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals are POSIX's")
def test_an_interrupt_while_modules_load_ends_the_program() -> None:
    ended = subprocess.run([sys.executable, "-c", LOADING], check=False, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "astra: interrupted.\n")


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals are POSIX's")
def test_what_is_not_to_be_interrupted_ends_first() -> None:
    """In a process of one thread, as the program is."""
    ended = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, check=True, timeout=300)
    assert ended.stdout.split() == ["done", "interrupted", "set()"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_no_interrupt_reaches_a_worker_nor_who_forks_it(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=time.sleep, args=(60,), daemon=True)  # type: ignore[attr-defined]
    start(process)
    try:
        started = [process.pid, parent] if (parent := _field(process.pid, "PPid")) != os.getpid() else [process.pid]
        for number in started:
            assert _field(number, "SigBlk", 16) >> (signal.SIGINT - 1) & 1, f"{number} of {method} is interrupted"
    finally:
        process.kill()
        process.join()


@pytest.mark.skipif("forkserver" not in multiprocessing.get_all_start_methods(), reason="nobody forks")
def test_who_forks_workers_may_be_killed_while_it_does() -> None:
    forking = multiprocessing.get_context("forkserver")
    first = forking.Process(target=time.sleep, args=(60,), daemon=True)
    second = forking.Process(target=time.sleep, args=(60,), daemon=True)
    start(first)
    server = _field(first.pid, "PPid")
    os.kill(server, signal.SIGSTOP)  # whoever asks it for a process waits
    begun = threading.Thread(target=start, args=(second,))
    begun.start()
    begun.join(0.3)
    os.kill(server, signal.SIGKILL)
    begun.join(60)
    try:
        assert second.is_alive()
        assert _field(second.pid, "PPid") != server
    finally:
        for each in (first, second):
            each.kill()


def _field(process: int | None, name: str, base: int = 10) -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1], base)
