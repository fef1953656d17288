"""Statistics over seeds."""

import numpy as np


def standard_error(curves: np.ndarray) -> np.ndarray:
    """Standard error of the mean over seeds, at each iteration.

    Args:
        curves: one row for each seed; NaN where a seed has no value.

    Returns:
        One number for each iteration; NaN where fewer than two seeds have a value.

    Example:
        >>> import numpy as np
        >>> from recollect.statistics import standard_error
        >>> standard_error(np.array([[1.0, 5.0], [3.0, np.nan]])).tolist()
        [1.0, nan]
    """
    seeds = np.isfinite(curves).sum(0)
    # Zeros where no seed has a value keep nanmean from warning of an empty slice.
    centred = curves - np.nanmean(np.where(seeds > 0, curves, 0), axis=0)
    squares = np.nansum(centred**2, axis=0)
    error = np.sqrt(squares / np.maximum(seeds - 1, 1) / np.maximum(seeds, 1))
    return np.where(seeds > 1, error, np.nan)
