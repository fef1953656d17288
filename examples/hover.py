"""An environment of one's own on Gymnasium's contract: a drone that holds its height in gusts.

    recollect train rtrpo hover:Hover-v0 --environment-steps 40000     # in the folder of this file

The tutorial (docs/start/tutorial.md) goes from here to a policy that acts without this library.
"""

import gymnasium as gym
import numpy as np

INTERVAL = 0.1
"""Seconds between two decisions."""
CEILING = 3.0
"""Metres from the wanted height at which the drone is lost."""


class Hover(gym.Env):
    """Observe height and speed, choose the thrust beyond the weight, be paid for being near."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height = self.np_random.uniform(-2.0, 2.0)
        self.speed = 0.0
        return self._observation(), {}

    def step(self, action):
        gust = self.np_random.normal(scale=1.0)
        self.speed += INTERVAL * (4.0 * float(action[0]) - 0.3 * self.speed + gust)
        self.height += INTERVAL * self.speed
        lost = abs(self.height) > CEILING
        reward = 0.0 if lost else max(0.0, 1.0 - abs(self.height))
        return self._observation(), reward, lost, False, {}

    def render(self):
        picture = np.full((160, 96, 3), 235, np.uint8)
        picture[79:81] = (150, 150, 150)
        row = round(80 - 25 * float(np.clip(self.height, -CEILING, CEILING)))
        picture[max(row - 3, 0) : row + 4, 36:60] = (200, 60, 40)
        return picture

    def _observation(self):
        return np.array([self.height, self.speed], np.float32)


gym.register("Hover-v0", entry_point=Hover, max_episode_steps=100)
