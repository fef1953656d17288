"""Act with an exported policy; needs NumPy alone.

policy = load("policy.npz")
action = act(policy, observations)                              # rows of flat observations
action = act(policy, observations, np.random.default_rng(0))    # drawn instead of the mode
"""

import json

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def load(path):
    """The arrays and facts of an exported policy."""
    with np.load(path, allow_pickle=False) as file:
        return {**json.loads(str(file["facts"])), **{name: file[name] for name in file.files}}


def act(policy, observations, rng=None):
    """Actions as the environment takes them, one for each row of observations."""
    x = (np.asarray(observations, np.float32) - policy["mean"]) / policy["spread"]
    x = np.clip(x, -policy["furthest"], policy["furthest"])
    for i in range(policy["layers"]):
        x = x @ policy[f"weight_{i}"].T + policy[f"bias_{i}"]
        if i < policy["layers"] - 1:
            x = ACTIVATIONS[policy["activation"]](x)
    if policy["head"] == "choices":
        x = np.log(x) if policy["probabilities"] else x
        x = x if rng is None else x + rng.gumbel(size=x.shape)
        parts = np.split(x, np.cumsum(policy["counts"])[:-1], axis=1)
        chosen = np.stack([part.argmax(1) for part in parts], axis=1)
        if policy["grid"].size:
            numbers = policy["grid"][np.arange(chosen.shape[1]), chosen]
            return np.clip(numbers, policy["low"], policy["high"]).reshape(-1, *policy["shape"])
        return (chosen + policy["start"]).reshape(-1, *policy["shape"])
    x = x if rng is None else x + np.exp(policy["log_std"]) * rng.standard_normal(x.shape)
    if policy["head"] == "squashed":
        least, most = policy["bounds"].T
        distance = (most - least) / (1 + np.exp(2 * np.abs(x)))
        x = np.where(x > 0, most - distance, least + distance)
    x = np.clip(x.astype(np.float32), policy["low"], policy["high"])
    return x.reshape(-1, *policy["shape"])
