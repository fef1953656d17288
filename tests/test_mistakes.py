"""Bad input gives one sentence with field, value and remedy.

The expressions run in a process of their own, as a user's would: without the type checks that
pytest adds.
"""

import inspect
import json
import subprocess
import sys

import pytest

import recollect as rc
from recollect.settings import FOREIGN

PREAMBLE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from recollect import *
half = np.full((2, 2, 2), 0.5)
zero, even, key = np.zeros((2, 2)), np.full(2, 0.5), jax.random.key(0)
short = CartPole(max_steps=5)
"""

MISTAKES = {
    "CartPole(max_steps=0)": ["max_steps=0", "at least 1"],
    "CartPole(max_steps=2.5)": ["max_steps=2.5", "whole number"],
    "LQC(discount=1.0)": ["discount=1.0", "[0, 1)"],
    "LQC(discount=-0.1)": ["discount=-0.1", "[0, 1)"],
    "Tabular(half * 0.8, zero, even, 0.9)": ["transitions sums to 0.8 at (0, 0)", "sum to 1"],
    "Tabular(half, zero, np.array([1.5, -0.5]), 0.9)": ["initial", "negative"],
    "Tabular(np.full((2, 2, 3), 1 / 3), zero, even, 0.9)": [
        "transitions has shape (2, 2, 3)",
        "(2, 2, 2)",
    ],
    "Tabular(half, zero, np.full(3, 1 / 3), 0.9)": ["initial has shape (3,)", "2 states"],
    "Tabular(half, zero + np.nan, even, 0.9)": ["rewards", "finite"],
    "Tabular(half, zero, even, 1.0)": ["discount=1.0"],
    "garnet(0, states=3, branching=4)": ["branching=4", "at most the number of states, 3"],
    "make('CartPol-v1')": ["did you mean 'CartPole-v1'"],
    "make('Hopper')": ["env='Hopper' is unknown", "choose from"],
    "Episodes(0)": ["episodes=0", "at least 1"],
    "Episodes(2.5)": ["episodes=2.5"],
    "Draws(-1)": ["samples=-1"],
    "Steps(4, 0)": ["steps=0"],
    "softmax_policy(key, 4, 2, activation='rellu')": ["did you mean 'relu'"],
    "softmax_policy(key, 4, 2, widths=(0,))": ["widths=0"],
    "squashed_gaussian_policy(key, 3, ((1.0, -1.0),))": ["bounds=(1.0, -1.0)", "low < high"],
    "squashed_gaussian_policy(key, 3, ((0.0, float('inf')),))": ["bounds=(0.0, inf)", "finite"],
    "squashed_gaussian_policy(key, 3, (-1.0, 1.0))": ["bounds=(-1.0, 1.0)", "as in ((-1.0, 1.0),)"],
    "grid_softmax_policy(key, 3, (('a', 1.0),))": ["bounds=(('a', 1.0),)", "pairs of numbers"],
    "grid_softmax_policy(key, 3, ((1000.0, 1000.001),))": [
        "bounds=(1000.0, 1000.001)",
        "too narrow for float32",
    ],
    "grid_softmax_policy(key, 3, ((-1.0, 1.0),), points=1)": ["points=1", "at least 2"],
    "RNPG(window=0)": ["window=0", "1 is the vanilla algorithm"],
    "RPG(window=-3)": ["window=-3"],
    "RNPG(fisher_window=0)": ["fisher_window=0"],
    "RNPG(damping=0.0)": ["damping=0.0", "above 0"],
    "RNPG(damping=-1e-3)": ["damping=-0.001"],
    "VPG(discount=1.0)": ["discount=1.0", "[0, 1)"],
    "VPG(learning_rate=0.0)": ["learning_rate=0.0", "above 0"],
    "VPG(learning_rate=float('nan'))": ["learning_rate=nan"],
    "VPG(step_decay=-0.5)": ["step_decay=-0.5"],
    "VPG(optimizer='adm')": ["did you mean 'adam'"],
    "VPG(optimizer='adam:zero')": ["optimizer='adam:zero'", "adam:0.01"],
    "VPG(optimizer='sgd:0.1')": ["optimizer='sgd:0.1'"],
    "RNPG(fisher='expected')": ["fisher='expected'", "ExpectedFisher"],
    "RNPG(weights='truncated')": ["weights='truncated'", "PolicyRatio()"],
    "RNPG(advantages='gae')": ["advantages='gae'", "GAE"],
    "RNPG(advantages=GAE)": ["advantages=GAE is a class", "GAE()"],
    "RNPG(solver='cg')": ["solver='cg'", "ConjugateGradients"],
    "RNPG(shares=3)": ["shares=3", "Uniform()"],
    "RNPG(project='box')": ["project='box'", "Box"],
    "RNPG(critic=64)": ["critic=64", "Critic("],
    "Architecture(widths=64)": ["widths=64", "a tuple of whole numbers", "(64, 64)"],
    "Architecture(widths=[64, 64])": ["widths=[64, 64]", "a tuple of whole numbers"],
    "Architecture(activation='rellu')": ["did you mean 'relu'"],
    "Architecture(points=1)": ["points=1", "at least 2"],
    "Architecture(log_std=float('inf'))": ["log_std=inf", "finite"],
    "Architecture(normalise='yes')": ["normalise='yes'", "True or False"],
    "Critic(widths=64)": ["widths=64", "(64, 64)"],
    "train(short, RNPG, iterations=1)": ["algorithm=RNPG is not yet made", "RNPG()"],
    "train(short, NPG, iterations=1)": ["algorithm=NPG is not yet made", "NPG()"],
    "train(short, 3, iterations=1)": ["algorithm=3", "'rnpg'"],
    "train(short, 'rnpq', iterations=1)": ["did you mean 'rnpg'"],
    "train(short, VPG(), collector=4, iterations=1)": ["collector=4", "Episodes()"],
    "train(short, VPG(), collector=Steps, iterations=1)": ["collector=Steps is a class", "Steps()"],
    "train(short, VPG(), policy='mlp', iterations=1)": ["policy='mlp'", "Architecture"],
    "train(3, VPG(), iterations=1)": ["env=3", "a function that makes one"],
    "Returns(baseline='meen')": ["baseline='meen'", "did you mean 'mean'"],
    "GAE(baseline='mean')": ["GAE needs values", "baseline='mean'", "baseline='critic'"],
    "GAE(gae_lambda=1.5)": ["gae_lambda=1.5", "[0, 1]"],
    "VTrace(truncate_c=0.0)": ["truncate_c=0.0"],
    "Critic(widths=(0,))": ["widths=0"],
    "Critic(fit='all')": ["fit='all'", "'window'"],
    "Critic(epochs=0)": ["epochs=0"],
    "Critic(learning_rate=-1.0)": ["learning_rate=-1.0"],
    "TRPO(target_kl=0.0)": ["target_kl=0.0", "0.01"],
    "TRPO(shrink=1.0)": ["shrink=1.0", "between 0 and 1"],
    "TRPO(backtracks=-1)": ["backtracks=-1"],
    "RTRPO(fisher_window=0)": ["fisher_window=0"],
    "PPO(clip=0.0)": ["clip=0.0", "0.2"],
    "PPO(clip_centre='two')": ["clip_centre='two'", "'current'"],
    "PPO(epochs=0)": ["epochs=0"],
    "PPO(minibatch=2.5)": ["minibatch=2.5"],
    "PPO(entropy=-0.1)": ["entropy=-0.1"],
    "PPO(target_kl=-1.0)": ["target_kl=-1.0"],
    "PPO(max_gradient_norm=0.0)": ["max_gradient_norm=0.0"],
    "RPPO(window=0)": ["window=0"],
    "Architecture(head='sqashed')": ["did you mean 'squashed'"],
    "train(short, TRPO(), iterations=1, policy=Architecture(head='grid'))": [
        "head='grid'",
        "CartPole has choices",
    ],
    "train(LQC(), TRPO(discount=0.5), iterations=1, policy=Architecture(head='squashed'))": [
        "needs actions with bounds",
        "LQC",
    ],
    "preset('rtrop', 'CartPole-v1')": ["did you mean 'rtrpo'"],
    "preset('rtrpo', 'hopper-v5')": ["env='hopper-v5'", "did you mean 'Hopper-v5'"],
    "PolicyRatio(truncate=0.0)": ["truncate=0.0"],
    "OccupancyRatio(truncate=-1.0)": ["truncate=-1.0"],
    "ConjugateGradients(tolerance=0.0)": ["tolerance=0.0", "between 0 and 1"],
    "ConjugateGradients(max_steps=0)": ["max_steps=0"],
    "VPG(learning_rate=float('inf'))": ["learning_rate=inf", "above 0"],
    "VPG(learning_rate=np.float32(-1))": ["learning_rate=-1.0", "above 0"],
    "VPG(learning_rate='0.1')": ["learning_rate='0.1'", "not a number"],
    "RNPG(damping=float('inf'))": ["damping=inf"],
    "TRPO(target_kl=None)": ["target_kl=None", "0.005"],
    "RNPG(target_kl=0.0)": ["target_kl=0.0", "None for no bound"],
    "TRPO(target_kl=float('inf'))": ["target_kl=inf"],
    "RNPG(window=np.int64(0))": ["window=0"],
    "RNPG(window=np.float64(3))": ["window="],
    "train(short, VPG(), iterations=1, seeds=3.5)": ["seeds=3.5", "how many"],
    "train(short, VPG(), iterations=1, seeds=[-1])": ["seeds=[-1]", "negative"],
    "train(short, VPG(advantages=Returns()), collector=Draws(6), iterations=1)": [
        "Draws collects single steps",
        "baseline='critic'",
        "ExactAdvantages()",
    ],
    "train(LQC(), VPG(discount=0.5, advantages=Returns()), collector=Draws(6), iterations=1)": [
        "Draws collects single steps"
    ],
    "train(LQC(), VPG(discount_states=True, discount=0.5, advantages=ExactAdvantages()), "
    "collector=Draws(6), iterations=1)": ["discount_states=True would discount twice"],
    "Box(1.0, -1.0)": ["low=1.0", "high=-1.0"],
    "Box('a', 1.0)": ["low='a'", "not a number"],
    "Box(np.float32(1), np.float32(-1))": ["low=", "not below"],
    "Ball(0.0)": ["radius=0.0"],
    "Ball([1.0])": ["radius=[1.0]", "not a number"],
    "Uniform(newest=0)": ["newest=0", "at least 1"],
    "Uniform(newest=2.5)": ["newest=2.5", "whole number"],
    "VPG(optimizer=3)": ["optimizer=3", "'adam'"],
    "VPG(discount_states=1)": ["discount_states=1", "True or False"],
    "RNPG(damping=np.array([0.1, 0.2]))": ["damping=", "not a number"],
    "ConjugateGradients(preconditioner_rows=2.5)": ["preconditioner_rows=2.5", "whole number"],
    "ExactAdvantages(oracle=3)": ["oracle=3", "LQC"],
    "Preset('rnpg', Episodes(4))": ["algorithm='rnpg'"],
    "chain(length='3')": ["length='3'", "whole number"],
    "make(3)": ["name=3", "string"],
    "softmax_policy(key, 4, 2, widths=64)": ["widths=64", "(32,)"],
    "gaussian_policy(key, 4, 1, log_std='wide')": ["log_std='wide'", "not a number"],
    "Simplex(1.0)": ["floor=1.0"],
    "train(short, VPG())": ["iterations=None", "at least one"],
    "train(short, VPG(), iterations=0)": ["iterations=0"],
    "train(short, VPG(), iterations=1, seeds=0)": ["seeds=0"],
    "train(short, VPG(), iterations=1, seeds=[])": ["seeds", "empty"],
    "train(short, VPG(), iterations=1, target_return=float('nan'))": ["target_return=nan"],
    "train(short, VPG(), iterations=1, policy=softmax_policy(key, 3, 2))": [
        "policy does not fit CartPole",
        "4 features",
    ],
    "train(short, VPG(), iterations=1, policy=softmax_policy(key, 4, 3))": [
        "3 actions",
        "CartPole has 2",
    ],
    "train(short, VPG(), iterations=1, policy=gaussian_policy(key, 4, 1))": [
        "CartPole takes one of 2 choices"
    ],
    "train(LQC(), VPG(discount=0.5), iterations=1, policy=softmax_policy(key, 1, 2))": [
        "LQC takes 1 real numbers"
    ],
    "train(LQC(), VPG(), iterations=1)": ["discount=0.99", "discount=0.5"],
    "train(short, VPG(weights=OccupancyRatio()), iterations=1)": [
        "CartPole does not know",
        "PolicyRatio()",
    ],
    "train(short, VPG(advantages=ExactAdvantages()), iterations=1)": ["Returns()"],
    "train(LQC(), RNPG(discount=0.5, fisher=ExpectedFisher()), iterations=1)": [
        "ExpectedFisher needs",
        "ScoreFisher()",
    ],
    "train(chain(3), VPG(discount=0.9, project=Simplex(0.5)), "
    "policy=tabular_direct_policy(3, 2), iterations=1)": [
        "floor=0.5",
        "2 actions",
    ],
    "train(chain(3), VPG(discount=0.9), policy=tabular_direct_policy(3, 2), iterations=1)": [
        "project=Unconstrained",
        "Simplex()",
    ],
}


UNKNOWN = {
    "RNPG(gamma=0.9)": "RNPG has no gamma; here it is discount.",
    "VPG(lr=0.1)": "VPG has no lr; here it is learning_rate.",
    "TRPO(cg_damping=0.1)": "TRPO has no cg_damping; here it is damping.",
    "RTRPO(gae_lambda=0.9)": "RTRPO has no gae_lambda; here it is advantages=GAE(gae_lambda=0.95).",
    "PPO(clip_range=0.2)": "PPO has no clip_range; here it is clip.",
    "PPO(n_epochs=4)": "PPO has no n_epochs; here it is epochs.",
    "PPO(batch_size=64)": "PPO has no batch_size; here it is minibatch.",
    "RPPO(n_steps=64)": "here it is train(..., collector=Steps(copies=8, steps=64)).",
    "PPO(ent_coef=0.1)": "PPO has no ent_coef; here it is entropy.",
    "PPO(max_grad_norm=1.0)": "PPO has no max_grad_norm; here it is max_gradient_norm.",
    "Critic(hidden_sizes=(64,))": "Critic has no hidden_sizes; here it is widths.",
    "Architecture(net_arch=(64,))": "Architecture has no net_arch; here it is widths.",
    "train(short, VPG(), total_timesteps=9)": "here it is environment_steps.",
    "RNPG(dampng=0.1)": "RNPG has no dampng; did you mean damping?",
    "VPG(clip=0.1)": "VPG has no clip; it takes discount, ",
    "make('CartPole-v1', max_step=9)": "CartPole has no max_step; did you mean max_steps?",
    "make('Pendulum-v1', engine='gymnasium', max_step=9)": "did you mean max_steps?",
    "VNPG(window=3)": "VNPG reuses nothing",
}
"""Names of arguments that are not ours; Python's own kind of error for these is a TypeError."""


NUMPY = [
    "train(short, RNPG(window=np.int64(3), damping=np.float32(0.1)), iterations=np.int64(2), "
    "seeds=np.arange(2))",
    "train(short, VPG(learning_rate=np.float64(0.1)), iterations=1, seeds=np.int64(2))",
    "RNPG(damping=np.array(0.1), discount_states=np.bool_(True))",
    "RNPG(damping=jnp.array(0.1))",
    "Architecture(widths=(np.int64(8),), points=np.int64(3))",
    "grid_softmax_policy(key, 3, ((-1.0, 1.0),), points=np.int64(3))",
    "Uniform(newest=np.int64(2))",
]


def test_mistakes_are_named_and_numpy_numbers_are_numbers():
    """In one process without pytest's type checks, which would come first."""
    program = PREAMBLE + (
        "found = {}\n"
        "for expression in json.load(sys.stdin):\n"
        "    try:\n"
        "        eval(expression)\n"
        "        found[expression] = 'no error'\n"
        "    except Exception as error:\n"
        "        found[expression] = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps(found))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([*MISTAKES, *UNKNOWN, *NUMPY]),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {
        **{mistake: ("ValueError: ", *says) for mistake, says in MISTAKES.items()},
        **{mistake: ("TypeError: ", says) for mistake, says in UNKNOWN.items()},
        **dict.fromkeys(NUMPY, ("no error",)),
    }
    found = json.loads(result.stdout.splitlines()[-1])
    assert found.keys() == expected.keys()
    wrong = {
        expression: message
        for expression, message in found.items()
        if not message.startswith(expected[expression][0])
        or not all(words in message for words in expected[expression])
    }
    assert not wrong


@pytest.mark.parametrize("answer", sorted({one for ours in FOREIGN.values() for one in ours}))
def test_translations_exist(answer):
    """What foreign names are answered with can be given to something public."""
    public = {name: getattr(rc, name) for name in rc.__all__ if name != "EnvironmentFailure"}
    takes = {name for one in public.values() for name in inspect.signature(one).parameters}
    name, _, value = answer.removeprefix("train(..., ").partition("=")
    assert name.partition(",")[0] in takes
    if answer.endswith(")") and answer[0] != "t":
        eval(value, public)
