"""The difference of two requests is the same on the page of a running inspector and in an exported file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.core.log import Call, Dialect, Instructed, ModelSaid, ToolReturned, UserSaid
from support.effort import rest_in_soak
from support.inspected_server import InspectedServer, write_session
from support.paths import ROOT

STATIC: Final = ROOT / "src/foveal/inspector/static"
SCRIPT: Final = """
import { readFileSync } from "node:fs";
const { OfflineData } = await import(process.argv[1]);
const { embedded, pairs } = JSON.parse(readFileSync(0, "utf-8"));
const data = new OfflineData(embedded);
console.log(JSON.stringify(await Promise.all(pairs.map(([a, b]) => data.diff(a, b)))));
"""


def facts(dialect: Dialect) -> list[Any]:
    """A conversation whose requests begin with several messages of the user in a row once it is reduced."""
    said: list[Any] = []
    for number in range(14):
        text = "\n".join(f"line {line} of file_{number}.py" for line in range(60))
        said.append(UserSaid(content=f"Look at file_{number}.py.", dialect=dialect))
        said.append(ModelSaid(content=(Call(id=f"c{number}", name="read", arguments="{}"),), dialect=dialect))
        said.append(ToolReturned(call_id=f"c{number}", content=text, name="read", dialect=dialect))
        said.append(ModelSaid(content=f"file_{number}.py is correct.", dialect=dialect))
        if number == 9:
            said.append(Instructed(content="Answer in French from now on."))
    return said


def place(diff: dict[str, Any]) -> tuple[Any, ...]:
    """Where two requests diverge, and what is equal before."""
    first = diff.get("first")
    return (None if first is None else (first["message"], first.get("key", "")), diff.get("same", 0))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.parametrize(
    ("model", "dialect"), rest_in_soak([("claude-sonnet-4-5", "anthropic"), ("gpt-4.1", "openai_chat")])
)
def test_both_pages_name_the_same_message(tmp_path: Path, model: str, dialect: Dialect) -> None:
    path = tmp_path / "sessions.db"
    write_session(
        path, "s", facts(dialect), title="T", model=model, window=3_000, reserve=300, tokenizer="estimate"
    )
    with InspectedServer(path, window=3_000) as server:
        client, key = server.client(), server.keys()["T"]
        page = client.get("/inspect/api/export", params={"id": key}).text
        found = re.search(r'<script type="application/json" id="foveal-data">(.*?)</script>', page, re.DOTALL)
        assert found is not None
        embedded = json.loads(found[1])
        ats = [row["at"] for row in embedded["timeline"]["requests"]]
        pairs = [*pairwise(ats), (ats[0], ats[-1]), (ats[-1], ats[0])]
        live = [client.get("/inspect/api/diff", params={"id": key, "a": a, "b": b}).json() for a, b in pairs]
    run = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT, "--", (STATIC / "offline_data.js").as_uri()],
        input=json.dumps({"embedded": embedded, "pairs": pairs}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    exported = json.loads(run.stdout)
    assert any(diff.get("first") for diff in live), "a reduction changed what is sent"
    assert [(pair, place(one)) for pair, one in zip(pairs, exported, strict=True)] == [
        (pair, place(one)) for pair, one in zip(pairs, live, strict=True)
    ]
