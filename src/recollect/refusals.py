"""Why an update may leave the policy as it was, in words; read without JAX, by reports."""

REFUSALS = (
    "accepted",
    "the batch holds a number that is not finite",
    "the gradient is not finite",
    "the direction is not finite",
    "the new parameters are not finite",
    "no step was found within the trust region, or none that improves the surrogate",
    "the direction does not solve the system of the natural gradient, its residual is above 1/2",
    "a minibatch gradient is not finite",
    "the gradient is zero, the batches hold no signal",
)
"""What `Info.refused` means."""
BATCH, GRADIENT, DIRECTION, PARAMETERS, SEARCH, UNSOLVED, MINIBATCH, SIGNAL = range(
    1, len(REFUSALS)
)
