"""Which samples PPO's clip silences, by age: around 1 (as the paper prints it) or around the current ratio.

    python benchmarks/clip_centre.py [--out docs/images/clip_centre.png]

RPPO with a window of 8 on CartPole-v1, 10 seeds, 100 iterations. The left picture shows the share of transitions of each age whose
surrogate no longer depends on the policy at the end of an update, averaged over iterations 20 to 100, for two step sizes; the right one
the returns.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from recollect import RPPO, CartPole, Steps, train

WINDOW, ITERATIONS, SEEDS = 8, 100, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/clip_centre.png"))
    out = parser.parse_args().out
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    print(
        "| clip around | step size | silenced, newest | silenced, oldest | mean return |\n|:--|--:|--:|--:|--:|"
    )
    for rate, style in ((1e-3, "--"), (1e-2, "-")):
        for centre, colour in (("one", "#0072B2"), ("current", "#D55E00")):
            algorithm = RPPO(window=WINDOW, learning_rate=rate, clip=0.2, clip_centre=centre)
            run = train(
                CartPole(),
                algorithm,
                collector=Steps(4, 64),
                seeds=SEEDS,
                iterations=ITERATIONS,
                progress=False,
            )
            silenced = np.nanmean(run.curves["silenced_by_age"][:, 20:], axis=(0, 1))
            returns = run.curves["recent_return"]
            known = np.isfinite(returns).all(0)  # after the first 20 episodes of every seed
            label = f"around {'1' if centre == 'one' else 'the current ratio'}, α = {rate:g}"
            left.plot(
                np.arange(WINDOW), 100 * silenced, style, color=colour, marker="o", markersize=3
            )
            right.plot(
                np.flatnonzero(known) + 1,
                returns[:, known].mean(0),
                style,
                color=colour,
                label=label,
            )
            print(
                f"| {centre} | {rate:g} | {silenced[0]:.1%} | {silenced[-1]:.1%} | {np.nanmean(run.curves['return_mean']):.1f} |"
            )
    left.set(
        title="silenced by the clip",
        xlabel="age of the batch, in iterations",
        ylabel="% of its transitions",
        ylim=(0, None),
    )
    right.set(
        title=f"CartPole-v1, {SEEDS} seeds",
        xlabel="iteration",
        ylabel="mean of the last 20 episodes",
        ylim=(0, None),
    )
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
