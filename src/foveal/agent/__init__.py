"""The agent: a loop of model and tools on a session, its tools, permissions and terminal."""
