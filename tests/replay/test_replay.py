"""The replay lab: what it counts, how it bills, and what it says of a policy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from foveal import replay
from foveal.apps.cli import main
from foveal.context import Context
from foveal.core.log import Call as Asked
from foveal.core.log import Event, Mask, Masked, ModelSaid, Text, ToolReturned, UserSaid, text_of
from foveal.core.policies import policy
from foveal.core.tokens.counter import counter
from foveal.errors import BadSetting, FovealError
from foveal.replay import (
    ORACLE_ARGUMENTS,
    MessageText,
    PromptCache,
    RelativePrices,
    ReplaySetting,
    RequestReader,
    answer_text,
    common_prefix,
    conversation,
    facts_of,
    page,
    reduced,
    stands,
    tokens,
    whole,
)
from foveal.replay.cache_cost import PLAIN
from foveal.replay.upper_bound import ORACLE
from foveal.replay.why import why
from foveal.stores import open_store
from foveal.transcripts import Transcript, UnreadableTranscript, read, write_events
from support.paths import RECORDED, TRANSCRIPTS

HERE: Final = TRANSCRIPTS
DATA: Final = RECORDED
SMALL: Final[dict[str, Any]] = {"window": 6_000, "reserve": 500, "tokenizer": "estimate", "processes": 1}
BARE: Final = policy("rolling", name="bare", skeleton_share=0.0)
"""A policy whose placeholders keep nothing, so that what it masks is lost."""

Json = dict[str, Any]


# ── conversations of our own ─────────────────────────────────────────────────────────────────────────────


def asks(number: int, **arguments: Any) -> Json:
    call = {"name": "shell", "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
    }


def returned(number: int, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"c{number}", "name": "shell", "content": text}


def shelf(number: int, lines: int = 30) -> str:
    """A result with names that no other result has."""
    rows = (f"row {row} holds part_{number}_{row} in drawer {number * 100 + row}" for row in range(lines))
    return "\n".join(rows)


def workshop(steps: int = 24, *, back: int = 8, lines: int = 30) -> list[Json]:
    """An agent that looks at one shelf after the other, and from time to time asks for a part that it saw `back`
    results ago."""
    messages: list[Json] = [
        {"role": "system", "content": "You keep a workshop."},
        {"role": "user", "content": "Find every part that is missing."},
    ]
    for number in range(steps):
        wanted = f" and part_{number - back}_{lines // 2}" if number >= back and number % 2 else ""
        messages += [asks(number, command=f"look{wanted}"), returned(number, shelf(number, lines))]
    return [*messages, {"role": "assistant", "content": "Nothing is missing."}]


def recorded(messages: Sequence[Json], id: str = "workshop", title: str = "") -> Transcript:
    return Transcript(
        id=id, source="data", title=title or id, facts=tuple((fact, None) for fact in facts_of(messages))
    )


def quick(rows: Sequence[replay.PolicyStatistics]) -> list[Json]:
    """Figures without the times, which differ from run to run."""
    return [{k: v for k, v in row.values().items() if not k.startswith("own_")} for row in rows]


def by_name(rows: Sequence[replay.PolicyStatistics]) -> dict[str, replay.PolicyStatistics]:
    return {row.policy: row for row in rows}


# ── needs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_call_quotes_from_an_earlier_result_is_a_need() -> None:
    found = replay.needs([asks(1, command="ls"), returned(1, "see src/lathe.py, 20417"), asks(2, n=20417)])
    assert found == [
        replay.Need(call=2, kind="ident", text="20417", far=False, back=1, source=0, place=1),
    ]


def test_what_the_user_or_the_system_said_is_no_need() -> None:
    talk = [
        {"role": "user", "content": "mend src/lathe.py"},
        asks(1, command="ls"),
        returned(1, "src/lathe.py"),
    ]
    assert replay.needs([*talk, asks(2, path="src/lathe.py")]) == []
    assert (
        replay.needs([{"role": "system", "content": "src/lathe.py"}, *talk[1:], asks(2, path="src/lathe.py")])
        == []
    )


def test_a_need_is_far_when_its_newest_source_is_six_results_back() -> None:
    talk: list[Json] = []
    for number in range(6):
        talk += [asks(number, command="ls"), returned(number, "part_0_7" if number == 0 else "nothing")]
    (near,) = replay.needs([*talk[:10], asks(7, part="part_0_7")])
    (far,) = replay.needs([*talk, asks(7, part="part_0_7")])
    assert (near.back, near.far, far.back, far.far) == (5, False, 6, True)


def test_the_source_is_the_newest_result_that_has_it() -> None:
    talk = [asks(1), returned(1, "part_0_7"), asks(2), returned(2, "part_0_7"), asks(3), returned(3, "no")]
    (need,) = replay.needs([*talk, asks(4, part="part_0_7")])
    assert (need.source, need.place, need.back) == (1, 3, 2)


def test_whole_lines_of_24_characters_are_needs_whatever_stands_around_them() -> None:
    talk = [asks(1), returned(1, "  12\t    return measure(lathe, oil)\n  13\tpass")]
    found = replay.needs([*talk, asks(2, old="    return measure(lathe, oil)\npass")])
    assert [need.text for need in found if need.kind == "line"] == ["return measure(lathe, oil)"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("part_7", True), ("src/a", True), ("a.b.c", True), ("innerCapital", True), ("carpentry", True),
        ("12345", True), ("plain", False), ("ab_1", False), ("Plain", False),
    ],
)  # fmt: skip
def test_only_names_that_tell_something_are_needs(name: str, counts: bool) -> None:
    found = replay.needs([asks(1), returned(1, f"({name})"), asks(2, what=name)])
    assert [need.text for need in found] == ([name] if counts else [])


def test_a_name_inside_a_longer_word_does_not_stand_there() -> None:
    assert stands("x part_1 y", "part_1")
    assert not stands("x part_12 y", "part_1")
    assert stands("x part_12 part_1", "part_1")


def test_arguments_that_are_no_json_are_read_as_text() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "shell", "arguments": "look at part_0_7"}}
    talk = [asks(1), returned(1, "part_0_7"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert [need.text for need in replay.needs(talk)] == ["part_0_7"]


def test_facts_events_messages_and_recordings_have_the_same_needs() -> None:
    messages = workshop(10)
    facts = facts_of(messages)
    events = [Event(seq, fact) for seq, fact in enumerate(facts)]
    assert replay.needs(messages) == replay.needs(facts) == replay.needs(events)
    assert replay.needs(recorded(messages)) == replay.needs(messages) != []


def test_names_in_the_results_of_many_tasks_are_common() -> None:
    talks = [
        [asks(1, a="numpy.array"), returned(1, "numpy.array"), asks(2, a="numpy.array")] for _ in range(4)
    ]
    assert replay.vocabulary(talks) == {"numpy.array"}
    assert replay.vocabulary(talks[:3]) == frozenset()
    assert replay.needs(talks[0], common=frozenset({"numpy.array"})) == []


def test_recordings_of_one_task_count_once_for_the_vocabulary() -> None:
    talk = [asks(1, a="numpy.array"), returned(1, "numpy.array")]
    assert replay.vocabulary([recorded(talk, f"r{n}", title="the same") for n in range(9)]) == frozenset()


# ── bills ────────────────────────────────────────────────────────────────────────────────────────────────


def cache(ttl: float = 300) -> PromptCache:
    return PromptCache(RequestReader("openai_chat", counter("estimate")), ttl=ttl)


def test_the_longest_prefix_of_the_request_before_is_cached() -> None:
    one, two, three = MessageText(100, "one"), MessageText(50, "two"), MessageText(30, "next")
    provider = cache()
    assert provider.send(whole([one, two]), now=0) == (150, 0, False)
    assert provider.send(whole([one, two, three]), now=1) == (180, 150, False)
    assert provider.send(whole([one, three]), now=2) == (130, 100, True)
    assert provider.send(whole([one, three]), now=3) == (130, 130, False)


def test_of_the_first_message_that_differs_the_same_beginning_is_cached() -> None:
    begin = "the lathe stands in the corner " * 10
    old, new = MessageText(100, begin + "and is oiled"), MessageText(100, begin + "and is dry")
    provider = cache()
    provider.send(whole([old]), now=0)
    billed = provider.send(whole([new]), now=1)
    assert billed.broke
    assert 0 < billed.cached <= 100


def test_a_cache_that_was_idle_for_longer_than_its_ttl_is_empty() -> None:
    provider = cache(ttl=300)
    request = whole([MessageText(100, "one")])
    provider.send(request, now=0)
    assert provider.send(request, now=300).cached == 100
    assert provider.send(request, now=601).cached == 0


def test_a_prefix_below_the_minimum_is_paid_in_full() -> None:
    assert PLAIN.bill(1_000, 800) == 280
    assert RelativePrices(0.1, 1.25, minimum=1_024).bill(1_000, 800) == 1_250


@pytest.mark.parametrize(
    ("one", "other", "same"), [("", "a", 0), ("abc", "abd", 2), ("ab", "abc", 2), ("x", "x", 1)]
)
def test_common_prefix(one: str, other: str, same: int) -> None:
    assert common_prefix(one, other) == same


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_sending_everything_is_the_measure() -> None:
    (row,) = replay.run([recorded(workshop())], [], bounds=False, **SMALL)
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


def test_a_policy_is_billed_searched_and_its_losses_name_the_event_that_hid_the_result() -> None:
    rows = by_name(replay.run([recorded(workshop())], [BARE, "economy"], bounds=False, **SMALL))
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


def test_the_handle_of_a_loss_leads_to_what_was_needed() -> None:
    talk = workshop()
    (_, row) = replay.run([recorded(talk)], [BARE], bounds=False, **SMALL)
    loss = row.traces[0].losses[0]
    ctx = Context("gpt-5", policy=BARE, window=6_000, reserve=500, tokenizer="estimate")
    before = [n for n, message in enumerate(talk) if message["role"] == "assistant"]
    for place in before[: loss.call]:
        ctx.fit(talk[:place])
    assert loss.text in ctx.original(loss.handle)
    assert ctx.why(loss.handle).level == loss.level


def test_a_call_that_cannot_fit_is_billed_like_everything_and_loses_what_it_needed() -> None:
    rows = by_name(replay.run([recorded(workshop())], ["off"], bounds=False, **SMALL))
    assert rows["off"].over >= rows["everything"].over > 0
    assert rows["off"].bill == rows["everything"].bill == 1
    assert rows["off"].ident is not None
    assert rows["off"].ident < 1


def test_who_knows_the_future_forgets_nothing_fits_and_pays_less() -> None:
    rows = by_name(replay.run([recorded(workshop(lines=20))], [], **SMALL))
    for name in (ORACLE, ORACLE_ARGUMENTS):
        row = rows[name]
        assert (row.ident, row.over, row.task, row.latest) == (1, 0, 1, 1)
        assert row.bill is not None
        assert row.bill < 1


def test_the_number_of_processes_changes_nothing_but_the_times() -> None:
    recordings = [recorded(workshop(n), f"w{n}") for n in (6, 14, 10)]
    alone = replay.run(recordings, ["rolling"], **SMALL)
    seen: list[tuple[int, int]] = []
    together = replay.run(
        recordings, ["rolling"], **{**SMALL, "processes": 2}, progress=lambda *told: seen.append(told)
    )
    assert quick(alone) == quick(together)
    assert [trace.conversation for trace in together[0].traces] == ["w6", "w14", "w10"]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_needs_of_agents_that_did_not_see_their_history_can_be_left_out() -> None:
    (row,) = replay.run([recorded(workshop())], [], no_recall=["work*"], bounds=False, **SMALL)
    assert row.needs == {"ident": 0, "ident_far": 0, "line": 0, "line_far": 0}
    assert row.ident is None


def test_a_policy_knows_the_pauses_that_were_recorded() -> None:
    facts = tuple((fact, 1_000.0 * n) for n, (fact, _) in enumerate(recorded(workshop(6)).facts))
    (row,) = replay.run(
        [Transcript(id="slow", source="data", facts=facts)], [], ttl=300, bounds=False, **SMALL
    )
    assert row.cached == 0
    assert row.bill is not None
    assert row.bill > 1


def test_tools_and_system_text_are_part_of_the_request() -> None:
    tools = [{"type": "function", "function": {"name": "shell", "parameters": {}}}]
    request = {"messages": workshop(3), "tools": tools, "instructions": "Speak softly. " * 50}
    (plain,) = replay.run([recorded(workshop(3))], [], bounds=False, **SMALL)
    (one,) = replay.load([written(request)])
    (row,) = replay.run([one], [], bounds=False, **SMALL)
    assert row.traces[0].sizes[0] > plain.traces[0].sizes[0] + 100
    assert conversation(one).calls[0].system == "Speak softly. " * 50


_folder: list[Path] = []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    _folder[:] = [tmp_path]


def written(value: object, name: str = "talk.json") -> Path:
    path = _folder[0] / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["codex", "claude_code", "pi"])
def test_recordings_of_other_products_are_replayed(name: str) -> None:
    recordings = replay.load([HERE / f"{name}.jsonl"])
    row, economy = replay.run(recordings, ["economy"], bounds=False, **SMALL)
    assert row.calls == economy.calls > 1
    assert row.tokens > 0
    assert economy.over == 0


def test_lists_of_messages_lines_of_the_data_set_and_folders_are_replayed(tmp_path: Path) -> None:
    data = {"id": "w", "source": "us", "licence": "MIT", "messages": workshop(4), "meta": {"task": "t"}}
    (tmp_path / "data.jsonl").write_text(json.dumps(data) + "\n")
    written(workshop(4), "list.json")
    written([{"role": "tool", "tool_call_id": "x", "content": "no model here"}], "none.json")
    found = replay.load([tmp_path])
    assert sorted(one.source for one in found) == ["data", "openai"]
    assert quick(replay.run(found[:1], **SMALL)) == quick(replay.run(found[1:], **SMALL))


def test_our_own_sessions_are_replayed_from_a_store_and_from_their_export(tmp_path: Path) -> None:
    events = [Event(seq, fact, None) for seq, fact in enumerate(facts_of(workshop(4)))]
    export = tmp_path / "own.jsonl"
    export.write_bytes(b"".join(write_events(events, "w", "Workshop")))

    async def keep() -> None:
        async with open_store(tmp_path / "chats.db") as store:
            await store.append("w", events)

    asyncio.run(keep())
    (stored,), (exported,) = replay.load([tmp_path / "chats.db"]), replay.load([export])
    assert quick(replay.run([stored], **SMALL)) == quick(replay.run([exported], **SMALL))


def test_what_was_rewound_is_not_replayed() -> None:
    (branch,) = (one for one in read(HERE / "claude_code.jsonl") if one.id == "s-1")
    said = [text_of(fact.content) for fact in conversation(branch).facts if isinstance(fact, UserSaid)]
    assert said == ["Count the apples", "Sell them"]


def test_a_sample_is_the_same_for_the_same_seed_and_long_ones_can_be_chosen() -> None:
    recordings = [recorded(workshop(n), f"w{n}") for n in range(1, 9)]
    chosen = replay.choose(recordings, limit=3, seed=7)
    assert chosen == replay.choose(recordings, limit=3, seed=7)
    assert chosen != replay.choose(recordings, limit=3, seed=8)
    enough = tokens(recordings[6])
    assert [one.id for one in replay.choose(recordings, long=enough)] == ["w7", "w8"]


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sweep_is_every_policy_with_every_combination_of_values() -> None:
    found = replay.policy_choices(["economy", "rolling"], sweeps=["target=0.2,0.4", "clip.tokens=900"])
    assert [one.label for one in found] == [
        f"{name} target={target} clip.tokens=900" for name in ("economy", "rolling") for target in (0.2, 0.4)
    ]
    assert found[1].policy.target == 0.4
    assert found[0].policy.clip is not None
    assert (found[0].policy.clip.tokens, found[0].policy.clip.strategy) == (900, "smart")


def test_a_policy_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text('preset = "economy"\ntarget = 0.1\n')
    (one,) = replay.policy_choices([str(path)])
    assert (one.label, one.policy.target, one.policy.ladder) == ("deep", 0.1, "economy")


@pytest.mark.parametrize(
    ("given", "sweeps", "told"),
    [
        (["thrifty"], [], "thrifty"),
        (["nowhere.toml"], [], "nowhere.toml"),
        (["economy"], ["colour=red"], "colour"),
        (["economy"], ["target"], "key=a,b,c"),
        (["economy"], ["target=7"], "target"),
    ],
)
def test_a_wrong_policy_or_sweep_is_told_in_one_sentence(
    given: list[str], sweeps: list[str], told: str
) -> None:
    with pytest.raises(BadSetting, match=told):
        replay.policy_choices(given, sweeps=sweeps)


def test_a_summariser_must_be_something_that_can_be_imported() -> None:
    with pytest.raises(BadSetting, match="summariser"):
        replay.run([recorded(workshop(2))], summariser="no.such.module:function", **SMALL)


SUMMARISER: Final = """
def write(request):
    reply = {"message": {"role": "assistant", "content": "The workshop was searched, shelf by shelf."}}
    return {"choices": [reply], "usage": {"prompt_tokens": 4_000, "completion_tokens": 9}}
"""


def test_what_a_summariser_reads_is_on_the_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    (_folder[0] / "scribe.py").write_text(SUMMARISER)
    monkeypatch.syspath_prepend(str(_folder[0]))
    talk = [recorded(workshop())]
    (_, ledger) = replay.run(talk, ["handoff"], bounds=False, **SMALL)
    (_, model) = replay.run(talk, ["handoff"], summariser="scribe:write", bounds=False, **SMALL)
    assert ledger.traces[0].summaries == (0, 0)
    assert model.traces[0].summaries[0] >= 4_000
    paid = sum(map(PLAIN.bill, model.traces[0].sizes, model.traces[0].cached))
    assert model.bill is not None
    assert model.bill > paid / sum(map(PLAIN.bill, model.traces[0].ideal, [0, *model.traces[0].ideal]))


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────


def rows_of_workshop() -> list[replay.PolicyStatistics]:
    return replay.run([recorded(workshop())], [BARE], **SMALL)


def test_the_table_has_a_row_for_each_policy_and_the_worst_losses() -> None:
    text = replay.table(rows_of_workshop(), losses=2)
    names = [line.split("  ")[0] for line in text.splitlines()]
    assert names.count("bare") == names.count("everything") == names.count(ORACLE) == 2
    assert "worst losses of bare:" in text
    assert "part_" in text


def test_the_json_has_all_figures_and_losses() -> None:
    told = json.loads(replay.as_json(rows_of_workshop(), losses=3))
    assert [row["policy"] for row in told["policies"]] == ["everything", "bare", ORACLE, ORACLE_ARGUMENTS]
    figures = "calls tokens cached bill bill_model breaks peak over task latest own_p99 reductions"
    assert set(figures.split()) <= told["policies"][1].keys()
    assert len(told["losses"]) == 3
    assert told["losses"][0]["needs"] >= told["losses"][1]["needs"]


class Markup(HTMLParser):
    """The tags and attributes of a page."""

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


def test_nothing_from_a_log_becomes_markup_and_the_page_loads_nothing() -> None:
    talk = workshop()
    for message in talk:
        if message["role"] == "tool":
            message["content"] = f"{EVIL}\n{message['content']}\n\ud800"
            message["name"] = EVIL
    talk[-2]["content"] += "\nend"
    talk += [asks(99, text=f"{EVIL} part_1_3")]
    rows = replay.run(
        [recorded(talk, id=EVIL)], [{"preset": "rolling", "name": EVIL, "skeleton_share": 0.0}], **SMALL
    )
    text = page(rows, setting=ReplaySetting(window=6_000, reserve=500))
    text.encode()
    found = Markup()
    found.feed(text)
    assert found.open == []
    assert not found.tags & {"script", "img", "link", "iframe", "a"}
    assert not found.attributes & {"src", "href", "onerror", "onclick"}
    assert "http:" not in text.replace("http-equiv", "")
    assert any("<script>" in words for words in found.texts)


def test_the_page_shows_every_policy_every_conversation_and_the_losses() -> None:
    recordings = [recorded(workshop(n), f"talk {n}") for n in (12, 24)]
    rows = replay.run(recordings, ["economy", BARE], **SMALL)
    text = page(rows, setting=ReplaySetting(window=6_000, reserve=500))
    for words in ("economy", "bare", "everything", "talk 12", "talk 24", "worst losses", "part_"):
        assert words in text
    assert 'class="limit"' in text
    assert text.count("<svg") == 4


def test_a_page_without_needs_or_losses_can_be_drawn() -> None:
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    text = page(replay.run([recorded(talk)], ["recent"], **SMALL), setting=ReplaySetting(window=6_000))
    assert "Nothing was lost." in text


# ── why ──────────────────────────────────────────────────────────────────────────────────────────────────

ROOM: Final = ReplaySetting(window=6_000, reserve=500, tokenizer="estimate")


def asked(call: int, text: str) -> tuple[bool, str]:
    found = why(recorded(workshop()), call=call, text=text, policy=BARE, setting=ROOM)
    return found.shown, answer_text(found)


def test_why_says_that_a_text_is_shown_and_where() -> None:
    shown, told = asked(3, "part_1_3")
    assert shown
    assert told.splitlines() == [
        "yes: the text stands in the request of call 3 of 25",
        "  e6 tool_returned, from call 3 on: now full",
    ]


def test_why_says_since_when_and_by_which_rule_a_text_is_gone() -> None:
    first = next(call for call in range(5, 25) if not asked(call, "part_3_3 ")[0])
    shown, told = asked(24, "part_3_3 ")
    assert not shown
    assert f"since call {first}, " in told
    assert "rule bare" in told


def test_why_knows_what_was_said_later_or_never() -> None:
    assert asked(2, "part_9_3")[1] == (
        "no: the text had not been said before call 2; it first comes with call 10"
    )
    assert "nowhere" in asked(2, "a hovercraft")[1]


def test_why_asks_our_own_log_as_it_stands() -> None:
    call = Asked(id="c", name="look", arguments="{}")
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
    assert reduced(recording)
    shown = why(recording, call=2, text="a hammer", policy=None, setting=ROOM)
    gone = why(recording, call=3, text="a hammer", policy=None, setting=ROOM)
    assert (shown.shown, gone.shown, gone.since) == (True, False, 3)
    (place,) = gone.places
    assert (place.handle, place.level, place.rule, place.by) == ("e2", "masked", "mine", "e5 masked (budget)")


def test_why_refuses_a_call_that_there_is_not() -> None:
    with pytest.raises(FovealError, match="calls 1 to 25"):
        asked(26, "x")


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────

LIMITS: Final = ("--window", "6000", "--reserve", "500")


def test_replay_prints_a_table_json_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, html = written(workshop()), tmp_path / "out.html"
    run = ("replay", str(path), "--policy", "economy", *LIMITS)
    assert main([*run, "--sweep", "target=0.2,0.4", "--html", str(html)]) == 0
    out, err = capsys.readouterr()
    assert "economy target=0.2" in out
    assert ORACLE in out
    assert "written" in err
    assert html.read_text().startswith("<!doctype html>")
    assert main([*run, "--json", "--no-bounds", "--progress"]) == 0
    out, err = capsys.readouterr()
    assert [row["policy"] for row in json.loads(out)["policies"]] == ["everything", "economy"]
    assert "1 of 1" in err


def test_why_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path, bare = str(written(workshop())), _folder[0] / "bare.toml"
    bare.write_text('preset = "rolling"\nskeleton_share = 0.0\nkeep_first = 0\n')
    assert main(["why", path, "--call", "24", "--text", "part_0_3 ", "--policy", str(bare), *LIMITS]) == 0
    assert capsys.readouterr().out.startswith(
        "no: the text does not stand in the request of call 24, since call "
    )
    assert main(["why", path, "--call", "2", "--text", "part_0_3 ", "--json", *LIMITS]) == 0
    assert json.loads(capsys.readouterr().out)["shown"] is True


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["replay", "nowhere"], "No such file"),
        (["replay", "."], "no file in it can be read"),
        (["replay", "talk.json", "--policy", "thrifty"], "policy"),
        (["replay", "talk.json", "--sweep", "colour=red"], "sweep"),
        (["replay", "talk.json", "--long", "1000000"], "--long"),
        (["replay", "talk.json", "--window", "-1"], "window"),
        (["replay", "broken.json"], "broken.json"),
        (["why", "talk.json", "--call", "9", "--text", "x"], "calls 1 to 3"),
        (["why", "talk.json", "--call", "1", "--text", "x", "--conversation", "zz"], "--conversation"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "." not in arguments[1:2]:
        written(workshop(2))
        (tmp_path / "broken.json").write_text("{nothing")
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert told in err


def test_replay_without_logs_takes_the_store(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "foveal.apps", "replay"]
    env = {"FOVEAL_STORE": str(tmp_path / "none.db"), "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"name the LOGS" in done.stderr) == (1, True)


def test_a_file_that_cannot_be_read_is_an_error_of_its_own() -> None:
    with pytest.raises(UnreadableTranscript):
        replay.load([_folder[0] / "nowhere.jsonl"])


def test_figures_can_be_written_as_json_whole() -> None:
    assert msgspec.json.decode(msgspec.json.encode(rows_of_workshop()))[0]["policy"] == "everything"


# ── recorded conversations ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="no recorded conversations beside the checkout")
def test_on_real_conversations_the_measure_is_whole_and_no_policy_overflows() -> None:
    recordings = replay.choose(replay.load([DATA / "openhands.jsonl.gz"]), limit=3)
    rows = by_name(replay.run(recordings, ["economy", "recent"], window=32_000, reserve=4_000))
    assert (rows["everything"].ident, rows["everything"].line, rows["everything"].breaks) == (1, 1, 0)
    assert (rows[ORACLE].ident, rows[ORACLE].line, rows[ORACLE].over) == (1, 1, 0)
    assert rows["economy"].over == rows["recent"].over == 0
