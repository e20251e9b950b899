"""The loss as a composition of small pure functions."""
