"""In a memory, what has one value at a time has the later one; everything else stays side by side."""

from __future__ import annotations

import asyncio

import pytest

from foveal import Memory
from foveal.core.log.events import Event, UserSaid
from foveal.core.tokens.counter import Estimate
from foveal.stores import MemoryStore

REPLACED = (
    ("My name is Ada.", "My name is Grace."),
    ("My name is Ada.", "I'm called Grace"),
    ("My first name is Ada.", "my first name is Grace now"),
    ("My birthday is 3 May.", "My birthday is 4 May."),
    ("My birthday is 3 May.", "I was born on 4 May."),
    ("My e-mail is ada@example.com.", "My email is grace@example.com."),
    ("My role is tester.", "My role is maintainer."),
    ("I work as a nurse.", "My job is teaching."),
    ("I live in Paris.", "I live in Rome."),
    ("My favourite editor is vim.", "My favourite editor is Helix."),
    ("We use pytest for tests.", "We use unittest for tests."),
    ("We use pytest for tests.", "We now use unittest for tests"),
    ("Ich heiße Ada.", "Mein Name ist Grace."),
    ("Je m'appelle Ada.", "Mon nom est Grace."),
    ("Me llamo Ada.", "Mi nombre es Grace."),
    ("Meu nome é Ada.", "Me chamo Grace."),
    ("Меня зовут Ада.", "Меня зовут Грейс."),
    ("我叫小明。", "我的名字是小红。"),
    ("私の名前はエイダです。", "私の名前はグレースです。"),
)
BOTH = (
    ("My name is Ada.", "My name is Bob in the tests."),
    ("My name is Ada and I use tabs.", "My name is Grace."),
    ("My name is Ada.", "My sister's name is Grace."),
    ("My name is Ada.", "My name is not Grace."),
    ("My name is Ada.", "My birthday is 3 May."),
    ("My first name is Ada.", "My last name is Lovelace."),
    ("We use pytest for tests.", "We also use tox for tests."),
    ("We use pytest for tests.", "We use tox for tests too."),
    ("We use pytest for tests.", "We use ruff for linting."),
    ("We use pytest for tests.", "We never use unittest for tests."),
    ("I am an engineer.", "I am a vegetarian."),
    ("My name is Ada.", "My name is often misspelled."),
    ("I live in Bern.", "I live in fear of merges."),
    ("I work at Acme.", "I work at night."),
    ("My birthday is 1 May.", "My birthday is a secret."),
)


def kept(*statements: str) -> list[str]:
    async def run() -> list[str]:
        memory = Memory("ada", store=MemoryStore(), counting=Estimate())
        for statement in statements:
            await memory.remember(statement)
        return [entry.text for entry in await memory.entries()]

    return asyncio.run(run())


@pytest.mark.parametrize(("earlier", "later"), REPLACED)
def test_the_later_value_counts(earlier: str, later: str) -> None:
    assert kept(earlier, later) == [later]


@pytest.mark.parametrize(("one", "other"), BOTH)
def test_two_things_are_both_kept(one: str, other: str) -> None:
    assert kept(one, other) == [one, other]
    assert kept(other, one) == [other, one]


def test_a_name_is_a_fact_told_said_or_proposed() -> None:
    async def run() -> None:
        memory = Memory("ada", store=MemoryStore(), counting=Estimate())
        assert (await memory.remember("My name is Ada.")).kind == "fact"
        (note,) = await memory.hear([Event(1, UserSaid(content="Remember that my birthday is 3 May."))])
        assert note.entry.kind == "fact"
        (proposal,) = await memory.propose([Event(2, UserSaid(content="My name is Grace. Why is CI red?"))])
        assert (proposal.kind, proposal.text) == ("fact", "My name is Grace.")
        await memory.accept(proposal.id)
        assert [entry.text for entry in await memory.entries()] == [
            "my birthday is 3 May.",
            "My name is Grace.",
        ]
        assert (await memory.why("m0")).replaced_by == proposal.id
        await memory.undo("m0")
        assert len(await memory.entries()) == 3

    asyncio.run(run())


def test_a_name_is_replaced_among_many_entries() -> None:
    others = [f"Box {number} holds part {number * 7}." for number in range(300)]
    assert kept("My name is Ada.", *others, "My name is Grace.") == [*others, "My name is Grace."]
