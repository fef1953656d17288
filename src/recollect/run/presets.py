"""Settings of every algorithm, tuned for the environments that people try first.

What the tuning taught (on seeds from 1000 on; those reported start at 0): standardised
advantages, steps scaled to a radius and Adam all make steps as long in a solved problem as in an
unsolved one, and there they follow noise until the policy is lost again. So for the balancing
tasks advantages keep their size, TRPO has a longest multiple of the natural direction, and Adam
an epsilon. Windows hold some 2,000 transitions, several episodes, so that what one episode taught
is not forgotten in the next.
"""

import dataclasses
from typing import Any

from recollect.algorithms import (
    ALGORITHMS,
    PPO,
    RNPG,
    RPG,
    RPPO,
    RTRPO,
    TRPO,
    VNPG,
    VPG,
    AbstractAlgorithm,
)
from recollect.checks import check_name
from recollect.collect.compiled import Episodes, Steps
from recollect.collect.rollout import AbstractCollector
from recollect.estimate.advantages import VTrace
from recollect.estimate.critic import Critic
from recollect.estimate.fisher import ExpectedFisher
from recollect.policies.architecture import Architecture
from recollect.run.section5 import NETWORK, Protocol
from recollect.settings import Settings, checked
from recollect.step.solve import Auto, ConjugateGradients


@dataclasses.dataclass(frozen=True)
class Preset(Settings):
    """All that `train` needs beside the environment.

    Example:
        >>> import recollect as rc
        >>> rc.Preset(rc.RNPG(window=4), rc.Episodes(2)).policy.widths
        (64, 64)
    """

    algorithm: AbstractAlgorithm
    collector: AbstractCollector
    policy: Architecture = dataclasses.field(default_factory=Architecture)


@checked
def preset(algorithm: str, env: str) -> Preset:
    """The settings of an algorithm for an environment, or those of the paper.

    Args:
        algorithm: its name, for example `"rtrpo"`.
        env: name of the environment, for example `"Hopper-v5"`; `"paper"` for the settings of the
            paper, which tables and LQC have too, and `"default"` for the defaults, which every
            environment has for which nothing was tuned.

    Returns:
        The algorithm, what it collects, and the policy that it starts from.

    Example:
        >>> import recollect as rc
        >>> rc.preset("rtrpo", "CartPole-v1").algorithm.window
        20
        >>> rc.preset("rnpg", "paper").algorithm.damping
        0.001
    """
    check_name("algorithm", algorithm, ALGORITHMS)
    source = settings_for(env)
    if source == "paper":
        protocol = Protocol()
        return Preset(protocol.algorithms()[algorithm], Episodes(protocol.episodes), NETWORK)
    if source == "default":
        settings = ALGORITHMS[algorithm]()
        return Preset(settings, default_collector(settings))
    return PRESETS[source][algorithm]


def settings_for(env: str) -> str:
    """Which settings `preset` has for an environment: its name, `"paper"` or `"default"`."""
    meant = {name.lower(): name for name in PRESETS}.get(env.lower(), env)
    if meant != env:
        raise ValueError(f"env={env!r} is unknown; did you mean {meant!r}?")
    if env in PRESETS:
        return env
    exact = env in EXACT or env.endswith(".npz")
    return "paper" if exact or env == "paper" else "default"


def default_collector(algorithm: AbstractAlgorithm) -> AbstractCollector:
    """Fixed steps where a critic bootstraps, else the paper's four whole trajectories."""
    return Steps(8, 64) if algorithm.advantages.needs_critic else Episodes(4)


EXACT = ("LQC", "Chain", "Gridworld", "Garnet")
"""Environments that know exact answers: the paper's settings are for them."""


PLAIN = VTrace(gae_lambda=0.98)
SCALED = VTrace(standardise=True)
CRITIC = Critic(learning_rate=3e-3, minibatch=128)


def _gradients(discount: float, policy: Architecture) -> dict[str, Preset]:
    """Plain and natural gradients: Adam for the one, a fixed multiple of the direction for the
    other."""
    shared: dict[str, Any] = dict(discount=discount, advantages=SCALED, critic=CRITIC)
    plain: dict[str, Any] = dict(optimizer="adam", learning_rate=0.01)
    natural: dict[str, Any] = dict(
        fisher=ExpectedFisher(), damping=0.01, learning_rate=0.1, target_kl=None
    )
    algorithms = {
        "vpg": VPG(**shared, **plain),
        "rpg": RPG(window=4, **shared, **plain),
        "vnpg": VNPG(**shared, **natural),
        "rnpg": RNPG(window=5, **shared, **natural),
    }
    return {name: Preset(algorithm, Steps(8, 64), policy) for name, algorithm in algorithms.items()}


def _balancing(
    discount: float, radius: float, max_length: float, epsilon: float, policy: Architecture
) -> dict[str, Preset]:
    """For poles on carts, where every step pays the same until the pole falls."""
    shared: dict[str, Any] = dict(discount=discount, advantages=PLAIN, critic=CRITIC)
    trust: dict[str, Any] = dict(
        fisher=ExpectedFisher(), damping=0.01, target_kl=radius, max_length=max_length
    )
    clip: dict[str, Any] = dict(learning_rate=3e-3, optimizer=f"adam:{epsilon}")
    return {
        **_gradients(discount, policy),
        "trpo": Preset(TRPO(**shared, **trust), Steps(4, 128), policy),
        "rtrpo": Preset(RTRPO(window=20, **shared, **trust), Steps(2, 64), policy),
        "ppo": Preset(PPO(minibatch=64, **shared, **clip), Steps(4, 128), policy),
        "rppo": Preset(RPPO(window=16, **shared, **clip), Steps(2, 64), policy),
    }


def _swinging(discount: float, policy: Architecture) -> dict[str, Preset]:
    """For pendulums that have to be swung up, where there is always something left to gain."""
    shared: dict[str, Any] = dict(discount=discount, advantages=SCALED, critic=CRITIC)
    trust: dict[str, Any] = dict(fisher=ExpectedFisher(), damping=0.01, target_kl=0.02)
    clip: dict[str, Any] = dict(learning_rate=3e-3)
    algorithms = {
        "trpo": TRPO(**shared, **trust),
        "rtrpo": RTRPO(window=5, **shared, **trust),
        "ppo": PPO(**shared, **clip),
        "rppo": RPPO(window=4, **shared, **clip),
    }
    return _gradients(discount, policy) | {
        name: Preset(algorithm, Steps(8, 64), policy) for name, algorithm in algorithms.items()
    }


def _running(
    discount: float,
    gae_lambda: float,
    copies: int,
    steps: int,
    trust: Architecture,
    clip: Architecture,
    radius: float,
    damping: float,
) -> dict[str, Preset]:
    """For bodies that learn to run. The first spread of actions decides most: what throws a
    hopper over sets a cheetah in motion."""
    shared: dict[str, Any] = dict(
        discount=discount,
        advantages=VTrace(gae_lambda=gae_lambda, standardise=True),
    )
    # The closed form has several rows for each state, so one batch of states is enough for the
    # Fisher matrix, and with so much damping a preconditioner from few rows takes as many steps,
    # each in less time.
    natural: dict[str, Any] = dict(
        fisher=ExpectedFisher(),
        fisher_window=1,
        damping=damping,
        solver=Auto(ConjugateGradients(preconditioner_rows=128)),
    )
    natural |= dict(
        target_kl=radius, critic=Critic(learning_rate=1e-3, epochs=20, minibatch=128, fit="batch")
    )
    clipped: dict[str, Any] = dict(
        learning_rate=3e-4, critic=Critic(learning_rate=1e-3, fit="batch")
    )
    return {
        **_gradients(discount, trust),
        "trpo": Preset(TRPO(**shared, **natural), Steps(8, 256), trust),
        "rtrpo": Preset(RTRPO(window=4, **shared, **natural), Steps(8, steps), trust),
        "ppo": Preset(PPO(minibatch=64, **shared, **clipped), Steps(copies, 2048 // copies), clip),
        "rppo": Preset(
            RPPO(window=4, minibatch=128, **shared, **clipped), Steps(copies, 512 // copies), clip
        ),
    }


def _careful(rppo: Preset) -> Preset:
    """A cheetah that runs is quickly thrown over by long steps: more of them, each shorter, and
    little noise."""
    algorithm = dataclasses.replace(
        rppo.algorithm, window=2, learning_rate=1e-4, epochs=20, minibatch=64, clip=0.1
    )
    return dataclasses.replace(
        rppo,
        algorithm=algorithm,
        policy=Architecture(widths=(256, 256), activation="relu", log_std=-2.0),
    )


SMALL = Architecture(widths=(32,), activation="relu", log_std=0.0)
HOPPER = Architecture(widths=(64, 64), activation="tanh", log_std=0.0)
CHEETAH = Architecture(widths=(64, 64), activation="tanh", log_std=-1.0)
PRESETS: dict[str, dict[str, Preset]] = {
    "CartPole-v1": _balancing(
        discount=0.98, radius=0.02, max_length=1.0, epsilon=0.01, policy=SMALL
    ),
    "InvertedPendulum-v5": _balancing(
        discount=0.99,
        radius=0.03,
        max_length=0.1,
        epsilon=0.03,
        policy=dataclasses.replace(SMALL, log_std=-1.0),
    ),
    "Acrobot-v1": _swinging(discount=0.99, policy=SMALL),
    "Pendulum-v1": _swinging(
        discount=0.9, policy=Architecture(widths=(64,), activation="tanh", log_std=0.0)
    ),
    "Hopper-v5": _running(
        discount=0.99,
        gae_lambda=0.95,
        copies=8,
        steps=128,
        trust=HOPPER,
        clip=HOPPER,
        radius=0.02,
        damping=0.2,
    ),
    "HalfCheetah-v5": _running(
        discount=0.98,
        gae_lambda=0.92,
        copies=4,
        steps=64,
        trust=CHEETAH,
        clip=Architecture(widths=(128, 128), activation="relu", log_std=-1.0),
        radius=0.03,
        damping=0.03,
    ),
}
"""By environment, then by algorithm."""
PRESETS["HalfCheetah-v5"]["rppo"] = _careful(PRESETS["HalfCheetah-v5"]["rppo"])
