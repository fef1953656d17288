"""A policy as a file that acts without this library: StableHLO, ONNX, or arrays for NumPy.

Each takes flat observations in rows, as Gymnasium's `flatten` makes them, and answers with actions
as the environment takes them: normalised, clipped and shifted as in training. StableHLO takes any
policy. ONNX and NumPy know multilayer perceptrons with the heads of the library.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import export as jax_export

from recollect.agent import portable
from recollect.checks import check_name
from recollect.envs import AbstractEnv, HostEnv
from recollect.policies import (
    AbstractHead,
    AbstractPolicy,
    Gaussian,
    GridSoftmax,
    MultiSoftmax,
    Policy,
    Probabilities,
    ShiftPolicy,
    Softmax,
    SquashedGaussian,
)
from recollect.policies.networks import MLP, Affine
from recollect.policies.normaliser import FURTHEST
from recollect.run.checkpoint import replace

FORMATS = ("jax", "onnx", "numpy")
ENDINGS = {".zip": "jax", ".onnx": "onnx", ".npz": "numpy"}
PLATFORMS = ("cpu", "cuda", "tpu")
OPSET = 20
"""Version of ONNX's operators; onnxruntime has had it since 1.17."""


def export(
    policy: AbstractPolicy, env: AbstractEnv | HostEnv, path: str | Path, to: str | None = None
) -> list[Path]:
    """Write a policy as a file that needs nothing of this library.

    Args:
        policy: what acts.
        env: whose actions it gives.
        path: of the file; its ending chooses the format where `to` does not.
        to: `jax`: a zip with two programs in StableHLO for CPUs, GPUs and TPUs,
            `deterministic.bin` (of observations) and `sampled.bin` (of a key and observations), for
            `jax.export.deserialize`. `onnx`: a graph from `observation` to `action` and
            `sampled_action`. `numpy`: arrays, with a script beside them that acts with them.

    Returns:
        The files that were written.

    Raises:
        ValueError: if the format cannot express the policy.
    """
    path = Path(path)
    chosen = ENDINGS.get(path.suffix) if to is None else to
    if chosen is None:
        raise ValueError(
            f"path={str(path)!r} ends in none of {', '.join(ENDINGS)}; give to='onnx', 'numpy' or "
            "'jax'."
        )
    check_name("to", chosen, FORMATS)
    if ENDINGS.get(path.suffix, chosen) != chosen:
        raise ValueError(
            f"path={str(path)!r} ends as a file for {ENDINGS[path.suffix]} does, not for {chosen}; "
            "give another path, or leave out to."
        )
    if chosen == "jax":
        replace(path, _programs(policy, env))
        return [path]
    plan = _plan(policy, env)
    if chosen == "onnx":
        from recollect.agent.onnx_graph import graph

        replace(path, graph(plan))
        return [path]
    buffer = io.BytesIO()
    arrays = {name: value for name, value in plan.items() if isinstance(value, np.ndarray)}
    facts = {name: value for name, value in plan.items() if name not in arrays}
    arrays["facts"] = np.array(json.dumps(facts))
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    script = path.with_suffix(".py")
    replace(path, buffer.getvalue())
    replace(script, Path(portable.__file__).read_bytes())
    return [path, script]


def _programs(policy: AbstractPolicy, env: AbstractEnv | HostEnv) -> bytes:
    """Both programs in a zip."""
    arrays, rest = eqx.partition(policy, eqx.is_array)
    finish = _finish(env)

    def deterministic(observations):
        chosen = eqx.combine(arrays, rest)
        return finish(jax.vmap(chosen.mode)(observations))

    def sampled(key_data, observations):
        chosen = eqx.combine(arrays, rest)
        key = jax.random.wrap_key_data(key_data)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(observations.shape[0]))
        return finish(jax.vmap(chosen.sample)(keys, observations))

    (batch,) = jax_export.symbolic_shape("batch")
    observations = jax.ShapeDtypeStruct((batch, env.observation_size), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for function, arguments in (
            (deterministic, (observations,)),
            (sampled, (key, observations)),
        ):
            program = jax_export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
            archive.writestr(f"{function.__name__}.bin", bytes(program.serialize()))
    return buffer.getvalue()


def _finish(env: AbstractEnv | HostEnv):
    """From what a policy draws to what the environment takes, in JAX."""
    plain = _conversion(env)

    def finish(actions):
        if plain["whole"]:
            shifted = actions.reshape(actions.shape[0], -1) + jnp.asarray(plain["start"])
            return shifted.reshape(actions.shape[0], *plain["shape"])
        low, high = (jnp.asarray(plain[name], jnp.float32) for name in ("low", "high"))
        flat = jnp.clip(actions.reshape(actions.shape[0], -1), low, high)
        return flat.reshape(actions.shape[0], *plain["shape"])

    return finish


def _conversion(env: AbstractEnv | HostEnv) -> dict[str, Any]:
    """How drawn actions become those of the environment: shape, first numbers or bounds."""
    actions = env.actions
    infinite = np.full(actions.size, np.inf, np.float32)
    plain: dict[str, Any] = dict(
        whole=actions.whole, shape=actions.shape, start=np.zeros(1, np.int64)
    )
    plain |= dict(low=-infinite, high=infinite)
    if actions.bounds is not None:
        plain["low"], plain["high"] = np.array(actions.bounds, np.float32).T
    if not isinstance(env, HostEnv):
        return plain
    match env.action_space:
        case spaces.Discrete() as space:
            plain["start"] = np.array([space.start])
        case spaces.MultiDiscrete() as space:
            plain |= dict(start=space.start.ravel().astype(np.int64), shape=space.shape)
        case spaces.Box() as space:
            plain |= dict(low=space.low.ravel().astype(np.float32), shape=space.shape)
            plain["high"] = space.high.ravel().astype(np.float32)
        case space:
            plain["shape"] = space.shape
    return plain


def _plan(policy: AbstractPolicy, env: AbstractEnv | HostEnv) -> dict[str, Any]:
    """What a multilayer perceptron with a head of the library consists of, in NumPy.

    Raises:
        ValueError: if the policy is something else.
    """
    if isinstance(policy, ShiftPolicy):
        linear = MLP((Affine(-jnp.eye(1), policy.shift[None]),), "relu")
        policy = Policy(linear, Gaussian(jnp.zeros(1)))
    if not isinstance(policy, Policy) or not isinstance(policy.network, MLP):
        found = type(policy.network if isinstance(policy, Policy) else policy).__name__
        raise ValueError(
            f"the policy's network is a {found}, which neither ONNX nor NumPy files can express; "
            "export to='jax'."
        )
    layers = policy.network.layers
    plan = {**_conversion(env), **_head(policy.head, len(layers[-1].weight))}
    plan |= dict(layers=len(layers), activation=policy.network.activation)
    for i, layer in enumerate(layers):
        bias = jnp.zeros(len(layer.weight)) if layer.bias is None else layer.bias
        plan |= {f"weight_{i}": np.asarray(layer.weight), f"bias_{i}": np.asarray(bias)}
    plan |= dict(mean=np.zeros(1, np.float32), spread=np.ones(1, np.float32), furthest=np.inf)
    if policy.normaliser is not None and float(policy.normaliser.seen) > 0:
        units = policy.normaliser.units
        plan |= dict(
            mean=np.asarray(units.mean), spread=np.asarray(units.spread), furthest=FURTHEST
        )
    plan["furthest"] = np.array(plan["furthest"], np.float32)
    return plan


def _head(head: AbstractHead, outputs: int) -> dict[str, Any]:
    """What a head does with the outputs of a network."""
    choices: dict[str, Any] = dict(head="choices", probabilities=False, grid=np.zeros((0, 0)))
    match head:
        case Softmax():
            return {**choices, "counts": [outputs]}
        case Probabilities():
            return {**choices, "counts": [outputs], "probabilities": True}
        case MultiSoftmax():
            return {**choices, "counts": list(head.counts)}
        case GridSoftmax():
            low, high = np.array(head.bounds).T
            grid = np.linspace(low, high, head.points, axis=1).astype(np.float32)
            return {**choices, "counts": [head.points] * len(head.bounds), "grid": grid}
        case SquashedGaussian():
            bounds = np.array(head.bounds, np.float32)
            return dict(head="squashed", log_std=np.asarray(head.log_std), bounds=bounds)
        case Gaussian():
            return dict(head="gaussian", log_std=np.asarray(head.log_std))
    raise ValueError(
        f"the policy's head is a {type(head).__name__}, which neither ONNX nor NumPy files can "
        "express; export to='jax'."
    )
