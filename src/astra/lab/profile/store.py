"""Measurement files: one JSON document with a header and rows, rewritten whole after each row.

A run that is cut short therefore leaves a valid file, and a second run continues where it stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from astra.atomic import write_file
from astra.errors import InputError
from astra.files import read_json

Row = dict[str, Any]


class Store:
    """Rows on disk, keyed by a text each; never loses a finished row."""

    def __init__(self, path: str | Path, *, key: str) -> None:
        self.path = Path(path)
        self.key = key
        self.header: Row = {}
        self.rows: list[Row] = []
        if self.path.exists():
            self._load()
        self.known = {row[key] for row in self.rows}

    def _load(self) -> None:
        try:
            document = read_json(self.path, "profile")
            self.rows = list(document.pop("rows"))
        except (KeyError, AttributeError, TypeError) as error:
            raise InputError(str(self.path), None, want="a measurement file with rows", fix=f"({error})") from None
        self.header = document

    def __contains__(self, key: object) -> bool:
        return key in self.known

    def begin(self, key: str) -> None:
        """Note what is being measured, so that a crash can be put down to it."""
        self.header["in_progress"] = key
        self.save()

    def forget(self) -> None:
        """Take back ``begin``: the row was not measured, and nothing crashed."""
        self.header.pop("in_progress", None)
        self.save()

    def crashed(self) -> str | None:
        """The key a previous process died on, if any."""
        key = self.header.get("in_progress")
        return key if key is not None and key not in self.known else None

    def add(self, row: Row, *, save: bool = True) -> None:
        """Append a finished row and write the file."""
        self.rows.append(row)
        self.known.add(row[self.key])
        self.header.pop("in_progress", None)
        if save:
            self.save()

    def save(self) -> None:
        """Write to a sibling file and rename: readers never see half a document."""
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        head = json.dumps(self.header)[1:-1]
        write_file(self.path, "{" + head + (", " if head else "") + '"rows": [\n' + lines + "\n]}\n")
