"""Pins a rule and a message, and stores the application's own state in the log."""

import foveal

ctx = foveal.Context("gpt-4.1", window=4_000)
ctx.pin("Never touch the public API.")
ctx.append({"role": "user", "content": "The staging database is db-7. Clean up the old tables."})
database = ctx.log[-1].handle
ctx.pin(event=database)

for number in range(200):
    ctx.append(
        {"role": "assistant", "content": f"Table {number} is old; I have archived it and checked the copy."}
    )
    ctx.append(
        {
            "role": "user",
            "content": f"Good. Go on with table {number + 1}, please, and mind the foreign keys.",
        }
    )
    if number % 50 == 0:
        ctx.snapshot({"commit": f"{number:07x}"}, label="after a round")
    ctx.fit()

request = ctx.fit()
print("in the log:    ", len(ctx.log), "events")
print("in the request:", len(request), "messages,", ctx.report().used, "tokens")
for message in request[:3]:
    print("  ", message["role"] + ":", message["content"])

snapshots = [event.fact for event in ctx.log if isinstance(event.fact, foveal.events.SnapshotTaken)]
print("snapshots, never sent:", [bytes(snapshot.data).decode() for snapshot in snapshots])
assert "db-7" in str(request)
assert "Never touch the public API." in str(request)
