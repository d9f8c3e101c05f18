"""Two answers to one request: equal, or what became of the first.

``broken``    an answer before and an error now, or an error of the user's before and one of Astra's now
``mended``    the reverse
``moved``     answers on both sides with other plans or other figures, or errors with other exit codes
``restated``  the same plans and figures with other words, counts of the search, or new fields
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

Answer = Mapping[str, Any]

EQUAL, MOVED, RESTATED, BROKEN, MENDED = "equal", "moved", "restated", "broken", "mended"
OUTCOMES: Final = (EQUAL, RESTATED, MOVED, MENDED, BROKEN)
USER_ERRORS: Final = (2, 3, 4, 5)
# When and by what an answer was made, which is not the answer.
IGNORED: Final = frozenset({"version", "fingerprint", "catalog", "seconds", "strategies_per_s"})
# The question repeated, and how the answer was found.
BESIDE: Final = frozenset({"request", "search", "rejects", "schema"})
# Strings that say what to do; all others say why.
DECIDING: Final = frozenset({"strategy", "gpus", "gpu", "node", "pool", "offer", "objective", "target", "runtime"})
ROUNDING: Final = 1e-9
SHOWN: Final = 4


class Difference(NamedTuple):
    """One place where two records differ."""

    path: str
    before: Any
    after: Any
    in_words: bool  # the plan and its figures are the same

    def __str__(self) -> str:
        """The place with both values."""
        return f"{self.path}: {_short(self.before)} -> {_short(self.after)}"


class Verdict(NamedTuple):
    """What became of one request."""

    name: str
    outcome: str
    reasons: list[str]
    step_change: float = 0.0  # of the first plan's step time, as a share of what it was


class Absent:
    """A field or entry that one side does not have."""

    def __repr__(self) -> str:
        """As it is shown."""
        return "absent"


ABSENT: Final = Absent()


def judge(name: str, before: Answer, after: Answer) -> Verdict:
    """Compare two answers to the request of this name."""
    was, now = _standing(before), _standing(after)
    if was != now:
        outcome = BROKEN if now > was else MENDED
        return Verdict(name, outcome, [f"{_ended(before)} -> {_ended(after)}"])
    if was > 0:
        return _errors(name, before, after)
    found = list(differences(before["record"], after["record"]))
    found += [
        Difference(f"file {file}", *_first_other_line(ours, theirs), in_words=False)
        for file, ours, theirs in _files(before["files"], after["files"])
    ]
    if not found:
        return Verdict(name, EQUAL, [])
    moved = [each for each in found if not each.in_words]
    shown = moved or found
    reasons = [str(each) for each in shown[:SHOWN]]
    if len(shown) > SHOWN:
        reasons.append(f"and {len(shown) - SHOWN} more")
    if not moved:
        return Verdict(name, RESTATED, reasons)
    change = step_change(before["record"], after["record"])
    return Verdict(name, MOVED, [*_headline(before["record"], after["record"]), *reasons], change)


def _standing(answer: Answer) -> int:
    """0 for an answer, 1 for an error that is the user's to mend, 2 for a bug, a crash or no end."""
    return 0 if answer["code"] == 0 else 1 if answer["code"] in USER_ERRORS else 2


def _ended(answer: Answer) -> str:
    if answer["code"] == 0:
        return "an answer"
    return f"exit {answer['code']} ({_short(answer['messages'].strip(), 300)})"


def _errors(name: str, before: Answer, after: Answer) -> Verdict:
    """Errors on both sides."""
    if before["code"] != after["code"]:
        return Verdict(name, MOVED, [f"{_ended(before)} -> {_ended(after)}"])
    if before["messages"] != after["messages"]:
        return Verdict(name, RESTATED, [f"message: {before['messages'].strip()} -> {after['messages'].strip()}"])
    return Verdict(name, EQUAL, [])


def differences(before: Any, after: Any, path: str = "", *, restated: bool = False) -> Iterator[Difference]:
    """Every place where two records differ, without the fields that say when and by what they were made."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in IGNORED:
                inner = f"{path}.{key}" if path else key
                aside = restated or key in BESIDE
                yield from differences(before.get(key, ABSENT), after.get(key, ABSENT), inner, restated=aside)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            yield from differences(
                before[index] if index < len(before) else ABSENT,
                after[index] if index < len(after) else ABSENT,
                f"{path}[{index}]",
                restated=restated,
            )
    elif not _same(before, after):
        yield Difference(path, before, after, restated or _only_words(path, before, after))


def _same(before: Any, after: Any) -> bool:
    if _number(before) and _number(after):
        return bool(abs(before - after) <= ROUNDING * max(abs(before), abs(after)))
    return type(before) is type(after) and bool(before == after)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _only_words(path: str, before: Any, after: Any) -> bool:
    """Whether a difference is in the telling: another sentence, or a field that was not there before."""
    in_list = path.endswith("]")
    key = path.rpartition(".")[2].partition("[")[0]
    sides = [side for side in (before, after) if side is not ABSENT]
    if all(isinstance(side, str) for side in sides):
        return key not in DECIDING and (in_list or after is not ABSENT)
    return before is ABSENT and not in_list


def _files(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield name, before.get(name, ""), after.get(name, "")


def _first_other_line(before: str, after: str) -> tuple[str, str]:
    ours, theirs = before.splitlines(), after.splitlines()
    for index in range(max(len(ours), len(theirs))):
        one = ours[index] if index < len(ours) else ""
        other = theirs[index] if index < len(theirs) else ""
        if one != other:
            return one.strip(), other.strip()
    return before[-1:], after[-1:]


def first_plan(record: Any) -> tuple[str, float] | None:
    """Strategy and step time of the first plan, choice or estimate of a record."""
    if isinstance(record, dict):
        if "strategy" in record and _number(record.get("step_s")):
            return str(record["strategy"]), float(record["step_s"])
        inside = list(record.values())
    elif isinstance(record, list):
        inside = record
    else:
        return None
    return next((found for found in map(first_plan, inside) if found), None)


def step_change(before: Any, after: Any) -> float:
    """By how much of itself the first plan's step time changed."""
    was, now = first_plan(before), first_plan(after)
    return now[1] / was[1] - 1.0 if was and now and was[1] else 0.0


def _headline(before: Any, after: Any) -> list[str]:
    """What changed in the first plan, before the details."""
    was, now = first_plan(before), first_plan(after)
    if was is None or now is None:
        return []
    lines = []
    if not _same(was[1], now[1]):
        lines.append(f"step {was[1]:.6g} s -> {now[1]:.6g} s ({now[1] / was[1] - 1.0:+.2%})")
    if was[0] != now[0]:
        lines.append(f"strategy {was[0]} -> {now[0]}")
    return lines or ["the first plan is the same"]


def _short(value: Any, length: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
