"""An environment that hangs in a worker is ended by `step_timeout`, with one sentence.

python reliability/hanging.py [TIMES]
"""

import time

import gymnasium as gym
import numpy as np
from common import count, problem, quiet, record, set_up

TIMEOUT = 2.0


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


def main() -> None:
    set_up()
    quiet()
    import recollect as rc

    times = count(3)
    ended = 0
    for _ in range(times):
        env = rc.host(Hanging, workers=True, step_timeout=TIMEOUT, max_steps=30)
        try:
            rc.train(**{**problem(), "env": env}, iterations=3)
        except rc.EnvironmentFailure as failure:
            print(failure)
            ended += "\n" not in str(failure) and "step_timeout" in str(failure)
    result = f"{ended} ended by one sentence, where it would have slept for an hour"
    record("hanging.py", "an environment that hangs in a worker", f"{times}", result)


if __name__ == "__main__":
    main()
