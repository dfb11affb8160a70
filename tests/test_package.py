"""The packages: what is in them, and that they work where nothing else is installed.

`make test` installs the wheel alone with pip. FOVEAL_SOAK=1 does so with every extra, with pip,
uv and pipx, and with each Python that is at hand.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest
from tools import release

import foveal
from support.empty_environment import (
    CONSTRAINTS,
    EmptyEnvironment,
    build,
    built_packages,
    call,
    interpreters,
)
from support.paths import ROOT

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_DEVELOPERS: Final = {"test", "docs", "lint", "bench", "peers"}
IMPORTS: Final = {
    "exact": "toktok",
    "redaction": "re2",
    "local": "foveal.providers.local.model",
    "llamacpp": "foveal.providers.local.model",
    "mcp": "foveal.mcp_server.recall_server",
    "inspect": "foveal.inspector.app",
    "chat": "foveal.agent.tools.mcp",
    "terminal": "foveal.agent.terminal.chat_loop",
    "server": "foveal.server.http.app",
    "telegram": "telegram",
    "discord": "discord",
    "postgres": "foveal.stores.postgres",
    "tracing": "opentelemetry.sdk.trace",
}
"""What an extra is for."""
SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
COMPILE_ALL: Final = """
import pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
"""
"""Compiles every module; with `-W error`, what a newer Python warns of is an error."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution of this checkout."""
    return built_packages(tmp_path_factory)


def check_commands(environment: EmptyEnvironment, *, programs: Path | None = None) -> None:
    """Call what a new user calls first."""
    assert environment.run("foveal", "--version", programs=programs) == f"foveal {foveal.__version__}\n"
    if SOAK:  # `make test` runs the demo of the checkout, and looks at the files of the wheel
        assert "Nothing is lost" in environment.run("foveal", "demo", "--fast", programs=programs)
    assert foveal.__version__ in environment.run("foveal", "doctor", programs=programs)


def test_the_wheel_alone_works_in_an_empty_environment(packages: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, _ = packages
    environment = EmptyEnvironment(tmp_path / "environment")
    environment.pip_install(str(wheel))
    check_commands(environment)
    assert environment.run("python", "-m", "foveal", "sessions", "--json") == "[]\n"
    where = "import foveal, pathlib; print(pathlib.Path(foveal.__file__).parent / 'py.typed')"
    assert Path(environment.run("python", "-c", where).strip()).exists()


def test_the_packages_hold_the_files_that_they_need_and_no_others(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, sources = packages
    assert [*release.wheel_problems(wheel), *release.source_problems(sources)] == []
    assert unused_files(wheel) == []
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    build(tmp_path / sources.name.removesuffix(".tar.gz"), tmp_path / "again", targets=["wheel"])
    (again,) = (tmp_path / "again").glob("*.whl")
    assert contents(again) == contents(wheel)


def unused_files(wheel: Path) -> list[str]:
    """Return the data files of a wheel that no program and no other file of it names.

    Pages load all style sheets."""
    with ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        programs = {
            name: archive.read(name).decode() for name in files if name.endswith((".py", ".js", ".css"))
        }
    data = [Path(name) for name in files if not name.endswith((".py", ".css", "py.typed"))]
    return [
        str(path)
        for path in data
        if not any(
            path.name in text or f'"{path.stem}"' in text
            for name, text in programs.items()
            if name != str(path)
        )
    ]


def contents(wheel: Path) -> dict[str, int]:
    with ZipFile(wheel) as archive:
        return {
            file.filename: file.CRC for file in archive.infolist() if not file.filename.endswith("RECORD")
        }


def test_each_extra_for_users_is_tried() -> None:
    assert set(IMPORTS) == PROJECT["optional-dependencies"].keys() - FOR_DEVELOPERS


# ── make soak ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_with_each_python_at_hand(
    packages: tuple[Path, Path], version: str, tmp_path: Path
) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    environment = EmptyEnvironment(tmp_path / "environment", python=python)
    environment.pip_install(str(packages[0]))
    check_commands(environment)
    environment.run("python", "-W", "error", "-c", COMPILE_ALL, str(ROOT / "src"))


@pytest.mark.soak
@pytest.mark.parametrize("extra", IMPORTS)
@pytest.mark.parametrize("installer", ["pip", "uv", "pipx"])
def test_the_wheel_works_with_each_extra(
    packages: tuple[Path, Path], installer: str, extra: str, tmp_path: Path
) -> None:
    wanted = f"{packages[0]}[{extra}]"
    environment = EmptyEnvironment(tmp_path / "environment")
    if installer == "pipx":
        check_pipx(environment, wanted, IMPORTS[extra])
        return
    if installer == "uv":
        uv = tool("uv", tmp_path)
        call([uv, "pip", "install", "-q", "--python", environment.programs / "python", wanted])
    else:
        environment.pip_install(wanted)
    check_commands(environment)
    environment.run("python", "-c", f"import {IMPORTS[extra]}")
    if extra == "exact":
        assert "o200k_base, exact" in environment.run("foveal", "doctor", "--model", "openai/gpt-4.1")


def check_pipx(environment: EmptyEnvironment, wanted: str, module: str) -> None:
    folder = environment.folder / "pipx"
    places = {"PIPX_HOME": str(folder), "PIPX_BIN_DIR": str(folder / "bin")}
    call([tool("pipx", environment.folder), "install", "-q", "--python", sys.executable, wanted], **places)
    check_commands(environment, programs=folder / "bin")
    environment.run("python", "-c", f"import {module}", programs=folder / "venvs" / "foveal" / "bin")


def tool(name: str, folder: Path) -> Path:
    """Return an installer, itself installed by pip into an environment of its own."""
    environment = EmptyEnvironment(folder / name)
    environment.pip_install(name)
    return environment.programs / name


def test_the_constraints_of_the_tests_hold_for_the_build() -> None:
    pinned = {line.partition("==")[0] for line in CONSTRAINTS.read_text("utf-8").splitlines()}
    assert "hatchling" in pinned
