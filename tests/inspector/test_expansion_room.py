"""What other messages give way when a hidden message is shown again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.core.log import REDUCTIONS, Call, ModelSaid, ToolReturned, UserSaid, handle
from foveal.inspector.api import expansion_room
from foveal.inspector.timeline.builder import InspectedSettings
from foveal.sessions import Session
from foveal.stores import open_store

WINDOW: Final = 6_000
INSPECTED: Final = InspectedSettings(id="s", window=WINDOW)
HIDES: Final = "To make room, the next request hides "
FIRST: Final = 3
"""The first result."""


async def read_file(session: Session, number: int) -> None:
    call = Call(id=f"c{number}", name="read", arguments=f'{{"path": "f{number}.py"}}')
    await session.append(UserSaid(content=f"Look at f{number}.py."), ModelSaid(content=(call,)))
    text = "\n".join(f"line {line} of f{number}.py" for line in range(60))
    await session.append(ToolReturned(call_id=call.id, content=text))
    await session.fit()


def run(path: Path, work: Callable[[Session], Awaitable[None]], *, pins: bool = False) -> None:
    """Do some work with a session that is full and hides its first result: for a pin, with its whole step."""

    async def main() -> None:
        async with open_store(path / "s.db") as store:
            session = await Session.open(store, "s", model="gpt-4.1", window=WINDOW)
            for number in range(80):
                await read_file(session, number)
                room = expansion_room(await session.events(), FIRST, pins=pins, settings=INSPECTED)
                if room.text.startswith(HIDES) and (await session.why(FIRST)).level != "full":
                    await work(session)
                    return
            raise AssertionError("the session never became full")

    asyncio.run(main())


@pytest.mark.parametrize("pins", [False, True])
def test_what_gives_way_is_what_the_next_request_hides(tmp_path: Path, *, pins: bool) -> None:
    async def work(session: Session) -> None:
        before = await session.events()
        room = expansion_room(before, FIRST, pins=pins, settings=INSPECTED)
        assert await session.events() == before, "nothing is recorded"
        await (session.pin(event=FIRST) if pins else session.expand(FIRST))
        await session.fit()
        new = await session.events(first=len(before))
        cuts = [event.fact for event in new if isinstance(event.fact, REDUCTIONS)]
        assert cuts
        for cut in cuts:
            masked = [handle(mask.target) for mask in getattr(cut, "masks", ())]
            named = masked or [handle(cut.first), handle(cut.last)]  # type: ignore[union-attr]
            assert all(name in room.text for name in named), room.text

    run(tmp_path, work, pins=pins)


def test_it_says_that_there_is_room_or_that_it_can_never_fit(tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        log: Any = await session.events()
        wide = InspectedSettings(id="s", window=100_000)
        assert expansion_room(log, FIRST, pins=False, settings=wide).text == (
            "There is room for it: no other message has to be hidden."
        )
        refused = expansion_room(log, FIRST, pins=False, settings=InspectedSettings(id="s", window=520))
        assert not refused.possible
        assert "cannot be shown whole" in refused.text

    run(tmp_path, work)
