"""`economy`: references to what stands above, what a cut takes first and leaves, and that it never costs more."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context
from foveal.core.engine import Engine
from foveal.core.log import Clipped, Mask, Masked, text_of
from foveal.core.policies import policy, reuse_score
from foveal.core.reduction import bare, repeated_lines
from foveal.core.tokens import MessageTokens
from foveal.core.view import View
from foveal.core.view.fold import fold
from foveal.replay import common_prefix
from foveal.replay.cache_cost import PLAIN
from support.histories import (
    ESTIMATE,
    Json,
    answered,
    asked,
    context,
    described,
    masks,
    of,
    recount,
    reread,
    user,
    wire_bytes,
)


def code(name: str, lines: int = 40) -> str:
    return "\n".join(f"    {name}_{nr} = compute_the_{name}({nr}, again={nr * 7})" for nr in range(lines))


def step(nr: int, command: str, result: str) -> list[Json]:
    return [asked(f"c{nr}", command=command), answered(f"c{nr}", result)]


def twice(between: int = 0) -> list[Json]:
    history = [user("Mend the parser."), *step(0, "cat src/parser.py", f"# one\n{code('alpha')}\n# end")]
    for nr in range(between):
        history += step(nr + 1, f"ls {nr}", f"nothing of note {nr}")
    return [*history, *step(99, "cat src/parser.py | head", f"# two\n{code('alpha')}\n# other end")]


def results(request: list[Json]) -> list[str]:
    return [message["content"] for message in request if message["role"] == "tool"]


# ── references ───────────────────────────────────────────────────────────────────────────────────────────


def test_lines_that_stand_above_are_shown_as_one_reference_that_says_how_they_begin_and_end() -> None:
    ctx = context(50_000)
    first, second = results(ctx.fit(twice()))
    assert first == f"# one\n{code('alpha')}\n# end"
    lines = code("alpha").split("\n")
    where = "the result of bash cat src/parser.py"
    told = f"[foveal: 40 lines as above, from `{lines[0].strip()}` to `{lines[-1].strip()}`, in {where}; whole: e5]"
    assert second == f"# two\n{told}\n# other end"
    assert ctx.original("e5") == f"# two\n{code('alpha')}\n# other end"


def test_a_reference_breaks_no_prefix_and_fitting_again_changes_nothing() -> None:
    ctx = context(50_000)
    history = twice(3)
    for size in range(1, len(history) + 1, 2):
        once = wire_bytes(ctx.fit(history[:size]))
        assert wire_bytes(ctx.fit(history[:size])) == once
    assert ctx.report().breaks == ()
    assert len(of(ctx.log, Clipped)) == 1


def test_short_runs_and_other_policies_are_left_as_they_are() -> None:
    history = [user("go"), *step(0, "cat a.py", code("a", 4)), *step(1, "cat a.py", code("a", 4))]
    assert context(50_000).fit(history) == history
    for preset in ("rolling", "handoff", "recent"):
        assert context(50_000, preset).fit(twice()) == twice()


def test_what_the_model_wrote_itself_is_referred_to_as_arguments_of_a_call() -> None:
    history = [user("go"), asked("w", path="a.py", text=code("new")), answered("w", "written")]
    shown = results(context(50_000).fit([*history, *step(1, "cat a.py", code("new"))]))
    assert "in the arguments of a call; whole: e" in shown[1]


def test_no_reference_points_to_another_reference() -> None:
    ctx = context(50_000)
    ctx.fit([*twice(), *step(100, "cat src/parser.py", f"# three\n{code('alpha')}")])
    assert [event.fact.sources for event in of(ctx.log, Clipped)] == [(3,), (3,)]  # type: ignore[union-attr]


def test_a_reference_is_whole_again_when_what_it_points_to_is_masked() -> None:
    ctx = context(50_000)
    ctx.fit(twice())
    engine: Engine = ctx._engine
    engine.append(Masked(masks=(Mask(target=3, text="[masked; whole: e3]"),)))
    assert list(repeated_lines.dangling(engine.view)) != []
    assert results(ctx.fit(twice()))[1] == f"# two\n{code('alpha')}\n# other end"
    assert ctx.why("e5").level == "full"
    assert list(repeated_lines.dangling(engine.view)) == []


def test_what_is_whole_again_can_be_referred_to() -> None:
    ctx = context(50_000)
    ctx.fit(twice())
    ctx._engine.append(Masked(masks=(Mask(target=3, text="[masked; whole: e3]"),)))
    ctx.fit(twice())
    shown = results(ctx.fit([*twice(), *step(100, "cat b.py", f"# three\n{code('alpha')}")]))
    assert shown[1] == f"# two\n{code('alpha')}\n# other end"
    assert "in the result of bash cat src/parser.py | head; whole: e" in shown[2]


def referring(view: View) -> list[tuple[str, set[str]]]:
    """For each reference in view the lines that it left out, and those of what it points to as it is shown."""
    found: list[tuple[str, set[str]]] = []
    for slot in view.live.values():
        shown = slot.result
        for overlay in (shown.overlays or {}).values() if shown is not None else ():
            if shown is None or not overlay.sources:
                continue
            there: set[str] = set()
            for seq in overlay.sources:
                place = view.find(seq)
                assert place is not None, "the source is gone"
                there |= repeated_lines.known(place[1])
            kept = set(map(bare, overlay.text.split("\n")))
            left_out = set(map(bare, text_of(shown.fact.content).split("\n"))) - kept
            found.extend((line, there) for line in left_out)
    return found


def rereading(seed: int, steps: int) -> list[Json]:
    """An agent that reads a few files again and again, and changes them in between."""
    dice = Random(seed)
    files = {name: code(name, dice.randint(5, 60)).split("\n") for name in ("alpha", "beta", "gamma")}
    history = [user("Mend all of them, please.")]
    for nr in range(steps):
        name = dice.choice(sorted(files))
        lines = files[name]
        if dice.random() < 0.3:
            lines[dice.randrange(len(lines))] = f"    changed_{nr} = {dice.random()}"
            history += [asked(f"c{nr}", path=f"{name}.py", text="\n".join(lines)), answered(f"c{nr}", "ok")]
        elif dice.random() < 0.3:
            history += step(
                nr, f"make {nr}", "\n".join(f"step {k} of {nr} took {k * nr} ms" for k in range(30))
            )
        else:
            low = dice.randrange(len(lines))
            history += step(nr, f"sed -n {low},999p {name}.py", "\n".join(lines[low:]))
    return history


@given(seed=st.integers(0, 10_000), window=st.sampled_from([3_000, 6_000, 12_000, 40_000]))
def test_whatever_is_cut_every_reference_points_to_lines_that_are_shown(seed: int, window: int) -> None:
    ctx = context(window, {"preset": "economy", "keep_last": 1})
    history = rereading(seed, 40)
    for size in range(1, len(history) + 1, 2):
        sent = ctx.fit(history[:size])
        for line, there in referring(ctx._engine.view):
            assert line in there
        assert wire_bytes(ctx.fit(history[:size])) == wire_bytes(sent)
    again = fold(reread(ctx.log), MessageTokens(ESTIMATE))
    assert described(again) == described(ctx._engine.view)


@pytest.mark.parametrize("other", ["rolling", "recent", "handoff", "recent-summary"])
@pytest.mark.parametrize("window", [6_000, 9_000])
def test_a_log_with_references_that_goes_on_under_another_policy_has_none_that_point_to_nothing(
    other: str, window: int
) -> None:
    for seed in range(12):
        ctx = context(40_000, {"preset": "economy", "keep_last": 1})
        history = rereading(seed, 40)
        ctx.fit(history)
        ctx._engine.policy = policy(other)
        ctx.use("somebody/small", window=window)
        ctx.fit(history)
        for line, there in referring(ctx._engine.view):
            assert line in there


# ── what goes first, and what stays ──────────────────────────────────────────────────────────────────────


def cut(ctx: Context) -> dict[tuple[int, int], str]:
    return {(mask.target, mask.part): mask.text for mask in masks(ctx.log)}


def test_a_mask_keeps_the_lines_that_a_call_has_already_written() -> None:
    line = "    if parser.state == WAITING and not parser.pending_tokens:"
    listing = code("noise").replace("    noise_7 = compute_the_noise(7, again=49)", f"  7\t{line}")
    history = [user("go"), *step(0, "cat -n a.py", listing)]
    history += [asked("e", path="a.py", old=line, new="pass"), answered("e", "edited")]
    for nr in range(12):
        history += step(nr + 1, f"cat other_{nr}.py", code(f"other{nr}", 30))
    ctx = context(7_000)
    ctx.fit(history)
    assert f"  7\t{line}" in cut(ctx)[3, -1].split("\n")


def test_what_is_about_a_thing_that_was_named_lately_stays_longest() -> None:
    ctx = context(50_000)
    history = [user("go")]
    for nr, command in enumerate(
        ["cat one.py", "cat two.py", "make all", *(["cat three.py"] * 11), "wc one.py", "ls", "ls"]
    ):
        history += step(nr, command, code(f"text{nr}", 12))
    ctx.fit(history)
    order = [item.slot.call.arguments for item in reuse_score.items(ctx._engine.view, policy("economy"))]
    assert "make all" in order[0]
    assert order.index('{"command": "cat two.py"}') < order.index('{"command": "cat one.py"}')


def test_arguments_of_old_calls_go_before_results_and_the_newest_stay() -> None:
    ctx = context(50_000)
    history = [user("go")]
    for nr in range(8):
        history += [
            asked(f"c{nr}", path=f"f{nr}.py", text=code(f"f{nr}", 12)),
            answered(f"c{nr}", code(f"r{nr}", 12)),
        ]
    ctx.fit(history)
    items = reuse_score.items(ctx._engine.view, policy("economy"))
    assert [item.part >= 0 for item in items] == [True] * 5 + [False] * 5
    assert max(item.slot.ordinal for item in items) == 4


# ── when, and what it costs ──────────────────────────────────────────────────────────────────────────────


def bill(requests: list[list[Json]]) -> float:
    paid, before = 0.0, ""
    for request in requests:
        told = "".join(str(message) for message in request)
        share = common_prefix(before, told) / len(told)
        units = recount(request)
        paid += PLAIN.bill(units, round(units * share))
        before = told
    return paid


def growing(seed: int, steps: int) -> list[list[Json]]:
    history = rereading(seed, steps)
    return [history[:size] for size in range(1, len(history) + 1, 2)]


@given(seed=st.integers(0, 10_000), steps=st.integers(5, 80))
def test_a_conversation_that_fits_never_costs_more_than_sending_all_of_it(seed: int, steps: int) -> None:
    ctx = context(200_000, {"preset": "economy", "early": 0.0})
    requests = growing(seed, steps)
    assert bill([ctx.fit(request) for request in requests]) <= bill(requests) * 1.01
    assert ctx._calls.saved >= 0


def test_what_nobody_comes_back_to_is_masked_before_the_room_is_full_when_that_pays() -> None:
    ctx = context(200_000, {"preset": "economy", "early": 0.0})
    for request in growing(3, 80):
        sent = ctx.fit(request)
    assert {fact.reason for fact in (event.fact for event in of(ctx.log, Masked))} == {"price"}  # type: ignore[union-attr]
    assert recount(sent) < 0.8 * recount(request)


def test_nothing_is_cut_for_its_price_from_a_history_that_nobody_has_read_yet() -> None:
    history = rereading(3, 80)
    ctx = context(200_000, {"preset": "economy", "early": 0.0})
    ctx.fit(history)
    assert of(ctx.log, Masked) == []


@pytest.mark.parametrize("window", [4_000, 8_000, 16_000])
def test_no_request_is_larger_than_the_room_and_the_task_is_in_all_of_them(window: int) -> None:
    ctx = context(window)
    for request in growing(5, 90):
        sent = ctx.fit(request)
        assert ctx.report().used <= ctx.report().limit
        assert sent[0] == request[0]


def test_what_was_saved_is_counted_as_a_provider_would_bill_it() -> None:
    ctx = context(50_000)
    requests = [twice(2)[:size] for size in (1, 3, 5, 7, 9)]
    sent = [ctx.fit(request) for request in requests]
    assert ctx._calls.saved == pytest.approx(bill(requests) - bill(sent), rel=0.2)
