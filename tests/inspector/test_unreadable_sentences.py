"""What users read about a summary that the model cannot read: inspector, chat and gateways."""

from __future__ import annotations

from foveal.agent.terminal.output.agent_event_rows import reduction_rows
from foveal.core.log.events import UNREADABLE, Compacted, Event
from foveal.inspector.timeline.event_sentences import event_sentence
from foveal.server.gateways.chat_commands import reduction_notes

RECORD = Event(
    9,
    Compacted(
        first=5,
        last=5,
        summary="[foveal: record]",
        by="ledger",
        reason=UNREADABLE,
        rule="gpt-4.1 cannot read e5",
        written_from=((2, 4),),
    ),
)
SHOWN = "a record of 3 messages from the log is shown instead"


def test_the_inspector_says_what_is_shown_instead() -> None:
    sentence = event_sentence(RECORD.fact)
    assert sentence == f"gpt-4.1 cannot read e5, a summary by a provider: {SHOWN}"


def test_the_chat_says_it_with_the_command_that_takes_it_back() -> None:
    (row,) = reduction_rows([RECORD], 100, 100)
    assert "".join(span.text for span in row) == f"▪ gpt-4.1 cannot read e5: {SHOWN} · /undo e9"


def test_a_gateway_says_it_apart_from_other_summaries() -> None:
    other = Event(12, Compacted(first=6, last=8, summary="In short.", reason="tokens"))
    notes = reduction_notes([RECORD, other])
    assert any(SHOWN in note and "/undo" in note for note in notes)
    assert len(notes) == 2
