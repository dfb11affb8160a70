"""What the agent may do: rules for commands, protected paths, the sandbox.

command_rules.py    a command line as the commands that bash runs; rules by literal words, of the settings and of
                    projects, which are stored in the user's state folder
program_kinds.py    what kinds of commands do: only read, commit, delete, fetch; what no rule allows by first words
protected_paths.py  paths that always ask, and that no command in the sandbox changes
decision.py         the decision about a call
"""
