"""Short names of dialects: every argument accepts them, and messages have the full ones."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

import foveal
from foveal.core.compaction.summariser import Summariser
from foveal.core.log.events import DialectName, UserSaid
from foveal.core.wire import DIALECTS, checked_dialect, full_name, wire_for
from foveal.core.wire.dialects import SHORT_NAMES
from foveal.errors import BadSetting
from foveal.transcripts import write_messages

HELLO = [{"role": "user", "content": "Hello."}]
PAIRS = list(SHORT_NAMES.items())


def test_the_type_of_arguments_has_every_name() -> None:
    assert set(get_args(DialectName)) == {"", *DIALECTS, *SHORT_NAMES}


@pytest.mark.parametrize(("short", "full"), PAIRS)
def test_a_short_name_is_the_same_as_the_full_one(short: DialectName, full: DialectName) -> None:
    assert (checked_dialect(short), full_name(short), full_name(full)) == (full, full, full)
    assert wire_for(short) is wire_for(full)
    assert foveal.Context("gpt-4.1", dialect=short).fit(HELLO) == foveal.Context("gpt-4.1", dialect=full).fit(
        HELLO
    )
    assert write_messages([UserSaid(content="Hello.")], short) == write_messages(
        [UserSaid(content="Hello.")], full
    )
    assert foveal.recall.tools(short) == foveal.recall.tools(full)
    assert foveal.memory.tools(short) == foveal.memory.tools(full)
    assert Summariser(str, dialect=short).dialect == full


@pytest.mark.parametrize(("short", "full"), PAIRS)
def test_a_session_takes_both_names(short: DialectName, full: DialectName) -> None:
    async def take(name: DialectName) -> list[object]:
        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, name, model="gpt-4.1")
            return [event.fact for event in await session.take(*HELLO, dialect=name)]

    assert asyncio.run(take(short)) == asyncio.run(take(full))


@pytest.mark.parametrize("wrong", ["tape", "OpenAI", 3, None, ["openai"]])
def test_an_error_names_the_full_names(wrong: object) -> None:
    with pytest.raises(BadSetting, match=r"one of openai_chat, openai_responses, anthropic, gemini, bedrock"):
        checked_dialect(wrong)


def test_every_name_of_a_dialect_reads_lists_of_messages() -> None:
    for name in (*DIALECTS, *SHORT_NAMES):
        with pytest.raises(foveal.transcripts.UnreadableTranscript):  # not `BadSetting`
            list(foveal.transcripts.read("no such file", format=name))
