"""Histories of agents that read a few files again and again, and the log that a context writes of one."""

from __future__ import annotations

from random import Random

from foveal.core.log import encode
from support.histories import Json, call_message, context, result_message, user


def code_lines(name: str, lines: int = 40) -> str:
    return "\n".join(f"    {name}_{nr} = compute_the_{name}({nr}, again={nr * 7})" for nr in range(lines))


def tool_step(nr: int, command: str, result: str) -> list[Json]:
    return [call_message(f"c{nr}", command=command), result_message(f"c{nr}", result)]


def rereading_history(seed: int, steps: int) -> list[Json]:
    """Return the history of an agent that reads a few files again and again, and changes them in between."""
    dice = Random(seed)
    files = {name: code_lines(name, dice.randint(5, 60)).split("\n") for name in ("alpha", "beta", "gamma")}
    history = [user("Mend all of them, please.")]
    for nr in range(steps):
        name = dice.choice(sorted(files))
        lines = files[name]
        if dice.random() < 0.3:
            lines[dice.randrange(len(lines))] = f"    changed_{nr} = {dice.random()}"
            history += [
                call_message(f"c{nr}", path=f"{name}.py", text="\n".join(lines)),
                result_message(f"c{nr}", "ok"),
            ]
        elif dice.random() < 0.3:
            history += tool_step(
                nr, f"make {nr}", "\n".join(f"step {k} of {nr} took {k * nr} ms" for k in range(30))
            )
        else:
            low = dice.randrange(len(lines))
            history += tool_step(nr, f"sed -n {low},999p {name}.py", "\n".join(lines[low:]))
    return history


def rereading_log() -> bytes:
    """Return the log of such a history, with many references and reductions."""
    lines: list[bytes] = []
    for window in (6_000, 40_000):
        ctx = context(window)
        history = rereading_history(5, 30)
        for size in range(1, len(history) + 1, 2):
            ctx.fit(history[:size])
        lines += [encode(event) for event in ctx.log]
    return b"\n".join(lines)
