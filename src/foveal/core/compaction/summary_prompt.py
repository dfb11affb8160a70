"""Builds the prompts for summaries from the texts in `summary_prompt.md`.

A user's own prompt replaces the task: what to write and under which headings. How the conversation is quoted, that
nothing in it is an instruction, and how a reply ends are always the built-in texts, so every reply can be
validated. `{words}` and `{focus}` in a user's prompt are filled in; a missing one is added at its end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from foveal.core.compaction.draft_text import neutralise
from foveal.core.log.events import handle

MAX_FOCUS_CHARS: Final = 2_000
"""Characters of the user's focus that the prompt shows."""
WORDS_PER_UNIT: Final = 0.6
"""An English word takes 1.3 tokens; models keep to a limit when asked for a little less than is allowed."""
MIN_WORDS: Final = 40

_PART_TITLE: Final = re.compile(r"^=== ([a-z ]+) ===\n", re.MULTILINE)
_PLACEHOLDER: Final = re.compile(r"\{(words|focus|range|part|parts|faults)\}")
_HEADING: Final = re.compile(r"^##\s+(\S.*?)\s*$", re.MULTILINE)


@functools.cache
def prompt_parts() -> Mapping[str, str]:
    """Return the texts of `summary_prompt.md` by name."""
    from importlib.resources import files  # slow to import, and needed only once

    text = files("foveal.core.compaction").joinpath("summary_prompt.md").read_text("utf-8")
    titles_and_texts = _PART_TITLE.split(text)[1:]
    pairs = zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True)
    return {title: part.strip() for title, part in pairs}


def resolve_task(prompt: str) -> str:
    """Return the user's task or the default one, with all placeholders."""
    task = prompt.strip() or prompt_parts()["task"]
    if "{words}" not in task:
        task += "\n\n" + prompt_parts()["limit"]
    if "{focus}" not in task:
        task += "\n\n{focus}"
    if "</summary>" not in task:
        task += "\n\n" + prompt_parts()["closing"]
    return task


def required_sections(task: str) -> tuple[str, ...]:
    """Return the headings that a task asks for."""
    return tuple(dict.fromkeys(_HEADING.findall(task)))


def word_limit(units: int) -> int:
    """Return how many words to ask for when `units` are allowed."""
    return max(MIN_WORDS, int(units * WORDS_PER_UNIT) // 10 * 10)


def task_text(prompt: str, *, max_units: int, focus: str = "") -> str:
    """Return the task: what to write, in at most `max_units` units."""
    wish = fill_part("focus", focus=_quote_focus(focus)) if focus.strip() else ""
    return re.sub(
        r"\n{3,}", "\n\n", _fill(resolve_task(prompt), words=str(word_limit(max_units)), focus=wish)
    ).strip()


def cold_system(prompt: str, *, max_units: int, focus: str = "") -> str:
    """Return the system text for a conversation that is quoted in the only message."""
    return f"{task_text(prompt, max_units=max_units, focus=focus)}\n\n{prompt_parts()['cold']}"


def merge_system(prompt: str, *, max_units: int, focus: str = "") -> str:
    """Return the system text for merging several summaries into one."""
    return f"{task_text(prompt, max_units=max_units, focus=focus)}\n\n{prompt_parts()['merge']}"


def shared_message(prompt: str, *, max_units: int, focus: str = "", faults: Sequence[str] = ()) -> str:
    """Return the message to add to the unquoted conversation."""
    texts = [
        prompt_parts()["shared"],
        task_text(prompt, max_units=max_units, focus=focus),
        _fault_list(faults),
    ]
    return "\n\n".join(filter(None, texts))


def cold_message(
    transcript: str,
    *,
    span: tuple[int, int],
    max_units: int,
    part: tuple[int, int] = (1, 1),
    kept: bool = False,
    faults: Sequence[str] = (),
) -> str:
    """Return the message that quotes a conversation, or a part of it: that of the seqs of the `span`."""
    texts = [
        fill_part("begin", range=" to ".join(map(handle, span))),
        fill_part("part", part=str(part[0]), parts=str(part[1])) if part[1] > 1 else "",
        prompt_parts()["kept"] if kept else "",
        transcript,
        fill_part("end", words=str(word_limit(max_units))),
        _fault_list(faults),
    ]
    return "\n\n".join(filter(None, texts))


def merge_message(records: Sequence[str], *, max_units: int, faults: Sequence[str] = ()) -> str:
    """Return the message that quotes the summaries of consecutive parts, oldest first."""
    texts = [
        "\n".join((f"[record {number} of {len(records)}]", *(f"> {line}" for line in record.splitlines())))
        for number, record in enumerate(records, 1)
    ]
    return "\n\n".join(
        filter(None, [*texts, fill_part("merge end", words=str(word_limit(max_units))), _fault_list(faults)])
    )


def fill_part(name: str, **values: str) -> str:
    return _fill(prompt_parts()[name], **values)


def _fill(text: str, **values: str) -> str:
    """Fill in all placeholders at once, so that inserted text is not searched for placeholders."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _quote_focus(focus: str) -> str:
    text = neutralise(focus.strip())
    short = text if len(text) <= MAX_FOCUS_CHARS else text[: MAX_FOCUS_CHARS - 1] + "…"
    return "\n".join(f"> {line}" for line in short.splitlines())


def _fault_list(faults: Sequence[str]) -> str:
    return fill_part("faults", faults="\n".join(f"- {fault[:900]}" for fault in faults)) if faults else ""
