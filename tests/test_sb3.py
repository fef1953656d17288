"""Tools of Stable-Baselines3 work on our agents and files; run where it is installed."""

import numpy as np
import pytest

import recollect as rc

sb3 = pytest.importorskip("stable_baselines3", reason="make benchmark installs Stable-Baselines3")


def test_its_evaluation_and_its_readers_take_ours(tmp_path):
    import gymnasium as gym
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import load_results

    agent = rc.Agent("CartPole-v1", rc.RNPG(window=3), collector=rc.Steps(4, 32))
    agent.learn(total_timesteps=1280, out=tmp_path / "run")
    mean, _ = evaluate_policy(agent, make_vec_env("CartPole-v1", n_envs=3), n_eval_episodes=9)
    assert isinstance(mean, float)
    returns, lengths = evaluate_policy(
        agent, gym.make("CartPole-v1"), n_eval_episodes=4, warn=False, return_episode_rewards=True
    )
    np.testing.assert_array_equal(returns, lengths)
    results = load_results(str(tmp_path / "run"))
    assert len(results) > 5
    # Episodes that had not ended are not there.
    assert 0 <= 1280 - results["l"].sum() < 4 * 500
    np.testing.assert_array_equal(results["r"], results["l"])
