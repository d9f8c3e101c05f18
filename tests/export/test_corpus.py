"""What people run, read as it is meant: each public script right or refused with the reason, none silently wrong."""

from __future__ import annotations

from typing import Any

import pytest

from astra.errors import InputError
from astra.export.imported import ImportedLaunch
from astra.export.imports import import_text
from astra.spec.strategy import Strategy
from tests.export.corpus import CORPUS, Entry


def fact(found: ImportedLaunch, name: str) -> Any:
    if name in Strategy.__struct_fields__:
        return getattr(found.strategy, name)
    return getattr(found, {"batch": "global_batch"}.get(name, name))


def read(entry: Entry) -> ImportedLaunch:
    return import_text(entry.text, name=entry.file, gpus=entry.gpus, parameters=entry.parameters)


def test_there_are_enough() -> None:
    assert len(CORPUS) >= 60
    assert sum(bool(entry.refused) for entry in CORPUS) < len(CORPUS) / 3


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.source)
def test_right_or_refused(entry: Entry) -> None:
    if entry.refused:
        with pytest.raises(InputError) as refusal:
            read(entry)
        assert entry.refused in str(refusal.value)
        return
    found = read(entry)
    for name, wanted in entry.facts.items():
        if name == "told":
            assert wanted in found.ignored
        else:
            assert fact(found, name) == wanted, name
