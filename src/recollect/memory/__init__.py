"""The last K batches, as rows that the current policy weighs."""
