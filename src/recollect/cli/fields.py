"""How fields of algorithms are written on the command line.

Rules have short names, with numbers for their first fields: `--weights policy:2`. Once a rule is
chosen, its fields are flags of their own: `--advantages gae --advantages.gae-lambda 0.9`. A rule
or an algorithm of one's own is named by its file or module: `--weights rules.py:Damped:0.5`.
"""

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import optax
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
)

from recollect.checks import check_name
from recollect.cli import flags
from recollect.envs.base import AbstractOracle
from recollect.estimate.advantages import (
    GAE,
    AbstractAdvantages,
    ExactAdvantages,
    Returns,
    VTrace,
)
from recollect.estimate.controllers import CrossValidated, JamesStein, WhileClose
from recollect.estimate.fisher import AbstractFisherKind, AutoFisher, ExpectedFisher, ScoreFisher
from recollect.estimate.least_error import LeastError
from recollect.estimate.shares import AbstractShares, ByEffectiveSize, Geometric, Uniform
from recollect.memory.mixture import Mixture, OccupancyMixture
from recollect.memory.weights import (
    AbstractWeightRule,
    OccupancyRatio,
    PolicyRatio,
    PowerMean,
)
from recollect.step.project import AbstractProjection, Ball, Box, Simplex, Unconstrained
from recollect.step.solve import (
    AbstractSolver,
    Auto,
    Cholesky,
    ConjugateGradients,
    SampleSpace,
)

REGISTRY = ConstructorRegistry()
"""How types that tyro does not know are read."""


def parse(kind: Any, words: list[str], program: str, **options: Any) -> tuple[Any, list[str]]:
    """`flags.parse` for dataclasses that hold algorithms and rules."""
    with REGISTRY:
        return flags.parse(kind, words, program, **options)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A field that holds a rule."""

    base: type
    names: dict[str, type]
    """The rules that come with the library, by their short names."""
    about: str


KINDS = {
    "advantages": Kind(
        AbstractAdvantages,
        {"return": Returns, "gae": GAE, "vtrace": VTrace, "exact": ExactAdvantages},
        "How advantages are estimated: return, gae, vtrace or exact.",
    ),
    "weights": Kind(
        AbstractWeightRule,
        {
            "policy": PolicyRatio,
            "mixture": Mixture,
            "power": PowerMean,
            "occupancy": OccupancyRatio,
            "occupancy-mixture": OccupancyMixture,
        },
        "How old transitions are weighed: policy, policy:2 truncated at 2, mixture of all policies "
        "in the window, power:MIX; occupancy or occupancy-mixture where the environment knows it.",
    ),
    "shares": Kind(
        AbstractShares,
        {
            "uniform": Uniform,
            "geometric": Geometric,
            "effective": ByEffectiveSize,
            "least-error": LeastError,
            "close": WhileClose,
            "james-stein": JamesStein,
            "cross-validated": CrossValidated,
        },
        "How much each age of the window contributes: uniform, uniform:4 for the newest 4, "
        "geometric:FACTOR, effective (by effective sample size); least-error, close, "
        "james-stein or cross-validated to decide at every update whether old batches count.",
    ),
    "fisher": Kind(
        AbstractFisherKind,
        {"auto": AutoFisher, "score": ScoreFisher, "expected": ExpectedFisher},
        "Fisher matrix: outer products of the scores of the actions taken (score, the paper's), "
        "the mean over actions in closed form (expected), or that where it is known (auto).",
    ),
    "solver": Kind(
        AbstractSolver,
        {"auto": Auto, "cholesky": Cholesky, "sample": SampleSpace, "cg": ConjugateGradients},
        "How the natural direction is solved for: auto, cholesky, sample or cg.",
    ),
    "project": Kind(
        AbstractProjection,
        {"none": Unconstrained, "box": Box, "ball": Ball, "simplex": Simplex},
        "Feasible set of θ: none, box:LOW:HIGH, ball:RADIUS, simplex or simplex:FLOOR.",
    ),
}
"""By the names of the fields."""


def rule_flags(algorithm: Any) -> type:
    """A dataclass with a flag for each rule that the algorithm holds."""
    flag = lambda kind: tyro.conf.arg(help=kind.about, metavar="RULE")
    fields = [
        (name, Annotated[str | None, flag(kind)], None)
        for name, kind in KINDS.items()
        if hasattr(algorithm, name)
    ]
    return dataclasses.make_dataclass("Rules", fields, frozen=True)


def with_rules(algorithm: Any, rules: Any) -> Any:
    """The algorithm with the rules that flags ask for.

    Fields that the old rule and the new one have in common keep their values.
    """
    changed = {}
    for name, text in vars(rules).items():
        if text is not None:
            changed[name] = _rule(name, text, getattr(algorithm, name))
    return dataclasses.replace(algorithm, **changed)


def _rule(field: str, text: str, old: Any) -> Any:
    kind = KINDS[field]
    name, *words = text.split(":")
    if name not in kind.names and words and words[0].isidentifier():
        made, words = _own(text, kind)
    else:
        check_name(field, name, kind.names, source="FILE.py:NAME")
        made = kind.names[name]
    own = [one for one in dataclasses.fields(made) if one.init]
    try:
        numbers = [_number(word) for word in words]
    except ValueError:
        raise ValueError(
            f"{field}={text!r} holds something that is not a number; {kind.about}"
        ) from None
    if len(numbers) > len(own):
        raise ValueError(f"{field}={text!r} has {len(numbers)} numbers; {kind.about}")
    given = {
        one.name: float(number) if one.type in (float, "float") else number
        for one, number in zip(own, numbers, strict=False)
    }
    kept = {one.name: getattr(old, one.name) for one in own if hasattr(old, one.name)}
    missing = dataclasses.MISSING
    for one in own:
        absent = one.default is missing and one.default_factory is missing
        if absent and one.name not in given and one.name not in kept:
            raise ValueError(f"{field}={text!r} lacks {one.name}; {kind.about}")
    return made(**{**kept, **given})


def _number(word: str) -> float | int:
    try:
        return int(word)
    except ValueError:
        return float(word)


def _own(text: str, kind: Kind) -> tuple[type, list[str]]:
    """A rule of one's own, FILE.py:NAME or MODULE:NAME, and the numbers behind it."""
    source, name, *words = text.split(":")
    made = load(f"{source}:{name}")
    if not (isinstance(made, type) and issubclass(made, kind.base)):
        raise ValueError(f"{source}:{name} is no {kind.base.__name__}; derive it from that.")
    return made, words


def own_names(rules: Any) -> list[str]:
    """FILE.py:NAME of the rules of one's own that flags ask for."""
    texts = [(KINDS[field], text) for field, text in vars(rules).items() if text is not None]
    words = [text.split(":") for kind, text in texts if text.split(":")[0] not in kind.names]
    return [":".join(parts[:2]) for parts in words]


def load_classes(names: Sequence[str]) -> list[type]:
    """The classes that several FILE.py:NAME stand for."""
    found = [load(name) for name in names]
    made = [one() if callable(one) and not isinstance(one, type) else one for one in found]
    return [one if isinstance(one, type) else type(one) for one in made]


def load(name: str) -> Any:
    """What FILE.py:NAME or MODULE:NAME stands for; runs the file, or imports the module."""
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py"):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"{source} is not a file; give FILE.py:NAME.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # where dataclasses look up the types of their fields
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(source)
        except ImportError as error:
            raise ValueError(f"{source} cannot be imported: {error}; give FILE.py:NAME.") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{source} has no {attribute}; give FILE.py:NAME.")
    return getattr(module, attribute)


@REGISTRY.primitive_rule
def _unions(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Fields that take more in Python than on the command line."""
    members: Sequence[Any] = get_args(info.type)
    if optax.GradientTransformation in members:
        return _spec("{sgd,adam,adam:EPSILON}", str)
    if float in members and any(getattr(one, "__origin__", None) is Callable for one in members):
        return _spec("FLOAT", float)
    if AbstractOracle in members:
        return _spec("(the environment)", lambda word: None)
    return None


def _spec(metavar: str, parse: Callable[[str], Any]) -> PrimitiveConstructorSpec:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [str(value)],
    )
