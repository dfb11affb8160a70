"""Imports a conversation of another product, continues it, and exports it."""

import asyncio
import io
import json

import foveal
from foveal import transcripts
from foveal.core.log import kind
from foveal.stores import MemoryStore

SESSION: list[dict[str, object]] = [  # a Claude Code session in which the user went back to the first message
    {
        "uuid": "1",
        "parentUuid": None,
        "type": "user",
        "message": {"role": "user", "content": "Count the apples"},
    },
    {"uuid": "2", "parentUuid": "1", "type": "user", "message": {"role": "user", "content": "Eat them"}},
    {"type": "hovercraft", "full": "of eels"},
    {"uuid": "3", "parentUuid": "1", "type": "user", "message": {"role": "user", "content": "Sell them"}},
]
file = io.BytesIO(b"".join(json.dumps({"sessionId": "s-1", **line}).encode() + b"\n" for line in SESSION))


async def main() -> None:
    (recording,) = transcripts.read(file)  # a stream, or the path of a file or folder
    print(f"{recording.id} from {recording.source}: {recording.unknown} line was not understood, and is kept")

    async with MemoryStore() as store:
        await store.append(recording.id, list(recording.events()))
        session = await foveal.Session.open(store, recording.id, model="claude-sonnet-4-6")
        await session.append(foveal.ModelSaid(content="Sold."))
        events = await session.events()

    for event in events:
        print(f"  {event.handle} {kind(event.fact)}")
    print(json.dumps(transcripts.write_messages((event.fact for event in events), "openai_chat")))

    lines = b"".join(transcripts.write_events(events, "s-1"))
    (again,) = transcripts.read(io.BytesIO(lines))
    print("the round trip is exact:", list(again.events()) == events)


asyncio.run(main())
