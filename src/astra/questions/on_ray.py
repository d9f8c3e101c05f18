"""Questions answered by a Ray cluster; the only module that imports Ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from astra.errors import AstraError, InputError
from astra.questions.answering import answered, lost
from astra.questions.engines import MOST_TRIES, Answering, Given, usable_cores
from astra.questions.question import Question

_AHEAD: Final = 4  # questions for each worker that are with the cluster at once


class OnRay:
    """A cluster at an address, or one of this machine for as long as the study takes."""

    name: Final = "ray"

    def __init__(self, workers: int | None, address: str | None, answering: Answering = answered) -> None:
        self._ray: Any = _ray()
        own = {"num_cpus": workers or usable_cores(), "include_dashboard": False} if address is None else {}
        try:
            self._ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            said = " ".join(str(error).split())[:300]
            raise InputError("--address", address, want=f"a Ray cluster that can be reached ({said})") from None
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        remote = self._ray.remote(num_cpus=1, max_retries=MOST_TRIES - 1)
        self._answering: Any = remote(answering)

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


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415
    except ImportError:
        raise InputError("--engine", "ray", want="Ray", fix="pip install 'astra-planner[ray]' has it.") from None
    return ray
