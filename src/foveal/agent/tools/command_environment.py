"""The environment of commands: without secrets, and without variables that start programs.

A command is checked by its text. A variable that makes the shell, the loader or git run something else would make
that check worthless, so none of them reaches a command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SECRET_NAME: Final = re.compile(
    r"API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|^(PG|MYSQL_?)?PASS$"
    r"|^FOVEAL_(SERVER_)?DATABASE$",
    re.I,
)
_SHELL_VARIABLE: Final = re.compile(
    r"BASH_.*|ENV|SHELLOPTS|BASHOPTS|PS[0-4]|PROMPT_COMMAND|IFS|CDPATH|GLOBIGNORE|EXECIGNORE|POSIXLY_CORRECT"
    # Functions that a shell has exported, also as old shells and other systems name them.
    r"|.*\(\).*|.*%%.*",
    re.S,
)
_PROGRAM_VARIABLE: Final = re.compile(
    r"LD_(PRELOAD|AUDIT|DEBUG.*|PROFILE.*)|DYLD_(INSERT|FORCE|PRINT).*"
    r"|PYTHON(STARTUP|INSPECT|BREAKPOINT|USERBASE|HOME)|PERL5(OPT|DB|LIB)|PERLLIB|RUBY(OPT|LIB)|NODE_OPTIONS"
    r"|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|GLIBC_TUNABLES|GCONV_PATH|LOCPATH"
    r"|LESS(OPEN|CLOSE)|MANPAGER|SSH_ASKPASS|SUDO_ASKPASS|RIPGREP_CONFIG_PATH|MAKEFLAGS|MAKEFILES|GNUMAKEFLAGS"
    r"|GIT_(?!(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)$|SSL_CAINFO$).*"
)
_NONINTERACTIVE: Final = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
}


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for non-interactive programs, without keys and other secrets."""
    return {
        name: value for name, value in environment.items() if not _SECRET_NAME.search(name)
    } | _NONINTERACTIVE


def command_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for commands: without secrets and without variables that start programs."""
    kept = {
        name: value
        for name, value in environment.items()
        if not _SHELL_VARIABLE.fullmatch(name) and not _PROGRAM_VARIABLE.fullmatch(name)
    }
    return without_secrets(kept)
