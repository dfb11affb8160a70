"""The collection of sessions: pages, figures, search and live changes, over stores and transcripts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import apsw
import pytest

from foveal.core.log import Event, ModelSaid, Opened, Overflowed, Used, UserSaid
from foveal.core.log.logged_requests import logged_requests
from foveal.inspector.open_logs import OpenLog
from foveal.inspector.sessions import collection as session_collection
from foveal.inspector.sessions import rows as session_rows
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.sessions.source import MAX_ROW_SHARES, SessionMissing, SessionRow
from foveal.recall.archive import SqliteSource, StoreSource, TranscriptSource
from foveal.recall.archive.source import session_handle
from foveal.recall.archive.transcript_source import HEAD_BYTES, transcript_handle
from foveal.sessions import Session
from foveal.stores import open_store
from foveal.stores.memory import MemoryStore
from support.inspected_sessions import INSPECTED_MODEL, SMALL_SETTINGS, append_turn, fill_session, write_store
from support.paths import TESTS

FIXTURES = TESTS / "data" / "transcripts"


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapped


async def rows_of(sessions: SessionCollection, **how: Any) -> dict[str, SessionRow]:
    """Return the rows of a page by title."""
    return {row.title: row for row in (await sessions.rows(**how)).rows}


async def index_all(sessions: SessionCollection) -> None:
    """Search until all sessions are indexed."""
    while (await sessions.rows(query="anything")).searching:
        await asyncio.sleep(0.02)


# ── Stores ───────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_row_has_the_figures_of_its_log(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    await write_store(path, "demo")
    sessions = SessionCollection([SqliteSource(path)], settings={"window": 4_000})
    (row,) = (await sessions.rows()).rows
    async with open_store(path) as store:
        log = await store.read("demo")
        session = await Session.open(store, "demo", **SMALL_SETTINGS)
        usage = await session.usage()
    reported = [event.fact for event in log if isinstance(event.fact, Used)]
    prompts = usage.input + usage.cache_read + usage.cache_write
    assert row == SessionRow(
        key=session_handle(str(path), "demo"),
        title="look at file_0.py",
        model=INSPECTED_MODEL,
        active=row.active,
        created=row.created,
        events=len(log),
        bytes=row.bytes,
        window=4_000,
        used=reported[-1].prompt,
        shares=tuple(round(used.prompt / 4_000, 4) for used in reported),
        requests=24,
        reported=24,
        spent=usage.spent,
        cache_share=round(usage.cache_read / prompts, 4),
        reductions=row.reductions,
        place=str(path),
        writable=True,
        times=(log[0].at or 0.0, log[-1].at or 0.0),
    )
    assert row.reductions > 2
    assert row.bytes > 1_000


@run
async def test_any_store_that_is_open_is_a_source() -> None:
    store = MemoryStore()
    await fill_session(store, "demo", turns=2)
    (row,) = (await SessionCollection([StoreSource(store, "memory")]).rows()).rows
    assert (row.title, row.requests, row.place, row.writable) == ("look at file_0.py", 4, "memory", True)


@run
async def test_pages_follow_one_another_from_the_most_recently_active_on() -> None:
    store = MemoryStore()
    for number in range(7):
        await store.append(f"s{number}", [Event(0, UserSaid(content=f"ask {number}"), 100.0 + number)])
    sessions = SessionCollection([StoreSource(store, "memory")])
    titles, after = [], ""
    for _ in range(3):
        page = await sessions.rows(after=after, limit=3)
        titles.append([row.title for row in page.rows])
        after = page.next
    assert titles == [["ask 6", "ask 5", "ask 4"], ["ask 3", "ask 2", "ask 1"], ["ask 0"]]
    assert after == ""


@run
async def test_a_fork_and_a_continuation_name_their_origin() -> None:
    store = MemoryStore()
    first = await fill_session(store, "first", turns=2)
    await first.fork("fork", at=4)
    await Session.continue_from(store, "first", "next", **SMALL_SETTINGS)
    sessions = SessionCollection([StoreSource(store, "memory")])
    page = await sessions.rows()
    key = session_handle("memory", "first")
    assert {row.key: row.origin for row in page.rows} == {
        key: "",
        session_handle("memory", "fork"): key,
        session_handle("memory", "next"): key,
    }
    assert (await sessions.open("fork")).about.origin == key


@run
async def test_the_last_failure_is_shown_without_secrets() -> None:
    store, key = MemoryStore(), "AKIA" + "Z7Q2M4X5W3N5K3J6"
    facts = (
        Opened(model=INSPECTED_MODEL),
        UserSaid(content="hello"),
        Overflowed(model=INSPECTED_MODEL, problem=f"too\nlong for {key}"),
        ModelSaid(content="hello"),
    )
    await store.append("demo", [Event(seq, fact, 1.0) for seq, fact in enumerate(facts)])
    (row,) = (await SessionCollection([StoreSource(store, "memory")]).rows()).rows
    assert row.error.startswith("too long for")
    assert key not in row.error


@run
async def test_a_model_without_a_price_has_requests_and_no_cost() -> None:
    store = MemoryStore()
    used = [Used(input=100, output=5) for _ in range(3)]
    await store.append("demo", [Event(seq, fact, 1.0) for seq, fact in enumerate((Opened(model=""), *used))])
    (row,) = (await SessionCollection([StoreSource(store, "memory")]).rows()).rows
    assert (row.requests, row.used, row.spent, row.cache_share, row.shares) == (3, 100, None, 0.0, ())


@run
@pytest.mark.parametrize("reported", [0, 1, 3])
async def test_requests_are_counted_with_reported_usage_and_without(reported: int) -> None:
    turns = [
        fact
        for turn in range(3)
        for fact in (UserSaid(content="go"), ModelSaid(content="gone"), Used(input=100, until=3 * turn + 2))
        if turn < reported or not isinstance(fact, Used)
    ]
    events = [Event(seq, fact, 1.0) for seq, fact in enumerate((Opened(model=INSPECTED_MODEL), *turns))]
    store = MemoryStore()
    await store.append("demo", events)
    (row,) = (await SessionCollection([StoreSource(store, "memory")]).rows()).rows
    assert (row.requests, row.reported, len(row.shares)) == (3, reported, reported)
    assert row.requests == len(logged_requests(events))


@run
async def test_a_row_has_the_window_with_which_the_session_goes_on() -> None:
    store = MemoryStore()
    await fill_session(store, "demo", turns=1)
    session = await Session.open(store, "demo", **{**SMALL_SETTINGS, "window": 9_000})
    await session.append(UserSaid(content="And now?"))
    collection = SessionCollection([StoreSource(store, "memory")])
    assert [row.window for row in (await collection.rows()).rows] == [9_000]
    timeline = await OpenLog(await collection.open("demo")).timeline()
    assert timeline.window == 9_000


@run
async def test_a_long_session_is_read_from_its_end_and_its_curve_is_thinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_rows, "MAX_ROW_EVENTS", 200)
    store = MemoryStore()
    facts = (Opened(model=INSPECTED_MODEL), *(Used(input=seq) for seq in range(1, 1_000)))
    await store.append("demo", [Event(seq, fact, 1.0) for seq, fact in enumerate(facts)])
    (row,) = (await SessionCollection([StoreSource(store, "memory")], settings={"window": 1_000}).rows()).rows
    assert (row.requests, row.events, row.partial, len(row.shares)) == (200, 1_000, True, MAX_ROW_SHARES)
    assert (row.shares[0], row.shares[-1]) == (0.8, 0.999)


@run
async def test_an_unchanged_session_is_not_read_again_and_a_grown_one_only_from_there(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    await write_store(path, "demo", turns=3)
    read: list[range] = []

    class CountingSource(SqliteSource):
        async def skim(self, session: str, seqs: range) -> list[Event]:
            read.append(seqs)
            return await super().skim(session, seqs)

    sessions = SessionCollection([CountingSource(path)])
    (row,) = (await sessions.rows()).rows
    (again,) = (await sessions.rows()).rows
    assert row == again
    async with open_store(path) as store:
        session = await Session.open(store, "demo", **SMALL_SETTINGS)
        await append_turn(session, 3)
        end = session.last + 1
    await asyncio.sleep(0.6)  # a list is used again for half a second
    (grown,) = (await sessions.rows()).rows
    assert grown.requests == row.requests + 2
    assert read == [range(row.events), range(row.events, end)]
    assert grown == (await SessionCollection([SqliteSource(path)]).rows()).rows[0]


@run
async def test_rows_without_time_for_their_figures_follow_as_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for number in range(3):
        await fill_session(store, f"s{number}", turns=1)
    sessions = SessionCollection([StoreSource(store, "memory")])
    monkeypatch.setattr(session_rows, "MAX_ROWS_WORK_S", 0.0)
    page, cursor = await sessions.rows(), await sessions.cursor()
    assert [(row.partial, row.requests) for row in page.rows] == [(True, 0)] * 3
    monkeypatch.setattr(session_rows, "MAX_ROWS_WORK_S", 5.0)
    changes = await sessions.wait_for_changes(cursor, timeout=5)
    assert [(row.partial, row.requests) for row in changes.rows] == [(False, 2)] * 3


# ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_changes_arrive_while_a_session_grows(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    await write_store(path, "one", "two", turns=1)
    sessions = SessionCollection([SqliteSource(path)])
    cursor = await sessions.cursor()
    assert (await sessions.wait_for_changes(cursor, timeout=0)).rows == ()

    async def grow() -> None:
        async with open_store(path) as store:
            await append_turn(await Session.open(store, "one", **SMALL_SETTINGS), 1)

    changes, _ = await asyncio.gather(sessions.wait_for_changes(cursor, timeout=20), grow())
    assert {row.key for row in changes.rows} == {session_handle(str(path), "one")}
    while changes.rows[0].requests < 4:  # the turn may be seen in parts
        changes = await sessions.wait_for_changes(changes.cursor, timeout=20)
    assert changes.rows[0].requests == 4


@run
async def test_a_cursor_of_another_process_brings_all_sessions() -> None:
    store = MemoryStore()
    await fill_session(store, "demo", turns=1)
    sessions = SessionCollection([StoreSource(store, "memory")])
    changes = await sessions.wait_for_changes("another-999", timeout=0)
    assert [row.key for row in changes.rows] == [session_handle("memory", "demo")]


# ── Transcripts ──────────────────────────────────────────────────────────────────────────────────────────


def fixtures(folder: Path) -> TranscriptSource:
    for name in ("claude_code", "codex", "pi"):
        shutil.copy(FIXTURES / f"{name}.jsonl", folder)
    return TranscriptSource(folder)


@run
async def test_transcripts_have_figures_too_and_cannot_be_changed(tmp_path: Path) -> None:
    sessions = SessionCollection([fixtures(tmp_path)])
    rows = {row.format: row for row in (await sessions.rows()).rows if not row.origin}
    assert {format: (row.requests, row.used, row.writable, row.partial) for format, row in rows.items()} == {
        "claude_code": (3, 1_108, False, False),
        "codex": (3, 1_200, False, False),
        "pi": (2, 350, False, False),
    }
    assert rows["claude_code"].error == "API Error"
    assert rows["claude_code"].error_at == 1_767_348_061.0
    assert rows["codex"].window == 272_000
    about = (await sessions.open(rows["codex"].key)).about
    assert (about.format, about.policy, about.writable) == ("codex", "", False)
    assert about.settings == {"window": 272_000}
    assert about.reason.startswith("a transcript of another program can only be read")


@run
async def test_sub_agents_of_claude_code_belong_to_their_session(tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    shutil.copy(FIXTURES / "claude_code.jsonl", path)
    own = {"isSidechain": True, "agentId": "a7", "sessionId": "s-1", "uuid": "x1", "parentUuid": None}
    line = own | {"type": "user", "message": {"role": "user", "content": "look around"}}
    folder = tmp_path / "s-1" / "subagents"
    folder.mkdir(parents=True)
    (folder / "agent-a7.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "agent-a7.meta.json").write_text('{"agentType": "general-purpose"}')  # is no transcript
    sessions = SessionCollection([TranscriptSource(tmp_path)])
    await sessions.rows()  # a file with several conversations lists them once it has been read
    rows, _, problems, _ = await sessions.rows()
    assert problems == ()
    parent = transcript_handle(str(path))
    assert {row.key: row.origin for row in rows} == {
        parent: "",
        transcript_handle(str(path), 1): parent,
        transcript_handle(str(folder / "agent-a7.jsonl")): parent,
    }


@run
async def test_sub_agents_in_a_large_file_are_listed_as_soon_as_it_is_open(tmp_path: Path) -> None:
    """The page of a session asks for the list once, right after it has opened the session."""
    path = tmp_path / "s-1.jsonl"
    own = {"uuid": "u1", "sessionId": "s-1", "type": "user"}
    said = own | {"isSidechain": False, "message": {"role": "user", "content": "x" * 2 * HEAD_BYTES}}
    asked = {"role": "user", "content": "look around"}
    begun = own | {"isSidechain": True, "agentId": "a7", "parentUuid": None, "message": asked}
    path.write_text("".join(json.dumps(line) + "\n" for line in (said, begun)))
    sessions = SessionCollection([TranscriptSource(tmp_path)])
    parent, child = transcript_handle(str(path)), transcript_handle(str(path), 1)
    await sessions.open(parent)
    assert {row.key: row.origin for row in (await sessions.rows()).rows} == {parent: "", child: parent}


@run
async def test_of_a_large_file_only_the_end_is_read_for_its_row(tmp_path: Path) -> None:
    lines = []
    for number in range(400):
        usage = {"input_tokens": number, "output_tokens": 1}
        message = {"id": f"m{number}", "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage}
        entry = {"type": "assistant", "uuid": f"u{number}", "sessionId": "s", "isSidechain": False}
        text = "x" * 2_000
        lines.append(json.dumps(entry | {"message": message | {"content": [{"type": "text", "text": text}]}}))
    (tmp_path / "s.jsonl").write_text("\n".join(lines) + "\n")
    sessions = SessionCollection([TranscriptSource(tmp_path)])
    cursor = await sessions.cursor()
    (row,) = (await sessions.rows()).rows
    assert (row.partial, row.used, row.model) == (True, 399, "claude-sonnet-4-5")
    assert 50 < row.requests < 200
    # The rest follows while a page shows the list.
    changes = await sessions.wait_for_changes(cursor, timeout=20)
    assert [(row.partial, row.requests, row.used) for row in changes.rows] == [(False, 400, 399)]
    await sessions.close()


@run
async def test_a_title_and_the_notes_are_the_same_before_and_after_the_file_is_read(tmp_path: Path) -> None:
    entry = {"uuid": "u", "sessionId": "s", "isSidechain": False}
    said = {"type": "user", "message": {"role": "user", "content": "Add VAT. " + "x" * 300_000}}
    title = {"type": "ai-title", "aiTitle": "Swiss VAT"}
    short = {"type": "user", "message": {"role": "user", "content": "Add VAT."}}
    lines = [json.dumps(entry | line) for line in (short, said, said, title)]
    lines.insert(2, "not JSON")
    (tmp_path / "0a1b2c3d-1111.jsonl").write_text("\n".join(lines) + "\n")
    sessions = SessionCollection([TranscriptSource(tmp_path)])
    (before,) = (await sessions.rows()).rows
    first = (await sessions.open("0a1b2c3d")).about
    second = (await sessions.open(before.key)).about
    (after,) = (await sessions.rows()).rows
    assert [each.title for each in (before, first, after)] == ["Swiss VAT"] * 3
    assert first.problems == ("1 line of the file was not understood; it is shown as a note",)
    assert second.problems == first.problems


@run
async def test_a_codex_session_is_opened_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    name = "rollout-2026-01-02T10-00-00-5973b6c0-94b8-487b.jsonl"
    shutil.copy(FIXTURES / "codex.jsonl", tmp_path / name)
    sessions = SessionCollection([TranscriptSource(tmp_path)])
    key = transcript_handle(str(tmp_path / name))
    for id in ("5973b6c0-94b8-487b", "5973", key[:6]):
        assert (await sessions.open(id)).about.key == key
    for id in ("597", "73b6c0", "5974"):
        with pytest.raises(SessionMissing):
            await sessions.open(id)


@run
async def test_all_sources_are_listed_together_and_a_broken_file_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    source = fixtures(folder)
    (folder / "broken.jsonl").write_text("this is not JSON\n")
    path = tmp_path / "chats.db"
    await write_store(path, "demo", turns=1)
    newer = tmp_path / "newer.db"
    shutil.copy(path, newer)
    connection = apsw.Connection(str(newer))
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    sessions = SessionCollection([source, SqliteSource(path), SqliteSource(newer)])
    await sessions.rows()
    page = await sessions.rows()
    assert {row.format for row in page.rows} == {"claude_code", "codex", "pi", "foveal"}
    assert sorted(problem.partition(str(tmp_path))[2][:22] for problem in page.problems) == [
        "/newer.db was written ",
        "/transcripts/broken.js",
    ]


# ── Search, and single sessions ──────────────────────────────────────────────────────────────────────────


@run
async def test_a_search_finds_titles_first_and_then_texts(tmp_path: Path) -> None:
    store = MemoryStore()
    said = {"one": "fix the parser", "two": "buy apples", "three": "nothing of the kind"}
    for at, (id, text) in enumerate(said.items()):
        answer = "the parser is fixed" if id == "two" else "done"
        facts = (UserSaid(content=text), ModelSaid(content=answer))
        await store.append(id, [Event(seq, fact, 100.0 + at) for seq, fact in enumerate(facts)])
    sessions = SessionCollection([StoreSource(store, "memory"), fixtures(tmp_path)])
    await index_all(sessions)
    assert list(await rows_of(sessions, query="parser")) == ["fix the parser", "buy apples"]
    first = await sessions.rows(query="parser", limit=1)
    second = await sessions.rows(query="parser", limit=1, after=first.next)
    assert [row.title for row in (*first.rows, *second.rows)] == ["fix the parser", "buy apples"]
    assert second.next == ""
    assert (await sessions.rows(query="no_such_word_anywhere")).rows == ()


@run
async def test_found_sessions_have_all_words_and_identifiers_and_phrases_as_written() -> None:
    store = MemoryStore()
    answers = {
        "right": "The host is db-zh-7.internal; it is the primary.",
        "parts": "db of Zurich: zh, number 7, see db-zh-8 and x-zh-7",
        "split": "the primary is another host",
        "other": "VAT for Austria",
    }
    for id, text in answers.items():
        facts = (UserSaid(content=f"title of {id}"), ModelSaid(content=text))
        await store.append(id, [Event(seq, fact, 100.0) for seq, fact in enumerate(facts)])
    sessions = SessionCollection([StoreSource(store, "memory")])
    await index_all(sessions)

    async def found(query: str) -> set[str]:
        return {title.removeprefix("title of ") for title in await rows_of(sessions, query=query)}

    assert await found("db-zh-7") == {"right"}
    assert await found("DB-ZH-7.internal") == {"right"}
    assert await found("primary host") == {"right", "split"}
    assert await found('"the primary"') == {"right", "split"}
    assert await found('"primary is another') == {"split"}
    assert await found('"of other" title') == {"other"}
    assert await found("VAT for Switzerland") == set()
    assert await found('"') == set(answers)  # as without a query


@run
async def test_a_search_answers_with_what_is_indexed_and_says_what_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_collection, "SEARCH_WORK_S", 1e-9)
    store = MemoryStore()
    texts = dict.fromkeys(("one", "two", "three"), "the parser is slow")
    for at, (id, text) in enumerate(texts.items()):
        facts = (UserSaid(content=f"title of {id}"), ModelSaid(content=text))
        await store.append(id, [Event(seq, fact, 100.0 + at) for seq, fact in enumerate(facts)])
    sessions = SessionCollection([StoreSource(store, "memory")])
    first = await sessions.rows(query="parser")
    assert (first.rows, first.searching) == ((), 3)
    await index_all(sessions)
    again = await sessions.rows(query="parser")
    assert (sorted(row.title for row in again.rows), again.searching) == (
        ["title of one", "title of three", "title of two"],
        0,
    )


@run
async def test_a_long_session_does_not_hide_the_others() -> None:
    store = MemoryStore()
    short = [
        Event(0, UserSaid(content="Look."), 1.0),
        Event(1, ModelSaid(content=f"parser {'x ' * 300}"), 1.0),
    ]
    await store.append("short", short)
    many = [Event(seq, UserSaid(content="parser"), 2.0) for seq in range(300)]
    await store.append("long", many)
    sessions = SessionCollection([StoreSource(store, "memory")])
    await index_all(sessions)
    assert [row.title for row in (await sessions.rows(query="parser")).rows] == ["parser", "Look."]


@run
async def test_a_collection_can_be_closed_while_it_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_collection, "SEARCH_WORK_S", 1e-9)
    store = MemoryStore()
    await fill_session(store, "demo", turns=2)
    sessions = SessionCollection([StoreSource(store, "memory")])
    assert (await sessions.rows(query="file")).searching == 1
    await sessions.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@run
async def test_a_session_is_opened_by_key_or_id_and_a_wrong_one_is_refused() -> None:
    store = MemoryStore()
    await fill_session(store, "demo", turns=1)
    sessions = SessionCollection([StoreSource(store, "memory")], settings={"window": 4_000})
    about = (await sessions.open("demo")).about
    assert (await sessions.open(about.key)).about == about
    assert (about.id, about.model, about.policy, about.settings, about.writable) == (
        "demo", INSPECTED_MODEL, "economy", {"window": 4_000}, True
    )  # fmt: skip
    for key in ("", "no such key", "s0000000000", "\x00", "../../etc/passwd"):
        with pytest.raises(SessionMissing, match="there is no session"):
            await sessions.open(key)


@run
async def test_an_erased_session_is_gone_for_those_who_read_it(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    await write_store(path, "demo", turns=1)
    sessions = SessionCollection([SqliteSource(path)])
    reader = await sessions.open("demo")
    assert (await reader.end()).next_seq > 5
    async with open_store(path) as store:
        await store.erase("demo")
    with pytest.raises(SessionMissing, match="session 'demo' was erased"):
        await reader.end()
    await asyncio.sleep(0.6)
    assert (await sessions.rows()).rows == ()
