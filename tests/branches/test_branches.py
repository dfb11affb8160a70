"""Branches of a context: the fold, the tools of the model, forks, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal import BadSetting, Context, UnknownHandle
from foveal.core.log import Compacted
from foveal.core.view import render_view
from support.effort import examples
from support.histories import (
    CHECKS,
    DIALECTS,
    POLICIES,
    WINDOWS,
    Json,
    ScriptedHistory,
    call_message,
    context,
    result,
    result_message,
    scripted_histories,
    user,
)


def answered(ctx: Context, messages: list[Any], call_id: str, name: str, **arguments: Any) -> str:
    """Let the model call a tool of branches, as a loop does."""
    text = ctx.recall(name, arguments)
    messages += [call_message(call_id, name, **arguments), result_message(call_id, text)]
    return text


def work(number: int) -> list[Json]:
    return [call_message(f"w{number}"), result_message(f"w{number}", result(number))]


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_prefix_holds_inside_a_branch_and_changes_from_its_beginning_on() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?"), *work(0)]
    before = ctx.fit(messages)
    with ctx.branch("Find the failing test.", messages=messages) as branch:
        messages += work(1)
        inside = ctx.fit(messages)
        messages.append({"role": "assistant", "content": "It is test_dates.py."})
        branch.result("test_dates.py fails")
    after = ctx.fit(messages)
    assert inside == messages[:-1]
    assert after[: len(before)] == before
    [record] = after[len(before) :]
    assert "Task: Find the failing test.\nResult: test_dates.py fails" in record["content"]
    assert ctx.fit(messages) == after
    assert Context.load(ctx.save()).fit(messages) == after
    assert ctx.undo() == branch.fold
    assert ctx.fit(messages) == messages


def test_without_a_result_the_last_text_of_the_model_counts() -> None:
    ctx = context()
    with ctx.branch("Look.") as branch:
        ctx.append(*work(0), {"role": "assistant", "content": "Nothing is wrong."})
    assert "Result (the last text of the model in it): Nothing is wrong." in ctx.original(branch.fold)
    with ctx.branch("Look again.") as branch:
        ctx.append(*work(1))
    assert "(no result was given" in ctx.original(branch.fold)


def test_a_branch_without_a_word_and_without_a_result_adds_nothing() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?")]
    with ctx.branch("Look.", messages=messages) as branch:
        pass
    assert (branch.fold, ctx.fit(messages)) == ("", messages)
    assert [(one.is_open, one.is_folded) for one in ctx.branches()] == [(False, False)]


def test_an_event_to_keep_that_does_not_exist_is_an_error_at_the_end() -> None:
    ctx = context(40_000)
    block = ctx.branch("Look.")
    branch = block.__enter__()
    ctx.append(*work(0))
    branch.keep("e99")
    with pytest.raises(UnknownHandle, match="e99 is no event of the branch e1"):
        block.__exit__(None, None, None)
    assert [one.fold for one in ctx.branches()] == [branch.fold]
    ctx.begin_branch("Look again.")
    with pytest.raises(UnknownHandle, match="e99"):
        ctx.end_branch("done", keep=["e99"])


def test_single_events_stay_with_their_steps() -> None:
    ctx = context(40_000)
    with ctx.branch("Look.") as branch:
        ctx.append(*work(0), *work(1), *work(2))
        branch.keep("e5")  # the result of the second call
    assert ctx.fit()[:2] == work(1)
    assert len(ctx.fit()) == 3
    with pytest.raises(UnknownHandle, match="e1 is no event of the branch e1"):
        branch.keep("e1")


def test_calls_that_are_open_when_a_branch_ends_stay() -> None:
    ctx = context(40_000)
    with ctx.branch("Look.") as branch:
        ctx.append(*work(0), call_message("open"))
        branch.result("Half of it.")
    ctx.append(result_message("open", "late, but here"))
    record, call, answer = ctx.fit()
    assert "Half of it." in record["content"]
    assert (call, answer) == (call_message("open"), result_message("open", "late, but here"))


def test_nested_branches_fold_one_into_the_other() -> None:
    ctx = context(40_000)
    with ctx.branch("outer") as outer:
        with ctx.branch("inner") as inner:
            ctx.append(*work(0))
            inner.result("in")
        assert len(ctx.fit()) == 1
        outer.result("out")
    [record] = ctx.fit()
    assert "Result: out" in record["content"]
    assert [(one.task, one.parent) for one in ctx.branches()] == [("outer", ""), ("inner", outer.handle)]
    ctx.undo(outer.fold)
    assert "Result: in" in ctx.fit()[0]["content"]


def test_the_users_words_stay_and_a_prompt_that_is_the_task_does_not() -> None:
    ctx = context(40_000)
    ctx.append(user("Why is CI red?"))
    with ctx.branch("Find the failing test.") as branch:
        ctx.append(user("Find the failing test."), *work(0), user("Never touch main."), *work(1))
        branch.result("found")
    first, kept, record = ctx.fit()
    assert (first, kept) == (user("Why is CI red?"), user("Never touch main."))
    assert "Task: Find the failing test." in record["content"]


def test_pinned_rules_survive_a_fold() -> None:
    ctx = context(40_000)
    with ctx.branch("Look."):
        ctx.append(*work(0))
        ctx.pin("Answer in French.")
    assert "Answer in French." in str(ctx.fit())


def test_an_error_folds_the_branch_and_is_raised() -> None:
    ctx = context()

    def fail() -> None:
        with ctx.branch("Look."):
            ctx.append(*work(0))
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError):
        fail()
    assert "It failed: RuntimeError: the disk is full" in ctx.fit()[0]["content"]


def test_a_result_that_is_too_long_leads_to_the_whole_of_it() -> None:
    ctx = context(8_000)
    with ctx.branch("Look.") as branch:
        branch.result(result(0, 6_000))
    assert "[foveal: cut; whole result: e2]" in ctx.original(branch.fold)
    assert ctx.original("e2") == result(0, 6_000)
    ctx.fit()


def test_task_and_result_survive_the_merge_with_other_summaries() -> None:
    ctx = context(8_000, "economy")
    ctx.append(user("Why is CI red?"))
    with ctx.branch("Find the failing test.") as branch:
        ctx.append(*work(0))
        branch.result("the culprit is test_dates.py::test_leap")
    for number in range(1, 40):
        ctx.append(*work(number))
        ctx.fit()
    merged = [e.fact for e in ctx.log if isinstance(e.fact, Compacted) and e.fact.reason != "branch"]
    assert merged
    assert {fact.by for fact in merged} == {"ledger"}
    assert all("written without a model" in fact.summary for fact in merged)
    assert "by branch" not in str(ctx.report())
    assert "the culprit is test_dates.py::test_leap" in str(ctx.fit())


def test_a_fold_that_a_later_summary_covers_cannot_be_undone_before_it() -> None:
    ctx = context(40_000)
    ctx.append(user("Why is CI red?"))
    with ctx.branch("outer") as outer:
        with ctx.branch("inner") as inner:
            ctx.append(*work(0), {"role": "assistant", "content": "Seen."})
        outer.result("out")
    with pytest.raises(
        UnknownHandle, match=f"{inner.fold} is covered by {outer.fold}.*undo {outer.fold} first"
    ):
        ctx.undo(inner.fold)
    ctx.undo(outer.fold)
    ctx.undo(inner.fold)
    assert [ctx.fit()[0], *ctx.fit()[1:3]] == [user("Why is CI red?"), *work(0)]


def test_an_edit_of_the_messages_inside_leaves_a_branch_ended_without_a_fold() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?")]
    with ctx.branch("first", messages=messages) as first:
        messages += [user("Look here."), {"role": "assistant", "content": "It is test_dates.py."}]
        first.result("found")
    ctx.fit(messages)
    edited = [*messages[:1], user("Look there.")]
    assert ctx.fit(edited) == edited
    [status] = ctx.branches()
    assert (status.is_open, status.is_folded, status.result) == (False, False, "found")
    with ctx.branch("second", messages=edited) as second:
        second.result("done")
    assert [(one.task, one.parent) for one in ctx.branches()] == [("first", ""), ("second", "")]
    assert Context.load(ctx.save()).branches() == ctx.branches()


def test_an_edited_history_in_which_the_model_returns_ends_its_branch_again() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?")]
    answered(ctx, messages, "c1", "branch", task="Find the failing test.")
    messages += work(0)
    ctx.fit(messages)
    answered(ctx, messages, "c2", "return", result="found")
    ctx.fit(messages)
    messages[4] = result_message("w0", "another result")
    assert ctx.fit(messages[:5]) == messages[:5]
    assert ctx.branches()[0].is_open
    assert "Result: found" in ctx.fit(messages)[-1]["content"]


# ── Tools of the model ───────────────────────────────────────────────────────────────────────────────────


def test_the_model_begins_and_ends_branches() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?")]
    assert answered(ctx, messages, "c1", "return", result="x").startswith("[branch: no branch is open")
    answered(ctx, messages, "c2", "branch", task="Find the failing test.")
    assert ctx.fit(messages) == messages
    messages += work(0)
    ctx.fit(messages)
    answered(ctx, messages, "c3", "return", result="test_dates.py fails")
    *before, record = ctx.fit(messages)
    assert before == messages[:5]
    assert "Result: test_dates.py fails" in record["content"]
    fresh = context(40_000)  # a process that has only the messages finds the branch in them
    assert fresh.fit(messages)[: len(before)] == before
    assert [one.result for one in fresh.branches()] == ["test_dates.py fails"]


def test_results_of_parallel_calls_stay_with_the_call_that_began_the_branch() -> None:
    ctx = context(40_000)
    both = call_message("c1", "branch", task="Look.")
    both["tool_calls"] += call_message("c2")["tool_calls"]
    answers = [result_message("c1", ctx.recall("branch", {"task": "Look."})), result_message("c2", "ok")]
    ctx.append(user("Go."), both, *answers, *work(0))
    done = call_message("c3", "return", result="Seen.")
    done["tool_calls"] += call_message("c4")["tool_calls"]
    ctx.append(done, result_message("c3", ctx.recall("return", {"result": "Seen."})))
    assert ctx.branches()[0].is_open
    ctx.append(result_message("c4", "ok"))
    *before, record = ctx.fit()
    assert before == [user("Go."), both, *answers]
    assert "Result: Seen." in record["content"]
    assert CHECKS["openai_chat"](ctx.fit()) == []


def test_a_tool_of_the_caller_with_the_same_name_begins_no_branch() -> None:
    ctx = context()
    ctx.append(call_message("c1", "branch", task="release"), result_message("c1", "switched to release"))
    assert ctx.branches() == ()


@pytest.mark.parametrize("given", ["{", "[]", "{}", '{"task": 3}'])
def test_a_wrong_call_is_answered_with_what_is_wrong(given: str) -> None:
    answer = context().recall("branch", given)
    assert answer.startswith("[branch: ")
    assert answer != context().recall("branch", {"task": "Look."})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_tools_have_a_schema_in_every_dialect(dialect: Any) -> None:
    assert "return" in str(foveal.branches.tools(dialect))


# ── Forks ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fork_shares_every_byte_and_comes_back_as_a_branch() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?"), *work(0)]
    before = ctx.fit(messages)
    one, two = ctx.fork("Read the log."), ctx.fork("Read the code.")
    for number, child in enumerate((one, two), 1):
        own = [*messages, user("Go on."), *work(number), {"role": "assistant", "content": f"answer {number}"}]
        assert child.fit(own[:-1])[: len(before)] == before
        child.fit(own)
    ctx.join(one)
    fold = ctx.join(two, "the second")
    *same, first, second = ctx.fit(messages)
    assert same == before
    assert "Result (the last text of the model in it): answer 1" in first["content"]
    assert "Task: Read the code.\nResult: the second" in second["content"]
    assert "file_1_0.txt" in ctx.recall("recall_search", {"query": "file_1_0.txt"})
    ctx.undo(fold)
    assert ctx.fit(messages)[-3:] == [*work(2), {"role": "assistant", "content": "answer 2"}]
    saved = Context.load(one.save())
    assert "answer 1" in ctx.original(ctx.join(saved))


def test_a_stranger_cannot_be_joined() -> None:
    ctx = context()
    ctx.append(user("Why is CI red?"))
    for stranger in (ctx, context(), "child"):
        with pytest.raises(BadSetting, match="a context that `fork` of this one has returned"):
            ctx.join(stranger)  # type: ignore[arg-type]


def test_a_branch_needs_a_task() -> None:
    with pytest.raises(BadSetting, match="what the branch is to do"):
        context().begin_branch(" ")


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────────────


@examples(40)
@given(scripted_histories(), st.sampled_from(POLICIES), st.sampled_from(WINDOWS), st.integers(0, 2**16))
def test_a_fold_is_legal_and_undo_restores_what_was_shown(
    story: ScriptedHistory, policy: Any, window: int, cut: int
) -> None:
    ctx = context(window, policy, dialect=story.dialect)
    begin = cut % (len(story.messages) + 1)
    ctx.append(*story.messages[:begin])
    handle = ctx.begin_branch("Look.")
    ctx.append(*story.messages[begin:])
    before = render_view(ctx._engine.view, ctx._wire)[0]
    fold = ctx.end_branch("It is done.", name=handle)
    try:
        assert CHECKS[story.dialect](ctx.fit()) == []
        ctx.undo(fold)
    except foveal.ContextOverflow:
        return
    if len(ctx.log) == int(fold[1:]) + 2:  # nothing was reduced meanwhile
        assert render_view(ctx._engine.view, ctx._wire)[0] == before


def test_a_fork_is_joined_once() -> None:
    ctx = foveal.Context("gpt-4.1")
    ctx.append({"role": "user", "content": "Why is CI red?"})
    child = ctx.fork("Read the log.")
    child.append({"role": "assistant", "content": "The disk was full."})
    ctx.join(child)
    before = ctx.log
    with pytest.raises(foveal.BadSetting, match="this one was, as e"):
        ctx.join(child)
    assert ctx.log == before


@pytest.mark.parametrize("name", ["expand", "drop"])
def test_none_is_no_handle(name: str) -> None:
    ctx = foveal.Context("gpt-4.1")
    ctx.append({"role": "user", "content": "Why is CI red?"})
    with pytest.raises(foveal.UnknownHandle, match="the log has e0 to e"):
        getattr(ctx, name)(None)


def test_all_exported_names_include_the_error_of_a_budget() -> None:
    assert "BudgetExceeded" in foveal.__all__
