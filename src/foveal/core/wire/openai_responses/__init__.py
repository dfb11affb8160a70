"""OpenAI Responses: reading and writing."""
