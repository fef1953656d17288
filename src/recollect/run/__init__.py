"""Training: many seeds, many iterations, on all cores."""
