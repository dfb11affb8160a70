"""OpenAI chat completions: reading and writing."""
