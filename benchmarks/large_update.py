"""One natural-gradient update at window 100: N = 80,000 rows, d = 4,610 parameters.

    python benchmarks/large_update.py

The policy has two hidden layers of 64. Ours against the explicit matrix in plain JAX and, if
PyTorch is installed (`pip install torch==2.13.0`), against its customary conjugate gradients by
double backward of the mean KL. Each runs in a process of its own; memory is the peak resident set
while updating, minus what was resident after compilation. Residuals are of the same system.
"""

import importlib.util
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROWS = 80_000
WIDTHS = (64, 64)
DAMPING = 1e-3


def data():
    """Weights of a policy; observations, actions, importance weights and advantages of its rows."""
    draw = np.random.default_rng(0)
    sizes = [4, *WIDTHS, 2]
    weights = [
        draw.standard_normal((o, i)).astype(np.float32) / np.float32(i**0.5)
        for i, o in itertools.pairwise(sizes)
    ]
    observations = (draw.standard_normal((ROWS, 4)) * 0.5).astype(np.float32)
    actions = draw.integers(0, 2, ROWS)
    importance = np.exp(0.3 * draw.standard_normal(ROWS)).astype(np.float32) / ROWS
    advantages = draw.standard_normal(ROWS).astype(np.float32)
    return weights, observations, actions, importance, advantages


def policy_of(weights):
    """A softmax policy with these weights and zero biases."""
    import jax.numpy as jnp

    from recollect.policies import MLP, Policy, Softmax
    from recollect.policies.networks import Affine

    layers = tuple(Affine(jnp.asarray(w), jnp.zeros(len(w))) for w in weights)
    return Policy(MLP(layers, "tanh"), Softmax())


def ours(tolerance: float):
    """Our update, and how to read its residual."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from recollect.estimate.fisher import Fisher
    from recollect.policies.chunks import fold
    from recollect.policies.scores import score_matrix
    from recollect.step.solve import Auto, ConjugateGradients

    weights, *arrays = data()
    policy = policy_of(weights)
    observations, actions, importance, advantages = map(jnp.asarray, arrays)
    solver = Auto(ConjugateGradients(tolerance=tolerance))
    count = jnp.array(ROWS)

    @eqx.filter_jit
    def update(policy, observations, actions, importance, advantages):
        _, scores = score_matrix(policy, observations, actions)
        gradient = fold(lambda part, u: part.pull(u), scores, importance * advantages, count)
        return solver(
            Fisher(scores, importance, count), gradient, DAMPING, jnp.zeros_like(gradient)
        )

    arguments = (policy, observations, actions.astype(jnp.int32), importance, advantages)
    compiled = update.lower(*arguments).compile()
    return lambda: jax.block_until_ready(compiled(*arguments)), lambda out: float(out.residual)


def explicit():
    """The d×d matrix written out and factored, as one would in plain JAX."""
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
    """Ten steps of conjugate gradients with products by double backward, as is usual in PyTorch."""
    import torch

    weights, observations, actions, importance, advantages = data()
    layers = []
    for index, weight in enumerate(weights):
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data = torch.from_numpy(weight)
        linear.bias.data = torch.zeros(len(weight))
        layers += [linear] if index == len(weights) - 1 else [linear, torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers)
    tensors = [torch.from_numpy(x) for x in (observations, actions, importance, advantages)]
    θ = list(network.parameters())
    flat = lambda parts: torch.cat([part.reshape(-1) for part in parts])

    def update():
        observations, actions, importance, advantages = tensors
        log_probs = torch.log_softmax(network(observations), -1)
        chosen = log_probs.gather(1, actions[:, None])[:, 0]
        gradient = flat(
            torch.autograd.grad((importance * advantages * chosen).sum(), θ, retain_graph=True)
        )
        old = log_probs.detach()
        kl = (importance[:, None] * old.exp() * (old - log_probs)).sum()
        slope = flat(torch.autograd.grad(kl, θ, create_graph=True))
        product = lambda v: flat(torch.autograd.grad(slope @ v, θ, retain_graph=True)) + DAMPING * v
        x = torch.zeros_like(gradient)
        r = gradient.clone()
        p = gradient.clone()
        square = r @ r
        for _ in range(10):
            q = product(p)
            α = square / (p @ q)
            x = x + α * p
            r = r - α * q
            p = r + (r @ r) / square * p
            square = r @ r
        return x, (r.norm() / gradient.norm()).item()

    return update, lambda out: out[1]


def resident(field: str) -> float:
    """Megabytes of memory of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(name: str) -> dict:
    """Time, memory and residual of one way to update, in this process."""
    makers = {"explicit": explicit, "torch": torch_conjugate_gradients}
    update, residual = makers[name]() if name in makers else ours(float(name))
    before = resident("VmRSS")
    # The peak of resident memory starts anew.
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    error = residual(update())
    memory = resident("VmHWM") - before
    times = []
    for _ in range(2 if name == "explicit" else 7):
        start = time.perf_counter()
        update()
        times.append(time.perf_counter() - start)
    return dict(name=name, seconds=float(np.median(times)), megabytes=memory, residual=error)


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(measure(sys.argv[1])))
        return
    from recollect.report.tables import markdown

    peers = ["torch"] if importlib.util.find_spec("torch") else []
    results = []
    for name in ("0.3", "1e-2", "1e-5", *peers, "explicit"):
        command = [sys.executable, __file__, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
    labels = {
        "0.3": "recollect, tolerance 0.3",
        "1e-2": "recollect, tolerance 1e-2 (the default)",
        "1e-5": "recollect, tolerance 1e-5",
        "torch": "PyTorch, 10 plain steps",
        "explicit": "explicit matrix, JAX",
    }
    default = next(result["seconds"] for result in results if result["name"] == "1e-2")
    rows = [
        (
            labels[result["name"]],
            f"{result['seconds']:.2f}",
            f"{result['megabytes']:,.0f}",
            f"{result['residual']:.1e}",
            f"{result['seconds'] / default:.1f}",
        )
        for result in results
    ]
    columns = ("update", "seconds", "extra memory MB", "residual", "times the default")
    print(*markdown(columns, rows), sep="\n")


if __name__ == "__main__":
    main()
