"""How many modules of the package one plan loads, on one pool and on two. Run: python -m tools.modules [--names]."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

PLANS: Final[dict[str, dict[str, Any]]] = {
    "one pool": {"model": "llama-2-70b", "gpus": "64xH100", "batch": 1024, "seq": 4096},
    "two pools": {"model": "llama-2-70b", "gpus": ["32xH100", "32xA100-80"], "batch": 1024, "seq": 4096},
}
MOST: Final = {"one pool": 87, "two pools": 103}  # a reader should not have to open more than this for one plan


def loaded(request: dict[str, Any]) -> list[str]:
    """The package's modules after one plan in a fresh process, as they are named."""
    code = f"import sys, astra; astra.plan(**{request!r}); print(*sorted(m for m in sys.modules if m[:5] == 'astra'))"
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return answer.stdout.split()


def main() -> int:
    """Print the counts; 1 if one is above its bar."""
    above = 0
    for name, request in PLANS.items():
        modules = loaded(request)
        above += len(modules) > MOST[name]
        print(f"{name}: {len(modules)} modules, at most {MOST[name]}")
        if "--names" in sys.argv:
            print("\n".join(f"  {module}" for module in modules))
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
