"""Command `completion`: scripts that complete commands and options in a shell.

    source <(foveal completion bash)               # in ~/.bashrc
    source <(foveal completion zsh)                # in ~/.zshrc, after compinit
    foveal completion fish | source                # in ~/.config/fish/config.fish

The script is generated from the parser, so it knows every command of this version. Where it knows nothing better,
the shell completes file names.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Final, NamedTuple

MAX_ABOUT_CHARS: Final = 70
"""Longest description of a command or option."""


class CompletedOption(NamedTuple):
    """An option of a command."""

    names: tuple[str, ...]
    about: str
    takes_value: bool
    values: tuple[str, ...]
    """The possible values; empty if they are not known."""


class CompletedCommand(NamedTuple):
    """A command with its options, and the words that can follow it."""

    name: str
    about: str
    options: tuple[CompletedOption, ...]
    words: tuple[str, ...]


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell."""
    commands = tuple(_commands(parser))
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(write(commands)) + "\n"


# ── Reading the parser ───────────────────────────────────────────────────────────────────────────────────


def _commands(parser: argparse.ArgumentParser) -> Iterator[CompletedCommand]:
    choices = _subcommands(parser)
    if choices is None:
        return
    about = {action.dest: action.help or "" for action in choices._choices_actions}
    for name, command in choices.choices.items():
        yield CompletedCommand(
            name=name,
            about=_short(about.get(name, "")),
            options=tuple(_options(command)),
            words=tuple(_words(command)),
        )


def _subcommands(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    found = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, None)


def _options(command: argparse.ArgumentParser) -> Iterator[CompletedOption]:
    for action in command._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            yield CompletedOption(
                names=tuple(action.option_strings),
                about=_short(action.help or ""),
                takes_value=action.nargs != 0,
                values=tuple(map(str, action.choices or ())),
            )


def _words(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the words that a command's arguments can be, its own subcommands among them."""
    for action in command._actions:
        if not action.option_strings and action.choices:
            yield from map(str, action.choices)


def _short(about: str) -> str:
    line = " ".join(about.split()).replace("%%", "%")
    return line if len(line) <= MAX_ABOUT_CHARS else line[: MAX_ABOUT_CHARS - 1] + "…"


# ── Scripts ──────────────────────────────────────────────────────────────────────────────────────────────


def _bash(commands: Sequence[CompletedCommand]) -> Iterator[str]:
    yield "_foveal() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"'
    yield "    local words="
    yield '    case "$command" in -*) command=chat ;; esac  # without a command, `foveal` starts the chat'
    yield '    if [ "$COMP_CWORD" -eq 1 ] && [ "${cur#-}" = "$cur" ]; then'
    yield f"        words={quote(' '.join(command.name for command in commands))}"
    yield "    else"
    yield '        case "$command:$prev" in'
    for command in commands:
        yield from (f"        {case}" for case in _value_cases(command, "words={}", quote_all=True))
    yield '        *) case "$command" in'
    for command in commands:
        names = [name for option in command.options for name in option.names if name.startswith("--")]
        yield f"            {command.name}) words={quote(' '.join([*command.words, *names]))} ;;"
    yield "            esac ;;"
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _foveal foveal"


def _zsh(commands: Sequence[CompletedCommand]) -> Iterator[str]:
    yield "#compdef foveal"
    yield "_foveal() {"
    yield "    local -a items"
    yield '    local command="$words[2]"'
    yield '    [[ "$command" == -* ]] && command=chat'
    yield '    if (( CURRENT == 2 )) && [[ "$words[2]" != -* ]]; then'
    yield f"        items=({_zsh_items((command.name, command.about) for command in commands)})"
    yield "        _describe command items"
    yield "        return"
    yield "    fi"
    yield '    case "$command:$words[CURRENT-1]" in'
    for command in commands:
        yield from (f"    {case}" for case in _value_cases(command, "compadd {}; return"))
    yield "    esac"
    yield '    case "$command" in'
    for command in commands:
        options = ((name, option.about) for option in command.options for name in option.names)
        items = _zsh_items([*((word, "") for word in command.words), *options])
        yield f"    {command.name}) items=({items}) ;;"
    yield "    esac"
    yield '    [[ "$words[CURRENT]" == -* || $#items -lt 8 ]] && _describe option items'
    yield "    _files"
    yield "}"
    yield "compdef _foveal foveal"


def _fish(commands: Sequence[CompletedCommand]) -> Iterator[str]:
    for command in commands:
        about = quote(command.about)
        yield f"complete -c foveal -f -n __fish_use_subcommand -a {quote(command.name)} -d {about}"
        used = quote(f"__fish_seen_subcommand_from {command.name}")
        for option in command.options:
            names = " ".join(_fish_name(name) for name in option.names)
            values = f" -xa {quote(' '.join(option.values))}" if option.values else ""
            value = values or (" -r" if option.takes_value else "")
            yield f"complete -c foveal -n {used} {names}{value} -d {quote(option.about)}"
        if command.words:
            yield f"complete -c foveal -f -n {used} -a {quote(' '.join(command.words))}"


def _value_cases(command: CompletedCommand, action: str, *, quote_all: bool = False) -> Iterator[str]:
    """Yield a case for each option that takes a value: its known values, else file names."""
    for option in command.options:
        if option.takes_value:
            patterns = "|".join(f"{command.name}:{name}" for name in option.names)
            values = " ".join(option.values)
            empty = "words=" if quote_all else "_files; return"
            chosen = action.format(quote(values) if quote_all else values)
            yield f"{patterns}) {chosen if option.values else empty} ;;"


def _zsh_items(items: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> str:
    escaped = ((re.sub(r"([:\\])", r"\\\1", name), about) for name, about in items)
    return " ".join(quote(f"{name}:{about}" if about else name) for name, about in escaped)


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
