"""`on_disconnect`: what happens to an answer whose client goes away, over real connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import api_server
from support.upstream import DEADLINE, ProxyServer, RawUpstream, stream_head, until

PROVIDER = {"FOVEAL_PROVIDER": "support.api_server:make"}
CONFIG = "[agents.pausing]\non_disconnect = 'pause'\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("gone")
    (folder / "foveal.toml").write_text(CONFIG)
    with ProxyServer(folder, environment=PROVIDER) as made:
        yield made


@pytest.fixture
def client(server: ProxyServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=DEADLINE) as made:
        yield made


def session_of(client: httpx.Client, agent: str) -> str:
    return str(client.post("/api/sessions", json={"agent": agent}).headers["location"])


def leave_stream(client: httpx.Client, session: str, gate: str) -> str:
    """Ask, leave after the first words, and return the path of the turn."""
    with client.stream("POST", f"{session}/turns", json={"text": f"hold {gate}"}) as stream:
        for line in stream.iter_lines():
            if line == "event: streamed":
                break
        return str(stream.headers["location"])


def state(client: httpx.Client, turn: str) -> Any:
    return client.get(turn, params={"stream": False}).json()


def test_a_turn_pauses_when_the_client_of_its_stream_goes_away(client: httpx.Client) -> None:
    session = session_of(client, "pausing")
    turn = leave_stream(client, session, "stream-pause")
    until(lambda: state(client, turn)["state"] == "ended")
    outcome = state(client, turn)["outcome"]
    assert (outcome["why"], outcome["code"], outcome["text"]) == ("stopped", "disconnected", "Well … ")
    gone = "the client disconnected, and on_disconnect is pause"
    assert outcome["problem"] == f"{gone}: ask again to continue"
    log = client.get(f"{session}/events").text
    assert f"The turn ended early: {gone}" in log
    assert "by the user" not in log
    api_server.gate("stream-pause").set()
    again = client.post(f"{session}/again", json={"stream": False}).json()
    assert again["outcome"]["text"] == "You said: hold stream-pause"


def test_a_turn_pauses_when_a_client_without_a_stream_goes_away(
    server: ProxyServer, client: httpx.Client
) -> None:
    session = session_of(client, "pausing")
    body = json.dumps({"text": "hold plain-pause", "stream": False}).encode()
    head = f"POST {session}/turns HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: client.get(f"{session}/events").text.count("user_said"))
    until(lambda: "The turn ended early" in client.get(f"{session}/events").text)


def test_a_turn_continues_without_its_client_by_default(client: httpx.Client) -> None:
    turn = leave_stream(client, session_of(client, ""), "stream-go")
    assert state(client, turn)["state"] == "running"
    api_server.gate("stream-go").set()
    until(lambda: state(client, turn)["state"] == "ended")
    assert state(client, turn)["outcome"]["text"] == "You said: hold stream-go"


def test_another_client_that_follows_the_turn_keeps_it_running(client: httpx.Client) -> None:
    session = session_of(client, "pausing")
    with client.stream("POST", f"{session}/turns", json={"text": "hold followed"}) as first:
        turn = first.headers["location"]
        lines = first.iter_lines()
        while next(lines) != "event: streamed":
            pass
        second = client.stream("GET", turn)
        following = second.__enter__()
    try:
        assert state(client, turn)["state"] == "running"
        api_server.gate("followed").set()
        assert "You said: hold followed" in [*following.iter_lines()][-2]
    finally:
        second.__exit__(None, None, None)


def test_a_turn_that_a_client_reads_to_its_end_is_not_paused(client: httpx.Client) -> None:
    done = client.post(f"{session_of(client, 'pausing')}/turns", json={"text": "Hello.", "stream": False})
    assert done.json()["outcome"]["why"] == "answered"


@pytest.mark.parametrize("mode", ["pause", "continue"])
def test_a_drop_in_stream_without_its_client_is_given_up_or_read_to_its_end(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.proxy.response_stream.DISCONNECT_CHECK_INTERVAL_S", 0.01)
    gone, broken = threading.Event(), threading.Event()
    chunk = b'data: {"choices": [{"index": 0, "delta": {"content": "more "}, "finish_reason": null}]}\n\n'
    last = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    def script(seen: Any, number: int) -> Iterator[Any]:
        yield stream_head()
        try:
            for _ in range(100):
                yield chunk
                gone.wait(DEADLINE)
                time.sleep(0.01)
            yield last
        except (OSError, GeneratorExit):
            broken.set()
            raise

    with (
        RawUpstream(script) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai, on_disconnect=mode) as proxy,
    ):
        body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        with (
            httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
            http.stream("POST", f"{proxy.openai}/chat/completions", json=body) as reply,
        ):
            session = reply.headers["x-foveal-session"]
            next(reply.iter_raw())
        gone.set()
        if mode == "pause":
            assert broken.wait(DEADLINE)
            assert not any(type(event.fact).__name__ == "ModelSaid" for event in proxy.events(session))
        else:
            until(lambda: any(type(event.fact).__name__ == "ModelSaid" for event in proxy.events(session)))
