"""The memory of a user in proxied conversations: on request, in a stable place, and never for another user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.memory import Memory
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer

Json = dict[str, Any]
DIALECTS = ("openai_chat", "openai_responses", "anthropic")


def speak(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    """Answer each request in its dialect."""
    text, path = f"Answer {number}.", seen.line.split()[1]
    if path.endswith("/messages"):
        whole: Json = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}
    elif path.endswith("/responses"):
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content}
        whole = {"object": "response", "status": "completed", "output": [item]}
    else:
        message = {"role": "assistant", "content": text}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    yield answer(json.dumps(whole).encode())


class Scene:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Scene:
        self.upstream = RawUpstream(speak).__enter__()
        urls = {"openai": self.upstream.openai, "anthropic": self.upstream.anthropic}
        self.proxy = ProxyServer(self._folder, **urls).__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.proxy.__exit__(*problem)
        self.upstream.__exit__(*problem)

    def memory(self, user: str, tenant: str = "default") -> Memory:
        return self.proxy.service.tenant(tenant).memory(user)

    def remember(self, user: str, text: str) -> None:
        self.proxy.do(self.memory(user).remember(text))

    def ask(
        self, dialect: str, *texts: str, memory: str = "", token: str = "", status: int = 200
    ) -> list[Json]:
        """Send a conversation, and return the messages that went upstream."""
        history: list[Json] = [
            {"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(texts)
        ]
        system = {"role": "system", "content": "Be brief."}
        if dialect == "openai_chat":
            path, body = "/chat/completions", {"model": "gpt-4.1", "messages": [system, *history]}
        elif dialect == "openai_responses":
            path, body = "/responses", {"model": "gpt-4.1", "input": history, "instructions": "Be brief."}
        else:
            path = "/messages"
            body = {
                "model": "claude-sonnet-4-5",
                "max_tokens": 99,
                "messages": history,
                "system": "Be brief.",
            }
        headers = {"authorization": f"Bearer {token or 'sk-client'}", "x-api-key": token or "sk-client"}
        headers |= {"x-foveal-memory": memory} if memory else {}
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            reply = http.post(f"{self.proxy.openai}{path}", json=body, headers=headers)
        assert reply.status_code == status, reply.text
        assert b"x-foveal-memory" not in b"".join(name.encode() for name in self.upstream.seen[-1].headers)
        sent = json.loads(self.upstream.seen[-1].body)
        found: list[Json] = sent.get("messages") or sent["input"]
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as made:
        yield made


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_that_asks_for_it_gets_the_memory_in_a_stable_place(scene: Scene, dialect: str) -> None:
    scene.remember("ada", "Answer in French.")
    first = scene.ask(dialect, "Hello.", memory="ada")
    assert "Answer in French." in str(first)
    second = scene.ask(dialect, "Hello.", "Answer 1.", "And now?", memory="ada")
    assert second[: len(first)] == first
    assert str(second).count("Answer in French.") == 1

    scene.proxy.do(scene.memory("ada").forget("m0"))
    texts = ("Hello.", "Answer 1.", "And now?", "Answer 2.", "Still?")
    assert "French" not in str(scene.ask(dialect, *texts, memory="ada"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_the_header_a_request_is_forwarded_as_it_is(scene: Scene, dialect: str) -> None:
    scene.remember("ada", "Answer in French.")
    before = scene.ask(dialect, "Remember that I like tea.")
    assert "French" not in str(before)
    assert "French" not in str(scene.ask(dialect, "Hello.", memory="bob"))
    assert [len(scene.proxy.do(scene.memory(user).entries())) for user in ("ada", "bob")] == [1, 0]


def test_the_same_conversation_shows_each_user_the_own_memory(scene: Scene) -> None:
    scene.remember("ada", "My code word is plover.")
    scene.remember("bob", "My code word is heron.")
    for user, own, other in (
        ("ada", "plover", "heron"),
        ("bob", "heron", "plover"),
        ("ada", "plover", "heron"),
    ):
        sent = str(scene.ask("openai_chat", "Hello.", "Hi.", "What is it?", memory=user))
        assert own in sent
        assert other not in sent
    token = scene.proxy.token("other")
    assert "plover" not in str(scene.ask("openai_chat", "Hello.", memory="ada", token=token))


def test_only_the_newest_message_is_heard_and_only_if_the_client_says_so(scene: Scene) -> None:
    scene.ask("openai_chat", "Remember that I like tea.", memory="ada")
    assert scene.proxy.do(scene.memory("ada").entries()) == []
    scene.ask("openai_chat", "Remember that I like tea.", "Yes.", "Hello.", memory="ada; hears")
    assert scene.proxy.do(scene.memory("ada").entries()) == []
    sent = scene.ask("openai_chat", "Remember that I like cocoa.", memory="ada; hears")
    (entry,) = scene.proxy.do(scene.memory("ada").entries())
    assert entry.text == "I like cocoa."
    assert entry.origin.session in scene.proxy.sessions()
    assert "- [m0] I like cocoa." in str(sent)
    scene.proxy.do(scene.memory("ada").forget("m0"))
    texts = ("Remember that I like cocoa.", "Answer 3.", "Hello.")
    scene.ask("openai_chat", *texts, memory="ada; hears")
    assert scene.proxy.do(scene.memory("ada").entries()) == []


@pytest.mark.parametrize("value", ["a b", "/etc", "ada; writes", "x" * 201, ";hears"])
def test_a_header_that_names_no_user_is_refused(scene: Scene, value: str) -> None:
    scene.ask("openai_chat", "Hello.")
    scene.ask("openai_chat", "Hello.", memory=value, status=400)
    assert len(scene.upstream.seen) == 1
