"""One natural-gradient update at window 100: N = 80,000 rows, d = 4,610 parameters (two hidden layers of 64).

    python benchmarks/large_update.py

Ours against the explicit matrix in plain JAX and, if PyTorch is installed (`pip install torch==2.13.0`), against its
customary conjugate gradients by double backward of the mean KL. Each runs in a process of its own; memory is the peak
resident set while updating, minus what was resident after compilation. Residuals are of the same system.
"""

import importlib.util
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROWS, WIDTHS, DAMPING = 80_000, (64, 64), 1e-3


def data():
    draw = np.random.default_rng(0)
    sizes = [4, *WIDTHS, 2]
    weights = [
        draw.standard_normal((o, i)).astype(np.float32) / np.float32(i**0.5)
        for i, o in itertools.pairwise(sizes)
    ]
    observations = (draw.standard_normal((ROWS, 4)) * 0.5).astype(np.float32)
    actions = draw.integers(0, 2, ROWS)
    importance = np.exp(0.3 * draw.standard_normal(ROWS)).astype(np.float32) / ROWS
    return weights, observations, actions, importance, draw.standard_normal(ROWS).astype(np.float32)


def policy_of(weights):
    import jax.numpy as jnp

    from recollect.policies import MLP, Policy, Softmax
    from recollect.policies.networks import Affine

    layers = tuple(Affine(jnp.asarray(w), jnp.zeros(len(w))) for w in weights)
    return Policy(MLP(layers, "tanh"), Softmax())


def ours(tolerance: float):
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from recollect.estimate.fisher import Fisher
    from recollect.estimate.gradient import policy_gradient
    from recollect.policies.scores import score_matrix
    from recollect.step.solve import Solver

    weights, *arrays = data()
    policy, (observations, actions, importance, advantages) = (
        policy_of(weights),
        map(jnp.asarray, arrays),
    )
    solver, count = Solver(tolerance=tolerance), jnp.array(ROWS)

    @eqx.filter_jit
    def update(policy, observations, actions, importance, advantages):
        _, scores = score_matrix(policy, observations, actions)
        gradient = policy_gradient(scores, importance, advantages, count)
        return solver(
            Fisher(scores, importance, count), gradient, DAMPING, jnp.zeros_like(gradient)
        )

    arguments = (policy, observations, actions.astype(jnp.int32), importance, advantages)
    compiled = update.lower(*arguments).compile()
    return lambda: jax.block_until_ready(compiled(*arguments)), lambda out: float(out.residual)


def explicit():
    import jax
    import jax.numpy as jnp

    from recollect.tree import flatten

    weights, *arrays = data()
    observations, actions, importance, advantages = map(jnp.asarray, arrays)
    θ, unflatten = flatten(policy_of(weights))

    def update(θ, observations, actions, importance, advantages):
        score = jax.grad(lambda θ, s, a: unflatten(θ).log_prob(s, a))
        scores = jax.vmap(score, (None, 0, 0))(θ, observations, actions)
        gradient = (importance * advantages) @ scores
        matrix = (scores * importance[:, None]).T @ scores + DAMPING * jnp.eye(θ.size)
        x = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix, lower=True), gradient)
        return x, jnp.linalg.norm(matrix @ x - gradient) / jnp.linalg.norm(gradient)

    arguments = (θ, observations, actions.astype(jnp.int32), importance, advantages)
    compiled = jax.jit(update).lower(*arguments).compile()
    return lambda: jax.block_until_ready(compiled(*arguments)), lambda out: float(out[1])


def torch_conjugate_gradients():
    import torch

    weights, observations, actions, importance, advantages = data()
    layers = []
    for index, weight in enumerate(weights):
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.zeros(len(weight))
        layers += [linear] if index == len(weights) - 1 else [linear, torch.nn.Tanh()]
    network, tensors = (
        torch.nn.Sequential(*layers),
        [torch.from_numpy(x) for x in (observations, actions, importance, advantages)],
    )
    θ = list(network.parameters())
    flat = lambda parts: torch.cat([part.reshape(-1) for part in parts])

    def update():
        observations, actions, importance, advantages = tensors
        log_probs = torch.log_softmax(network(observations), -1)
        chosen = log_probs.gather(1, actions[:, None])[:, 0]
        gradient = flat(
            torch.autograd.grad((importance * advantages * chosen).sum(), θ, retain_graph=True)
        )
        kl = (
            importance[:, None] * log_probs.exp().detach() * (log_probs.detach() - log_probs)
        ).sum()
        slope = flat(torch.autograd.grad(kl, θ, create_graph=True))
        product = lambda v: flat(torch.autograd.grad(slope @ v, θ, retain_graph=True)) + DAMPING * v
        x, r, p = torch.zeros_like(gradient), gradient.clone(), gradient.clone()
        square = r @ r
        for _ in range(10):
            q = product(p)
            α = square / (p @ q)
            x, r = x + α * p, r - α * q
            p, square = r + (r @ r) / square * p, r @ r
        return x, (r.norm() / gradient.norm()).item()

    return update, lambda out: out[1]


def resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(name: str) -> dict:
    makers = {"explicit": explicit, "torch": torch_conjugate_gradients}
    update, residual = makers[name]() if name in makers else ours(float(name))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text(
        "5", encoding="utf-8"
    )  # the peak of resident memory starts anew
    found = residual(update())
    memory = resident("VmHWM") - before
    times = []
    for _ in range(2 if name == "explicit" else 7):
        start = time.perf_counter()
        update()
        times.append(time.perf_counter() - start)
    return dict(name=name, seconds=float(np.median(times)), megabytes=memory, residual=found)


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(measure(sys.argv[1])))
        return
    names = [
        "0.3",
        "1e-2",
        "1e-5",
        *(["torch"] if importlib.util.find_spec("torch") else []),
        "explicit",
    ]
    results = []
    for name in names:
        output = subprocess.run(
            [sys.executable, __file__, name], capture_output=True, text=True, check=True
        ).stdout
        results.append(json.loads(output.splitlines()[-1]))
    labels = {
        "0.3": "recollect, tolerance 0.3",
        "1e-2": "recollect, tolerance 1e-2 (the default)",
        "1e-5": "recollect, tolerance 1e-5",
        "torch": "PyTorch, 10 plain steps",
        "explicit": "explicit matrix, JAX",
    }
    print(
        "| update | seconds | extra memory MB | residual | times the default |\n|:--|--:|--:|--:|--:|"
    )
    ours_seconds = next(r["seconds"] for r in results if r["name"] == "1e-2")
    for r in results:
        ratio = r["seconds"] / ours_seconds
        print(
            f"| {labels[r['name']]} | {r['seconds']:.2f} | {r['megabytes']:,.0f} | {r['residual']:.1e} | {ratio:.1f} |"
        )


if __name__ == "__main__":
    main()
