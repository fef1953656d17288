"""What section 5 runs: its problems, how much of each, and how its text is read.

The settings of the algorithms stand in `recollect.run.section5`.

Two readings of the text are run. `sgd` is the main one: "similar performance can be obtained by
using SGD optimizer with an appropriate learning rate", and it is the reading under which the
natural gradient gains over the plain one at one step size for all. `adam` puts Adam after the
natural direction, as printed. Both were compared, and everything else was chosen, on seeds from
1000 on; reported seeds start at 0.
"""

import dataclasses
from collections.abc import Mapping

from recollect.policies.architecture import Architecture
from recollect.run.section5 import NETWORK, Protocol
from recollect.step.solve import Cholesky
from recollect.theory import Normality


@dataclasses.dataclass(frozen=True)
class Problem:
    """An environment of section 5.1."""

    env: str
    max_steps: int
    iterations: int
    policy: Architecture


CARTPOLE = Problem(
    env="CartPole-v1",
    max_steps=200,  # “The environment caps episode lengths to 200 steps”
    iterations=150,  # “over 150 iterations”
    policy=NETWORK,  # “We use softmax activation function on top of the neural network.”
)
PENDULUM = Problem(
    env="InvertedPendulum-v5",
    max_steps=500,  # “The environment caps episode lengths to 500 steps.”
    iterations=500,  # “over 500 iterations”
    # “the action space is continuous in [−3, 3]” and “softmax … on top” for both problems: a
    # softmax over a grid of forces. The number of forces is not stated; 11 gives steps of 0.6 and
    # has a force of zero.
    policy=dataclasses.replace(NETWORK, head="grid", points=11),
)


PROTOCOLS: Mapping[str, Protocol] = {
    "sgd": Protocol(),
    "adam": Protocol(optimizer="adam"),
    "sgd-gaussian": Protocol(head="gaussian"),
    "adam-gaussian": Protocol(optimizer="adam", head="gaussian"),
}
"""The first is the main one; the heads differ on the pendulum alone."""

EXPLICIT = Cholesky()
"""“The computational complexity of computing the inverse FIM estimator in RNPG is O(KBd² + d³)”:
the matrix written out and factored."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is run: everything, or just enough to see that everything works."""

    seeds: int | None = None
    """As many as the protocol says if not given."""
    iterations: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By environment; as many as the problem has if not given."""
    windows: tuple[int, ...] = (1, 10, 50, 100)
    """“RNPG algorithm with different reuse sizes K = 1, 10, 50, 100 on the cartpole benchmark”, and
    in the gradient alone “with reuse size K₁ = 10, 50, 100 in the gradient estimator and K₂ = 10
    in the FIM estimator”"""
    ppo_windows: tuple[int, ...] = (1, 2, 5)
    """“PPO and RPPO with reuse sizes K = 2, 5”; 1 is PPO."""
    timing_iterations: int = 100
    """“Time (s) running RNPG over n = 100 iterations” says the caption, 150 the text."""
    timing_seeds: int = 5
    """Not stated; “average running time”."""
    trpo_iterations: int = 150
    """At most; not stated. On both problems TRPO and RTRPO are near the highest return by then."""
    normality: Normality = dataclasses.field(default=Normality())
    """“we run 500 macro-replications”, “α_n = 1/n^0.9”, “θ₀ = 2”, “n = 5×10⁵ steps”, four pairs of
    B and K; γ = 0.5 and (in the appendix) ε = 0.01 are stated, too. They are the defaults of the
    theory laboratory."""
    engine: str = "auto"
    """What runs the environments."""


FULL = Scale()
QUICK = Scale(
    seeds=10,
    iterations={CARTPOLE.env: 24, PENDULUM.env: 2},
    windows=(1, 10),
    ppo_windows=(1, 2),
    timing_iterations=3,
    timing_seeds=10,
    trpo_iterations=3,
    normality=Normality(cases=((5, 5),), replications=400, iterations=2000),
)
