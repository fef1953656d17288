"""Gymnasium environments for tests: one that counts, and forty that break their contract."""

import os
import signal
import time
from collections import OrderedDict

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FOUR = spaces.Box(-10, 10, (4,), np.float32)
TWO = spaces.Discrete(2)


class Counting(gym.Env):
    """Observes (number of the episode, step, 0, 0) and pays the step that is reached.

    Episodes end, or are cut, after a random number of steps.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = TWO

    def __init__(self):
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.now = 0
        self.over = False
        self.length = self.np_random.integers(1, 30)
        self.cut = self.np_random.random() < 0.5
        return self._seen(), {}

    def step(self, action):
        assert not self.over, "a step after the end"
        self.now += 1
        self.over = self.now >= self.length
        terminated = bool(self.over and not self.cut)
        truncated = bool(self.over and self.cut)
        return self._seen(), float(self.now), terminated, truncated, {}

    def _seen(self):
        return np.array([self.episode, self.now, 0, 0], np.float64)


class Anything(gym.Env):
    """Random observations of a space, actions of another, both checked; episodes of three steps."""

    def __init__(self, observation_space, action_space):
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.now = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.now += 1
        return self.observation_space.sample(), float(self.now), self.now == 3, False, {}


class Spoiled(gym.Env):
    """Well-behaved until step `at`, when `spoil` changes what `step` (or `reset`) returns."""

    observation_space = FOUR
    action_space = TWO

    def __init__(self, spoil=lambda result: result, at=5, in_reset=False, observation_space=FOUR):
        self.spoil = spoil
        self.at = at
        self.in_reset = in_reset
        self.steps = 0
        self.resets = 0
        self.observation_space = observation_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.now = 0
        result = (np.zeros(4, np.float32), {})
        return self.spoil(result) if self.in_reset and self.resets > 1 else result

    def step(self, action):
        self.steps += 1
        self.now += 1
        result = (np.full(4, self.now, np.float32), 1.0, self.now == 3, False, {})
        return self.spoil(result) if not self.in_reset and self.steps >= self.at else result


class FailsToClose(Counting):
    """Counts how many copies were asked to close, and refuses."""

    asked = 0

    def close(self):
        FailsToClose.asked += 1
        raise RuntimeError("the window is gone")


def raising(error):
    """A spoiler that raises."""

    def spoil(result):
        raise error

    return spoil


def put(index, value):
    """A spoiler that changes one of the values."""
    return lambda result: (*result[:index], value, *result[index + 1 :])


def killed(result):
    """A spoiler that ends the process, as an environment written in C may."""
    os.kill(os.getpid(), signal.SIGKILL)


def changing(result):
    """A spoiler with an observation of another size."""
    return (np.zeros(5, np.float32), *result[1:])


class NoSpaces(gym.Env):
    """Declares neither observations nor actions."""

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}


class FailsToBuild(gym.Env):
    """Raises before it exists."""

    def __init__(self):
        raise RuntimeError("the licence server is down")


def with_spaces(observations=FOUR, actions=TWO):
    """A maker of an environment with these spaces."""
    return lambda: Anything(observations, actions)


OF_DICT = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(0, 1, (2,)))
OF_TUPLE = spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))])
WORDS = np.array(["a", "b", "c", "d"])
BAD = {
    "nan observation": (
        lambda: Spoiled(put(0, np.array([0, np.nan, 0, 0]))),
        "step 5: step gave back .* not finite: number 1",
    ),
    "infinite observation": (
        lambda: Spoiled(put(0, np.full(4, np.inf))),
        "observation that is not finite",
    ),
    "too large for a float": (
        lambda: Spoiled(put(0, np.full(4, 1e300))),
        "observation that is not finite",
    ),
    "short observation": (
        lambda: Spoiled(put(0, np.zeros(3))),
        r"observation has shape \(3,\), but its space has \(4,\)",
    ),
    "long observation": (lambda: Spoiled(changing), r"observation has shape \(5,\)"),
    "flat instead of square": (
        lambda: Spoiled(observation_space=spaces.Box(0, 1, (2, 2))),
        r"its space has \(2, 2\)",
    ),
    "scalar observation": (lambda: Spoiled(put(0, 1.0)), r"shape \(\)"),
    "no observation": (lambda: Spoiled(put(0, None)), r"shape \(\)"),
    "words": (lambda: Spoiled(put(0, WORDS)), "does not consist of real numbers"),
    "ragged observation": (lambda: Spoiled(put(0, [[1], [1, 2]])), r"shape \(\)"),
    "a dict for a box": (lambda: Spoiled(put(0, {"x": 1})), r"shape \(\)"),
    "complex observation": (
        lambda: Spoiled(put(0, np.full(4, 1j))),
        "does not consist of real numbers",
    ),
    "nan reward": (lambda: Spoiled(put(1, np.nan)), "reward nan, which is not finite"),
    "infinite reward": (lambda: Spoiled(put(1, -np.inf)), "reward -inf, which is not finite"),
    "reward beyond single precision": (
        lambda: Spoiled(put(1, 1e39)),
        r"reward 1e\+39, which is not finite in single precision",
    ),
    "no reward": (lambda: Spoiled(put(1, None)), "reward None, which is not a number"),
    "worded reward": (lambda: Spoiled(put(1, "much")), "reward 'much', which is not a number"),
    "vector reward": (lambda: Spoiled(put(1, np.zeros(2))), "which is not a number"),
    "complex reward": (lambda: Spoiled(put(1, 1j)), "which is not a number"),
    "terminated is none": (
        lambda: Spoiled(put(2, None)),
        "terminated = None, which is neither true nor false",
    ),
    "terminated is a word": (lambda: Spoiled(put(2, "no")), "terminated = 'no'"),
    "truncated is an array": (lambda: Spoiled(put(3, np.zeros(2, bool))), "truncated = "),
    "four values": (
        lambda: Spoiled(lambda result: result[:4]),
        "returned 4 values and not observation, reward",
    ),
    "six values": (lambda: Spoiled(lambda result: (*result, 1)), "returned 6 values"),
    "a list": (lambda: Spoiled(list), "returned list and not"),
    "nothing": (lambda: Spoiled(lambda result: None), "returned NoneType"),
    "step raises": (
        lambda: Spoiled(raising(ZeroDivisionError("by zero"))),
        "step 5: step raised ZeroDivisionError: by zero",
    ),
    "step asserts": (lambda: Spoiled(raising(AssertionError())), "step raised AssertionError"),
    "step cannot": (
        lambda: Spoiled(raising(OSError("device is busy"))),
        "step raised OSError: device is busy",
    ),
    "reset raises": (
        lambda: Spoiled(raising(KeyError("map")), in_reset=True),
        "reset raised KeyError: 'map'",
    ),
    "reset gives no info": (
        lambda: Spoiled(lambda result: result[0], in_reset=True),
        "reset returned ndarray and not a pair",
    ),
    "reset gives nan": (
        lambda: Spoiled(put(0, np.full(4, np.nan)), in_reset=True),
        "reset gave back an observation that is not finite",
    ),
    "reset gives the wrong shape": (
        lambda: Spoiled(put(0, np.zeros((4, 1))), in_reset=True),
        r"shape \(4, 1\)",
    ),
    "choice out of range": (
        lambda: Spoiled(observation_space=spaces.Discrete(3)),
        "reset gave back",
    ),
    "no spaces": (NoSpaces, "has no observation_space"),
    "cannot be built": (FailsToBuild, "cannot be made: RuntimeError: the licence server is down"),
    "not an environment": (lambda: object(), "object, which is not a gymnasium.Env"),
    "text observations": (
        with_spaces(spaces.Text(5)),
        "observation space Text is not supported; use Box",
    ),
    "sequence in a dict": (
        with_spaces(spaces.Dict(x=spaces.Sequence(FOUR))),
        r"observation\['x'\] space Sequence is not supported",
    ),
    "box of nothing": (
        with_spaces(spaces.Box(0, 1, (0,))),
        r"observation space Box.* has no numbers, .* give it a constant",
    ),
    "dict of nothing": (
        with_spaces(spaces.Dict()),
        r"observation space Dict\(\), which has no numbers",
    ),
    "graph observations": (with_spaces(spaces.Graph(FOUR, None)), "Graph is not supported"),
    "dict actions": (
        with_spaces(actions=OF_DICT),
        "action space Dict is not supported; use Discrete",
    ),
    "tuple actions": (with_spaces(actions=OF_TUPLE), "action space Tuple is not supported"),
    "whole numbers in a box": (
        with_spaces(actions=spaces.Box(0, 5, (2,), np.int64)),
        "Box of int64 is not supported; use MultiDiscrete",
    ),
    "an instance": (Counting(), "give a function that makes one"),
}
"""A way to make it, and what the message must say."""

OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (6,), np.float64),
    "image": spaces.Box(0, 255, (3, 2, 1), np.uint8),
    "choice": spaces.Discrete(6, start=-2),
    "choices": spaces.MultiDiscrete([4, 2], start=[1, 0]),
    "bits": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict(
        OrderedDict(
            b=spaces.Box(0, 1, (2, 1)),
            a=spaces.Tuple([spaces.Discrete(3), spaces.Box(-9, 9, (), np.int32)]),
        )
    ),
    "tuple": spaces.Tuple([spaces.MultiBinary(3), spaces.Dict(x=spaces.Discrete(3))]),
}
"""Each becomes six numbers, so that their training shares compiled programs."""

ACTIONS = {
    "choice": spaces.Discrete(3, start=5),
    "choices": spaces.MultiDiscrete([[2, 3], [2, 2]], start=[[0, 1], [0, -3]]),
    "bits": spaces.MultiBinary(3),
    "bounded": spaces.Box(-2, 3, (2, 2), np.float64),
    "half bounded": spaces.Box(0, np.inf, (3,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (1,), np.float32),
}


class Hanging(gym.Env):
    """Sleeps for an hour in its fifth step."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 5:
            time.sleep(3600)
        return np.zeros(2, np.float32), 1.0, False, False, {}
