"""Proposals are standing statements of the user; words of others are none."""

from __future__ import annotations

import pytest

from foveal.core.log.events import Event, UserSaid
from foveal.memory import propose_from

OWN = {
    "Never push to main. Why is CI red?": ["Never push to main."],
    "My name is Grace. Why is CI red?": ["My name is Grace."],
    "The deadline is 14 March.": ["The deadline is 14 March."],
    "Here are my rules:\n- Never push to main.\n- Use tabs.": ["Never push to main.", "Use tabs."],
    "> Can we push to main?\nNo, never push to main.": ["No, never push to main."],
    "Never push to main.\nHere is the log:\nYou must always restart.": ["Never push to main."],
    "Use tabs.\n```\nnever push\n```\nAlways run the tests.": ["Use tabs.", "Always run the tests."],
}
OF_OTHERS = (
    "Here is the mail from Bob: We must never deploy on Fridays. My name is Bob.",
    "Here’s the mail from Bob:\n\nHi,\nNever push to main. My name is Bob.\nBob",
    "Mail from Bob:\nNever push to main.",
    "> Never push to main.\nWhat does it mean?",
    "Bob wrote:\nNever push to main.",
    "Bob says: never push to main",
    "Bob says never push to main.",
    "Bob told me to never push to main.",
    "Never push to main, says Bob.",
    "According to Bob, we must never push to main.",
    'Bob said "never push to main".',
    'The page has this. "Never push to main. My name is Bob."',
    "The docs say: never push to main.",
    "Max schrieb: Pushe niemals nach main.",
    "Voici le mail de Bob : ne pousse jamais sur main.",
    "Bob escribió: nunca subas a main.",
    "Боб написал: никогда не пушь в main.",
    "```\nNever push to main.\n```",
    "Log:\nYou must always restart.",
    "2026-01-02 10:00:00 start\nNever retry the job.\n2026-01-02 10:00:01 end\nWhy?",
    "Nov 18 10:00:01 host app[12]: You must never retry.\nNov 18 10:00:02 host app[12]: The port is 80.",
    "He never works on Fridays.",
    "Remember that function from yesterday?",
    "Remember that function from yesterday.",
    "Forget that I use tabs.",
)


def proposed(message: str) -> list[str]:
    return [one.text for one in propose_from([Event(1, UserSaid(content=message))])]


@pytest.mark.parametrize("message", OWN)
def test_statements_of_the_user_are_proposed(message: str) -> None:
    assert proposed(message) == OWN[message]


@pytest.mark.parametrize("message", OF_OTHERS)
def test_words_of_others_are_not_proposed(message: str) -> None:
    assert proposed(message) == []
