"""From prompts to completions: token choice, the decode loop, tokenizers."""
