"""How many modules of the package one plan touches, on one pool and on two. Run: python -m tools.modules [--names].

A module is touched when a function of it runs while a fresh process plans for the first time, and loaded when the plan
imports it. A first process tells what is loaded; a second one loads that, so that making classes and tables does not
count, and plans with nothing remembered. Drawing the answer is no part of planning.
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
_PLAN: Final = """
import importlib, json, sys, astra
request, modules = json.loads(sys.argv[1])
for name in modules:
    importlib.import_module(name)
touched = set()
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        touched.add(frame.f_globals.get("__name__", ""))
sys.setprofile(note)
astra.plan(**request)
sys.setprofile(None)
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "astra")
print(json.dumps({"loaded": loaded, "touched": sorted(touched.intersection(loaded))}))
"""


def _planned(request: dict[str, Any], modules: list[str]) -> dict[str, list[str]]:
    """The modules loaded and touched by a fresh process that plans after loading some."""
    words = [sys.executable, "-c", _PLAN, json.dumps([request, modules])]
    found: dict[str, list[str]] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return found


def counted(request: dict[str, Any]) -> dict[str, list[str]]:
    """The modules that one plan loads and touches."""
    return _planned(request, _planned(request, [])["loaded"])


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
