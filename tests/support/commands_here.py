"""Commands of `foveal` in this process, with arguments, environment, folder and standard streams of their own.

    done = run_here(["memory", "list"], env=env, cwd=folder)
    assert done.stdout == "…"

A fork of `support.warm_start` copies each page of memory that it writes to, which takes longer than most commands
do. Tests of processes (signals, terminals, closed pipes, the exit, several at once) use `warm_start`. A problem
that is no `FovealError` is raised here, where a process would print a traceback.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import invalidate_caches
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final
from unittest.mock import patch

from foveal import cli
from foveal.cli.__main__ import main

PARSER: Final = cache(cli._parser)
"""It has 290 options: to make it takes longer than a short command."""


def run_here(
    arguments: Sequence[object], *, env: Mapping[str, str], cwd: Path | None = None, input: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end and return its output. Folders of `PYTHONPATH` in `env` are searched for modules."""
    words = list(map(str, arguments))
    with ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(TemporaryFile()) for _ in range(3))
        stdin.write(input)
        stdin.seek(0)
        with _surroundings(words, env, cwd or Path.cwd()), _streams(stdin, stdout, stderr):
            code = _exit_code(words)
        printed = [_content(stream) for stream in (stdout, stderr)]
    return subprocess.CompletedProcess(words, code, *printed)


def _exit_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as left:
        return int(left.code or 0)


@contextmanager
def _surroundings(words: list[str], env: Mapping[str, str], cwd: Path) -> Iterator[None]:
    """Make the environment, the folder and the modules those of the command."""
    before, folder = dict(os.environ), Path.cwd()
    folders = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    # Modules of this command: those of another test may have the same names.
    own = {file.stem for place in folders for file in Path(place).glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own & set(sys.modules)}
    invalidate_caches()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    try:
        with (
            patch.object(sys, "path", [*folders, *sys.path]),
            patch.object(sys, "argv", ["foveal", *words]),
            patch.object(sys, "dont_write_bytecode", bool(env.get("PYTHONDONTWRITEBYTECODE"))),
            patch.object(cli, "_parser", PARSER),
        ):
            yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
        for name in own & set(sys.modules):
            del sys.modules[name]
        sys.modules.update(others)


@contextmanager
def _streams(stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> Iterator[None]:
    """Make files the standard streams, opened as an interpreter in UTF-8 mode opens them."""
    streams = [
        io.TextIOWrapper(opened, "utf-8", errors)
        for opened, errors in (
            (stdin, "surrogateescape"),
            (stdout, "surrogateescape"),
            (stderr, "backslashreplace"),
        )
    ]
    try:
        with ExitStack() as stack:
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                stack.enter_context(patch.object(sys, name, stream))
                stack.enter_context(patch.object(sys, f"__{name}__", stream))
            yield
    finally:
        for stream in streams:
            stream.detach()  # writes what is left


def _content(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()
