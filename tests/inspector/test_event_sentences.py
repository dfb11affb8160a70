"""Sentences of the inspector about events that are no messages."""

from __future__ import annotations

import pytest

from foveal.core.log import Used
from foveal.inspector.timeline.event_sentences import event_sentence


@pytest.mark.parametrize(
    ("used", "sentence"),
    [
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
def test_the_sentence_of_usage_says_how_long_the_cache_keeps_what_was_written(
    used: Used, sentence: str
) -> None:
    assert event_sentence(used) == sentence
