"""Writes summaries in the background, and recovers when a provider's window is smaller than known."""

import asyncio

import foveal
from foveal.core.log import Call, Compacted, Masked, Overflowed, kind
from foveal.stores import MemoryStore

MODEL = foveal.model("gpt-4.1", window=16_000)
RECORD = """<summary>
## Goal
Find out which parts fail.
## Decisions
-
## State
The parts so far were run, and passed.
## Next
Run the parts that remain.
## Dead ends
-
</summary>"""


class Refused(Exception):
    """The error of a provider's client; the numbers are in its message."""

    status_code = 400


async def write(request: foveal.SummaryRequest) -> str:
    """A scripted model that takes some time; the session does not wait for it."""
    print(f"    a summary begins ({request.form}, {len(request.messages)} messages)")
    await asyncio.sleep(0.05)
    print("    it is written")
    return RECORD


async def run(session: foveal.Session, part: int) -> None:
    """Run one step of an agent: append a call and its result, fit the next request, and wait for the answer."""
    call = Call(id=f"call_{part}", name="bash", arguments=f'{{"command": "pytest part{part}"}}')
    log = f"part{part} passed\n" * 200
    await session.append(
        foveal.ModelSaid(content=(call,)), foveal.ToolReturned(call_id=call.id, name="bash", content=log)
    )
    request = await session.fit()
    print(f"part {part:>2}: a request of {request.tokens:,} tokens")
    await asyncio.sleep(0.03)


async def main() -> None:
    async with MemoryStore() as store:
        session = await foveal.Session.open(
            store, "demo", model=MODEL, policy="recent-summary", summarise=write
        )
        await session.append(foveal.UserSaid(content="Which parts fail?"))
        for part in range(11):
            await run(session, part)
        await session.append(foveal.UserSaid(content="Be quick."))  # stored at once, also during a summary
        for part in range(11, 18):
            await run(session, part)

        error = Refused(
            "This model's maximum context length is 9000 tokens. However, your messages resulted in 9600 tokens."
        )
        print("refused as too large:", await session.overflowed(error))
        print("some other error:", await session.overflowed(Refused("the model is overloaded")))
        request = await session.fit()  # send this request instead
        print(f"now {request.tokens:,} of {request.limit:,} tokens")
        print("the window:", (await session.report()).window_source)

        for event in await session.events():
            if isinstance(event.fact, Compacted | Masked):
                print(f"{event.handle} {kind(event.fact)}, because of {event.fact.reason}")
            elif isinstance(event.fact, Overflowed):
                print(f"{event.handle} {kind(event.fact)}, the limit is {event.fact.limit:,}")
        for summary in (await session.report()).summaries:
            sizes = f"{summary.measures.before:,} → {summary.measures.after:,} tokens"
            print(f"{summary.handle} replaces {summary.first}–{summary.last}, {sizes}, by {summary.by}")
        await session.close()  # cancels a summary that is still being written


asyncio.run(main())
