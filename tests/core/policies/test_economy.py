"""The policy `economy`: references, the order of masks, what a mask keeps, and the cost."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context
from foveal.core.engine import Engine
from foveal.core.log import Clipped, Mask, Masked, text_of
from foveal.core.policies import economy, policy
from foveal.core.reduction import repeated_lines
from foveal.core.tokens import MessageTokens
from foveal.core.view import View
from foveal.core.view.fold import fold
from foveal.core.view.text_facts import strip_line_number
from foveal.replay import common_prefix_chars
from foveal.replay.cache_cost import DEFAULT_PRICES
from support.histories import (
    ESTIMATE,
    Json,
    call_message,
    context,
    describe_view,
    encode_and_decode,
    events_of,
    masks,
    recount,
    result_message,
    user,
    wire_bytes,
)


def code_lines(name: str, lines: int = 40) -> str:
    return "\n".join(f"    {name}_{nr} = compute_the_{name}({nr}, again={nr * 7})" for nr in range(lines))


def tool_step(nr: int, command: str, result: str) -> list[Json]:
    return [call_message(f"c{nr}", command=command), result_message(f"c{nr}", result)]


def file_read_twice(between: int = 0) -> list[Json]:
    history = [
        user("Mend the parser."),
        *tool_step(0, "cat src/parser.py", f"# one\n{code_lines('alpha')}\n# end"),
    ]
    for nr in range(between):
        history += tool_step(nr + 1, f"ls {nr}", f"nothing of note {nr}")
    return [
        *history,
        *tool_step(99, "cat src/parser.py | head", f"# two\n{code_lines('alpha')}\n# other end"),
    ]


def results(request: list[Json]) -> list[str]:
    return [message["content"] for message in request if message["role"] == "tool"]


# ── References ───────────────────────────────────────────────────────────────────────────────────────────


def test_repeated_lines_become_one_reference_with_their_first_and_last() -> None:
    ctx = context(50_000)
    first, second = results(ctx.fit(file_read_twice()))
    assert first == f"# one\n{code_lines('alpha')}\n# end"
    lines = code_lines("alpha").split("\n")
    where = "the result of bash cat src/parser.py"
    text = f"[foveal: 40 lines as above, from `{lines[0].strip()}` to `{lines[-1].strip()}`, in {where}; whole: e5]"
    assert second == f"# two\n{text}\n# other end"
    assert ctx.original("e5") == f"# two\n{code_lines('alpha')}\n# other end"


def test_a_reference_breaks_no_prefix_and_fitting_again_changes_nothing() -> None:
    ctx = context(50_000)
    history = file_read_twice(3)
    for size in range(1, len(history) + 1, 2):
        once = wire_bytes(ctx.fit(history[:size]))
        assert wire_bytes(ctx.fit(history[:size])) == once
    assert ctx.report().breaks == ()
    assert len(events_of(ctx.log, Clipped)) == 1


def test_short_runs_and_other_policies_are_left_as_they_are() -> None:
    history = [
        user("go"),
        *tool_step(0, "cat a.py", code_lines("a", 4)),
        *tool_step(1, "cat a.py", code_lines("a", 4)),
    ]
    assert context(50_000).fit(history) == history
    for preset in ("rolling", "handoff", "recent"):
        assert context(50_000, preset).fit(file_read_twice()) == file_read_twice()


def test_a_reference_to_what_the_model_wrote_names_the_arguments() -> None:
    history = [
        user("go"),
        call_message("w", path="a.py", text=code_lines("new")),
        result_message("w", "written"),
    ]
    shown = results(context(50_000).fit([*history, *tool_step(1, "cat a.py", code_lines("new"))]))
    assert "in the arguments of a call; whole: e" in shown[1]


def test_no_reference_points_to_another_reference() -> None:
    ctx = context(50_000)
    ctx.fit([*file_read_twice(), *tool_step(100, "cat src/parser.py", f"# three\n{code_lines('alpha')}")])
    assert [event.fact.sources for event in events_of(ctx.log, Clipped)] == [(3,), (3,)]  # type: ignore[union-attr]


def test_a_reference_is_whole_again_when_what_it_points_to_is_masked() -> None:
    ctx = context(50_000)
    ctx.fit(file_read_twice())
    engine: Engine = ctx._engine
    engine.append(Masked(masks=(Mask(target=3, text="[masked; whole: e3]"),)))
    assert list(repeated_lines.find_dangling(engine.view)) != []
    assert results(ctx.fit(file_read_twice()))[1] == f"# two\n{code_lines('alpha')}\n# other end"
    assert ctx.why("e5").level == "full"
    assert list(repeated_lines.find_dangling(engine.view)) == []


def test_a_result_that_is_whole_again_can_be_referred_to() -> None:
    ctx = context(50_000)
    ctx.fit(file_read_twice())
    ctx._engine.append(Masked(masks=(Mask(target=3, text="[masked; whole: e3]"),)))
    ctx.fit(file_read_twice())
    shown = results(
        ctx.fit([*file_read_twice(), *tool_step(100, "cat b.py", f"# three\n{code_lines('alpha')}")])
    )
    assert shown[1] == f"# two\n{code_lines('alpha')}\n# other end"
    assert "in the result of bash cat src/parser.py | head; whole: e" in shown[2]


def references_in(view: View) -> list[tuple[str, set[str]]]:
    """Return for each line that a reference leaves out the lines that its sources show."""
    found: list[tuple[str, set[str]]] = []
    for slot in view.unmasked_results.values():
        shown = slot.result
        for overlay in (shown.overlays or {}).values() if shown is not None else ():
            if shown is None or not overlay.sources:
                continue
            there: set[str] = set()
            for seq in overlay.sources:
                place = view.find(seq)
                assert place is not None, "the source is gone"
                there |= place[1].verbatim_lines()
            kept = set(map(strip_line_number, overlay.text.split("\n")))
            left_out = set(map(strip_line_number, text_of(shown.fact.content).split("\n"))) - kept
            found.extend((line, there) for line in left_out)
    return found


def rereading_history(seed: int, steps: int) -> list[Json]:
    """Return the history of an agent that reads a few files again and again, and changes them in between."""
    dice = Random(seed)
    files = {name: code_lines(name, dice.randint(5, 60)).split("\n") for name in ("alpha", "beta", "gamma")}
    history = [user("Mend all of them, please.")]
    for nr in range(steps):
        name = dice.choice(sorted(files))
        lines = files[name]
        if dice.random() < 0.3:
            lines[dice.randrange(len(lines))] = f"    changed_{nr} = {dice.random()}"
            history += [
                call_message(f"c{nr}", path=f"{name}.py", text="\n".join(lines)),
                result_message(f"c{nr}", "ok"),
            ]
        elif dice.random() < 0.3:
            history += tool_step(
                nr, f"make {nr}", "\n".join(f"step {k} of {nr} took {k * nr} ms" for k in range(30))
            )
        else:
            low = dice.randrange(len(lines))
            history += tool_step(nr, f"sed -n {low},999p {name}.py", "\n".join(lines[low:]))
    return history


@given(seed=st.integers(0, 10_000), window=st.sampled_from([3_000, 6_000, 12_000, 40_000]))
def test_every_reference_points_to_lines_that_are_shown(seed: int, window: int) -> None:
    ctx = context(window, {"preset": "economy", "keep_last": 1})
    history = rereading_history(seed, 40)
    for size in range(1, len(history) + 1, 2):
        sent = ctx.fit(history[:size])
        for line, there in references_in(ctx._engine.view):
            assert line in there
        assert wire_bytes(ctx.fit(history[:size])) == wire_bytes(sent)
    again = fold(encode_and_decode(ctx.log), MessageTokens(ESTIMATE))
    assert describe_view(again) == describe_view(ctx._engine.view)


@pytest.mark.parametrize("other", ["rolling", "recent", "handoff", "recent-summary"])
@pytest.mark.parametrize("window", [6_000, 9_000])
def test_no_reference_dangles_after_a_change_of_policy(other: str, window: int) -> None:
    for seed in range(12):
        ctx = context(40_000, {"preset": "economy", "keep_last": 1})
        history = rereading_history(seed, 40)
        ctx.fit(history)
        ctx._engine.policy = policy(other)
        ctx.use("unknown/small", window=window)
        ctx.fit(history)
        for line, there in references_in(ctx._engine.view):
            assert line in there


# ── What is masked first, and what is kept ──────────────────────────────────────────────────────────────────────


def mask_texts(ctx: Context) -> dict[tuple[int, int], str]:
    return {(mask.target, mask.part): mask.text for mask in masks(ctx.log)}


def test_a_mask_keeps_the_lines_that_a_call_has_already_written() -> None:
    line = "    if parser.state == WAITING and not parser.pending_tokens:"
    listing = code_lines("noise").replace("    noise_7 = compute_the_noise(7, again=49)", f"  7\t{line}")
    history = [user("go"), *tool_step(0, "cat -n a.py", listing)]
    history += [call_message("e", path="a.py", old=line, new="pass"), result_message("e", "edited")]
    for nr in range(12):
        history += tool_step(nr + 1, f"cat other_{nr}.py", code_lines(f"other{nr}", 30))
    ctx = context(7_000)
    ctx.fit(history)
    assert f"  7\t{line}" in mask_texts(ctx)[3, -1].split("\n")


def test_results_about_recently_named_things_are_masked_last() -> None:
    ctx = context(50_000)
    history = [user("go")]
    for nr, command in enumerate(
        ["cat one.py", "cat two.py", "make all", *(["cat three.py"] * 11), "wc one.py", "ls", "ls"]
    ):
        history += tool_step(nr, command, code_lines(f"text{nr}", 12))
    ctx.fit(history)
    order = [
        item.slot.call.arguments for item in economy.mask_candidates(ctx._engine.view, policy("economy"))
    ]
    assert "make all" in order[0]
    assert order.index('{"command": "cat two.py"}') < order.index('{"command": "cat one.py"}')


def test_old_arguments_are_masked_before_results_and_the_newest_stay() -> None:
    ctx = context(50_000)
    history = [user("go")]
    for nr in range(8):
        history += [
            call_message(f"c{nr}", path=f"f{nr}.py", text=code_lines(f"f{nr}", 12)),
            result_message(f"c{nr}", code_lines(f"r{nr}", 12)),
        ]
    ctx.fit(history)
    items = economy.mask_candidates(ctx._engine.view, policy("economy"))
    assert [item.part >= 0 for item in items] == [True] * 5 + [False] * 5
    assert max(item.slot.ordinal for item in items) == 4


# ── When, and what it costs ──────────────────────────────────────────────────────────────────────────────


def bill(requests: list[list[Json]]) -> float:
    paid, before = 0.0, ""
    for request in requests:
        text = "".join(str(message) for message in request)
        share = common_prefix_chars(before, text) / len(text)
        units = recount(request)
        paid += DEFAULT_PRICES.bill(units, round(units * share))
        before = text
    return paid


def growing_histories(seed: int, steps: int) -> list[list[Json]]:
    history = rereading_history(seed, steps)
    return [history[:size] for size in range(1, len(history) + 1, 2)]


@given(seed=st.integers(0, 10_000), steps=st.integers(5, 80))
def test_a_conversation_that_fits_never_costs_more_than_sending_all_of_it(seed: int, steps: int) -> None:
    ctx = context(200_000, {"preset": "economy", "early": 0.0})
    requests = growing_histories(seed, steps)
    assert bill([ctx.fit(request) for request in requests]) <= bill(requests) * 1.01
    assert ctx._requests.saved >= 0


def test_unused_texts_are_masked_before_the_room_is_full_when_it_pays() -> None:
    ctx = context(200_000, {"preset": "economy", "early": 0.0})
    for request in growing_histories(3, 80):
        sent = ctx.fit(request)
    assert {fact.reason for fact in (event.fact for event in events_of(ctx.log, Masked))} == {"price"}  # type: ignore[union-attr]
    assert recount(sent) < 0.8 * recount(request)


def test_a_history_that_was_never_sent_is_not_cut_for_its_price() -> None:
    history = rereading_history(3, 80)
    ctx = context(200_000, {"preset": "economy", "early": 0.0})
    ctx.fit(history)
    assert events_of(ctx.log, Masked) == []


@pytest.mark.parametrize("window", [4_000, 8_000, 16_000])
def test_every_request_fits_and_contains_the_task(window: int) -> None:
    ctx = context(window)
    for request in growing_histories(5, 90):
        sent = ctx.fit(request)
        assert ctx.report().used <= ctx.report().limit
        assert sent[0] == request[0]


def test_savings_are_counted_as_a_provider_bills_them() -> None:
    ctx = context(50_000)
    requests = [file_read_twice(2)[:size] for size in (1, 3, 5, 7, 9)]
    sent = [ctx.fit(request) for request in requests]
    assert ctx._requests.saved == pytest.approx(bill(requests) - bill(sent), rel=0.2)
