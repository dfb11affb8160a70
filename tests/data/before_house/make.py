"""Writes the fixtures of `test_before_house.py`: logs of contexts, a store of sessions, and what they show.

It uses public names only, so it runs with the code of any commit. The files in this folder were written by the last
commit before the packages were put in order, and they are not written again:

    PYTHONPATH=src python tests/data/before_house/make.py
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import warnings
from pathlib import Path
from typing import Any

import msgspec

import foveal

HERE = Path(__file__).parent
WINDOW = 9_000
WORDS = """cache window ledger branch commit invoice parser socket worker token index merge build
deploy""".split()  # noqa: SIM905
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
PRESETS = [name for name in foveal.PRESETS if name not in ("off", "confirm", "plain")]
"""Presets of that version that reduce without a question."""
STORED_PRESETS = ("economy", "handoff", "recent", "rolling")


def history(seed: int, turns: int = 40) -> list[dict[str, Any]]:
    """A conversation in OpenAI's chat dialect: questions, calls, results, a rule and its correction."""
    dice = random.Random(seed)

    def text(count: int) -> str:
        return " ".join(dice.choice(WORDS) for _ in range(count))

    messages: list[dict[str, Any]] = [{"role": "system", "content": "You repair part_7 of the press."}]
    for turn in range(turns):
        said = {
            1: "Always answer in metric units. My name is Ada.",
            turns // 2: "From now on answer in imperial units instead.",
        }
        function = {"name": "look", "arguments": json.dumps({"path": f"src/part_{turn}.py"})}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        messages += [
            {"role": "user", "content": said.get(turn, f"Question {turn}: {text(12)}?")},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"part_{turn}: 4{turn} mm\n{text(260)}"},
            {"role": "assistant", "content": f"The part is 4{turn} mm wide. {text(20)}"},
        ]
    return messages


def saved_context(preset: str) -> bytes:
    """Return the log of a context that has fitted a conversation, turn by turn."""
    context = foveal.Context("gpt-4.1", window=WINDOW, policy=preset)
    messages = history(len(preset))
    for end in range(2, len(messages), 4):
        context.fit(messages[:end], tools=TOOLS)
    context.pin("part_7 is made of brass")
    return context.save()


def observe_context(saved: bytes, preset: str) -> Any:
    """Return what a context shows that continues a log."""
    context = foveal.Context.load(saved)
    fitted = context.fit(history(len(preset)), tools=TOOLS)
    report = context.report()
    return plain(
        {
            "request": fitted,
            "used": report.used,
            "statements": [(one.handle, one.text) for one in context.statements()],
            "log": [(event.seq, event.fact) for event in context.log],
        }
    )


async def write_store(path: Path) -> None:
    async with foveal.open_store(path) as store:
        for number, preset in enumerate(STORED_PRESETS):
            session = await foveal.Session.open(
                store, f"s{number}", model="gpt-4.1", window=WINDOW, policy=preset, clock=lambda: 1.8e9
            )
            await session.equip(TOOLS)
            for message in history(number):
                if message["role"] == "user":
                    await session.fit()
                await session.take(message)
            await session.pin("part_7 is made of brass")
            await session.fork(f"s{number}-fork", at="e20")
            await session.close()


async def observe_store(path: Path) -> Any:
    """Return what the sessions of a store show."""
    shown: dict[str, Any] = {}
    async with foveal.open_store(path) as store:
        for number, preset in enumerate(STORED_PRESETS):
            for id in (f"s{number}", f"s{number}-fork"):
                session = await foveal.Session.open(
                    store, id, model="gpt-4.1", window=WINDOW, policy=preset, clock=lambda: 1.8e9
                )
                fitted = await session.fit()
                shown[id] = {
                    "chat": fitted.to_openai(),
                    "responses": fitted.to_responses(),
                    "anthropic": fitted.to_anthropic(),
                    "gemini": fitted.to_gemini(),
                    "tokens": fitted.tokens,
                    "events": [(event.seq, event.fact) for event in await session.events()],
                    "found": [hit.seq for hit in await session.search("part_3", 5)],
                }
                await session.close()
    return plain(shown)


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def pack(name: str, data: bytes) -> None:
    (HERE / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))


async def main() -> None:
    warnings.simplefilter("ignore")
    observed: dict[str, Any] = {}
    for preset in PRESETS:
        saved = saved_context(preset)
        pack(f"{preset}.jsonl", saved)
        observed[preset] = observe_context(saved, preset)
    pack("contexts.json", json.dumps(observed).encode())
    path = HERE / "sessions.db"
    await write_store(path)
    pack("sessions.db", path.read_bytes())
    pack("sessions.json", json.dumps(await observe_store(path)).encode())
    for left in HERE.glob("sessions.db*"):
        if left.suffix != ".gz":
            left.unlink()


if __name__ == "__main__":
    asyncio.run(main())
