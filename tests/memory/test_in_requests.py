"""Requests show what a memory holds: in one place, as it is now, and nothing of another owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal import Context, Memory, Session
from foveal.core.log.events import (
    Event,
    Instructed,
    ModelSaid,
    Noted,
    Rewound,
    UserSaid,
    kind,
)
from foveal.core.tokens.counter import Estimate
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.checkpoint import ViewCheckpoint, needed_seqs, restore_view, take_checkpoint
from foveal.core.view.fold import effective_events, fold
from foveal.errors import BadSetting
from foveal.stores import MemoryStore, SqliteStore, open_store
from support.effort import examples, rest_in_soak
from support.histories import ESTIMATE, log_of

DIALECT_MESSAGES: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "openai_chat": lambda role, text: {"role": role, "content": text},
    "openai_responses": lambda role, text: {"role": role, "content": text},
    "anthropic": lambda role, text: {"role": role, "content": text},
    "gemini": lambda role, text: {
        "role": "model" if role == "assistant" else "user",
        "parts": [{"text": text}],
    },
    "bedrock": lambda role, text: {"role": role, "content": [{"text": text}]},
}
SYSTEM_INLINE = ("openai_chat", "openai_responses")


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


def owned(owner: str = "ada", *, store: Any, **settings: Any) -> Memory:
    return Memory(owner, store=store, counting=Estimate(), **settings)


def history(dialect: str, *turns: str) -> list[dict[str, Any]]:
    """Messages of the user and the model in turn, behind a system message where the dialect has one."""
    write = DIALECT_MESSAGES[dialect]
    begin = [write("system", "You are careful.")] if dialect in SYSTEM_INLINE else []
    return begin + [write("assistant" if at % 2 else "user", text) for at, text in enumerate(turns)]


# ── Context ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", DIALECT_MESSAGES)
def test_a_request_shows_the_memory_behind_the_instructions(dialect: Any) -> None:
    memory = owned(store=MemoryStore())
    asyncio.run(memory.remember("I use tabs."))
    ctx = Context("gpt-4.1", dialect=dialect, memory=memory)
    given = history(dialect, "Why is CI red?")
    fitted = ctx.fit(given)
    whole = json.dumps(fitted)
    assert whole.count("I use tabs.") == 1
    assert whole.index("I use tabs.") < whole.index("Why is CI red?")
    if dialect in SYSTEM_INLINE:
        assert fitted[0] == given[0]
        assert whole.index("You are careful.") < whole.index("I use tabs.")
    report = ctx.report()
    assert report.totals["instructions"] > 0


@pytest.mark.parametrize("dialect", DIALECT_MESSAGES)
def test_without_entries_a_request_is_as_without_a_memory(dialect: Any) -> None:
    memory = owned(store=MemoryStore())
    with_memory = Context("gpt-4.1", dialect=dialect, memory=memory, clock=lambda: 1.0)
    without = Context("gpt-4.1", dialect=dialect, clock=lambda: 1.0)
    turns = ["Why is CI red?", "A bound is wrong.", "Fix it."]
    for count in range(1, 4):
        given = history(dialect, *turns[:count])
        assert json.dumps(with_memory.fit(given)) == json.dumps(without.fit(given))
    assert with_memory.save() == without.save()


def test_the_prefix_moves_once_when_the_memory_changes_and_otherwise_never() -> None:
    memory = owned(store=MemoryStore())
    asyncio.run(memory.remember("I use tabs."))
    ctx = Context("gpt-4.1", memory=memory)
    turns = ["Why is CI red?", "A bound is wrong.", "Fix it.", "Done.", "Thanks.", "Welcome.", "Bye."]
    before = ctx.fit(history("openai_chat", *turns[:1]))
    now = ctx.fit(history("openai_chat", *turns[:3]))
    assert now[: len(before)] == before
    assert ctx.report().breaks == ()
    asyncio.run(memory.use("m0"))
    assert ctx.fit(history("openai_chat", *turns[:3])) == now
    asyncio.run(memory.remember("Never push to main."))
    changed = ctx.fit(history("openai_chat", *turns[:5]))
    (broken,) = ctx.report().breaks
    assert (broken.why, len(ctx.report().breaks)) == ("instructed", 1)
    later = ctx.fit(history("openai_chat", *turns))
    assert later[: len(changed)] == changed
    assert len(ctx.report().breaks) == 1


def test_what_is_said_first_in_the_middle_goes_to_the_same_place() -> None:
    ctx = Context("gpt-4.1", memory=owned(store=MemoryStore()))
    given = history("openai_chat", "Why is CI red?", "A bound is wrong.", "Please remember that I use tabs.")
    ctx.fit(given[:2])
    fitted = ctx.fit(given)
    assert fitted[0] == given[0]
    assert "[m0] I use tabs." in fitted[1]["content"]
    assert fitted[2:] == given[1:]
    (note,) = [event.fact for event in ctx.log if isinstance(event.fact, Noted)]
    assert note == Noted(text="Remembered m0: I use tabs.", topic="memory")
    assert ctx.fit(given) == fitted


def test_old_messages_of_a_new_context_are_not_heard_again() -> None:
    memory = owned(store=MemoryStore())
    asked = "Please remember that I use tabs."
    Context("gpt-4.1", memory=memory).fit(history("openai_chat", asked))
    asyncio.run(memory.forget("m0"))
    ctx = Context("gpt-4.1", memory=memory)
    fitted = ctx.fit(history("openai_chat", asked, "Fine.", "Why is CI red?"))
    assert asyncio.run(memory.entries()) == []
    assert "Memory" not in str(fitted)


def test_a_context_in_a_process_of_its_own_sees_what_another_one_forgets(tmp_path: Path) -> None:
    first = owned(store=SqliteStore(tmp_path / "a.db"))
    second = owned(store=SqliteStore(tmp_path / "a.db"))
    asyncio.run(first.remember("I use tabs."))
    ctx = Context("gpt-4.1", memory=second)
    given = history("openai_chat", "Why is CI red?")
    assert "I use tabs." in str(ctx.fit(given))
    asyncio.run(first.forget("m0"))
    assert ctx.fit(given) == given
    assert "I use tabs" not in ctx.recall("recall_search", {"query": "tabs"})


@async_test
async def test_fit_works_where_an_event_loop_runs(tmp_path: Path) -> None:
    async with open_store(tmp_path / "a.db") as store:
        memory = owned(store=store)
        await memory.remember("I use tabs.")
        ctx = Context("gpt-4.1", memory=memory)
        assert "I use tabs." in str(ctx.fit(history("openai_chat", "Why is CI red?")))
        assert "I use tabs." in str(await ctx.afit(history("openai_chat", "Why is CI red?")))


def test_a_loaded_context_shows_the_memory_that_it_gets_now() -> None:
    store = MemoryStore()
    ada, grace = owned("ada", store=store), owned("grace", store=store)
    asyncio.run(ada.remember("I use tabs."))
    asyncio.run(grace.remember("I use spaces."))
    ctx = Context("gpt-4.1", memory=ada)
    given = history("openai_chat", "Why is CI red?")
    ctx.fit(given)
    other = Context.load(ctx.save(), memory=grace)
    fitted = str(other.fit(given))
    assert "I use spaces." in fitted
    assert "I use tabs." not in fitted
    assert Context.load(other.save()).fit(given) == given


def test_an_edited_history_keeps_the_memory_once() -> None:
    memory = owned(store=MemoryStore())
    asyncio.run(memory.remember("I use tabs."))
    ctx = Context("gpt-4.1", memory=memory)
    ctx.fit(history("openai_chat", "Why is CI red?", "A bound is wrong.", "Fix it."))
    edited = history("openai_chat", "Why is CI red?", "A bound is wrong.", "Explain it.")
    fitted = ctx.fit(edited)
    assert [fitted[0], *fitted[2:]] == edited
    assert "I use tabs." in fitted[1]["content"]
    ctx.new_conversation()
    assert str(ctx.fit(history("openai_chat", "Translate the manual."))).count("I use tabs.") == 1


def test_origins_name_the_event_of_the_memory() -> None:
    memory = owned(store=MemoryStore())
    asyncio.run(memory.remember("I use tabs."))
    ctx = Context("gpt-4.1", memory=memory)
    _, origins = ctx.fit_with_origins(history("openai_chat", "Why is CI red?"))
    assert [origin.input for origin in origins] == [0, None, 1]
    assert ctx.why(origins[1].events[0]).level == "full"


def test_the_model_can_use_the_tools_of_a_context() -> None:
    memory = owned(store=MemoryStore(), hears=False)
    ctx = Context("gpt-4.1", memory=memory)
    ctx.fit(history("openai_chat", "I use tabs. Why is CI red?"))
    assert ctx.recall("remember", '{"quote": "I use tabs"}') == "[memory: remembered m0: I use tabs.]"
    found = ctx.recall("recall_search", {"query": "tabs"})
    assert found.startswith("[memory m0; fact]\n> I use tabs.")
    assert "did not ask" in ctx.recall("forget", {"id": "m0", "quote": "I use tabs"})


@pytest.mark.parametrize("wrong", ["ada", 7, [None], object()])
def test_what_is_no_memory_is_refused(wrong: Any) -> None:
    with pytest.raises(BadSetting, match="memory"):
        Context("gpt-4.1", memory=wrong)


def test_two_memories_are_shown_together_and_need_different_letters() -> None:
    store = MemoryStore()
    user, project = owned("ada", store=store), owned("/work", store=store, letter="p", title="the project")
    asyncio.run(user.remember("I use tabs."))
    asyncio.run(project.remember("The port is 8081."))
    ctx = Context("gpt-4.1", memory=[user, project])
    text = ctx.fit(history("openai_chat", "Please remember that I am in Oslo."))[1]["content"]
    assert "[m0] I use tabs." in text
    assert "[p0] The port is 8081." in text
    assert "[m1] I am in Oslo." in text
    with pytest.raises(BadSetting, match="letters"):
        Context("gpt-4.1", memory=[user, owned("grace", store=store)])


# ── Session ──────────────────────────────────────────────────────────────────────────────────────────────


@async_test
async def test_a_session_learns_and_another_one_knows(tmp_path: Path) -> None:
    async with open_store(tmp_path / "a.db") as store:
        memory = owned(store=store)
        begin = [Instructed(content="You are careful.")]
        monday = await Session.open(store, "monday", model="gpt-4.1", memory=memory, begin=begin)
        await monday.append(
            UserSaid(content="Please remember that my name is Ada. Remember: never push to main.")
        )
        await monday.append(
            ModelSaid(content="Noted."), UserSaid(content="Please remember that I prefer tabs.")
        )
        await monday.append(UserSaid(content="Please remember that I prefer spaces."))
        notes = [e.fact.text for e in await monday.events() if isinstance(e.fact, Noted)]
        assert notes[-1] == "Remembered m3: I prefer spaces."
    async with open_store(tmp_path / "a.db") as store:
        tuesday = await Session.open(
            store, "tuesday", model="gpt-4.1", memory=owned(store=store), begin=begin
        )
        await tuesday.append(UserSaid(content="Hello."))
        first, second, third = (await tuesday.fit()).to_openai()
        assert first["content"] == "You are careful."
        lines = second["content"].split("\n")[2:]
        assert lines == ["- [m0] my name is Ada.", "- [m1] never push to main.", "- [m3] I prefer spaces."]
        assert third["content"] == "Hello."
        other = await Session.open(store, "other", model="gpt-4.1", memory=owned("grace", store=store))
        await other.append(UserSaid(content="Hello."))
        assert (await other.fit()).to_openai() == [{"role": "user", "content": "Hello."}]


@async_test
async def test_a_session_without_entries_has_the_same_log_and_request_as_one_without_a_memory() -> None:
    requests, logs = [], []
    for named in ({}, {"memory": owned(store=MemoryStore())}):
        store = MemoryStore(clock=lambda: 1.0)
        session = await Session.open(store, "demo", model="gpt-4.1", clock=lambda: 1.0, **named)
        await session.append(UserSaid(content="Why is CI red?"))
        requests.append(await session.fit())
        logs.append(await session.events())
    assert requests[0] == requests[1]
    assert logs[0] == logs[1]


@async_test
async def test_the_memory_survives_summaries_reopening_and_rewinding(tmp_path: Path) -> None:
    small: dict[str, Any] = {"model": "gpt-4.1", "window": 6_000, "reserve": 500, "tokenizer": "estimate"}
    async with open_store(tmp_path / "a.db", durability="normal") as store:
        memory = owned(store=store)
        await memory.remember("I use tabs.")
        session = await Session.open(store, "demo", memory=memory, **small)
        for turn in range(40):
            await session.append(UserSaid(content=f"Look at part {turn}. " + "It is long. " * 30))
            if turn == 20:
                await memory.remember("The port is 8081.")
            fitted = await session.fit()
            assert fitted.tokens <= fitted.limit
            text = fitted.to_openai()[0]["content"]
            assert text.startswith("# Memory")
            assert "I use tabs." in text
            await session.append(ModelSaid(content=f"Part {turn} has a bound that is wrong. " * 20))
        assert any(kind(event.fact) == "compacted" for event in await session.events())
        shown = [e for e in await session.events() if isinstance(e.fact, Instructed)]
        assert len(shown) == 2
        before = await session.fit()
        reopened = await Session.open(store, "demo", memory=owned(store=store), **small)
        assert (await reopened.fit()).to_openai() == before.to_openai()
        await reopened.rewind(shown[0].seq + 4)
        assert "The port is 8081." in (await reopened.fit()).to_openai()[0]["content"]
        fork = await reopened.fork("copy")
        await memory.forget("m0")
        assert "I use tabs." not in str((await fork.fit()).to_openai())


@async_test
async def test_a_forgotten_text_is_not_found_in_the_log_of_a_session() -> None:
    store = MemoryStore()
    memory = owned(store=store)
    await memory.remember("The hint is xylophone.")
    session = await Session.open(store, "demo", model="gpt-4.1", memory=memory)
    await session.append(UserSaid(content="Hello."))
    assert "xylophone" in str((await session.fit()).to_openai())
    await memory.forget("m0")
    assert "xylophone" not in str((await session.fit()).to_openai())
    recall = foveal.Recall(session, memories=session.memories)
    events = [e for e in await session.events() if isinstance(e.fact, Instructed)]
    assert "xylophone" not in await recall.search("hint") + await recall.read(0, 99)
    assert "replaced" in (await session.why(events[0].seq)).rule


@async_test
async def test_a_memory_that_cannot_be_written_does_not_lose_the_message(tmp_path: Path) -> None:
    store = MemoryStore()
    broken = open_store(tmp_path / "no" / "folder.db")
    session = await Session.open(store, "demo", model="gpt-4.1", memory=owned(store=broken))
    await session.append(UserSaid(content="Please remember that I use tabs."))
    said, note = [e.fact for e in await session.events()][-2:]
    assert isinstance(said, UserSaid)
    assert isinstance(note, Noted)
    assert note.text.startswith("This could not be remembered")


@pytest.mark.parametrize("seed", rest_in_soak(range(6), kept=3))
def test_no_request_shows_the_memory_of_another_owner(seed: int) -> None:
    async def run() -> None:
        random, store = Random(seed), MemoryStore()
        owners = ["ada", "grace", "linus"]
        secrets: dict[str, set[str]] = {owner: set() for owner in owners}
        session = {id: await Session.open(store, id, model="gpt-4.1") for id in ("one", "two", "three")}
        for number in range(40):
            owner, id = random.choice(owners), random.choice([*session])
            memory = owned(owner, store=store)
            if random.random() < 0.4:
                secret = f"code {owner}{number}x"
                await memory.remember(f"My box {number} has the {secret}.")
                secrets[owner].add(secret)
            session[id] = await Session.open(store, id, model="gpt-4.1", memory=random.choice([memory, None]))
            await session[id].append(UserSaid(content=f"Question {number}."))
            request = str((await session[id].fit()).to_openai())
            found = await foveal.Recall(session[id], memories=session[id].memories).search("box code")
            allowed = secrets[owner] if session[id].memories else set()
            others = {secret for known in secrets.values() for secret in known} - allowed
            assert all(secret in request for secret in allowed)
            assert not any(secret in request + found for secret in others)

    asyncio.run(run())


# ── The fold ─────────────────────────────────────────────────────────────────────────────────────────────

KINDS = (
    "memory",
    "memory",
    "compact",
    "drop",
    "replace",
    "pin",
    "aside",
    "rewind",
    "revert",
    "mask",
    "expand",
)


@examples(60)
@given(
    st.integers(0, 2**32), st.sampled_from(["openai_chat", "anthropic"]), st.integers(1, 3), st.integers(0, 4)
)
def test_a_restored_view_shows_the_memory_where_the_fold_shows_it(
    seed: int, dialect: Any, turns: int, steps: int
) -> None:
    _, log = log_of(seed, dialect, turns, steps, KINDS)
    view = fold(log, MessageTokens(ESTIMATE))
    state = msgspec.json.decode(msgspec.json.encode(take_checkpoint(view)), type=ViewCheckpoint)
    needed = needed_seqs(view)
    kept = [event for event in effective_events(log) if event.seq in needed]
    restored = restore_view(kept, state, MessageTokens(ESTIMATE))
    assert [(s.seq, s.kind, list(s.facts())) for s in restored.steps] == [
        (s.seq, s.kind, list(s.facts())) for s in view.steps
    ]
    assert (restored.memory is None) == (view.memory is None)
    blocks = [step for step in view.steps if step.is_memory]
    assert blocks == ([view.memory] if view.memory is not None else [])


def test_a_rewind_that_keeps_the_state_keeps_the_memory() -> None:
    memory = Instructed(content="I use tabs.", source=foveal.events.MEMORY_SOURCE)
    log = [
        Event(0, UserSaid(content="one")),
        Event(1, memory),
        Event(2, Rewound(to=0, keep_state=True)),
    ]
    view = fold(log, MessageTokens(ESTIMATE))
    assert view.memory is not None
    assert view.steps[0] is view.memory
