"""The README's pictures: ``python docs/pictures.py``. Needs the extra ``[serve]``, rich and Chromium.

``docs/images/terminal.svg`` is what ``astra plan`` prints, ``docs/images/page.png`` the page of ``astra serve``.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.text import Text

import astra

IMAGES = Path(__file__).parent / "images"
COLUMNS = 100
WINDOW = "1280,860"
QUERY = "?model=llama-2-70b&pool=512xH100&batch=1024&seq=4096&tokens=1T"


def terminal() -> None:
    """The answer of a command as a picture of text."""
    plans = astra.plan("llama-2-70b", gpus="512xH100", batch=1024, seq=4096, tokens="1T")
    with tempfile.TemporaryFile("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text.from_ansi(plans.draw(COLUMNS, color=True)))
    svg = console.export_svg(title="astra plan llama-2-70b --gpus 512xH100 --batch 1024 --seq 4096 --tokens 1T")
    # The picture must not fetch its letters from anywhere.
    (IMAGES / "terminal.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


def page() -> None:
    """The page as Chromium shows it once its answer is there."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium is installed")
    words = [sys.executable, "-m", "astra", "serve", "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        try:
            assert found is not None
            time.sleep(3.0)
            urllib.request.urlopen(f"{found.group()}api/catalog").read()
            shot = [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WINDOW}"]
            shot += ["--virtual-time-budget=8000", f"--screenshot={IMAGES / 'page.png'}", found.group() + QUERY]
            subprocess.run(shot, check=True, capture_output=True, timeout=120)
        finally:
            server.send_signal(signal.SIGINT)


def main() -> None:
    """Draw both."""
    IMAGES.mkdir(exist_ok=True)
    terminal()
    page()


if __name__ == "__main__":
    main()
