"""What only a provider understands passes whole and in place: unreduced, reduced, through the proxy, saved and
exported. `support.provider_objects` has the objects; the last part invents kinds that no provider has yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from foveal import Context, transcripts
from foveal.core.log import Dialect, Opened
from foveal.core.wire import detect_dialect
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.legality import request_faults
from foveal.core.wire.thinking_check import ThinkingCheck
from foveal.errors import UnknownHandle
from support.provider_objects import (
    ANTHROPIC_OBJECTS,
    BOUND_CLAUDE,
    OBJECTS,
    UNBOUND_CLAUDE,
    ProviderObject,
    long_turns,
    objects_in,
    thinking_at_the_end,
)
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer

Json = dict[str, Any]
PRESETS: Final = ("economy", "handoff", "recent", "rolling", "sliding-summary")
TURNS: Final = 14
WINDOW: Final = 12_000

every_object = pytest.mark.parametrize("name", OBJECTS)


def history_around(given: ProviderObject, before: int, after: int) -> list[Json]:
    """The turn of an object between others; a turn that begins a history stays first."""
    first = 0 if given.begins else before
    rest = long_turns(given.dialect, first, before + after - first)
    return [*long_turns(given.dialect, 0, first), *given.turn, *rest]


def small_context(given: ProviderObject, policy: str = "economy", **more: Any) -> Context:
    arguments = {"window": WINDOW, "reserve": 1_000, "dialect": given.dialect, **more}
    return Context(given.model_name, policy=policy, **arguments)


def faults(given: ProviderObject, messages: list[Json]) -> list[str]:
    thinking = ThinkingCheck() if given.model == BOUND_CLAUDE else None
    return request_faults(given.dialect, messages, thinking=thinking)


def with_reductions_undone(ctx: Context, given: ProviderObject) -> Context:
    """The same context with room for everything and every reduction taken back."""
    roomy = Context.load(ctx.save(), dialect=given.dialect, window=400_000)
    while True:
        try:
            roomy.undo()
        except UnknownHandle:
            return roomy


def kinds(objects: tuple[Json, ...]) -> set[str]:
    """The types by which a half of one of these objects would be recognised."""
    return {one["type"] for one in objects if "type" in one} - {"text", "tool_use", "message", "thinking"}


# ── Unreduced ────────────────────────────────────────────────────────────────────────────────────────────


@every_object
@pytest.mark.parametrize("before", [0, 1])
def test_a_request_that_is_not_reduced_is_unchanged(name: str, before: int) -> None:
    given = OBJECTS[name]
    history = history_around(given, before, 1)
    assert faults(given, history) == []
    ctx = Context(given.model_name)
    assert ctx.fit(history) == history
    assert ctx.fit(history) == history
    assert not ctx.report().reduced


@every_object
def test_the_objects_of_a_dialect_show_it(name: str) -> None:
    given = OBJECTS[name]
    assert detect_dialect(given.turn) in ("", given.dialect)
    assert Context(given.model_name).fit(given.turn) == given.turn


def test_thinking_at_the_end_is_left_out_for_a_model_that_refuses_it() -> None:
    given = thinking_at_the_end(UNBOUND_CLAUDE)
    sent = Context(UNBOUND_CLAUDE).fit([*given.turn, *long_turns("anthropic", 0, 1)])
    assert sent[1] == {"role": "assistant", "content": [{"type": "text", "text": "I look."}]}
    assert faults(given, sent) == []


@pytest.mark.parametrize("last", [{"type": "compaction_trigger"}, {"type": "item_reference", "id": "msg_1"}])
def test_an_item_for_what_the_provider_stores_stays_last(last: Json) -> None:
    history = [*long_turns("openai_responses", 0, 2), last]
    assert Context("gpt-5").fit(history) == history


def test_of_several_iterations_the_last_message_is_the_size_and_all_are_paid() -> None:
    def iteration(kind: str, tokens: int) -> Json:
        return {"type": kind, "input_tokens": tokens, "output_tokens": 10}

    several = [iteration("message", 30_000), iteration("compaction", 30_000), iteration("message", 8_000)]
    ctx = Context(UNBOUND_CLAUDE)
    ctx.fit([{"role": "user", "content": "Hello."}], system="Be brief.")
    ctx.observe({"input_tokens": 38_000, "output_tokens": 20, "iterations": several})
    used = next(event.fact for event in reversed(ctx.log) if type(event.fact).__name__ == "Used")
    assert used.prompt == 8_000
    assert sum(one.prompt for one in used.billed) == 68_000


# ── Reduced ──────────────────────────────────────────────────────────────────────────────────────────────


@every_object
@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("before", [1, TURNS - 1], ids=["old", "new"])
def test_a_reduction_shows_an_object_whole_or_hides_it_with_its_step(
    name: str, policy: str, before: int
) -> None:
    given = OBJECTS[name]
    history = history_around(given, before, TURNS - before)
    ctx = small_context(given, policy)
    before_object = history.index(given.turn[-1])
    for end in range(len(given.turn) + 1, len(history) + 1):
        if _ends_legally(given, history[:end]):
            request = ctx.fit(history[:end])
            assert faults(given, request) == []
            assert_whole(given, request, is_new=end <= before_object)
    covers_all_before = "compaction" in kinds(given.objects) and given.stays and before > 1
    assert ctx.report().reduced or covers_all_before
    ctx.fit(history)
    if given.model != BOUND_CLAUDE:  # a change in front of bound thinking ends its validity
        assert with_reductions_undone(ctx, given).fit(history) == history


def _ends_legally(given: ProviderObject, history: list[Json]) -> bool:
    """Whether an agent would send a request with this history: after what the user or a tool said."""
    last = history[-1]
    if given.dialect == "openai_responses":
        return last.get("role") == "user" or last.get("type") == "function_call_output"
    return last["role"] == "user"


def assert_whole(given: ProviderObject, request: list[Json], *, is_new: bool = False) -> None:
    """No object is there in a part, and of the objects of one turn all or none are: all of those that stay."""
    shown = list(objects_in(strip_cache_marks(request)))
    counts = {shown.count(strip_cache_marks(one)) for one in given.objects}
    assert counts in ({0}, {1})
    for found in shown:
        if found.get("type") in kinds(given.objects):
            assert any(found in objects_in(strip_cache_marks(one)) for one in given.objects)
    if given.stays and not is_new:
        assert counts == {1}


@pytest.mark.parametrize("policy", PRESETS)
def test_a_system_message_stays_behind_the_message_that_it_followed(policy: str) -> None:
    """The message before it may go; its own place among the others stays."""
    given = ANTHROPIC_OBJECTS["tool_addition"]
    history = [*given.turn, *long_turns("anthropic", 0, TURNS)]
    request = small_context(given, policy).fit(history)
    (place,) = (at for at, message in enumerate(request) if message["role"] == "system")
    later = [f"Task {number}:" for number in range(TURNS)]
    assert not any(text in json.dumps(request[:place]) for text in later)


# ── Through the proxy ────────────────────────────────────────────────────────────────────────────────────

PATHS: Final[dict[Dialect, str]] = {"anthropic": "/v1/messages", "openai_responses": "/v1/responses"}
FINE: Final = {
    "/v1/messages": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Fine."}],
        "stop_reason": "end_turn",
    },
    "/v1/responses": {
        "object": "response",
        "status": "completed",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Fine."}]}
        ],
    },
}


def fine(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    yield answer(json.dumps(FINE[seen.line.split()[1]]).encode())


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(fine) as made:
        yield made


@pytest.fixture(scope="module")
def proxy(upstream: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("proxy")
    with ProxyServer(folder, openai=upstream.openai, anthropic=upstream.anthropic, window=WINDOW) as made:
        yield made


def send(proxy: ProxyServer, given: ProviderObject, history: list[Json], name: str) -> tuple[bytes, str]:
    """Send a request of a client; return its body and what was reduced."""
    where = "messages" if given.dialect == "anthropic" else "input"
    body = json.dumps(
        {"model": given.model_name, where: history, "metadata": {"user_id": name}, "temperature": 1.0},
        indent=1,
    ).encode()
    headers = {"x-api-key": "sk-client-0123456789", "authorization": "Bearer sk-client-0123456789"}
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        reply = http.post(f"{proxy.url}{PATHS[given.dialect]}", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return body, reply.headers["x-foveal-reduced"]


PROXIED: Final = [name for name, given in OBJECTS.items() if given.dialect in PATHS]


@pytest.mark.parametrize("name", PROXIED)
def test_the_proxy_forwards_a_request_that_is_not_reduced_byte_for_byte(
    proxy: ProxyServer, upstream: RawUpstream, name: str
) -> None:
    given = OBJECTS[name]
    history = [*history_around(given, 1, 1), _question(given, name)]
    body, reduced = send(proxy, given, history, name)
    assert reduced == "none"
    assert upstream.seen[-1].body == body


@pytest.mark.parametrize("name", PROXIED)
def test_a_request_that_the_proxy_reduces_has_objects_whole_or_not_at_all(
    proxy: ProxyServer, upstream: RawUpstream, name: str
) -> None:
    given = OBJECTS[name]
    history = [*history_around(given, 0, TURNS), _question(given, f"{name} again")]
    _, reduced = send(proxy, given, history, name)
    assert reduced != "none"
    sent = json.loads(upstream.seen[-1].body)
    request = sent["messages" if given.dialect == "anthropic" else "input"]
    assert faults(given, request) == []
    assert_whole(given, request)


def _question(given: ProviderObject, name: str) -> Json:
    return {"role": "user", "content": f"What about {name}?"}


# ── Saved and exported ───────────────────────────────────────────────────────────────────────────────────


@every_object
def test_a_saved_context_shows_the_same_and_recognises_the_history(name: str) -> None:
    given = OBJECTS[name]
    for turns in (2, TURNS):
        history = history_around(given, 1, turns - 1)
        ctx = small_context(given)
        request = ctx.fit(history)
        loaded = Context.load(ctx.save(), window=WINDOW, reserve=1_000, dialect=given.dialect)
        assert loaded.fit(history) == request
        assert loaded.log == ctx.log


@every_object
def test_an_exported_session_is_imported_whole(name: str, tmp_path: Path) -> None:
    given = OBJECTS[name]
    history = history_around(given, 1, 1)
    ctx = Context(given.model_name, dialect=given.dialect)
    ctx.fit(history)
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"".join(transcripts.write_events(ctx.log, "demo")))
    (imported,) = transcripts.read(str(file))
    assert imported.unknown == 0
    loaded = Context(given.model_name, dialect=given.dialect, log=imported.events())
    assert loaded.fit(history) == history
    assert len(loaded.log) == len(ctx.log)


@pytest.mark.parametrize("name", PROXIED)
def test_messages_of_a_session_are_exported_as_they_came(name: str, tmp_path: Path) -> None:
    given = OBJECTS[name]
    history = history_around(given, 1, 1)
    ctx = Context(given.model_name, dialect=given.dialect)
    ctx.fit(history)
    facts = [event.fact for event in ctx.log]
    assert transcripts.write_messages(facts, given.dialect) == history
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(history))
    (imported,) = transcripts.read(str(file))
    assert imported.unknown == 0
    opened = Opened(model=given.model_name)
    facts = [opened, *(fact for fact, _ in imported.facts)]
    assert transcripts.write_messages(facts, given.dialect) == history
