"""What a harness puts into the user role does not take the room of the user's words."""

from __future__ import annotations

import pytest

from foveal import Context
from foveal.core.compaction.ledger.pasted_text import is_harness_text
from support.histories import ESTIMATE, Json, plain_model, user


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<system-reminder>The file was changed.</system-reminder>", True),
        (
            "<local-command-stdout>ok</local-command-stdout>\n<local-command-caveat>no</local-command-caveat>",
            True,
        ),
        ("[read_file for 'a.py'] Result:\nimport os", True),
        ("Base directory for this skill: /skills/review", True),
        ("[read_file for 'a.py'] Result:\n<feedback>Never push.</feedback>", False),
        ("<system-reminder>The file was changed.</system-reminder> Never push to main.", False),
        ("<system-reminder>without an end. Never push to main.", False),
        ("<task>Never push to main.</task>", False),
        ("Never push to main.", False),
        ("", False),
    ],
)
def test_only_a_message_that_is_all_of_the_harness_counts_as_its_own(text: str, expected: bool) -> None:
    assert is_harness_text(text) is expected


def test_reminders_do_not_displace_what_the_user_said() -> None:
    ctx = Context(plain_model(4_000), tokenizer=ESTIMATE)
    messages: list[Json] = [user("Mend the build.")]
    said = [f"Point {number}: the parser of part {number} is right as it is." for number in range(12)]
    request: list[Json] = []
    for number, words in enumerate(said):
        messages += [user(words), {"role": "assistant", "content": "Noted. " * 60}]
        reminder = f"<system-reminder>{f'Rule {number} of the harness. ' * 60}</system-reminder>"
        messages += [user(reminder), {"role": "assistant", "content": "Yes. " * 60}]
        request = ctx.fit(messages)
    request = ctx.fit([*messages, user("Go on.")])
    shown = [message["content"] for message in request]
    assert len(request) < len(messages)
    assert [words for words in said if words not in shown] == []
