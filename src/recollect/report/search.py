"""A picture of a search for settings: what matters, how trials went, and what the best is worth."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from recollect.agent.tune import Tuned
from recollect.report.colours import COLOURS
from recollect.report.plot import panels, save
from recollect.statistics import mean_interval

START, TUNED = COLOURS[0], COLOURS[1]


def draw_search(path: Path, found: Tuned) -> None:
    """Draw importances, trials, and learning curves on held-back seeds.

    Args:
        path: of the picture; its ending says the format.
        found: by the search.
    """
    figure, (left, middle, right) = panels(1, 3)
    _importances(left, found)
    _trials(middle, found)
    _held_back(right, found)
    save(figure, path)


def _importances(axes: Axes, found: Tuned) -> None:
    names = list(found.importances)[::-1]
    axes.barh(names, [found.importances[name] for name in names], color=TUNED)
    axes.set(title="importance", xlabel="share of what makes a trial good")
    if not names:
        axes.text(0.5, 0.5, "too few trials to tell", ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])


def _trials(axes: Axes, found: Tuned) -> None:
    complete = [(one.number, one.value) for one in found.trials if one.value is not None]
    numbers, values = np.array(complete).T
    axes.plot(numbers, values, "o", color=START, label="a trial")
    axes.step(numbers, np.maximum.accumulate(values), where="post", color=TUNED, label="best")
    pruned = [one.number for one in found.trials if one.outcome == "pruned"]
    if pruned:
        low = [values.min()] * len(pruned)
        axes.plot(pruned, low, "x", color=START, label="stopped early")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="search", xlabel="trial", ylabel="mean return while learning")
    axes.legend(frameon=False)


def _held_back(axes: Axes, found: Tuned) -> None:
    for name, colour in (("start", START), ("tuned", TUNED)):
        mean, low, high = mean_interval(found.curves[name])
        axes.plot(found.places, mean, color=colour, label=name)
        axes.fill_between(found.places, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(title=f"{len(found.config.seeds)} held-back seeds", xlabel="environment steps")
    axes.set(ylabel="mean return")
    axes.legend(frameon=False)
