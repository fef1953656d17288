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
from variants import trained

STEPS = {"Hopper-v5": 100_000, "Pendulum-v1": 40_000}
DATA = Path(__file__).with_suffix(".json")


def measure(env: str, name: str, seeds: int) -> dict[str, list[float]]:
    """Area under the learning curve by environment steps, and mean of its last tenth, by seed."""
    from recollect import make, preset

    chosen = preset(name, env)
    policy = dataclasses.replace(chosen.policy, normalise=True)
    chosen = dataclasses.replace(chosen, policy=policy)
    run = trained(make(env, engine="gymnasium"), chosen, seeds, environment_steps=STEPS[env])
    found = {"area": [], "final": []}
    for steps, returns in zip(
        run.curves["environment_steps"], run.curves["return_mean"], strict=True
    ):
        ended = np.isfinite(returns)
        grid = np.linspace(0, STEPS[env], 101)[1:]
        curve = np.interp(grid, steps[ended], returns[ended])
        found["area"].append(round(float(curve.mean()), 2))
        found["final"].append(round(float(curve[-10:].mean()), 2))
    return found


def interval(values: np.ndarray) -> str:
    """Mean with its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return f"{values.mean():,.0f} ({low:,.0f} – {high:,.0f})"


def table() -> None:
    data = kept(DATA)
    labels = list(dict.fromkeys(key.split(": ")[0] for key in data))
    if len(labels) < 2:
        return
    before, after = labels[:2]
    print(f"| | figure | {before} | {after} | difference |")
    print("|:--|:--|--:|--:|--:|")
    for case in [f"{env} {name}" for env in STEPS for name in ("rppo", "rtrpo")]:
        for figure in ("area", "final"):
            one, two = (np.array(data[f"{label}: {case}"][figure]) for label in labels[:2])
            cells = [interval(one), interval(two), interval(two - one)]
            print(f"| {case} | {figure} | {' | '.join(cells)} |")


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
