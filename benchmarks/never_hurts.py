"""Reuse that never hurts: rules of shares that decide for themselves, against no reuse.

    python benchmarks/never_hurts.py [--quick | --tuning] [--only TEXT] [--hours 8] [--budget]
        [--on ray --cluster auto]

Registered before the run. The claim: with `shares=RULE`, RPG (SGD and Adam), RNPG, RTRPO and RPPO
are never significantly worse than with a window of 1, and close to the best fixed window in
hindsight.

*Tasks.* Compiled, 40,960 steps and 30 seeds: CartPole-v1, Acrobot-v1, Pendulum-v1,
MountainCarContinuous-v0, InvertedPendulum-v5 (Gaussian), LQC, Chain, Garnets 0 to 5. On the host,
100,000 steps and 30 seeds, RTRPO and RPPO: Hopper-v5, HalfCheetah-v5, Walker2d-v5,
InvertedDoublePendulum-v5. Rules may be tuned on CartPole-v1, InvertedPendulum-v5, Garnets 0 to 2,
Hopper-v5 and HalfCheetah-v5 alone, with seeds from 1000 on (`--tuning`); reported are seeds 0 to
29.

*Arms.* The rule, with room for 16 batches and a critic fitted to 4; `K = 1` with all else equal
(and so the same critic); `K = 1, as many steps`, which takes the gradient steps of policy and
critic that a fixed window of 16 takes; the paper's window of 5 and of 20, with the critic of 4. (On
the host there is time for the rule, K = 1 and K = 5 alone.) All other settings are the defaults of
the algorithm, and γ is that of the task.

*The rule* is `LeastError()`, the others stand in the ablation. It was settled with tuning seeds on
CartPole-v1, InvertedPendulum-v5 and Garnet 0, but for one change when 35 cells were there: RPPO
swept over all rows of the chosen window, and so took more steps with more data; Acrobot-v1 had lost
by it (0.57 of K = 1, in regret), Pendulum-v1 gained (1.35). On tuning seeds as many steps on the
newest batch alone gained more than old data did, so that RPPO with this rule now takes the steps of
the newest batch, and its `persistence` is that of RPG. Its cells were run anew.

*Outcomes.* A curve is the mean return of the training episodes that ended within each fortieth of
the steps. Its mean is the area, that of its last quarter the final return. Ratios are of areas;
where returns may be negative, or a random policy has most of the return (the Garnets), of regrets
instead: what the curve stays below the largest mean over seeds that any arm of the cell reached in
any fortieth, K = 1 over the rule, so that above 1 is better everywhere. Intervals are 95 %
bootstrap intervals over seeds, which are drawn together, of the logarithm of the ratio of means.

*Bars.* Non-inferiority to K = 1: no cell (task and algorithm) has its interval wholly below
log 0.90; at least 90 % of the cells have their point above log 0.95; the mean over all cells has a
one-sided 95 % bound above log 0.97. Close to hindsight: the geometric mean over cells of the ratio
to the better of the windows of 1, 5 and 20 (chosen by mean area in each cell) is at least 0.95.
Negative controls, where a fixed window is known to lose: the interval of the difference to K = 1
contains 0 or lies above. Positive control: at least 80 % of the gain of the paper's RNPG with
K = 10 over K = 1, on both tasks of the paper. Price: the median update with the rule takes at most
1.3 times one with a fixed window of as many rows. Ablation on four tasks: all rules, James–Stein
with h = 1, β ≡ 0 and β ≡ 1.

Cells go to never_hurts.json beside this script as they are finished, a process for each core; what
is there is not run again. `--budget` prints what is missing and its estimated time. `--quick` runs
a few cells with two seeds, `--tuning` six seeds of the tasks that rules may be tuned on, into
files of their own.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from defaults import measured
from keep import kept, write
from variants import add_machines, on_machines

GARNETS = tuple(f"Garnet {number}" for number in range(6))
CLASSIC = (
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "InvertedPendulum-v5",
)
COMPILED = (*CLASSIC, "LQC", "Chain", *GARNETS)
HOST = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "InvertedDoublePendulum-v5")
TUNED_ON = ("CartPole-v1", "InvertedPendulum-v5", *GARNETS[:3], "Hopper-v5", "HalfCheetah-v5")
BY_REGRET = (
    *("Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "LQC", "HalfCheetah-v5"),
    *GARNETS,
)
"""Tasks whose returns may be negative, or are large for a random policy already."""
ALGORITHMS = ("rpg", "rpg sgd", "rnpg", "rtrpo", "rppo")
ON_HOST = ("rtrpo", "rppo")
RULES = ("least-error", "james-stein", "close", "cross-validated")
ONE = "K = 1"
STEPS_CONTROL = "K = 1, as many steps"
FIXED = ("K = 5", "K = 20")
ABLATION_TASKS = ("CartPole-v1", "InvertedPendulum-v5", "Garnet 0", "Acrobot-v1")
ABLATIONS = (*RULES, "james-stein, h = 1", "β = 0", "β = 1")
SGD_RATE = 1.0
"""Step size of RPG with SGD, for which there is no default: of 0.1, 0.3 and 1 the one at which VPG
learned most on CartPole-v1 (tuning seeds)."""
CAPACITY = 16
CRITIC_WINDOW = 4
STEPS = 40_960
PENDULUM_LONGER = 5
"""As many times the steps for the paper's pendulum, which learns for 500 iterations there."""
HOST_STEPS = 100_000
SEEDS = 30
TUNING_SEEDS = range(1000, 1006)
SECONDS = {"compiled": 80, "host": 1000}
"""Of a cell of 30 seeds on one core, roughly, until some are measured."""
RESAMPLES = 10_000
DATA = Path(__file__).with_suffix(".json")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is run."""

    seeds: Sequence[int]
    steps: int
    host_steps: int
    path: Path
    compiled: tuple[str, ...] = COMPILED
    host: tuple[str, ...] = HOST
    algorithms: tuple[str, ...] = ALGORITHMS
    controls: bool = True
    ablation: tuple[str, ...] = ABLATION_TASKS


SCALES = {
    "full": Scale(range(SEEDS), STEPS, HOST_STEPS, DATA),
    "tuning": Scale(
        TUNING_SEEDS,
        STEPS // 2,
        HOST_STEPS,
        DATA.with_name("never_hurts_tuning.json"),
        compiled=TUNED_ON[:5],
        host=(),
        algorithms=("rnpg", "rppo"),
        controls=False,
        ablation=(),
    ),
    "quick": Scale(
        range(1000, 1002),
        2_048,
        2_048,
        DATA.with_name("never_hurts_quick.json"),
        compiled=("Garnet 0",),
        host=(),
        algorithms=("rpg",),
        controls=False,
        ablation=(),
    ),
}


def with_arm(algorithm, arm: str):
    """The algorithm with what an arm changes."""
    from recollect import CrossValidated, JamesStein, LeastError, Uniform, WhileClose
    from recollect.algorithms.control import equal_steps_control, without_reuse

    rules: dict[str, Any] = {
        "least-error": LeastError(),
        "james-stein": JamesStein(),
        "close": WhileClose(),
        "cross-validated": CrossValidated(),
        "james-stein, h = 1": JamesStein(persistence=1.0),
        "β = 0": JamesStein(shrinkage=0.0),
        "β = 1": all_old(),
    }
    critic = CRITIC_WINDOW if algorithm.advantages.needs_critic else None
    own_critic = dict(critic_window=critic)
    if algorithm.critic.fit == "batch":
        own_critic = {}
    change = lambda **settings: dataclasses.replace(algorithm, **own_critic, **settings)
    if arm == ONE:
        return dataclasses.replace(without_reuse(algorithm), **own_critic)
    if arm == STEPS_CONTROL:
        return equal_steps_control(change(window=CAPACITY, shares=Uniform()), transitions=512)
    if arm.startswith("K = "):
        return change(window=int(arm.removeprefix("K = ")), shares=Uniform())
    return change(window=CAPACITY, shares=rules[arm])


def all_old():
    """β ≡ 1: all old rows alike, and the newest only where there are no others."""
    import jax.numpy as jnp

    import recollect as rc

    class AllOld(rc.AbstractShares):
        @property
        def in_newest_units(self):
            return True

        def __call__(self, evidence, memory):
            usable = jnp.where(evidence.effective_sample_size > 0, evidence.rows, 0)
            old = usable.at[0].set(0)
            chosen = jnp.where(old.any(), old, usable)
            return rc.ChosenShares(chosen / jnp.maximum(chosen.sum(), 1e-30))

    return AllOld()


def task_env(task: str):
    """The environment of a compiled or hosted task."""
    from recollect import garnet, make

    return garnet(seed=int(task.split()[1])) if task in GARNETS else make(task)


def chosen_settings(task: str, name: str):
    """The default settings of an algorithm, with what the task asks for; and its environment."""
    from recollect.policies.architecture import Architecture
    from recollect.run.presets import preset

    env = task_env(task)
    chosen = preset(name.split()[0], "default")
    changed: dict[str, Any] = {}
    if name == "rpg sgd":
        changed |= dict(optimizer="sgd", learning_rate=SGD_RATE)
    if task in ("LQC", "Chain", *GARNETS):
        changed |= dict(discount=float(env.discount))
    policy = Architecture(head="gaussian") if task == "InvertedPendulum-v5" else chosen.policy
    algorithm = dataclasses.replace(chosen.algorithm, **changed)
    return env, dataclasses.replace(chosen, algorithm=algorithm, policy=policy)


def paper_settings(task: str, name: str):
    """A case of the paper's section 5 in which a fixed window is known to gain or to lose."""
    from recollect import Episodes, make
    from recollect.paper.protocol import CARTPOLE, PENDULUM, PROTOCOLS
    from recollect.run.presets import Preset

    problem = CARTPOLE if task == CARTPOLE.env else PENDULUM
    optimizer = "adam" if "adam" in name else "sgd"
    protocol = PROTOCOLS[f"{optimizer}-gaussian" if "gaussian" in name else optimizer]
    algorithm = protocol.gradients()["RNPG" if "rnpg" in name else "RPG"]
    env = make(problem.env, max_steps=problem.max_steps)
    return env, Preset(algorithm, Episodes(protocol.episodes), protocol.policy(problem.policy))


def longer_steps(task: str, name: str):
    """Default settings with ten times the radius, with which old batches are far away."""
    env, chosen = chosen_settings(task, name.removesuffix(", δ × 10"))
    radius = 10 * chosen.algorithm.target_kl
    changed = dataclasses.replace(chosen.algorithm, target_kl=radius)
    return env, dataclasses.replace(chosen, algorithm=changed)


PAPER_TASKS = ("CartPole-v1", "InvertedPendulum-v5")
NEGATIVE = {
    **{f"{task}: paper rpg adam": "K = 10" for task in PAPER_TASKS},
    "InvertedPendulum-v5: paper rpg gaussian": "K = 10",
    "InvertedPendulum-v5: paper rpg gaussian adam": "K = 10",
    **{f"CartPole-v1: {name}, δ × 10": "K = 20" for name in ("rnpg", "rtrpo")},
    "CartPole-v1: rtrpo, long": "K = 100",
}
"""Cases by name, with the window that is known to lose there."""
POSITIVE = tuple(f"{task}: paper rnpg" for task in PAPER_TASKS)


def case_settings(case: str):
    """Environment and settings of "TASK: ALGORITHM"."""
    task, _, name = case.partition(": ")
    if name.startswith("paper "):
        return paper_settings(task, name.removeprefix("paper "))
    if name.endswith("δ × 10"):
        return longer_steps(task, name)
    return chosen_settings(task, name.removesuffix(", long"))


def run_cell(job: str) -> dict[str, Any]:
    """The figures of "SCALE | TASK: ALGORITHM | ARM"."""
    import jax

    scale_name, case, arm = job.split(" | ")
    scale = SCALES[scale_name]
    env, chosen = case_settings(case)
    chosen = dataclasses.replace(chosen, algorithm=with_arm(chosen.algorithm, arm))
    steps = scale.host_steps if case.partition(":")[0] in HOST else scale.steps
    if case.startswith("InvertedPendulum-v5: paper"):
        steps *= PENDULUM_LONGER
    try:
        return measured(env, chosen, scale.seeds, steps=steps)
    finally:
        jax.clear_caches()  # the next cell compiles programs of its own


def cells(scale: Scale) -> Iterator[tuple[str, str]]:
    """Cases and arms, what decides first."""
    compiled = [f"{task}: {name}" for task in scale.compiled for name in scale.algorithms]
    hosted = [f"{task}: {name}" for task in scale.host for name in ON_HOST]
    rules = RULES[:1] if scale.path == DATA else RULES
    for arms in ((ONE, *rules), FIXED):
        yield from ((case, arm) for case in compiled for arm in arms)
    if scale.controls:
        for case, window in (*NEGATIVE.items(), *((case, "K = 10") for case in POSITIVE)):
            yield from ((case, arm) for arm in (ONE, window, RULES[0]))
    yield from ((case, arm) for case in hosted for arm in (ONE, *rules, FIXED[0]))
    if scale.path == DATA:
        yield from ((case, STEPS_CONTROL) for case in compiled)
    for task in scale.ablation:
        yield from ((f"{task}: {name}", arm) for name in ("rnpg", "rppo") for arm in ABLATIONS)


def missing(scale: Scale, only: str) -> list[str]:
    """Cells that are not there yet, as "CASE | ARM"."""
    there = kept(scale.path)
    names = dict.fromkeys(f"{case} | {arm}" for case, arm in cells(scale))
    return [name for name in names if name not in there and only in name]


def budget(scale: Scale, names: Sequence[str]) -> str:
    """What the missing cells will take, from those that are there or, without any, a guess."""
    there = kept(scale.path)
    seconds = 0.0
    for kind, guess in SECONDS.items():
        hosted = lambda name: "host" if name.partition(":")[0] in HOST else "compiled"
        known = [one["seconds"] for name, one in there.items() if hosted(name) == kind]
        each = float(np.mean(known)) if known else guess * len(scale.seeds) / SEEDS
        seconds += each * sum(hosted(name) == kind for name in names)
    source = "measured cells" if there else "a guess"
    hours = seconds / 3600
    return (
        f"{len(names)} cells are missing: some {hours:.1f} hours of one core, {hours / 2:.1f} on "
        f"two, from {source}."
    )


def price(turns: int) -> list[str]:
    """Time of an update with a rule over one with a fixed window of as many rows, in turns."""
    from ages_in_use import updater

    from recollect import Steps
    from recollect.report.tables import markdown

    rows = []
    for name in ALGORITHMS:
        _, chosen = chosen_settings("CartPole-v1", name)
        make = lambda arm, chosen=chosen: with_arm(chosen.algorithm, arm)
        arms = [updater(make(arm), Steps(8, 64)) for arm in (f"K = {CAPACITY}", *RULES)]
        times = np.array([[arm() for arm in arms] for _ in range(turns)])
        ratios = np.quantile(times[:, 1:] / times[:, :1], [0.25, 0.5, 0.75], axis=0).T
        shown = [f"{middle:.2f} ({low:.2f} – {high:.2f})" for low, middle, high in ratios]
        rows.append((name, f"{1e3 * np.median(times[:, 0]):.1f}", *shown))
    return markdown((f"update, {CAPACITY} × 512 rows", "fixed, ms", *RULES), rows)


def report(scale: Scale) -> list[str]:
    """What the cells that are there say of every bar."""
    import bars

    cases = bars.cases_of(kept(scale.path), BY_REGRET)
    known = {f"{task}: {name}" for task in (*COMPILED, *HOST) for name in ALGORITHMS}
    usual = [case for case in cases if case.name in known]
    lines = []
    for rule in RULES:
        found = [
            *bars.non_inferiority(usual, rule, ONE),
            *bars.hindsight(usual, rule, (ONE, *FIXED)),
        ]
        lines += bars.section(f"{rule}: never worse than K = 1", found)
        lines += bars.section(f"{rule} over K = 1, areas", bars.grid(usual, rule, ONE))
    first = RULES[0]
    # RPPO takes the steps of K = 1 with the rule, and more in that control.
    matched = [case for case in usual if not case.name.endswith("rppo")]
    steps = bars.pooled(matched, first, STEPS_CONTROL)
    if steps is not None:
        point, bound = np.exp(steps)
        against = [f"Without RPPO: pooled ratio of areas {point:.3f}, one-sided bound {bound:.3f}."]
        lines += bars.section(f"{first} against as many steps without reuse", against)
    arms = (*RULES, *FIXED, *ABLATIONS[len(RULES) :])
    lines += bars.section("Ratios of areas to K = 1", bars.table(usual, arms, ONE))
    lines += bars.section("Negative controls", bars.negative(cases, NEGATIVE, first, ONE))
    return lines + bars.section("Positive control", bars.positive(cases, POSITIVE, first, ONE))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells with this text")
    parser.add_argument("--hours", type=float, default=8.0, help="begin no cell after so many")
    parser.add_argument("--quick", action="store_true", help="a smoke test: two seeds, few cells")
    parser.add_argument("--tuning", action="store_true", help="tuning seeds and tasks")
    parser.add_argument("--budget", action="store_true", help="say what is missing, run nothing")
    parser.add_argument("--price", action="store_true", help="time updates, run nothing else")
    add_machines(parser)
    options = parser.parse_args()
    name = "quick" if options.quick else "tuning" if options.tuning else "full"
    scale = SCALES[name]
    names = missing(scale, options.only)
    print(budget(scale, names), file=sys.stderr)
    if options.price:
        print(*price(turns=40), sep="\n")
        return
    if not options.budget:
        jobs = [f"{name} | {one}" for one in names]
        keep = lambda job, figures: write(scale.path, job.partition(" | ")[2], figures)
        on_machines(options, run_cell, jobs, keep, options.hours)
    print(*report(scale), sep="\n")


if __name__ == "__main__":
    main()
