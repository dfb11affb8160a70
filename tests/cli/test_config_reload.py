"""SIGHUP: `foveal serve` reads its configuration again, whole or not at all."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.config import load
from foveal.config.sources import CONFIG_FILE_NAME
from foveal.user_paths import config_folder
from support import warm_start
from support.serve_process import DEADLINE, Server, serving
from support.upstream import Piece, RawUpstream, ReceivedRequest, stream_head

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
KEY = "sk-client-0123456789abcdef"
HEADERS = {"authorization": f"Bearer {KEY}"}
WORDS = [b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number for number in range(3)]
GATE = threading.Event()


def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    yield from (stream_head(), WORDS[0], GATE, *WORDS[1:], b"data: [DONE]\n\n")


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(script) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


class Reloading:
    """A server, and the file that it reads."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.file = config_folder({"HOME": str(server.folder.parent)}) / CONFIG_FILE_NAME
        self.file.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: str) -> list[dict[str, Any]]:
        """Write the file, ask for a reload, and return the lines of the log about it."""
        self.file.write_text(text)
        return self.reload()

    def reload(self) -> list[dict[str, Any]]:
        """Ask for a reload, and return the lines of the log about it."""
        before = len(self._lines())
        self.server.hang_up()
        self.server.wait_until(lambda: any(one["event"] in ENDS for one in self._lines()[before:]))
        return self._lines()[before:]

    def _lines(self) -> list[dict[str, Any]]:
        return [line for line in self.server.logged if line["event"] in (*ENDS, *DETAILS)]


ENDS = ("reloaded", "reload_refused")
DETAILS = ("setting_changed", "restart_needed")


@pytest.fixture
def reloading(server: Server) -> Iterator[Reloading]:
    made = Reloading(server)
    yield made
    made.write("")


def changed(lines: list[dict[str, Any]], event: str = "setting_changed") -> dict[str, tuple[str, str]]:
    return {one["setting"]: (one["before"], one["after"]) for one in lines if one["event"] == event}


def test_new_settings_count_and_open_streams_go_on(reloading: Reloading, upstream: RawUpstream) -> None:
    server = reloading.server
    reloading.write(f'[server]\nopenai_url = "{upstream.openai}"\nmodels = ["gpt-*"]\n')
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Count."}], "stream": True}
    with (
        httpx.Client(base_url=server.url, trust_env=False, timeout=DEADLINE, headers=HEADERS) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        pieces = reply.iter_raw()
        assert next(pieces) == WORDS[0]
        other = upstream.openai.replace("http://", "http://me:s3cret-word@")
        lines = reloading.write(f'[server]\nopenai_url = "{other}"\nmodels = ["own-*"]\nmax_body = 5000\n')
        assert client.post("/v1/chat/completions", json=body).status_code == 403
        assert client.post("/v1/chat/completions", json={**body, "x": "x" * 9_000}).status_code == 413
        GATE.set()
        assert b"".join(pieces).startswith(b"".join(WORDS[1:]))
    assert set(changed(lines)) == {"server.openai_url", "server.models", "server.max_body"}
    assert changed(lines)["server.models"] == ('["gpt-*"]', '["own-*"]')
    assert "s3cret-word" not in server.output


@pytest.mark.parametrize(
    "wrong",
    [
        "rate = -1",
        "unknown_key = 1",
        "this is no TOML",
        'openai_url = "ftp://x"',
        '[[schedule]]\nname = "x"\nsession = "s"\ncron = "at noon"\nprompt = "Hi."',
        '[agents.a]\nmodel = "nowhere/x/y"\n[context]\npolicy = "none-such"',
    ],
)
def test_nothing_changes_if_anything_is_wrong(reloading: Reloading, wrong: str) -> None:
    reloading.write('[server]\nmodels = ["gpt-*"]\n')
    (line,) = reloading.write(f'[server]\nmodels = ["own-*"]\n{wrong}\n')
    assert line["event"] == "reload_refused"
    assert len(line["why"]) > 20
    assert not line["why"].endswith(",")
    body = {"model": "own-x", "messages": [{"role": "user", "content": "Hi."}]}
    assert reloading.server.ask("/v1/chat/completions", body=body).status == 403
    assert reloading.server.ask("/healthz").status == 200


def test_what_needs_a_restart_is_named_and_the_rest_counts(reloading: Reloading) -> None:
    server = reloading.server
    text = '[server]\nhosts = ["chat.example"]\nhost = "0.0.0.0"\n[telegram]\nfooter = false\n'
    lines = reloading.write(text)
    named = changed(lines, "restart_needed")
    assert set(named) == {"server.host", "telegram.footer"}
    assert named["server.host"] == ("127.0.0.1", "0.0.0.0")
    assert set(changed(lines)) == {"server.hosts"}
    assert server.ask("/healthz", headers={"Host": "chat.example"}).status == 200
    assert server.ask("/healthz", headers={"Host": "10.0.0.1"}).status == 421  # as on loopback


def test_a_file_that_is_gone_leaves_the_settings_as_they_are(reloading: Reloading) -> None:
    reloading.write('[server]\nmodels = ["gpt-*"]\n')
    away = reloading.file.rename(reloading.file.with_suffix(".gone"))
    (line,) = reloading.reload()
    assert line["event"] == "reload_refused"
    assert f"{reloading.file} is gone" in line["why"]
    body = {"model": "own-x", "messages": [{"role": "user", "content": "Hi."}]}
    assert reloading.server.ask("/v1/chat/completions", body=body).status == 403
    away.rename(reloading.file)
    assert [line["event"] for line in reloading.reload()] == ["reloaded"]


def test_the_audit_trail_names_what_a_reload_has_changed(reloading: Reloading) -> None:
    def recorded() -> list[str]:
        command = ["-m", "foveal.cli", "admin", "audit", "--action", "config"]
        command += ["--format", "jsonl", "--folder", str(reloading.server.folder)]
        done = warm_start.run(command)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["object"] for line in done.stdout.splitlines()]

    before = len(recorded())
    text = '[server]\nmodels = ["secret-model"]\nmax_body = 5000\nhost = "0.0.0.0"\n'
    reloading.write(text)
    reloading.write(text)
    (row,) = recorded()[before:]
    digest, _, names = row.partition(" changed, ")
    assert (digest.startswith("config:"), names) == (True, "server.max_body server.models")


def test_schedules_of_the_file_are_stored_and_removed(reloading: Reloading) -> None:
    text = '[[schedule]]\nname = "daily"\nsession = "s"\ncron = "0 9 * * *"\nprompt = "Report."\n'
    reloading.write(text)
    assert [one["name"] for one in reloading.server.ask("/api/schedules").json["schedules"]] == ["daily"]
    reloading.write("")
    assert reloading.server.ask("/api/schedules").json["schedules"] == []


def test_changes_are_shown_without_secrets(tmp_path: Path) -> None:
    def loaded(text: str) -> Any:
        (tmp_path / CONFIG_FILE_NAME).write_text(text)
        return load(tmp_path, environ={}, user_folder=tmp_path, project=False)

    before = loaded('[mcp.a]\ncommand = "x"\nargs = ["--key", "s3cret"]\n[mcp.a.env]\nKEY = "s3cret"\n')
    after = loaded(
        'window = 9000\n[mcp.a]\ncommand = "x"\nargs = ["--key", "0ther"]\n[mcp.a.env]\nKEY = "n3w"\n'
    )
    found = {one.name: (one.before, one.after) for one in before.changes(after)}
    assert found["window"] == (None, 9_000)
    assert set(found) == {"window", "mcp.a.args", "mcp.a.env"}
    assert not any(word in json.dumps(found) for word in ("s3cret", "0ther", "n3w"))
    assert before.changes(before) == []
