"""The settings, versions and windows on the pages about coding agents are those that the tests run.

The agents themselves run in `test_proxy_npm_clients`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from foveal.config import find_key
from support.coding_clients import (
    CODING_CLIENTS,
    CodingClient,
    continue_settings,
    opencode_settings,
    pi_settings,
    qwen_code_settings,
)
from support.doc_pages import DOCS, code_blocks
from support.npm_clients import built_in_codex_settings, codex_settings

FOLDER = DOCS / "coding-agents"
SERVER = "http://127.0.0.1:8790"
READERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}


def page_blocks(page: str, language: str) -> list[Any]:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return [READERS[language](block) for block in code_blocks(text, language)]


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every setting; the items of a list have the same path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from key_paths(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for item in value:
            yield from key_paths(item, f"{path}/[]")
    else:
        yield path


@pytest.mark.parametrize(
    ("page", "language", "block", "used"),
    [
        ("opencode", "json", 0, opencode_settings(SERVER, 0)),
        ("others", "json", 0, pi_settings(SERVER, 0)),
        ("others", "json", 2, qwen_code_settings(0)),
        ("others", "yaml", 0, continue_settings(SERVER, 0)),
    ],
    ids=["opencode", "pi", "qwen", "continue"],
)
def test_the_settings_on_a_page_are_those_that_the_tests_use(
    page: str, language: str, block: int, used: dict[str, Any]
) -> None:
    shown = page_blocks(page, language)[block]
    shown.pop("$schema", None)  # for editors only
    assert set(key_paths(shown)) == set(key_paths(used))


def test_the_provider_on_the_page_of_codex_is_the_one_that_the_tests_use() -> None:
    shown, built_in = page_blocks("codex", "toml")
    used = tomllib.loads(codex_settings(SERVER))
    assert built_in["openai_base_url"] == tomllib.loads(built_in_codex_settings(SERVER))["openai_base_url"]
    [provider] = shown["model_providers"].values()
    [other] = used["model_providers"].values()
    assert {**provider, "name": ""} == {**other, "name": ""}


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_every_address_on_a_page_is_the_default_of_the_server(page: Any) -> None:
    ports = re.findall(r"127\.0\.0\.1:(\d+)", page.read_text(encoding="utf-8"))
    default = find_key(("server", "port"))
    assert default is not None
    assert {int(port) for port in ports} <= {default.default}


@pytest.mark.parametrize("agent", CODING_CLIENTS, ids=lambda agent: agent.client.program)
def test_the_index_names_the_version_and_window_of_the_tests(agent: CodingClient) -> None:
    rows = (FOLDER / "index.md").read_text(encoding="utf-8").splitlines()
    assert any(row.startswith(f"| {agent.name} ") and agent.client.version in row for row in rows)
    windowed = f"| {agent.name} | `{agent.client.package}` | {agent.window:,} |"
    assert windowed in rows
