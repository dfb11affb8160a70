"""The replay lab: needs, bills, statistics of policies, and `why`."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from foveal import replay
from foveal.cli import main
from foveal.context import Context
from foveal.core.log import (
    Call,
    Dropped,
    Event,
    Mask,
    Masked,
    ModelSaid,
    Rewound,
    Text,
    ToolReturned,
    Used,
    UserSaid,
    text_of,
)
from foveal.core.policies import policy
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting, FovealError
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.replay import (
    ORACLE_ARGUMENTS,
    MessageText,
    PromptCache,
    RelativePrices,
    ReplaySetting,
    RequestReader,
    Trace,
    answer_text,
    common_prefix_chars,
    contains_word,
    count_tokens,
    html_page,
    is_session_log,
    make_request,
    recorded_conversation,
    to_facts,
)
from foveal.replay.cache_cost import DEFAULT_PRICES
from foveal.replay.upper_bound import ORACLE
from foveal.replay.why import why
from foveal.sessions import Session
from foveal.stores import open_store
from foveal.transcripts import Transcript, UnreadableTranscript, read, write_events
from support import warm_start
from support.paths import RECORDED, TRANSCRIPTS

SMALL: Final[dict[str, Any]] = {"window": 6_000, "reserve": 500, "tokenizer": "estimate", "processes": 1}
BARE: Final = policy("rolling", name="bare", skeleton_share=0.0)
"""A policy whose placeholders keep nothing, so that what it masks is lost."""

Json = dict[str, Any]


# ── Conversations for the tests ─────────────────────────────────────────────────────────────────────────────


def call(number: int, **arguments: Any) -> Json:
    function = {"name": "shell", "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def result(number: int, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"c{number}", "name": "shell", "content": text}


def shelf(number: int, lines: int = 30) -> str:
    """Return a result with names that no other result has."""
    rows = (f"row {row} holds part_{number}_{row} in drawer {number * 100 + row}" for row in range(lines))
    return "\n".join(rows)


def workshop(steps: int = 24, *, back: int = 8, lines: int = 30) -> list[Json]:
    """Return a conversation whose agent looks at one shelf after the other and sometimes names a part from `back`
    results ago."""
    messages: list[Json] = [
        {"role": "system", "content": "You keep a workshop."},
        {"role": "user", "content": "Find every part that is missing."},
    ]
    for number in range(steps):
        wanted = f" and part_{number - back}_{lines // 2}" if number >= back and number % 2 else ""
        messages += [call(number, command=f"look{wanted}"), result(number, shelf(number, lines))]
    return [*messages, {"role": "assistant", "content": "Nothing is missing."}]


def transcript(messages: Sequence[Json], id: str = "workshop", title: str = "") -> Transcript:
    return Transcript(
        id=id, source="data", title=title or id, facts=tuple((fact, None) for fact in to_facts(messages))
    )


def without_times(rows: Sequence[replay.PolicyStatistics]) -> list[Json]:
    """Return the statistics without the times, which differ from run to run, and the names of the sources."""
    return [
        {k: v for k, v in row.values().items() if not k.startswith("own_") and k != "sources"} for row in rows
    ]


def by_name(rows: Sequence[replay.PolicyStatistics]) -> dict[str, replay.PolicyStatistics]:
    return {row.policy: row for row in rows}


# ── Needs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_string_quoted_from_an_earlier_result_is_a_need() -> None:
    found = replay.find_needs([call(1, command="ls"), result(1, "see src/lathe.py, 20417"), call(2, n=20417)])
    assert found == [
        replay.Need(call=2, kind="ident", text="20417", far=False, back=1, source=0, place=1),
    ]


def test_strings_of_user_and_system_messages_are_no_needs() -> None:
    messages = [
        {"role": "user", "content": "mend src/lathe.py"},
        call(1, command="ls"),
        result(1, "src/lathe.py"),
    ]
    assert replay.find_needs([*messages, call(2, path="src/lathe.py")]) == []
    assert (
        replay.find_needs(
            [{"role": "system", "content": "src/lathe.py"}, *messages[1:], call(2, path="src/lathe.py")]
        )
        == []
    )


def test_a_need_is_far_when_its_newest_source_is_six_results_back() -> None:
    messages: list[Json] = []
    for number in range(6):
        messages += [call(number, command="ls"), result(number, "part_0_7" if number == 0 else "nothing")]
    (near,) = replay.find_needs([*messages[:10], call(7, part="part_0_7")])
    (far,) = replay.find_needs([*messages, call(7, part="part_0_7")])
    assert (near.back, near.far, far.back, far.far) == (5, False, 6, True)


def test_the_source_is_the_newest_result_with_the_string() -> None:
    messages = [call(1), result(1, "part_0_7"), call(2), result(2, "part_0_7"), call(3), result(3, "no")]
    (need,) = replay.find_needs([*messages, call(4, part="part_0_7")])
    assert (need.source, need.place, need.back) == (1, 3, 2)


def test_whole_lines_of_24_characters_are_needs() -> None:
    messages = [call(1), result(1, "  12\t    return measure(lathe, oil)\n  13\tpass")]
    found = replay.find_needs([*messages, call(2, old="    return measure(lathe, oil)\npass")])
    assert [need.text for need in found if need.kind == "line"] == ["return measure(lathe, oil)"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("part_7", True), ("src/a", True), ("a.b.c", True), ("innerCapital", True), ("carpentry", True),
        ("12345", True), ("plain", False), ("ab_1", False), ("Plain", False),
    ],
)  # fmt: skip
def test_only_distinctive_names_are_needs(name: str, counts: bool) -> None:
    found = replay.find_needs([call(1), result(1, f"({name})"), call(2, what=name)])
    assert [need.text for need in found] == ([name] if counts else [])


def test_a_name_inside_a_longer_word_does_not_count() -> None:
    assert contains_word("x part_1 y", "part_1")
    assert not contains_word("x part_12 y", "part_1")
    assert contains_word("x part_12 part_1", "part_1")


def test_arguments_that_are_not_json_are_read_as_text() -> None:
    broken = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": "look at part_0_7"}}
    messages = [
        call(1),
        result(1, "part_0_7"),
        {"role": "assistant", "content": None, "tool_calls": [broken]},
    ]
    assert [need.text for need in replay.find_needs(messages)] == ["part_0_7"]


def test_facts_events_messages_and_recordings_have_the_same_needs() -> None:
    messages = workshop(10)
    facts = to_facts(messages)
    events = [Event(seq, fact) for seq, fact in enumerate(facts)]
    assert replay.find_needs(messages) == replay.find_needs(facts) == replay.find_needs(events)
    assert replay.find_needs(transcript(messages)) == replay.find_needs(messages) != []


def test_names_in_the_results_of_many_tasks_are_common() -> None:
    conversations = [
        [call(1, a="numpy.array"), result(1, "numpy.array"), call(2, a="numpy.array")] for _ in range(4)
    ]
    assert replay.common_names(conversations) == {"numpy.array"}
    assert replay.common_names(conversations[:3]) == frozenset()
    assert replay.find_needs(conversations[0], common=frozenset({"numpy.array"})) == []


def test_recordings_of_one_task_count_once_for_common_names() -> None:
    messages = [call(1, a="numpy.array"), result(1, "numpy.array")]
    assert (
        replay.common_names([transcript(messages, f"r{n}", title="the same") for n in range(9)])
        == frozenset()
    )


# ── Bills ────────────────────────────────────────────────────────────────────────────────────────────────


def cache(ttl: float = 300) -> PromptCache:
    return PromptCache(RequestReader("openai_chat", counter("estimate")), ttl=ttl)


def test_the_longest_shared_prefix_is_cached() -> None:
    one, two, three = MessageText(100, "one"), MessageText(50, "two"), MessageText(30, "next")
    provider = cache()
    assert provider.send(make_request([one, two]), now=0) == (150, 0, False)
    assert provider.send(make_request([one, two, three]), now=1) == (180, 150, False)
    assert provider.send(make_request([one, three]), now=2) == (130, 100, True)
    assert provider.send(make_request([one, three]), now=3) == (130, 130, False)


def test_the_common_beginning_of_the_first_different_message_is_cached() -> None:
    begin = "the lathe stands in the corner " * 10
    old, new = MessageText(100, begin + "and is oiled"), MessageText(100, begin + "and is dry")
    provider = cache()
    provider.send(make_request([old]), now=0)
    billed = provider.send(make_request([new]), now=1)
    assert billed.breaks_prefix
    assert 0 < billed.cached <= 100


def test_a_cache_is_empty_after_its_ttl() -> None:
    provider = cache(ttl=300)
    request = make_request([MessageText(100, "one")])
    provider.send(request, now=0)
    assert provider.send(request, now=300).cached == 100
    assert provider.send(request, now=601).cached == 0


def test_a_prefix_below_the_minimum_is_not_cached() -> None:
    assert DEFAULT_PRICES.bill(1_000, 800) == 280
    assert RelativePrices(0.1, 1.25, minimum=1_024).bill(1_000, 800) == 1_250


@pytest.mark.parametrize(
    ("one", "other", "same"), [("", "a", 0), ("abc", "abd", 2), ("ab", "abc", 2), ("x", "x", 1)]
)
def test_the_common_prefix_is_counted_in_characters(one: str, other: str, same: int) -> None:
    assert common_prefix_chars(one, other) == same


# ── Runs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_sending_everything_is_the_baseline() -> None:
    (row,) = replay.run([transcript(workshop())], [], bounds=False, **SMALL)
    assert (row.policy, row.bill, row.ident, row.ident_far, row.breaks, row.task) == (
        "everything",
        1,
        1,
        1,
        0,
        1,
    )
    assert row.calls == 25
    sizes = row.traces[0].sizes
    assert row.traces[0].cached == [0, *sizes[:-1]]
    assert all(one < other for one, other in pairwise(sizes))
    assert row.over == sum(size > 5_500 for size in sizes) > 0


def test_a_policy_is_billed_and_its_losses_name_the_hiding_event() -> None:
    rows = by_name(replay.run([transcript(workshop())], [BARE, "economy"], bounds=False, **SMALL))
    row = rows["bare"]
    assert row.over == 0
    assert row.peak <= 5_500
    assert row.breaks is not None
    assert row.breaks > 10
    assert row.ident_far is not None
    assert row.ident_far < 1
    assert row.reductions["masked"] > 1
    loss = row.traces[0].losses[0]
    assert (loss.kind, loss.far, loss.tool, loss.rule) == ("ident", True, "shell", "bare")
    assert loss.by.split()[1] in ("masked", "dropped")
    assert rows["economy"].over == 0


def test_the_handle_of_a_loss_leads_to_the_needed_text() -> None:
    messages = workshop()
    (_, row) = replay.run([transcript(messages)], [BARE], bounds=False, **SMALL)
    loss = row.traces[0].losses[0]
    ctx = Context("gpt-5", policy=BARE, window=6_000, reserve=500, tokenizer="estimate")
    before = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    for place in before[: loss.call]:
        ctx.fit(messages[:place])
    assert loss.text in ctx.original(loss.handle)
    assert ctx.why(loss.handle).level == loss.level


def test_a_call_that_cannot_fit_is_billed_in_full_and_loses_its_needs() -> None:
    rows = by_name(replay.run([transcript(workshop())], ["off"], bounds=False, **SMALL))
    assert rows["off"].over >= rows["everything"].over > 0
    assert rows["off"].bill == rows["everything"].bill == 1
    assert rows["off"].ident is not None
    assert rows["off"].ident < 1


def test_the_oracles_lose_nothing_fit_and_cost_less() -> None:
    rows = by_name(replay.run([transcript(workshop(lines=20))], [], **SMALL))
    for name in (ORACLE, ORACLE_ARGUMENTS):
        row = rows[name]
        assert (row.ident, row.over, row.task, row.latest) == (1, 0, 1, 1)
        assert row.bill is not None
        assert row.bill < 1


def test_the_number_of_processes_changes_only_the_times() -> None:
    recordings = [transcript(workshop(n), f"w{n}") for n in (6, 14, 10)]
    alone = replay.run(recordings, ["rolling"], **SMALL)
    seen: list[tuple[int, int]] = []
    together = replay.run(
        recordings, ["rolling"], **{**SMALL, "processes": 2}, progress=lambda *counts: seen.append(counts)
    )
    assert without_times(alone) == without_times(together)
    assert [trace.conversation for trace in together[0].traces] == ["w6", "w14", "w10"]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_conversations_can_be_excluded_from_recall() -> None:
    (row,) = replay.run([transcript(workshop())], [], no_recall=["work*"], bounds=False, **SMALL)
    assert row.needs == {"ident": 0, "ident_far": 0, "line": 0, "line_far": 0}
    assert row.ident is None


def test_recorded_pauses_expire_the_cache() -> None:
    facts = tuple((fact, 1_000.0 * n) for n, (fact, _) in enumerate(transcript(workshop(6)).facts))
    (row,) = replay.run(
        [Transcript(id="slow", source="data", facts=facts)], [], ttl=300, bounds=False, **SMALL
    )
    assert row.cached == 0
    assert row.bill is not None
    assert row.bill > 1


def test_tools_and_system_text_are_part_of_the_request() -> None:
    tools = [{"type": "function", "function": {"name": "shell", "parameters": {}}}]
    request = {"messages": workshop(3), "tools": tools, "instructions": "Speak softly. " * 50}
    (plain,) = replay.run([transcript(workshop(3))], [], bounds=False, **SMALL)
    (one,) = replay.load([write_json(request)])
    (row,) = replay.run([one], [], bounds=False, **SMALL)
    assert row.traces[0].sizes[0] > plain.traces[0].sizes[0] + 100
    assert recorded_conversation(one).calls[0].system == "Speak softly. " * 50


_folder: list[Path] = []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    _folder[:] = [tmp_path]


def write_json(value: object, name: str = "messages.json") -> Path:
    path = _folder[0] / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


# ── Inputs ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["codex", "claude_code", "pi"])
def test_recordings_of_other_products_are_replayed(name: str) -> None:
    recordings = replay.load([TRANSCRIPTS / f"{name}.jsonl"])
    row, economy = replay.run(recordings, ["economy"], bounds=False, **SMALL)
    assert row.calls == economy.calls > 1
    assert row.tokens > 0
    assert economy.over == 0


def test_message_lists_datasets_and_folders_are_replayed(tmp_path: Path) -> None:
    data = {"id": "w", "source": "us", "licence": "MIT", "messages": workshop(4), "meta": {"task": "t"}}
    (tmp_path / "data.jsonl").write_text(json.dumps(data) + "\n")
    write_json(workshop(4), "list.json")
    write_json([{"role": "tool", "tool_call_id": "x", "content": "no model here"}], "none.json")
    found = replay.load([tmp_path])
    assert sorted(one.source for one in found) == ["data", "openai"]
    assert without_times(replay.run(found[:1], **SMALL)) == without_times(replay.run(found[1:], **SMALL))


def test_sessions_are_replayed_from_a_store_and_from_an_export(tmp_path: Path) -> None:
    events = [Event(seq, fact, None) for seq, fact in enumerate(to_facts(workshop(4)))]
    export = tmp_path / "own.jsonl"
    export.write_bytes(b"".join(write_events(events, "w", "Workshop")))

    async def store_events() -> None:
        async with open_store(tmp_path / "chats.db") as store:
            await store.append("w", events)

    asyncio.run(store_events())
    (stored,), (exported,) = replay.load([tmp_path / "chats.db"]), replay.load([export])
    assert without_times(replay.run([stored], **SMALL)) == without_times(replay.run([exported], **SMALL))


def test_rewound_messages_are_not_replayed() -> None:
    (branch,) = (one for one in read(TRANSCRIPTS / "claude_code.jsonl") if one.id == "s-1")
    said = [
        text_of(fact.content) for fact in recorded_conversation(branch).facts if isinstance(fact, UserSaid)
    ]
    assert said == ["Count the apples", "Sell them"]


def test_a_sample_depends_on_its_seed_and_long_recordings_can_be_selected() -> None:
    recordings = [transcript(workshop(n), f"w{n}") for n in range(1, 9)]
    chosen = replay.select(recordings, limit=3, seed=7)
    assert chosen == replay.select(recordings, limit=3, seed=7)
    assert chosen != replay.select(recordings, limit=3, seed=8)
    enough = count_tokens(recordings[6])
    assert [one.id for one in replay.select(recordings, min_tokens=enough)] == ["w7", "w8"]


def test_a_conversation_is_in_the_same_half_wherever_it_is_stored() -> None:
    recordings = [transcript(workshop(2), f"miniswe/{n}") for n in range(8)]
    assert [zlib.crc32(one.id.encode()) % 2 for one in recordings] == [1, 1, 1, 1, 0, 0, 0, 0]
    halves = [replay.select(recordings, half="A"), replay.select(recordings, half="B")]
    assert halves == [recordings[4:], recordings[:4]]
    moved = [replace(one, path=f"/elsewhere/{one.id}.jsonl") for one in recordings]
    assert [replay.half_of(one) for one in moved] == [replay.half_of(one) for one in recordings]
    sample = replay.select(recordings, half="B", limit=2)
    assert len(sample) == 2
    assert all(one in halves[1] for one in sample)


def test_a_gzipped_data_set_keeps_the_ids_of_its_lines(tmp_path: Path) -> None:
    row = {"source": "us", "licence": "MIT", "messages": workshop(2), "meta": {}}
    lines = "".join(json.dumps({"id": f"shop/{n}", **row}) + "\n" for n in range(3))
    (tmp_path / "shop.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "sealed.bin").write_bytes(b"\x80\x81")
    (tmp_path / "defective.jsonl.gz").write_bytes(gzip.compress(b"no JSON\n"))
    skipped: list[UnreadableTranscript] = []
    found = replay.load([tmp_path], skipped=skipped.append)
    assert [(one.id, recorded_conversation(one).source) for one in found] == [
        (f"shop/{n}", "shop") for n in range(3)
    ]
    assert [Path(one.path).name for one in skipped] == ["defective.jsonl.gz"]


# ── Broken inputs ────────────────────────────────────────────────────────────────────────────────────────


def data_lines(count: int, *, padding: int = 0) -> bytes:
    """Return a data set with some conversations; padding that does not compress makes the file larger."""
    chance = random.Random(7)
    found = b""
    for number in range(count):
        messages = [*workshop(1), {"role": "user", "content": chance.randbytes(padding).hex()}]
        row = {"id": f"shop/{number}", "source": "us", "licence": "MIT", "messages": messages, "meta": {}}
        found += json.dumps(row).encode() + b"\n"
    return found


def damage(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


ZIPPED: Final = gzip.compress(data_lines(12, padding=2_000), mtime=0)
PRETTY: Final = json.dumps(workshop(1), indent=1).encode()
UNREADABLE: Final = {
    "text.json": (b"Dear diary,\n{not JSON", "text.json, line 1: this is not JSON"),
    "cut.json": (
        json.dumps(workshop(1)).encode()[:90],
        "cut.json, line 1: the JSON breaks off (byte 90 of the line)",
    ),
    "cut-lines.json": (PRETTY[:90], "cut-lines.json, line 8: the JSON breaks off (byte 4 of the line)"),
    "comma.json": (
        PRETTY.replace(b'"role": "user",', b'"role": "user"'),
        "comma.json, line 8: this is not JSON",
    ),
    "empty.jsonl": (b"", "empty.jsonl: the file is empty"),
    "binary.json": (bytes(range(256)), "binary.json, line 1: this is binary data"),
    "wide.json": ("[]".encode("utf-16"), "wide.json, line 1: the text is UTF-16; save it as UTF-8"),
    "latin.json": (
        '[{"role": "user", "content": "é"}]'.encode("latin-1"),
        "latin.json, line 1: 0xe9 is not UTF-8 (byte 30 of the line)",
    ),
    "no.jsonl.gz": (b"\x1f\x8bno gzip", "no.jsonl.gz: the compressed file is damaged before byte 9 ("),
    "other.json": (b'{"theme": "dark"}', "other.json, line 1: this is no known transcript format"),
    "other.db": (b"SQLite format 3\0 of another program", "other.db"),
}
"""Files of which nothing can be read: their content, and what is said about them."""
DAMAGED: Final = {
    "cut.jsonl.gz": (
        ZIPPED[: len(ZIPPED) // 2],
        f"the compressed file breaks off after {len(ZIPPED) // 2:,} bytes",
    ),
    "sum.jsonl.gz": (
        damage(ZIPPED, len(ZIPPED) - 8),
        f"damaged before byte {len(ZIPPED):,} (incorrect data check)",
    ),
    "flip.jsonl.gz": (damage(ZIPPED, len(ZIPPED) // 2), "the compressed file is damaged before byte "),
    "cut.jsonl": (data_lines(3)[:-40], "cut.jsonl, line 3: the JSON breaks off (byte "),
    "between.jsonl": (data_lines(1) + b"oops\nno\n" + data_lines(1), "line 2: this is not JSON"),
    "latin.jsonl": (
        data_lines(1) + b'{"id": "\xe9"}\n',
        "latin.jsonl, line 2: 0xe9 is not UTF-8 (byte 8 of the line)",
    ),
}
"""Files of which a part can be read."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = UNREADABLE[name]
    path, good = _folder[0] / name, write_json(workshop(1))
    path.write_bytes(content)
    with pytest.raises(FovealError):
        replay.load([path])
    assert main(["replay", str(path)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert main(["replay", str(path), str(good), "--policy", "off", "--no-bounds"]) == 1
    out, err = capsys.readouterr()
    assert "everything" in out
    assert words in err


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_replayed_in_part_and_says_where(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = DAMAGED[name]
    (_folder[0] / name).write_bytes(content)
    for given in (_folder[0] / name, _folder[0]):
        assert main(["replay", str(given), "--policy", "off", "--no-bounds", "--json"]) == 1
        out, err = capsys.readouterr()
        assert json.loads(out)["policies"][0]["conversations"] > 0
        assert (name in err, words in err, err.count("\n")) == (True, True, 1)


def test_a_damaged_file_names_its_first_problem_and_counts_the_others() -> None:
    (_folder[0] / "between.jsonl").write_bytes(DAMAGED["between.jsonl"][0])
    damaged: list[UnreadableTranscript] = []
    assert len(replay.load([_folder[0]], damaged=damaged.append)) == 2
    (problem,) = damaged
    assert problem.line == 2
    assert problem.problem.endswith("left out, and 1 line after it")


def test_whole_files_give_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    (_folder[0] / "whole.jsonl.gz").write_bytes(ZIPPED)
    assert main(["replay", str(_folder[0]), "--policy", "off", "--no-bounds"]) == 0
    assert capsys.readouterr().err == ""


# ── Policies ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sweep_combines_every_policy_with_every_value() -> None:
    found = replay.policy_choices(["economy", "rolling"], sweeps=["target=0.2,0.4", "clip.tokens=900"])
    assert [one.label for one in found] == [
        f"{name} target={target} clip.tokens=900" for name in ("economy", "rolling") for target in (0.2, 0.4)
    ]
    assert found[1].policy.target == 0.4
    assert found[0].policy.clip is not None
    assert (found[0].policy.clip.tokens, found[0].policy.clip.strategy) == (900, "smart")


def test_a_policy_can_be_a_table_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "foveal" / "foveal.toml"
    path.parent.mkdir()
    path.write_text("[policies.other]\nact_tokens = 5000\n[policies.mine]\npreset = 'plain'\ncut_at = 9000\n")
    tables = {"mine": {"preset": "plain", "cut_at": 9_000}}
    mine = policy("plain", cut_at=9_000, name="mine")
    assert [choice.policy for choice in replay.policy_choices(["mine"], tables=tables)] == [mine]
    assert [choice.label for choice in replay.policy_choices([path])] == ["other"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    recording = str(write_json(workshop()))
    assert main(["replay", recording, "--policy", "mine", "--json", "--no-bounds", *LIMITS]) == 0
    assert "mine" in [row["policy"] for row in json.loads(capsys.readouterr().out)["policies"]]
    path.write_text(f"context.policy = 'mine'\n{path.read_text()}")
    assert [choice.policy for choice in replay.policy_choices([path])] == [mine]


def test_a_policy_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text('preset = "economy"\ntarget = 0.1\n')
    (one,) = replay.policy_choices([str(path)])
    assert (one.label, one.policy.target, one.policy.ladder) == ("deep", 0.1, "economy")


@pytest.mark.parametrize(
    ("given", "sweeps", "words"),
    [
        (["thrifty"], [], "thrifty"),
        (["nowhere.toml"], [], "nowhere.toml"),
        (["economy"], ["colour=red"], "colour"),
        (["economy"], ["target"], "key=a,b,c"),
        (["economy"], ["target=7"], "target"),
    ],
)
def test_a_wrong_policy_or_sweep_is_reported_in_one_sentence(
    given: list[str], sweeps: list[str], words: str
) -> None:
    with pytest.raises(BadSetting, match=words):
        replay.policy_choices(given, sweeps=sweeps)


def test_a_summariser_must_be_importable() -> None:
    with pytest.raises(BadSetting, match="summariser"):
        replay.run([transcript(workshop(2))], summariser="no.such.module:function", **SMALL)


SUMMARISER: Final = """
def write(request):
    reply = {"message": {"role": "assistant", "content": "The workshop was searched, shelf by shelf."}}
    return {"choices": [reply], "usage": {"prompt_tokens": 4_000, "completion_tokens": 9}}
"""


def test_the_bill_includes_what_a_summariser_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    (_folder[0] / "scribe.py").write_text(SUMMARISER)
    monkeypatch.syspath_prepend(str(_folder[0]))
    messages = [transcript(workshop())]
    (_, ledger) = replay.run(messages, ["handoff"], bounds=False, **SMALL)
    (_, model) = replay.run(messages, ["handoff"], summariser="scribe:write", bounds=False, **SMALL)
    assert ledger.traces[0].summaries == (0, 0)
    assert model.traces[0].summaries[0] >= 4_000
    paid = sum(map(DEFAULT_PRICES.bill, model.traces[0].sizes, model.traces[0].cached))
    assert model.bill is not None
    assert model.bill > paid / sum(
        map(DEFAULT_PRICES.bill, model.traces[0].full_sizes, [0, *model.traces[0].full_sizes])
    )


# ── Windows ─────────────────────────────────────────────────────────────────────────────────────────


def test_several_windows_are_replayed_as_each_alone_and_pooled() -> None:
    recordings = [transcript(workshop(n), f"w{n}") for n in (6, 24)]
    alone = [replay.run(recordings, [BARE], **{**SMALL, "window": size}) for size in (6_000, 20_000)]
    together = replay.run(recordings, [BARE], **{**SMALL, "window": (6_000, 20_000, 6_000)})
    for row, *singles in zip(together, *alone, strict=True):
        assert [untimed(one) for one in row.traces] == [
            untimed(one) for single in singles for one in single.traces
        ]
        assert row.windows == [single.windows[0] for single in singles]
        assert [group.name for group in row.windows] == ["6,000", "20,000"]
        assert [(group.name, group.conversations) for group in row.strata] == [("≤ 1", 3), ("1–3", 1)]


def untimed(one: Trace) -> Trace:
    return replace(one, seconds=[])


def test_a_run_needs_a_window() -> None:
    with pytest.raises(BadSetting, match="window"):
        replay.run([transcript(workshop(2))], **{**SMALL, "window": ()})


# ── Output ──────────────────────────────────────────────────────────────────────────────────────────────


def rows_of_workshop() -> list[replay.PolicyStatistics]:
    return replay.run([transcript(workshop())], [BARE], **SMALL)


def test_the_table_has_a_row_for_each_policy_and_the_worst_losses() -> None:
    text = replay.table(rows_of_workshop(), losses=2)
    names = [line.split("  ")[0] for line in text.splitlines()]
    assert names.count("bare") == names.count("everything") == 3
    assert names.count(ORACLE) == 2
    assert names.count("oracle") == 1
    assert "pressure 1–3: 1 conversation, 25 calls, surprise of 8" in names
    assert "worst losses of bare:" in text
    assert "part_" in text


def test_the_json_has_all_statistics_and_losses() -> None:
    output = json.loads(replay.as_json(rows_of_workshop(), losses=3))
    assert [row["policy"] for row in output["policies"]] == ["everything", "bare", ORACLE, ORACLE_ARGUMENTS]
    figures = "calls tokens cached bill bill_model breaks peak over task latest own_p99 reductions"
    assert set(figures.split()) <= output["policies"][1].keys()
    (stratum,) = output["policies"][1]["strata"]
    assert (stratum["name"], stratum["conversations"], stratum["calls"]) == ("1–3", 1, 25)
    assert stratum["bill"].keys() == {"pooled", "mean", "worst"}
    assert output["leave_one_source_out"] is None
    assert len(output["losses"]) == 3
    assert output["losses"][0]["needs"] >= output["losses"][1]["needs"]


class Markup(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


EVIL: Final = '</code><script>alert("x_1")</script><img src=x onerror="y_2">'


def test_logged_text_is_escaped_and_the_page_loads_nothing() -> None:
    messages = workshop()
    for message in messages:
        if message["role"] == "tool":
            message["content"] = f"{EVIL}\n{message['content']}\n\ud800"
            message["name"] = EVIL
    messages[-2]["content"] += "\nend"
    messages += [call(99, text=f"{EVIL} part_1_3")]
    rows = replay.run(
        [transcript(messages, id=EVIL)], [{"preset": "rolling", "name": EVIL, "skeleton_share": 0.0}], **SMALL
    )
    text = html_page(rows, setting=ReplaySetting(window=6_000, reserve=500))
    text.encode()
    found = Markup()
    found.feed(text)
    assert found.open == []
    assert not found.tags & {"script", "img", "link", "iframe", "a"}
    assert not found.attributes & {"src", "href", "onerror", "onclick"}
    assert "http:" not in text.replace("http-equiv", "")
    assert any("<script>" in words for words in found.texts)


def test_the_page_shows_policies_conversations_and_losses() -> None:
    recordings = [transcript(workshop(n), f"messages {n}") for n in (12, 24)]
    rows = replay.run(recordings, ["economy", BARE], **SMALL)
    text = html_page(rows, setting=ReplaySetting(window=6_000, reserve=500))
    for words in ("economy", "bare", "everything", "messages 12", "messages 24", "worst losses", "part_"):
        assert words in text
    for words in ("By pressure", "pressure ≤ 1: 1 conversation, ", "pressure 1–3: 1 conversation, "):
        assert words in text
    assert 'class="limit"' in text
    assert text.count("<svg") == 5


def test_a_page_without_needs_or_losses_can_be_drawn() -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    text = html_page(
        replay.run([transcript(messages)], ["recent"], **SMALL), setting=ReplaySetting(window=6_000)
    )
    assert "Nothing was lost." in text


# ── Why ──────────────────────────────────────────────────────────────────────────────────────────────────

SETTING: Final = ReplaySetting(window=6_000, reserve=500, tokenizer="estimate")


REPLAYED: Final = "not what was sent, and handles are those of the replay"


def ask_why(number: int, text: str) -> tuple[bool, str]:
    found = why(transcript(workshop()), call=number, text=text, policy=BARE, setting=SETTING)
    return found.shown, answer_text(found)


def test_why_reports_where_a_text_is_shown() -> None:
    shown, answer = ask_why(3, "part_1_3")
    assert shown
    assert answer.splitlines() == [
        f"replayed with policy bare, model gpt-5, window 6,000: {REPLAYED}",
        "yes: the text is in the request of call 3 of 25",
        "  e6 tool_returned, from call 3 on: now full",
    ]


def test_why_reports_since_when_and_by_which_rule_a_text_is_hidden() -> None:
    first = next(call for call in range(5, 25) if not ask_why(call, "part_3_3 ")[0])
    shown, answer = ask_why(24, "part_3_3 ")
    assert not shown
    assert f"since call {first}, " in answer
    assert "rule bare" in answer


def test_why_reports_text_that_occurs_later_or_never() -> None:
    assert ask_why(2, "part_9_3")[1].endswith(
        "\nno: the text does not occur before call 2; it first occurs with call 10"
    )
    assert "nowhere" in ask_why(2, "a hovercraft")[1]


def test_why_examines_a_foveal_log_as_recorded() -> None:
    call = Call(id="c", name="look", arguments="{}")
    facts = [
        UserSaid(content="Look."),
        ModelSaid(content=(Text(text="I do."), call)),
        ToolReturned(call_id="c", content="a hammer"),
        ModelSaid(content="Seen."),
        UserSaid(content="And now?"),
        Masked(masks=(Mask(target=2, text="[masked]"),), reason="budget", rule="mine"),
        ModelSaid(content="Gone."),
    ]
    recording = Transcript(id="own", source="foveal", facts=tuple((fact, None) for fact in facts))
    assert is_session_log(recording)
    shown = why(recording, call=2, text="a hammer", policy=None, setting=SETTING)
    gone = why(recording, call=3, text="a hammer", policy=None, setting=SETTING)
    assert (shown.shown, gone.shown, gone.since) == (True, False, 3)
    (place,) = gone.places
    assert (place.handle, place.level, place.rule, place.by) == ("e2", "masked", "mine", "e5 masked (budget)")


def test_why_says_of_a_hidden_message_that_something_else_repeats_its_text() -> None:
    facts = [
        UserSaid(content="Look."),
        ModelSaid(content=(Call(id="c", name="look", arguments="{}"),)),
        ToolReturned(call_id="c", content="a hammer, and a long list"),
        ModelSaid(content="Seen."),
        Masked(masks=(Mask(target=2, text="[masked: a hammer]"),), reason="budget", rule="mine"),
        UserSaid(content="And now?"),
        ModelSaid(content="Gone."),
    ]
    recording = Transcript(id="own", source="foveal", facts=tuple((fact, None) for fact in facts))
    found = why(recording, call=3, text="a hammer", policy=None, setting=SETTING)
    assert answer_text(found).splitlines() == [
        "yes: the text is in the request of call 3 of 3, in what stands there for the messages that have it:",
        "  e2 tool_returned, from call 2 on: now masked by e4 masked (budget) (rule mine)",
    ]


def test_why_numbers_calls_as_the_inspector_numbers_requests() -> None:
    """Answers that an edit took back, and requests whose answers were lost, were sent all the same."""
    facts = [
        UserSaid(content="Look at the hammer."),
        ModelSaid(content="I do."),
        UserSaid(content="Once more."),
        ModelSaid(content="Taken back."),
        Rewound(to=1),
        UserSaid(content="And again."),
        Used(input=90, output=0, until=6),  # no answer came
        UserSaid(content="Are you there?"),
        ModelSaid(content="I am."),
        Dropped(ranges=((0, 1),), reason="budget", rule="mine"),
        UserSaid(content="And now?"),
        ModelSaid(content="Gone."),
        UserSaid(content="A nail."),
        ModelSaid(content="Where?"),
    ]
    recording = Transcript(id="own", source="foveal", facts=tuple((fact, None) for fact in facts))
    builder = TimelineBuilder(InspectedSettings(id="own", model="gpt-4.1"))
    builder.add(list(recording.events()))
    requests = builder.document().requests
    found = why(recording, call=None, text="hammer", policy=None, setting=SETTING)
    assert found.calls == found.call == len(requests) == 6
    first_without = next(row.number for row in requests if row.at > 9)
    assert (found.shown, found.since, found.places[0].call) == (False, first_without, 1)
    nail = why(recording, call=6, text="nail", policy=None, setting=SETTING)
    assert (nail.shown, nail.places[0].call) == (True, 6)
    assert why(recording, call=2, text="nail", policy=None, setting=SETTING).later == 5
    taken_back = why(recording, call=6, text="Once more", policy=None, setting=SETTING)
    assert (taken_back.shown, taken_back.since, taken_back.places[0].call) == (False, 3, 2)


def test_why_names_the_handles_of_a_log_whose_beginning_is_missing() -> None:
    facts = (
        UserSaid(content="A hammer."),
        ModelSaid(content="Where?"),
        Dropped(ranges=((7, 8),), reason="budget", rule="mine"),
        ModelSaid(content="Gone."),
    )
    recording = Transcript(id="own", source="foveal", facts=tuple((fact, None) for fact in facts), first=7)
    (place,) = why(recording, call=None, text="hammer", policy=None, setting=SETTING).places
    assert (place.handle, place.by) == ("e7", "e9 dropped (budget)")


def test_why_refuses_a_call_that_does_not_exist() -> None:
    with pytest.raises(FovealError, match="calls 1 to 25"):
        ask_why(26, "x")


# ── Command line ─────────────────────────────────────────────────────────────────────────────────────

LIMITS: Final = ("--window", "6000", "--reserve", "500")


def test_replay_prints_a_table_json_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, html = write_json(workshop()), tmp_path / "out.html"
    run = ("replay", str(path), "--policy", "economy", *LIMITS)
    assert main([*run, "--sweep", "target=0.2,0.4", "--html", str(html)]) == 0
    out, err = capsys.readouterr()
    assert "economy target=0.2" in out
    assert ORACLE in out
    assert "wrote" in err
    assert html.read_text().startswith("<!doctype html>")
    assert main([*run, "--json", "--no-bounds", "--progress"]) == 0
    out, err = capsys.readouterr()
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["everything", "economy"]
    assert "1 of 1" in err


def test_a_page_that_cannot_be_written_is_an_error_before_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_json(workshop())
    assert main(["replay", str(path), "--html", str(tmp_path / "missing" / "out.html"), "--progress"]) != 0
    err = capsys.readouterr().err
    assert "--html: there is no folder" in err
    assert "1 of 1" not in err


def test_the_window_of_an_unknown_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "messages.json"
    path.write_text(
        json.dumps([{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}])
    )
    run = ["replay", str(path), "--no-bounds", "--policy", "off", "--model", "nobody-knows-1"]
    assert main(run) == 0
    assert (
        "window of nobody-knows-1 is not known: it is taken to be 128,000 tokens" in capsys.readouterr().err
    )
    assert main([*run, "--window", "8000"]) == 0
    assert "not known" not in capsys.readouterr().err


@pytest.mark.long
def test_replay_compares_windows_on_one_half_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": f"miniswe/{n}", "source": "us", "licence": "MIT", "messages": workshop(14), "meta": {}}
        for n in range(8)
    ]
    for name, part in (("one.jsonl", rows[::2]), ("two.jsonl", rows[1::2])):
        (_folder[0] / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    run = ("replay", str(_folder[0]), "--policy", "economy", "--no-bounds", "--reserve", "500")
    options = ("--half", "A", "--window", "3500,5000", "--window", "50000", "--by-source")
    assert main([*run, *options, "--sweep", "target=0.2,0.4"]) == 0
    out, _ = capsys.readouterr()
    lines = [line.split("  ")[0] for line in out.splitlines()]
    assert [
        line for line in lines if ": " in line and line.split()[0] in ("pressure", "window", "source")
    ] == [
        "pressure ≤ 1: 4 conversations, 60 calls, surprise of 32",
        "pressure 1–3: 8 conversations, 120 calls, surprise of 64",
        "window 3,500: 4 conversations, 60 calls, surprise of 32",
        "window 5,000: 4 conversations, 60 calls, surprise of 32",
        "window 50,000: 4 conversations, 60 calls, surprise of 32",
        "source one: 6 conversations, 90 calls, surprise of 48",
        "source two: 6 conversations, 90 calls, surprise of 48",
        "source left out: best on others",
    ]
    assert [line.partition("=")[0] for line in lines if line.startswith(("one: ", "two: "))] == [
        "one: economy target",
        "two: economy target",
    ]
    assert main([*run, *options, "--json"]) == 0
    (everything, _) = json.loads(capsys.readouterr().out)["policies"]
    assert [group["name"] for group in everything["windows"]] == ["3,500", "5,000", "50,000"]


def test_common_names_do_not_depend_on_the_selection(capsys: pytest.CaptureFixture[str]) -> None:
    quote = [call(1, a="numpy.array"), result(1, "numpy.array"), call(2, a="numpy.array")]
    rows = [{"id": f"miniswe/{n}", "source": "", "meta": {}, "messages": quote} for n in range(8)]
    path = _folder[0] / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for option in (("--half", "A", "--limit", "3"), ("--only", "miniswe/1"), ("--long", "1")):
        assert main(["replay", str(path), "--json", "--no-bounds", "--policy", "off", *option]) == 0
        everything, _ = json.loads(capsys.readouterr().out)["policies"]
        assert everything["needs"]["ident"] == 0


def test_why_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path, bare = str(write_json(workshop())), _folder[0] / "bare.toml"
    bare.write_text('preset = "rolling"\nskeleton_share = 0.0\nkeep_first = 0\n')
    assert main(["why", path, "--call", "24", "--text", "part_0_3 ", "--policy", str(bare), *LIMITS]) == 1
    first, answer = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith("replayed with policy bare, model gpt-5, window 6,000: ")
    assert answer.startswith("no: the text is not in the request of call 24, since call ")
    assert main(["why", path, "--call", "2", "--text", "part_0_3 ", "--json", *LIMITS]) == 0
    assert json.loads(capsys.readouterr().out)["shown"] is True


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a store with a session that was sent whole, in a large window of a model that no table has."""

    async def record() -> None:
        async with open_store(tmp_path / "own.db") as store:
            session = await Session.open(store, "mine", model="my-model", window=400_000)
            await session.append(UserSaid(content="Find every part that is missing."))
            for number in range(12):
                await session.take(call(number), result(number, shelf(number)))
                request = await session.fit()
                await session.observe({"prompt_tokens": request.tokens, "completion_tokens": 10})
            await session.append(ModelSaid(content="Nothing is missing."))
            assert not (await session.report()).reduced

    asyncio.run(record())
    return tmp_path / "own.db"


def test_why_examines_a_session_without_reductions_as_recorded(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "mine", "part_9_3 ", "--store", str(stored)]) == 0
    yes, place = capsys.readouterr().out.splitlines()
    assert yes.startswith("yes: the text is in the request of call ")
    name = place.split()[0]
    assert main(["log", "mine", "--store", str(stored)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "part_9_0" in line]
    assert line.split()[0] == name
    assert main(["why", "mine", "part_9_3 ", "--store", str(stored), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"] == ""


@pytest.mark.parametrize(
    ("options", "about", "shown"),
    [
        (("--policy", "rolling"), "policy rolling, model my-model, window 400,000", True),
        (("--window", "3000"), "policy economy, model my-model, window 3,000", False),
        (("--model", "gpt-4.1"), "policy economy, model gpt-4.1, window 1,047,576", True),
    ],
)
def test_why_replays_a_session_only_if_asked_and_says_so_first(
    options: tuple[str, ...], about: str, shown: bool, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "mine", "part_1_3 ", "--store", str(stored), *options]) == int(not shown)
    answer = capsys.readouterr().out.splitlines()
    assert answer[0] == f"replayed with {about}: {REPLAYED}"
    assert answer[1].startswith("yes: " if shown else "no: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "nowhere"], "No such file"),
        (["replay", "."], "no file in it is a transcript"),
        (["replay", "messages.json", "--policy", "thrifty"], "policy"),
        (["replay", "messages.json", "--sweep", "colour=red"], "sweep"),
        (["replay", "messages.json", "--long", "1000000"], "--long"),
        (["replay", "messages.json", "--window", "-1"], "window"),
        (["replay", "messages.json", "--half", "B"], "--half"),
        (["replay", "messages.json", "--pace", "-1"], "pace"),
        (["replay", "messages.json", "--pace", "nan"], "pace"),
        (["replay", "messages.json", "--processes", "0"], "processes"),
        (["replay", "messages.json", "--losses", "-1"], "losses"),
        (["replay", "messages.json", "--limit", "-1"], "limit"),
        (["replay", "messages.json", "--long", "-1"], "tokens"),
        (["replay", "broken.json"], "broken.json"),
        (["why", "messages.json", "--call", "9", "--text", "x"], "calls 1 to 3"),
        (["why", "messages.json", "--call", "1", "--text", "x", "--conversation", "zz"], "--conversation"),
    ],
)
def test_an_error_is_reported_in_one_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "." not in arguments[1:2]:
        write_json(workshop(2))
        (tmp_path / "broken.json").write_text("{nothing")
    assert main(arguments) == (2 if arguments[0] == "why" else 1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.long
def test_replay_without_logs_uses_the_store(tmp_path: Path) -> None:
    env = {"FOVEAL_STORE": str(tmp_path / "none.db"), "PYTHONUTF8": "1"}
    done = warm_start.run(["-m", "foveal.cli", "replay"], env=env)
    assert (done.returncode, b"name the LOGS" in done.stderr) == (1, True)


def test_an_unreadable_file_raises() -> None:
    with pytest.raises(UnreadableTranscript):
        replay.load([_folder[0] / "nowhere.jsonl"])


def test_statistics_can_be_encoded_with_their_traces() -> None:
    assert msgspec.json.decode(msgspec.json.encode(rows_of_workshop()))[0]["policy"] == "everything"


# ── Recorded conversations ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
@pytest.mark.data
@pytest.mark.skipif(not RECORDED.exists(), reason="no recorded conversations beside the checkout")
def test_no_policy_overflows_on_real_conversations() -> None:
    recordings = replay.select(replay.load([RECORDED / "openhands.jsonl.gz"]), limit=3)
    rows = by_name(replay.run(recordings, ["economy", "recent"], window=32_000, reserve=4_000))
    assert (rows["everything"].ident, rows["everything"].line, rows["everything"].breaks) == (1, 1, 0)
    assert (rows[ORACLE].ident, rows[ORACLE].line, rows[ORACLE].over) == (1, 1, 0)
    assert rows["economy"].over == rows["recent"].over == 0
