"""The OpenAPI document matches the server (schemathesis) and `docs/service/http-api.md`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from foveal.server import api
from foveal.server.api.session_operations import SESSION_OPERATIONS
from support.api_server import ApiServer
from support.paths import ROOT

SOAK = bool(os.environ.get("FOVEAL_SOAK"))
CONFIG = """
seed = 1
suppress-health-check = ["all"]
[generation]
max-examples = {examples}
deterministic = true
database = "none"
[phases.stateful.generation]
max-examples = {scenarios}
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "409", "422"]
[[operations]]
include-name = "POST /api/memory/{{user}}/proposals"
checks.ensure_resource_availability.enabled = false
"""
"""All checks. A 422 matches its schema and is still not possible; the 404 of proposals is for the
session in the body, not for the user of the path."""
PHASES: Final = "examples,coverage,fuzzing,stateful" if SOAK else "fuzzing,stateful"
"""The phase `coverage` tries each boundary of each parameter, which takes most of the time."""
PATHS: Final = "." if SOAK else r"/(sessions|turns|events|pins|undo|schedules|tokens|\{user\})$"
"""`make test` tries the operations that list and add: all come from one table by the same code."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("schema"), background=True) as served:
        yield served


@pytest.mark.long
def test_schemathesis_finds_no_failure(server: ApiServer, tmp_path: Path) -> None:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(CONFIG.format(examples=40 if SOAK else 1, scenarios=40 if SOAK else 1))
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "--config-file", settings),
            *("run", "--phases", PHASES, "--include-path-regex", PATHS, f"{server.url}/openapi.json"),
        ],
        cwd=tmp_path,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=3_600 if SOAK else 600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_background_turn_is_stored_and_run(server: ApiServer) -> None:
    with server.client() as client:
        session = client.post("/api/sessions", json={}).headers["location"]
        given = {"text": "Later, please.", "background": True, "key": "later"}
        accepted = client.post(f"{session}/turns", json=given)
        assert accepted.status_code == 202
        assert accepted.json() == {"session": session.rpartition("/")[2], "key": "later"}
        same = client.post(f"{session}/turns", json={**given, "background": False, "stream": False}).json()
        assert same["outcome"]["text"] == "You said: Later, please."
        events = client.get(f"{session}/events").json()["events"]
        assert [event["kind"] for event in events].count("user_said") == 1
        picture = {"content": [{"type": "image_url", "image_url": {"url": "https://x"}}], "background": True}
        assert client.post(f"{session}/turns", json=picture).status_code == 422
        assert client.post(f"{session}/compact", json={"background": True}).status_code == 202


def test_the_document_describes_marks() -> None:
    document = api.openapi()
    marked = document["paths"]["/api/sessions/{session}/mark"]["post"]
    assert marked["operationId"] == "mark_message"
    body = document["components"]["schemas"]["MarkBody"]
    assert body["required"] == ["handle", "priority"]
    assert body["properties"]["priority"]["enum"] == ["high", "low", "normal"]


def test_the_document_has_every_operation_once() -> None:
    document = api.openapi()
    ids = [
        operation["operationId"]
        for path, methods in document["paths"].items()
        if path.startswith("/api/sessions")
        for operation in methods.values()
    ]
    assert ids == [operation.id for operation in SESSION_OPERATIONS]
    assert len(set(ids)) == len(ids)


def test_docs_name_every_operation() -> None:
    page = (ROOT / "docs/service/http-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+) (\S+?)` \|", page, re.MULTILINE)
    there = {(method.upper(), path) for path, methods in api.openapi()["paths"].items() for method in methods}
    assert set(rows) == there
    assert len(rows) == len(there)
