"""`recollect play` and `recollect export`: what was learned, seen and taken elsewhere."""

from recollect.agent.agent import Agent
from recollect.cli.fields import load_classes
from recollect.cli.flags import Export, Play, parse
from recollect.cli.plan import given_env
from recollect.cli.shared import console
from recollect.run.folder import read_config


def play(flags: list[str], words: list[str]) -> int:
    """`recollect play RUN`."""
    del words
    asked, _ = parse(Play, flags, "recollect play")
    film = _agent(asked).play(
        asked.video, best_of=asked.best_of, deterministic=not asked.stochastic
    )
    console().print(f"wrote {asked.video}: return {film.total:.1f}", soft_wrap=True)
    return 0


def export(flags: list[str], words: list[str]) -> int:
    """`recollect export RUN`."""
    del words
    asked, _ = parse(Export, flags, "recollect export")
    written = _agent(asked).export(asked.out, asked.to)
    console().print(f"wrote {', '.join(map(str, written))}", soft_wrap=True)
    return 0


def _agent(asked: Play | Export) -> Agent:
    settings = {"env": None} if asked.run.is_file() else read_config(asked.run)["settings"]
    env = given_env(settings, asked.env)
    return Agent.load(asked.run, env=env, use=load_classes(asked.use), index=asked.index)
