"""Script that searches files for a pattern, run by the search tool as a process.

    python -I search_worker.py '{"root": …, "path": …, "pattern": …, "glob": …, "ignore_case": …}'

It imports only the standard library. It prints `path:line: text` for each matching line, then how many lines
matched and which files were skipped.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from typing import Any, Final

MAX_MATCHES: Final = 1_000
"""Most matching lines that are printed."""
MAX_SEARCHED_BYTES: Final = 10 * 1024 * 1024
"""Largest file that is searched."""
MAX_MATCH_CHARS: Final = 300
SKIPPED_FOLDERS: Final = {
    ".git",
    ".hg",
    ".svn",
    "node_modules",
    "__pycache__",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
}
"""Folders that are searched only if they are named as the path."""
# A repository can configure fsmonitor as a program that git runs; it must not.
_GIT_COMMAND: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false")
_LINE_BREAKS: Final = dict.fromkeys(map(ord, "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def main(argument: str) -> int:
    """Print the matching lines; return 2 for an invalid pattern."""
    task: dict[str, Any] = json.loads(argument)
    out = sys.stdout
    try:
        pattern = re.compile(task["pattern"], re.IGNORECASE if task.get("ignore_case") else 0)
    except (re.error, OverflowError, RecursionError) as problem:
        out.write(f"It is not a valid pattern: {problem}. Put \\ before signs that stand for themselves.\n")
        return 2
    counts = {"files": 0, "binary": 0, "large": 0, "unreadable": 0, "lines": 0, "hits": 0}
    for path in files_to_search(task["root"], task["path"], task.get("glob") or ""):
        found = 0
        for line in matching_lines(path, os.path.relpath(path, task["root"]), pattern, counts):
            if counts["lines"] >= MAX_MATCHES:
                out.write(
                    f"[foveal: stopped at {MAX_MATCHES:,} lines; narrow the pattern, the path or the glob]\n"
                )
                return 0
            out.write(line)
            counts["lines"] += 1
            found = 1
        counts["hits"] += found
        # What was found so far is the answer if the process is stopped.
        out.flush()
    out.write(summary_line(counts))
    return 0


def summary_line(counts: dict[str, int]) -> str:
    """Return the last line: how many lines matched, and which files were skipped."""
    words = {
        "binary": "binary",
        "large": f"larger than {MAX_SEARCHED_BYTES:,} bytes",
        "unreadable": "unreadable",
    }
    skipped = [f"{counts[name]:,} {word}" for name, word in words.items() if counts[name]]
    passed_over = f"; passed over: {', '.join(skipped)}" if skipped else ""
    return f"[foveal: {counts['lines']:,} lines in {counts['hits']:,} of {counts['files']:,} files{passed_over}]\n"


def matching_lines(path: str, name: str, pattern: "re.Pattern[str]", counts: dict[str, int]) -> Iterator[str]:
    """Yield the matching lines of a file, and count the file."""
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            return
        if os.path.getsize(path) > MAX_SEARCHED_BYTES:
            counts["large"] += 1
            return
        with open(path, "rb") as file:
            data = file.read(MAX_SEARCHED_BYTES)
    except OSError:
        counts["unreadable"] += 1
        return
    if b"\0" in data[:8192]:
        counts["binary"] += 1
        return
    counts["files"] += 1
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        match = pattern.search(line)
        if match:
            yield f"{name.translate(_LINE_BREAKS)}:{number}: {shorten_line(line, match.start())}\n"


def shorten_line(line: str, at: int) -> str:
    """Return a line without line breaks; of a long line, the part around the match."""
    line = line.translate(_LINE_BREAKS)
    if len(line) <= MAX_MATCH_CHARS:
        return line
    start = max(0, min(at - MAX_MATCH_CHARS // 3, len(line) - MAX_MATCH_CHARS))
    shown = line[start : start + MAX_MATCH_CHARS]
    return f"{'…' if start else ''}{shown}… ({len(line):,} characters)"


def files_to_search(root: str, path: str, glob: str) -> Iterator[str]:
    """Yield the files to search, sorted by name."""
    if not os.path.isdir(path):
        yield path
        return
    names = git_files(path)
    for file in walk_files(path) if names is None else (os.path.join(path, name) for name in names):
        if not glob or matches_glob(os.path.relpath(file, root), glob):
            yield file


def matches_glob(name: str, glob: str) -> bool:
    """Return whether the path or the name of a file matches."""
    glob = glob.removeprefix("**/").removeprefix("./")
    return fnmatch(name, glob) or fnmatch(os.path.basename(name), glob)


def git_files(folder: str) -> Iterable[str] | None:
    """Return the files that git does not ignore; None if there are none, or the folder is not in a repository."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    argv = [*_GIT_COMMAND, "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(argv, capture_output=True, env=env, check=False)
    except OSError:
        return None
    names = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    return sorted(names) if names and not done.returncode else None


def walk_files(folder: str) -> Iterator[str]:
    """Yield all files under a folder, without `SKIPPED_FOLDERS`."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        yield from (os.path.join(place, name) for name in sorted(files))


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1]))
