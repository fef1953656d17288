"""The settings of the paper's section 5, each with the sentence it comes from.

Where the paper is silent, the setting says why it was chosen. `preset(NAME, "paper")` has them, and
`recollect paper` runs them; the defaults of the algorithms are others, for tasks that nobody has
tried before.
"""

import dataclasses
from typing import Any, Literal

from recollect.algorithms import NPG, PPO, RPG, RPPO, RTRPO, TRPO, VPG, AbstractAlgorithm
from recollect.algorithms.control import equal_steps_control
from recollect.estimate.advantages import GAE, AbstractAdvantages, Returns
from recollect.estimate.critic import Critic
from recollect.estimate.fisher import ScoreFisher
from recollect.policies.architecture import Architecture
from recollect.step.solve import AbstractSolver, Auto

NETWORK = Architecture(widths=(32,), activation="relu", log_std=0.0, normalise=False)
"""“a fully-connected two-layer neural network with 32 neurons and Rectified Linear Unit (ReLU)
activation function”: one hidden layer of 32 and one of outputs. The text knows no normaliser of
observations, and no Gaussian, which starts with a standard deviation of 1."""


def algorithm_1(**settings: Any) -> NPG:
    """Algorithm 1 of the paper: outer products of scores, and a step as long as it is.

    Args:
        settings: the fields of `NPG`, by name; returns minus their mean, ε = 0.001 and α = 0.01
            where they do not say otherwise.
    """
    usual: dict[str, Any] = dict(advantages=Returns(), damping=1e-3, learning_rate=0.01)
    return NPG(**{**usual, **settings}, fisher=ScoreFisher(), target_kl=None)


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
    ppo_window: int = 5
    """“PPO and RPPO with reuse sizes K = 2, 5”."""
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

    def algorithms(self) -> dict[str, AbstractAlgorithm]:
        """All eight, by the names of the command line."""
        four = {name.lower(): algorithm for name, algorithm in self.gradients().items()}
        return four | {
            "trpo": self.trpo(1),
            "rtrpo": self.trpo(self.window),
            "ppo": self.ppo(1),
            "rppo": self.ppo(self.ppo_window),
        }

    def gradients(self) -> dict[str, AbstractAlgorithm]:
        """The four algorithms of section 5.1."""
        return {
            "VPG": VPG(**self._plain),
            "RPG": RPG(window=self.window, **self._plain),
            "VNPG": algorithm_1(**self._natural, window=1, fisher_window=1),
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
        windows = dict(window=window, fisher_window=fisher_window or window)
        return algorithm_1(**self._natural, **windows, solver=solver)

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
            fisher=ScoreFisher(),
            target_kl=self.target_kl,
            advantages=GAE(standardise=True),
            critic=self.critic,
        )
        return TRPO(**settings) if window == 1 else RTRPO(window=window, **settings)

    def policy(self, architecture: Architecture) -> Architecture:
        """The architecture of a problem, with the head of this protocol where actions are
        forces."""
        if architecture.head == "auto" or self.head == "grid":
            return architecture
        return dataclasses.replace(architecture, head="gaussian")

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
