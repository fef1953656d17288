"""`recollect play` and `recollect export`: what was learned, seen and taken elsewhere."""

from pathlib import Path

from recollect.agent.agent import Agent
from recollect.agent.export import ENDINGS
from recollect.cli.fields import load_classes
from recollect.cli.flags import Export, Play, parse
from recollect.cli.plan import given_env
from recollect.cli.shared import console
from recollect.run.folder import read_config

BEST_OF = 5
"""Episodes to choose from, if nothing else is asked for."""


def play(flags: list[str], words: list[str]) -> int:
    """`recollect play RUN`."""
    del words
    asked, _ = parse(Play, flags, "recollect play")
    if asked.seeds and asked.best_of is not None:
        raise ValueError("--seeds and --best-of exclude each other; choose one of them.")
    film = _agent(asked).play(
        asked.video,
        seeds=asked.seeds or None,
        best_of=BEST_OF if asked.best_of is None else asked.best_of,
        deterministic=not asked.stochastic,
    )
    about = f"the episode of seed {film.seed}, return {film.total:.1f}"
    console().print(f"wrote {asked.video}: {about}", soft_wrap=True)
    return 0


def export(flags: list[str], words: list[str]) -> int:
    """`recollect export RUN`."""
    del words
    asked, _ = parse(Export, flags, "recollect export")
    endings = {to: ending for ending, to in ENDINGS.items()}
    out = asked.out or Path("policy").with_suffix(endings[asked.to or "numpy"])
    written = _agent(asked).export(out, asked.to)
    console().print(f"wrote {', '.join(map(str, written))}", soft_wrap=True)
    return 0


def _agent(asked: Play | Export) -> Agent:
    settings = {"env": None} if asked.run.is_file() else read_config(asked.run)["settings"]
    env = given_env(settings, asked.env)
    return Agent.load(asked.run, env=env, use=load_classes(asked.use), index=asked.index)
