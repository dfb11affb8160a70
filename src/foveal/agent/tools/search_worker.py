"""Script that searches files for a pattern, run by the search tool as a process.

    python -I -S search_worker.py '{"root": …, "base": …, "path": …, "pattern": …, "glob": …, "ignore_case": …}'

1. It imports only the standard library. It prints `path:line: text` for each matching line, then how many lines
   matched and which files were skipped.
2. It starts no program, also not git: the settings of a repository can make git start programs. It reads the
   ignore files itself. A file that git tracks although a rule ignores it is passed over.
3. Below `base`, it opens each folder and file without following links.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

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
MAX_SEARCHED_DEPTH: Final = 200
"""Folders below the searched one that are entered; each level keeps a file descriptor open."""
MAX_IGNORE_BYTES: Final = 1024 * 1024
"""Largest ignore file that is read."""
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
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
    for file in files_to_search(task["base"], task["path"], counts):
        name = os.path.relpath(file.path, task["root"])
        if task.get("glob") and not matches_glob(name, task["glob"]):
            continue
        found = 0
        for line in matching_lines(file, name, pattern, counts):
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


class FoundFile(NamedTuple):
    """A file in a folder that is open."""

    folder: int
    path: str

    def read(self, max_bytes: int) -> bytes | None:
        """Return the content, None if it is larger; raises `OSError` for a link and for what is no regular file."""
        handle = os.open(os.path.basename(self.path), _FILE_FLAGS, dir_fd=self.folder)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self.path} is not a regular file")
            return None if found.st_size > max_bytes else file.read(max_bytes)


def matching_lines(
    file: FoundFile, name: str, pattern: "re.Pattern[str]", counts: dict[str, int]
) -> Iterator[str]:
    """Yield the matching lines of a file, and count the file."""
    try:
        data = file.read(MAX_SEARCHED_BYTES)
    except OSError:
        counts["unreadable"] += 1
        return
    if data is None:
        counts["large"] += 1
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


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────


def files_to_search(base: str, path: str, counts: dict[str, int]) -> Iterator[FoundFile]:
    """Yield the file, or the files of a folder, sorted by name."""
    folder = os.open(base, _FOLDER_FLAGS)
    try:
        *names, last = os.path.relpath(path, base).split(os.sep)
        for name in names:
            folder = enter_folder(folder, name)
        if not stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
            yield FoundFile(folder, path)
            return
        folder = enter_folder(folder, last)
        yield from walk_files(folder, path, rules_above(path), counts, MAX_SEARCHED_DEPTH)
    except OSError:
        counts["unreadable"] += 1
    finally:
        os.close(folder)


def enter_folder(folder: int, name: str) -> int:
    """Open a folder in an open folder, which is closed."""
    inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    os.close(folder)
    return inner


def walk_files(
    folder: int, path: str, outer: "Rules | None", counts: dict[str, int], depth: int
) -> Iterator[FoundFile]:
    """Yield the files in an open folder, without ignored ones, links and `SKIPPED_FOLDERS`."""
    with os.scandir(folder) as found:
        kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in found if not is_special(entry)}
    rules = rules_in(folder, path, outer)
    # With the slash, folders are sorted as the paths of their files are.
    for name in sorted(f"{name}/" if is_folder else name for name, is_folder in kinds.items()):
        inner_path = os.path.join(path, name)
        if name[:-1] in SKIPPED_FOLDERS or is_ignored(inner_path, rules or ()):
            continue
        if not name.endswith("/"):
            yield FoundFile(folder, inner_path)
            continue
        inner = -1
        try:
            if depth <= 0:
                raise OSError("the folder is too deep")
            inner = os.open(name[:-1], _FOLDER_FLAGS, dir_fd=folder)
            yield from walk_files(inner, inner_path[:-1], rules, counts, depth - 1)
        except OSError:
            counts["unreadable"] += 1
        finally:
            if inner >= 0:
                os.close(inner)


def is_special(entry: "os.DirEntry[str]") -> bool:
    """Return whether an entry is a link, a pipe or a device."""
    return not entry.is_dir(follow_symlinks=False) and not entry.is_file(follow_symlinks=False)


def matches_glob(name: str, glob: str) -> bool:
    """Return whether the path or the name of a file matches."""
    glob = glob.removeprefix("**/").removeprefix("./")
    return fnmatch(name, glob) or fnmatch(os.path.basename(name), glob)


# ── Ignore files ─────────────────────────────────────────────────────────────────────────────────────────


class IgnoreFile(NamedTuple):
    """The rules of an ignore file of git."""

    base: str
    """The folder for which they count; it ends in a slash, unless it is empty."""
    groups: "tuple[tuple[bool, bool, re.Pattern[str]], ...]"
    """Whether files are ignored, whether they are matched by path instead of by name, and which; the last rules of
    the file come first, because they decide."""

    @classmethod
    def parse(cls, base: str, text: str) -> "IgnoreFile":
        lines = [rule for line in text.removeprefix("\ufeff").split("\n") if (rule := parse_rule(line))]
        groups = [
            (ignores, is_path, re.compile("|".join(rule[2] for rule in rules), re.DOTALL))
            for (ignores, is_path), rules in groupby(reversed(lines), key=lambda rule: rule[:2])
        ]
        return cls(base, tuple(groups))

    def ignores(self, path: str) -> bool | None:
        """Return whether a path is ignored, None if no rule matches; the path of a folder ends in a slash."""
        inner = path[len(self.base) :]
        name = inner[inner.rfind("/", 0, -1) + 1 :]
        for ignores, is_path, regex in self.groups:
            if regex.fullmatch(inner if is_path else name):
                return ignores
        return None


Rules = tuple[IgnoreFile, ...]
"""Ignore files from the outermost to the innermost."""


def is_ignored(path: str, rules: Rules) -> bool:
    """Return what the innermost file decides that has a rule for the path."""
    return next((found for file in reversed(rules) if (found := file.ignores(path)) is not None), False)


def rules_above(path: str) -> Rules | None:
    """Return the rules for a folder from the folders above it; None outside of a repository.

    An ignored folder has no rules: all of it is searched, because it was named."""
    above: list[str] = []
    folder = path
    while not os.path.lexists(os.path.join(folder, ".git")):
        if folder == (folder := os.path.dirname(folder)):
            return None
        above.insert(0, folder)
    rules: Rules | None = None
    for outer, inner in pairwise([*above, path]):
        try:
            opened = os.open(outer, _FOLDER_FLAGS)
        except OSError:
            return None
        rules = rules_in(opened, outer, rules)
        os.close(opened)
        if is_ignored(f"{inner}/", rules or ()):
            return None
    return rules


def rules_in(folder: int, path: str, outer: Rules | None) -> Rules | None:
    """Return the rules for the entries of an open folder; a repository does not inherit those from outside."""
    base = os.path.join(path, "")
    with suppress(OSError):
        os.stat(".git", dir_fd=folder, follow_symlinks=False)
        outer = (*own_rules(base), *read_rules(folder, (".git", "info"), "exclude", base))
    return None if outer is None else (*outer, *read_rules(folder, (), ".gitignore", base))


def own_rules(base: str) -> Rules:
    """Return the user's rules for all repositories."""
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    with suppress(OSError):
        folder = os.open(os.path.join(settings, "git"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return read_rules(folder, (), "ignore", base)
        finally:
            os.close(folder)
    return ()


def read_rules(folder: int, folders: Iterable[str], name: str, base: str) -> Rules:
    """Return the rules of a file below an open folder, none if it cannot be read."""
    opened = os.dup(folder)
    try:
        for each in folders:
            opened = enter_folder(opened, each)
        data = FoundFile(opened, name).read(MAX_IGNORE_BYTES)
    except OSError:
        return ()
    finally:
        os.close(opened)
    return (IgnoreFile.parse(base, os.fsdecode(data)),) if data else ()


def parse_rule(line: str) -> tuple[bool, bool, str] | None:
    """Return whether a line of an ignore file ignores, whether it matches paths, and its regular expression."""
    line = line.removesuffix("\r")
    line = re.sub(r"^((?:[^\\]|\\.)*?) +$", r"\1", line, flags=re.DOTALL)
    if line.startswith("#"):
        return None
    ignores = not line.startswith("!")
    pattern = line if ignores else line[1:]
    end = "/" if pattern.endswith("/") else "/?"
    pattern = pattern.removesuffix("/")
    is_path = "/" in pattern
    regex = "".join(regex_parts(pattern.removeprefix("/"), is_path=is_path))
    return (ignores, is_path, f"(?:{regex}{end})") if regex else None


def regex_parts(pattern: str, *, is_path: bool) -> Iterator[str]:
    """Yield the regular expression of a pattern of git in parts; `is_path` is False for a name at any depth."""
    # Git compares the characters before the first wildcard separately, so in `x/a**` the rest begins with `**` too.
    literal = len(re.split(r"[*?\[\\]", pattern, maxsplit=1)[0]) if is_path else 0
    at = 0
    while at < len(pattern):
        char, rest = pattern[at], pattern[at:]
        if char == "*":
            stars = len(rest) - len(rest.lstrip("*"))
            is_start = at in (0, literal) or pattern[at - 1] == "/"
            if stars > 1 and is_start and rest[stars : stars + 1] in ("", "/"):
                yield "(?:.*/)?" if rest[stars:] else ".+" if pattern[at - 1 : at] == "/" else ".*"
                stars += len(rest[stars : stars + 1])
            else:
                yield "[^/]*"
            at += stars
        elif char == "[":
            regex, length = regex_of_set(rest)
            yield regex
            at += length
        elif char == "\\":
            yield re.escape(rest[1]) if len(rest) > 1 else "(?!)"
            at += 2
        else:
            yield "[^/]" if char == "?" else re.escape(char)
            at += 1


def regex_of_set(text: str) -> tuple[str, int]:
    """Return the regular expression of the set `[…]` with which a text begins, and the length of the set."""
    found = re.match(r"\[([!^]?)((?:\\.|[^\\])(?:\\.|[^\\\]])*)\]", text, re.DOTALL)
    if found is None or "[:" in found[2]:  # named classes are not supported: such a rule matches nothing
        return "(?!)", len(text)
    members = []
    for low, high in re.findall(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", found[2], re.DOTALL):
        first, last = low[-1], (high or low)[-1]
        # In an inverted range such as `d-a`, the first character counts all the same.
        members.append(f"{re.escape(first)}-{re.escape(last)}" if first <= last else re.escape(first))
    inner = "".join(members)
    return f"(?!/)[{'^' if found[1] else ''}{inner}]", found.end()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1]))
