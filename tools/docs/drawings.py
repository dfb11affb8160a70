"""Generates the drawings in the documentation by running the engine.

`python tools/docs/drawings.py` updates all pages. A drawing is the code block after `<!-- drawn: name -->`. A test
of the documentation checks that every drawing matches the current code.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from terminal_svg import terminal

import foveal
from foveal import PRESETS
from foveal.cli import demo as foveal_demo
from foveal.core.engine import Engine, event_status
from foveal.core.engine.settings import EngineSettings
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    Event,
    Instructed,
    ModelSaid,
    Opened,
    Reverted,
    Rewound,
    ToolReturned,
    UserSaid,
    handle,
    kind,
    text_of,
)
from foveal.core.models import Caps
from foveal.core.models.model import model
from foveal.core.policies import Moment, Policy, policy
from foveal.core.reduction import Limits, placeholder
from foveal.core.tokens import Estimate
from foveal.sessions import Session
from foveal.stores import MemoryStore

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import warm_start  # noqa: E402

DRAWING_PATTERN = re.compile(r"(<!-- drawn: (\w+) -->\n```text\n)(.*?)(```)", re.DOTALL)
PAGES = (
    "AGENTS.md",
    "CONTRIBUTING.md",
    "docs/how-it-works/design.md",
    "docs/how-it-works/index.md",
    "docs/how-it-works/compaction.md",
    "docs/library/sessions.md",
    "docs/library/import.md",
    "docs/reference/policies.md",
    "docs/reference/report.md",
    "docs/reference/errors.md",
)


# ── The sample conversation ───────────────────────────────────────────────────────────────────────────────


def conversation(chosen: Policy, *, window: int, steps: int = 4, lines: int = 24) -> Engine:
    """Return an engine with an instruction, a task, and steps of one call and its result each."""
    known = model("gpt-4.1", window=window)
    engine = Engine(EngineSettings(known, chosen, Caps(reserve=0), Estimate()))
    engine.append(Opened(model=known.name, policy=chosen.name))
    engine.append(Instructed(content="You are careful."))
    engine.append(UserSaid(content="Why is CI red?"))
    for step in range(1, steps + 1):
        call = Call(id=f"c{step}", name="bash", arguments=f'{{"command": "pytest part{step}"}}')
        engine.append(ModelSaid(content=(call,)))
        rows = [f"part{step}/test_{row}.py: passed" for row in range(lines)]
        rows[lines // 2] = f"part{step}/test_{lines // 2}.py: FAILED: expected 12, got {step}"
        engine.append(ToolReturned(call_id=f"c{step}", content="\n".join(rows)))
    return engine


def level(engine: Engine, event: Event) -> str:
    """Return the level and the tokens of an event."""
    status = event_status(engine, event)
    return "" if status.level == "-" else f"{status.level} {status.tokens or ''}".strip()


def levels(engine: Engine) -> dict[int, str]:
    return {event.seq: level(engine, event) for event in engine.log}


def describe_event(event: Event) -> str:
    """Return a short description of an event."""
    fact = event.fact
    match fact:
        case ModelSaid(content=(Call() as call,)):
            words = f"calls {call.name}: {placeholder.call_subject(call)}"
        case ToolReturned():
            words = f"{text_of(fact.content).count(chr(10)) + 1} lines"
        case Compacted(rule=""):
            words = f"e{fact.first}–e{fact.last}: {fact.summary}"
        case Compacted():
            kept = [handle(seq) for seq in fact.keep if fact.first <= seq]
            words = ", keeps ".join([f"e{fact.first}–e{fact.last} by {fact.by}", *kept[:1]])
        case _:
            names = ("target", "to", "ranges", "masks")
            known = {name: getattr(fact, name) for name in names if hasattr(fact, name)}
            words = ", ".join(map(_describe_field, known.items())) or text_of(getattr(fact, "content", ""))
    return words if len(words) <= 33 else words[:32] + "…"


def _describe_field(item: tuple[str, object]) -> str:
    name, value = item
    if name == "masks":
        return "masks " + ", ".join(f"e{mask.target}" for mask in value)  # type: ignore[attr-defined]
    if name == "ranges":
        return "ranges " + ", ".join(f"e{first}–e{last}" for first, last in value)  # type: ignore[attr-defined]
    return f"{name} e{value}"


def draw_change(engine: Engine, change: Callable[[Engine], object], *, shown: Sequence[int] = ()) -> str:
    """Draw the log with the levels before and after a change, and how the `shown` events look afterwards."""
    before = levels(engine)
    change(engine)
    return compare(before, engine, shown=shown)


def compare(before: dict[int, str], engine: Engine, *, shown: Sequence[int] = ()) -> str:
    after = levels(engine)
    rows = [f"{'log':<56}{'view before':<14}view after"]
    for event in engine.log:
        new = event.seq not in before
        what = f"{'+' if new else ' '} {event.handle:<4}{kind(event.fact):<14}{describe_event(event)}"
        rows.append(f"{what:<56}{before.get(event.seq, ''):<14}{after[event.seq]}".rstrip())
    rows += [f"\n{engine.log[seq].handle} is now shown as\n{_indented(engine, seq)}" for seq in shown]
    return "\n".join(rows) + "\n"


def _indented(engine: Engine, seq: int) -> str:
    found = engine.view.find(seq)
    assert found is not None
    text = text_of(found[1].as_shown().content)
    rows = (piece for row in text.splitlines() for piece in textwrap.wrap(row, 104) or [""])
    return "\n".join(f"  │ {row}".rstrip() for row in rows)


def reduce_context(engine: Engine) -> None:
    engine.reduce_to_fit(Moment())


# ── The drawings ─────────────────────────────────────────────────────────────────────────────────────────


def clip() -> str:
    """A long result arrives: the log records all of it, then what the view shows of it."""
    engine = conversation(policy("economy", clip=Limits(strategy="smart", tokens=80)), window=8_000, steps=0)
    engine.append(ModelSaid(content=(Call(id="c", name="bash", arguments='{"command": "pytest"}'),)))
    rows = [f"test_{row}.py: passed" for row in range(40)]
    rows[17] = "test_17.py: FAILED: expected 12, got 7"
    arrives = ToolReturned(call_id="c", content="\n".join(rows))
    return draw_change(engine, lambda engine: engine.append(arrives), shown=[4])


def mask() -> str:
    """Only the newest results stay (`rolling`): the others become placeholders in one batch."""
    return draw_change(masking_conversation(), reduce_context, shown=[4])


def masking_conversation() -> Engine:
    """Return a conversation in which the next reduction masks the first two results."""
    return conversation(policy("rolling", keep_first=0, keep_last=2), window=8_000)


def drop() -> str:
    """Masking is not enough or not used (`recent`): the oldest whole steps are dropped."""
    engine = conversation(policy("recent"), window=900)
    text = draw_change(engine, reduce_context)
    notice = next(step for step in engine.view.steps if step.kind == "notice")
    return text + f"\nin their place\n  │ {text_of(notice.utterance.fact.content)}\n"


def compact() -> str:
    """A summary replaces the steps that it covers."""
    summary = "Parts 1 and 2 fail in tests 12: expected 12."
    fact = Compacted(first=3, last=6, summary=summary, by="gpt-4.1-mini")
    return draw_change(conversation(policy("economy"), window=8_000), lambda engine: engine.append(fact))


def revert() -> str:
    """A reduction is undone: its event no longer has an effect, and the view is as before."""
    engine = masking_conversation()
    reduce_context(engine)
    masked = engine.log[-1].seq
    return draw_change(engine, lambda engine: engine.append(Reverted(target=masked)))


def rewind() -> str:
    """The caller edited the history: events after the common prefix no longer have an effect."""

    def change(engine: Engine) -> None:
        engine.append(Rewound(to=6, keep_reductions=True))
        engine.append(UserSaid(content="Leave parts 3 and 4 alone."))

    return draw_change(conversation(policy("economy"), window=8_000), change)


def undo() -> str:
    """A session undoes a mask after a later turn."""
    return in_session(lambda session: session.undo("e11"))


def rewind_session() -> str:
    """A session rewinds to an earlier event and to the reductions of that time."""
    return in_session(lambda session: session.rewind(8))


def in_session(change: Callable[[Session], Awaitable[object]]) -> str:
    """Draw the log of a session with a mask and a later turn, before and after a change."""
    engine = masking_conversation()
    reduce_context(engine)
    engine.append(ModelSaid(content="Test 12 fails in all of them."))
    engine.append(UserSaid(content="Since when?"))

    async def changed() -> Engine:
        async with MemoryStore() as store:
            await store.append("demo", engine.log)
            settings: dict[str, Any] = {"policy": engine.policy, "reserve": 0, "tokenizer": "estimate"}
            session = await Session.open(store, "demo", model=engine.model, **settings)
            await change(session)
            return Engine(
                EngineSettings(engine.model, engine.policy, Caps(reserve=0), Estimate()),
                log=await session.events(),
            )

    return compare(levels(engine), asyncio.run(changed()))


# ── Summaries ────────────────────────────────────────────────────────────────────────────────────────────

TURNS = (
    ("Make part 1 green.", "part1", "Part 1 is green: the bound in part1/price.py was wrong."),
    ("Now part 2.", "part2", "Part 2 is green too: it had the same bound."),
    ("And part 3?", "part3", "Part 3 was green before."),
    ("Which bound was it?", "part1", "The one in part1/price.py."),
)
SUMMARY_ANSWER = """<summary>
## Goal
All parts are green, one after the other.
## Decisions
The bound in part1/price.py is the cause.
## State
The parts so far are done, and the tests pass.
## Next
-
## Dead ends
-
</summary>"""
"""The answer of the scripted model."""


async def write_summary(request: object) -> str:
    return SUMMARY_ANSWER


def turn(number: int) -> list[AnyFact]:
    """Return a user request, a call, its result and an answer."""
    asked, part, answer = TURNS[number]
    call = Call(id=f"c{number}", name="bash", arguments=f'{{"command": "pytest {part}"}}')
    log = "\n".join(f"{part}/test_{row}.py: passed" for row in range(40))
    said = ModelSaid(content=answer)
    return [
        UserSaid(content=asked),
        ModelSaid(content=(call,)),
        ToolReturned(call_id=call.id, content=log),
        said,
    ]


def session_states(*changes: Callable[[Session], Awaitable[object]]) -> list[Engine]:
    """Return the state of a summarising session after each change."""
    known = model("gpt-4.1", window=3_000)
    settings: dict[str, Any] = {"policy": policy("handoff"), "reserve": 0}

    async def changed() -> list[Engine]:
        found = []
        async with MemoryStore() as store:
            session = await Session.open(
                store, "demo", model=known, tokenizer="estimate", summarise=write_summary, **settings
            )
            await session.append(Instructed(content="You are careful."))
            for change in changes:
                await change(session)
                log = await session.events()
                found.append(
                    Engine(EngineSettings(known, settings["policy"], Caps(reserve=0), Estimate()), log=log)
                )
        return found

    return asyncio.run(changed())


def append_turns(*numbers: int) -> Callable[[Session], Awaitable[object]]:
    """Append turns and the user request of the next one.

    The user request of the first turn is left out unless it is turn 0: the previous call has appended it."""
    facts = [fact for number in numbers for fact in turn(number)][1 if numbers[0] else 0 :]
    return lambda session: session.append(*facts, *turn(numbers[-1] + 1)[:1])


def compact_session(session: Session) -> Awaitable[object]:
    return session.compact()


def one_summary() -> str:
    """Old turns are replaced by a summary."""
    before, after = session_states(append_turns(0, 1), compact_session)
    return compare(levels(before), after, shown=[after.log[-1].seq])


def two_summaries() -> str:
    """The session continues and is compacted again: both summaries are shown."""
    before, after = session_states(append_turns(0, 1), compact_session, append_turns(2), compact_session)[-2:]
    return compare(levels(before), after)


def summary_undone() -> str:
    """The first of two summaries is undone."""
    states = session_states(
        append_turns(0, 1),
        compact_session,
        append_turns(2),
        compact_session,
        lambda session: session.undo("e11"),
    )
    return compare(levels(states[-2]), states[-1])


def nested() -> str:
    """Two overlapping summaries, one that covers both, and its undo."""
    engine = conversation(policy("economy"), window=8_000)
    rows, states = [], []
    for fact in (
        Compacted(first=3, last=6, summary="A: parts 1 and 2 fail.", by="you"),
        Compacted(first=5, last=8, summary="B: parts 2 and 3 fail.", by="you"),
        Compacted(first=3, last=8, summary="C: parts 1 to 3 fail.", by="you"),
        Reverted(target=13),
    ):
        rows.append(engine.append(fact).handle)
        states.append(levels(engine))
    output = [f"{'log':<50}" + "".join(f"{f'after {row}':<14}" for row in rows).rstrip()]
    for event in engine.log:
        what = f"  {event.handle:<4}{kind(event.fact):<14}{describe_event(event)}"
        output.append(
            (f"{what:<50}" + "".join(f"{state.get(event.seq, ''):<14}" for state in states)).rstrip()
        )
    return "\n".join(output) + "\n"


# ── Output of commands ──────────────────────────────────────────────────────────────────────────────────


def commands(*lines: str) -> str:
    """Run commands in a new folder with recordings of the tests, and return their output."""
    output = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("codex.jsonl", "claude_code.jsonl"):
            (Path(folder) / name).write_bytes((ROOT / "tests" / "data" / "transcripts" / name).read_bytes())
        for command in ("import codex.jsonl claude_code.jsonl", *lines):
            wanted = {**os.environ, "PYTHONIOENCODING": "utf-8", "TZ": "UTC", "FOVEAL_STORE": "chats.db"}
            words = ["-m", "foveal.cli", *command.split()]
            done = warm_start.run(words, encoding="utf-8", cwd=folder, env=wanted)
            assert done.returncode == 0, done.stderr
            output.append(
                "\n".join([f"$ foveal {command}", *map(str.rstrip, done.stdout.splitlines())]) + "\n"
            )
    return "\n".join(output if "sessions" in lines else output[1:])


def imported() -> str:
    """Import two files and list the sessions."""
    return commands("sessions")


def log() -> str:
    """Print the log of one session."""
    return commands("log s-1")


def show() -> str:
    """Print what the model saw before the user went back, and what it sees now."""
    return commands("show s-1 --at 11", "show s-1")


def demo_lines(**environment: str) -> list[str]:
    """Return the output of the demo as lines."""
    printed = StringIO()
    with patch.dict(os.environ, environment), redirect_stdout(printed):
        assert foveal_demo.main([]) == 0
    return printed.getvalue().splitlines()


def card() -> str:
    """Return the context card at the end of the demo."""
    rows = demo_lines()
    start = next(place for place, row in enumerate(rows) if row.startswith("The card"))
    return "\n".join(rows[start + 1 : rows.index("", start)]) + "\n"


def presets() -> str:
    """Return the settings of each preset that differ from the defaults, as TOML."""
    plain = {name: chosen.values() for name, chosen in PRESETS.items()}
    return "\n".join(f"[{name}]\n{_table(values)}" for name, values in plain.items())


def _table(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {_value(value)}\n" for name, value in values.items() if name != "name")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        known = {name: inner for name, inner in value.items() if inner is not None}
        return "{ " + ", ".join(f"{name} = {_value(inner)}" for name, inner in known.items()) + " }"
    return json.dumps(value)


def errors() -> str:
    """Return the tree of errors from the docstring of the errors module."""
    drawn = [row for row in (foveal.errors.__doc__ or "").splitlines() if row.startswith("    ")]
    return "\n".join(row[4:] for row in drawn) + "\n"


# ── The source tree ─────────────────────────────────────────────────────────────────────────────────────

SOURCE = ROOT / "src" / "foveal"
_COLUMN = 24


def tree() -> str:
    """Return the packages of the source with what each is, and their modules."""
    return "".join(f"{row}\n" for row in ["src/foveal/", *_folder(SOURCE)])


def packages() -> str:
    """Return the packages of the source with what each is."""
    return "".join(f"{row}\n" for row in ["src/foveal/", *_folder(SOURCE, modules=False)])


def _folder(folder: Path, *, modules: bool = True) -> list[str]:
    """Return the rows of everything inside a package."""
    depth = len(folder.relative_to(SOURCE).parts) + 1
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__") if modules else []
    indent = " " * _COLUMN
    rows = textwrap.wrap(", ".join(names), width=110, initial_indent=indent, subsequent_indent=indent)
    for package in sorted(path.parent for path in folder.glob("*/__init__.py")):
        name = "  " * depth + package.name + "/"
        rows.append(f"{name:<{_COLUMN}}{_first_sentence(package / '__init__.py')}")
        rows += _folder(package, modules=modules)
    return rows


def _first_sentence(path: Path) -> str:
    doc = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").replace("\n", " ")
    return re.split(r"(?<=\.)\s", doc)[0]


def layers() -> str:
    """Return the layers of the library, and what each product imports beside it, from the test that checks them."""
    checked = ast.parse((ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    values = {
        getattr(node.target, "id", ""): node.value
        for node in checked.body
        if isinstance(node, ast.AnnAssign) and node.value
    }
    library = "".join(f"{line}\n" for line in ast.literal_eval(values["LIBRARY"]))
    products: dict[str, str] = ast.literal_eval(values["PRODUCTS"])
    rows = "".join(f"{name:<11} {others}".rstrip() + "\n" for name, others in products.items())
    return f"{library}--- products, and what each imports beside the library ---\n{rows}"


PICTURE = ROOT / "docs" / "demo.svg"


def picture() -> str:
    """Return the demo's terminal output, up to the context card, as SVG."""
    rows = demo_lines(FORCE_COLOR="1")
    return terminal(rows[: next(place for place, row in enumerate(rows) if "The card" in row) - 1])


DRAWINGS: dict[str, Callable[[], str]] = {
    drawn.__name__: drawn
    for drawn in (
        clip,
        mask,
        drop,
        compact,
        revert,
        rewind,
        undo,
        rewind_session,
        one_summary,
        two_summaries,
        summary_undone,
        nested,
        imported,
        log,
        show,
        card,
        presets,
        errors,
        tree,
        packages,
        layers,
    )
}


def redraw(page: str) -> str:
    """Return a page with all of its drawings updated."""
    return DRAWING_PATTERN.sub(lambda found: found[1] + DRAWINGS[found[2]]() + found[4], page)


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        path.write_text(redraw(path.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
