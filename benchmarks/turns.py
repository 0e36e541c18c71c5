"""Measurements taken by turns, so that all sides see the same minutes of a machine, and the ratios between them.

Owns: the order of turns and the statistics of ratios. Must not know: what is measured.
"""

import statistics
from collections.abc import Callable, Mapping


def by_turns(sides: Mapping[str, Callable[[], float]], num_rounds: int) -> dict[str, list[float]]:
    """Measures every side once a round, in the other order every other round; a first round warms up and is not counted."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(num_rounds + 1):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            value = sides[name]()
            if number:
                values[name].append(value)
    return values


def ratios(values: list[float], base: list[float]) -> dict[str, float]:
    """Returns median and quartiles of the ratios of two sides, round by round."""
    of_rounds = [value / other for value, other in zip(values, base, strict=True)]
    low, median, high = statistics.quantiles(of_rounds, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "rounds": len(of_rounds)}
