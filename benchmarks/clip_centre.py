"""Which samples PPO's clip silences, by age, if it is around 1 or around the current ratio.

    python benchmarks/clip_centre.py [--out docs/images/clip_centre.png]

The paper prints a clip around 1. RPPO with a window of 8 on CartPole-v1, 10 seeds, 100 iterations.
The left picture shows the share of transitions of each age whose surrogate no longer depends on the
policy at the end of an update, averaged over iterations 20 to 100, for two step sizes; the right
one the returns.
"""

import argparse
from pathlib import Path

import numpy as np

from recollect import RPPO, CartPole, Steps, train
from recollect.report.plot import COLOURS, panels, save
from recollect.report.tables import markdown

WINDOW = 8
ITERATIONS = 100
SEEDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images/clip_centre.png"))
    out = parser.parse_args().out
    figure, (left, right) = panels(1, 2, width=4.75, height=3.8)
    rows = []
    for rate, style in ((1e-3, "--"), (1e-2, "-")):
        for centre, colour in (("one", COLOURS[1]), ("current", COLOURS[3])):
            algorithm = RPPO(window=WINDOW, learning_rate=rate, clip=0.2, clip_centre=centre)
            run = train(
                CartPole(),
                algorithm,
                collector=Steps(4, 64),
                seeds=SEEDS,
                iterations=ITERATIONS,
                progress=False,
            )
            clipped = np.nanmean(run.curves["clip_fraction_by_age"][:, 20:], axis=(0, 1))
            returns = run.curves["recent_return"]
            known = np.isfinite(returns).all(0)  # after the first 20 episodes of every seed
            label = f"around {'1' if centre == 'one' else 'the current ratio'}, α = {rate:g}"
            ages = np.arange(WINDOW)
            left.plot(ages, 100 * clipped, style, color=colour, marker="o", markersize=3)
            iterations = np.flatnonzero(known) + 1
            right.plot(iterations, returns[:, known].mean(0), style, color=colour, label=label)
            mean = np.nanmean(run.curves["return_mean"])
            shares = (f"{clipped[0]:.1%}", f"{clipped[-1]:.1%}")
            rows.append((centre, f"{rate:g}", *shares, f"{mean:.1f}"))
    left.set(title="taken out by the clip", xlabel="age of the batch, in iterations")
    left.set(ylabel="% of its transitions", ylim=(0, None))
    right.set(title=f"CartPole-v1, {SEEDS} seeds", xlabel="iteration")
    right.set(ylabel="mean of the last 20 episodes", ylim=(0, None))
    right.legend(frameon=False, loc="lower right")
    save(figure, out)
    columns = ("clip around", "step size", "clipped, newest", "clipped, oldest", "mean return")
    print(*markdown(columns, rows), sep="\n")


if __name__ == "__main__":
    main()
