"""Questions answered by a Ray cluster; the only module that imports Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from astra.errors import AstraError, InputError
from astra.questions.answering import answered, lost
from astra.questions.declared import Question
from astra.questions.engines import MOST_TRIES, Answering, Given, usable_cores

_STARTS: Final = 3
_AHEAD: Final = 4  # questions for each worker that are with the cluster at once


class OnRay:
    """A cluster at an address, or one of this machine for as long as the study takes."""

    name: Final = "ray"

    def __init__(self, workers: int | None, address: str | None, answering: Answering = answered) -> None:
        self._ray: Any = _ray()
        self._stdout = _stdout_to_stderr()
        own = {"num_cpus": workers or usable_cores(), "include_dashboard": False} if address is None else {}
        self._join(address, own)
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        remote = self._ray.remote(num_cpus=1, max_retries=MOST_TRIES - 1)
        self._answering: Any = remote(answering)

    def _join(self, address: str | None, own: dict[str, Any]) -> None:
        """Reach the cluster, or start one; a machine that is busy may need to be asked again."""
        said = ""
        for _ in range(_STARTS if address is None else 1):
            try:
                self._ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
            except Exception as error:  # noqa: PERF203 - Ray raises plain ones too
                said = " ".join(str(error).split())[:300]
                self._ray.shutdown()
            else:
                return
        self.close()
        if address is None:
            raise AstraError(f"Ray could not be started here: {said}")
        raise InputError("--address", address, want=f"a Ray cluster that can be reached ({said})")

    def answers(self, questions: Iterable[Question]) -> Iterator[Given]:
        """A line for each question, as they are done."""
        waiting, asked = iter(questions), dict[Any, Question]()
        while True:
            while len(asked) < _AHEAD * self.workers:
                question = next(waiting, None)
                if question is None:
                    break
                asked[self._answering.remote(question.key, question.request)] = question
            if not asked:
                return
            done, _ = self._ray.wait(list(asked), num_returns=1)
            for place in done:
                yield self._taken(place, asked.pop(place))

    def _taken(self, place: Any, question: Question) -> Given:
        try:
            line: bytes = self._ray.get(place)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ImportError):
                fix = "Install the same Astra on every machine of the cluster."
                raise AstraError(f"a worker of the Ray cluster cannot plan: {cause}. {fix}") from None
            return Given(lost(question.key, 1, f"{type(cause).__name__}: {cause}"), 1)
        except self._ray.exceptions.RayError as error:
            return Given(lost(question.key, MOST_TRIES, type(error).__name__), MOST_TRIES)
        return Given(line, 1)

    def close(self) -> None:
        """Leave the cluster; one of this machine ends with it."""
        self._ray.shutdown()
        if self._stdout is not None:
            sys.stdout.flush()
            os.dup2(self._stdout, 1)
            os.close(self._stdout)
            self._stdout = None


def _stdout_to_stderr() -> int | None:
    """Ray talks on standard output, where the answer alone belongs; the number of the way back."""
    if sys.stdout is None or sys.stderr is None:
        return None
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415
    except ImportError:
        raise InputError("--engine", "ray", want="Ray", fix="pip install 'astra-planner[ray]' has it.") from None
    return ray
