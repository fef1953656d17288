"""Learning on the host before and after a change of how observations are normalised.

    python benchmarks/normaliser.py LABEL [--seeds 10]

Trains the presets of RPPO and RTRPO on Gymnasium's Hopper-v5 (100,000 steps) and Pendulum-v1
(40,000 steps), normalised, and keeps the mean return of every seed over the whole of training and
over its last tenth in normaliser.json under LABEL. With two labels there it prints both with 95 %
bootstrap intervals of the mean, and of the paired difference over seeds.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from keep import kept, remember
from variants import mean_interval, trained

from recollect.report.tables import markdown

STEPS = {"Hopper-v5": 100_000, "Pendulum-v1": 40_000}
DATA = Path(__file__).with_suffix(".json")


def measure(env: str, name: str, seeds: int) -> dict[str, list[float]]:
    """Area under the learning curve by environment steps, and mean of its last tenth, by seed."""
    from recollect import make, preset

    chosen = preset(name, env)
    policy = dataclasses.replace(chosen.policy, normalise=True)
    chosen = dataclasses.replace(chosen, policy=policy)
    run = trained(make(env, engine="gymnasium"), chosen, seeds, environment_steps=STEPS[env])
    figures = {"area": [], "final": []}
    for steps, returns in zip(
        run.curves["environment_steps"], run.curves["return_mean"], strict=True
    ):
        ended = np.isfinite(returns)
        grid = np.linspace(0, STEPS[env], 101)[1:]
        curve = np.interp(grid, steps[ended], returns[ended])
        figures["area"].append(round(float(curve.mean()), 2))
        figures["final"].append(round(float(curve[-10:].mean()), 2))
    return figures


def table() -> None:
    """Print both labels and their difference, if there are two."""
    data = kept(DATA)
    labels = list(dict.fromkeys(key.split(": ")[0] for key in data))
    if len(labels) < 2:
        return
    rows = []
    for case in [f"{env} {name}" for env in STEPS for name in ("rppo", "rtrpo")]:
        for figure in ("area", "final"):
            before, after = (np.array(data[f"{label}: {case}"][figure]) for label in labels[:2])
            intervals = map(mean_interval, (before, after, after - before))
            rows.append((case, figure, *intervals))
    columns = ("", "figure", *labels[:2], "difference")
    print(*markdown(columns, rows, align="llrrr"), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("label", help="name of what is measured, for example before")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    for env in reversed(STEPS):
        for name in ("rppo", "rtrpo"):
            case = f"{options.label}: {env} {name}"
            remember(DATA, case, lambda env=env, name=name: measure(env, name, options.seeds))
    table()


if __name__ == "__main__":
    main()
