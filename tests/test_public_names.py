"""The names that the documentation uses exist, and a type checker sees the names that the package has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Final

import pytest

import foveal
from support.doc_pages import SITE_PAGES, code_blocks
from support.paths import ROOT

SOURCE: Final = Path(foveal.__file__).parent
PAGES: Final = [ROOT / "README.md", *SITE_PAGES]
EXAMPLES: Final = sorted((ROOT / "examples").glob("*.py"))
DOTTED: Final = re.compile(r"(?<![\w./@-])foveal(?:\.[A-Za-z_]\w*)+")
FILES: Final = ("foveal.toml", "foveal.env", "foveal.service", "foveal.db")
VARIABLES: Final = ("foveal.tenant", "foveal.all_tenants")
"""Settings of a PostgreSQL connection."""


def docstrings() -> Iterator[str]:
    """Yield all docstrings of the package, those of fields too."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if names_more_than_imports(text):  # parsing takes much longer
            for node in statements(ast.parse(text).body):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    yield str(node.value.value)


def names_more_than_imports(text: str) -> bool:
    """Return whether a module has a dotted name of the package in another place than its imports."""
    places = (match.start() for match in re.finditer(r"foveal\.[A-Za-z_]", text))
    lines = (text[text.rfind("\n", 0, place) + 1 : place].lstrip() for place in places)
    return any(not line.startswith(("from ", "import ")) for line in lines)


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them."""
    for node in body:
        yield node
        for inner in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from statements(getattr(node, inner, ()))


def documented() -> set[str]:
    """Return every dotted name of the documentation and of the docstrings."""
    texts = [*map(Path.read_text, (*PAGES, *EXAMPLES)), *docstrings()]
    return {
        name for text in texts for name in DOTTED.findall(text) if not name.startswith((*FILES, *VARIABLES))
    }


def used_in_code() -> set[str]:
    """Return the attributes of `foveal` that the code of the documentation and the examples use."""
    blocks = [code for page in PAGES for code in code_blocks(page.read_text(encoding="utf-8"))]
    codes = (code for code in (*blocks, *map(Path.read_text, EXAMPLES)) if "foveal." in code)
    nodes = (node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute))
    return {name for node in nodes if DOTTED.fullmatch(name := ast.unparse(node))}


def exists(name: str) -> bool:
    module, _, attribute = name.removeprefix("foveal.adapters.").partition(".")
    adapter = SOURCE / "adapters" / f"{module}.py"
    if name.startswith("foveal.adapters.") and adapter.exists():
        # The import would need, and load, its framework.
        return re.search(rf"\b{attribute}\b", adapter.read_text(encoding="utf-8")) is not None
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.long
def test_every_documented_name_exists() -> None:
    """One test for all names: pytest would read the whole package in each of its processes to count them."""
    names = documented()
    assert "foveal.Context" in names
    assert [name for name in sorted(names) if not exists(name)] == []


@pytest.mark.long
def test_attributes_work_after_a_plain_import() -> None:
    names = used_in_code() | {"foveal.clip", "foveal.recall.tools", "foveal.testing.Scripted"}
    assert "foveal.events.SnapshotTaken" in names
    subprocess.run([sys.executable, "-c", "\n".join(["import foveal", *sorted(names)])], check=True)


@pytest.mark.long
def test_every_module_that_is_an_attribute_can_be_imported_from() -> None:
    lines = [
        "from foveal.events import Compacted",
        "import foveal",
        "assert foveal.events.Compacted is Compacted",
    ]
    lines += [f"import foveal.{name}" for name in foveal._SUBMODULES]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def imported_for_checkers() -> set[str]:
    """Return the names that `foveal/__init__.py` imports for type checkers only."""
    tree = ast.parse(Path(foveal.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    return {
        alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_a_type_checker_sees_the_names_that_the_package_has() -> None:
    assert imported_for_checkers() == {*dir(foveal)} - {"__version__"}
    assert {*foveal.__all__} <= {*dir(foveal)}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'foveal' has no attribute 'Contxt'"):
        foveal.Contxt  # noqa: B018
