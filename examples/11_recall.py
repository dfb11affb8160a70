"""Offers the model two tools to read hidden events, in your own loop and in a session."""

import asyncio

import foveal
from foveal import recall
from foveal.stores import MemoryStore

TOOLS = recall.tools("openai_chat")  # offer them together with your own tools
print("offered:", [tool["function"]["name"] for tool in TOOLS])

ctx = foveal.Context("gpt-4.1", window=2_500)
history = [{"role": "user", "content": "The staging database is db-7. Clean up the old tables."}]
for table in range(100):
    history += [
        {"role": "assistant", "content": f"Table {table} is old; I have archived it and checked the copy."},
        {"role": "user", "content": "Go on."},
    ]
    if table == 17:
        history[-2]["content"] = "Table 17 belongs to Ada, ask her first."
request = ctx.fit(history, tools=TOOLS)
print("in view:", "Ada" in str(request))

answer = ctx.recall(
    "recall_search", '{"query": "whom does table 17 belong to?", "limit": 3}'
)  # the model's call
print(answer)
handle = next(event.handle for event in ctx.log if "Ada" in ctx.original(event.seq))
print(ctx.recall("recall_read", {"handle": handle}))
print(ctx.recall("recall_read", {"handle": "e9000"}))


async def in_a_session() -> None:
    async with MemoryStore() as store:
        session = await foveal.Session.open(store, "demo", model="gpt-4.1")
        await session.append(foveal.UserSaid(content="The staging database is db-7."))
        print(await foveal.Recall(session, tokens=500).call("recall_search", {"query": "staging"}))


asyncio.run(in_a_session())
