"""Settings that people write out by hand: their names and types are checked as they are given.

A class says the types of its fields where it declares them, and is held to them from its first
line on; so is a rule or an algorithm of one's own. Ranges of numbers are each class's own business
(`checks`).
"""

import dataclasses
import difflib
import functools
import inspect
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import jax
import numpy as np

from recollect.checks import check_name, shown

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

STEPS = "collector=Steps(copies=8, steps=64)"
WIDTHS = "policy=Architecture(widths=(64, 64))"
_FOREIGN = {
    "gamma discount_factor": ("discount",),
    "lam lambda_ gae_lambda": ("gae_lambda", "advantages=GAE(gae_lambda=0.95)"),
    "lr learning_rate step_size alpha pi_lr": (
        "learning_rate",
        "target_kl, which bounds steps",
    ),
    "vf_lr": ("critic=Critic(learning_rate=1e-3)",),
    "max_kl delta": ("target_kl",),
    "cg_damping": ("damping",),
    "cg_max_steps cg_iters cg_iterations": ("solver=ConjugateGradients(max_steps=10)",),
    "line_search_shrinking_factor backtrack_coeff": ("shrink",),
    "line_search_max_iter backtrack_iters": ("backtracks",),
    "clip_range clip_ratio clip_eps clip_epsilon clip_coef clip_param": ("clip",),
    "n_epochs num_epochs update_epochs": ("epochs", "critic=Critic(epochs=10)"),
    "n_critic_updates train_v_iters": ("critic=Critic(epochs=10)",),
    "batch_size minibatch_size": ("minibatch", STEPS, f"train(..., {STEPS})"),
    "n_steps num_steps rollout_length": ("steps", STEPS, f"train(..., {STEPS})"),
    "n_envs num_envs": ("copies", STEPS, f"train(..., {STEPS})"),
    "ent_coef entropy_coef entropy_coeff": ("entropy",),
    "max_grad_norm grad_clip": ("max_gradient_norm",),
    "normalize_advantage norm_adv": ("standardise", "advantages=VTrace(standardise=True)"),
    "hidden_sizes net_arch policy_kwargs": ("widths", WIDTHS, f"train(..., {WIDTHS})"),
    "activation_fn": ("activation",),
    "max_episode_steps time_limit": ("max_steps",),
    "total_timesteps timesteps": ("environment_steps", "train(..., environment_steps=100_000)"),
    "seed random_state": ("seeds", "train(..., seeds=[0])"),
    "buffer_size replay_size": ("window",),
}
FOREIGN = {name: ours for names, ours in _FOREIGN.items() for name in names.split()}
"""What other libraries call something, and how it is written here: the first that is there."""


class Settings:
    """Base of classes whose fields are settings.

    Example:
        >>> import recollect as rc
        >>> rc.PPO(clip_range=0.2)
        Traceback (most recent call last):
        TypeError: PPO has no clip_range; here it is clip.
        >>> rc.PPO(clip="0.2")
        Traceback (most recent call last):
        ValueError: clip='0.2' is not a number; give for example 0.2.
    """

    if not TYPE_CHECKING:  # An editor shall show the fields.

        def __new__(cls, *args, **kwargs):
            names = _parameters(cls)
            check_names(cls.__name__, kwargs, names)
            fields = {field.name: field for field in dataclasses.fields(cls)}
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name in fields:
                    field = fields[name]
                    arrays = not field.metadata.get("static", False)
                    check_type(name, value, field.type, field.default, arrays)
            return super().__new__(cls)


def check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a TypeError, as Python does, if an argument is given that is not known.

    Args:
        owner: what it is given to, for the message.
        given: names of arguments.
        known: all that may be given.
    """
    known = list(known)
    for name in given:
        if name in known:
            continue
        ours = [
            one for one in FOREIGN.get(name, ()) if re.split(r"\W", one)[0] in (*known, "train")
        ]
        near = difflib.get_close_matches(name, known, n=1)
        if ours:
            answer = f"here it is {ours[0]}."
        elif near:
            answer = f"did you mean {near[0]}?"
        else:
            answer = f"it takes {', '.join(known) or 'nothing'}."
        raise TypeError(f"{owner} has no {name}; {answer}")


def answering(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, which answers names that it does not know as `Settings` do."""
    known = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
        return function

    @functools.wraps(function)
    def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        check_names(function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return answer


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, which checks names and types of what it is given as `Settings` do."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def check(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in (*zip(known, args, strict=False), *kwargs.items()):
            if name in known:
                check_type(name, value, known[name].annotation, known[name].default)
        return function(*args, **kwargs)

    return answering(check)


def check_type(
    field: str, value, kind, default: Any = dataclasses.MISSING, arrays: bool = False
) -> None:
    """Raise a ValueError unless `value` is of the type that a field is declared with.

    Args:
        field: name of the argument, for the message.
        value: to be checked.
        kind: a class, a union, a `Literal` or a tuple of any length; others pass unchecked.
        default: what the message gives as an example, if there is any.
        arrays: whether JAX arrays, traced ones too, stand for numbers.

    Example:
        >>> from recollect.settings import check_type
        >>> check_type("widths", 64, tuple[int, ...], default=(64, 64))
        Traceback (most recent call last):
        ValueError: widths=64 is not a tuple of whole numbers; give for example (64, 64).
    """
    if _fits(value, kind, arrays):
        return
    if get_origin(kind) is Literal:
        check_name(field, value, get_args(kind))
    if isinstance(value, type) and any(issubclass(value, one) for one in _classes(kind)):
        name = value.__name__
        raise ValueError(f"{field}={name} is a class; call it, for example {name}().")
    nothing = (None, dataclasses.MISSING, inspect.Parameter.empty)
    absent = any(default is one for one in nothing)
    remedy = "one" if absent else f"for example {shown(default)}"
    raise ValueError(f"{field}={shown(value)} is not {_described(kind)}; give {remedy}.")


def _fits(value, kind, arrays: bool) -> bool:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one, arrays) for one in get_args(kind))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is tuple:
        element = get_args(kind)[0]
        return isinstance(value, tuple) and all(_fits(one, element, arrays) for one in value)
    if origin is Sequence and get_args(kind) == (int,):
        return isinstance(value, Sequence) and all(_fits(one, int, arrays) for one in value)
    if origin is Callable:
        return callable(value)
    if kind in (int, float):
        if arrays and isinstance(value, jax.Array | np.ndarray):
            return isinstance(value, jax.Array) or value.ndim == 0
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    return kind not in _classes(kind) or isinstance(value, kind)


def _classes(kind: Any) -> list[Any]:
    """The classes that a type consists of; those of arrays, whose shapes `jit` checks, left out."""
    if get_origin(kind) in (Union, UnionType):
        return [one for part in get_args(kind) for one in _classes(part)]
    named = isinstance(kind, type) and kind is not Any and get_origin(kind) is None
    return [kind] if named and not hasattr(kind, "array_type") else []


WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    NoneType: "None",
}


def _described(kind) -> str:
    """What an error message calls a type."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " or ".join(_described(one) for one in get_args(kind))
    if origin in (tuple, Sequence):
        return f"a tuple of {_described(get_args(kind)[0]).removeprefix('a ')}s"
    if origin is Callable:
        return "a function"
    if kind in WORDS:
        return WORDS[kind]
    names = [one.__name__ for one in _final(kind)]
    if len(names) > 1:
        return f"one of {', '.join(names)}"
    return f"{'an' if names[0][0] in 'AEIOU' else 'a'} {names[0]}"


def _final(kind: type) -> list[type]:
    """The class itself, or if it is abstract those that are derived from it."""
    if not inspect.isabstract(kind):
        return [kind]
    return [one for derived in kind.__subclasses__() for one in _final(derived)] or [kind]


@functools.cache
def _parameters(cls: type) -> tuple[str, ...]:
    return tuple(inspect.signature(cls.__init__).parameters)[1:]
