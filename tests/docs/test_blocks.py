"""No code block of the documentation escapes a check: each has a language, and each language has a test.

1. `python` blocks run (`test_pages.py`) and are type-checked (`tests/test_types.py`).
2. `sh` blocks are parsed (`test_command_lines.py`); those of the server's pages run too (`test_page_commands.py`).
3. `py`, `ini`, `sql`, `nginx` and `haproxy` blocks need a framework or a program that is not always there. Each is
   part of an example that runs where there is one, or belongs to the test that `RUN_BY` names.
4. `toml`, `json` and `yaml` blocks are read here. Settings of Foveal go through its own loader.
5. `text` is output, `markdown` the content of a file. Drawn blocks are redrawn by `test_pages.py`.
"""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from typing import Final

import pytest
import yaml

import foveal
from foveal.config import load
from foveal.config.keys import KEYS
from support.doc_pages import PAGES, PagePart, fenced_blocks, page_name
from support.paths import ROOT

LANGUAGES: Final = {
    "python", "py", "sh", "text", "markdown", "toml", "json", "yaml", "ini", "sql", "nginx", "haproxy",
}  # fmt: skip
RUN_BY: Final = {
    ("library/sessions", "py"): "tests/docs/test_page_commands.py::test_the_library_opens_a_database",
    (
        "service/deploy",
        "sql",
    ): "tests/docs/test_page_commands.py::test_commands_of_deploy_for_several_machines",
    ("service/deploy", "nginx"): "tests/cli/test_load_balancers.py::nginx",
    ("service/deploy", "haproxy"): "tests/cli/test_load_balancers.py::haproxy",
}
"""The function that runs the blocks of a page in a language."""
EXAMPLES: Final = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.py"))]


def blocks(*languages: str) -> list[PagePart]:
    return [block for page in PAGES for block in fenced_blocks(page, *languages)]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_has_a_known_language(page: Path) -> None:
    assert [str(block) for block in fenced_blocks(page) if block.about not in LANGUAGES] == []


def test_a_block_that_does_not_run_here_is_part_of_an_example_or_has_a_test() -> None:
    found = blocks("py", "ini", "sql", "nginx", "haproxy")
    unchecked = [block for block in found if not any(block.text in example for example in EXAMPLES)]
    assert {(block.page, block.about) for block in unchecked} == set(RUN_BY)


@pytest.mark.parametrize(("block", "named"), RUN_BY.items(), ids=lambda value: str(value))
def test_the_named_test_reads_the_page(block: tuple[str, str], named: str) -> None:
    path, _, function = named.partition("::")
    code = (ROOT / path).read_text(encoding="utf-8")
    functions = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    assert function in functions
    assert block[0] in code


def is_setting(key: str) -> bool:
    """Return whether a key of a TOML file is one of Foveal's, or a table of them."""
    return any(known.path[0] == key for known in KEYS)


def test_settings_are_accepted_by_the_loader(tmp_path: Path) -> None:
    checked = 0
    for block in blocks("toml"):
        keys = tomllib.loads(block.text)
        if block.page.startswith("coding-agents/") and not all(map(is_setting, keys)):
            continue  # the settings of another program
        if "project" in keys:
            continue  # pyproject.toml
        if block.page.startswith("library/own-policy") and "hide-logs" in block.text:
            continue  # the policy of a package that is not installed
        if "preset" in keys:
            foveal.policy(keys)
        else:
            (tmp_path / "foveal.toml").write_text(block.text, encoding="utf-8")
            load(tmp_path, environ={}, user_folder=tmp_path, project=False)
        checked += 1
    assert checked > 5


def test_data_can_be_read() -> None:
    for block in blocks("json"):
        json.loads(block.text)
    for block in blocks("yaml"):
        yaml.safe_load(block.text)
