"""Exported policies act as `predict` does, without this library."""

import contextlib
import runpy
import zipfile

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces

import recollect as rc
from recollect.agent.acting import Actor
from recollect.agent.export import export
from recollect.cli import main
from recollect.policies.normaliser import Normaliser


class Blank(gym.Env):
    """Nothing but spaces."""

    def __init__(self, actions, observations=spaces.Box(-9, 9, (5,))):
        self.observation_space = observations
        self.action_space = actions

    def reset(self, *, seed=None, options=None):
        return np.zeros(5, np.float32), {}


def hosted(actions):
    return rc.host(lambda: Blank(actions), max_steps=5)


SMALL = rc.Architecture(widths=(4,))
BOX = spaces.Box(np.array([-0.2, -1], np.float32), np.array([0.1, 3], np.float32))
POLICIES = {
    "softmax": (hosted(spaces.Discrete(4, start=3)), rc.Architecture(activation="silu")),
    "choices": (hosted(spaces.MultiDiscrete([2, 3], start=[5, 6])), rc.Architecture()),
    "bits": (hosted(spaces.MultiBinary(3)), rc.Architecture(activation="relu")),
    "gaussian": (hosted(BOX), rc.Architecture(log_std=0.0)),
    "squashed": (hosted(BOX), rc.Architecture(head="squashed")),
    "grid": (hosted(BOX), rc.Architecture(head="grid", points=5)),
    "compiled": (rc.make("Pendulum-v1"), rc.Architecture(widths=(8,))),
    "table": (rc.make("Chain"), None),
    "shift": (rc.make("LQC"), None),
}


def lively(policy):
    """The policy with other numbers, so that all it does differs from state to state."""
    leaves, structure = jax.tree.flatten(eqx.filter(policy, eqx.is_array))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    policy = eqx.combine(jax.tree.unflatten(structure, moved), policy)
    if getattr(policy, "normaliser", None) is None:
        return policy
    rows = 2 + 3 * jax.random.normal(jax.random.key(2), (50, 5))
    normaliser = Normaliser.fresh(5).seeing(rows, jnp.ones(50, bool))
    return eqx.tree_at(lambda policy: policy.normaliser, policy, normaliser)


@pytest.mark.parametrize("name", POLICIES)
def test_exported_policies_act_as_predicted(name, tmp_path):
    env, architecture = POLICIES[name]
    policy = lively((architecture or rc.Architecture()).build(jax.random.key(0), env))
    observations = np.random.default_rng(0).normal(2, 6, (1000, env.observation_size))
    observations = observations.astype(np.float32)
    expected = Actor(env, policy, seed=0)(observations, deterministic=True)
    drawn = Actor(env, policy, seed=0)(np.repeat(observations[:1], 4000, 0), deterministic=False)
    assert len(np.unique(expected, axis=0)) > 1
    # Rounding, in units of the largest action: differences of large numbers may be small.
    close = dict(rtol=1e-5, atol=1e-6 * max(1.0, np.abs(expected).max()))

    export(policy, env, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    (found,) = session.run(["action"], {"observation": observations})
    np.testing.assert_allclose(found, expected, **close)
    many = {"observation": np.repeat(observations[:1], 4000, 0)}
    (sampled,) = session.run(["sampled_action"], many)
    assert_alike(sampled, drawn)

    _, script = export(policy, env, tmp_path / "policy.npz")
    module = runpy.run_path(str(script))
    loaded = module["load"](tmp_path / "policy.npz")
    np.testing.assert_allclose(module["act"](loaded, observations), expected, **close)
    rng = np.random.default_rng(1)
    assert_alike(module["act"](loaded, many["observation"], rng), drawn)

    export(policy, env, tmp_path / "policy.zip")
    with zipfile.ZipFile(tmp_path / "policy.zip") as archive:
        programs = {
            name: jax.export.deserialize(bytearray(archive.read(name)))
            for name in archive.namelist()
        }
    found = programs["deterministic.bin"].call(observations)
    np.testing.assert_allclose(found, expected, **close)
    key = jax.random.key_data(jax.random.key(3))
    assert_alike(np.asarray(programs["sampled.bin"].call(key, many["observation"])), drawn)
    assert programs["deterministic.bin"].platforms == ("cpu", "cuda", "tpu")


def assert_alike(one, other):
    """The same distribution: means and spreads within five standard errors."""
    assert one.shape == other.shape
    one, other = (np.asarray(x, float).reshape(len(x), -1) for x in (one, other))
    error = np.sqrt((one.var(0) + other.var(0)) / len(one))
    assert (np.abs(one.mean(0) - other.mean(0)) <= 5 * error + 1e-6).all()
    np.testing.assert_allclose(one.std(0), other.std(0), rtol=0.15, atol=1e-6)


def test_what_a_format_cannot_express_is_refused(tmp_path):
    env = rc.make("CartPole-v1")
    linear = eqx.nn.Linear(4, 2, key=jax.random.key(0))
    own = rc.Policy(linear, rc.Softmax())
    for path in ("policy.onnx", "policy.npz"):
        with pytest.raises(ValueError, match="network is a Linear, which neither ONNX nor NumPy"):
            export(own, env, tmp_path / path)
    export(own, env, tmp_path / "policy.zip")
    with pytest.raises(ValueError, match=r"ends in none of \.zip, \.onnx, \.npz; give to="):
        export(own, env, tmp_path / "policy")
    with pytest.raises(ValueError, match="to='torch' is unknown"):
        export(own, env, tmp_path / "policy", to="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.zip"]


def test_the_command_names_its_file_by_the_format(tmp_path):
    agent = rc.Agent("CartPole-v1", rc.VPG(), collector=rc.Steps(2, 8), policy=SMALL)
    agent.learn(iterations=1)
    agent.save(tmp_path / "agent.zip")
    with contextlib.chdir(tmp_path):
        assert main(["export", "agent.zip", "--to", "onnx"]) == 0
        assert main(["export", "agent.zip"]) == 0
    assert {*tmp_path.iterdir()} == {
        tmp_path / name for name in ("agent.zip", "policy.onnx", "policy.npz", "policy.py")
    }
    with pytest.raises(ValueError, match=r"ends as a file for onnx does, not for numpy"):
        agent.export(tmp_path / "policy.onnx", to="numpy")
