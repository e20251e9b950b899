"""Language feedback: the experience pool, retrieval, prompts and principles. Host Python, no jax."""
