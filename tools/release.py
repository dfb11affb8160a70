"""Checks what must hold before a release, and prints one line for each item.

    python tools/release.py                    check a state that is to be released some day
    python tools/release.py --final            the changelog must have a date, and the checkout no changes
    python tools/release.py --tests FILE       FILE is the output of `make test`; without it, this item stays open
    python tools/release.py --only changelog   one item; may be repeated

The exit code is 1 if an item fails. An open item is one that this run could not check. The packages are built into
a temporary folder; nothing is uploaded.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from zipfile import ZipFile

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "src/foveal/"
SECTIONS: Final = ("New", "Changed", "Fixed")
NOT_IN_WHEEL: Final = frozenset({f"{PACKAGE}core/models/NOTICE.md"})
"""Files of the package that the wheel has only among its licence files."""
IN_SOURCES: Final = ("src", "tests", "docs", "examples", "tools", "bench", "deploy")
"""Folders of which the source distribution has every file."""
NEEDED_METADATA: Final = (
    "Summary",
    "License-Expression",
    "License-File",
    "Keywords",
    "Requires-Python",
    "Classifier",
)
MAX_SHOWN: Final = 5
_VERSION: Final = re.compile(r'^__version__ = "([^"]+)"', re.MULTILINE)
_SHOWN_VERSION: Final = re.compile(
    r"(?:\*\*Foveal\*\* \| |Foveal is at version |^foveal )(\d+\.\d+\.\d+)", re.MULTILINE
)
_HEADING: Final = re.compile(r"(\d+\.\d+\.\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)")
_SUMMARY: Final = re.compile(r"^=* ?(\d+ (?:passed|failed|error)[^=\n]*) in [\d.:()hms ]+", re.MULTILINE)
_REGISTRY: Final = re.compile(
    r"https?://(?:[\w.-]*@)?[\w.-]*(?:pypi|npm|registry|artifactory|nexus|conda)[\w.-]*",
    re.IGNORECASE,
)
_EXAMPLE: Final = re.compile(r"\.example\.|\.invalid\b")


class Options(NamedTuple):
    """What the user asked for."""

    final: bool = False
    tests: Path | None = None


class Open(Exception):
    """An item that this run could not check, with the reason."""


# ── Items ────────────────────────────────────────────────────────────────────────────────────────────────


def version() -> str:
    """Return the version that the package has."""
    found = _VERSION.search((ROOT / PACKAGE / "__init__.py").read_text("utf-8"))
    return found[1] if found else ""


def check_versions(_: Options) -> Iterator[str]:
    """The package, its metadata and the pages have one version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if "version" in project or "version" not in project.get("dynamic", ()):
        yield "pyproject.toml states a version: it must take that of src/foveal/__init__.py"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for shown in _SHOWN_VERSION.findall(page.read_text("utf-8")):
            if shown != version():
                yield f"{page.relative_to(ROOT)} shows version {shown}, the package has {version()}"


def check_changelog(options: Options) -> Iterator[str]:
    """The changelog begins with this version and a date, and has its sections."""
    yield from changelog_problems((ROOT / "CHANGELOG.md").read_text("utf-8"), version(), final=options.final)


def changelog_problems(text: str, version: str, *, final: bool) -> Iterator[str]:
    """Yield what is wrong with the text of a changelog."""
    entries = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    for number, entry in enumerate(entries):
        title, _, body = entry.partition("\n")
        heading = _HEADING.fullmatch(title.strip())
        if heading is None:
            yield f"the heading {title!r} is no version with a date or `unreleased`"
            continue
        if number == 0 and heading[1] != version:
            yield f"the newest entry is {heading[1]}, the package has version {version}"
        if final and number == 0 and heading[2] == "unreleased":
            yield f"{heading[1]} has no date"
        titles = re.findall(r"^### (.+)$", body, re.MULTILINE)
        if titles != [name for name in SECTIONS if name in titles] or not titles:
            yield f"{heading[1]} has the sections {', '.join(titles) or 'none'}; they are {', '.join(SECTIONS)}"
        for section in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
            name, _, lines = section.partition("\n")
            if "\n- " not in f"\n{lines}":
                yield f"section {name} of {heading[1]} is empty"
    if not entries:
        yield "there is no entry"


def check_files(_: Options) -> Iterator[str]:
    """The files that a reader of the repository looks for exist."""
    wanted = ("README.md", "LICENSE", "SECURITY.md", "CONTRIBUTING.md", f"{PACKAGE}py.typed")
    yield from (f"{name} is missing" for name in wanted if not (ROOT / name).exists())


def check_addresses(_: Options) -> Iterator[str]:
    """No file names a package registry, or a path of this machine."""
    words = [word for word in (*registry_hosts(), f"{ROOT}/", f"{Path.home()}/.") if len(word) > len("/x/")]
    for name in tracked():
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        yield from (f"{name} has {found}" for found in addresses(text, words))


def addresses(text: str, words: Iterable[str] = ()) -> Iterator[str]:
    """Yield the addresses of registries in a text, and the words that it contains."""
    yield from (found[0] for found in _REGISTRY.finditer(text) if not _EXAMPLE.search(found[0]))
    yield from (word for word in words if word in text)


def registry_hosts() -> set[str]:
    """Return the hosts from which pip installs on this machine, as it is set up."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout
    known = [listed, *(value for name, value in os.environ.items() if "INDEX" in name.upper())]
    hosts = {host for text in known for host in re.findall(r"https?://(?:[^/@\s]*@)?([\w.-]+)", text)}
    return {host for host in hosts if host not in ("localhost", "127.0.0.1")}


def check_packages(_: Options) -> Iterator[str]:
    """Wheel and source distribution build, and have all files that they need and no others."""
    with tempfile.TemporaryDirectory() as folder:
        wheel, sources = build(Path(folder))
        yield from wheel_problems(wheel)
        yield from source_problems(sources)


def build(folder: Path, *, source: Path = ROOT) -> tuple[Path, Path]:
    """Build both packages of a source tree into a folder and return the wheel and the source distribution."""
    if subprocess.run(
        [sys.executable, "-c", "import hatchling"], capture_output=True, check=False
    ).returncode:
        raise Open("hatchling is missing: `make test` installs it")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with the files and the metadata of a wheel."""
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(about))
    info = about.removesuffix("METADATA")
    wanted = {name.removeprefix("src/") for name in tracked(PACKAGE) if name not in NOT_IN_WHEEL}
    wanted |= {
        info + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    wanted |= {f"{info}licenses/{name}" for name in NOT_IN_WHEEL}
    yield from _difference("the wheel", names, wanted)
    yield from (f"the metadata has no {name}" for name in NEEDED_METADATA if name not in metadata)
    if metadata["Version"] != version():
        yield f"the metadata has version {metadata['Version']}, the package {version()}"


def source_problems(sources: Path) -> Iterator[str]:
    """Yield which files of the repository's folders a source distribution has not, or beyond them."""
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    inside = tuple(f"{folder}/" for folder in IN_SOURCES)
    found = {name for name in names if name.startswith(inside)}
    yield from _difference("the source distribution", found, {*tracked(*inside)})


def _difference(what: str, found: set[str], wanted: set[str]) -> Iterator[str]:
    yield from (f"{what} has {name}, which is not in the repository" for name in sorted(found - wanted))
    yield from (f"{what} has no {name}" for name in sorted(wanted - found))


def check_urls(_: Options) -> Iterator[str]:
    """The metadata says where the project is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if not project.get("urls"):
        raise Open("add [project.urls] to pyproject.toml once the repository has a public address")
    yield from ()


def check_docs(_: Options) -> Iterator[str]:
    """The site builds in strict mode."""
    program = Path(sys.executable).with_name("zensical")
    if not program.exists():
        raise Open("zensical is missing: `make docs` installs it")
    command = [str(program), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        yield done.stdout[-500:] + done.stderr[-500:]


def check_tests(options: Options) -> Iterator[str]:
    """All tests pass, and none is skipped without a reason that is printed here."""
    if options.tests is None:
        raise Open("run `make test | tee FILE`, then pass --tests FILE")
    summary = tests_summary(options.tests.read_text("utf-8", "replace"))
    if not summary:
        yield f"{options.tests} has no summary of pytest"
    elif re.search(r"\b(failed|error)", summary):
        yield summary


def tests_summary(output: str) -> str:
    """Return the last line in which pytest counts its tests, such as `3 passed, 1 skipped`; "" for none."""
    return next(reversed(_SUMMARY.findall(output)), "")


def check_changes(options: Options) -> Iterator[str]:
    """The checkout has no changes that are not committed."""
    if not options.final:
        raise Open("checked with --final")
    if changed := _git("status", "--porcelain").splitlines():
        yield f"{len(changed):,} files are changed or new: {', '.join(changed[:MAX_SHOWN])}"


ITEMS: Final[Mapping[str, Callable[[Options], Iterator[str]]]] = {
    "versions": check_versions,
    "changelog": check_changelog,
    "files": check_files,
    "urls": check_urls,
    "addresses": check_addresses,
    "packages": check_packages,
    "docs": check_docs,
    "tests": check_tests,
    "changes": check_changes,
}
"""The checklist, in the order in which it is printed."""


# ── The run ──────────────────────────────────────────────────────────────────────────────────────────────


def tracked(*folders: str) -> list[str]:
    """Return the files of the repository in these folders, or all."""
    return [name for name in _git("ls-files", "-z", "--", *folders).split("\0") if (ROOT / name).is_file()]


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *words], capture_output=True, encoding="utf-8", check=True
    ).stdout


def run(names: Iterable[str], options: Options) -> int:
    """Check some items, print a line for each and return the exit code."""
    failed = False
    for name in names:
        check = ITEMS[name]
        about = (check.__doc__ or "").strip()
        try:
            problems = list(check(options))
        except Open as reason:
            print(f"open    {name}: {about} {reason}")
            continue
        failed |= bool(problems)
        print(f"{'failed' if problems else 'ok':<7} {name}: {about}")
        for problem in problems[:MAX_SHOWN]:
            print(f"        {problem}")
        if len(problems) > MAX_SHOWN:
            print(f"        and {len(problems) - MAX_SHOWN:,} more")
    return 1 if failed else 0


def main() -> int:
    """Read the arguments and check the items."""
    parser = argparse.ArgumentParser(description="Check what must hold before a release.")
    parser.add_argument("--final", action="store_true", help="the release is made now")
    parser.add_argument("--tests", type=Path, metavar="FILE", help="the output of make test")
    parser.add_argument("--only", action="append", choices=list(ITEMS), help="an item; default: all")
    args = parser.parse_args()
    return run(args.only or ITEMS, Options(final=args.final, tests=args.tests))


if __name__ == "__main__":
    sys.exit(main())
