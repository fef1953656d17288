"""Policy gradients that reuse the trajectories of past policies by importance sampling."""

__version__ = "0.1.0"
