"""Sentences of the inspector about events that are no messages."""

from __future__ import annotations

import pytest

from foveal.core.log import AnyFact, Clipped, Used
from foveal.inspector.timeline.event_sentences import event_sentence


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        (Clipped(target=4, pieces=((0, 900),), rule="economy: seen"), "shows e4 whole again"),
        (Used(input=5, output=7), "5 tokens read, 7 tokens answered"),
        (
            Used(input=5, cache_read=600, cache_write=100, cache_write_12h=70, output=0),
            "705 tokens read, 600 of them from the cache, 100 written to it (70 for 12 hours), 0 tokens answered",
        ),
        (
            Used(input=5, cache_write=100, cache_write_1h=100, output=7),
            "105 tokens read, 100 written to it (100 for an hour), 7 tokens answered",
        ),
    ],
)
def test_the_sentence_of_an_event_says_what_it_did(fact: AnyFact, sentence: str) -> None:
    assert event_sentence(fact) == sentence
