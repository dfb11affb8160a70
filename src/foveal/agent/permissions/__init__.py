"""What the agent may do: rules for commands, protected paths, the sandbox.

command_line.py     parses a command line into the commands that bash runs
command_rules.py    rules by literal words, and the entries of the settings
program_kinds.py    programs that always ask, and that no rule allows by first words
rule_file.py        rules of projects, stored in the user's state folder
protected_paths.py  paths that always ask
decision.py         the decision about a call
"""
