"""The laboratory: the theorems of the paper as experiments.

Each gives figures with intervals, pictures and a verdict.
"""

from recollect.theory.bias import Bias as Bias
from recollect.theory.constant import Constant as Constant
from recollect.theory.gain import Gain as Gain
from recollect.theory.normality import Normality as Normality
from recollect.theory.ode import Ode as Ode
from recollect.theory.process import Process as Process
from recollect.theory.reuse import FisherReuse as FisherReuse
from recollect.theory.reuse import Rate as Rate
from recollect.theory.weights import WeightRules as WeightRules

EXPERIMENTS = {
    "normality": Normality,
    "process": Process,
    "rate": Rate,
    "ode": Ode,
    "bias": Bias,
    "constant": Constant,
    "gain": Gain,
    "fisher": FisherReuse,
    "weights": WeightRules,
}
"""By their names on the command line."""
