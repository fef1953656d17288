"""Figures over seeds and their errors."""

import numpy as np


def standard_error(curves: np.ndarray) -> np.ndarray:
    """Standard error over seeds at each iteration; NaN where fewer than two seeds are left."""
    left = np.isfinite(curves).sum(0)
    centred = curves - np.nanmean(np.where(left > 0, curves, 0), axis=0)
    squares = np.nansum(centred**2, axis=0)
    return np.where(
        left > 1, np.sqrt(squares / np.maximum(left - 1, 1) / np.maximum(left, 1)), np.nan
    )
