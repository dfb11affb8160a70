"""What only a provider understands passes whole and in place: unreduced, reduced, through the proxy, saved and
exported. `support.provider_objects` has the objects; the last part invents kinds that no provider has yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context, transcripts
from foveal.core.log import Dialect, Opened
from foveal.core.wire import detect_dialect
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.legality import request_faults
from foveal.errors import UnknownHandle
from support.effort import examples, rest_in_soak, some_cases
from support.provider_objects import (
    BOUND_CLAUDE,
    MODELS,
    OBJECTS,
    UNBOUND_CLAUDE,
    ProviderObject,
    long_turns,
    objects_in,
    thinking_at_the_end,
)
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer

pytestmark = pytest.mark.filterwarnings("ignore::foveal.errors.SettingsChanged")
"""A log is loaded in a larger window, to take all reductions back."""

Json = dict[str, Any]
PRESETS: Final = ("economy", "handoff", "recent", "rolling", "sliding-summary")
TURNS: Final = 14
WINDOW: Final = 12_000

every_object = pytest.mark.parametrize("name", OBJECTS)


def history_around(row: ProviderObject, before: int, after: int) -> list[Json]:
    """The turn of an object between others; a turn that begins a history stays first."""
    first = 0 if row.begins else before
    rest = long_turns(row.dialect, first, before + after - first)
    return [*long_turns(row.dialect, 0, first), *row.turn, *rest]


def small_context(row: ProviderObject, policy: str = "economy", **more: Any) -> Context:
    arguments = {"window": WINDOW, "reserve": 1_000, "dialect": row.dialect, **more}
    return Context(row.model_name, policy=policy, **arguments)


def faults(row: ProviderObject, messages: list[Json]) -> list[str]:
    thinking = ThinkingCheck() if row.model == BOUND_CLAUDE else None
    return request_faults(row.dialect, messages, thinking=thinking)


def with_reductions_undone(ctx: Context, row: ProviderObject) -> Context:
    """The same context with room for everything and every reduction taken back."""
    roomy = Context.load(ctx.save(), dialect=row.dialect, window=400_000)
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
    row = OBJECTS[name]
    history = history_around(row, before, 1)
    assert faults(row, history) == []
    ctx = Context(row.model_name)
    assert ctx.fit(history) == history
    assert ctx.fit(history) == history
    assert not ctx.report().reduced


@every_object
def test_the_objects_of_a_dialect_show_it(name: str) -> None:
    row = OBJECTS[name]
    assert detect_dialect(row.turn) in ("", row.dialect)
    assert Context(row.model_name).fit(row.turn) == row.turn


def test_thinking_at_the_end_is_left_out_for_a_model_that_refuses_it() -> None:
    row = thinking_at_the_end(UNBOUND_CLAUDE)
    sent = Context(UNBOUND_CLAUDE).fit([*row.turn, *long_turns("anthropic", 0, 1)])
    assert sent[1] == {"role": "assistant", "content": [{"type": "text", "text": "I look."}]}
    assert faults(row, sent) == []


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


@pytest.mark.parametrize(
    ("name", "policy", "before"), some_cases(product(OBJECTS, PRESETS, (1, TURNS - 1)), every=23)
)
def test_a_reduction_shows_an_object_whole_or_hides_it_with_its_step(
    name: str, policy: str, before: int
) -> None:
    row = OBJECTS[name]
    history = history_around(row, before, TURNS - before)
    ctx = small_context(row, policy)
    before_object = history.index(row.turn[-1])
    for end in range(len(row.turn) + 1, len(history) + 1):
        if is_request(row, history[:end]):
            request = ctx.fit(history[:end])
            assert faults(row, request) == []
            assert_whole(row, request, is_new=end <= before_object)
    covers_all_before = "compaction" in kinds(row.objects) and row.stays and before > 1
    assert ctx.report().reduced or covers_all_before
    ctx.fit(history)
    if row.model != BOUND_CLAUDE:  # a change in front of bound thinking ends its validity
        assert with_reductions_undone(ctx, row).fit(history) == history


def is_request(row: ProviderObject, history: list[Json]) -> bool:
    """Whether an agent would send a request with this history: after what the user or a tool said."""
    last = history[-1]
    if row.dialect == "openai_responses":
        return last.get("role") == "user" or last.get("type") == "function_call_output"
    return last["role"] in ("user", "tool")


def assert_whole(row: ProviderObject, request: list[Json], *, is_new: bool = False) -> None:
    """No object is there in a part, and of the objects of one turn all or none are: all of those that stay."""
    shown = list(objects_in(strip_cache_marks(request)))
    counts = {shown.count(strip_cache_marks(one)) for one in row.objects}
    assert counts in ({0}, {1})
    for part in shown:
        if part.get("type") in kinds(row.objects):
            assert any(part in objects_in(strip_cache_marks(one)) for one in row.objects)
    if row.stays and not is_new:
        assert counts == {1}


@pytest.mark.parametrize(
    ("policy", "name"),
    some_cases(product(PRESETS, [name for name, row in OBJECTS.items() if row.stays]), every=9),
)
def test_what_stays_is_before_all_later_turns(name: str, policy: str) -> None:
    row = OBJECTS[name]
    request = small_context(row, policy).fit([*row.turn, *long_turns(row.dialect, 0, TURNS)])
    (place,) = (at for at, message in enumerate(request) if row.objects[0] in objects_in(message))
    assert not any(f"Task {number}:" in json.dumps(request[:place]) for number in range(TURNS))


@pytest.mark.parametrize("policy", PRESETS)
def test_an_approval_that_is_appended_later_stays_with_its_request(policy: str) -> None:
    row = OBJECTS["openai_responses: approval"]
    asked, approved = row.objects
    ctx = small_context(row, policy)
    ctx.append(*long_turns(row.dialect, 0, 1), row.turn[0])
    for one in (asked, approved):
        ctx.append(one)
        assert one in ctx.fit()
    for message in long_turns(row.dialect, 1, TURNS):
        ctx.append(message)
        request = ctx.fit()
        assert (asked in request) == (approved in request)
    assert ctx.report().reduced


def test_tools_that_a_caller_changes_in_place_are_sent_as_changed() -> None:
    row = OBJECTS["openai_responses: additional_tools"]
    history = history_around(row, 1, 1)
    ctx = Context(row.model_name)
    ctx.fit(history)
    changed = [{**one, "tools": []} if one == row.objects[0] else one for one in history]
    assert ctx.fit(changed) == changed


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


def send(proxy: ProxyServer, row: ProviderObject, history: list[Json], name: str) -> tuple[bytes, str]:
    """Send a request of a client; return its body and what was reduced."""
    where = "messages" if row.dialect == "anthropic" else "input"
    body = json.dumps(
        {"model": row.model_name, where: history, "metadata": {"user_id": name}, "temperature": 1.0},
        indent=1,
    ).encode()
    headers = {"x-api-key": "sk-client-0123456789", "authorization": "Bearer sk-client-0123456789"}
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        reply = http.post(f"{proxy.url}{PATHS[row.dialect]}", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return body, reply.headers["x-foveal-reduced"]


PROXIED: Final = [name for name, row in OBJECTS.items() if row.dialect in PATHS]


@pytest.mark.parametrize("name", rest_in_soak(PROXIED, every=3))
def test_the_proxy_forwards_a_request_that_is_not_reduced_byte_for_byte(
    proxy: ProxyServer, upstream: RawUpstream, name: str
) -> None:
    row = OBJECTS[name]
    history = [*history_around(row, 1, 1), _question(row, name)]
    body, reduced = send(proxy, row, history, name)
    assert reduced == "none"
    assert upstream.seen[-1].body == body


@pytest.mark.parametrize("name", rest_in_soak(PROXIED, every=4))
def test_a_request_that_the_proxy_reduces_has_objects_whole_or_not_at_all(
    proxy: ProxyServer, upstream: RawUpstream, name: str
) -> None:
    row = OBJECTS[name]
    history = [*history_around(row, 0, TURNS), _question(row, f"{name} again")]
    _, reduced = send(proxy, row, history, name)
    assert reduced != "none"
    sent = json.loads(upstream.seen[-1].body)
    request = sent["messages" if row.dialect == "anthropic" else "input"]
    assert faults(row, request) == []
    assert_whole(row, request)


def _question(row: ProviderObject, name: str) -> Json:
    return {"role": "user", "content": f"What about {name}?"}


# ── Saved and exported ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "turns"), [*product(OBJECTS, [2]), *rest_in_soak(product(OBJECTS, [TURNS]), every=3)]
)
def test_a_saved_context_shows_the_same_and_recognises_the_history(name: str, turns: int) -> None:
    row = OBJECTS[name]
    history = history_around(row, 1, turns - 1)
    ctx = small_context(row)
    request = ctx.fit(history)
    loaded = Context.load(ctx.save(), window=WINDOW, reserve=1_000, dialect=row.dialect)
    assert loaded.fit(history) == request
    assert loaded.log == ctx.log


@every_object
def test_an_exported_session_is_imported_whole(name: str, tmp_path: Path) -> None:
    row = OBJECTS[name]
    history = history_around(row, 1, 1)
    ctx = Context(row.model_name, dialect=row.dialect)
    ctx.fit(history)
    file = tmp_path / "session.jsonl"
    file.write_bytes(b"".join(transcripts.write_events(ctx.log, "demo")))
    (imported,) = transcripts.read(str(file))
    assert imported.unknown == 0
    loaded = Context(row.model_name, dialect=row.dialect, log=imported.events())
    assert loaded.fit(history) == history
    assert len(loaded.log) == len(ctx.log)


@pytest.mark.parametrize("name", PROXIED)
def test_messages_of_a_session_are_exported_as_they_came(name: str, tmp_path: Path) -> None:
    row = OBJECTS[name]
    history = history_around(row, 1, 1)
    ctx = Context(row.model_name, dialect=row.dialect)
    ctx.fit(history)
    facts = [event.fact for event in ctx.log]
    assert transcripts.write_messages(facts, row.dialect) == history
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(history))
    (imported,) = transcripts.read(str(file))
    assert imported.unknown == 0
    opened = Opened(model=row.model_name)
    facts = [opened, *(fact for fact, _ in imported.facts)]
    assert transcripts.write_messages(facts, row.dialect) == history


# ── Kinds that no provider has yet ───────────────────────────────────────────────────────────────────────

TEMPTING_NAMES: Final = (
    "id", "call_id", "tool_use_id", "content", "text", "input", "output", "arguments", "name", "summary", "status",
    "signature", "encrypted_content", "data", "source", "role", "cache", "messageFields", "item", "thought",
)  # fmt: skip
"""Names of fields that kinds of today have."""
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
fields = st.dictionaries(
    st.sampled_from(TEMPTING_NAMES) | st.text(min_size=1, max_size=6), values, max_size=5
)


class Invented(NamedTuple):
    """A history with objects of invented kinds in it."""

    row: ProviderObject
    history: list[Json]

    def has_kind(self, part: Json, one: Json) -> bool:
        """Whether a part of a request has the kind of an invented object."""
        if self.row.dialect in ("gemini", "bedrock"):
            return next(iter(one)) in part
        return bool(part.get("type") == one["type"])


@st.composite
def invented(draw: st.DrawFn, dialect: Dialect, turns: int) -> Invented:
    history = long_turns(dialect, 0, turns)
    objects: list[Json] = []
    for number in range(draw(st.integers(1, 4))):
        kind, more = f"future_{number}_kind", draw(fields)
        if dialect in ("gemini", "bedrock"):
            one: Json = {kind: more}
        else:
            one = {**more, "type": kind}
        put(history, one, draw(st.integers(0, 4 * turns - 1)), dialect, is_first=draw(st.booleans()))
        objects.append(one)
    return Invented(ProviderObject(dialect, [], tuple(objects)), history)


def put(history: list[Json], one: Json, at: int, dialect: Dialect, *, is_first: bool) -> None:
    """Put an object into a message, or among the items."""
    if dialect == "openai_responses":
        history.insert(at, one)
        return
    message = history[at]
    field = "parts" if dialect == "gemini" else "content"
    blocks = message[field]
    if not isinstance(blocks, list):
        blocks = [{"type": "text", "text": blocks}] if blocks else []
    is_result = not {"functionResponse", "toolResult"}.isdisjoint(blocks[0]) if blocks else False
    is_result |= bool(blocks) and blocks[0].get("type") == "tool_result"
    message[field] = [one, *blocks] if is_first and not is_result else [*blocks, one]  # results come first


def unexpected_faults(made: Invented, request: list[Json]) -> list[str]:
    """The faults of a request, without those that the invented kinds are to the check."""
    return [fault for fault in faults(made.row, request) if "future_" not in fault]


def assert_no_half(made: Invented, request: list[Json]) -> None:
    shown = list(objects_in(request))
    for one in made.row.objects:
        same_kind = [part for part in shown if made.has_kind(part, one)]
        assert same_kind in ([], [one])


@pytest.mark.parametrize("dialect", MODELS)
@given(data=st.data())
def test_invented_kinds_pass_unchanged_and_are_saved_whole(dialect: Dialect, data: st.DataObject) -> None:
    made = data.draw(invented(dialect, 3))
    ctx = Context(MODELS[dialect], dialect=dialect)
    assert ctx.fit(made.history) == made.history
    loaded = Context.load(ctx.save(), dialect=dialect)
    assert loaded.fit(made.history) == made.history
    assert loaded.log == ctx.log
    written = transcripts.write_messages([event.fact for event in ctx.log], dialect)
    assert written == made.history


@pytest.mark.parametrize("dialect", rest_in_soak(MODELS, every=2))
@examples(14)
@given(data=st.data(), policy=st.sampled_from(PRESETS))
def test_a_reduction_never_shows_half_of_an_invented_kind(
    dialect: Dialect, data: st.DataObject, policy: str
) -> None:
    made = data.draw(invented(dialect, TURNS))
    ctx = small_context(made.row, policy)
    for end in range(1, len(made.history) + 1):
        if is_request(made.row, made.history[:end]):
            request = ctx.fit(made.history[:end])
            assert_no_half(made, request)
            assert unexpected_faults(made, request) == []
    ctx.fit(made.history)
    assert ctx.report().reduced
    assert with_reductions_undone(ctx, made.row).fit(made.history) == made.history
