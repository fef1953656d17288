"""What is compared: presets of ours, the same without reuse, and seeds of another library.

An update of RPPO sweeps over the whole window, and so does a critic that is fitted to the window:
a longer window takes more gradient steps. Beside the preset with a window of 1 stands a control
without reuse that takes as many steps: see `recollect.algorithms.control`.

recollect is imported where it is used: processes of another library do without it.
"""

import argparse
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000
"""Of the seeds, for an interval."""
CONTROLS = {
    "rppo": ("rppo, window 1", "rppo, window 1, as many steps"),
    "rtrpo": ("rtrpo, window 1", "rtrpo, window 1, as many critic steps"),
}
"""Of what reuses: without reuse, and the same with as many gradient steps."""
VARIANTS = ("ppo", *CONTROLS["rppo"], "rppo", "trpo", *CONTROLS["rtrpo"], "rtrpo")
"""Presets and controls, in the order of the tables."""
MUJOCO_TRPO = dict(
    batch_size=128,
    n_steps=1024,
    gamma=0.99,
    gae_lambda=0.95,
    sub_sampling_factor=1,
    cg_max_steps=25,
    cg_damping=0.1,
    n_critic_updates=20,
    learning_rate=1e-3,
)
"""Settings of sb3-contrib's TRPO in rl-baselines3-zoo that its MuJoCo environments share."""


def variant(env: str, label: str):
    """The preset or control of that label."""
    from recollect.algorithms.control import equal_steps_control, without_reuse
    from recollect.run.presets import preset

    name, _, change = label.partition(", ")
    chosen = preset(name, env)
    if not change:
        return chosen
    if change == "window 1":
        algorithm = without_reuse(chosen.algorithm)
    else:
        batch = chosen.collector.copies * chosen.collector.steps
        algorithm = equal_steps_control(chosen.algorithm, batch)
    return dataclasses.replace(chosen, algorithm=algorithm)


def variants(env: str) -> list[str]:
    """The variants that differ: where no steps grow with the window, both controls are one."""
    same = lambda window, steps: variant(env, window) == variant(env, steps)
    redundant = [steps for window, steps in CONTROLS.values() if same(window, steps)]
    return [label for label in VARIANTS if label not in redundant]


def trained(env, chosen, seeds: int | Sequence[int], **limits):
    """A run of what was chosen, without its progress and its warnings.

    Refused updates are counted in the curves.
    """
    from recollect import train

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            env,
            chosen.algorithm,
            collector=chosen.collector,
            policy=chosen.policy,
            seeds=seeds,
            progress=False,
            **limits,
        )


def curves_of(run, total: int, points: int) -> list[list[float]]:
    """For each seed of a run, the return over the steps; see `binned`."""
    by_seed = zip(run.curves["environment_steps"], run.curves["return_mean"], strict=True)
    ended = [(steps, returns, np.isfinite(returns)) for steps, returns in by_seed]
    return [binned(steps[some], returns[some], total, points) for steps, returns, some in ended]


def binned(steps: np.ndarray, returns: np.ndarray, total: int, points: int) -> list[float]:
    """Mean return of the episodes that ended within each of `points` equal parts of the steps.

    Where none did, that of the part before; before the first episode, that of the first.
    """
    bins = np.minimum((steps * points / total).astype(int), points - 1)
    means = [returns[bins == i].mean() if (bins == i).any() else np.nan for i in range(points)]
    first = next((mean for mean in means if np.isfinite(mean)), 0.0)
    for i, mean in enumerate(means):
        means[i] = mean if np.isfinite(mean) else (means[i - 1] if i else first)
    return [round(float(mean), 2) for mean in means]


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Flags that say where cells are measured."""
    parser.add_argument(
        "--on",
        choices=("local", "ray"),
        default="local",
        help="measure in processes of this machine, one for each core, or on a Ray cluster",
    )
    parser.add_argument(
        "--cluster", metavar="ADDRESS", help="for --on ray: auto or HOST:PORT; a new one if none"
    )


def on_machines(
    options: argparse.Namespace,
    function: Callable[[Any], Any],
    cells: Sequence[Any],
    keep: Callable[[Any, Any], None],
    hours: float = math.inf,
) -> None:
    """Measure cells, one on each CPU, and keep the figures of each when it is finished.

    Within one process, seeds that are updated on two cores slow each other down: two processes,
    each held to a core, train 1.5 times as many seeds of HalfCheetah-v5 in the same time.

    Args:
        options: with those of `add_machines`.
        function: of a cell; it gives figures as JSON knows them.
        cells: begun in this order.
        keep: is given a cell and its figures, in this process.
        hours: after which no more are begun.
    """
    from recollect.cli.machines import Tasks
    from recollect.machines import map_tasks, tasks_on

    ends = time.time() + 3600 * hours
    tasks = [(function, cell, ends) for cell in cells]

    def arrived(place: int, figures: Any) -> None:
        if figures is not None:
            keep(cells[place], figures)

    with tasks_on(Tasks(options.on, options.cluster).chosen()):
        map_tasks(_measured, tasks, arrived=arrived)


def _measured(task: tuple[Callable[[Any], Any], Any, float]) -> Any:
    """The figures of a cell; None if it is too late to begin."""
    import jax

    function, cell, ends = task
    if time.time() >= ends:
        return None
    # Times are with compilation, whoever has compiled the same before.
    jax.config.update("jax_enable_compilation_cache", False)
    return function(cell)


def mean_interval(values: np.ndarray) -> str:
    """Mean over seeds with its 95 % bootstrap interval."""
    from recollect.statistics import bootstrap

    mean, low, high = bootstrap(lambda values: values.mean(1), values, resamples=RESAMPLES)
    return f"{mean:,.0f} ({low:,.0f} – {high:,.0f})"


def ratios(label: str, figures: dict[str, np.ndarray], statistic: Callable, env: str) -> list[str]:
    """Cells of a table: what reuses over both its controls, each with a 95 % bootstrap interval.

    Args:
        label: of the row.
        figures: one for each seed, by label.
        statistic: of the seeds (along the last axis), whose ratio is taken.
        env: whose presets these are.
    """
    if label not in CONTROLS:
        return ["", ""]
    over = lambda control: ratio(figures[label], figures[control], statistic)
    cells = [over(control) if control in figures else "not run" for control in CONTROLS[label]]
    if CONTROLS[label][1] not in variants(env):
        cells[1] = "no more steps"
    return cells


def ratio(ours: np.ndarray, theirs: np.ndarray, statistic: Callable) -> str:
    """Ratio of a statistic over seeds, which are drawn together where both have the same."""
    from recollect.statistics import bootstrap

    over = lambda ours, theirs: statistic(ours, -1) / statistic(theirs, -1)
    paired = len(ours) == len(theirs)
    value, low, high = bootstrap(over, ours, theirs, resamples=RESAMPLES, paired=paired)
    return f"{value:.2f} ({low:.2f} – {high:.2f})"
