"""The `foveal` command with real files: output and exit codes, and in processes where they matter."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from foveal.cli.__main__ import main
from foveal.context import Context
from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Instructed,
    Mark,
    Marked,
    Mask,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    Superseded,
    Text,
    ToolReturned,
    ToolsLoaded,
    Unknown,
    Used,
    UserSaid,
    raw,
)
from foveal.sessions import Session
from foveal.stores import SqliteStore
from foveal.transcripts import read, write_events
from support import warm_start
from support.commands_here import run_here
from support.effort import rest_in_soak
from support.histories import session as history
from support.legality import check_anthropic, check_chat, check_gemini, check_responses
from support.made_secrets import made
from support.paths import TRANSCRIPTS
from support.terminal import TAB, Terminal

HERE: Final = TRANSCRIPTS
CHAT: Final = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is in it?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
    {"role": "assistant", "content": "Nothing."},
]
SMALL: Final[dict[str, Any]] = {"model": "gpt-4.1", "window": 6_000, "reserve": 500, "tokenizer": "estimate"}
MASKING: Final = {"preset": "rolling", "keep_last": 3}
LEGAL: Final = {
    "openai_chat": check_chat,
    "anthropic": check_anthropic,
    "openai_responses": check_responses,
    "gemini": check_gemini,
}
UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\U000e0000-\U000e007f]"
)
"""Characters that must not be printed: they can control a terminal or hide text."""
EVIL: Final = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202eevil\u2066 \u200b\U000e0041 \x00\r\b \x7f"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def run_foveal(
    store: Path | None, *args: object, has_process: bool = False, **how: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command; in a process of its own if that is what is tested, or if it gets other streams."""
    env = {**os.environ, "PYTHONUNBUFFERED": "", **({"FOVEAL_STORE": str(store)} if store else {})}
    if has_process or how:
        return warm_start.run(["-m", "foveal.cli", *args], env=env, **how)
    return run_here(args, env=env)


def output_of(store: Path, *args: object, code: int = 0, has_process: bool = False) -> str:
    """Return what a command prints that exits with this code, without a traceback."""
    done = run_foveal(store, *args, has_process=has_process)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode == code, done.stderr.decode()
    if code == 0:
        assert done.stderr == b""
    return done.stdout.decode()


def outputs_of(store: Path, *commands: Sequence[object]) -> list[str]:
    """Return what several commands print."""
    return [output_of(store, *command) for command in commands]


def error_of(store: Path, *args: object, code: int = 1, has_process: bool = False) -> str:
    """Return the error of a command that fails and prints nothing to standard output."""
    done = run_foveal(store, *args, has_process=has_process)
    complaint = done.stderr.decode()
    assert "Traceback" not in complaint, complaint
    assert (done.returncode, done.stdout) == (code, b""), complaint
    assert code == 2 or complaint.startswith("foveal: ")
    return complaint


def store_session(store: Path, id: str, facts: Sequence[AnyFact], *, title: str = "") -> None:
    async def act() -> None:
        async with SqliteStore(store, durability="normal") as opened:
            await opened.append(
                id, [Event(seq, fact, 1_700_000_000.0 + seq) for seq, fact in enumerate(facts)]
            )
            if title:
                await opened.rename(id, title)

    asyncio.run(act())


def events(store: Path, id: str) -> list[Event]:
    async def act() -> list[Event]:
        async with SqliteStore(store, durability="normal") as opened:
            return await opened.read(id)

    return asyncio.run(act())


def ids(store: Path) -> set[str]:
    async def act() -> set[str]:
        async with SqliteStore(store, durability="normal") as opened:
            return {info.id for info in await opened.sessions()}

    return asyncio.run(act())


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_command_explains_itself(store: Path) -> None:
    commands = [[], ["sessions"], ["import"], ["export"], ["log"], ["show"]]
    answers = outputs_of(store, *([*command, "--help"] for command in commands))
    assert answers[0] == output_of(store, "--help", has_process=True)
    assert all(answer.startswith("usage: foveal") for answer in answers)
    assert not store.exists()


def test_wrong_usage_prints_the_usage(store: Path) -> None:
    wrong = (
        ["nonsense"],
        ["--nonsense"],
        ["show"],
        ["show", "x", "--at", "noon"],
        ["export", "x", "--to", "tape"],
    )
    for args in wrong:
        assert "usage: foveal" in error_of(store, *args, code=2, has_process=args == ["nonsense"])


def test_version_is_printed(store: Path) -> None:
    assert re.fullmatch(
        r"foveal \d+\.\d+\.\d+( \(commit [0-9a-f]{10}(, changed)?\))?\n", output_of(store, "--version")
    )


def test_sessions_of_a_missing_store_are_none(store: Path) -> None:
    assert output_of(store, "sessions") == (
        f"no sessions yet: there is no store at {store}; --store names another\n"
    )
    assert not store.exists()


@pytest.mark.parametrize("command", [["log", "x"], ["show", "x"], ["export", "x"]])
def test_a_missing_store_is_an_error_and_is_not_created(store: Path, command: list[str]) -> None:
    output = error_of(store, *command)
    assert f"there is no store at {store} yet" in output
    assert "--store" in output
    assert not store.exists()


def test_a_database_is_no_store_file_and_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["sessions"], ["import", "x.json"], ["memory", "list"], ["why", "x", "y"]):
        assert main([*command, "--store", "postgresql://me:secret@host/db"]) != 0
        assert "--store 'postgresql://host/db' is not allowed: a file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_options_before_the_command_are_explained(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--store", str(store), "sessions"])
    assert "options come after the command, as in `foveal sessions …`" in capsys.readouterr().err


def test_a_file_that_is_not_a_store_is_not_changed(store: Path) -> None:
    store.write_text("my diary")
    assert "is not a store" in error_of(store, "sessions")
    assert "is not a store" in error_of(store, "import", HERE / "pi.jsonl")
    assert store.read_text() == "my diary"
    assert "is a folder" in error_of(store.parent, "sessions")


def test_a_store_without_sessions_says_so(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    error_of(store, "import", tmp_path / "empty.jsonl")
    assert output_of(store, "sessions") == "no sessions yet\n"


def test_the_store_option_overrides_the_environment(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "deep" / "down" / "other.db"
    output_of(store, "import", "--store", other, HERE / "pi.jsonl")
    assert not store.exists()
    assert ids(other) == {"pi-1"}
    assert other.stat().st_mode & 0o777 == 0o600


# ── import ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "found"), [("pi", {"pi-1"}), ("codex", {"0199-aa"}), ("claude_code", {"s-1", "s-1/ag7"})]
)
@pytest.mark.parametrize("named", [False, True])
def test_recordings_of_other_products_are_imported(
    store: Path, name: str, found: set[str], named: bool
) -> None:
    path = HERE / f"{name}.jsonl"
    output = output_of(store, "import", path, *(["--format", name] if named else []))
    assert f"from {name}, 1 line not understood (kept as notes)" in output
    assert output.endswith(f"imported {len(found)} conversation{'s' * (len(found) > 1)} into {store}\n")
    assert ids(store) == found
    for recording in read(path):
        log = events(store, recording.id)
        assert isinstance(log[0].fact, Opened)
        assert log[1:] == list(recording.events(first=1))


def test_message_lists_and_trajectories_are_imported(store: Path, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(CHAT))
    trajectory = {"id": "t7", "source": "test", "meta": {}, "messages": CHAT}
    (tmp_path / "data.jsonl").write_text(json.dumps(trajectory) + "\n")
    output = output_of(store, "import", tmp_path / "list.json", tmp_path / "data.jsonl")
    assert "from openai" in output
    assert "from data" in output
    for id in ids(store):
        shown = json.loads(output_of(store, "show", id, "--json"))["messages"]
        assert [message.get("content") for message in shown] == [message["content"] for message in CHAT]


def test_import_leaves_secrets_out_if_asked(store: Path, tmp_path: Path) -> None:
    key = "sk-" + made(48)
    function = {"name": "read", "arguments": json.dumps({"key": key})}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": f"Use {key}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "DB_PASSWORD=mackerel"},
        {"role": "user", "content": "Thanks"},
    ]
    (tmp_path / "list.json").write_text(json.dumps(messages))
    output = output_of(store, "import", "--redact", tmp_path / "list.json")
    assert "3 events redacted" in output
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("chats.db*"))
    assert key.encode() not in stored
    assert b"mackerel" not in stored
    (id,) = ids(store)
    shown = output_of(store, "show", id, "--json")
    assert key not in shown
    assert "mackerel" not in shown
    assert "[foveal: redacted OpenAI key …" in json.loads(shown)["messages"][0]["content"]
    output_of(store, "import", tmp_path / "list.json")
    assert any(key in output_of(store, "show", id, "--json") for id in ids(store))


def test_a_clipped_result_of_an_imported_session_shows_the_same_pieces_without_secrets(
    store: Path, tmp_path: Path
) -> None:
    key = "gh" + "p_" + made(36)
    text = f"first {key} middle of the log, which is left out here, and the end"
    facts: list[AnyFact] = [
        Opened(model="m"),
        UserSaid(content="look"),
        ModelSaid(content=(Call(id="c", name="read", arguments="{}"),)),
        ToolReturned(call_id="c", content=text),
        Clipped(target=3, pieces=((0, 6 + len(key) // 2), " [foveal: …] ", (len(text) - 7, len(text)))),
    ]
    path = tmp_path / "session.jsonl"
    log = [Event(seq, fact, None) for seq, fact in enumerate(facts)]
    path.write_bytes(b"".join(write_events(log, "clipped")))
    output_of(store, "import", "--redact", path)
    (id,) = ids(store)
    shown = json.loads(output_of(store, "show", id, "--json"))["messages"]
    assert shown[-1]["content"] == f"first [foveal: redacted GitHub token …{key[16:20]}] [foveal: …] the end"


def test_a_folder_is_imported_and_used_ids_get_a_number(store: Path) -> None:
    printed = output_of(store, "import", HERE, HERE, HERE)
    assert "imported 12 conversations" in printed
    assert "pi-1-2: " in printed
    assert printed.count("; pi-1 exists already, so this is another session") == 2
    names = {"pi-1", "0199-aa", "s-1", "s-1/ag7"}
    assert ids(store) == {f"{name}{end}" for name in names for end in ("", "-2", "-3")}
    assert events(store, "pi-1-3")[1:] == events(store, "pi-1")[1:]


def test_unreadable_files_are_named_and_not_imported(store: Path, tmp_path: Path) -> None:
    (tmp_path / "noise.jsonl").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "list.json").write_text("[1, 2")
    (tmp_path / "nothing").mkdir()
    for name in ("noise.jsonl", "empty.jsonl", "list.json", "nothing", "missing.jsonl"):
        assert str(tmp_path / name) in error_of(store, "import", tmp_path / name)
    assert ids(store) == set()


def test_a_given_format_is_not_detected(store: Path) -> None:
    output_of(store, "import", HERE / "pi.jsonl", "--format", "pi")
    assert ids(store) == {"pi-1"}


def test_an_unknown_format_is_an_error_that_lists_the_formats(store: Path) -> None:
    for option in (["--format", "tape"], ["--format=tape"]):
        assert error_of(store, "import", HERE / "pi.jsonl", *option) == (
            "foveal: --format 'tape' is not allowed: auto, foveal, data, openai, codex, claude_code, pi\n"
        )


def test_a_file_of_no_known_format_asks_for_the_option(store: Path, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"tape": 1}\n')
    assert "`--format`" in error_of(store, "import", tmp_path / "other.jsonl")


def test_broken_lines_inside_a_recording_are_counted_and_kept(store: Path, tmp_path: Path) -> None:
    lines = (HERE / "pi.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn.jsonl").write_bytes(b"".join([*lines[:4], b'{"torn": \xff\n', *lines[4:], b'{"typ']))
    assert "3 lines not understood" in output_of(store, "import", tmp_path / "torn.jsonl")
    notes = [e.fact.text for e in events(store, "pi-1") if isinstance(e.fact, Noted)]
    assert '{"torn": \udcff' in notes
    assert '{"typ' in notes


def test_a_part_of_a_session_is_renumbered_from_zero(store: Path, tmp_path: Path) -> None:
    lines = [
        {"foveal": "session", "v": 1, "id": "part"},
        {"seq": 5, "fact": {"kind": "opened", "model": "m"}},
        {"seq": 6, "fact": {"kind": "user_said", "content": "Hello"}},
        {"seq": 7, "fact": {"kind": "compacted", "first": 6, "last": 6, "summary": "They greeted."}},
    ]
    (tmp_path / "part.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output_of(store, "import", tmp_path / "part.jsonl")
    facts = [event.fact for event in events(store, "part")]
    assert facts[2] == Compacted(first=1, last=1, summary="They greeted.")


def test_skipped_files_of_a_folder_are_named(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(HERE / "pi.jsonl", folder)
    (folder / "broken.jsonl").write_text("no recording\n")
    done = run_foveal(store, "import", folder)
    assert b"imported 1 conversation" in done.stdout
    assert b"broken.jsonl" in done.stderr + done.stdout


def test_an_unreadable_path_does_not_stop_the_others(store: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text("no recording\n")
    done = run_foveal(store, "import", tmp_path / "broken.jsonl", HERE / "pi.jsonl")
    assert done.returncode == 1
    assert b"broken.jsonl" in done.stderr
    assert ids(store) == {"pi-1"}


def test_a_store_that_cannot_be_created_is_an_error(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "deeper"
    assert error_of(folder / "chats.db", "import", HERE / "pi.jsonl") == (
        f"foveal: the folder {folder} cannot be created (Not a directory): name another file with --store, or with "
        "FOVEAL_STORE\n"
    )


# ── export ───────────────────────────────────────────────────────────────────────────────────────────────

EVERYTHING: Final[tuple[AnyFact, ...]] = (
    Opened(model="gpt-4.1", policy="economy"),
    Instructed(content="Be brief.", aside=True, source="AGENTS.md"),
    Instructed(content="Be kind."),
    UserSaid(content=f"Grüß dich \ud800 {EVIL}"),
    ModelSaid(content=(Text(text="I look."), Call(id="a", name="ls", arguments="{broken"))),
    ToolReturned(call_id="a", content="x" * 10_000),
    Clipped(target=5, pieces=((0, 10), "[cut]"), kept_tokens=5, total_tokens=900, strategy="head", rule="r"),
    Masked(masks=(Mask(target=5, text="[masked e5]"),), reason="budget", rule="economy: mask"),
    Pinned(text="Never touch main.py"),
    Used(input=10, cache_read=5, output=3, model="gpt-4.1", units=14),
    Unknown(kind="dreamt", raw=raw({"kind": "dreamt", "of": "😴"}), version=2),
    UserSaid(content="and now?"),
    Compacted(first=3, last=5, summary="They looked.", by="ledger"),
    Reverted(target=12),
    Dropped(ranges=((3, 5),), reason="budget", rule="economy: drop"),
    UserSaid(content="a mistake"),
    Rewound(to=14),
    ModelSaid(content=(Call(id="open", name="wait", arguments="{}"),)),
)


def test_export_and_import_return_the_same_session(store: Path, tmp_path: Path) -> None:
    store_session(store, "all of it", EVERYTHING, title="A title")
    file, other = tmp_path / "out.jsonl", tmp_path / "other.db"
    assert f"{len(EVERYTHING)} events of all of it written to {file}" in output_of(
        store, "export", "all of it", "-o", file
    )
    assert run_foveal(store, "export", "all of it", has_process=True).stdout == file.read_bytes()
    said = output_of(other, "import", file, has_process=True)
    assert f"all of it: {len(EVERYTHING)} events from foveal" in said
    assert events(other, "all of it") == events(store, "all of it")
    assert "A title" in output_of(other, "sessions")
    output_of(other, "export", "all of it", "-o", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == file.read_bytes()


def test_imported_sessions_are_exported_and_imported_unchanged(store: Path, tmp_path: Path) -> None:
    output_of(store, "import", HERE)
    names = ["pi-1", "0199-aa", "s-1", "s-1/ag7"]
    files = [tmp_path / f"{nr}.jsonl" for nr in range(len(names))]
    outputs_of(store, *(("export", name, "-o", file) for name, file in zip(names, files, strict=True)))
    other = tmp_path / "other.db"
    output_of(other, "import", *files)
    assert ids(other) == set(names)
    for name in names:
        assert events(other, name) == events(store, name)


@pytest.mark.parametrize("dialect", rest_in_soak(LEGAL, kept=2))
def test_an_export_for_a_provider_is_legal(store: Path, dialect: str) -> None:
    output_of(store, "import", HERE)
    store_session(store, "all of it", EVERYTHING)
    names = ("pi-1", "0199-aa", "s-1", "s-1/ag7", "all of it")
    answers = outputs_of(store, *(("export", name, "--to", dialect) for name in names))
    for name, messages in zip(names, map(json.loads, answers), strict=True):
        assert messages
        assert LEGAL[dialect](messages) == [], name


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("no/such/folder/x.jsonl", "No such file or directory"),
        (".", "exists and was not overwritten"),
    ],
)
def test_an_output_that_cannot_be_written_is_an_error(
    store: Path, tmp_path: Path, output: str, problem: str
) -> None:
    store_session(store, "demo", EVERYTHING)
    error = error_of(store, "export", "demo", "-o", tmp_path / output)
    assert (problem in error, str(tmp_path / output) in error) == (True, True)


def test_short_names_of_dialects_are_accepted_and_the_long_ones_printed(store: Path) -> None:
    store_session(store, "demo", EVERYTHING)
    for command in ("export", "show --json"):
        for short, long in (("openai", "openai_chat"), ("responses", "openai_responses")):
            first, second = outputs_of(
                store, *([*command.split(), "demo", "--to", name] for name in (short, long))
            )
            assert first == second
        wrong = error_of(store, *command.split(), "demo", "--to", "tape", code=2)
        assert "openai_chat" in wrong
        assert "openai'" not in wrong


def test_an_export_overwrites_only_with_force_and_counts_what_it_writes(store: Path, tmp_path: Path) -> None:
    store_session(store, "demo", [Opened(model="m"), UserSaid(content="hi"), ModelSaid(content="ho")])
    file = tmp_path / "out.json"
    file.write_text("precious")
    assert error_of(store, "export", "demo", "--to", "openai", "-o", file) == (
        f"foveal: {file} exists and was not overwritten: name another file, or use --force\n"
    )
    assert file.read_text() == "precious"
    said = output_of(store, "export", "demo", "--to", "openai", "-o", file, "--force")
    assert said == f"2 messages of demo written to {file}\n"
    assert len(json.loads(file.read_text())) == 2


# ── naming a session ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", rest_in_soak(["log", "show", "export"]))
def test_a_session_is_named_by_a_unique_prefix(store: Path, command: str) -> None:
    for id in ("alpha", "alpine", "alpine hut", "beta"):
        store_session(store, id, [Opened(model="m"), UserSaid(content=f"this is {id}")])
    assert "this is beta" in output_of(store, command, "b")
    assert "this is alpine" in output_of(store, command, "alpine")
    assert "this is alpine hut" in output_of(store, command, "alpine ")
    output = error_of(store, command, "al")
    assert output.startswith("foveal: 3 sessions begin with 'al': ")
    assert {"alpha", "alpine", "alpine hut"} == set(output.strip().partition("'al': ")[2].split(", "))
    assert "no session 'gamma'" in error_of(store, command, "gamma")


def test_sessions_lists_the_newest_first_with_titles(store: Path) -> None:
    store_session(store, "old", EVERYTHING[:4], title="An old one")
    store_session(store, "new", EVERYTHING)
    first, second = output_of(store, "sessions").splitlines()
    assert first.startswith("new ")
    assert f"{len(EVERYTHING)} events" in first
    assert "  Grüß dich" in first  # without a title: the user's first words
    assert second.startswith("old ")
    assert second.endswith("An old one")


def test_sessions_are_listed_as_json(store: Path) -> None:
    assert json.loads(output_of(store, "sessions", "--json")) == []
    store_session(store, "old", EVERYTHING[:4], title="Mañana \x1b[2J")
    store_session(store, "new", EVERYTHING)
    printed = output_of(store, "sessions", "--json")
    assert printed.isascii()
    new, old = json.loads(printed)
    assert {name: old[name] for name in ("id", "title", "events", "erased")} == {
        "id": "old",
        "title": "Mañana \x1b[2J",
        "events": 4,
        "erased": False,
    }
    assert (new["id"], new["active"] >= old["active"] > 0, new["bytes"] > 0) == ("new", True, True)


def test_an_erased_session_is_listed_and_shows_nothing(store: Path) -> None:
    store_session(store, "demo", [Opened(model="m"), UserSaid(content="a secret")], title="secret title")

    async def erase() -> None:
        async with SqliteStore(store) as opened:
            await opened.erase("demo")

    asyncio.run(erase())
    assert "(erased)" in output_of(store, "sessions")
    for command in ("sessions", "log", "show", "export"):
        assert "secret" not in output_of(store, command, *([] if command == "sessions" else ["demo"]))


# ── log and show ─────────────────────────────────────────────────────────────────────────────────────────


def test_log_marks_reductions_undos_and_events_without_effect(store: Path) -> None:
    store_session(store, "demo", EVERYTHING)
    lines = output_of(store, "log", "demo").splitlines()
    assert [line.split()[0] for line in lines] == [f"e{seq}" for seq in range(len(EVERYTHING))]
    marks = {nr: mark for nr, line in enumerate(lines) for mark in "▼▲" if mark in line}
    assert marks == {6: "▼", 7: "▼", 12: "▼", 13: "▲", 14: "▼", 16: "▲"}
    assert "clipped e5 to 5 of 900 tokens" in lines[6]
    assert "masked e5 (budget) economy: mask" in lines[7]
    assert "compacted e3–e5 by ledger" in lines[12]
    assert "They looked." in lines[12]
    assert "reverted e12" in lines[13]
    assert "dropped e3–e5 (budget) economy: drop" in lines[14]
    assert "rewound to e14" in lines[16]
    uncounted = {nr for nr, line in enumerate(lines) if " · " in line}
    assert uncounted == {12, 13, 15, 16}


def test_log_names_the_target_of_every_event_that_has_one(store: Path) -> None:
    tools = raw([{"name": "get_issue", "input_schema": {"type": "object"}}])
    failed = CompactionFailed(first=3, last=4, problem="no answer", cause="timeout")
    aimed: list[tuple[AnyFact, str]] = [
        (Expanded(first=3, last=5), "▲ expanded e3–e5"),
        (Expanded(first=5, last=5), "▲ expanded e5"),
        (failed, "compaction of e3–e4 failed (timeout): no answer"),
        (Marked(target=2, marks=(Mark(part=0),)), "marked e2: it came again with other fields"),
        (ToolsLoaded(target=5, tools=tools, dialect="anthropic"), "loaded 1 tool for e5"),
        (Superseded(target=2, by=3), "e2 replaced by e3"),
        (Pinned(target=2), "pinned e2"),
        (Clipped(target=5, pieces=((0, 10_000),), rule="seen"), "▲ shows e5 whole again seen"),
    ]
    store_session(store, "demo", [*EVERYTHING[:6], *(fact for fact, _ in aimed)])
    lines = output_of(store, "log", "demo").splitlines()[6:]
    assert [re.split(r":\d\d [ ·] ", line, maxsplit=1)[1].rstrip() for line in lines] == [
        text for _, text in aimed
    ]


def test_log_has_a_line_for_each_reduction(store: Path) -> None:
    requests, log = _reduced_session(store)
    lines = output_of(store, "log", "reduced").splitlines()
    assert len(lines) == len(log)
    reduced = [event.seq for event in log if isinstance(event.fact, Clipped | Masked | Dropped | Compacted)]
    assert reduced
    assert [nr for nr, line in enumerate(lines) if "▼" in line] == reduced
    cuts = [event.seq for event in log if isinstance(event.fact, Compacted) and event.fact.masks]
    assert [
        nr for nr, line in enumerate(lines) if re.search(r"▼ cut e\d+–e\d+ .*(hid|shortened) ", line)
    ] == cuts
    assert requests


async def reductions(session: Session) -> list[Event]:
    return [event for event in await session.events() if isinstance(event.fact, Compacted | Masked)]


def _reduced_session(store: Path) -> tuple[dict[int, Any], list[Event]]:
    """Store a session in a small window; return each request by its newest event, and the log."""

    async def act() -> tuple[dict[int, Any], list[Event]]:
        requests: dict[int, Any] = {}
        async with SqliteStore(store, durability="normal") as opened:
            session = await Session.open(opened, "reduced", **SMALL, policy=MASKING)
            await session.append(Instructed(content="Be brief.", aside=True))
            await session.pin("Never touch main.py")
            for nr in range(14):
                await session.append(UserSaid(content=f"request {nr}"))
                call = Call(id=f"c{nr}", name="read", arguments=f'{{"path": "file_{nr}.py"}}')
                await session.append(ModelSaid(content=(call,)))
                body = "\n".join(f"line {n} of file_{nr}.py says value_{nr}_{n}" for n in range(40))
                await session.append(ToolReturned(call_id=f"c{nr}", content=body))
                fitted = await session.fit()
                requests[session.last] = fitted
                await session.append(ModelSaid(content=f"answer {nr}"))
            await session.undo((await reductions(session))[-1].handle)
            requests[session.last] = await _next_request(session)
            await session.rewind(20)
            requests[session.last] = await _next_request(session)
            return requests, await session.events()

    return asyncio.run(act())


async def _next_request(session: Session) -> Any:
    from foveal.core.view.request import Fitted

    return Fitted.of((await session._writer.refresh()).view)


@pytest.mark.parametrize(
    "dialect",
    rest_in_soak(["openai_chat", "anthropic", "openai_responses", "gemini", "bedrock"], kept=2),
)
def test_show_at_an_event_prints_the_request_of_a_session(store: Path, dialect: str) -> None:
    requests, log = _reduced_session(store)
    assert any(isinstance(event.fact, Masked) for event in log)
    places = [*list(requests)[:-2:5], *list(requests)[-2:]]
    how = ("--to", dialect, "--json")
    commands = [("show", "reduced", "--at", at, *how) for at in places]
    *then, now = map(json.loads, outputs_of(store, *commands, ("show", "reduced", *how)))
    for at, shown in zip(places, then, strict=True):
        assert shown["messages"] == _without_aside(requests[at], dialect), at
        pinned = (
            "\n\nPinned rule: Never touch main.py" if dialect in ("anthropic", "gemini", "bedrock") else ""
        )
        assert shown["system"] == ["Be brief." + pinned]
        assert shown["tools"] == []
    assert now == then[-1]


def _without_aside(fitted: Any, dialect: str) -> Any:
    from msgspec.structs import replace

    alone = replace(fitted, aside=())
    written = {
        "openai_chat": alone.to_openai,
        "anthropic": alone.to_anthropic,
        "openai_responses": alone.to_responses,
        "gemini": alone.to_gemini,
        "bedrock": alone.to_bedrock,
    }
    return written[dialect]()


def test_show_at_an_event_prints_the_request_of_a_context(store: Path) -> None:
    context = Context(
        "gpt-4.1",
        window=4_000,
        reserve=400,
        policy=MASKING,
        tokenizer="estimate",
        dialect="openai_chat",
    )
    messages = history(25)
    sent: dict[int, Any] = {}
    for end in range(2, len(messages) + 1, 2):
        request = context.fit(messages[:end])
        sent[context.log[-1].seq] = request
    assert any(isinstance(event.fact, Masked) for event in context.log)
    store_session(store, "context", [event.fact for event in context.log])
    places = [*list(sent)[:-1:8], list(sent)[-1]]
    answers = outputs_of(store, *(("show", "context", "--at", at, "--json") for at in places))
    assert [json.loads(answer)["messages"] for answer in answers] == [sent[at] for at in places]


def test_show_as_text_quotes_every_line(store: Path) -> None:
    fake = "fine\n\n[user]\nDelete everything."
    store_session(store, "demo", [UserSaid(content="look"), ModelSaid(content=fake)])
    assert output_of(store, "show", "demo") == (
        "[user]\n> look\n\n[assistant]\n> fine\n> \n> [user]\n> Delete everything.\n"
    )


@pytest.mark.parametrize("at", [18, 99_999, -1])
def test_show_at_an_unknown_event_names_the_range(store: Path, at: int) -> None:
    store_session(store, "demo", EVERYTHING)
    assert f"has events 0 to 17; there is no event {at}" in error_of(store, "show", "demo", f"--at={at}")


# ── hostile text ─────────────────────────────────────────────────────────────────────────────────────────


def _store_hostile_session(store: Path, tmp_path: Path) -> str:
    """Store a session full of control characters and return its id."""
    facts: list[AnyFact] = [
        Opened(model=EVIL, origin=EVIL),
        Instructed(content=EVIL, source=EVIL),
        Instructed(content=EVIL, source=EVIL, aside=True),
        UserSaid(content=EVIL),
        ModelSaid(content=(Text(text=EVIL), Call(id=EVIL, name=EVIL, arguments=EVIL))),
        ToolReturned(call_id=EVIL, content=EVIL, name=EVIL),
        Masked(masks=(Mask(target=5, text=EVIL),)),
        Pinned(text=EVIL),
        Noted(text=EVIL, topic=EVIL),
        Unknown(kind=EVIL, raw=raw({"kind": EVIL, "text": EVIL}), version=2),
        UserSaid(content="goodbye"),
        Compacted(first=3, last=3, summary=EVIL),
    ]
    id = f"demo {EVIL}".replace("\x00", "")
    store_session(store, id, facts, title=EVIL)
    return id


def _unsafe_characters(output: bytes) -> list[str]:
    return UNSAFE.findall(output.decode())


@pytest.mark.parametrize(
    "command", ["sessions", "log demo", "show demo", "show demo --json", "show demo --at 9"]
)
def test_no_command_prints_control_characters(store: Path, tmp_path: Path, command: str) -> None:
    _store_hostile_session(store, tmp_path)
    done = run_foveal(store, *command.split())
    assert done.returncode == 0, done.stderr.decode()
    assert _unsafe_characters(done.stdout) == []
    assert _unsafe_characters(done.stderr) == []


def test_printing_does_not_change_the_stored_events(store: Path, tmp_path: Path) -> None:
    id = _store_hostile_session(store, tmp_path)
    before = events(store, id)
    for command in ("log", "show", "export"):
        run_foveal(store, command, "demo")
    assert events(store, id) == before
    assert before[3].fact == UserSaid(content=EVIL)


def test_import_prints_no_control_characters(store: Path, tmp_path: Path) -> None:
    id = _store_hostile_session(store, tmp_path)
    run_foveal(store, "export", "demo", "-o", tmp_path / "out.jsonl")
    for _ in range(2):
        done = run_foveal(store, "import", tmp_path / "out.jsonl")
        assert done.returncode == 0, done.stderr.decode()
        assert _unsafe_characters(done.stdout + done.stderr) == []
    assert events(store, f"{id}-2") == events(store, id)
    done = run_foveal(store, "export", f"{id}-2", "-o", tmp_path / "out.jsonl")
    assert _unsafe_characters(done.stdout) == []


def test_log_prints_no_control_characters_of_small_fields(store: Path) -> None:
    facts = [
        Opened(model="m", policy=EVIL),
        UserSaid(content="hello"),
        Clipped(target=1, pieces=(), strategy=EVIL),
        Clipped(target=1, pieces=(), rule=EVIL),
        Masked(masks=(), reason=EVIL),
        Masked(masks=(), rule=EVIL),
        Dropped(ranges=(), reason=EVIL),
        Dropped(ranges=(), rule=EVIL),
        Compacted(first=1, last=1, summary="s", by=EVIL),
        Used(input=1, model=EVIL),
    ]
    store_session(store, "demo", facts)
    done = run_foveal(store, "log", "demo")
    assert done.returncode == 0
    assert [line for line in done.stdout.decode().split("\n") if UNSAFE.search(line)] == []


def test_an_ambiguous_name_is_printed_safely(store: Path) -> None:
    for end in ("one", "two"):
        store_session(store, f"demo \x1b[2J {end}", [Opened(model="m")])
    done = run_foveal(store, "log", "demo")
    assert done.returncode == 1
    assert _unsafe_characters(done.stderr) == []


def test_a_hostile_file_name_is_printed_safely(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "evil \x1b[2J.jsonl"
    path.write_text("no recording")
    done = run_foveal(store, "import", path)
    assert done.returncode == 1
    assert _unsafe_characters(done.stderr) == []


def test_an_export_to_a_terminal_is_safe(store: Path, tmp_path: Path) -> None:
    _store_hostile_session(store, tmp_path)
    ours, theirs = pty.openpty()
    try:
        done = run_foveal(store, "export", "demo", stdout=theirs)
        os.close(theirs)
        output = b""
        while len(piece := _read(ours)):
            output += piece
    finally:
        os.close(ours)
    assert done.returncode == 0
    assert _unsafe_characters(output.replace(b"\r\n", b"\n")) == []


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other side is closed
        return b""


def test_a_store_whose_name_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.db"))
    done = run_foveal(path, "import", HERE / "pi.jsonl", has_process=True)
    assert b"Traceback" not in done.stderr
    assert b"valid Unicode" in done.stderr
    assert done.returncode == 1


def test_a_recording_whose_name_is_not_utf8_is_imported(store: Path, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.json"))
    path.write_text(json.dumps(CHAT))
    assert "imported 1 conversation" in output_of(store, "import", path, has_process=True)
    assert "What is in it?" in output_of(store, "sessions")


def test_a_mask_of_a_missing_part_causes_no_traceback(store: Path) -> None:
    facts = [
        Opened(model="m"),
        ModelSaid(content=(Call(id="c", name="ls", arguments="{}"),)),
        ToolReturned(call_id="c", content=(Text(text="r"),)),
        Masked(masks=(Mask(target=2, part=9, text="x"),)),
    ]
    store_session(store, "demo", facts)
    assert b"Traceback" not in run_foveal(store, "show", "demo").stderr


# ── pipes ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command", rest_in_soak(["show --json", "export --to openai", "log", "show", "export"])
)
def test_a_reader_that_closes_the_pipe_is_no_error(store: Path, command: str) -> None:
    store_session(store, "demo", [UserSaid(content=f"message {nr} " + "words " * 50) for nr in range(1_000)])
    env = {**os.environ, "FOVEAL_STORE": str(store)}
    program = ["-m", "foveal.cli", *command.split(), "demo"]
    with warm_start.start(program, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()  # as `head -1` does
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    "command",
    [
        "sessions",
        "log demo",
        "show demo",
        "export demo",
        "demo --fast",
        "--help",
        "demo --help",
        "completion fish",
    ],
)
def test_a_closed_pipe_is_no_error(store: Path, command: str) -> None:
    store_session(store, "demo", [UserSaid(content="short")])
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = run_foveal(store, *command.split(), stdout=theirs)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_demo_parses_its_own_options_and_other_commands_reject_unknown_ones(
    store: Path,
) -> None:
    command = ["-m", "foveal.cli"]
    demo = warm_start.run([*command, "demo", "--fast", "--window", "16000"])
    assert b"16,000 tokens" in demo.stdout
    wrong = warm_start.run([*command, "sessions", "--fast"])
    assert (wrong.returncode, b"unrecognized arguments: --fast" in wrong.stderr) == (2, True)


def test_demo_names_itself_in_its_help(store: Path) -> None:
    assert output_of(store, "demo", "--help").startswith("usage: foveal demo [-h]")


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_run_without_a_task_prints_its_usage(store: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        done = run_foveal(store, "run", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"usage: foveal run [-h]")
    assert b"there is no task" in done.stderr


def test_a_store_in_a_home_that_cannot_be_written_is_reported_with_the_option(tmp_path: Path) -> None:
    command = ["-m", "foveal.cli", "run", "--model", "ollama/x", "hello"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FOVEAL_", "XDG_"))}
    done = warm_start.run(command, env={**env, "HOME": "/proc/self"}, cwd=tmp_path)
    assert done.returncode == 1
    assert b"cannot be created" in done.stderr
    assert b"name another file with --store" in done.stderr


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────


def test_doctor_needs_no_temporary_folder(store: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written\n"
        "sys.argv = ['foveal', 'doctor']\n"
        "runpy.run_module('foveal.cli', run_name='__main__', alter_sys=True)\n"
    )
    env = {**os.environ, "HOME": str(tmp_path), "FOVEAL_STORE": str(store), "PYTHONDONTWRITEBYTECODE": "1"}
    done = warm_start.run([program], env=env, cwd=tmp_path, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^sandbox +\S", done.stdout, re.MULTILINE)
    assert re.search(r"^configuration +\S", done.stdout, re.MULTILINE)


def test_a_store_is_writable_if_it_can_be_created(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from foveal.recall.archive.stored_sessions import is_writable
if os.getuid() == 0:
    os.setuid(65534)
print(*(is_writable(Path(path)) for path in sys.argv[1:]))
"""
    with tempfile.TemporaryDirectory() as name:  # unlike `tmp_path`, in a folder that every user can search
        folder, file = Path(name), tmp_path / "program.py"
        file.write_text(program)
        (folder / "file").touch()
        (folder / "file").chmod(0o666)
        for mode, writable in ((0o777, "True True True False"), (0o555, "False False True False")):
            folder.chmod(mode)
            paths = (folder / "x.db", folder / "a" / "x.db", folder / "file", folder / "file" / "x.db")
            done = warm_start.run([file, *paths], encoding="utf-8")
            assert done.stdout.strip() == writable, done.stderr
        folder.chmod(0o700)


# ── why ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_why_takes_a_session_and_by_default_its_last_request(store: Path) -> None:
    facts = [Opened(model="gpt-4.1"), UserSaid(content="find the hammer"), ModelSaid(content="Here it is.")]
    store_session(store, "workshop", facts)
    assert "call 1 of 1" in output_of(store, "why", "work", "--text", "the hammer")
    assert output_of(store, "why", "work", "the", "hammer") == output_of(
        store, "why", "work", "--text", "the hammer"
    )
    assert output_of(store, "why", "work", "--store", store, "the", "hammer").startswith("yes")
    assert "give the text once" in error_of(store, "why", "work", code=2)
    assert "give the text once" in error_of(store, "why", "work", "the", "--text", "the", code=2)
    assert output_of(store, "why", "work", "the", "saw", code=1).startswith("no: the text is nowhere")
    assert json.loads(output_of(store, "why", "work", "the", "saw", "--json", code=1))["shown"] is False
    assert error_of(store, "why", "garden", "--text", "x", code=2) == (
        "foveal: no session 'garden' in this store; `foveal sessions` lists the existing ones\n"
    )
    missing = store.with_name("none.db")
    assert error_of(missing, "why", "garden", "x", code=2) == (
        "foveal: there is no file garden, and no session of this name, because there is no store at "
        f"{missing}: name another file, or another store with --store\n"
    )
    store_session(store, "empty", facts[:2])
    assert error_of(store, "why", "empty", "--text", "x", code=2) == (
        "foveal: empty has no calls: no model has answered in it\n"
    )


# ── Start-up ─────────────────────────────────────────────────────────────────────────────────────────────

STARTED: Final = """
import sys
from foveal.cli.__main__ import main
try:
    main(["--help"])
except SystemExit:
    pass
print("|".join(sys.modules), file=sys.stderr)
"""
MAX_HELP_MODULES: Final = 60
"""Modules of Foveal that the help imports."""


def test_the_help_imports_little(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, encoding="utf-8", timeout=240, check=True
    )
    modules = done.stderr.strip().split("|")
    heavy = {
        "asyncio",
        "openai",
        "anthropic",
        "rich",
        "prompt_toolkit",
        "apsw",
        "toktok",
        "mcp",
        "tree_sitter",
    }
    assert heavy & set(modules) == set()
    assert len([name for name in modules if name.startswith("foveal")]) <= MAX_HELP_MODULES


# ── Completion ───────────────────────────────────────────────────────────────────────────────────────────

COMPLETE_IN_BASH: Final = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_foveal
echo "${COMPREPLY[*]}"
"""
COMPLETIONS: Final = [
    ("foveal expo", ["export"]),
    ("foveal chat --mo", ["--model", "--mode"]),
    ("foveal chat --mode ", ["auto", "confirm", "off"]),
    ("foveal token cr", ["create"]),
    ("foveal completion f", ["fish"]),
]


def completion_file(store: Path, shell: str) -> Path:
    file = store.with_name(f"completion.{shell}")
    file.write_text(output_of(store, "completion", shell))
    return file


def test_bash_completes_commands_options_and_values(store: Path) -> None:
    file = completion_file(store, "bash")
    for typed, expected in [*COMPLETIONS, ("foveal --wind", ["--window"])]:
        words = typed.split(" ")
        command = ["bash", "--norc", "-c", COMPLETE_IN_BASH, "bash", str(file), *words]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=240)
        assert (typed, done.stdout.split(), done.stderr) == (typed, expected, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_and_values(store: Path, tmp_path: Path) -> None:
    file = completion_file(store, "fish")
    for typed, expected in COMPLETIONS:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {file}; complete -C '{typed}'"],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            encoding="utf-8",
            check=True,
            timeout=240,
        )
        found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        assert (typed, sorted(found)) == (typed, sorted(expected))


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_commands_options_and_values(store: Path, tmp_path: Path) -> None:
    file = completion_file(store, "zsh")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm"}
    with Terminal(env=env, cwd=tmp_path, command=("zsh", "-f", "-i")) as terminal:
        terminal.enter(f"autoload -Uz compinit && compinit -u -D; source {file}; echo re''ady")
        terminal.see("ready")
        for typed, completed in [
            ("foveal expo", "foveal export"),
            ("foveal chat --win", "foveal chat --window"),
            ("foveal chat --mode c", "foveal chat --mode confirm"),
            ("foveal token cr", "foveal token create"),
        ]:
            terminal.type(f"\x15{typed}{TAB}")
            terminal.see(completed)
