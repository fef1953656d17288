"""The steps that algorithms are assembled from, for an algorithm of one's own.

`examples/vmpo.py` is one. An update reads like this: `begin` stores the newest batch and weighs
all that is stored, `estimate_advantages` and `refit_critic` look at its window, `choose_shares`
gives each age its share; what follows is the algorithm's own, until `keep_or_revert` refuses
steps that failed, and `describe` and `finish` report it.
"""

from recollect.algorithms.base import bind, initial_state
from recollect.algorithms.reuse import (
    choose_shares,
    estimate_advantages,
    refit_critic,
    reweighed_gradient,
)
from recollect.algorithms.update import (
    UpdateStart,
    begin,
    common_failures,
    describe,
    finish,
    keep_or_revert,
)
from recollect.collect.rollout import AbstractCollector, Rollout
from recollect.estimate.gradient import gradient_by_age, policy_gradient
from recollect.refusals import BATCH, DIRECTION, GRADIENT, PARAMETERS, REFUSALS
from recollect.tree import all_finite, flatten

__all__ = [
    "BATCH",
    "DIRECTION",
    "GRADIENT",
    "PARAMETERS",
    "REFUSALS",
    "AbstractCollector",
    "Rollout",
    "UpdateStart",
    "all_finite",
    "begin",
    "bind",
    "choose_shares",
    "common_failures",
    "describe",
    "estimate_advantages",
    "finish",
    "flatten",
    "gradient_by_age",
    "initial_state",
    "keep_or_revert",
    "policy_gradient",
    "refit_critic",
    "reweighed_gradient",
]
