"""Environment steps a second of PPO in training, without compilation.

    python benchmarks/throughput.py

One seed, CartPole-v1, settings of rl-baselines3-zoo: eight copies, 32 steps each an iteration, 20
epochs of one minibatch of 256, networks of 64 and 64 tanh units for policy and value. Beside ours
Stable-Baselines3's in the same run, if it is installed (extra `benchmark`).
"""

import contextlib
import time

from recollect import PPO, Architecture, CartPole, Critic, Steps, train
from recollect.estimate.advantages import GAE
from recollect.report.tables import markdown

STEPS = 300_000
PEER_STEPS = 30_000
ZOO = dict(
    discount=0.98, learning_rate=1e-3, epochs=20, minibatch=256, clip=0.2, max_gradient_norm=0.5
)


def ours() -> float:
    """Steps a second of our PPO."""
    run = train(
        CartPole(),
        PPO(
            advantages=GAE(gae_lambda=0.8, standardise=True),
            critic=Critic(
                widths=(64, 64), epochs=20, minibatch=256, learning_rate=1e-3, fit="batch"
            ),
            **ZOO,
        ),
        collector=Steps(8, 32),
        policy=Architecture(widths=(64, 64), activation="tanh"),
        environment_steps=STEPS,
        progress=False,
    )
    return STEPS / run.clock[-1]


def theirs() -> float:
    """Steps a second of Stable-Baselines3's PPO."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    settings = dict(
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=1e-3,
        clip_range=0.2,
    )
    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=0), seed=0, device="cpu", **settings
    )
    start = time.perf_counter()
    model.learn(PEER_STEPS)
    return PEER_STEPS / (time.perf_counter() - start)


def main() -> None:
    rates = sorted(ours() for _ in range(3))
    rows = [("recollect PPO, three runs", ", ".join(f"{rate:,.0f}" for rate in rates))]
    with contextlib.suppress(ImportError):
        peer = theirs()
        rows.append(("Stable-Baselines3 PPO", f"{peer:,.0f}"))
        rows.append(("recollect (median) / Stable-Baselines3", f"{rates[1] / peer:.1f}"))
    print(*markdown(("what", "environment steps/s"), rows), sep="\n")


if __name__ == "__main__":
    main()
