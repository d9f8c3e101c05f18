"""Fill the README's output blocks by running the commands they name: ``python docs/update_readme.py``.

A block is ``<!-- run: COMMAND [| first N lines] -->`` followed by a fenced block; everything inside the fence is
replaced by what the command prints. Nothing in those blocks is typed by hand.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(
    r"(<!-- run: (?P<command>[^\n]+?)(?: \| first (?P<first>\d+))? -->\n```\w*\n).*?^```$", re.DOTALL | re.MULTILINE
)


def output_of(command: str) -> str:
    """What a command prints, with ``astra`` and ``python`` of this environment."""
    words = shlex.split(command)
    programs = {"astra": [sys.executable, "-m", "astra"], "python": [sys.executable]}
    done = subprocess.run(
        [*programs[words[0]], *words[1:]], check=True, capture_output=True, text=True, cwd=README.parent
    )
    return done.stdout.rstrip()


def filled(match: re.Match[str]) -> str:
    """One block with fresh output."""
    lines = output_of(match["command"]).splitlines()
    body = "\n".join(line.rstrip() for line in (lines[: int(match["first"])] if match["first"] else lines))
    return f"{match[1]}{body}\n```"


def main() -> None:
    """Rewrite the README."""
    README.write_text(BLOCK.sub(filled, README.read_text()))


if __name__ == "__main__":
    main()
