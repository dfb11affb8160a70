"""Recognising the conversation of a request: resent, regenerated, edited, branched, named, after a restart."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log import (
    Equipped,
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Opened,
    Rewound,
    ToolReturned,
    UserSaid,
    text_of,
)
from foveal.core.view import effective_events
from foveal.server.proxy.digest_index import DigestIndex
from support.effort import rest_in_soak
from support.provider_stand_in import Answer, StandIn
from support.upstream import (
    DEADLINE,
    Piece,
    ProxyServer,
    RawUpstream,
    ReceivedRequest,
    answer,
    stream_head,
    summarising,
    until,
)

Json = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def model(text: str) -> Json:
    return {"role": "assistant", "content": text}


def completion(text: str, *, calls: list[Json] | None = None) -> bytes:
    message: Json = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()


def echo(seen: ReceivedRequest, number: int) -> Iterator[bytes]:
    """Answer each request with a different text."""
    last = json.loads(seen.body)["messages"][-1]["content"]
    yield answer(completion(f"{number}: you said {last}"))


@pytest.fixture(scope="module")
def raw() -> Iterator[RawUpstream]:
    with RawUpstream(echo) as made:
        yield made


@pytest.fixture(scope="module")
def proxy(raw: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    with ProxyServer(tmp_path_factory.mktemp("proxy"), openai=raw.openai) as made:
        yield made


class Client:
    """Sends requests, and keeps the last answer and its session."""

    def __init__(self, proxy: ProxyServer, **headers: str) -> None:
        self._proxy = proxy
        self._headers = {"authorization": "Bearer sk-of-the-client", **headers}
        self.session = ""
        self.reply: Json = {}

    def ask(self, messages: list[Json], **more: Any) -> Json:
        """Send a request and return the message of the response."""
        body = {"model": "gpt-4.1", "messages": messages, **more}
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as client:
            reply = client.post(f"{self._proxy.openai}/chat/completions", json=body, headers=self._headers)
        assert reply.status_code == 200, reply.text
        self.session = reply.headers["x-foveal-session"]
        self.reply = reply.json()["choices"][0]["message"]
        return self.reply


def visible_texts(proxy: ProxyServer, session: str, tenant: str = "default") -> list[str]:
    """Return the texts of a session, without rewound ones."""
    kinds = (UserSaid, ModelSaid, ToolReturned)
    return [
        text_of(e.fact.content)
        for e in effective_events(proxy.events(session, tenant))
        if isinstance(e.fact, kinds)
    ]


def facts_of_kind(events: list[Event], kind: type) -> list[Any]:
    return [event.fact for event in events if isinstance(event.fact, kind)]


def test_a_longer_history_continues_its_session(proxy: ProxyServer) -> None:
    client, messages = Client(proxy), [user("Go on.")]
    for number in range(4):
        messages += [client.ask(messages), user(f"More {number}.")]
    client.ask(messages)
    events = proxy.events(client.session)
    assert visible_texts(proxy, client.session)[:-1] == [one["content"] for one in messages]
    assert len(facts_of_kind(events, UserSaid)) == 5
    assert len(facts_of_kind(events, ModelSaid)) == 5
    assert facts_of_kind(events, Rewound) == []


def test_an_answer_is_recognised_in_every_form(tmp_path: Path) -> None:
    arguments = '{"query":"part 1", "deep": true}'
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": arguments}}

    def script(seen: ReceivedRequest, number: int) -> Iterator[bytes]:
        yield answer(completion("Looking.", calls=[call]))

    other = {"type": "function", "id": "call_1"}
    other["function"] = {"arguments": '{ "deep": true, "query": "part 1" }', "name": "search"}  # type: ignore[assignment]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "found"}
    forms: list[Json] = [
        {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
        {"tool_calls": [other], "content": "Looking.", "role": "assistant", "audio": None, "refusal": None},
        {"role": "assistant", "content": [{"type": "text", "text": "Looking."}], "tool_calls": [call]},
        {"role": "assistant", "content": "Looking.\n", "tool_calls": [call], "reasoning_content": "Hm."},
    ]
    with RawUpstream(script) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        for number, form in enumerate(forms):
            client, asked = Client(proxy), user(f"Form {number}.")
            client.ask([asked], tools=TOOLS)
            first = client.session
            client.ask([asked, form, result], tools=TOOLS)
            assert client.session == first, form
            assert facts_of_kind(proxy.events(first), Rewound) == [], form
            assert len(facts_of_kind(proxy.events(first), ModelSaid)) == 2, form
            assert len(facts_of_kind(proxy.events(first), Equipped)) == 1, form


def test_a_regenerated_answer_replaces_the_first(proxy: ProxyServer) -> None:
    client, asked = Client(proxy), [user("Regenerate this.")]
    first = client.ask(asked)
    session = client.session
    second = client.ask(asked)
    assert client.session == session
    assert first != second
    assert visible_texts(proxy, session) == ["Regenerate this.", second["content"]]
    assert first["content"] in str(proxy.events(session))


def test_an_edited_last_message_starts_a_new_session(proxy: ProxyServer) -> None:
    client, messages = Client(proxy), [user("Before the edit.")]
    messages.append(client.ask(messages))
    client.ask([*messages, user("With a tpyo.")])
    session = client.session
    last = client.ask([*messages, user("Without a typo.")])
    assert client.session != session
    assert visible_texts(proxy, client.session) == [
        "Before the edit.",
        messages[1]["content"],
        "Without a typo.",
        last["content"],
    ]


@pytest.mark.parametrize("pair", rest_in_soak(range(5)))
def test_two_users_of_one_token_who_begin_alike_stay_apart(proxy: ProxyServer, pair: int) -> None:
    users = {name: Client(proxy) for name in ("ANN", "BOB")}
    said = {name: [user(f"Hi {pair}")] for name in users}
    for turn in range(4):
        for name, other in (("ANN", "BOB"), ("BOB", "ANN")):
            users[name].ask(said[name])
            assert f"SECRET-{other}" not in str(proxy.events(users[name].session))
        for name in said:
            text = f"my password is SECRET-{name}" if turn == 0 else "continue"
            said[name] += [model("Fine."), user(text)]


def test_an_edited_early_message_starts_a_new_session(proxy: ProxyServer) -> None:
    client, messages = Client(proxy), [user("The trunk.")]
    for number in range(3):
        messages += [client.ask(messages), user(f"Twig {number}.")]
    client.ask(messages)
    trunk = client.session
    whole = visible_texts(proxy, trunk)
    branch = [*messages[:3], client.reply, user("Another twig.")]
    client.ask([*messages[:2], user("Another twig.")])
    assert client.session != trunk
    assert visible_texts(proxy, trunk) == whole
    assert visible_texts(proxy, client.session)[:3] == [
        messages[0]["content"],
        messages[1]["content"],
        "Another twig.",
    ]
    assert facts_of_kind(proxy.events(client.session), Opened)[-1].origin.startswith(f"{trunk}@")
    assert branch
    client.ask([*messages, model(whole[-1]), user("Back on the trunk.")])
    assert client.session == trunk


def test_a_fork_takes_over_the_reductions_of_its_messages(tmp_path: Path) -> None:
    """Without them, a client that often edits an earlier message sends again what was summarised, and has it
    summarised again."""

    def long_echo(seen: ReceivedRequest, number: int) -> Iterator[bytes]:
        yield answer(completion(f"{number}: " + f"part {number} of the answer. " * 150))

    with RawUpstream(long_echo) as raw, ProxyServer(tmp_path, openai=raw.openai, window=10_000) as proxy:
        client, messages = Client(proxy), [user("Begin.")]
        for number in range(14):
            messages += [client.ask(messages), user(f"More {number}.")]
        client.ask(messages)
        trunk = client.session
        client.ask([*messages[:-4], model("Edited."), user("Another one.")])
        assert client.session != trunk
        bodies = [json.loads(seen.body)["messages"] for seen in raw.seen]
        sent, forked = (
            next(one for one in bodies if one[-1] == last) for last in (messages[-1], user("Another one."))
        )
        at = next(n for n, message in enumerate(sent) if "[foveal: record" in str(message["content"]))
        assert forked[: at + 1] == sent[: at + 1]
        assert visible_texts(proxy, client.session)[:-1] == [
            *(one["content"] for one in messages[:-4]),
            "Edited.",
            "Another one.",
        ]


def test_a_summary_is_requested_with_the_messages_that_upstream_has_cached(tmp_path: Path) -> None:
    """A client may send a call back in another form than it got it: the cache knows the client's form."""

    def script(seen: ReceivedRequest, number: int) -> Iterator[bytes]:
        function = {"name": "search", "arguments": f'{{"query":  "part {number}" }}'}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        yield answer(completion("Looking.", calls=[call]))

    with RawUpstream(script) as raw, summarising(tmp_path, openai=raw.openai, window=16_000) as proxy:
        client, messages = Client(proxy), [user("Begin.")]
        for number in range(16):
            call = client.ask(messages, tools=TOOLS)["tool_calls"][0]
            arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
            call["function"]["arguments"] = arguments
            messages += [
                {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": f"Line of part {number}.\n" * 300},
            ]
        sent = [json.loads(seen.body)["messages"] for seen in raw.seen]
        asked = [at for at, one in enumerate(sent) if "This message is from the program" in str(one[-1])]
        assert asked
        for at in asked:
            begin = sent[at][:-1]
            assert any(begin == one[: len(begin)] for one in sent[:at])


def test_a_replaced_answer_can_be_continued(proxy: ProxyServer) -> None:
    client, asked = Client(proxy), user("Two answers.")
    first = client.ask([asked])
    session = client.session
    client.ask([asked])  # takes the place of the first
    client.ask([asked, first, user("I liked the first one.")])
    assert client.session != session
    assert visible_texts(proxy, client.session)[:3] == [
        "Two answers.",
        first["content"],
        "I liked the first one.",
    ]


def test_equal_messages_with_other_instructions_are_separate(proxy: ProxyServer) -> None:
    client, asked = Client(proxy), user("Hello, you two.")
    mine = client.ask([{"role": "system", "content": "You serve Ann."}, asked])
    ann = client.session
    client.ask([{"role": "system", "content": "You serve Ben."}, asked])
    assert client.session != ann
    assert visible_texts(proxy, ann) == ["Hello, you two.", mine["content"]]


def test_changed_instructions_continue_the_conversation(proxy: ProxyServer) -> None:
    client, messages = Client(proxy), [user("What time is it?")]
    for minute in range(4):
        instruction = {"role": "system", "content": f"It is 12:0{minute}."}
        messages += [client.ask([instruction, *messages]), user("And now?")]
    events = proxy.events(client.session)
    instructed = facts_of_kind(events, Instructed)
    assert [fact.content for fact in instructed] == [f"It is 12:0{minute}." for minute in range(4)]
    assert [fact.replaces is None for fact in instructed] == [True, False, False, False]
    assert len(facts_of_kind(events, UserSaid)) == 4
    assert facts_of_kind(events, Rewound) == []


def test_changed_tools_and_models_continue_the_conversation(proxy: ProxyServer) -> None:
    client, messages = Client(proxy), [user("With tools.")]
    messages += [client.ask(messages, tools=TOOLS), user("With others.")]
    session = client.session
    messages += [client.ask(messages, tools=[*TOOLS, *TOOLS]), user("With another model.")]
    body = {"model": "gpt-4o", "messages": messages}
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        reply = http.post(f"{proxy.openai}/chat/completions", json=body)
    events = proxy.events(session)
    assert reply.headers["x-foveal-session"] == session
    assert reply.headers["x-foveal-model"] == "gpt-4o"
    assert len(facts_of_kind(events, Equipped)) == 3
    assert [fact.model for fact in facts_of_kind(events, Opened)] == ["gpt-4.1", "gpt-4o"]
    assert len(facts_of_kind(events, UserSaid)) == 3


def test_a_client_can_name_its_session(proxy: ProxyServer) -> None:
    client, messages = Client(proxy, **{"x-foveal-session": "by-name"}), [user("Named.")]
    for number in range(3):
        messages += [client.ask(messages), user(f"More {number}.")]
    client.ask([*messages[:2], user("Something else.")])
    assert client.session == "by-name"
    assert visible_texts(proxy, "by-name")[:3] == ["Named.", messages[1]["content"], "Something else."]
    client.ask([user("Nothing in common.")])
    assert client.session == "by-name"
    assert visible_texts(proxy, "by-name")[0] == "Nothing in common."
    assert proxy.sessions().count("by-name") == 1


def test_an_invalid_session_name_is_refused_in_the_providers_format(proxy: ProxyServer) -> None:
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        reply = http.post(
            f"{proxy.openai}/chat/completions",
            json={"model": "gpt-4.1", "messages": [user("Hello")]},
            headers={"x-foveal-session": "../other"},
        )
    assert reply.status_code == 400
    assert "slashes" in reply.json()["error"]["message"]


def test_conversations_are_recognised_after_a_restart(tmp_path: Path) -> None:
    with RawUpstream(echo) as raw:
        messages = [{"role": "system", "content": "You remember."}, user("Before the restart.")]
        sessions = []
        for number in range(3):
            with ProxyServer(tmp_path, openai=raw.openai) as proxy:
                client = Client(proxy)
                messages += [client.ask(messages), user(f"After restart {number}.")]
                sessions.append(client.session)
                events = proxy.events(client.session)
    assert len(set(sessions)) == 1
    assert len(facts_of_kind(events, UserSaid)) == 3
    assert len(facts_of_kind(events, Instructed)) == 1
    assert facts_of_kind(events, Rewound) == []


def test_an_unindexed_message_is_not_recorded_twice(tmp_path: Path) -> None:
    """As after a crash between storing a message and indexing its digest."""
    with RawUpstream(echo) as raw:
        messages = [user("Before the crash.")]
        with ProxyServer(tmp_path, openai=raw.openai) as proxy:
            client = Client(proxy)
            messages += [client.ask(messages), user("Stored, but not known.")]
            session = client.session
            store = proxy.service.tenant("default").store
            end = proxy.events(session)[-1].seq + 1
            proxy.do(store.append(session, [Event(end, UserSaid(content="Stored, but not known."))]))
        with ProxyServer(tmp_path, openai=raw.openai) as proxy:
            client = Client(proxy)
            last = client.ask(messages)
            expected = [*(one["content"] for one in messages), last["content"]]
            assert visible_texts(proxy, client.session) == expected


def test_tenants_have_separate_conversations(proxy: ProxyServer, tmp_path: Path) -> None:
    with RawUpstream(echo) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        messages = [user("The same words.")]
        mine = Client(proxy, **{"x-foveal-token": proxy.token("ann")})
        theirs = Client(proxy, **{"x-foveal-token": proxy.token("ben")})
        messages += [mine.ask(messages), user("And more.")]
        theirs.ask(messages)
        named = Client(proxy, **{"x-foveal-token": proxy.token("ben"), "x-foveal-session": mine.session})
        named.ask([user("Let me in.")])
        assert proxy.sessions("ann") == [mine.session]
        assert set(proxy.sessions("ben")) == {theirs.session, mine.session}
        assert theirs.session != mine.session
        assert visible_texts(proxy, mine.session, "ann") == ["The same words.", messages[1]["content"]]


def test_an_erased_session_is_not_continued(proxy: ProxyServer) -> None:
    client, messages = Client(proxy), [user("To be erased.")]
    messages += [client.ask(messages), user("Go on.")]
    erased = client.session
    proxy.do(proxy.service.tenant("default").delete(erased))
    client.ask(messages)
    assert client.session != erased
    assert visible_texts(proxy, client.session)[:3] == [one["content"] for one in messages]


def test_nothing_of_an_erased_session_is_indexed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is written to the index in the background, and the session may be erased meanwhile."""
    add = DigestIndex.add

    async def add_late(index: DigestIndex, *args: Any, **options: Any) -> None:
        if is_late.is_set():
            begun.set()
            await asyncio.sleep(0.2)
        await add(index, *args, **options)
        if begun.is_set():
            ended.set()

    is_late, begun, ended = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(DigestIndex, "add", add_late)
    with RawUpstream(echo) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        client = Client(proxy)
        first = user("To be erased.")
        history = [first, client.ask([first]), user("This too.")]
        is_late.set()
        client.ask(history)
        assert begun.wait(DEADLINE)
        proxy.do(proxy.service.tenant("default").delete(client.session))
        assert ended.wait(DEADLINE)
        index = DigestIndex(proxy.service.runtime.database)
        assert proxy.do(index.load("default", client.session)) == ([], {})


def test_a_repeated_request_does_not_grow_the_log(tmp_path: Path) -> None:
    with RawUpstream(echo) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        sessions = []
        for _ in range(50):
            client = Client(proxy)
            client.ask([user("Are you well?")])
            sessions.append(client.session)
        assert len(set(sessions)) <= 4
        assert all(len(proxy.events(session)) < 120 for session in set(sessions))
        assert sessions == sorted(sessions, key=sessions.index)  # none is taken up again


# ── Concurrency ────────────────────────────────────────────────────────────────────────────────────────


class Gates:
    """An upstream that answers a message when its event is set."""

    def __init__(self) -> None:
        self.open: dict[str, threading.Event] = {}

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        last = json.loads(seen.body)["messages"][-1]["content"]
        yield self.of(last)
        yield answer(completion(f"answer to {last}"))

    def of(self, name: str) -> threading.Event:
        return self.open.setdefault(name, threading.Event())


def test_concurrent_equal_requests_get_separate_sessions(tmp_path: Path) -> None:
    gates = Gates()
    gates.of("Begin.").set()
    with RawUpstream(gates) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        first = Client(proxy)
        trunk = [user("Begin."), first.ask([user("Begin.")])]
        begun = first.session
        clients = [Client(proxy), Client(proxy)]
        threads = [
            threading.Thread(target=client.ask, args=([*trunk, user(f"Way {number}.")],))
            for number, client in enumerate(clients)
        ]
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda number=number: len(raw.seen) == 2 + number)  # type: ignore[misc]
        for number in (1, 0):
            gates.of(f"Way {number}.").set()
        for thread in threads:
            thread.join(DEADLINE)
        assert clients[0].session == begun
        assert clients[1].session != begun
        for number, client in enumerate(clients):
            expected = ["Begin.", "answer to Begin.", f"Way {number}.", f"answer to Way {number}."]
            assert visible_texts(proxy, client.session) == expected


def test_a_late_answer_is_stored_as_a_note(tmp_path: Path) -> None:
    gates = Gates()
    with RawUpstream(gates) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        client = Client(proxy)
        thread = threading.Thread(target=client.ask, args=([user("Late.")],))
        thread.start()
        until(lambda: raw.seen)
        (session,) = proxy.sessions()
        store = proxy.service.tenant("default").store
        end = proxy.events(session)[-1].seq + 1
        proxy.do(store.append(session, [Event(end, UserSaid(content="I was here."))]))
        gates.of("Late.").set()
        thread.join(DEADLINE)
        note = Noted(text="answer to Late.", topic="answer")
        until(lambda: note in facts_of_kind(proxy.events(session), Noted))
        assert visible_texts(proxy, session) == ["Late.", "I was here."]
        gates.of("And then?").set()
        client.ask(
            [user("Late."), model("answer to Late."), user("And then?")]
        )  # what counts is the client's
        assert client.session == session
        assert visible_texts(proxy, session) == [
            "Late.",
            "answer to Late.",
            "And then?",
            "answer to And then?",
        ]


def test_a_request_before_the_end_of_recording_continues_its_session(tmp_path: Path) -> None:
    """The stream sends its end marker, and stays open until the next request arrives."""
    closing = threading.Event()

    def script(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        chunk = {"choices": [{"index": 0, "delta": {"content": f"answer {number}"}, "finish_reason": "stop"}]}
        yield stream_head() + f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        if number == 1:
            yield closing

    with RawUpstream(script) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        body: Json = {"model": "gpt-4.1", "stream": True, "messages": [user("Quick.")]}
        url = f"{proxy.openai}/chat/completions"
        with (
            httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
            http.stream("POST", url, json=body) as reply,
        ):
            next(line for line in reply.iter_lines() if "[DONE]" in line)
            first = reply.headers["x-foveal-session"]
            body["messages"] += [model("answer 1"), user("Quicker.")]
            other = http.post(url, json=body)
            assert "answer 2" in other.text
            assert other.headers["x-foveal-session"] == first
            closing.set()
        until(lambda: len(visible_texts(proxy, first)) == 4)
        assert visible_texts(proxy, first) == ["Quick.", "answer 1", "Quicker.", "answer 2"]


def test_many_conversations_stay_separate_with_few_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.proxy.find_conversation.MAX_IDLE_CONVERSATIONS", 3)
    with StandIn() as provider, ProxyServer(tmp_path, openai=provider.openai) as proxy:
        histories = {number: [user(f"Conversation {number}.")] for number in range(8)}
        sessions: dict[int, set[str]] = {number: set() for number in histories}
        for turn in range(3):
            for number, messages in histories.items():
                client = Client(proxy)
                client.ask(messages)
                reply = {"role": "assistant", "content": f"I say {turn}."}  # the client keeps its own words
                messages += [reply, user(f"More {turn}.")]
                sessions[number].add(client.session)
        assert len(proxy.sessions()) == 8
        assert proxy.upstreams.conversations.open_count == 3
        assert all(len(found) == 1 for found in sessions.values())
        for number, found in sessions.items():
            texts = visible_texts(proxy, found.pop())
            assert texts[: len(histories[number]) - 2] == [one["content"] for one in histories[number][:-2]]


def test_conversations_that_are_being_answered_do_not_close_idle_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.proxy.find_conversation.MAX_IDLE_CONVERSATIONS", 2)
    answering = threading.Event()

    def script(seen: ReceivedRequest, number: int) -> Iterator[bytes]:
        if b"Wait." in seen.body:
            assert answering.wait(DEADLINE)
        yield answer(completion("Done."))

    with RawUpstream(script) as raw, ProxyServer(tmp_path, openai=raw.openai) as proxy:
        Client(proxy).ask([user("Idle.")])
        waiting = [
            threading.Thread(target=Client(proxy).ask, args=([user(f"{number} Wait.")],))
            for number in range(4)
        ]
        for thread in waiting:
            thread.start()
        until(lambda: proxy.upstreams.conversations.open_count == 5)
        answering.set()
        for thread in waiting:
            thread.join()


def test_conversations_of_many_tenants_continue_with_few_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.server.proxy.find_conversation.MAX_IDLE_TENANTS", 2)
    monkeypatch.setattr("foveal.server.service.MAX_IDLE_TENANTS", 2)
    monkeypatch.setattr("foveal.stores.sqlite.store_files.MAX_IDLE_FILES", 2)
    answers = StandIn(script=lambda number: Answer(text=f"answer {number}"))
    with answers as provider, ProxyServer(tmp_path, openai=provider.openai) as proxy:
        tenants = [f"tenant-{number}" for number in range(6)]
        clients = {tenant: Client(proxy, **{"x-foveal-token": proxy.token(tenant)}) for tenant in tenants}
        histories = {tenant: [user(f"I am {tenant}.")] for tenant in tenants}
        for turn in range(3):
            for tenant, messages in histories.items():
                messages += [clients[tenant].ask(messages), user(f"More {turn}.")]
        assert proxy.upstreams.conversations.open_count <= 2
        for tenant, messages in histories.items():
            assert proxy.sessions(tenant) == [clients[tenant].session]
            expected = [message["content"] for message in messages[:-1]]
            assert visible_texts(proxy, clients[tenant].session, tenant) == expected
