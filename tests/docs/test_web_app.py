"""The web application of the documentation, as a process, with users who write at the same time and a restart.

The process is `examples/web_app/app.py` under uvicorn; the clients speak HTTP, and the provider is the stand-in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT, SIGKILL
from subprocess import DEVNULL, PIPE
from typing import Any, NamedTuple

import httpx
import pytest

from support import warm_start
from support.doc_pages import code_blocks, page_text
from support.paths import ROOT
from support.provider_stand_in import Answer, StandIn, Trouble
from support.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not find_spec("fastapi"), reason="FastAPI is not installed: make test installs it"),
]
USERS = ["ada", "grace", "edsger", "barbara"]


class Served(NamedTuple):
    """The application as a process, with its provider."""

    url: str
    folder: Path
    provider: StandIn

    def requests_of(self, text: str) -> list[list[dict[str, str]]]:
        """Return the messages of the requests that have a text in one of them."""
        found = [request.body["messages"] for request in self.provider.requests]
        return [messages for messages in found if text in str(messages)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("web_app")
    with (
        StandIn(script=lambda number: Answer(text="It rains here. " * 20)) as provider,
        running(folder / "chats.db", provider) as url,
    ):
        yield Served(url, folder, provider)
        assert provider.faults == []


@contextmanager
def running(chats: Path, provider: StandIn, *, end: int = SIGINT) -> Iterator[str]:
    """Run the application, and yield its address; at the end, send its process the signal `end`."""
    environment = {
        **os.environ,
        "CHATS": str(chats),
        "NO_PROXY": "127.0.0.1",
        "OPENAI_BASE_URL": provider.openai,
        "OPENAI_API_KEY": "none",
        "MODEL": "gpt-4",  # with a small window
    }
    command = ["-m", "uvicorn", "app:app", "--app-dir", str(ROOT / "examples/web_app"), "--port", "0"]
    process = warm_start.start(command, env=environment, stderr=PIPE, stdout=DEVNULL, encoding="utf-8")
    assert process.stderr is not None
    printed: list[str] = []
    try:
        for line in process.stderr:
            printed.append(line)
            if found := re.search(r"running on (http://[\d.]+:\d+)", line):
                yield found[1]
                break
        else:
            raise AssertionError("".join(printed))
    finally:
        process.send_signal(end)
        process.communicate()


def send(url: str, user: str, chat: str, text: str) -> str:
    answer = httpx.post(f"{url}/chats/{chat}", json={"text": text}, headers={"X-User": user}, timeout=60)
    return answer.text if answer.status_code == 200 else f"{answer.status_code} {answer.text}"


def ask(method: str, url: str, user: str) -> Any:
    answer = httpx.request(method, url, headers={"X-User": user}, timeout=60)
    return answer.json() if answer.status_code == 200 else answer.status_code


def test_the_blocks_of_the_page_are_the_program() -> None:
    program = (ROOT / "examples/web_app/app.py").read_text(encoding="utf-8")
    blocks = code_blocks(page_text("library/web-app"), "py")
    assert "\n\n".join(block.rstrip("\n") + "\n" for block in blocks) == program.partition('"""\n\n')[2]


def test_several_users_at_once_share_nothing(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        for turn in range(3):
            said = [(f"{user}-2", f"I am {user}-2, part {turn}.") for user in USERS]
            answers = list(pool.map(lambda each: send(served.url, each[0], "alone", each[1]), said))
            assert all(answer.startswith("It rains here.") for answer in answers)
    sent = served.requests_of("-2, part ")
    assert [len([user for user in USERS if user in str(messages)]) for messages in sent] == [1] * 12
    assert [ask("GET", f"{served.url}/chats", f"{user}-2") for user in USERS] == [["alone"]] * 4
    log = ask("GET", f"{served.url}/chats/alone", "ada-2")
    assert [who for who, _ in log] == ["user", "model"] * 3


@pytest.mark.soak
def test_several_users_at_once_share_nothing_and_find_their_chats_after_a_crash(tmp_path: Path) -> None:
    """That a stored turn survives `kill -9`, `make test` shows of sessions and of `foveal serve`."""
    chats = tmp_path / "chats.db"
    with StandIn(script=lambda number: Answer(text=f"Answer {number}.")) as provider:
        with running(chats, provider, end=SIGKILL) as url, ThreadPoolExecutor(8) as pool:
            for turn in range(3):
                said = [(user, f"I am {user}, part {turn}.") for user in USERS]
                answers = list(pool.map(lambda each: send(url, each[0], "trip", each[1]), said))
                assert all(re.fullmatch(r"Answer \d+\.", answer) for answer in answers)
        with running(chats, provider) as url:
            assert send(url, "ada", "trip", "Who am I?") == "Answer 13."
            assert ask("GET", f"{url}/chats", "ada") == ["trip"]
            log = ask("GET", f"{url}/chats/trip", "ada")
    assert provider.faults == []
    sent = [request.body["messages"] for request in provider.requests]
    assert [len([user for user in USERS if user in str(messages)]) for messages in sent] == [1] * 13
    assert [who for who, _ in log] == ["user", "model"] * 4
    assert [message["content"] for message in sent[-1]] == [text for _, text in log[:-1]]


def test_messages_of_one_chat_are_answered_one_after_the_other(served: Served) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: send(served.url, "alan", "trip", f"Part {number}"), range(6)))
    log = ask("GET", f"{served.url}/chats/trip", "alan")
    assert [who for who, _ in log] == ["user", "model"] * 6
    assert [len(messages) for messages in served.requests_of(log[0][1])] == [1, 3, 5, 7, 9, 11]


def test_an_answer_is_stored_although_its_client_has_left(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.provider, "trouble", lambda number: Trouble(delay=0.01))
    address, user = f"{served.url}/chats/trip", {"X-User": "joan"}
    with httpx.stream("POST", address, json={"text": "Tell me."}, headers=user, timeout=60) as answer:
        next(answer.iter_text())
    log = wait_until(lambda: (log := ask("GET", address, "joan")) and len(log) == 2 and log)
    assert log == [["user", "Tell me."], ["model", "It rains here. " * 20]]


def test_an_erased_user_is_in_no_byte_of_the_file_and_others_stay(served: Served) -> None:
    url = served.url
    for chat in ("trip", "diet"):
        send(url, "ada", chat, "Please remember that I prefer tulips.")
    send(url, "grace", "trip", "Please remember that I prefer roses.")
    send(url, "ada", "new", "What do I like?")
    assert "tulips" in str(served.provider.requests[-1].body)
    assert ask("DELETE", f"{url}/me", "ada") == {"erased": 3}

    assert ask("GET", f"{url}/chats", "ada") == []
    assert send(url, "ada", "trip", "Hello?").startswith("410 ")
    send(url, "ada", "again", "What do I like?")
    assert "tulips" not in str(served.provider.requests[-1].body)
    send(url, "grace", "more", "What do I like?")
    assert "roses" in str(served.provider.requests[-1].body)
    assert b"tulips" not in b"".join(path.read_bytes() for path in served.folder.iterdir())


def test_what_cannot_be_answered_has_a_status(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    url, broken = served.url, Trouble(status=400, body='{"error": {"message": "No."}}')
    assert send(url, "emmy", "long", "word " * 9_000).startswith("413 ")
    assert send(url, "a/b", "trip", "Why?").startswith("422 ")
    assert ask("GET", f"{url}/chats/none", "emmy") == 404
    monkeypatch.setattr(served.provider, "trouble", lambda number: broken)
    assert send(url, "emmy", "trip", "Why?").startswith("502 ")
    assert ask("GET", f"{url}/chats/trip", "emmy") == [["user", "Why?"]]
    assert ask("GET", f"{url}/chats/trip", "grace's") == 422
