"""The algorithms with plain settings, whose formulas tests can follow step by step.

Returns minus their mean, outer products of scores, little damping, steps by SGD and no bound on
them, where the defaults have what serves unfamiliar tasks.
"""

from functools import partial

import recollect as rc

_GRADIENT = dict(advantages=rc.Returns(), learning_rate=0.01, optimizer="sgd")
_FISHER = dict(fisher=rc.ScoreFisher(), damping=1e-3)
_TRUST = dict(_FISHER, target_kl=0.01)
_NATURAL = dict(_GRADIENT, **_FISHER, target_kl=None)

PG = partial(rc.algorithms.PG, **_GRADIENT)
VPG = partial(rc.VPG, **_GRADIENT)
RPG = partial(rc.RPG, **_GRADIENT)
NPG = partial(rc.algorithms.NPG, **_NATURAL)
VNPG = partial(rc.VNPG, **_NATURAL)
RNPG = partial(rc.RNPG, **_NATURAL)
TRPO = partial(rc.TRPO, **_TRUST)
RTRPO = partial(rc.RTRPO, **_TRUST)
