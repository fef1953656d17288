"""The settings of section 5, each with the sentence of the paper it comes from.

Where the paper is silent, the setting says why it was chosen.

Two readings of the text are run. `sgd` is the main one: "similar performance can be obtained by
using SGD optimizer with an appropriate learning rate", and it is the reading under which the
natural gradient gains over the plain one at one step size for all. `adam` puts Adam after the
natural direction, as printed. Both were compared, and everything else was chosen, on seeds from
1000 on; reported seeds start at 0.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from recollect.algorithms import PPO, RNPG, RPG, RPPO, RTRPO, TRPO, VNPG, VPG, AbstractAlgorithm
from recollect.algorithms.control import equal_steps_control
from recollect.estimate.advantages import GAE, AbstractAdvantages, Returns
from recollect.estimate.critic import Critic
from recollect.policies.architecture import Architecture
from recollect.step.solve import AbstractSolver, Auto, Cholesky
from recollect.theory import Normality


@dataclasses.dataclass(frozen=True)
class Problem:
    """An environment of section 5.1."""

    env: str
    max_steps: int
    iterations: int
    policy: Architecture


NETWORK = Architecture(widths=(32,), activation="relu")
"""“a fully-connected two-layer neural network with 32 neurons and Rectified Linear Unit (ReLU)
activation function”: one hidden layer of 32 and one of outputs."""

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


@dataclasses.dataclass(frozen=True)
class Protocol:
    """One reading of section 5."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """“The policy parameter is updated by Adam optimizer. We should note that similar performance
    can be obtained by using SGD optimizer with an appropriate learning rate.”"""
    head: Literal["grid", "gaussian"] = "grid"
    """Of the pendulum's policy; see PENDULUM. A Gaussian is what most would take for continuous
    actions."""
    learning_rate: float = 0.01
    """“under a fixed step size α = 0.01”"""
    larger_learning_rate: float = 0.1
    """No setting of the paper: a step at which the plain gradient's noise matters. Of 0.1, 0.3 and
    1 the one at which VPG did best."""
    discount: float = 0.99
    """“The discount factor is γ = 0.99.”"""
    damping: float = 1e-3
    """“We also set ε to 0.001 to prevent the FIM from becoming singular.”"""
    episodes: int = 4
    """“The number of trajectories generated in each iteration (i.e., mini-batch size) is 4.”"""
    window: int = 10
    """“the reuse size K = 10. Specifically, the RNPG algorithm uses the same reuse size for both
    the FIM estimator and the gradient estimator.”"""
    seeds: int = 50
    """“The reward is averaged over 50 macro replications.”"""
    advantages: AbstractAdvantages = dataclasses.field(default=Returns())
    """Not stated; returns-to-go minus their mean over the window, the simplest estimate under
    which the claims show in a prototype."""
    clip: float = 0.2
    """“The clip ratio ε is set to 0.2.”"""
    epochs: int = 10
    """Of PPO; not stated, the usual number."""
    ppo_learning_rate: float = 3e-4
    """Of PPO's Adam; not stated, the usual number."""
    minibatch: int = 256
    """Of PPO; not stated, the usual number."""
    target_kl: float = 0.01
    """Of TRPO, for which the paper shows no figure; the usual radius."""
    critic: Critic = dataclasses.field(default=Critic(fit="batch"))
    """Of TRPO; not stated. Fitting to the newest batch takes a tenth of the time of the whole
    window and did about as well."""

    def gradients(self) -> dict[str, AbstractAlgorithm]:
        """The four algorithms of section 5.1."""
        return {
            "VPG": VPG(**self._plain),
            "RPG": RPG(window=self.window, **self._plain),
            "VNPG": VNPG(**self._natural),
            "RNPG": self.rnpg(self.window),
        }

    def larger_steps(self) -> dict[str, AbstractAlgorithm]:
        """VPG and RPG at the larger step."""
        settings = dict(self._plain, learning_rate=self.larger_learning_rate)
        return {"VPG": VPG(**settings), "RPG": RPG(window=self.window, **settings)}

    def rnpg(
        self, window: int, fisher_window: int | None = None, solver: AbstractSolver = Auto()
    ) -> AbstractAlgorithm:
        """RNPG, with a window of its own for the Fisher matrix where one is given."""
        return RNPG(
            window=window, fisher_window=fisher_window or window, solver=solver, **self._natural
        )

    def ppo(self, window: int) -> AbstractAlgorithm:
        """PPO for a window of 1, RPPO for a longer one."""
        settings: dict[str, Any] = dict(
            discount=self.discount,
            clip=self.clip,
            epochs=self.epochs,
            learning_rate=self.ppo_learning_rate,
            advantages=dataclasses.replace(self.advantages, standardise=True),
            minibatch=self.minibatch,
        )
        return PPO(**settings) if window == 1 else RPPO(window=window, **settings)

    def ppo_control(self, window: int) -> AbstractAlgorithm:
        """As many gradient steps as `ppo(window)`, on copies of the newest batch."""
        return equal_steps_control(self.ppo(window))

    def trpo(self, window: int) -> AbstractAlgorithm:
        """TRPO for a window of 1, RTRPO for a longer one."""
        settings: dict[str, Any] = dict(
            discount=self.discount,
            damping=self.damping,
            target_kl=self.target_kl,
            advantages=GAE(standardise=True),
            critic=self.critic,
        )
        return TRPO(**settings) if window == 1 else RTRPO(window=window, **settings)

    def policy(self, problem: Problem) -> Architecture:
        """The problem's architecture, with the head of this protocol where actions are forces."""
        if problem.policy.head == "auto" or self.head == "grid":
            return problem.policy
        return dataclasses.replace(problem.policy, head="gaussian")

    @property
    def _plain(self) -> dict[str, Any]:
        return dict(
            discount=self.discount,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            advantages=self.advantages,
        )

    @property
    def _natural(self) -> dict[str, Any]:
        return dict(self._plain, damping=self.damping)


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
