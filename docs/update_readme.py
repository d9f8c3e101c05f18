"""Fill the output blocks of the README and the cookbook: ``python docs/update_readme.py``.

A block is ``<!-- run: COMMAND [| first N] -->`` followed by a fenced block; everything inside the fence is
replaced by what the command prints. Nothing in those blocks is typed by hand. The commands of the cookbook are run one
after another in a folder of their own, with the files that ``<!-- file: NAME -->`` blocks hold; the site runs them
again.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COOKBOOK = ROOT / "docs" / "cookbook.md"
BLOCK = re.compile(
    r"(<!-- run: (?P<command>[^\n]+?)(?: \| first (?P<first>\d+))? -->\n```\w*\n).*?^```$", re.DOTALL | re.MULTILINE
)
FILE = re.compile(r"<!-- file: (?P<name>[\w.]+) -->\n```\w*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def output_of(command: str, folder: Path = ROOT) -> str:
    """What a command prints, with ``astra`` and ``python`` of this environment."""
    words = shlex.split(command)
    programs = {"astra": [sys.executable, "-m", "astra"], "python": [sys.executable], "cat": ["cat"]}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [*programs[words[0]], *words[1:]], check=False, capture_output=True, text=True, cwd=folder, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.rstrip()


def filled(text: str, folder: Path, *, shown: bool = False) -> str:
    """A page with fresh output in its blocks, in their order; with ``shown`` each begins with its command."""

    def fresh(match: re.Match[str]) -> str:
        lines = output_of(match["command"], folder).splitlines()
        body = "\n".join(line.rstrip() for line in (lines[: int(match["first"])] if match["first"] else lines))
        return f"{match[1]}{'$ ' + match['command'] + chr(10) if shown else ''}{body}\n```"

    return BLOCK.sub(fresh, text)


def filled_in(text: str) -> str:
    """A page whose commands run in an empty folder, with the files that the page shows."""
    with tempfile.TemporaryDirectory() as folder:
        for match in FILE.finditer(text):
            (Path(folder) / match["name"]).write_text(match["text"], encoding="utf-8")
        return filled(text, Path(folder), shown=True)


def main() -> None:
    """Rewrite both."""
    README.write_text(filled(README.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
    COOKBOOK.write_text(filled_in(COOKBOOK.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
