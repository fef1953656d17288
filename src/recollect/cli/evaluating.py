"""`recollect eval RUN`: returns of what a run has learned, in whole episodes."""

from pathlib import Path

import numpy as np
from rich.table import Table

from recollect.agent.evaluate import Evaluation, evaluate
from recollect.cli.fields import load_classes
from recollect.cli.flags import Eval, parse
from recollect.cli.plan import given_env
from recollect.cli.shared import console
from recollect.policies import AbstractPolicy
from recollect.report.curves import runs_in
from recollect.run.config import RunConfig
from recollect.run.folder import BEST, RunFolder, read_config
from recollect.run.snapshot import Snapshot
from recollect.serial import to_json, write_csv
from recollect.statistics import Estimate, bootstrap
from recollect.tree import at_index

EVALUATION = "evaluation.csv"


def eval(flags: list[str], words: list[str]) -> int:
    """`recollect eval RUN`."""
    del words
    asked, _ = parse(Eval, flags, "recollect eval")
    runs = {asked.run.stem: asked.run} if asked.run.is_file() else runs_in(asked.run)
    learned = {name: _learned(asked, path) for name, path in runs.items()}
    found = {
        name: {
            seed: evaluate(
                policy,
                config.env,
                episodes=asked.episodes,
                seed=asked.seed,
                deterministic=not asked.stochastic,
            )
            for seed, policy in policies.items()
        }
        for name, (config, policies) in learned.items()
    }
    out = console(stderr=asked.json)
    out.print(_table(found))
    kind = "stochastic" if asked.stochastic else "deterministic"
    out.print(f"{asked.episodes} {kind} episodes from seed {asked.seed}; 95 % bootstrap intervals")
    place = asked.out or (
        asked.run.with_suffix(".csv") if asked.run.is_file() else asked.run / EVALUATION
    )
    _write(place, found)
    out.print(f"wrote {place}", soft_wrap=True)
    if asked.json:
        print(to_json({name: _figures(of_seeds) for name, of_seeds in found.items()}))
    return 0


def _learned(asked: Eval, path: Path) -> tuple[RunConfig, dict[int, AbstractPolicy]]:
    """The settings of a run, and the policies of its seeds."""
    use = load_classes(asked.use)
    if path.is_file():
        env = None if asked.env is None else given_env({"env": None}, asked.env)
        return _of(Snapshot.read(path, env=env, use=use), path)
    env = given_env(read_config(path)["settings"], asked.env)
    if not asked.best:
        return _of(RunFolder.open(path).latest(env=env, use=use), path)
    seeds = read_config(path)["settings"]["seeds"]
    files = {seed: path / BEST / f"{seed}.zip" for seed in seeds}
    missing = [file for file in files.values() if not file.is_file()]
    if missing:
        raise ValueError(f"{missing[0]} does not exist; --best needs train … --evaluate-every N.")
    best = [_of(Snapshot.read(file, env=env, use=use), path) for file in files.values()]
    return best[0][0], {seed: policy for _, policies in best for seed, policy in policies.items()}


def _of(snapshot: Snapshot, path: Path) -> tuple[RunConfig, dict[int, AbstractPolicy]]:
    if not snapshot.arrays:
        raise ValueError(f"{path} has learned nothing yet; resume it first.")
    seeds = snapshot.config.seeds
    stacked = snapshot.policies()
    return snapshot.config, {seed: at_index(stacked, i, len(seeds)) for i, seed in enumerate(seeds)}


def _over_seeds(of_seeds: dict[int, Evaluation]) -> Estimate:
    """Mean over seeds of their mean returns, with an interval over seeds."""
    return bootstrap(lambda m: m.mean(1), np.array([one.mean.value for one in of_seeds.values()]))


def _table(found: dict[str, dict[int, Evaluation]]) -> Table:
    columns = (
        "run",
        "seed",
        "mean return",
        "95 % interval",
        "median",
        "lowest",
        "highest",
        "length",
    )
    table = Table(*columns)
    for column in table.columns:
        column.overflow = "fold"  # a narrow terminal must not lose digits
    for column in table.columns[2:]:
        column.justify = "right"
    interval = lambda mean: f"{mean.low:.2f} – {mean.high:.2f}"
    for name, of_seeds in found.items():
        for seed, one in of_seeds.items():
            returns = one.returns
            others = [np.median(returns), returns.min(), returns.max(), one.lengths.mean()]
            mean = one.mean
            cells = [f"{mean.value:.2f}", interval(mean), *[f"{value:.2f}" for value in others]]
            table.add_row(name, str(seed), *cells)
        if len(of_seeds) > 1:
            mean = _over_seeds(of_seeds)
            table.add_row(name, "over seeds", f"{mean.value:.2f}", interval(mean))
    return table


def _figures(of_seeds: dict[int, Evaluation]) -> dict[str, object]:
    mean = _over_seeds(of_seeds)
    seeds = {seed: one.mean._asdict() for seed, one in of_seeds.items()}
    return {"mean": mean.value, "interval": [mean.low, mean.high], "seeds": seeds}


def _write(path: Path, found: dict[str, dict[int, Evaluation]]) -> None:
    rows = [
        (name, seed, episode, one.returns[episode], int(one.lengths[episode]))
        for name, of_seeds in found.items()
        for seed, one in of_seeds.items()
        for episode in range(len(one.returns))
    ]
    write_csv(path, ("run", "seed", "episode", "return", "length"), rows)
