"""`foveal serve` as it is run: a process that begins, is killed, begins again, and ends well."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.agent import TextStreamed
from foveal.apps.__main__ import main
from foveal.apps.http import server_health
from foveal.apps.http.banner import greeting
from foveal.apps.http.listener import bound, listening
from foveal.apps.http.proxy import Upstreams
from foveal.apps.http.shutdown import ShutdownState, StopSignal, end
from foveal.apps.serve import fetched
from foveal.config import load
from foveal.core.log import ModelSaid, UserSaid, text_of
from foveal.errors import FovealError, ProviderError
from foveal.providers.local.download import DownloadProgress
from foveal.server import AuthTokens, DataFolder, Service
from foveal.server.jobs import ScheduleStore, configured
from foveal.stores import open_store
from foveal.testing import Scripted
from support.serve_process import DEADLINE, Server, ask, serving, until
from support.upstream import Front, Raw, stream_head


def said(folder: Path, session: str) -> list[tuple[str, str]]:
    """Who said what in a session, as it lies on the disk."""

    async def read() -> list[tuple[str, str]]:
        async with open_store(DataFolder(folder).tenant("default")) as store:
            facts = [event.fact for event in await store.read(session)]
        return [
            ("user" if isinstance(fact, UserSaid) else "model", text_of(fact.content))
            for fact in facts
            if isinstance(fact, UserSaid | ModelSaid)
        ]

    return asyncio.run(read())


class Stream:
    """An answer that comes bit by bit."""

    def __init__(self, server: Server, path: str, body: Any) -> None:
        port = int(server.url.rpartition(":")[2])
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        try:
            self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            self._answer = self._connection.getresponse()
            assert self._answer.status == 200, (self._answer.read(), server.output)
        except BaseException:
            self._connection.close()
            raise

    def until(self, part: str) -> None:
        while part not in (line := self._answer.readline().decode()):
            assert line, f"the stream ended without {part!r}"

    def rest(self) -> str:
        return self._answer.read().decode()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def turn(server: Server, text: str) -> Iterator[Stream]:
    with closing(Stream(server, "/api/sessions/demo/turns", {"text": text})) as stream:
        yield stream


def test_a_server_greets_and_finishes_what_runs_before_it_ends(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with serving(environment={"GATE": str(gate)}, settings={"server.grace": 600}) as server:
        greeting = server.output.splitlines()[:8]
        assert server.url in greeting[0]
        assert f'base_url="{server.url}/v1"' in "".join(greeting)
        assert "scripted/model" in greeting[1]
        assert (server.folder.stat().st_mode & 0o777) == 0o700
        assert server.ask("/api/sessions", body={"id": "demo"}).status == 201
        with turn(server, "hold on") as stream:
            stream.until("Well")
            server.interrupt()
            server.wait_for("stopping")
            well = server.ask("/healthz")
            assert (well.status, well.json["status"], well.json["turns_running"]) == (503, "stopping", 1)
            refused = server.ask("/v1/messages", body={})
            assert refused.status == 503
            assert refused.json["error"]["type"] == "overloaded_error"
            assert int(refused.headers["retry-after"]) > 0
            assert server.ask("/api/sessions").json["type"] == "urn:foveal:stopping"
            gate.touch()
            rest = stream.rest()
        assert "You said: hold on" in rest
        assert "event: outcome" in rest
        assert server.wait() == 0
        assert [line["event"] for line in server.logged][-1] == "stopped"
        assert said(server.folder, "demo") == [("user", "hold on"), ("model", "You said: hold on")]


SESSIONS: Final = ("load-1", "load-2")


def killed_under_load(server: Server) -> list[str]:
    """Talk to a server from many threads until it is killed; the words that it has acknowledged."""
    acknowledged: list[str] = []

    def talk(name: str, session: str) -> None:
        for number in count():
            try:
                stream = Stream(server, f"/api/sessions/{session}/turns", {"text": f"{name} {number}"})
            except (OSError, http.client.HTTPException):
                return
            acknowledged.append(f"{name} {number}")
            stream.close()  # without waiting for the answer

    for session in SESSIONS:
        assert server.ask("/api/sessions", body={"id": session}).status == 201
    talkers = [
        threading.Thread(target=talk, args=(f"{session}, {number}:", session))
        for session in SESSIONS
        for number in range(2)
    ]
    for talker in talkers:
        talker.start()
    until(lambda: len(acknowledged) >= 30)
    server.kill()
    for talker in talkers:
        talker.join(DEADLINE)
    return acknowledged


def unanswered(server: Server) -> list[dict[str, Any]]:
    """The turns that ended in another way."""
    return [line for line in server.logged if line["event"] == "turn" and line["why"] != "answered"]


def spoken(word: str) -> list[tuple[str, str]]:
    """What is stored of a message that was answered."""
    return [("user", word), ("model", f"You said: {word}")]


def test_what_was_acknowledged_survives_kill_9_and_is_answered_once(tmp_path: Path) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "server"
    how: dict[str, Any] = {"folder": folder, "environment": {"GATE": str(gate)}}
    waiting = threading.Event()
    chunk = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"Once upon"}}]}\n\n'

    with serving(**how) as second:
        with serving(**how) as first:  # two on one folder
            assert first.ask("/api/sessions", body={"id": "demo"}).status == 201
            assert second.ask("/api/sessions/demo").status == 200
            with turn(first, "hold one") as stream:
                stream.until("Well")
                first.kill()
        gate.touch()
        answer = second.ask("/api/sessions/demo/turns", body={"text": "two", "stream": False})
        assert (answer.status, answer.json["outcome"]["text"]) == (200, "You said: two")
        told = [
            ("user", "hold one"),
            ("model", "You said: hold one"),
            ("user", "two"),
            ("model", "You said: two"),
        ]
        assert said(folder, "demo") == told
        acknowledged = killed_under_load(second)
        assert unanswered(second) == []
    with (
        Raw(lambda seen, number: [stream_head(), chunk, waiting]) as upstream,
        serving(**how, settings={"server.grace": 600, "server.openai_url": upstream.openai}) as third,
    ):
        until(lambda: third.ask("/healthz").json["inbox"] == 0)
        assert unanswered(third) == []
        heard = [line for session in SESSIONS for line in said(folder, session)]
        assert heard == [(who, text) for _, word in heard[::2] for who, text in spoken(word)]
        assert Counter(word for _, word in heard[::2]) >= Counter(acknowledged)
        assert max(Counter(heard).values()) == 1
        gate.unlink()
        asked = {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "Tell a story."}]}
        with (
            turn(third, "hold four") as own,
            closing(Stream(third, "/v1/chat/completions", asked)) as passed,
        ):
            own.until("Well")
            passed.until("Once upon")
            third.interrupt()
            third.wait_for("stopping")
            third.interrupt()  # the second time it does not wait
            assert '"stopped"' in own.rest()
            last = passed.rest().strip().splitlines()[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopping"
        waiting.set()
        assert third.wait() == 0
    assert ("user", "hold four") in said(folder, "demo")


# ── what can go wrong at the start ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without anybody's configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("FOVEAL_PROVIDER", "support.serve_process:scripted")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a server that does not begin."""
    assert main(["serve", *arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert "Traceback" not in told.err
    return told.err


def test_a_port_that_is_taken_is_named(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is taken" in refused(capsys, f"--port={port}")


def test_an_address_that_is_none_is_named(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'no such host'" in refused(capsys, "--host=no such host", "--port=0")


def test_a_folder_that_cannot_be_used_is_named(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "file").write_text("not a folder")
    assert "file" in refused(capsys, "--port=0", f"--folder={alone / 'file'}")
    (alone / "foreign").mkdir()
    (alone / "foreign" / "service.db").write_bytes(b"not a database, not at all" * 100)
    assert "service.db" in refused(capsys, "--port=0", f"--folder={alone / 'foreign'}")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("server.port=many", "server.port"),
        ("server.grace=-1", "server.grace"),
        ("server.nothing=1", "server.nothing"),
        ("server", "KEY=VALUE"),
    ],
)
def test_a_setting_that_is_wrong_is_named(
    alone: Path, capsys: pytest.CaptureFixture[str], setting: str, told: str
) -> None:
    assert told in refused(capsys, "--port=0", "--set", setting)


def test_a_model_that_was_named_and_has_no_key_is_told_at_once(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOVEAL_PROVIDER")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    told = refused(capsys, "--port=0", "--model=anthropic/claude-sonnet-4-6")
    assert "set ANTHROPIC_API_KEY" in told


def test_nobody_serves_other_machines_without_a_token(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`foveal token create`" in refused(capsys, "--port=0", "--host=0.0.0.0")
    other = alone / "an other"
    told = refused(capsys, "--port=0", "--host=0.0.0.0", f"--folder={other}")
    assert f"`foveal token create --folder '{other}'`" in told


# ── the end, and health ──────────────────────────────────────────────────────────────────────────────────


def test_a_turn_that_takes_longer_than_the_grace_is_stopped_and_stored(tmp_path: Path) -> None:
    async def scene() -> tuple[str, list[Any]]:
        environment = {"FOVEAL_PROVIDER": "support.serve_process:scripted", "GATE": str(tmp_path / "never")}
        settings = load(tmp_path, flags={"tokenizer": "estimate"}, environ={}, user_folder=tmp_path)
        async with Service.open(settings, folder=tmp_path / "server", environment=environment) as service:
            room = await service.tenant("default").create("demo")
            turn = await room.say("hold on")
            async for happening in turn.follow():
                if isinstance(happening, TextStreamed):
                    break
            await end(service, ShutdownState(), StopSignal(), grace=0.0)
            return (await turn.outcome()).why, await service.ground.desk.waiting()

    assert asyncio.run(scene()) == ("stopped", [])
    assert said(tmp_path / "server", "demo")[0] == ("user", "hold on")


def test_a_server_that_cannot_store_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_health, "FRESH", 0.0)
    with Front(tmp_path, environment={"FOVEAL_PROVIDER": "support.serve_process:scripted"}) as front:
        well = ask(front.url, "/healthz")
        assert (well.status, well.json) == (
            200,
            {"status": "ok", "sessions_open": 0, "turns_running": 0, "inbox": 0},
        )
        front.do(front.service.ground.database.close())
        ill = ask(front.url, "/healthz")
        assert (ill.status, ill.json["status"]) == (503, "the store cannot be written")
        assert ask(front.url, "/metrics").status == 503


class Absent(Scripted):
    """A local model that is not on the disk."""

    fetched = False

    def __init__(self, progress: Any, *, broken: bool) -> None:
        super().__init__(name="local/tiny")
        self._progress, self._broken = progress, broken

    async def start(self) -> None:
        for done in range(101):
            self._progress(DownloadProgress(stage="fetching", done=done * 1_000_000, total=100_000_000))
        if self._broken:
            raise ProviderError("nobody is there", code="connection")
        self._progress(DownloadProgress(stage="ready"))


def absent(name: str | None, *, environment: Mapping[str, str], window: int | None, progress: Any) -> Absent:
    return Absent(progress, broken="BROKEN" in environment)


@pytest.mark.parametrize("broken", [False, True])
def test_a_local_model_is_fetched_before_the_server_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: bool
) -> None:
    environment = {"FOVEAL_PROVIDER": f"{__name__}:absent", **({"BROKEN": "1"} if broken else {})}

    async def scene() -> bool:
        settings = load(tmp_path, environ={}, user_folder=tmp_path)
        async with Service.open(settings, folder=tmp_path / "server", environment=environment) as service:
            return await fetched(service, StopSignal())

    assert asyncio.run(scene())
    told = capsys.readouterr().err.splitlines()
    assert "local/tiny" in told[0]
    assert told[1] == "  0 of 100 MB"
    assert told[11] == "  100 of 100 MB"
    assert ("nobody is there" in told[-1]) is broken


def test_of_two_that_take_one_address_the_second_says_so(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks")

    async def scene() -> None:
        with closing(socket.socket()) as first:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            first.bind(("127.0.0.1", 0))
            first.settimeout(0)
            port = first.getsockname()[1]
            second = bound("127.0.0.1", port)  # which is possible as long as nobody listens
            async with listening(app, first):
                with closing(second), pytest.raises(FovealError, match=f"port {port} of 127.0.0.1 is taken"):
                    async with listening(app, second):
                        raise AssertionError("both listen")

    asyncio.run(scene())


def greeted(folder: Path, flags: dict[str, Any], environment: dict[str, str], *tenants: str) -> str:
    async def scene() -> list[str]:
        settings = load(folder, flags=flags, environ={}, user_folder=folder)
        async with Service.open(settings, folder=folder / "server", environment=environment) as service:
            for tenant in tenants:
                await AuthTokens(service.ground.database).create(tenant, now=0.0)
            schedules = [configured(schedule) for schedule in settings.schedules]
            await ScheduleStore(service.ground.database).configure(schedules, now=946_684_800.0)
            upstreams = Upstreams(service)
            told = await greeting(service, "http://127.0.0.1:8790", upstreams=upstreams, chats="none")
            await upstreams.close()
            return told

    lines = asyncio.run(scene())
    assert 4 <= len(lines) <= 10
    return "\n".join(lines)


def test_the_greeting_says_who_may_talk_and_who_answers(tmp_path: Path) -> None:
    environment = {"FOVEAL_PROVIDER": "support.serve_process:scripted"}
    told = greeted(tmp_path, {"window": "5,000"}, environment, "alice", "alice", "bob")
    assert "scripted/model, 5,000 tokens" in told
    assert "3 for 2 tenants; a request needs one" in told
    assert "  chats     none\n" in told
    assert "/v1\") → api.openai.com, with the client's own key\n" in told


def test_without_a_model_there_are_still_drop_in_endpoints(tmp_path: Path) -> None:
    told = greeted(tmp_path, {}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert (
        "none, so there are drop-in endpoints only; --model provider/model names one (OPENAI_BASE_URL" in told
    )
    assert "everybody on this machine may ask; `foveal token create` makes the first" in told
    assert '/v1") → 127.0.0.1:1\n' in told


def test_the_greeting_says_how_far_it_reaches_and_what_comes_when(tmp_path: Path) -> None:
    (tmp_path / "foveal.toml").write_text(
        '[[schedule]]\nname = "morning"\nsession = "a"\ncron = "0 7 * * *"\nprompt = "Hello"\n'
    )
    flags = {"server.host": "0.0.0.0", "server.hosts": "chat.example", "server.folder": "here"}
    told = greeted(tmp_path, flags, {"ANTHROPIC_API_KEY": "sk-canary"})
    assert "8790, and at every other address of this machine\n" in told
    assert "its addresses, localhost, and those of server.hosts (chat.example)\n" in told
    assert "schedules 1 of the configuration; the next is morning, at 2000-01-01T07:00:00Z\n" in told
    assert f"`foveal token create --folder {tmp_path / 'server'}` makes the first" in told
    assert 'base_url="http://127.0.0.1:8790") → api.anthropic.com\n' in told
    assert "canary" not in told
