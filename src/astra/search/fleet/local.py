"""Local steps (DiLoCo): how many between meetings of the weights, and what published runs lost by them."""

from __future__ import annotations

from typing import Final

CADENCES: Final = (30, 50, 100, 250, 500)  # inner steps of published runs
_PENALTIES: Final = ((2, "below 1%"), (4, "up to 2%"), (8, "up to 4%"))  # of the evaluation loss, by workers
SOURCE: Final = (
    "Charles et al. 2025, arXiv 2503.09799, 35M to 2.4B parameters, 30 inner steps, equal workers; "
    "Douillard et al. 2023, arXiv 2311.08105, 500 inner steps, up to 400M"
)
RUN_BY: Final = "torchft or OpenDiLoCo"  # torchft.local_sgd.DiLoCo; arXiv 2407.07852


def penalty(workers: int) -> str:
    """What published runs lost in evaluation loss against ordinary training on as many tokens."""
    return next((text for most, text in _PENALTIES if workers <= most), "an amount nobody has published")


def warning(workers: int, steps: int) -> str:
    """What is said of every plan with local steps."""
    return (
        f"local steps are another training: weights meet every {steps} steps, and published runs with {workers} "
        f"workers lost {penalty(workers)} in loss ({SOURCE}); "
        "each group also keeps two more copies of its weights on the host"
    )
