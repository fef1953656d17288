"""Section 2.4 and Lemma 2: the bias and the variance of a gradient that reuses samples.

The bias vanishes with the step size; the variance may be lower than without reuse.

θ_n depends on the samples ξ_m, m < n, so that they are no longer draws from d^{π_m} once θ_n is
known. With ω = d^{π_n}/d^{π_m} this dependence is the only source of bias. The policy ratio
ω̂ = π_n/π_m adds another, as it leaves old states as they came: it estimates
E_{d^{π_m}(s) π_n(a|s)}[G] and not ∇η(θ_n), by a difference of order d^{π_m} − d^{π_n}, and so of
order θ_n − θ_m = O(α).

What is measured. Section 2.4 speaks of E[ · | θ_1], which no experiment can average over: θ_1 is
another number in every replication, and here, where samples are discrete, it determines them all.
So *bias* is E[ĝ_n − ∇η(θ_n)] over everything but θ_0, with ∇η(θ_n) exact in each replication, and
*variance* is the trace of the covariance of ĝ_n − ∇η(θ_n). How these deviations are computed, and
how most of their noise is taken from the bias, is in `recollect.theory.deviations`.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from recollect.algorithms import NPG
from recollect.checks import check_count, check_number
from recollect.envs import Tabular
from recollect.estimate.advantages import ExactAdvantages
from recollect.keys import numbered
from recollect.memory.weights import WEIGHT_RULES, Ratio
from recollect.policies import AbstractPolicy, tabular_softmax_policy
from recollect.report.plot import COLOURS
from recollect.run.section5 import algorithm_1
from recollect.runtime import one_blas_thread
from recollect.statistics import jackknife
from recollect.theory.deviations import (
    Deviations,
    advance,
    controlled,
    enumerate_first_batch,
    initial_states,
)
from recollect.theory.enumeration import check_outcomes, small_mdp
from recollect.theory.findings import Findings, panels
from recollect.theory.ode import check_replications, interval
from recollect.tree import traced_numbers

NAMES = {"occupancy": "ω", "policy": "ω̂"}
"""How tables and pictures write the ratios."""


@dataclasses.dataclass(frozen=True)
class Bias:
    """How large is the bias of reuse (section 2.4, Lemma 2)? Does reuse lower the variance?

    Lemma 2 says that the bias vanishes with the step size. On a chain of three states with exact
    advantages, from a policy that prefers the wrong way. *First K iterations* (two in section 2.4):
    K − 1 steps of size α from θ_0, then the estimate from all K batches. *Training*: steps of size
    α n^−β, and the estimate in every iteration, averaged over five stretches of n from 2K on. The
    example as printed, with one batch for gradient and Fisher matrix, is small enough to be
    enumerated: its bias is exact.
    """

    windows: tuple[int, ...] = (2, 5)
    """K, as many batches as an estimate is made from, itself included."""
    step_sizes: tuple[float, ...] = (0.001, 0.002, 0.004, 0.02, 0.1, 0.5)
    """α of the first K iterations. Powers of α are fitted to the smaller half."""
    step_size: float = 0.005
    """α of training; small, so that it is α_n that changes along the way and not the policy."""
    step_decay: float = 0.7
    """β of training."""
    iterations: int = 100
    """Of training."""
    samples: int = 5
    """B: independent draws from the occupancy measure in an iteration."""
    damping: float = 0.1
    """ε, added to the diagonal of the Fisher matrix."""
    independent_fisher: bool = True
    """A second batch for the Fisher matrix, as assumption A.1.7 asks; without it, one batch for
    both, as in the example of section 2.4."""
    replications: int = 2000
    """Over which means are taken."""
    env: Path | None = None
    """A finite MDP of your own in the place of the chain: a NumPy file with transitions, rewards,
    initial, discount."""
    seed: int = 0
    """Of the samples."""

    def __post_init__(self):
        remedy = "give at least 2, as nothing old is reused with less"
        for window in self.windows:
            check_count("windows", window)
            check_number("windows", window, low=2, remedy=remedy)
        if not self.windows or len(self.step_sizes) < 4:
            raise ValueError(
                f"windows={self.windows!r}, step_sizes={self.step_sizes!r}: "
                "give a window and at least 4 step sizes."
            )
        for field in ("step_sizes", "step_size", "damping"):
            values = getattr(self, field)
            for value in values if isinstance(values, tuple) else (values,):
                check_number(field, value, low=0, open_low=True, remedy="give a number above 0")
        remedy = "give a number above 0, so that step sizes differ"
        check_number("step_decay", self.step_decay, low=0, open_low=True, remedy=remedy)
        check_count("iterations", self.iterations)
        least = 4 * max(self.windows)
        remedy = f"give at least 4 times the largest window, {least}"
        check_number("iterations", self.iterations, low=least, remedy=remedy)
        check_count("samples", self.samples)
        check_outcomes(self.mdp, self.samples)
        check_replications(self.replications)

    @property
    def mdp(self) -> Tabular:
        """The MDP."""
        return small_mdp(self.env)

    @property
    def start(self) -> AbstractPolicy:
        """θ_0: the first action is preferred in every state.

        On the chain, where it leads left, it has probability 0.73.
        """
        prefer = jnp.where(jnp.arange(self.mdp.rewards.shape[1]) == 0, 0.5, -0.5)[:, None]
        return jax.tree.map(lambda θ: θ + prefer, tabular_softmax_policy(*self.mdp.rewards.shape))

    def algorithm(
        self,
        window: int,
        ratio: Ratio,
        step_size: float,
        step_decay: float,
        independent_fisher: bool,
    ) -> NPG:
        """RNPG with the settings of the experiment; numbers are traced, so that one program serves
        all step sizes."""
        algorithm = algorithm_1(
            window=window,
            fisher_window=1,
            independent_fisher=independent_fisher,
            damping=self.damping,
            discount=self.mdp.discount,
            objective_scale=True,
            advantages=ExactAdvantages(),
            weights=WEIGHT_RULES[ratio](),
            learning_rate=step_size,
            step_decay=step_decay,
        )
        return traced_numbers(algorithm)

    def simulate(self, algorithm: NPG, iterations: int) -> Deviations:
        """Deviations in every iteration from θ_0 on, with axes replication, iteration, d."""
        env = self.mdp
        key = jax.random.key(self.seed)
        steps = []
        states = initial_states(algorithm, env, self.start, self.samples, self.replications)
        for n in range(iterations):
            normal = jax.random.normal(numbered(key, n), (self.replications, 2, self.samples, 3))
            states, step = advance(algorithm, env, states, normal)
            steps.append(step)
        joined = lambda parts: np.stack(parts, axis=1).astype(float)
        return Deviations(*[joined(parts) for parts in zip(*steps, strict=True)])

    def enumerate(self, ratio: Ratio, step_size: float) -> tuple[Float[np.ndarray, " d"], int, int]:
        """Section 2.4 as printed, by enumeration.

        Returns:
            The exact bias of the old part at θ_1, how many values θ_1 takes, and how many outcomes
            the first batch has.
        """
        algorithm = self.algorithm(2, ratio, step_size, 0.0, False)
        θ, old, probabilities = enumerate_first_batch(algorithm, self.mdp, self.start, self.samples)
        # Equal up to rounding in single precision.
        values = np.unique(np.asarray(θ).round(5), axis=0)
        return np.asarray(probabilities @ old), len(values), len(old)

    def stretches(self, window: int) -> list[range]:
        """Five stretches of iterations n, from 2K to the last, of even length in log n."""
        edges = np.geomspace(2 * window, self.iterations + 1, 6).round().astype(int)
        return [range(low, high) for low, high in itertools.pairwise(edges)]

    def run(self) -> Findings:
        """Enumerate, simulate both parts for every window and ratio, and fit powers of α."""
        rows = []
        powers = {}
        # Powers of α are fitted to the smaller half of the step sizes.
        small = np.argsort(self.step_sizes)[: len(self.step_sizes) // 2]
        with one_blas_thread():
            exact = {
                ratio: [self.enumerate(ratio, α) for α in self.step_sizes]
                for ratio in get_args(Ratio)
            }
            for window, ratio in itertools.product(self.windows, get_args(Ratio)):
                enumerated = exact[ratio] if window == 2 else None
                first, first_samples = self._first(window, ratio, enumerated)
                training, training_samples = self._training(window, ratio)
                rows += first + training
                rates = [row["step_size"] for row in training]
                powers[window, ratio] = [
                    self._power(np.array(self.step_sizes)[small], first_samples[:, small]),
                    self._power(rates, training_samples),
                ]
        return Findings(rows, self._words(rows, powers, exact), {"bias": self._draw(rows)})

    def _first(self, window: int, ratio: Ratio, exact):
        """Rows of the first K iterations, and the samples of the bias by step size."""
        rows = []
        samples = []
        last = range(window, window + 1)
        for index, α in enumerate(self.step_sizes):
            algorithm = self.algorithm(window, ratio, α, 0.0, self.independent_fisher)
            run = self.simulate(algorithm, window)
            samples.append(controlled(run, window)[:, 0])
            bias = None if exact is None else float(np.linalg.norm(exact[index][0]))
            rows.append(self._row("first K", window, ratio, last, α, run, samples[-1], bias))
        return rows, np.stack(samples, axis=1)

    def _training(self, window: int, ratio: Ratio):
        """Rows of the stretches of training, and the samples of the bias by stretch."""
        algorithm = self.algorithm(
            window, ratio, self.step_size, self.step_decay, self.independent_fisher
        )
        run = self.simulate(algorithm, self.iterations)
        without_noise = controlled(run, window)
        stretches = self.stretches(window)
        # The first of them belongs to iteration n = K.
        samples = [without_noise[:, [n - window for n in stretch]].mean(1) for stretch in stretches]
        rate = lambda n: self.step_size * np.array(n, float) ** -self.step_decay
        rates = [float(np.mean(rate(stretch))) for stretch in stretches]
        parts = zip(stretches, rates, samples, strict=True)
        rows = [
            self._row("training", window, ratio, stretch, α, run, sample, None)
            for stretch, α, sample in parts
        ]
        return rows, np.stack(samples, axis=1)

    @staticmethod
    def _row(
        part,
        window,
        ratio,
        stretch,
        α,
        run: Deviations,
        samples: Float[np.ndarray, "replication d"],
        exact,
    ) -> dict:
        """The figures of a stretch of iterations. Biases are norms of vectors; the total is what
        remains of the old part beside a fresh one without bias."""
        bias, error = jackknife(lambda x: np.linalg.norm(x.mean(0)), samples)
        places = [n - 1 for n in stretch]
        variance = lambda x: float(x[:, places].var(0, ddof=1).sum(-1).mean())
        old = variance(run.old)
        fresh = variance(run.fresh)
        return dict(
            part=part,
            window=window,
            ratio=ratio,
            iteration=(float(stretch[0]), float(stretch[-1])),
            step_size=α,
            bias_old=bias,
            standard_error=error,
            enumerated=exact,
            bias_total=bias * (window - 1) / window,
            variance_old=old,
            variance_fresh=fresh,
            variance_total=variance((run.fresh + (window - 1) * run.old) / window),
            condition=old / (3 * fresh) if window == 2 else None,
        )

    @staticmethod
    def _power(rates, samples: Float[np.ndarray, "replication rate d"]) -> tuple[float, float]:
        """p of ‖bias‖ ∝ α^p, by least squares in logs, and its standard error."""
        log_bias = lambda x: np.log(np.linalg.norm(x.mean(0), axis=-1))
        return jackknife(lambda x: np.polyfit(np.log(rates), log_bias(x), 1)[0], samples)

    def _printed(self, exact) -> str:
        """‖bias‖ at the smallest and the largest step size."""
        ends = [int(np.argmin(self.step_sizes)), int(np.argmax(self.step_sizes))]
        return ", ".join(
            f"{np.linalg.norm(exact[r][i][0]):.2g} at α = {self.step_sizes[i]:g} ({NAMES[r]})"
            for r in exact
            for i in ends
        )

    def _words(self, rows, powers, exact) -> str:
        """What the rows and the fitted powers say."""
        show = lambda part: ", ".join(
            f"K={window} {NAMES[ratio]} [{low:.2f}, {high:.2f}]"
            for (window, ratio), fits in powers.items()
            for low, high in [interval(*fits[part])]
        )
        shrinks = lambda part: sum(interval(*fits[part])[0] > 0 for fits in powers.values())
        total = len(powers)
        words = [
            "First K iterations: for small α the old part's bias falls as α^p, p in\n"
            f"  {show(0)}; it falls for {shrinks(0)} of {total}.",
            "Training: against α_n the bias falls with p in\n"
            f"  {show(1)}; it falls for {shrinks(1)} of {total}.",
        ]
        two = [row for row in rows if row["condition"] is not None and row["part"] == "first K"]
        if two:
            worst = max(two, key=lambda row: row["condition"])
            lowers = "lowers" if worst["condition"] < 1 else "does not always lower"
            words += [
                f"Two iterations as printed, enumerated: bias {self._printed(exact)}.",
                f"Z'/(3 Var(G)/(4B)) is at most {worst['condition']:.2f} "
                f"(α = {worst['step_size']:g}, {NAMES[worst['ratio']]}): "
                f"reuse {lowers} the variance.",
            ]
        values, outcomes = exact["occupancy"][int(np.argmax(self.step_sizes))][1:]
        given = (
            "given θ_1 nothing of it is random and Z' as printed is 0"
            if values == outcomes
            else "given θ_1 some of it is still random"
        )
        words.append(
            f"θ_1 takes {values} values for {outcomes} outcomes of the first batch: {given}."
        )
        return "\n".join(words)

    def _draw(self, rows):
        """Bias against the step size, variance along training, and section 2.4's condition."""
        figure, (first, training, variance, condition) = panels(2, 2)
        for window, colour in zip(self.windows, COLOURS[1:], strict=False):
            for ratio, marker, line in (("occupancy", "o", "-"), ("policy", "D", "--")):
                label = f"K = {window}, {NAMES[ratio]}"
                style: dict[str, Any] = dict(
                    color=colour,
                    marker=marker,
                    linestyle=line,
                    markerfacecolor="none" if marker == "D" else colour,
                    markersize=5,
                    label=label,
                )
                early = _columns(rows, part="first K", window=window, ratio=ratio)
                late = _columns(rows, part="training", window=window, ratio=ratio)
                for axes, part in ((first, early), (training, late)):
                    errors = 1.96 * part["standard_error"]
                    axes.errorbar(part["step_size"], part["bias_old"], errors, capsize=2, **style)
                middle = np.sqrt(np.prod(late["iteration"], axis=1))
                shares = late["variance_total"] / late["variance_fresh"]
                variance.plot(middle, shares, **style)
                if window == 2:
                    cross = "x" if marker == "o" else "+"
                    printed = f"as printed, {NAMES[ratio]}"
                    α = early["step_size"]
                    first.plot(α, early["enumerated"], cross, color="black", label=printed)
                    condition.plot(α, early["condition"], **style)
        self._finish_biases(first, training, rows)
        self._finish_variances(variance, condition)
        return figure

    def _finish_biases(self, first: Axes, training: Axes, rows) -> None:
        """Guides, titles and scales of the upper panels."""
        for axes, part in ((first, "first K"), (training, "training")):
            columns = _columns(rows, part=part)
            α = np.sort(columns["step_size"])[[0, -1]]
            guide = columns["bias_old"].min() * 0.6 * α / α[0]
            axes.plot(α, guide, ":", color="black", label="∝ α")
            axes.set(xscale="log", yscale="log", ylabel="‖bias‖ of the old part")
        first.set(title="First K iterations, constant step", xlabel="step size α")
        first.legend(frameon=False, fontsize=8, ncols=2, loc="lower right")
        title = f"Training, $α_n$ = {self.step_size:g} $n^{{-{self.step_decay:g}}}$"
        training.set(title=title, xlabel="step size $α_n$")
        training.tick_params(axis="x", which="minor", labelbottom=False)

    def _finish_variances(self, variance: Axes, condition: Axes) -> None:
        """Guides, titles and scales of the lower panels."""
        above = "above, reuse raises the variance"
        variance.axhline(1, color="black", linewidth=1)
        title = "Training: variance with reuse / without"
        variance.set(title=title, xlabel="iteration n", xlim=(0, self.iterations), ylim=(0, 1.1))
        variance.text(self.iterations, 1.03, above, fontsize=8, ha="right")
        condition.axhline(1, color="black", linewidth=1)
        condition.axhline(1 / 3, color="black", linewidth=1, linestyle=":")
        title = "Two iterations: Z′ / (3 Var(G) / 4B)"
        condition.set(title=title, xlabel="step size α", xscale="log", ylim=(0, 1.1))
        condition.text(min(self.step_sizes), 1.03, above, fontsize=8)
        for axes in (variance, condition):
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.9))


def _columns(rows, **chosen) -> dict[str, np.ndarray]:
    """The columns of the rows that have the chosen values."""
    some = [row for row in rows if all(row[name] == value for name, value in chosen.items())]
    return {name: np.array([row[name] for row in some]) for name in some[0]}
