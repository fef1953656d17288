"""Agents: they act as in training, are saved and loaded whole, and go on as if never stopped."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import recollect as rc
from recollect.agent.acting import Actor
from recollect.agent.evaluate import STREAM
from recollect.collect.host import _number
from recollect.run.checkpoint import CheckpointError, named_arrays
from recollect.run.snapshot import Snapshot

SMALL = rc.Architecture(widths=(4,))
BATCH = rc.Steps(copies=2, steps=12)
ALGORITHM = rc.RNPG(window=3, critic=rc.Critic(widths=(4,), epochs=1))


def agent(env="CartPole-v1", algorithm=ALGORITHM, **settings):
    return rc.Agent(env, algorithm, **{"collector": BATCH, "policy": SMALL, **settings})


def assert_same(one: Snapshot, other: Snapshot):
    assert one.iteration == other.iteration
    for name, curve in one.curves.items():
        np.testing.assert_array_equal(curve, other.curves[name])
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])


def test_learning_in_parts_with_a_file_between_them_is_learning_at_once(tmp_path):
    whole = agent(seed=5).learn(iterations=6)
    parts = agent(seed=5).learn(iterations=2).learn(total_timesteps=48)
    assert parts.num_timesteps == 48
    parts.save(tmp_path / "agent")
    assert [path.name for path in tmp_path.iterdir()] == ["agent.zip"]
    loaded = rc.Agent.load(tmp_path / "agent.zip")
    loaded.learn(iterations=2, reset_num_timesteps=False)
    assert loaded.num_timesteps == 6 * 24
    assert_same(loaded._snapshot, whole._snapshot)
    observations = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)
    expected = jax.vmap(whole.policy.mode)(jnp.asarray(observations))
    np.testing.assert_array_equal(loaded.predict(observations, deterministic=True)[0], expected)


def test_methods_of_policies_can_be_compiled_and_are_told_apart():
    one, other = (SMALL.build(jax.random.key(seed), rc.CartPole()) for seed in (1, 2))
    observation = jnp.array([0.1, -0.2, 0.3, 0.9])
    found = [float(jax.jit(policy.log_prob)(observation, jnp.array(1))) for policy in (one, other)]
    expected = [float(policy.log_prob(observation, jnp.array(1))) for policy in (one, other)]
    assert found == pytest.approx(expected)
    assert int(jax.jit(one.mode)(observation)) in (0, 1)
    assert hash(one) == hash(other)
    assert one != other


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(callback=3), "callback=3 is no function"),
        (dict(callback=[rc.StopOnReturn]), "callback=.*StopOnReturn.* is no function"),
        (dict(loggers=[rc.TensorBoard]), "loggers=.* is no list of objects with the methods start"),
    ],
)
def test_watchers_that_are_none_are_refused_before_a_folder_is_made(wrong, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        agent().learn(iterations=1, out=tmp_path / "run", **wrong)
    with pytest.raises(ValueError, match=says):
        rc.train("CartPole-v1", ALGORITHM, iterations=1, out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_seed_of_many_is_what_it_would_be_alone():
    training = rc.train(
        "CartPole-v1", ALGORITHM, collector=BATCH, policy=SMALL, seeds=[4, 9, 2], iterations=3
    )
    second = training.agent(1)
    assert second.config.seeds == (9,)
    np.testing.assert_array_equal(second.curves["kl"], training.curves["kl"][1])
    one, other = named_arrays(second.policy), named_arrays(training.policy(1))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    alone = agent(seed=9).learn(iterations=5)
    second.learn(iterations=2)
    # Side by side XLA may add in another order.
    for name, array in second._snapshot.arrays.items():
        np.testing.assert_allclose(array, alone._snapshot.arrays[name], rtol=1e-3, atol=1e-5)
    for index in (3, -4):
        with pytest.raises(IndexError, match="there are 3"):
            training.policy(index)
        with pytest.raises(IndexError, match="there are 3"):
            training.agent(index)


class Mixed(gym.Env):
    """Spaces of many kinds; says what it was given."""

    observation_space = spaces.Dict(speed=spaces.Box(-9, 9, (2,)), gear=spaces.Discrete(3, start=1))
    given = []
    length = 5

    def __init__(self, action_space):
        self.action_space = action_space
        self.now = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._observed(), {}

    def step(self, action):
        self.given.append(action)
        assert self.action_space.contains(action), action
        self.now += 1
        done = self.now == self.length
        return self._observed(), 1.0, done, False, {"is_success": self.now}

    def _observed(self):
        speed = self.np_random.normal(size=2).astype(np.float32) * 50
        return {"speed": np.clip(speed, -9, 9), "gear": np.int64(1 + self.now % 3)}


ACTIONS = {
    "shifted": spaces.Discrete(2, start=7),
    "bounded": spaces.Box(-0.1, 0.1, (3,)),
    "several": spaces.MultiDiscrete([2, 3], start=[4, 5]),
    "bits": spaces.MultiBinary(3),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_are_what_the_environment_takes_for_what_it_gives(name):
    make = lambda: Mixed(ACTIONS[name])
    env = rc.host(make, max_steps=5)
    learner = agent(env, rc.VPG(critic=rc.Critic(widths=(4,), epochs=1)))
    for deterministic in (True, False):
        copy = make()
        observation, _ = copy.reset(seed=3)
        for _ in range(5):
            action, state = learner.predict(observation, deterministic=deterministic)
            assert state is None
            observation, *_ = copy.step(action)
    vector = gym.vector.SyncVectorEnv([make] * 4)
    observations, _ = vector.reset(seed=2)
    actions, _ = learner.predict(observations, deterministic=True)
    assert vector.action_space.contains(actions)
    vector.step(actions)
    one, _ = learner.predict(
        {key: value[2] for key, value in observations.items()}, deterministic=True
    )
    np.testing.assert_allclose(one, actions[2], rtol=1e-5)


def test_predictions_are_those_of_training():
    """Flattened, normalised, clipped and shifted as the collector does it."""
    env = rc.host(lambda: Mixed(spaces.Box(-0.1, 0.1, (3,))), max_steps=5)
    learner = agent(env, rc.VPG(critic=rc.Critic(widths=(4,), epochs=1)), collector=rc.Episodes(2))
    learner.learn(iterations=2)
    assert float(learner.policy.normaliser.seen) > 0
    Mixed.given.clear()
    found = learner.evaluate(episodes=1, seed=4)
    taken = np.stack(Mixed.given)
    copy = Mixed(spaces.Box(-0.1, 0.1, (3,)))
    observation, _ = copy.reset(seed=_number(4, STREAM, 0, 0, 0))
    for expected in taken:
        action, _ = learner.predict(observation, deterministic=True)
        np.testing.assert_allclose(action, expected, rtol=1e-5)
        observation, *_ = copy.step(action)
    assert found.returns.tolist() == [5.0]
    assert np.abs(taken).max() <= 0.1


def test_a_seed_of_many_on_the_host_goes_on_with_its_own_episodes():
    env = rc.make("CartPole-v1", engine="gymnasium")
    training = rc.train(env, ALGORITHM, collector=BATCH, policy=SMALL, seeds=[4, 9], iterations=3)
    found = training.agent(1).learn(iterations=1)
    both = rc.train(env, ALGORITHM, collector=BATCH, policy=SMALL, seeds=[4, 9], iterations=4)
    np.testing.assert_allclose(found.curves["kl"], both.curves["kl"][1], rtol=1e-3)
    np.testing.assert_allclose(found.curves["ess"], both.curves["ess"][1], rtol=1e-3)


def test_actions_of_compiled_environments_stay_within_their_bounds():
    env = rc.make("Pendulum-v1")
    policy = rc.Architecture(widths=(4,), log_std=3.0).build(jax.random.key(0), env)
    actions = Actor(env, policy, seed=0)(np.zeros((50, 3)), deterministic=False)
    assert np.abs(actions).max() == 2.0
    assert len(set(actions.ravel())) > 2


def test_draws_repeat_themselves_for_a_seed_and_vary_from_call_to_call():
    env = rc.make("Pendulum-v1")
    policy = SMALL.build(jax.random.key(0), env)
    zeros = np.zeros((5, 3), np.float32)
    one, other = Actor(env, policy, seed=1), Actor(env, policy, seed=1)
    first = one(zeros, deterministic=False)
    np.testing.assert_array_equal(first, other(zeros, deterministic=False))
    assert len({float(x) for x in first.ravel()}) == 5
    assert not np.array_equal(first, one(zeros, deterministic=False))
    assert not np.array_equal(first, Actor(env, policy, seed=2)(zeros, deterministic=False))
    for wrong in (np.zeros(4), np.zeros((2, 2, 3)), "word"):
        with pytest.raises(ValueError, match="observation has shape"):
            one(wrong, deterministic=True)


@pytest.mark.parametrize("engine", ["compiled", "gymnasium"])
def test_evaluations_repeat_themselves_and_count_every_episode_once(engine, tmp_path):
    env = rc.make("CartPole-v1", engine=engine, max_steps=60)
    learner = agent(env, rc.VPG(critic=rc.Critic(widths=(4,), epochs=1)))
    found = learner.evaluate(episodes=20, seed=1, deterministic=False)
    assert found.returns.shape == found.lengths.shape == (20,)
    np.testing.assert_array_equal(found.returns, found.lengths)  # a step pays 1
    assert len(set(found.returns)) > 3
    fewer = learner.evaluate(episodes=16, seed=1, deterministic=False)
    np.testing.assert_array_equal(fewer.returns, found.returns[:16])
    other = learner.evaluate(episodes=20, seed=2, deterministic=False)
    assert not np.array_equal(found.returns, other.returns)
    assert found.mean.low < found.mean.value < found.mean.high
    assert "20 stochastic episodes from seed 1: return" in str(found)
    found.write(tmp_path / "episodes.csv")
    lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert lines[0] == "episode,return,length"
    assert len(lines) == 21


def test_evaluated_episodes_are_in_the_order_of_their_seeds():
    """Not in that of their ends, of which the first are the short ones."""
    learner = agent(rc.make("CartPole-v1", engine="gymnasium", max_steps=60))
    found = learner.evaluate(episodes=5, seed=1)
    for episode, expected in enumerate(found.lengths):
        env = gym.make("CartPole-v1", max_episode_steps=60)
        observation, _ = env.reset(seed=_number(1, STREAM, 0, episode, 0))
        for step in range(1, 61):  # noqa: B007
            action, _ = learner.predict(observation, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
        assert step == expected
    assert np.any(np.diff(found.lengths) < 0)


def test_files_of_other_things_are_refused(tmp_path):
    learner = agent().learn(iterations=1)
    learner.save(tmp_path / "cartpole.zip")
    with pytest.raises(CheckpointError, match="does not fit"):
        rc.Agent.load(tmp_path / "cartpole.zip", env="Acrobot-v1")
    with pytest.raises(FileNotFoundError):
        rc.Agent.load(tmp_path / "nothing.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        rc.Agent.load(tmp_path / "text.zip")


class Own(rc.VPG().__class__):
    """A class that no file may name into being."""


def test_what_a_file_cannot_hold_is_asked_for_and_nothing_is_imported(tmp_path):
    path = tmp_path / "own.zip"
    own = Own(critic=rc.Critic(widths=(4,), epochs=1))
    agent(algorithm=own).learn(iterations=1).save(path)
    with pytest.raises(ValueError, match="algorithm is a 'Own', which is not part of recollect"):
        rc.Agent.load(path)
    assert rc.Agent.load(path, use=[Own]).config.algorithm == own
    network = lambda key: SMALL.build(key, rc.make("CartPole-v1"))
    agent(policy=network).learn(iterations=1).save(path)
    with pytest.raises(ValueError, match=r"policy was .*<lambda>, which no file can hold"):
        rc.Agent.load(path)
    assert rc.Agent.load(path, policy=network).num_timesteps == 24
    named = Snapshot.read(path, policy=network)
    config = named.config.plain() | {"env": {"kind": "EnvSettings", "name": "antigravity:X-v0"}}
    with pytest.raises(ValueError, match="a module of your own; give it again"):
        type(named.config).from_plain(config, policy=network)


def test_other_settings_keep_what_fits_and_name_what_does_not(tmp_path):
    path = tmp_path / "agent.zip"
    before = agent().learn(iterations=3)
    before.save(path)
    wider = rc.RNPG(window=5, critic=rc.Critic(widths=(4,), epochs=1), damping=0.5)
    after = rc.Agent.load(path, algorithm=wider)
    with pytest.warns(UserWarning, match="others than before: the window of old batches did not"):
        after.learn(iterations=1)
    assert len(after.curves["kl"]) == 4
    np.testing.assert_array_equal(after.curves["kl"][:3], before.curves["kl"])
    assert after.curves["damping"].tolist()[2:] == pytest.approx([0.1, 0.5])
    faster = rc.Agent.load(path, algorithm=rc.RNPG(window=3, critic=ALGORITHM.critic, damping=0.5))
    faster.learn(iterations=1)  # all of it fits


def test_callbacks_stop_keep_and_evaluate(tmp_path):
    watch = rc.Evaluate(every=2, episodes=2, folder=tmp_path / "best")
    seen = []

    def note(run, info):
        seen.append((run.iteration, float(info["environment_steps"][0])))
        return info["environment_steps"].mean() < 5 * 24  # False as NumPy says it

    learner = agent().learn(
        iterations=9, callback=[rc.Checkpoint(4, tmp_path / "kept"), watch, note]
    )
    assert seen == [(n, 24.0 * n) for n in range(1, 6)]
    assert len(learner.curves["kl"]) == 5
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["00000004.zip"]
    assert [row[:3] for row in watch.rows] == [(0, 2, 48), (0, 4, 96)]
    best = rc.Agent.load(tmp_path / "best" / "0.zip")
    assert best.evaluate(episodes=2).mean.value == watch.best[0]
    assert len((tmp_path / "best" / "evaluations.csv").read_text().splitlines()) == 3
    stops = rc.Evaluate(every=1, episodes=2, target_return=1.0)
    assert len(agent().learn(iterations=9, callback=stops).curves["kl"]) == 1

    def breaks(run, info):
        raise RuntimeError("broken")

    broken = agent()
    with pytest.raises(RuntimeError, match="broken"):
        broken.learn(iterations=3, callback=breaks)
    assert len(broken.curves["kl"]) == 1


def test_the_best_agent_is_kept(tmp_path, monkeypatch):
    """Whatever the order in which good and bad policies come."""
    values = iter([3.0, 7.0, 5.0])

    def scored(policy, env, **settings):
        returns = np.full(2, next(values))
        return rc.Evaluation(returns, returns, seed=0, deterministic=True)

    monkeypatch.setattr("recollect.agent.callbacks.evaluate", scored)
    watch = rc.Evaluate(every=1, episodes=2, folder=tmp_path)
    agent().learn(iterations=3, callback=watch)
    assert watch.best == {0: 7.0}
    assert len(rc.Agent.load(tmp_path / "0.zip").curves["kl"]) == 2


class Varied(Mixed):
    """Episodes of different lengths."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.length = int(self.np_random.integers(2, 9))
        return observation, info


class Told:
    """A logger that remembers."""

    def __init__(self):
        self.calls = []

    def start(self, config, first_step):
        self.calls.append(("start", config.seeds, first_step))

    def log(self, seed, step, figures):
        self.calls.append((seed, step, dict(figures)))

    def close(self):
        self.calls.append("close")


def test_loggers_are_told_what_stable_baselines_would_say():
    env = rc.host(
        lambda: Varied(spaces.Discrete(2)), max_steps=9, info_keywords=("is_success", "missing")
    )
    told = Told()
    learner = agent(env, rc.RPPO(window=2, critic=rc.Critic(widths=(4,), epochs=1)))
    learner.learn(iterations=4, log_interval=2, loggers=[told])
    start, *lines, end = told.calls
    assert start == ("start", (0,), 0)
    assert end == "close"
    assert [(seed, step) for seed, step, _ in lines] == [(0, 48), (0, 96)]
    figures = lines[0][2]
    assert figures["time/total_timesteps"] == 48
    assert figures["time/iterations"] == 2
    assert figures["rollout/batch_rew_mean"] == figures["rollout/ep_len_mean"]
    # Of the ends of episodes alone, where it is their length.
    assert figures["rollout/is_success"] == figures["rollout/ep_len_mean"]
    assert "rollout/missing" not in figures
    known = ("train/approx_kl", "train/clip_fraction", "train/explained_variance", "time/fps")
    known += ("reuse/ess", "reuse/ess_age_0", "reuse/ess_age_1", "reuse/max_weight")
    assert {*known, "health/refused"} <= figures.keys()
    learner.learn(iterations=1, loggers=[again := Told()])
    assert again.calls[0] == ("start", (0,), 0)
    assert again.calls[1][1] == 24
    learner.learn(iterations=1, loggers=[on := Told()], reset_num_timesteps=False)
    assert on.calls[0] == ("start", (0,), 24)
    assert on.calls[1][1] == 48


def test_a_vector_decides_how_many_copies_there_are():
    vector = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4)
    learner = rc.Agent(vector, "vpg", policy=SMALL)
    assert learner.config.collector == rc.Steps(copies=4, steps=128)
    # Steps in which a copy is reset are no transitions.
    assert 400 < learner.learn(iterations=1).num_timesteps <= 512
    with pytest.warns(UserWarning, match="begin anew: it does not do the same .* or resets itself"):
        learner.learn(iterations=1)  # the vector is still open
    vector.close()


def test_ten_lines_tell_what_an_agent_is():
    learner = agent()
    assert "has not learned yet" in str(learner)
    text = str(learner.learn(iterations=1))
    assert text.startswith("Agent: rnpg on CartPole-v1\n")
    assert "window=3" in text
    assert len(text.splitlines()) <= 11


def test_a_resumed_run_remembers_which_agents_were_the_best(tmp_path):
    lines = ["seed,iteration,environment_steps,mean,low,high", "3,2,10,5.0,4,6", "3,4,20,2.0,1,3"]
    (tmp_path / "evaluations.csv").write_text("\n".join([*lines, "3,6,30,9.0,8,10"]) + "\n")
    watch = rc.Evaluate(2, folder=tmp_path)
    watch.remember(4)
    assert watch.best == {3: 5.0}
    assert [row[1] for row in watch.rows] == [2, 4]
    rc.Evaluate(2, folder=tmp_path / "none").remember(4)
