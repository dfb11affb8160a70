"""`@path` in a message: files, folders, images, what stays text, and the question for paths outside."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from foveal.agent.terminal import user_input
from foveal.agent.terminal.attachments import MAX_TYPED_CHARS, prepare_message
from foveal.agent.terminal.user_input import (
    MAX_FILE_LIST_AGE_S,
    MAX_MATCHING_FILES,
    Completions,
    MentionableFiles,
)
from foveal.agent.terminal.user_message import Attachment, UserMessage
from foveal.core.log import Media, Text, UserSaid
from foveal.providers.local.download import KNOWN_WEIGHTS
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.effort import rest_in_soak
from support.terminal import CTRL_C, ENTER, TAB


def png(width: int = 2, height: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def prepare(project: ChatProject, monkeypatch: pytest.MonkeyPatch, text: str, **options: Any) -> UserMessage:
    found: list[UserMessage] = []

    async def steps(chat: InProcessChat) -> None:
        found.append(await prepare_message(text, chat.state))

    run_chat(project, monkeypatch, steps, **options)
    return found[0]


def test_a_file_is_sent_with_the_message_and_shown_as_a_chip(project: ChatProject) -> None:
    (project.folder / "notes.md").write_text("alpha\nbeta\n")
    (project.folder / "sub").mkdir()
    (project.folder / "sub/deep.txt").write_text("deep")
    project.script("Read.", "Listed.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("what is in @no" + TAB)
        terminal.see("@notes.md")
        terminal.enter("?")
        terminal.see("Read.")
        seen = terminal.see("▪ attached: notes.md, ")
        assert re.search(r"› what is in \[notes\.md · \d+ tokens\]\?", seen)
        terminal.enter("and @sub/ please")
        terminal.see("Listed.")
    first, second = [event.fact for event in project.events() if isinstance(event.fact, UserSaid)]
    assert first.content == (
        Text(text="what is in @notes.md?"),
        Text(text="[foveal: attached notes.md]\nalpha\nbeta\n\n[foveal: end of notes.md]"),
    )
    assert second.content == (
        Text(text="and @sub/ please"),
        Text(text="[foveal: attached sub/]\ndeep.txt  4 bytes\n[foveal: end of sub/]"),
    )
    [_, message, *_] = project.request()
    assert "alpha\nbeta" in str(message["content"]).replace("\\n", "\n")


@pytest.mark.parametrize(
    "text",
    [
        "ask me@a.txt about it",
        "the decorator @property and @functools.cache",
        "@missing and @ alone, @, @.",
        "what do @app.get, @pytest.fixture and @types/node do?",
        "import x from '@scope/missing.js'",
        "\\\\@missing.txt is text",
        "a paste " + "x" * MAX_TYPED_CHARS + " @missing.txt",
        "user@example.com",
        "\\@property stays",
    ],
)
def test_what_names_no_file_stays_text(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    assert prepare(project, monkeypatch, text) == UserMessage(content=text, shown=text)


def test_an_escaped_mention_is_text_without_the_backslash(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = prepare(project, monkeypatch, "write \\@a.txt, not more")
    assert message == UserMessage(content="write @a.txt, not more", shown="write @a.txt, not more")


def test_punctuation_quotes_and_repetition(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "my notes.md").write_text("mine")
    message = prepare(project, monkeypatch, 'compare (@a.txt), @a.txt. and @"my notes.md"!')
    assert [one.name for one in message.attachments] == ["a.txt", "my notes.md"]
    first, second = (one.chip for one in message.attachments)
    assert message.shown == f"compare ({first}), {first}. and {second}!"
    assert isinstance(message.content, tuple)
    assert message.content[0] == Text(text='compare (@a.txt), @a.txt. and @"my notes.md"!')


def test_a_long_file_is_clipped_and_says_so(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "long.txt").write_text("".join(f"line {number}\n" for number in range(20_000)))
    message = prepare(project, monkeypatch, "read @long.txt", window=20_000)
    [one] = message.attachments
    assert one.tokens < 7_500 < one.total_tokens
    assert one.size == f"{one.tokens:,} of {one.total_tokens:,} tokens"
    assert isinstance(one.part, Text)
    assert "whole text: the file]" in one.part.text


def test_images_are_sent_by_mention_and_by_absolute_path(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "a.png").write_bytes(png())
    (project.folder / "my pic.png").write_bytes(png(4, 4))
    dropped = str(project.folder / "my pic.png").replace(" ", "\\ ")
    message = prepare(project, monkeypatch, f"what is on @a.png and {dropped}")
    assert [type(one.part) for one in message.attachments] == [Media, Media]
    assert [one.name for one in message.attachments] == ["a.png", str(project.folder / "my pic.png")]
    assert "[a.png · image, " in message.shown


def test_an_image_is_part_of_the_request(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "a.png").write_bytes(png())

    async def steps(chat: InProcessChat) -> None:
        assert await chat.send("what is on @a.png?") == "Hello **you**.\n"

    run_chat(project, monkeypatch, steps)
    [message] = [message for message in project.request() if message["role"] == "user"]
    assert [part["type"] for part in message["content"]] == ["text", "image_url"]
    assert message["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")


def test_an_image_that_a_tool_reads_is_written_in_the_dialect_of_the_provider(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "a.png").write_bytes(png())
    project.script([("read", {"path": "a.png"})], "Seen.")

    async def steps(chat: InProcessChat) -> None:
        await chat.send("look at it")

    run_chat(project, monkeypatch, steps)
    [result] = [message for message in project.request() if message["role"] == "tool"]
    assert "image/png" in str(result["content"])
    assert "'type': 'image'" not in str(result["content"])


def test_the_bundled_model_gets_a_note_instead_of_an_image(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "a.png").write_bytes(png())
    name = f"local/{next(iter(KNOWN_WEIGHTS))}"
    message = prepare(project, monkeypatch, "what is on @a.png?", model=name)
    assert message.content == "what is on @a.png?"
    assert message.notes == (f"a.png is not attached: {name} does not read images",)


def test_a_relative_image_path_without_a_mention_stays_text(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "a.png").write_bytes(png())
    assert prepare(project, monkeypatch, "delete a.png").attachments == ()


def test_a_binary_file_is_named_and_not_attached(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "data.bin").write_bytes(b"\0\1\2")
    message = prepare(project, monkeypatch, "see @data.bin")
    assert message.content == "see @data.bin"
    assert message.notes == ("not attached: data.bin is not a text (3 bytes), and was not read.",)


def test_a_file_outside_is_attached_only_after_a_question(project: ChatProject, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret of the outside")
    (project.folder / "link.txt").symlink_to(outside)
    project.script("One.")
    with project.terminal("--session", "s", columns=200) as terminal:
        terminal.see("ctx ")
        terminal.enter(f"read @{outside}")
        terminal.see("It is outside of the working folder.")
        terminal.answer("n")
        terminal.see("nothing was sent")
        terminal.see(lambda t: f"› read @{outside}" in "\n".join(t.lines))
        terminal.type(CTRL_C)  # empties the line
        terminal.enter("read @link.txt")
        terminal.see(lambda t: t.text.count("It is outside of the working folder.") > 1)
        terminal.answer("y")
        terminal.see("One.")
    [sent] = [event.fact for event in project.events() if isinstance(event.fact, UserSaid)]
    assert "secret of the outside" in str(sent.content)


def test_without_a_terminal_nothing_outside_is_attached(
    project: ChatProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    message = prepare(project, monkeypatch, "read @../outside.txt")
    assert message.attachments == ()
    assert len(message.notes) == 1


def test_files_are_attached_without_tools_too(project: ChatProject, monkeypatch: pytest.MonkeyPatch) -> None:
    message = prepare(project, monkeypatch, "read @a.txt", tools=False)
    assert [one.name for one in message.attachments] == ["a.txt"]


def test_names_with_spaces_are_completed_in_quotes(project: ChatProject) -> None:
    (project.folder / "my folder").mkdir()
    (project.folder / "my folder/my file.txt").write_text("")

    def complete(text: str) -> list[str]:
        event = CompleteEvent(completion_requested=True)
        found = Completions(project.folder).get_completions(Document(text), event)
        return [text[: len(text) + one.start_position] + one.text for one in found]

    assert complete("see @my") == ['see @"my folder/']
    assert complete('see @"my folder/m') == ['see @"my folder/my file.txt"']
    assert complete("see @a") == ["see @a.txt"]


def test_sizes_are_singular_for_one_token() -> None:
    one = Attachment(name="a", part=Text(text="x"), tokens=1)
    assert (one.size, Attachment(name="a", part=Text(text="x"), tokens=1, total_tokens=2).size) == (
        "1 token",
        "1 of 2 tokens",
    )


# ── Names that are not there, and the list after @ ───────────────────────────────────────────────────────


def test_a_name_that_is_not_there_is_an_error_and_nothing_is_sent(project: ChatProject) -> None:
    (project.folder / "src").mkdir()
    with project.terminal("--session", "s", columns=120) as terminal:
        terminal.see("ctx ")
        for text, named in (
            ("read @missing.md please", "missing.md"),
            ("read @src/nothing and @a.txt", "src/nothing"),
            ("read @./nothing.", "./nothing"),
            ('read @"my notes"', "my notes"),
            ("compare @one.py, @two.py", "one.py, two.py"),
        ):
            terminal.enter(text)
            terminal.see(f"✗ there is no file {named}: nothing was sent")
            terminal.see(lambda t, text=text: any(line == f"› {text}" for line in t.lines))  # to be corrected
            terminal.type(CTRL_C)  # empties the line
            terminal.see(lambda t, text=text: not any(line == f"› {text}" for line in t.lines))
    assert project.user_messages() == []


def test_files_are_listed_while_a_name_is_typed(project: ChatProject) -> None:
    folder = project.folder / "src" / "deep"
    folder.mkdir(parents=True)
    (folder / "renderer.py").write_text("x = 1\n")
    project.script("Read.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("explain @rndr")
        terminal.see(lambda t: any(line.strip() == "src/deep/renderer.py" for line in t.lines))
        terminal.type(TAB)
        terminal.see("› explain @src/deep/renderer.py")
        terminal.type(ENTER)  # takes the name
        terminal.enter("")
        terminal.see("attached: src/deep/renderer.py")


@pytest.mark.parametrize("typed", rest_in_soak(["@nts", "@no"]))
def test_enter_takes_the_first_file_of_the_list(project: ChatProject, typed: str) -> None:
    (project.folder / "notes.md").write_text("alpha\n")
    project.script("Read.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type(f"see {typed}")
        terminal.see(lambda t: any(line.strip() == "notes.md" for line in t.lines))
        terminal.type(ENTER)
        terminal.see("› see @notes.md")
        terminal.type(ENTER)  # the name is complete: it is sent
        terminal.see("attached: notes.md")


def test_enter_sends_a_folder_that_is_named_in_full(project: ChatProject) -> None:
    (project.folder / "src").mkdir()
    (project.folder / "src" / "main.py").write_text("x = 1\n")
    project.script("Read.")
    with project.terminal("--session", "s") as terminal:
        terminal.see("ctx ")
        terminal.type("see @src/")
        terminal.see(lambda t: any(line.strip() == "src/main.py" for line in t.lines))
        terminal.type(ENTER)
        terminal.see("attached: src/,")


def test_policies_are_completed_by_name(tmp_path: Path) -> None:
    completions = Completions(tmp_path, policies=lambda: ["economy", "mine"])
    found = completions.get_completions(Document("/policy m"), CompleteEvent())
    assert [completion.text for completion in found] == ["mine"]
    assert "plain" in listed(tmp_path, "/policy ")


def listed(folder: Path, typed: str) -> list[str]:
    completions = Completions(folder)
    found = completions.get_completions(Document(typed), CompleteEvent())
    return [completion.text for completion in found]


def test_the_list_has_the_best_names_first_and_none_that_git_ignores(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("build/\n*.log\n")
    names = (
        "src/main.py",
        "src/remain.txt",
        "main/x.py",
        "docs/m a i n.md",
        "build/main.py",
        "main.log",
        "other.py",
    )
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert listed(tmp_path, "see @main") == [
        "@main", "@src/main.py", "@src/remain.txt", "@main/x.py", '@"docs/m a i n.md"',
    ]  # fmt: skip
    assert listed(tmp_path, "see @MNPY") == ["@src/main.py", "@main/x.py"]
    assert listed(tmp_path, "me@main") == []
    assert listed(tmp_path, "see @nothing like it") == []


def test_the_list_of_a_large_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_input, "MAX_WORKSPACE_FILES", 300)
    for number in range(400):
        (tmp_path / f"file{number}.txt").touch()
    files = MentionableFiles(tmp_path)
    assert len(files.names()) == 300
    assert len(files.matching("file")) == MAX_MATCHING_FILES


def test_new_files_are_found_after_a_while(tmp_path: Path) -> None:
    now = 0.0
    files = MentionableFiles(tmp_path, clock=lambda: now)
    assert files.names() == ()
    (tmp_path / "new.txt").touch()
    now = MAX_FILE_LIST_AGE_S + 1
    assert files.names() == ("new.txt",)
