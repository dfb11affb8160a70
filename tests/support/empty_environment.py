"""Empty environments, into which tests install the packages of this checkout as a user does.

pip, uv and pipx download what Foveal needs, as they are set up on this machine. Where they reach nothing, the test
is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from support.made_once import made_once
from support.paths import ROOT

CONSTRAINTS: Final = ROOT / "constraints.txt"
_UNREACHABLE: Final = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Failed to fetch|Connection refused|"
    r"Could not find a version that satisfies .* \(from versions: none\)"
)
_OF_TESTS: Final = ("SSL_CERT_FILE", "PYTHONPATH", "VIRTUAL_ENV", "UV_PYTHON")
"""Variables that tests set for themselves, and that an installer must not see."""


def built_packages(places: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel and the source distribution of this checkout, built once for all processes of a test run."""
    pytest.importorskip("hatchling", reason="hatchling is missing: make test installs it")
    folder = made_once(places, "packages", lambda folder: build(ROOT, folder))
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sources


def build(source: Path, folder: Path, *, targets: Sequence[str] = ("sdist", "wheel")) -> None:
    """Build packages of a source tree into a folder."""
    chosen = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", *chosen, "-d", folder]
    subprocess.run(command, cwd=source, capture_output=True, check=True)


def interpreters() -> dict[str, Path]:
    """Return the interpreters at hand by their version, those of pyenv among them."""
    found: dict[str, Path] = {}
    for minor in range(11, 15):
        version = f"3.{minor}"
        program = shutil.which(f"python{version}")
        places = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
        if places or program:
            found[version] = places[-1] if places else Path(program or "")
    return found


def installer_variables() -> dict[str, str]:
    """Return the environment variables for an installer: those of the user."""
    return {name: value for name, value in os.environ.items() if name not in _OF_TESTS}


def call(command: Sequence[str | Path], **variables: str) -> str:
    """Run an installer and return what it prints; skips the test if it reaches nothing."""
    env = {**installer_variables(), **variables}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=env, cwd="/", check=False)
    if done.returncode and _UNREACHABLE.search(done.stderr):
        pytest.skip(f"{Path(command[0]).name} can download nothing here")
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


class EmptyEnvironment:
    """A virtual environment with nothing in it; its programs run outside of the checkout, for a new user."""

    def __init__(self, folder: Path, *, python: Path = Path(sys.executable)) -> None:
        self.folder: Final = folder
        self._user = folder / "user"
        # Without pip in it, which takes most of the time: another pip installs into it.
        call([python, "-m", "venv", "--without-pip", folder])
        self._user.mkdir()
        self.programs: Final = folder / "bin"

    def pip_install(self, *wanted: str) -> None:
        """Install packages with the pip of the tests, with the versions that the tests have."""
        # What `pip --python` starts too, after it has imported itself.
        (pip,) = Path(sysconfig.get_path("purelib")).glob("pip/__pip-runner__.py")
        options = ("-q", "--disable-pip-version-check", "install", "--no-compile", "-c", CONSTRAINTS)
        call([self.programs / "python", pip, *options, *wanted])

    def run(self, *words: str, programs: Path | None = None) -> str:
        """Run a program of the environment and return what it prints on standard output."""
        path = os.pathsep.join((str(self.programs), "/usr/bin", "/bin"))
        env = {"HOME": str(self._user), "PATH": path, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        program, *rest = words
        command = [(programs or self.programs) / program, *rest]
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", env=env, cwd=self._user, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
        return done.stdout
