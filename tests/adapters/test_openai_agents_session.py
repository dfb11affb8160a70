"""Sessions of the OpenAI Agents SDK in a store. They need no part of the SDK."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import foveal
from foveal.adapters.openai_agents import FovealSession

ITEMS: list[Any] = [
    {"role": "user", "content": "Where is the zebra?"},
    {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "sealed", "status": None},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
    },
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "c1",
        "name": "find",
        "arguments": "{ }",
        "status": "x",
    },
    {"type": "function_call_output", "call_id": "c1", "output": "zebra at 4.0 🦓"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "twice"}]},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "compaction", "encrypted_content": "abc", "nested": {"flag": True, "count": 1, "none": None}},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
    {"role": "assistant", "content": ""},
    {"id": "rs_2", "type": "reasoning", "summary": [{"type": "summary_text", "text": "last"}]},
    {"type": "unknown_kind"},
    {"content": 7},
]


def in_store(tmp_path: Path, work: Any) -> Any:
    async def main() -> Any:
        async with foveal.open_store(tmp_path / "chats.db") as store:
            return await work(store)

    return asyncio.run(main())


@pytest.mark.parametrize("size", [1, 2, 3, len(ITEMS)])
def test_items_come_back_as_they_were_added_also_after_a_restart(tmp_path: Path, size: int) -> None:
    given = deepcopy(ITEMS)

    async def add(store: Any) -> Any:
        session = FovealSession("one", store)
        for start in range(0, len(ITEMS), size):
            await session.add_items(ITEMS[start : start + size])
        return await session.get_items()

    async def read(store: Any) -> Any:
        return await FovealSession("one", store).get_items()

    assert in_store(tmp_path, add) == ITEMS == given
    assert in_store(tmp_path, read) == ITEMS


def test_a_lone_surrogate_comes_back(tmp_path: Path) -> None:
    item = {"role": "user", "content": "half \ud83e"}

    async def work(store: Any) -> Any:
        session = FovealSession("one", store)
        await session.add_items([item])
        return await session.get_items(), await FovealSession("one", store).get_items()

    assert in_store(tmp_path, work) == ([item], [item])


def test_the_newest_items_are_read_in_their_order(tmp_path: Path) -> None:
    async def work(store: Any) -> Any:
        session = FovealSession("one", store)
        await session.add_items(ITEMS)
        return [await session.get_items(limit) for limit in (0, 2, 99)]

    assert in_store(tmp_path, work) == [[], ITEMS[-2:], ITEMS]


def test_items_are_popped_one_by_one(tmp_path: Path) -> None:
    async def work(store: Any) -> Any:
        session = FovealSession("one", store)
        await session.add_items(ITEMS)
        for end in range(len(ITEMS), 0, -1):
            assert await session.pop_item() == ITEMS[end - 1]
            assert await FovealSession("one", store).get_items() == ITEMS[: end - 1]
        assert await session.pop_item() is None
        await session.add_items(ITEMS[:2])
        return await session.get_items()

    assert in_store(tmp_path, work) == ITEMS[:2]


def test_a_cleared_session_begins_anew(tmp_path: Path) -> None:
    async def work(store: Any) -> Any:
        session = FovealSession("one", store)
        await session.clear_session()
        await session.add_items(ITEMS)
        await session.clear_session()
        await session.add_items(ITEMS[:1])
        return await session.get_items()

    assert in_store(tmp_path, work) == ITEMS[:1]


def test_several_writers_lose_no_item(tmp_path: Path) -> None:
    async def work(store: Any) -> Any:
        sessions = [FovealSession("one", store) for _ in range(5)]
        items = [{"role": "user", "content": f"message {number}"} for number in range(25)]
        writes = zip(items, sessions * 5, strict=True)
        await asyncio.gather(*(session.add_items([item]) for item, session in writes))
        return [await session.get_items() for session in sessions]

    read = in_store(tmp_path, work)
    assert all(items == read[0] for items in read)
    assert {item["content"] for item in read[0]} == {f"message {number}" for number in range(25)}


class OvertakenStore:
    """A store in which another session is a little faster, some times in a row."""

    def __init__(self, store: Any, times: int) -> None:
        self._store, self._other, self.left = store, FovealSession("one", store), times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, *given: Any) -> None:
        if self.left:
            self.left -= 1
            await self._other.add_items([{"role": "user", "content": f"faster {self.left}"}])
        await self._store.append(*given)


def test_a_writer_that_others_overtake_many_times_still_writes(tmp_path: Path) -> None:
    async def work(store: Any) -> Any:
        session = FovealSession("one", OvertakenStore(store, 40))
        await session.add_items(ITEMS[:1])
        return await session.get_items()

    read = in_store(tmp_path, work)
    assert (len(read), read[-1]) == (41, ITEMS[0])


def test_a_session_is_listed_and_searched_like_any_other(tmp_path: Path) -> None:
    async def work(store: Any) -> Any:
        session = FovealSession("one", store, model="gpt-4.1")
        await session.add_items(ITEMS[:5])
        (info,) = await store.sessions()
        context = await foveal.Context.load_from(store, "one")
        return info.id, context.recall("recall_search", {"query": "zebra"})

    name, found = in_store(tmp_path, work)
    assert name == "one"
    assert "Where is the zebra?" in found
