"""A search through files, as a program of its own: a pattern that never ends is ended with the process.

    python -I hunt.py '{"root": …, "path": …, "pattern": …, "glob": …, "ignore_case": …}'

It needs nothing but Python itself, prints `path:line: text` for each line that matches, and what it passed over.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from typing import Any, Final

MATCHES: Final = 1_000
"""Lines that are shown."""
LARGE: Final = 10 * 1024 * 1024
"""Bytes of a file that is not looked into."""
WIDTH: Final = 300
CLOSED: Final = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"}
"""Folders that are not looked into, unless they are asked for."""
_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false")
_BREAKS: Final = dict.fromkeys(map(ord, "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def main(argument: str) -> int:
    """Print what is found; 2 when the pattern is not one."""
    task: dict[str, Any] = json.loads(argument)
    out = sys.stdout
    try:
        wanted = re.compile(task["pattern"], re.IGNORECASE if task.get("ignore_case") else 0)
    except (re.error, OverflowError, RecursionError) as problem:
        out.write(f"It is not a valid pattern: {problem}. Put \\ before signs that stand for themselves.\n")
        return 2
    tally = {"files": 0, "binary": 0, "large": 0, "unreadable": 0, "lines": 0, "hits": 0}
    for path in chosen(task["root"], task["path"], task.get("glob") or ""):
        found = 0
        for line in matches(path, os.path.relpath(path, task["root"]), wanted, tally):
            if tally["lines"] >= MATCHES:
                out.write(
                    f"[foveal: stopped at {MATCHES:,} lines; narrow the pattern, the path or the glob]\n"
                )
                return 0
            out.write(line)
            tally["lines"] += 1
            found = 1
        tally["hits"] += found
        out.flush()
    out.write(verdict(tally))
    return 0


def verdict(tally: dict[str, int]) -> str:
    """How many, and what was passed over."""
    words = {"binary": "binary", "large": f"larger than {LARGE:,} bytes", "unreadable": "unreadable"}
    passed = [f"{tally[name]:,} {word}" for name, word in words.items() if tally[name]]
    passed_over = f"; passed over: {', '.join(passed)}" if passed else ""
    return (
        f"[foveal: {tally['lines']:,} lines in {tally['hits']:,} of {tally['files']:,} files{passed_over}]\n"
    )


def matches(path: str, name: str, wanted: "re.Pattern[str]", tally: dict[str, int]) -> Iterator[str]:
    """The lines of one file that match."""
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            return
        if os.path.getsize(path) > LARGE:
            tally["large"] += 1
            return
        with open(path, "rb") as file:
            data = file.read(LARGE)
    except OSError:
        tally["unreadable"] += 1
        return
    if b"\0" in data[:8192]:
        tally["binary"] += 1
        return
    tally["files"] += 1
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        match = wanted.search(line)
        if match:
            yield f"{name.translate(_BREAKS)}:{number}: {cut(line, match.start())}\n"


def cut(line: str, at: int) -> str:
    """A line on one line; of a long one, what is around the match."""
    line = line.translate(_BREAKS)
    if len(line) <= WIDTH:
        return line
    start = max(0, min(at - WIDTH // 3, len(line) - WIDTH))
    shown = line[start : start + WIDTH]
    return f"{'…' if start else ''}{shown}… ({len(line):,} characters)"


def chosen(root: str, path: str, glob: str) -> Iterator[str]:
    """The files to look into, in the order of their names."""
    if not os.path.isdir(path):
        yield path
        return
    names = tracked(path)
    for file in walked(path) if names is None else (os.path.join(path, name) for name in names):
        if not glob or fits(os.path.relpath(file, root), glob):
            yield file


def fits(name: str, glob: str) -> bool:
    glob = glob.removeprefix("**/").removeprefix("./")
    return fnmatch(name, glob) or fnmatch(os.path.basename(name), glob)


def tracked(folder: str) -> Iterable[str] | None:
    """What git knows or would take here; None when it knows nothing, or this is no repository of git."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    argv = [*_GIT, "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(argv, capture_output=True, env=env, check=False)
    except OSError:
        return None
    names = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return sorted(names) if names and not done.returncode else None


def walked(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in CLOSED)
        yield from (os.path.join(place, name) for name in sorted(files))


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1]))
