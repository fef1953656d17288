"""The experiment that predicts, before a run, what each window will gain.

A policy is trained without reuse for a while, and `recollect.theory.prediction` separates the parts
of its noise. This adds what a reader needs: a table by window, a verdict in words, a picture, and
on LQC, where it is known, the exact share beside the predicted one.
"""

import dataclasses
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from matplotlib.axes import Axes

from recollect.algorithms import NPG
from recollect.checks import check_count, check_name, check_number
from recollect.collect.compiled import Draws, Episodes
from recollect.envs import ENVIRONMENTS, LQC, AbstractEnv, AbstractOracle, make
from recollect.estimate.advantages import ExactAdvantages, Returns
from recollect.keys import stream
from recollect.policies.architecture import make_policy
from recollect.report.plot import COLOURS
from recollect.run.section5 import algorithm_1
from recollect.run.train import train
from recollect.theory.findings import Findings, panels
from recollect.theory.lqc import inverse_fisher_moments
from recollect.theory.prediction import (
    Prediction,
    check_batches,
    near_floor,
    noise_ratio,
    predict_gain,
)


@dataclasses.dataclass(frozen=True)
class Gain:
    """Predict, before a run, how much each window lowers the noise of the natural policy gradient.

    A policy is trained without reuse for some iterations; then fresh batches of it separate the
    noise that reuse averages away from the rest.
    """

    env: str = "LQC"
    """Name of the environment."""
    samples: int | None = None
    """Independent draws from the occupancy measure in a batch; 10 where the environment knows
    exact advantages, which draws need."""
    episodes: int | None = None
    """Whole episodes in a batch, with returns minus their mean as advantages; 4 where the
    environment knows no exact ones."""
    max_steps: int | None = None
    """Cut episodes after this many steps; the environment's own limit if not given."""
    damping: float = 0.01
    """ε, added to the diagonal of the Fisher matrix."""
    iterations: int = 100
    """Iterations of natural gradients, α = 0.01, before the policy is looked at; 0 for the policy
    that training starts from."""
    windows: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    """Windows to predict for."""
    gradient_batches: int = 64
    """Batches for gradients."""
    fisher_batches: int = 1024
    """Batches for Fisher matrices; fewer do where a batch is long."""
    seed: int = 0
    """Of training and of the batches."""

    def __post_init__(self):
        if self.env in gym.registry and self.env not in ENVIRONMENTS:
            raise ValueError(
                f"env={self.env!r} is stepped by Gymnasium, and the prediction needs a compiled "
                f"environment; choose from {', '.join(ENVIRONMENTS)}, or a finite MDP, NAME.npz."
            )
        if not self.env.endswith(".npz"):
            check_name("env", self.env, ENVIRONMENTS)
        if self.samples is not None and self.episodes is not None:
            raise ValueError(
                f"samples={self.samples} and episodes={self.episodes} exclude each other; "
                "choose one way to collect."
            )
        check_batches(self.gradient_batches, self.fisher_batches)
        for field in ("samples", "episodes", "max_steps"):
            if getattr(self, field) is not None:
                check_count(field, getattr(self, field))
        remedy = "give a number above 0, for example 0.01"
        check_number("damping", self.damping, low=0, open_low=True, remedy=remedy)
        remedy = "give a number of iterations, 0 for the first policy"
        check_number("iterations", self.iterations, low=0, remedy=remedy)
        if not self.windows:
            raise ValueError("windows=() is empty; give windows to predict for, for example 1 10.")
        for window in self.windows:
            check_count("windows", window, "give numbers of iterations to reuse")

    def run(self) -> Findings:
        """Train, predict from fresh batches, and compare with the exact share where it is known."""
        settings: dict[str, Any] = {} if self.max_steps is None else {"max_steps": self.max_steps}
        env = make(self.env, engine="compiled", **settings)
        assert isinstance(env, AbstractEnv)
        knows = isinstance(env, AbstractOracle)
        if self.samples is not None and not knows:
            raise ValueError(
                f"samples={self.samples} needs exact advantages, which {self.env} does not know; "
                "give episodes."
            )
        draws = knows and self.episodes is None
        collector = Draws(self.samples or 10) if draws else Episodes(self.episodes or 4)
        advantages = ExactAdvantages() if draws else Returns()
        discount = float(env.discount) if knows else NPG.discount
        algorithm = algorithm_1(damping=self.damping, advantages=advantages, discount=discount)
        policy = make_policy(stream(jax.random.key(self.seed), "policy"), env, None)
        if self.iterations:
            policy = train(
                env,
                algorithm,
                collector=collector,
                policy=policy,
                seeds=(self.seed,),
                iterations=self.iterations,
            ).policy()
        gain = predict_gain(
            env, policy, algorithm, collector, self.gradient_batches, self.fisher_batches, self.seed
        )
        exact = None
        # On LQC Σ₁ and Σ₂ are Σ_η times numbers (section 5.5), so the share is known.
        if isinstance(env, LQC) and isinstance(collector, Draws):
            first, second = inverse_fisher_moments(collector.samples, self.damping)
            exact = 1 - first**2 / second
        return Findings(
            self._rows(gain, exact),
            self._verdict(gain, exact),
            {"gain": self._picture(gain, exact)},
        )

    def _rows(self, gain: Prediction, exact: float | None):
        return [
            {
                "window": window,
                "noise if ∇η = 0": gain.limit.ratio(window),
                "95 % interval": gain.limit.ratio_interval(window),
                "exact": None if exact is None else noise_ratio(exact, window),
                "noise here": gain.here.ratio(window),
                "95 % interval here": gain.here.ratio_interval(window),
                "of what is to be had": 1 - 1 / window,
            }
            for window in self.windows
        ]

    def _verdict(self, gain: Prediction, exact: float | None) -> str:
        """The prediction in words."""
        limit = gain.limit
        here = gain.here
        last = max(self.windows)
        least, most = (near_floor(share) for share in limit.interval)
        low, high = limit.ratio_interval(last)
        stray = [f"{100 * share:.1f}" for share in gain.fisher_share]
        words = [
            f"{self.env}: where ∇η = 0, reuse averages away "
            f"{_percent(limit.share, limit.interval)} of the noise: with K = {last} it is "
            f"{limit.ratio(last):.3f} [{low:.3f}, {high:.3f}] of that without reuse, "
            f"and never below {limit.floor:.3f}.",
            "The law is floor + share/K, so K = 10 has 90 % of what is to be had in every problem; "
            "the noise is within 10 % of its floor "
            f"from K = {near_floor(limit.share)} on [{least}, {most}].",
            f"At this policy {stray[0]} to {stray[1]} % of the noise is Var(F̂⁻¹∇η), "
            f"which no window lowers, and reuse averages away "
            f"{_percent(here.share, here.interval)}.",
        ]
        if exact is not None:
            low, high = limit.interval
            covers = "covers" if low <= exact <= high else "misses"
            words.append(
                f"The exact share where ∇η = 0 is {_percent(exact)}: the interval {covers} it."
            )
        if gain.tail > 0.5:
            words.append(
                f"Single batches weigh heavily (tail index {gain.tail:.2f}, above 0.5), "
                "so the intervals may be too short; take more."
            )
        words.append(f"The prediction took {gain.environment_steps:,} environment steps.")
        return " ".join(words)

    def _picture(self, gain: Prediction, exact: float | None):
        """Noise against the window, and its parts at this policy."""
        figure, (left, right) = panels(1, 2)
        self._draw_ratios(left, gain, exact)
        _draw_parts(right, gain)
        return figure

    def _draw_ratios(self, axes: Axes, gain: Prediction, exact: float | None) -> None:
        windows = np.unique(np.geomspace(1, max(*self.windows, 10), 60))
        curves = (
            (gain.limit, "if ∇η = 0 (Theorem 2)", COLOURS[1], "-"),
            (gain.here, "at this policy", COLOURS[3], "--"),
        )
        for reusable, label, colour, line in curves:
            low, high = np.transpose([reusable.ratio_interval(window) for window in windows])
            ratios = [reusable.ratio(window) for window in windows]
            axes.plot(windows, ratios, color=colour, linestyle=line, label=label)
            axes.fill_between(windows, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.axhline(reusable.floor, color=colour, linestyle=":", linewidth=1)
        if exact is not None:
            ratios = [noise_ratio(exact, window) for window in self.windows]
            label = "exact if ∇η = 0"
            axes.plot(self.windows, ratios, "o", color=COLOURS[7], markersize=4, label=label)
        # The name is the user's and may hold dollars.
        axes.set_title(f"{self.env}: noise that adds up", parse_math=False)
        axes.set(xlabel="window K", ylabel="relative to K = 1", xscale="log", ylim=(0, 1.05))
        axes.set_xticks(self.windows, [str(window) for window in self.windows])
        axes.minorticks_off()
        axes.legend(frameon=False, loc="lower left")


def _draw_parts(axes: Axes, gain: Prediction) -> None:
    # Estimates of parts that vanish may be negative.
    parts = np.maximum([gain.gradient, gain.joint, gain.fisher], 0)
    shares = parts / parts.sum()
    names = ("gradient\nΣ₁/B", "both\nΣ₂/(KB)", "Fisher matrix\nVar(F̂⁻¹∇η)")
    colours = [COLOURS[0], COLOURS[4], COLOURS[0]]
    bars = axes.bar(names, shares, color=colours, width=0.6)
    axes.bar_label(bars, [_percent(share) for share in shares], padding=2)
    title = "parts at this policy, K = 1; reuse lowers the green one"
    axes.set(title=title, ylabel="share of the noise", ylim=(0, 1.05))
    axes.grid(visible=False, axis="x")


def _percent(share: float, interval: tuple[float, float] | None = None) -> str:
    ends = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * share:.1f} %{ends}"
