"""What the agent may do: rules for commands, protected paths, the sandbox."""
