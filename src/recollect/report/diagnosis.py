"""What the curves of a run say, in plain words: one small function for each rule.

A rule looks at the run and returns a finding or None. Its threshold is a constant beside it with
the reason for it. Rules look at the second half of a run where the beginning would mislead.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from recollect.refusals import REFUSALS, SIGNAL
from recollect.report.reading import Run
from recollect.statistics import mean_interval


@dataclasses.dataclass(frozen=True)
class Finding:
    """A sentence about a run, and what follows from it."""

    kind: Literal["good", "note", "warning"]
    says: str
    advice: str = ""


def diagnose(run: Run) -> list[Finding]:
    """All that the rules find in a run, warnings first.

    Args:
        run: finished or not.
    """
    if not run.iterations:
        return [Finding("note", "No iteration has finished yet.")]
    found = [finding for rule in RULES if (finding := rule(run)) is not None]
    return sorted(found, key=lambda one: ("warning", "good", "note").index(one.kind))


def unfinished(run: Run) -> Finding | None:
    """The run has not met its limit."""
    if run.planned is None or run.iterations >= run.planned:
        return None
    says = f"The files hold {run.iterations:,} of {run.planned:,} iterations."
    return Finding("note", says, "It goes on, was stopped, or met another limit.")


def progress(run: Run) -> Finding | None:
    """Whether the return rose: the interval of the gain over seeds does not hold zero."""
    first, last = _first_returns(run), run.final_returns()
    gain, low, high = mean_interval(last - first)
    if not np.isfinite(gain) or not np.isfinite(low):
        return None
    span = f"from {np.nanmean(first):.4g} to {np.nanmean(last):.4g}"
    interval = f"95 % interval of the difference {low:+.4g} to {high:+.4g}"
    if low > 0:
        return Finding("good", f"The return rose {span} ({interval}).")
    if high < 0:
        return Finding("warning", f"The return fell {span} ({interval}).", "Try shorter steps.")
    return Finding(
        "note",
        f"No clear progress: the return went {span} ({interval}).",
        "More iterations or seeds would tell.",
    )


COLLAPSE = 0.25
"""Of what was gained: a fall by less is common from one tenth of a run to the next."""


def collapse(run: Run) -> Finding | None:
    """The return has fallen from its best by a good part of what was gained."""
    mean = mean_interval(run.curves["return_mean"])[0]
    mean = mean[np.isfinite(mean)]
    tenth = max(1, run.iterations // 10)
    if len(mean) < 2 * tenth or len(mean) < 4:
        return None
    smooth = np.convolve(mean, np.ones(tenth) / tenth, "valid")
    best, first, last = smooth.max(), smooth[0], smooth[-1]
    if best <= first or best - last <= COLLAPSE * (best - first):
        return None
    place = int(smooth.argmax()) + tenth
    return Finding(
        "warning",
        f"The return was {best:.4g} around iteration {place} and is {last:.4g} now: "
        f"{_percent((best - last) / (best - first))} of the gain is lost.",
        "Shorter steps (learning_rate, target_kl) or more transitions an update may keep it; "
        "`Evaluate` keeps the best agent.",
    )


LITTLE = 0.1
"""Share of its transitions: a batch that counts for less adds less than a tenth of its work."""
THIN = 0.2
"""Share of the window: below it, four of five stored transitions are work without a use."""


def reuse_reach(run: Run) -> Finding | None:
    """Up to which age batches still count, where the window as a whole counts for little."""
    if run.window < 2 or run.ess_share is None or run.ess_share_by_age is None:
        return None
    share = _late(run.ess_share)
    ages = _late_by_age(run.ess_share_by_age)
    weak = np.flatnonzero(ages < LITTLE)
    if not share < THIN or not weak.size:
        return None
    reach = max(1, int(weak[0]))
    return Finding(
        "warning",
        f"At K = {run.window} the effective sample size is {_percent(share)} of the window: "
        f"reuse beyond {reach} {'iteration' if reach == 1 else 'iterations'} adds little.",
        f"window={reach} would cost less and lose little; shorter steps would let more be reused.",
    )


FRESH = 0.8
"""Share of its transitions: above it, the oldest batch is nearly as good as a new one."""


def longer_window(run: Run) -> Finding | None:
    """Even the oldest batches hardly lose anything."""
    if run.window < 2 or run.ess_share_by_age is None:
        return None
    ages = _late_by_age(run.ess_share_by_age)
    if len(ages) < run.window or not ages[-1] > FRESH:
        return None
    return Finding(
        "good",
        f"Batches of {run.window - 1} iterations ago still keep {_percent(ages[-1])} of their "
        "effective sample size.",
        "A longer window may reduce the noise further at no cost in steps.",
    )


HEAVY = 20.0
"""Times the average: few transitions with such weights decide the gradient."""


def heavy_weights(run: Run) -> Finding | None:
    """A single transition counts for many."""
    if "max_weight" not in run.curves or run.window < 2:
        return None
    largest = _late(run.curves["max_weight"], np.nanmedian)
    if not largest > HEAVY:
        return None
    return Finding(
        "warning",
        f"The largest importance weight is {largest:,.3g} in the typical update of the second "
        "half: few old transitions decide the gradient.",
        "A truncated rule (PolicyRatio(truncate=…)), a shorter window or shorter steps help.",
    )


OFTEN = 0.5
"""Share of updates: what happens in more than half of them is the rule, no exception."""


def line_search(run: Run) -> Finding | None:
    """The line search shortens most steps."""
    if "backtracks" not in run.curves:
        return None
    share = _share(run, run.curves["backtracks"] > 0)
    if not share > OFTEN:
        return None
    return Finding(
        "warning",
        f"The step was cut by the line search in {_percent(share)} of updates.",
        "The quadratic model promises too much: more damping, or a smaller target_kl.",
    )


def bounded_step(run: Run) -> Finding | None:
    """The bound on the KL shortens most steps of a natural gradient."""
    if run.algorithm.get("kind") != "NPG" or "step_length" not in run.curves:
        return None
    share = _share(run, run.curves["step_length"] < 1)
    if not share > OFTEN:
        return None
    return Finding(
        "note",
        f"target_kl shortened the step in {_percent(share)} of updates: it, not learning_rate, "
        "decides how far the policy moves.",
    )


UNUSED = 0.1
"""Of the radius: a trust region ten times larger than the steps in it decides nothing."""


def unused_radius(run: Run) -> Finding | None:
    """Steps stay far inside the trust region."""
    radius = run.algorithm.get("target_kl")
    if not isinstance(radius, int | float) or radius <= 0 or "kl" not in run.curves:
        return None
    accepted = np.where(run.curves["refused"] == 0, run.curves["kl"], np.nan)
    part = _late(accepted, np.nanmedian) / radius
    if not part < UNUSED:
        return None
    return Finding(
        "note",
        f"The typical step uses {_percent(part)} of the KL that target_kl={radius:g} allows.",
        "Something else limits it: learning_rate, max_length, or a gradient that is nearly zero.",
    )


BEYOND = 1.5
"""Times the radius: the KL is measured on the newest batch, the radius may be held on others."""
SOMETIMES = 0.1
"""Share of updates that is too much for something that should not happen at all."""


def beyond_radius(run: Run) -> Finding | None:
    """Steps go further than the trust region allows."""
    radius = run.algorithm.get("target_kl")
    if not isinstance(radius, int | float) or radius <= 0 or "kl" not in run.curves:
        return None
    share = _share(run, run.curves["kl"] > BEYOND * radius)
    if not share > SOMETIMES:
        return None
    return Finding(
        "warning",
        f"The KL is above {BEYOND:g} times target_kl={radius:g} in {_percent(share)} of updates.",
        "Fewer epochs, a smaller learning_rate or a smaller radius hold it.",
    )


INEXACT = 0.1
"""Relative residual: the direction may then point a tenth of its length elsewhere."""


def inexact_solver(run: Run) -> Finding | None:
    """The system of the natural gradient is solved badly."""
    if "solver_residual" not in run.curves:
        return None
    share = _share(run, run.curves["solver_residual"] > INEXACT)
    if not share > SOMETIMES:
        return None
    return Finding(
        "warning",
        f"The solver left a residual above {INEXACT:g} in {_percent(share)} of updates.",
        "Give it more steps (max_steps), a preconditioner of more rows, or more damping.",
    )


def refused_updates(run: Run) -> Finding | None:
    """Updates that left the policy as it was."""
    refused = run.curves.get("refused")
    if refused is None:
        return None
    share = _share(run, (refused > 0) & (refused != SIGNAL))
    if not share > SOMETIMES:
        return None
    reasons = refused[(refused > 0) & (refused != SIGNAL)].astype(int)
    usual = int(np.bincount(reasons).argmax())
    return Finding(
        "warning", f"{_percent(share)} of updates were refused, mostly as {reason(usual)}."
    )


def no_signal(run: Run) -> Finding | None:
    """Batches in which all rewards were alike."""
    refused = run.curves.get("refused")
    if refused is None:
        return None
    share = _share(run, refused == SIGNAL)
    if not share > SOMETIMES:
        return None
    return Finding(
        "note",
        f"{_percent(share)} of updates found no signal: all rewards of their batches were alike.",
        "The task is solved, or rewards are so rare that a batch has to be larger to hold one.",
    )


BLIND = 0.1
"""Of the variance of its targets: such a critic reduces the noise hardly more than none."""


def blind_critic(run: Run) -> Finding | None:
    """The critic explains next to nothing of the returns."""
    if "explained_variance" not in run.curves:
        return None
    explained = _late(run.curves["explained_variance"], np.nanmedian)
    if not explained < BLIND:
        return None
    return Finding(
        "warning" if explained < 0 else "note",
        f"The critic explains {_percent(max(explained, 0.0))} of the variance of its targets.",
        "A larger learning_rate or more epochs of the critic may help; in a solved task there is "
        "little left to explain.",
    )


RULES: tuple[Callable[[Run], Finding | None], ...] = (
    progress,
    collapse,
    reuse_reach,
    longer_window,
    heavy_weights,
    line_search,
    bounded_step,
    unused_radius,
    beyond_radius,
    inexact_solver,
    refused_updates,
    no_signal,
    blind_critic,
    unfinished,
)


def reason(code: int) -> str:
    """Why an update was refused; a run of another version may know others."""
    return REFUSALS[code] if 0 < code < len(REFUSALS) else f"reason {code}"


def _first_returns(run: Run) -> np.ndarray:
    """Every seed's mean return over its first tenth of the iterations."""
    tenth = max(1, run.iterations // 10)
    rows = [row[np.isfinite(row)] for row in run.curves["return_mean"]]
    # With fewer iterations than two tenths, first and last would be the same.
    return np.array([row[:tenth].mean() if row.size > tenth else np.nan for row in rows])


def _late(curve: np.ndarray, statistic: Callable[..., Any] = np.nanmean) -> float:
    """A statistic over all seeds and the second half of a run; NaN if there is nothing."""
    late = curve[:, curve.shape[1] // 2 :]
    return float(statistic(late)) if np.isfinite(late).any() else np.nan


def _late_by_age(curve: np.ndarray) -> np.ndarray:
    """Means over seeds and the second half for each age, up to the oldest that there was."""
    ages = [_late(curve[:, :, age]) for age in range(curve.shape[2])]
    return np.array([share for share in ages if np.isfinite(share)])


def _share(run: Run, happened: np.ndarray) -> float:
    """Share of the updates that took place in which something happened."""
    return float(happened.sum() / max(np.isfinite(run.curves["environment_steps"]).sum(), 1))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else "less than 1 %"
