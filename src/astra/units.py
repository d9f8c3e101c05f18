"""SI constants, and the only place where quantities are turned into text or read from it.

Inside the package every quantity is SI: seconds, bytes, FLOP/s, bytes/s, watts, dollars.
"""

from __future__ import annotations

import math
import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
US: Final = 1e-6
DAY_S: Final = 86400.0
MONTH_S: Final = 365.25 * DAY_S / 12

_POWERS: Final = {"": 0, "k": 1, "m": 2, "b": 3, "g": 3, "t": 4, "p": 5}
_UNIT_S: Final = {"min": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]?)", re.IGNORECASE)
_MOST_LETTERS: Final = 400  # of a number, which the pattern could look at again and again


def parse_count(text: str, kilo: float = 1000.0) -> float | None:
    """Read ``1T``, ``400k``, ``15.6e12`` or ``1_000``; None if it is not a count."""
    plain = text.strip().replace("_", "").replace(",", "")
    match = _NUMBER.fullmatch(plain) if len(plain) <= _MOST_LETTERS else None
    if match is None or match.group(2).lower() not in _POWERS:
        return None
    value = float(match.group(1)) * kilo ** _POWERS[match.group(2).lower()]
    return value if math.isfinite(value) else None


def whole_count(text: str, most: int) -> int | None:
    """Read a whole number from 1 to ``most``; None if it is not one."""
    value = parse_count(text)
    return int(value) if value is not None and 1 <= value <= most and value == int(value) else None


def parse_seconds(text: str) -> float | None:
    """Read ``14d``, ``36h``, ``20min``, ``2w`` or a number of days as seconds; None if it is not a time above zero."""
    plain = text.strip().lower()
    unit = next((unit for unit in _UNIT_S if plain.endswith(unit)), "")
    value = (parse_count(plain.removesuffix(unit)) or 0.0) * _UNIT_S[unit or "d"]
    return value if 0 < value < math.inf else None


def show_seconds(seconds: float) -> str:
    """A duration for people: ``12.3 us``, ``4.56 s``, ``3.2 h``, ``14.5 days``."""
    for limit, unit, name, digits in (
        (1e-3, 1e-6, "us", 1),
        (1.0, 1e-3, "ms", 1),
        (120.0, 1.0, "s", 2),
        (7200.0, 60.0, "min", 1),
        (172800.0, 3600.0, "h", 1),
    ):
        if abs(seconds) < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:,.1f} days"


def show_gib(nbytes: float) -> str:
    """Bytes as GiB with one decimal: ``61.2 GiB``."""
    return f"{nbytes / GIB:.1f} GiB"


def show_count(value: float) -> str:
    """A large count: ``70.6B``, ``1.5T``, ``512``."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if name == 'k' else unit):.4g}{name}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"


def show_dollars(dollars: float) -> str:
    """Money: ``$1,234``, ``$12.3k``, ``$1.23M``."""
    if abs(dollars) >= 1e6:
        return f"${dollars / 1e6:,.2f}M"
    if abs(dollars) >= 1e4:
        return f"${dollars / 1e3:,.1f}k"
    return f"${dollars:,.2f}" if abs(dollars) < 100 else f"${dollars:,.0f}"


def show_bits(bytes_per_s: float) -> str:
    """The rate of a line, which is told in bits: ``10 Gb/s``, ``350 Mb/s``."""
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.3g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mb/s"


def show_slower(step_s: float, best_s: float) -> str:
    """How much slower a step is than that of the plan before it, which may be the slower one and the surer one."""
    if step_s >= best_s:
        return f"{step_s / best_s - 1:.1%} slower"
    return f"{1 - step_s / best_s:.1%} faster as expected, and less sure"
