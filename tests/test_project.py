"""Projections: inside stays, outside goes to the nearest point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import parameters
from scipy.optimize import minimize

from recollect.policies import ShiftPolicy, tabular_direct_policy, tabular_softmax_policy
from recollect.step.project import Ball, Box, Simplex, Unconstrained
from recollect.tree import flatten


def with_parameters(values):
    return flatten(tabular_softmax_policy(2, 3))[1](jnp.asarray(values, jnp.float32))


def test_box_ball_and_none():
    θ = np.array([3.0, -0.5, 0.2, 4.0, -7.0, 0.0])
    np.testing.assert_allclose(parameters(Box(-1.0, 2.0)(with_parameters(θ))), np.clip(θ, -1, 2))
    np.testing.assert_allclose(
        parameters(Ball(1.5)(with_parameters(θ))), θ * 1.5 / np.linalg.norm(θ), rtol=1e-5
    )
    np.testing.assert_array_equal(parameters(Ball(100.0)(with_parameters(θ))), np.float32(θ))
    np.testing.assert_array_equal(parameters(Unconstrained()(with_parameters(θ))), np.float32(θ))
    assert Box(-2.0, 2.0)(ShiftPolicy(jnp.array(3000.0))).shift == 2


@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_simplex_finds_the_nearest_distribution(floor):
    noise = jax.random.normal(jax.random.key(1), (12,))
    _, unflatten = flatten(tabular_direct_policy(3, 4))
    projected = Simplex(floor)(unflatten(noise)).network.layers[0].weight.T
    for row, target in zip(
        np.asarray(projected), np.asarray(unflatten(noise).network.layers[0].weight.T), strict=True
    ):
        best = minimize(
            lambda x, target=target: ((x - target) ** 2).sum(),
            np.full(4, 0.25),
            bounds=[(floor, 1)] * 4,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            tol=1e-12,
        )
        np.testing.assert_allclose(row, best.x, atol=1e-4)
    np.testing.assert_allclose(projected.sum(1), 1, rtol=1e-5)
