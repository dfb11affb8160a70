"""`foveal inspect` as a command."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import httpx
import pytest

from foveal.cli.__main__ import main
from foveal.core.log.events import ModelSaid, UserSaid
from support import warm_start
from support.inspected_server import write_session
from support.warm_start import WarmProcess


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.db"
    write_session(path, "first", [UserSaid(content="Hello."), ModelSaid(content="Hi.")], title="First <talk>")
    return path


@contextmanager
def inspecting(*arguments: str, **environment: str) -> Iterator[tuple[str, WarmProcess]]:
    """The command in a process of its own, with the line that it prints first."""
    command = ["-m", "foveal.cli", "inspect", *arguments]
    env = {**os.environ, **environment}
    with warm_start.start(
        command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, encoding="utf-8", env=env
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline(), process
        finally:
            process.kill()


def test_it_prints_its_address_serves_and_ends_with_ctrl_c(store: Path) -> None:
    with inspecting(str(store), "--no-open", "--port", "0") as (line, process):
        found = re.fullmatch(
            r"foveal inspect: (http://127\.0\.0\.1:\d+/inspect/login\?token=[\w-]{32}&id=\w+) \(Ctrl-C ends it\)\n",
            line,
        )
        assert found, line
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            page = client.get(found[1])
            assert "token=" not in str(page.url)
            assert "First &lt;talk&gt;" in page.text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_it_opens_the_browser_with_a_token_of_its_own(store: Path, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.tmp && mv {opened}.tmp {opened}\n')
    browser.chmod(0o755)
    with inspecting(str(store), "--port", "0", BROWSER=str(browser)) as (line, _):
        from support.waiting import wait_until

        wait_until(opened.exists)
        token = re.compile(r"token=([\w-]+)")
        printed, given = token.search(line), token.search(opened.read_text())
        assert printed
        assert given
        assert printed[1] != given[1]


def test_without_sessions_in_the_default_places_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("FOVEAL_STORE", str(tmp_path / "none.db"))
    assert main(["inspect", "--no-open"]) == 1
    assert capsys.readouterr().err == (
        "foveal: no sessions of Claude Code, Codex, pi or Foveal were found: name a path\n"
    )


def test_wrong_arguments_are_told_in_one_sentence(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = {
            ("--host", "0.0.0.0"): "foveal serve",
            ("--port", "70000"): "a port from 0 to 65,535",
            ("--port", port): "is used by another program: choose another with --port",
            ("nowhere",): "there is no file nowhere; there is no session nowhere",
            (f"{store.parent}/nowhere",): f"there is no file or folder {store.parent}/nowhere",
            ("--window", "0"): "--window = 0 is not allowed: a whole number from 1",
            ("mysql://host/x",): "postgresql://",
            ("--export", str(store)): "exists and was not overwritten",
        }
        for arguments, text in cases.items():
            assert main(["inspect", "--no-open", "--store", str(store), *arguments]) == 1
            error = capsys.readouterr().err
            assert text in error
            assert error.count("\n") == 1


@pytest.fixture
def unreadable(store: Path) -> list[Path]:
    """A damaged store, random bytes, and a file of another format."""
    damaged, noise, script = (store.with_name(name) for name in ("damaged.db", "noise.jsonl", "mk.py"))
    damaged.write_bytes(store.read_bytes()[:8192])
    noise.write_bytes(bytes(range(256)) * 40)
    script.write_text("print(1)\n")
    return [damaged, noise, script]


def test_a_named_place_that_cannot_be_read_is_no_empty_one(
    unreadable: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for place in unreadable:
        assert main(["inspect", "--no-open", str(place)]) == 1
        error = capsys.readouterr().err
        assert str(place) in error
        assert error.count("\n") == 1


def test_what_cannot_be_read_is_told_in_the_terminal_and_on_the_page(
    store: Path, unreadable: list[Path]
) -> None:
    places = [str(path) for path in (store, *unreadable)]
    with inspecting(*places, "--no-open", "--port", "0") as (line, process):
        found = re.search(r"http://\S+", line)
        assert found
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            page = client.get(found[0])
            listed = client.get(str(page.url.join("api/sessions"))).json()
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert process.stderr is not None
        told = process.stderr.read()
        assert [row["title"] for row in listed["sessions"]] == ["First <talk>"]
        for place in unreadable:
            assert str(place) in told
            assert str(place) in page.text
            assert any(str(place) in problem for problem in listed["problems"])


def test_it_exports_the_one_session_that_is_meant(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "first.html"
    assert main(["inspect", str(store), "--export", str(file)]) == 0
    assert capsys.readouterr().out == f"{file.stat().st_size:,} bytes written to {file}\n"
    assert "<title>First &lt;talk&gt; – Foveal</title>" in file.read_text("utf-8")
    assert os.name == "nt" or file.stat().st_mode & 0o777 == 0o600  # a conversation, like a store
    write_session(store, "second", [UserSaid(content="Hello.")])
    assert main(["inspect", str(store), "--export", str(file), "--force"]) == 1
    assert "name its id" in capsys.readouterr().err
    assert main(["inspect", "first", "--store", str(store), "--export", str(file), "--force"]) == 0
