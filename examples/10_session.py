"""Keeps a session in a file, and uses undo, rewind and continuation.

The session survives the process. Every undo or rewind is another event in the log.
"""

import asyncio
import tempfile
from pathlib import Path

import foveal
from foveal.core.log import Call, kind

MODEL = foveal.model("gpt-4.1", window=8_000)


async def work(session: foveal.Session) -> None:
    """Append what an agent loop appends: calls and their results."""
    await session.pin("Never touch the public API.")
    await session.append(foveal.UserSaid(content="Which tests fail?"))
    for part in range(12):
        call = Call(id=f"call_{part}", name="bash", arguments=f'{{"command": "pytest part{part}"}}')
        log = "\n".join(f"part{part}/test_{case}.py: passed" for case in range(40))
        await session.append(foveal.ModelSaid(content=(call,)))
        await session.append(foveal.ToolReturned(call_id=call.id, name="bash", content=log))
        await session.fit()


async def main(path: Path) -> None:
    async with foveal.open_store(path) as store:
        session = await foveal.Session.open(store, "demo", model=MODEL)
        await work(session)
        await session.compact()  # `fit` does this itself when the window is full
        before = (await session.fit()).to_openai()

    async with foveal.open_store(path) as store:  # a later process
        session = await foveal.Session.open(store, "demo", model=MODEL)
        after = (await session.fit()).to_openai()
        print("the request is the same after opening again:", after == before)

        undone = await session.event(await session.undo())
        print(f"undone: {undone.handle} {kind(undone.fact)}")
        await session.rewind(8)
        print("after a rewind to e8:", len((await session.fit()).facts), "messages")

        other = await foveal.Session.continue_from(store, "demo", "next", model=MODEL)
        print("a new session begins with:", (await other.fit()).to_openai()[0]["content"])
        await session.rename("Failing tests")
        for info in await store.sessions():
            print(f"{info.id:5} {info.title!r:16} {info.events:>3} events, {info.bytes:,} bytes")

        await session.delete()
        print("left of the text after delete:", repr(await session.original("e3")))


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder) / "chats.db"))
