"""What the script of a page knows: the points of every curve, rounded."""

import json
from collections.abc import Sequence

import numpy as np

from recollect.report.figures import binned, points
from recollect.report.reading import Run
from recollect.report.svg import Chart, paint


def places(run: Run, axis: str, most: int) -> np.ndarray:
    """Where the points of a run's curves are."""
    return binned(run.axes[axis][None], most)[0]


def script_data(runs: Sequence[Run], colours: Sequence[str], drawn: dict[str, Chart]) -> str:
    """What the script knows, as JSON that cannot end the element that holds it."""
    most = points(runs)
    facts = {
        "length": sum(run.length for run in runs),
        "runs": [
            {
                "label": run.label,
                "colour": paint(colour),
                "x": {axis: _rounded(places(run, axis, most)) for axis in run.axes},
            }
            for run, colour in zip(runs, colours, strict=True)
        ],
        "charts": {
            key: {
                "log": chart.log,
                "percent": chart.percent,
                "low": chart.range[0],
                "high": chart.range[1],
                "series": [
                    {
                        "run": one.run,
                        "mean": _rounded(one.mean),
                        "low": _rounded(one.low),
                        "high": _rounded(one.high),
                    }
                    for one in chart.series
                ],
            }
            for key, chart in drawn.items()
        },
    }
    text = json.dumps(facts, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _rounded(values: np.ndarray) -> list[float | int | None]:
    """Five digits are more than a chart shows."""
    rounded = (float(f"{value:.5g}") if np.isfinite(value) else None for value in values)
    return [int(one) if one is not None and one.is_integer() else one for one in rounded]
