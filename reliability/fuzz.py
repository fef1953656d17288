"""Configurations with random mistakes: each is accepted, or refused in one line that names a field.

    python reliability/fuzz.py [CONFIGURATIONS]

A third goes through JSON (`RunConfig.from_plain`: what config.json and checkpoints hold), a third
through Python (constructors, then `RunConfig.of`: what `train` and `Agent` take), a third through
the command line (`recollect train`, up to where it makes a folder). All start from settings that
work and put other values, near or strange, at one to three random places. Some of those that are
accepted and small are trained for two iterations.
"""

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

from common import count, quiet, record, set_up

STRANGE: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 10**9, 10**30, 0.5, 0.99, 1.0, -0.5, 1e-30, 1e308, 1e-3),
    *(math.nan, math.inf, -math.inf, "infinity", "-infinity", "", "x", "adam", "cartpole", "ε" * 3),
    *([], [1], [4, 4], [-1], ["a"], [[1]], [10**12], [True], [0.5], {}, {"a": 1}, "\n", "a\nb"),
    *({"kind": "Nothing"}, {"kind": 3}, {"kind": ["x"]}, {"kind": "PolicyRatio"}, {"object": "f"}),
    *({"kind": "GAE"}, {"kind": "Critic", "widths": [4]}, {"kind": "Steps"}, {"kind": "RunConfig"}),
    *({"kind": "Settings"}, {"kind": "AbstractAlgorithm"}, {"kind": "Episodes", "episodes": 2}),
    *(
        {"kind": "Cholesky"},
        {"kind": "Uniform", "newest": 2},
        {"kind": "Architecture"},
        {"object": 3},
    ),
    *({"kind": "Box", "low": 1.0, "high": -1.0}, {"kind": "CartPole"}, {"kind": "VTrace", "x": 1}),
]
NAMES = ["gamma", "lr", "windw", "__class__", "self", "kind", "a b", "window", "discount"]
ENVS = ["CartPole-v1", "Pendulum-v1", "LQC", "Chain", "Acrobot-v1"]


def bases() -> list[dict[str, Any]]:
    """Settings that work, in terms of JSON."""
    import recollect as rc
    from recollect.run.config import RunConfig

    small = dict(collector=rc.Steps(2, 8), policy=rc.Architecture(widths=(4,)))
    plain = [
        RunConfig.of(env, algorithm, **({} if env in ("LQC", "Chain") else small)).plain()
        for env in ENVS
        for algorithm in ("vpg", "rnpg", "rtrpo", "rppo")
    ]
    return json.loads(json.dumps(plain))


def places(plain: Any, path: tuple = ()) -> Iterator[tuple]:
    """Paths of everything inside."""
    if path:
        yield path
    if isinstance(plain, dict | list):
        for key, one in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from places(one, (*path, key))


def spoiled(plain: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """The settings with something strange at one to three places."""
    plain = copy.deepcopy(plain)
    for _ in range(draw.choice([1, 1, 2, 3])):
        path = draw.choice(list(places(plain)))
        owner = plain
        for key in path[:-1]:
            owner = owner[key]
        action = draw.random()
        value = owner[path[-1]]
        if action < 0.4 and isinstance(value, int | float):
            owner[path[-1]] = draw.choice([value + 1, value - 1, value * 0.9, 2 * value, not value])
        elif action < 0.8:
            owner[path[-1]] = copy.deepcopy(draw.choice(STRANGE))
        elif action < 0.9 or not isinstance(owner, dict):
            del owner[path[-1]]
        else:
            owner[draw.choice(NAMES)] = copy.deepcopy(draw.choice(STRANGE))
    return plain


def through_json(plain: dict[str, Any]) -> Any:
    """The configuration that a file with these settings describes."""
    from recollect.run.config import RunConfig

    return RunConfig.from_plain(json.loads(json.dumps(plain)))


def through_python(plain: dict[str, Any]) -> Any:
    """The configuration that a caller of `train` asks for who writes these settings out."""
    from recollect.run.config import RunConfig, known_kinds

    kinds = known_kinds()

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(made(one) for one in value)
        if not isinstance(value, dict):
            return math.inf if value == "infinity" else value
        fields = {key: made(one) for key, one in value.items() if key != "kind"}
        kind = value.get("kind")
        known = isinstance(kind, str) and kind in kinds
        return kinds[kind](**fields) if known else fields

    given = {key: made(one) for key, one in plain.items() if key in ARGUMENTS}
    return RunConfig.of(**{"env": None, "algorithm": None, **given})


def through_command_line(plain: dict[str, Any]) -> Any:
    """The configuration that `recollect train` makes of these settings, written as flags."""
    from recollect.cli.fields import KINDS
    from recollect.cli.plan import plan_training

    names = {"PG": "rpg", "NPG": "rnpg", "TRPO": "rtrpo", "PPO": "rppo"}
    words: list[str] = []

    def say(flag: str, value: Any) -> None:
        field = flag.split(".")[-1]
        if isinstance(value, bool) and field not in THREEFOLD:
            owner = flag[: len(flag) - len(field)]
            words.append(f"--{owner}{'' if value else 'no-'}{field}".replace("_", "-"))
        elif isinstance(value, dict) and "kind" in value:
            if field in KINDS:
                kinds = {made.__name__: name for name, made in KINDS[field].names.items()}
                words.extend((f"--{flag}", kinds.get(str(value["kind"]), str(value["kind"]))))
            for name, one in value.items():
                if name != "kind":
                    say(f"{flag}.{name}", one)
        elif value is not None and value != "infinity":
            several = value if isinstance(value, list) else [value]
            words.append(f"--{flag}".replace("_", "-"))
            words.extend(one if isinstance(one, str) else str(one) for one in several)

    def say_fields(part: str) -> str:
        """Flags for the fields of a part; its kind, or what is there instead."""
        settings = plain.get(part)
        if not isinstance(settings, dict):
            return str(settings)
        for name, value in settings.items():
            if name not in HIDDEN:
                say(name, value)
        return str(settings.get("kind"))

    kind = say_fields("algorithm")
    say_fields("env")
    say_fields("collector")
    say("policy", plain.get("policy"))
    seeds = plain.get("seeds")
    say("seeds", len(seeds) if isinstance(seeds, list) else seeds)
    env = plain.get("env")
    name = env.get("name") if isinstance(env, dict) else env
    return plan_training(names.get(kind, kind), str(name), words)[0].config


HIDDEN = ("kind", "name", "oracle")
"""Fields that are no flags."""
THREEFOLD = ("normalise",)
"""Flags that are followed by True, False or None."""
ARGUMENTS = ("env", "algorithm", "collector", "policy", "seeds")
WAYS = {
    "JSON": through_json,
    "Python": through_python,
    "the command line": through_command_line,
}


def answer(plain: dict[str, Any], way: str) -> tuple[Any, str]:
    """The configuration or None, and what is wrong with the refusal, if anything."""
    from recollect import EnvironmentFailure

    try:
        return WAYS[way](plain), ""
    except (ValueError, TypeError, EnvironmentFailure) as error:
        text = str(error)
        if "\n" in text:
            return None, f"several lines: {text!r}"
        if isinstance(error, TypeError) and " has no " not in text and " missing " not in text:
            return None, f"Python's own words: {text!r}"
        named = any(name in text.replace("-", "_") for name in FIELDS)
        named = named or text.startswith("Unrecognized options:")  # which are then named
        return None, "" if named else f"names no field: {text!r}"
    except Exception as error:
        return None, f"{type(error).__name__}: {error!r:.200}"


FIELDS: set[str] = set()


def know_fields() -> None:
    """All names that settings may have, and those that the scripts make up."""
    import dataclasses

    from recollect.run.config import known_kinds

    for kind in known_kinds().values():
        FIELDS.update(one.name for one in dataclasses.fields(kind))
    FIELDS.update((*ARGUMENTS, *NAMES, "max_steps", "settings", "lag"))


def fuzz(number: int, seed: int = 0) -> tuple[list[dict[str, Any]], int, list[str]]:
    """Those accepted through JSON, how many were accepted in all, and what went wrong."""
    know_fields()
    draw = random.Random(seed)
    starts = bases()
    accepted, total, wrong = [], 0, []
    for index in range(number):
        plain = spoiled(draw.choice(starts), draw)
        way = [*WAYS][index % len(WAYS)]
        config, problem = answer(plain, way)
        total += config is not None
        if config is not None and way == "JSON":
            accepted.append(config)
        if problem:
            wrong.append(f"{way}: {problem} for {json.dumps(plain)}")
    return accepted, total, wrong


def counted(number: int, seed: int) -> tuple[int, list[str]]:
    """How many were accepted, and what went wrong."""
    quiet()
    return fuzz(number, seed)[1:]


def small(config: Any) -> bool:
    """Whether two iterations of it take seconds."""
    from recollect import Draws, Steps
    from recollect.envs import AbstractEnv

    settings = config.algorithm
    sizes = [*getattr(config.policy, "widths", ()), *settings.critic.widths, len(config.seeds)]
    batch = getattr(config.collector, "copies", 1) * getattr(config.collector, "steps", 1)
    few = isinstance(config.collector, Steps | Draws) and batch <= 64
    return (
        isinstance(config.env, AbstractEnv) and few and max(sizes) <= 64 and settings.window <= 20
    )


def main() -> None:
    set_up()
    quiet()
    number = count(10_000)
    accepted, total, wrong = fuzz(number)
    for line in wrong[:40]:
        print(line)
    result = (
        f"{total:,} accepted, {number - total - len(wrong):,} refused in one line that names a "
    )
    result += f"field, {len(wrong)} otherwise"
    what = "fuzzed configurations through JSON, Python and the command line"
    record("fuzz.py", what, f"{number:,}", result)
    from recollect.run.session import Until
    from recollect.run.train import execute

    chosen = [config for config in accepted if small(config)][: max(number // 200, 1)]
    trained = 0
    for config in chosen:
        trained += len(execute(config, Until(iterations=2)).clock) == 2
    what = "accepted configurations trained for two iterations"
    record("fuzz.py", what, f"{len(chosen)}", f"{trained} trained")


if __name__ == "__main__":
    main()
