"""Tests of the service's tables, on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from foveal.core.log.events import UserSaid
from foveal.errors import KeyReused, LeaseLost, StoreError
from foveal.server import AuthTokens, ChatMessage, ChatPlace, Chats, Inbox, TokenCaller
from foveal.server.chat_questions import ChatQuestion, ChatQuestions
from foveal.server.databases import Database, Transaction
from foveal.server.inbox import DONE_KEY_TTL_S, SessionSetup
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.proxy.digest_index import DigestIndex, KnownSession
from foveal.server.storage import LocalWakeups
from foveal.transport.recognised_messages import IndexedMessage
from support.gated_provider import run
from support.service_databases import open_database

GIVEN = UserSaid(content="the canary sings")


@run
async def test_a_done_message_keeps_its_key_for_a_week_and_loses_its_text(place: Path | str) -> None:
    async with open_database(place) as database:
        inbox = Inbox(database)
        entry, is_new = await inbox.put("t", "s", key="k", now=1_000.0, message=GIVEN)
        assert is_new
        assert entry.message == "the canary sings"
        assert (await inbox.take("t", "s", last=4)) == entry._replace(taken_after=4)
        taken = await inbox.take("t", "s", last=9)
        assert taken is not None
        assert (taken.state, taken.taken_after) == ("taken", 4)
        await inbox.finish(entry, why="answered", problem="", code="")
        assert await inbox.take("t", "s", last=9) is None
        same, is_new = await inbox.put("t", "s", key="k", now=1_000.0 + DONE_KEY_TTL_S - 1, message=GIVEN)
        assert (same.id, same.state, is_new) == (entry.id, "done", False)
        assert len(same.content or b"") == 16  # a digest
        await inbox.put("t", "s", key="k2", now=1_000.0 + DONE_KEY_TTL_S + 1, message=GIVEN)
        later, is_new = await inbox.put("t", "s", key="k", now=1_000.0 + DONE_KEY_TTL_S + 2, message=GIVEN)
        assert is_new
        assert later.id > entry.id


@run
async def test_messages_from_several_connections_get_ids_in_the_order_of_storing(place: Path | str) -> None:
    async with open_database(place) as one, open_database(place) as other:
        seen: list[list[int]] = []

        async def put(n: int) -> None:
            inbox = Inbox((one, other)[n % 2])
            entry, _ = await inbox.put("t", "s", key=f"k{n}", now=float(n), message=GIVEN)
            sql = "SELECT id FROM inbox ORDER BY id"
            rows = await one.read(lambda db: db.fetch(sql), tenant="t")
            ids = [id for (id,) in rows]
            assert entry.id in ids
            seen.append(ids)

        await asyncio.gather(*(put(n) for n in range(30)))
        final = max(seen, key=len)
        assert all(ids == final[: len(ids)] for ids in seen), "no id appears before a smaller one"


@run
async def test_a_key_that_arrives_at_the_same_time_is_stored_once(place: Path | str) -> None:
    async with open_database(place) as one, open_database(place) as other:
        puts = [Inbox((one, other)[n % 2]).put("t", "s", key="k", now=1.0, message=GIVEN) for n in range(8)]
        results = await asyncio.gather(*puts)
        assert sum(is_new for _, is_new in results) == 1
        assert len({entry.id for entry, _ in results}) == 1


@run
async def test_the_key_of_a_background_run_is_refused_for_another_text(place: Path | str) -> None:
    async with open_database(place) as database:
        inbox, queue = Inbox(database), JobQueue(database)
        await queue.add(Job(tenant="t", session="s", key="k", kind="run", prompt="Do it.\0", at=1.0))
        other = Job(tenant="t", session="s", key="k", kind="run", prompt="Do that.", at=2.0)
        with pytest.raises(KeyReused):
            await queue.add(other)
        with pytest.raises(KeyReused):
            await inbox.put("t", "s", key="k", message=UserSaid(content="Do that."), now=2.0)
        entry, is_new = await inbox.put("t", "s", key="k", message=UserSaid(content="Do it.\0"), now=2.0)
        assert (entry.message, is_new) == ("Do it.\0", True)
        with pytest.raises(KeyReused):
            await queue.add(other)


@run
async def test_of_two_texts_with_one_key_at_the_same_time_one_is_refused(place: Path | str) -> None:
    async with open_database(place) as one, open_database(place) as other:
        results = await asyncio.gather(
            JobQueue(one).add(Job(tenant="t", session="s", key="k", kind="run", prompt="Do it.", at=1.0)),
            JobQueue(other).add(Job(tenant="t", session="s", key="k", kind="run", prompt="Do that.", at=1.0)),
            Inbox(one).put("t", "s", key="k", message=UserSaid(content="Do nothing."), now=1.0),
            return_exceptions=True,
        )
        assert sum(isinstance(result, KeyReused) for result in results) == 2


@run
async def test_unfinished_messages_models_and_deletion(place: Path | str) -> None:
    async with open_database(place) as database:
        inbox = Inbox(database)
        for tenant, session, key in [("a", "s", "1"), ("a", "s", "2"), ("b", "s", "3")]:
            await inbox.put(tenant, session, key=key, now=float(key), message=GIVEN)
        assert sorted(await inbox.unfinished()) == [("a", "s", 2), ("b", "s", 1)]
        assert await inbox.unfinished(before=2.0) == [("a", "s", 2)]
        await inbox.set_session_setup("a", "s", SessionSetup("m1"))
        await inbox.set_session_setup("a", "s", SessionSetup("m2", agent="reviewer", user="ada"))
        assert await inbox.session_setup("a", "s") == SessionSetup("m2", agent="reviewer", user="ada")
        assert (await inbox.sessions_of("a", "ada"), await inbox.sessions_of("b", "ada")) == (["s"], [])
        assert await inbox.session_agents("a", ["s", "t"]) == {"s": "reviewer"}
        assert await inbox.session_agents("b", ["s"]) == await inbox.session_agents("a", []) == {}
        assert await inbox.session_setup("b", "s") is None
        await inbox.delete_session("a", "s")
        assert await inbox.unfinished() == [("b", "s", 1)]
        assert await inbox.session_setup("a", "s") is None


@run
async def test_any_text_is_stored_unchanged(place: Path | str) -> None:
    async with open_database(place) as database:
        for n, text in enumerate(["a\0b", "back\\slash", "\\0", "50 % of ?", "ü – 😀", ""]):
            entry, _ = await Inbox(database).put(
                "t", "s", key=f"k{n}{text}", message=UserSaid(content=text), now=1.0
            )
            assert (entry.key, entry.message) == (f"k{n}{text}", text)
            await Inbox(database).finish(entry, why="failed", problem=text, code=text)
            done = await Inbox(database).entry("t", entry.id)
            assert done is not None
            assert (done.key, done.problem, done.code) == (f"k{n}{text}", text, text)


@run
async def test_a_token_authenticates_its_tenant_until_it_is_revoked(place: Path | str) -> None:
    async with open_database(place) as database:
        tokens = AuthTokens(database)
        assert not await tokens.any_exist()
        id, secret = await tokens.create("alice", label="laptop", now=1.0)
        assert await tokens.any_exist()
        assert await tokens.authenticate(secret) == TokenCaller(tenant="alice", token_id=id)
        assert await tokens.authenticate(f"{secret}x") is None
        assert [(token.id, token.label, token.revoked) for token in await tokens.list()] == [
            (id, "laptop", None)
        ]
        assert await tokens.revoke(id, now=2.0)
        assert not await tokens.revoke(id, now=3.0)
        assert await tokens.authenticate(secret) is None
        assert [token.revoked for token in await tokens.list()] == [2.0]


@run
async def test_a_chat_moves_on_once_and_its_messages_are_recorded_once(place: Path | str) -> None:
    async with open_database(place) as database:
        chats, day = Chats(database), 86_400.0
        first = await chats.session("discord", ChatPlace(5))
        moves = [chats.start_next_session("discord", ChatPlace(5), session=first) for _ in range(3)]
        assert await asyncio.gather(*moves) == ["discord-5-2"] * 3
        message = ChatMessage(key="new", place=ChatPlace(-(2**52), 7), session="telegram-1", at=1.5 * day)
        await chats.record_message("telegram", message, now=1.5 * day)
        await chats.record_message("telegram", message, now=1.6 * day)
        assert await chats.undelivered("telegram", now=2 * day) == [message]
        await chats.mark_done("telegram", "new", now=2 * day)
        assert await chats.undelivered("telegram", now=2 * day) == []
        found = await chats.find_message("telegram", "new")
        assert found is not None
        assert found.is_done
        assert not await chats.record_command("telegram", "new", place=ChatPlace(1), now=2 * day)
        assert await chats.record_command("telegram", "other", place=ChatPlace(1), now=2 * day)
        await chats.mark_done("telegram", "other", now=5 * day)
        assert await chats.find_message("telegram", "new") is None, "after two days it is deleted"


@run
async def test_jobs_are_taken_in_the_order_in_which_they_were_added(place: Path | str) -> None:
    async with open_database(place) as database:
        queue = JobQueue(database)
        jobs = [
            Job(tenant="t", session="s", key=f"k{n}", kind="run", at=float(n), prompt=f"p{n}")
            for n in range(3)
        ]
        assert [await queue.add(job) for job in jobs] == [True] * 3
        assert not await queue.add(Job(tenant="t", session="s", key="k0", kind="run", at=9.0, prompt="p0"))
        assert await queue.untaken() == jobs
        assert await queue.open_runs_up_to(jobs[1]) == jobs[:2]
        await queue.mark_taken([jobs[0].id, jobs[1].id])
        assert await queue.untaken() == jobs[2:]
        await queue.clear_taken()
        assert await queue.untaken(limit=2) == jobs[:2]
        assert (await queue.get(jobs[1].id), await queue.get("unknown")) == (jobs[1], None)
        await queue.delete_session("t", "s")
        assert await queue.count() == 0


@run
async def test_the_index_finds_the_longest_history_and_forgets_what_was_rewound(place: Path | str) -> None:
    async with open_database(place) as database:
        index = DigestIndex(database)
        digests = [bytes([n]) * 8 for n in range(40)]
        messages = [
            IndexedMessage(digest, n, n + 1, b"text" if n == 1 else None) for n, digest in enumerate(digests)
        ]
        await index.add("t", "s", messages[:20], side_state={"system": b"1"})
        await index.add("t", "short", messages[:3])
        assert await index.find("t", digests) == [KnownSession("s", messages[19])]
        assert await index.find("t", digests[:3]) == [
            KnownSession("short", messages[2]),
            KnownSession("s", messages[2]),
        ]
        assert await index.find("other", digests) == []
        await index.add("t", "s", [], side_state={"system": b"2"}, rewound=1)
        assert await index.load("t", "s") == (messages[:2], {"system": b"2"})
        assert await index.find_in_session("t", "s", digests[18:]) == messages[18:20]
        await index.add("t", "s", messages[2:4])
        assert (await index.load("t", "s"))[0] == messages[:4]
        await index.deprioritise("t", KnownSession("s", messages[3]))
        await index.delete_session("t", "s")
        assert await index.load("t", "s") == ([], {})
        assert await index.find("t", digests) == [KnownSession("short", messages[2])]


@run
async def test_a_question_is_answered_once_by_any_process_and_expires(place: Path | str) -> None:
    now = [1_000.0]

    def questions(database: Database) -> ChatQuestions:
        return ChatQuestions(database, LocalWakeups(), clock=lambda: now[0], poll_s=0.01)

    def question(id: str) -> ChatQuestion:
        return ChatQuestion(
            id=id, session="s", key="k", tool="fetch", text="a\0b", at=now[0], until=now[0] + 60
        )

    async with open_database(place) as one, open_database(place) as other:
        here, there = questions(one), questions(other)
        waiting = asyncio.create_task(here.ask("telegram", question("1")))
        while not (asked := await there.to_send("telegram")):
            await asyncio.sleep(0.01)
        assert asked == [question("1")]
        assert await there.to_send("discord") == []
        await there.mark_sent("telegram", asked[0])
        assert await there.to_send("telegram") == []
        assert await here.is_waiting("telegram", "1")
        answers = [source.answer("telegram", "1", yes=True) for source in (here, there) * 4]
        assert sum(await asyncio.gather(*answers)) == 1
        assert await waiting
        answered = await there.find("telegram", "1")
        assert answered is not None
        assert (answered.state, answered.text) == ("done", "")
        assert not await here.is_waiting("telegram", "1")
        waiting = asyncio.create_task(here.ask("telegram", question("2")))
        while not await there.is_waiting("telegram", "2"):
            await asyncio.sleep(0.01)
        now[0] += 60
        assert not await there.answer("telegram", "2", yes=True)
        assert not await waiting
        assert [(one.id, one.state) for one in await there.to_send("telegram")] == [("2", "expired")]
        await Chats(one).forget_session("telegram", "s")
        assert await there.find("telegram", "2") is None


@run
async def test_a_closed_database_raises(place: Path | str) -> None:
    async with open_database(place) as database:
        await database.check_writable()
        await database.close()
        with pytest.raises(StoreError, match="closed"):
            await Inbox(database).unfinished()


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_cannot_be_finished_after_its_lease_was_taken_over(service_url: str) -> None:
    from foveal.server.databases.postgres_database import PostgresDatabase
    from foveal.stores.postgres.connection import PostgresPool

    async with PostgresPool(service_url) as pool:
        epochs: dict[tuple[str, str], int] = {}
        database = PostgresDatabase(pool, epoch_of=lambda tenant, session: epochs.get((tenant, session)))
        inbox = Inbox(database)
        entry, _ = await inbox.put("t", "s", key="k", now=1.0, message=GIVEN)
        await database.write(lambda db: db.execute("INSERT INTO lease VALUES ('t', 's', 7, 'me', NULL)"))
        epochs["t", "s"] = 6
        with pytest.raises(LeaseLost):
            await inbox.take("t", "s", last=0)
        with pytest.raises(LeaseLost):
            await inbox.finish(entry, why="failed", problem="", code="")
        assert await inbox.entry("t", entry.id) == entry
        epochs["t", "s"] = 7
        assert await inbox.take("t", "s", last=3) == entry._replace(taken_after=3)


TENANT_TABLES = ("inbox", "rooms", "tokens", "errands", "schedules", "heads", "beside")
GATEWAY_TABLES = (
    *("chat_places", "chat_messages", "chat_notices", "chat_questions"),
    *("pairing_codes", "pairing_misses", "paired"),
)


@run
async def test_a_tenant_sees_no_rows_of_others_even_if_the_sql_forgets_the_tenant(service_url: str) -> None:
    import psycopg

    from support.postgres_server import database_url

    async with open_database(service_url) as database:
        for tenant in ("a", "b"):
            await Inbox(database).put(tenant, "s", key="k", now=1.0, message=GIVEN)
            await Inbox(database).set_session_setup(tenant, "s", SessionSetup("m"))
            await AuthTokens(database).create(tenant, now=1.0)
            await JobQueue(database).add(Job(tenant=tenant, session="s", key="job", kind="run", at=1.0))
        await Chats(database).start_next_session("discord", ChatPlace(5), session="discord-5")
    with psycopg.connect(service_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS foveal_tables_test")
        owner.execute("CREATE ROLE foveal_tables_test LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA foveal TO foveal_tables_test")
        owner.execute("GRANT ALL ON ALL TABLES IN SCHEMA foveal TO foveal_tables_test")
        owner.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA foveal TO foveal_tables_test")
    try:
        limited_url = database_url(service_url, urlsplit(service_url).path[1:], user="foveal_tables_test")
        async with open_database(limited_url) as limited:

            async def count(db: Transaction) -> dict[str, int]:
                tables = TENANT_TABLES + GATEWAY_TABLES
                return {table: (await db.fetch(f"SELECT count(*) FROM {table}"))[0][0] for table in tables}

            everything, one = await limited.read(count), await limited.read(count, tenant="a")
            assert (everything["inbox"], everything["tokens"], everything["chat_places"]) == (2, 2, 1)
            assert [one[table] for table in ("inbox", "rooms", "tokens", "errands")] == [1, 1, 1, 1]
            assert [one[table] for table in GATEWAY_TABLES] == [0] * len(GATEWAY_TABLES)
            sql = "DELETE FROM inbox"
            assert await limited.write(lambda db: db.execute(sql), tenant="a") == 1
            sql = "INSERT INTO rooms (tenant, session, model) VALUES ('b', 'x', 'm')"
            with pytest.raises(StoreError):
                await limited.write(lambda db: db.execute(sql), tenant="a")
            assert [tenant for tenant, *_ in await Inbox(limited).unfinished()] == ["b"]
    finally:
        with psycopg.connect(service_url, autocommit=True) as owner:
            owner.execute("DROP OWNED BY foveal_tables_test")
            owner.execute("DROP ROLE foveal_tables_test")


@run
async def test_sessions_of_a_user_are_those_created_shown_and_continued(place: Path | str) -> None:
    async with open_database(place) as database:
        inbox = Inbox(database)
        await inbox.set_session_setup("t", "own", SessionSetup(user="ada"))
        for user, session in (("ada", "shown"), ("ada", "shown"), ("bob", "shown"), ("bob", "other")):
            await inbox.add_session_user("t", session, user)
        await inbox.add_session_user("rival", "theirs", "ada")
        for origin in ("own", "shown", "other"):
            await inbox.copy_session_users("t", origin, f"{origin}-next")
            await inbox.copy_session_users("t", origin, f"{origin}-next")
        assert await inbox.sessions_of("t", "ada") == ["own", "own-next", "shown", "shown-next"]
        await inbox.delete_session("t", "shown")
        assert await inbox.sessions_of("t", "ada") == ["own", "own-next", "shown-next"]
        assert await inbox.sessions_of("t", "bob") == ["other", "other-next", "shown-next"]
        assert await inbox.sessions_of("rival", "ada") == ["theirs"]
