"""From estimates to the next θ: directions, how far to go along them, and where θ may be."""
