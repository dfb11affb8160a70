"""Runs parts of the work in branches: a block, the tools of the model, and a fork for a sub-agent."""

import foveal

MESSAGES: list[object] = [{"role": "user", "content": "Why is CI red?"}]


def call(ctx: foveal.Context, call_id: str, name: str, arguments: str) -> None:
    """Let the scripted model call a tool; branch and return are answered by the context."""
    function = {"name": name, "arguments": arguments}
    calls = [{"id": call_id, "type": "function", "function": function}]
    MESSAGES.append({"role": "assistant", "content": None, "tool_calls": calls})
    answer = "test_dates.py: FAILED\n" * 200 if name == "bash" else ctx.recall(name, arguments)
    MESSAGES.append({"role": "tool", "tool_call_id": call_id, "content": answer})
    print(f"    {len(ctx.fit(MESSAGES))} messages after {name}, {ctx.report().used:,} tokens")


def main() -> None:
    ctx = foveal.Context("gpt-4.1", window=32_000, tokenizer="estimate")
    ctx.fit(MESSAGES)

    print("A block of your code:")
    with ctx.branch("Find the failing test.", messages=MESSAGES) as branch:
        call(ctx, "call_1", "bash", '{"command": "pytest"}')
        branch.result("test_dates.py fails: the bound in parse() is wrong")
    print(f"    {len(ctx.fit(MESSAGES))} messages after the block, {ctx.report().used:,} tokens")

    print("The model's own branch:")
    call(ctx, "call_2", "branch", '{"task": "Find who calls parse()."}')
    call(ctx, "call_3", "bash", '{"command": "grep -r parse"}')
    call(ctx, "call_4", "return", '{"result": "only report.py calls it"}')

    print("A sub-agent with a context of its own:")
    child = ctx.fork("Read the log of the build.")
    same = child.fit([*MESSAGES, {"role": "user", "content": "Read the log."}])[:-1] == ctx.fit(MESSAGES)
    print(f"    its request begins with the same messages: {same}")
    ctx.join(child, "the disk was full")

    for status in ctx.branches():
        print(f"    {status.handle}: {status.task} → {status.result}, folded by {status.fold}")
    print(f"    unfolded: {ctx.undo(branch.fold)}, {len(ctx.fit(MESSAGES))} messages")


if __name__ == "__main__":
    main()
