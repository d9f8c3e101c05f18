"""Lines are counted once each, by what they are."""

from __future__ import annotations

from pathlib import Path

from tools.lines import KINDS, counted, of_package

TEXT = '''"""A module.

Of two functions."""


def one():
    """First."""
    return 1


def two():
    return """text"""
'''


def test_a_module_by_kinds_of_lines() -> None:
    found = counted(TEXT)
    assert (found["lines"], found["functions"], found["docstrings"], found["blank"]) == (12, 2, 3, 5)
    assert found["code"] == 4


def test_kinds_add_up_in_the_package() -> None:
    packages = of_package(Path("src/astra"))
    assert len(packages) > 20
    for found in packages.values():
        assert sum(found[kind] for kind in KINDS) == found["lines"]
