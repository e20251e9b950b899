"""Reinforcement learning of language models from numbers and from language, in JAX."""
