"""Tests of a launch script, decided where they are simple."""

from __future__ import annotations

import fnmatch
import re


def decide(parts: list[str], *, missing: bool, given: bool = False) -> bool | None:
    """One test; None where a file, or a value that is not known, decides."""
    if parts and parts[0] == "!":
        inner = decide(parts[1:], missing=missing, given=given)
        return None if inner is None else not inner
    if len(parts) == 2 and parts[0] in ("-z", "-n") and parts[1] == "" and given:
        return parts[0] == "-n"
    if len(parts) == 2 and parts[0] in ("-z", "-n"):
        return None if "$" in parts[1] or "`" in parts[1] else (parts[1] == "") == (parts[0] == "-z")
    if len(parts) == 1:
        return parts[0] != ""
    if missing or len(parts) != 3 or "$" in "".join(parts) or "`" in "".join(parts):
        return None
    return _compare(*parts)


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) != (operator == "!=")
    if not re.fullmatch(r"-?[0-9]{1,12}", left) or not re.fullmatch(r"-?[0-9]{1,12}", right):
        return None
    a, b = int(left), int(right)
    answers = {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}
    return (answers | {"<": a < b, ">": a > b}).get(operator)
