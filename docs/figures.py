"""The six pictures of docs/reuse.md, into docs/images/reuse/.

    python docs/figures.py [weights_by_age effective_sizes climbing too_long remedies bias]

The first three are runs of CartPole-v1 with settings of the paper and of `RTRPO`; the others are
linear quadratic control (`recollect.theory.lqc`), where everything is an integral over one
variable. Four minutes of processor time, most of it compiling and the runs with a window of 50.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import matplotlib
import numpy as np
from scipy.stats import norm

import recollect as rc
from recollect.memory.rows import recall
from recollect.report.plot import COLOURS, panels, save
from recollect.theory.lqc import advantage, return_gradient, score

OUT = Path(__file__).parent / "images" / "reuse"
ENV = rc.CartPole(max_steps=200)
PAPER = rc.preset("rnpg", "paper")
WINDOW = 20
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
DISCOUNT = 0.5


def paper(**settings) -> rc.NPG:
    """RNPG with the settings of the paper, but for some."""
    own = {name: getattr(PAPER.algorithm, name) for name in vars(PAPER.algorithm)}
    return rc.NPG(**{**own, **settings})


def weights_by_age() -> None:
    """Quantiles of the weights of every age in one run, for two step sizes."""
    figure, axes = panels(1, 2, width=4.2, height=3.2)
    for one, rate in zip(axes, (0.01, 0.1), strict=True):
        weights = _weights(paper(window=WINDOW, learning_rate=rate), iterations=40)
        ages = np.arange(WINDOW)
        spread = np.array([np.quantile(of_age, LEVELS) for of_age in weights])
        one.fill_between(ages, spread[:, 0], spread[:, 4], color=COLOURS[3], alpha=0.2)
        one.fill_between(ages, spread[:, 1], spread[:, 3], color=COLOURS[3], alpha=0.4)
        one.plot(ages, spread[:, 2], color=COLOURS[3])
        one.set(title=f"step size {rate:g}", xlabel="age of the batch", yscale="log")
        one.axhline(1, color="0.5", linewidth=0.8)
        one.set(ylim=(0.01, 10), xticks=range(0, WINDOW, 5))
    axes[0].set(ylabel="importance weight ω")
    save(figure, OUT / "weights.svg")


def _weights(algorithm: rc.NPG, iterations: int) -> list[np.ndarray]:
    """Weights of the stored transitions, by age, after some iterations of one seed."""
    key = jax.random.key(0)
    policy = PAPER.policy.build(key, ENV)
    collect = eqx.filter_jit(lambda key, policy: PAPER.collector(key, ENV, policy, None, 0.99)[1])
    update = eqx.filter_jit(lambda state, rollout, key: algorithm.update(state, rollout, key)[0])
    state = algorithm.init(policy, collect(key, policy).batch, key)
    for number in range(iterations):
        own = jax.random.fold_in(key, number)
        state = update(state, collect(own, state.policy), own)
    rows = recall(state.history, state.policy, algorithm.weights)
    ages = np.where(rows.view.mask, rows.view.age, -1)
    return [np.asarray(rows.weights)[ages == age] for age in range(WINDOW)]


def effective_sizes() -> None:
    """What each age of the window is worth, for three radii of the trust region."""
    figure, (one,) = panels(1, 1, width=6.0, height=3.4)
    for radius, colour in zip((0.001, 0.005, 0.02), COLOURS[1:], strict=False):
        algorithm = rc.RTRPO(window=WINDOW, target_kl=radius)
        run = rc.train(ENV, algorithm, collector=rc.Steps(8, 64), seeds=4, iterations=40)
        worth = run.curves["ess_by_age"][:, WINDOW:].mean((0, 1))
        one.plot(100 * worth / worth[0], color=colour, label=f"radius {radius:g}")
        print(f"radius {radius}: age {WINDOW - 1} is worth {worth[-1] / worth[0]:.2f}")
    one.set(xlabel="age of the batch", ylabel="% of the newest batch", ylim=(0, 102))
    one.legend(frameon=False)
    save(figure, OUT / "worth.svg")


def climbing() -> None:
    """Returns and lengths of the direction with windows of 1, 10 and 50."""
    figure, (left, right) = panels(1, 2, width=4.2, height=3.2)
    for window, colour in zip((1, 10, 50), COLOURS[1:], strict=False):
        run = rc.train(
            ENV, paper(window=window), collector=PAPER.collector, seeds=10, iterations=60
        )
        iterations = np.arange(60) + 1
        label = f"K = {window}"
        left.plot(iterations, run.curves["return_mean"].mean(0), color=colour, label=label)
        lengths = np.median(run.curves["direction_norm"], 0)
        right.plot(iterations, lengths, color=colour)
        print(
            f"K = {window}: return {run.curves['return_mean'].mean():.1f}, "
            f"direction {np.median(run.curves['direction_norm'][:, 10:30]):.1f}"
        )
    left.set(title="mean return, 10 seeds", xlabel="iteration", ylim=(0, 200))
    right.set(title="length of the direction, median", xlabel="iteration", ylim=(0, None))
    left.legend(frameon=False)
    save(figure, OUT / "climbing.svg")


GRID = np.linspace(-12, 14, 26_001)
SPACING = GRID[1] - GRID[0]
SHIFT = 1.0
"""θ of the current policy."""
BATCH = 20


def terms(shift: float) -> np.ndarray:
    """G = A ∇log π/(1 − γ) of every X of the grid."""
    return advantage(shift, GRID, 0.0) * score(shift, GRID, 0.0) / (1 - DISCOUNT)


def policy_ratio(old: np.ndarray, shares: np.ndarray, most: float = np.inf) -> np.ndarray:
    """ω of the policy ratio, one row for each age, on the grid."""
    log_ratio = norm.logpdf(GRID, SHIFT) - norm.logpdf(GRID, old[:, None])
    return np.minimum(np.exp(np.minimum(log_ratio, 50)), most)


def mixture(old: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """ω of the mixture, the same for all ages."""
    together = shares @ norm.pdf(GRID, old[:, None])
    ratio = norm.pdf(GRID, SHIFT) / np.maximum(together, 1e-300)
    return np.broadcast_to(ratio, (len(old), len(GRID)))


def squared_error(rule: Callable, old: np.ndarray, shares: np.ndarray) -> float:
    """Mean squared error of the reused gradient at fixed parameters."""
    weighed = rule(old, shares) * terms(SHIFT)
    density = norm.pdf(GRID, old[:, None]) * SPACING
    means = (weighed * density).sum(1)
    variances = (weighed**2 * density).sum(1) - means**2
    bias = shares @ means - return_gradient(SHIFT, DISCOUNT)
    return float(shares**2 @ variances / BATCH + bias**2)


def worth(old: np.ndarray) -> np.ndarray:
    """Effective sample size of a transition by age: 1 / E[ω²] = exp(−(θ_j − θ)²)."""
    return np.exp(-((old - SHIFT) ** 2))


def older(kl: float, window: int) -> np.ndarray:
    """Parameters of the last policies, each step of the same KL."""
    return SHIFT + np.sqrt(2 * kl) * np.arange(window)


WINDOWS = np.arange(1, 41)
STEPS = (0.0005, 0.005, 0.05)


def too_long() -> None:
    """Error of the reused gradient over that of the newest batch, against the window."""
    figure, (one,) = panels(1, 1, width=6.0, height=3.6)
    alone = squared_error(policy_ratio, older(0, 1), np.ones(1))
    for kl, colour in zip(STEPS, COLOURS[1:], strict=False):
        uniform = lambda window: np.full(window, 1 / window)
        errors = [squared_error(policy_ratio, older(kl, k), uniform(k)) / alone for k in WINDOWS]
        one.plot(WINDOWS, errors, color=colour, label=f"KL of a step {kl:g}")
        print(f"KL {kl}: least error {min(errors):.3f} at K = {WINDOWS[np.argmin(errors)]}")
    one.plot(WINDOWS, 1 / WINDOWS, "--", color="0.5", label="K fresh batches")
    one.axhline(1, color="0.5", linewidth=0.8)
    one.set(xlabel="window K", ylabel="squared error / newest batch alone")
    one.set(xscale="log", yscale="log", ylim=(0.02, 5))
    one.legend(frameon=False)
    save(figure, OUT / "too_long.svg")


def remedies() -> None:
    """The same at one step, with bounded weights and with shares by effective size."""
    kl = STEPS[2]
    figure, (left, right) = panels(1, 2, width=4.4, height=3.4)
    alone = squared_error(policy_ratio, older(0, 1), np.ones(1))
    even = lambda old: np.full(len(old), 1 / len(old))
    by_size = lambda old: worth(old) / worth(old).sum()
    truncated = lambda old, shares: policy_ratio(old, shares, most=2.0)
    arms = {
        "policy ratio": (policy_ratio, even),
        "truncated at 2": (truncated, even),
        "mixture": (mixture, even),
        "shares by effective size": (policy_ratio, by_size),
    }
    for (label, (rule, shares)), colour in zip(arms.items(), COLOURS[1:], strict=False):
        old = [older(kl, window) for window in WINDOWS]
        errors = [squared_error(rule, one, shares(one)) / alone for one in old]
        left.plot(WINDOWS, errors, color=colour, label=label)
        print(f"{label}: {errors[7]:.3f} at K = 8, {errors[-1]:.3f} at K = 40")
    left.axhline(1, color="0.5", linewidth=0.8)
    left.set(xlabel="window K", ylabel="squared error / newest batch alone")
    left.set(xscale="log", yscale="log", ylim=(0.05, 5))
    left.legend(frameon=False, fontsize="small")
    for step, colour in zip(STEPS, COLOURS[1:], strict=False):
        right.plot(worth(older(step, 40)), color=colour, label=f"KL of a step {step:g}")
    right.set(xlabel="age of the batch", ylabel="effective share", ylim=(0, 1.02))
    right.legend(frameon=False, fontsize="small")
    save(figure, OUT / "remedies.svg")


RATES = np.array([0.0003, 0.001, 0.003, 0.01])
REPLICATIONS = 400_000


def bias() -> None:
    """Bias of the reused half of a gradient, which its own samples have moved to where it is."""
    draws = np.random.default_rng(0).standard_normal((REPLICATIONS, 5)) + SHIFT
    gradient = lambda shift: advantage(shift, draws, 0.0) * score(shift, draws, 0.0) / 0.5
    first = gradient(SHIFT)
    # First-order terms of zero mean, taken off to lower the noise of the estimate.
    estimates = []
    for rate in RATES:
        now = SHIFT + rate * first.mean(1, keepdims=True)
        ratio = np.exp(norm.logpdf(draws, now) - norm.logpdf(draws, SHIFT))
        error = (ratio * gradient(now)).mean(1) - return_gradient(now[:, 0], DISCOUNT)
        error -= first.mean(1) - return_gradient(SHIFT, DISCOUNT)
        estimates.append((error.mean(), error.std() / np.sqrt(REPLICATIONS)))
    means, errors = np.abs(np.array(estimates)).T
    for rate, mean, error in zip(RATES, means, errors, strict=True):
        print(f"step {rate}: bias {mean:.4f} ± {error:.4f}")
    figure, (one,) = panels(1, 1, width=6.0, height=3.4)
    one.errorbar(RATES, means, 1.96 * errors, fmt="o", color=COLOURS[3], label="reused batch")
    one.plot(RATES, means[1] * RATES / RATES[1], "--", color="0.5", label="∝ step size")
    one.set(xlabel="step size α", ylabel="|bias|", xscale="log", yscale="log")
    one.legend(frameon=False)
    save(figure, OUT / "bias.svg")


PICTURES = (weights_by_age, effective_sizes, climbing, too_long, remedies, bias)


def main() -> None:
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # the same files from the same numbers
    matplotlib.rcParams["svg.hashsalt"] = "recollect"
    OUT.mkdir(parents=True, exist_ok=True)
    for draw in PICTURES if not sys.argv[1:] else [globals()[name] for name in sys.argv[1:]]:
        draw()


if __name__ == "__main__":
    main()
