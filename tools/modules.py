"""How many modules of the package one plan touches, on one pool and on two. Run: python -m tools.modules [--names].

A module is touched when a function of it runs, and loaded when it is imported: a fresh process does both. Drawing the
answer is no part of planning.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

PLANS: Final[dict[str, dict[str, Any]]] = {
    "one pool": {"model": "llama-2-70b", "gpus": "64xH100", "batch": 1024, "seq": 4096},
    "two pools": {"model": "llama-2-70b", "gpus": ["32xH100", "32xA100-80"], "batch": 1024, "seq": 4096},
}
FEWER: Final = {"one pool": 88, "two pools": 104}  # than this many are touched
# The first plan loads what it needs; the second one, of nothing known, runs it.
_COUNT: Final = """
import json, sys, astra
request = json.loads(sys.argv[1])
astra.plan(**request)
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "astra")
for module in [sys.modules[name] for name in loaded]:
    for known in list(vars(module).values()):
        if getattr(known, "__module__", "").startswith("astra") and hasattr(known, "cache_clear"):
            known.cache_clear()
touched = set()
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        touched.add(frame.f_globals.get("__name__", ""))
sys.setprofile(note)
astra.plan(**request)
sys.setprofile(None)
print(json.dumps({"loaded": loaded, "touched": sorted(touched.intersection(loaded))}))
"""


def counted(request: dict[str, Any]) -> dict[str, list[str]]:
    """The modules that one plan loads and touches, in a fresh process."""
    words = [sys.executable, "-c", _COUNT, json.dumps(request)]
    found: dict[str, list[str]] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> int:
    """Print the counts; 1 if too many are touched."""
    above = 0
    for name, request in PLANS.items():
        found = counted(request)
        above += len(found["touched"]) >= FEWER[name]
        loaded, touched = (len(found[what]) for what in ("loaded", "touched"))
        print(f"{name}: {touched} modules touched (fewer than {FEWER[name]}), {loaded} loaded")
        if "--names" in sys.argv:
            print("\n".join(f"  {module}" for module in found["touched"]))
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
