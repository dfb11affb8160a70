"""The memory of a user in proxied conversations: on request, in a stable place, and never for another user."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product, takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.errors import BadSetting
from foveal.memory import Memory
from foveal.server.auth_tokens import AuthTokens, MemoryChoice
from foveal.server.inbox import SessionSetup
from support.effort import rest_in_soak
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, Script, answer

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
    def __init__(self, folder: Path, script: Script = speak) -> None:
        self._folder, self._script = folder, script

    def __enter__(self) -> Scene:
        self.upstream = RawUpstream(self._script).__enter__()
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

    def token(self, memory: str, tenant: str = "default") -> str:
        tokens = AuthTokens(self.proxy.service.runtime.database)
        return self.proxy.do(tokens.create(tenant, memory=MemoryChoice.read(memory), now=0.0))[1]

    def ask(
        self,
        dialect: str,
        *texts: str,
        memory: str = "",
        token: str = "",
        session: str = "",
        status: int = 200,
        **fields: Any,
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
        body |= fields
        headers = {"authorization": f"Bearer {token or 'sk-client'}", "x-api-key": token or "sk-client"}
        headers |= {"x-foveal-memory": memory} if memory else {}
        headers |= {"x-foveal-session": session} if session else {}
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            reply = http.post(f"{self.proxy.openai}{path}", json=body, headers=headers)
        assert reply.status_code == status, reply.text
        if status != 200:
            return []
        self.session = reply.headers["x-foveal-session"]
        assert b"x-foveal-memory" not in b"".join(name.encode() for name in self.upstream.seen[-1].headers)
        sent = json.loads(self.upstream.seen[-1].body)
        found: list[Json] = sent.get("messages") or sent["input"]
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as made:
        yield made


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
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


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
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


def log_text(scene: Scene, session: str) -> str:
    return str(scene.proxy.do(scene.proxy.service.tenant("default").store.read(session, first=0)))


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS[::-1]))
def test_users_with_the_same_conversation_have_sessions_of_their_own(tmp_path: Path, dialect: str) -> None:
    history, own = ["Hello.", "Hi.", "What is it?"], dict[str, str]()
    for _ in range(2):  # also after a restart
        with Scene(tmp_path) as scene:
            for user, word in (("ada", "plover"), ("bob", "heron")):
                scene.remember(user, f"My code word is {word}.")
                scene.ask(dialect, *history, memory=user)
                assert own.setdefault(user, scene.session) == scene.session
            assert own["ada"] != own["bob"]
            assert "heron" not in log_text(scene, own["ada"])
            assert "plover" not in log_text(scene, own["bob"])
            scene.ask(dialect, *history)
    with Scene(tmp_path) as scene:
        assert own["ada"] in scene.proxy.do(scene.proxy.service.tenant("default").erase_user("ada")).sessions
        assert own["bob"] in scene.proxy.sessions()


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS[::-1]))
def test_a_client_cannot_name_the_session_of_another_user(scene: Scene, dialect: str) -> None:
    scene.remember("ada", "My code word is plover.")
    scene.ask(dialect, "Hello.", memory="ada", session="named")
    store = scene.proxy.service.tenant("default").store
    before = scene.proxy.do(store.end("named"))
    scene.ask(dialect, "Hello.", "Answer 1.", "And I?", memory="bob", session="named", status=403)
    scene.ask(dialect, "Another.", token=scene.token("bob"), session="named", status=403)
    assert scene.proxy.do(store.end("named")) == before
    scene.ask(
        dialect, "Hello.", "Answer 1.", "And now?", memory="ada", session="named", token=scene.token("")
    )
    scene.ask(
        dialect, "Hello.", "Answer 1.", "No memory.", memory="-", session="named", token=scene.token("")
    )
    scene.ask(dialect, "Hello.", memory="bob", session="other", token=scene.token(""))


def named_by(dialect: str, user: str) -> Json:
    """The fields with which a client names its user to the provider."""
    return {"metadata": {"user_id": user}} if dialect == "anthropic" else {"user": user}


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
def test_erasing_a_user_finds_the_sessions_whose_requests_named_this_user(scene: Scene, dialect: str) -> None:
    own = dict[str, str]()
    ada = "auth0|12+a@example.org"
    for user in (ada, "bob"):
        scene.ask(dialect, "Hello.", **named_by(dialect, user))
        own[user] = scene.session
        scene.ask(dialect, "Hello.", "Answer 1.", "And now?", **named_by(dialect, user))
    assert own[ada] != own["bob"], "equal conversations of two users are two sessions"
    tenant = scene.proxy.service.tenant("default")
    erased = scene.proxy.do(tenant.erase_user(ada))
    assert own[ada] in erased.sessions
    left = [info.id for info in scene.proxy.do(tenant.sessions())]
    assert own["bob"] in left
    assert not {*erased.sessions} & {*left}
    for session in left:
        assert scene.proxy.do(scene.proxy.service.runtime.inbox.users_of("default", session)) == {"bob"}


def test_several_users_may_speak_in_a_session_that_their_client_has_named(scene: Scene) -> None:
    for user in ("ada", "bob"):
        scene.ask("openai_chat", "Hello.", f"I am {user}.", "Hi.", session="shared", user=user)
    tenant = scene.proxy.service.tenant("default")
    assert scene.proxy.do(tenant.erase_user("ada")).sessions == ["shared"]
    assert scene.proxy.do(tenant.sessions()) == []


@pytest.mark.parametrize("memory", ["", "-"])
def test_a_token_of_a_user_continues_no_session_of_nobody(scene: Scene, memory: str) -> None:
    scene.ask("openai_chat", "Hello.")
    of_nobody = scene.session
    scene.ask("openai_chat", "Hello.", "Answer 1.", "It is PRIVATE.", session="named")
    token, inbox = scene.token("bob"), scene.proxy.service.runtime.inbox
    scene.ask("openai_chat", "Hello.", "Answer 1.", "What is it?", memory=memory, token=token)
    assert scene.session != of_nobody
    assert scene.proxy.do(inbox.users_of("default", scene.session)) == {"bob"}
    own = scene.session
    history = ("Hello.", "Answer 1.", "What is it?", "Answer 3.", "Thanks.")
    scene.ask("openai_chat", *history, memory=memory, token=token)
    assert scene.session == own, "it continues its own"
    for session in ("named", of_nobody):
        scene.ask("openai_chat", "Hello.", memory=memory, token=token, session=session, status=403)
        assert scene.proxy.do(inbox.users_of("default", session)) == set()
    scene.ask("openai_chat", "Hello.", memory=memory, token=token, session="new")
    assert scene.proxy.do(inbox.users_of("default", "new")) == {"bob"}


def test_a_user_cannot_continue_in_the_api_what_showed_the_memory_of_another(scene: Scene) -> None:
    scene.remember("ada", "My code word is plover.")
    scene.ask("openai_chat", "Hello.", memory="ada")
    tenant = scene.proxy.service.tenant("default")
    with pytest.raises(BadSetting, match="another user"):
        scene.proxy.do(tenant.create("next", SessionSetup(user="bob"), continue_from=scene.session))
    scene.proxy.do(tenant.create("next", SessionSetup(user="ada"), continue_from=scene.session))


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


def test_a_header_that_names_no_user_is_refused(scene: Scene) -> None:
    scene.ask("openai_chat", "Hello.")
    for value in ("a b", "/etc", "ada; writes", "x" * 201, ";hears"):
        scene.ask("openai_chat", "Hello.", memory=value, status=400)
    assert len(scene.upstream.seen) == 1


# ── A token that names the memory ─────────────────────────────────────────────────────────────────

NAMES_USER: dict[str, Callable[[str], Json]] = {
    "openai_chat": lambda user: {"user": user},
    "openai_responses": lambda user: {"safety_identifier": user},
    "anthropic": lambda user: {"metadata": {"user_id": user}},
}


def other_fields(body: bytes) -> Json:
    return {name: value for name, value in json.loads(body).items() if name not in ("messages", "input")}


def common(one: bytes, other: bytes) -> bytes:
    """Return the bytes with which two requests begin."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in same)]


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS[::-1]))
def test_a_token_gives_its_memory_to_a_client_that_sends_no_header(scene: Scene, dialect: str) -> None:
    scene.remember("ada", "Answer in French.")
    scene.remember("bob", "Answer in Danish.")
    token = scene.token("ada")
    assert "French" in str(scene.ask(dialect, "Hello.", token=token))
    named = NAMES_USER[dialect]("bob")
    assert "Danish" not in str(scene.ask(dialect, "Hello.", token=token, **named))
    assert "French" not in str(scene.ask(dialect, "Hello.", token=scene.token("")))
    assert "French" not in str(scene.ask(dialect, "Hello.", token=scene.token("ada", tenant="other")))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_token_may_take_the_user_from_each_request(scene: Scene, dialect: str) -> None:
    scene.remember("ada", "Answer in French.")
    scene.remember("bob", "Answer in Danish.")
    token = scene.token("@request")
    for user, seen in (("ada", (True, False)), ("bob", (False, True)), ("Ada", (False, False))):
        sent = str(scene.ask(dialect, "Hello.", token=token, **NAMES_USER[dialect](user)))
        assert ("French" in sent, "Danish" in sent) == seen
    for nobody in ("", "ada\u200b", "аda", "ada; hears", "@request", "a" * 201, "ada\n", "ａda"):
        sent = str(scene.ask(dialect, "Hello.", token=token, **NAMES_USER[dialect](nobody)))
        assert "Answer in" not in sent
    assert "Answer in" not in str(scene.ask(dialect, "Hello.", token=token, metadata={"user_id": 7}))


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS[::-1]))
def test_the_memory_stands_in_a_fixed_place_and_moves_the_prefix_once_per_change(
    scene: Scene, dialect: str
) -> None:
    history = ["Hello."]
    token = scene.token("ada")

    def sent() -> bytes:
        scene.ask(dialect, *history, token=token)
        history.extend([f"Answer {len(scene.upstream.seen)}.", f"Question {len(history)}?"])
        return scene.upstream.seen[-1].body

    empty, still_empty = sent(), sent()
    own = empty.index(b"Hello.")
    assert still_empty.startswith(empty[: own + len(b"Hello.")])
    scene.remember("ada", "Answer in French.")
    known = sent()
    place = known.index(b"# ")
    assert len(common(known, empty)) >= empty.rindex(b"{", 0, own), (
        "what stands before the first message is the same"
    )
    assert place < known.index(b"Hello.")
    assert other_fields(known) == other_fields(empty)
    grown = [sent() for _ in range(3)]
    for before, after in pairwise([known, *grown]):
        assert len(common(before, after)) >= before.rindex(
            b"Question" if b"Question" in before else b"Hello."
        )
    scene.remember("ada", "Never push to main.")
    changed, later = sent(), sent()
    assert changed.index(b"# ") == place
    assert changed[:place] == known[:place]
    assert len(common(grown[-1], changed)) < known.index(b"French.") + 60
    assert len(common(changed, later)) >= changed.rindex(b"Question")


def test_the_header_only_narrows_what_a_token_allows(scene: Scene) -> None:
    scene.remember("ada", "Answer in French.")
    scene.remember("bob", "Answer in Danish.")
    fixed, named = scene.token("ada"), scene.token("@request; hears")

    def ask(text: str, memory: str, token: str, status: int = 200, **fields: str) -> str:
        return str(scene.ask("openai_chat", text, memory=memory, token=token, status=status, **fields))

    assert "French" in ask("Hello.", "ada", fixed)
    assert "Answer in" not in ask("Hello.", "-", fixed)
    ask("Hello.", "bob", fixed, status=403)
    ask("Hello.", "@request", named, status=400)
    assert "Danish" in ask("Hello.", "bob", named, user="bob")
    ask("Remember that I like tea.", "ada; hears", fixed)
    ask("Remember that I like cocoa.", "bob", named, user="bob")
    assert [len(scene.proxy.do(scene.memory(user).entries())) for user in ("ada", "bob")] == [1, 1]
    ask("Remember that I like juice.", "bob; hears", named, user="bob")
    ask("Remember that I like milk.", "", scene.token("ada; hears"))
    assert [len(scene.proxy.do(scene.memory(user).entries())) for user in ("ada", "bob")] == [2, 2]


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
def test_the_header_names_no_other_user_than_the_request(scene: Scene, dialect: str) -> None:
    ask = partial(scene.ask, dialect, "Remember that I like tea.", token=scene.token("@request; hears"))
    for named in ("ada", "Eve", "", "no id"):
        for header in ("eve", "eve; hears"):
            ask(memory=header, status=403, **NAMES_USER[dialect](named))
    ask(memory="eve", status=403)
    assert scene.upstream.seen == []
    assert scene.proxy.do(scene.memory("eve").entries()) == []
    ask(memory="eve; hears", **NAMES_USER[dialect]("eve"))
    assert len(scene.proxy.do(scene.memory("eve").entries())) == 1


def test_an_empty_or_repeated_header_is_refused(scene: Scene) -> None:
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hello."}]}
    for of_token, values in product(("", "ada"), ([""], ["ada", "eve"], ["-", "ada"])):
        sent = [("x-foveal-memory", value) for value in values]
        headers = [("authorization", f"Bearer {scene.token(of_token)}"), *sent]
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            reply = http.post(f"{scene.proxy.openai}/chat/completions", json=body, headers=headers)
        assert reply.status_code == 400
        assert "x-foveal-memory" in reply.text
    assert scene.upstream.seen == []


def test_a_retry_with_another_token_is_no_retry_of_the_same_request(tmp_path: Path) -> None:
    waiting, asked = threading.Event(), threading.Semaphore(0)

    def held(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        asked.release()
        assert waiting.wait(DEADLINE)
        yield from speak(seen, number)

    with Scene(tmp_path, held) as scene:
        scene.remember("ada", "My code word is plover.")
        tokens = [scene.token("ada"), scene.token("bob")]
        body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hello."}]}

        def post(token: str) -> int:
            headers = {
                "x-foveal-token": token,
                "authorization": "Bearer sk-shared",
                "idempotency-key": "same",
            }
            with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
                url = f"{scene.proxy.openai}/chat/completions"
                return http.post(url, json=body, headers=headers).status_code

        with ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(post, token) for token in tokens]
            arrived = [asked.acquire(timeout=DEADLINE / 4) for _ in tokens]
            waiting.set()
            assert [reply.result() for reply in replies] == [200, 200]
        assert arrived == [True, True]
        assert sorted("plover" in str(seen.body) for seen in scene.upstream.seen) == [False, True]


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS))
def test_erasing_a_user_erases_the_conversations_that_showed_the_memory(tmp_path: Path, dialect: str) -> None:
    with Scene(tmp_path) as scene:
        scene.remember("ada", "My dog is called Quetzalcoatl.")
        owner = scene.token("")
        scene.ask(dialect, "Is Quetzalcoatl ill?", token=scene.token("ada"))
        scene.ask(dialect, "Who is ill?", memory="bob", token=owner)
        scene.ask(dialect, "Hello.", token=owner)
        before = scene.proxy.sessions()
        assert len(before) == 3
        forked = scene.proxy.do(scene.proxy.service.tenant("default").fork(before[0])).id
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            url = f"{scene.proxy.url}/api/users/ada"
            erased = http.delete(url, headers={"authorization": f"Bearer {owner}"}).json()
        assert erased == {"sessions": sorted([before[0], forked]), "kept": []}
        sent = scene.ask(dialect, "Is it ill?", token=scene.token("ada"))
        assert "Quetzalcoatl" not in str(sent)
        kept = scene.proxy.do(scene.proxy.service.tenant("default").sessions())
        assert {*before[1:]} < {info.id for info in kept}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"Quetzalcoatl" in path.read_bytes()]


@pytest.mark.parametrize("dialect", rest_in_soak(DIALECTS[::-1]))
def test_erasing_a_user_erases_what_was_forked_from_their_conversations(scene: Scene, dialect: str) -> None:
    scene.remember("ada", "My dog is called Quetzalcoatl.")
    scene.ask(dialect, "Hello.", memory="ada")
    scene.ask(dialect, "Hello.", "Answer 1.", "Is my dog ill?", memory="ada")
    first = scene.session
    scene.ask(dialect, "Hello.", "Answer 1.", "And my cat?")
    forked = scene.session
    assert forked != first
    assert "Quetzalcoatl" in log_text(scene, forked)
    erased = scene.proxy.do(scene.proxy.service.tenant("default").erase_user("ada")).sessions
    assert erased == sorted([first, forked])
