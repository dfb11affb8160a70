"""`foveal memory`: see and correct what is remembered across sessions.

    foveal memory list [--all] [--json]     the entries of the user and of the project of this folder
    foveal memory search WORDS
    foveal memory show ID                   an entry with its origin
    foveal memory add TEXT [--project]
    foveal memory forget ID
    foveal memory erase [--project] [--yes]

An id names its memory: those of the user begin with m, those of the project with p. `memory.md` is read before a
command and written after a change.
"""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.core.wire.safe_print import counted, one_line, visible
from foveal.errors import FovealError

if TYPE_CHECKING:
    from foveal.config.local_memories import LocalMemories, MemoryFile
    from foveal.memory import MemoryEntry

COMMANDS: Final = ("memory",)
_MAX_PRINTED_CHARS: Final = 600
_MAX_OWNERS: Final = 10
_MAX_OWNER_CHARS: Final = 100
_YES: Final = ("y", "yes")


# ── Parser ───────────────────────────────────────────────────────────────────────────────────────────────


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "see, correct and move what is remembered across sessions"
    memory = commands.add_parser("memory", help=about, description=about)
    _add_store(memory, default=None)
    acts = memory.add_subparsers(dest="act", required=True, metavar="|".join(_ACTS))
    listing = _act(acts, "list", "list the entries, oldest first; proposals are marked", project=True)
    listing.add_argument(
        "words", nargs="*", metavar="WORDS", help="only entries with these words, best first"
    )
    listing.add_argument("--all", action="store_true", help="also those that are replaced or forgotten")
    search = _act(acts, "search", "list the entries with words, best first", project=True)
    search.add_argument("words", nargs="+", metavar="WORDS", help="words to look for")
    _id_argument(
        _act(acts, "show", "show an entry, and where it comes from"), "the id of an entry, such as m12"
    )
    _text_argument(_act(acts, "add", "remember a statement", project=True), "the statement")
    edit = _act(acts, "edit", "change the text of an entry")
    _id_argument(edit, "the id of an entry")
    _text_argument(edit, "its new text")
    _id_argument(_act(acts, "forget", "take an entry out of all later requests"), "the id of an entry")
    undo = _act(acts, "undo", "take the newest change back, or that of one entry", project=True)
    undo.add_argument("id", nargs="?", metavar="ID", help="the id of an entry; default: the newest change")
    _id_argument(_act(acts, "accept", "keep a proposal"), "the id of a proposal")
    _id_argument(_act(acts, "reject", "say no to a proposal, for good"), "the id of a proposal")
    export = _act(acts, "export", "write the entries as lines of JSON", project=True, is_json=False)
    export.add_argument("-o", "--output", type=Path, help="a new file; default: standard output")
    imports = _act(acts, "import", "keep the entries of an export", project=True)
    imports.add_argument(
        "path", type=Path, metavar="FILE", help="what `foveal memory export` wrote; - reads it"
    )
    erase = _act(acts, "erase", "delete all entries and files from the store, for good", project=True)
    erase.add_argument("--yes", action="store_true", help="do not ask")


def _act(acts: Any, name: str, about: str, *, project: bool = False, is_json: bool = True) -> ArgumentParser:
    parser: ArgumentParser = acts.add_parser(name, help=about, description=about)
    _add_store(parser, default=SUPPRESS)
    if is_json:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
    if project:
        parser.add_argument("--project", action="store_true", help="the memory of the project of this folder")
    return parser


def _add_store(parser: ArgumentParser, *, default: Any) -> None:
    parser.add_argument(
        "--store", type=Path, default=default, help="the file with sessions and memories (FOVEAL_STORE)"
    )


def _id_argument(parser: ArgumentParser, help: str) -> None:
    parser.add_argument("id", metavar="ID", help=help)


def _text_argument(parser: ArgumentParser, help: str) -> None:
    parser.add_argument("text", nargs="+", metavar="TEXT", help=help)


# ── Running ──────────────────────────────────────────────────────────────────────────────────────────────


async def memory(args: Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from foveal.config import load
    from foveal.config.local_memories import LocalMemories, project_of
    from foveal.recall.archive.stored_sessions import make_store_folder
    from foveal.stores import open_store

    config = load()
    make_store_folder(args.store)
    async with open_store(args.store) as store:
        memories = LocalMemories(store, config.memory, root=project_of(config))
        _print_notes(await memories.read())
        return await _ACTS[args.act](memories, args)


async def _list(memories: LocalMemories, args: Namespace) -> int:
    files = [_file(memories, args)] if args.project else memories.files
    entries: list[MemoryEntry] = []
    for file in files:
        if args.words:
            entries += await file.memory.search(" ".join(args.words))
        else:
            found = await file.memory.entries(all=True)
            entries += [
                one for one in found if args.all or one.counts or (one.proposed and not one.forgotten)
            ]
    _print_entries(entries, args)
    if not entries and not args.json:
        print("no entry has these words" if args.words else "nothing is remembered yet")
        if not args.words and (others := await memories.other_owners()):
            names = ", ".join(one_line(owner, width=_MAX_OWNER_CHARS) for owner in others[:_MAX_OWNERS])
            more = f" and {len(others) - _MAX_OWNERS:,} more" if len(others) > _MAX_OWNERS else ""
            print(f"the store has memories of other owners, which `foveal inspect` shows: {names}{more}")
    return 0


async def _show(memories: LocalMemories, args: Namespace) -> int:
    from foveal.config.local_memories import entry_details

    entry = await memories.file_of(args.id).memory.why(args.id)
    _print_entries([entry], args)
    if not args.json:
        for name, text in entry_details(entry):
            print(f"  {name:<12} {one_line(text, width=_MAX_PRINTED_CHARS)}")
    return 0


async def _add(memories: LocalMemories, args: Namespace) -> int:
    from foveal.config.local_memories import with_replaced

    file = _file(memories, args)
    entry = await file.memory.remember(" ".join(args.text))
    changed = [entry] if args.json else await with_replaced(file.memory, entry)
    return await _finish(memories, file, args, *changed)


async def _edit(memories: LocalMemories, args: Namespace) -> int:
    file = memories.file_of(args.id)
    return await _finish(memories, file, args, await file.memory.edit(args.id, " ".join(args.text)))


async def _forget(memories: LocalMemories, args: Namespace) -> int:
    file = memories.file_of(args.id)
    return await _finish(memories, file, args, await file.memory.forget(args.id))


async def _undo(memories: LocalMemories, args: Namespace) -> int:
    from foveal.config.local_memories import undo_change

    if args.id:
        file = memories.file_of(args.id)
    else:
        file = _file(memories, args) if args.project else await memories.newest_changed()
    undone = await undo_change(file.memory, args.id)
    for entry in undone.gone if not args.json else ():
        print(f"{entry.id} is not remembered any more: {one_line(entry.text, width=_MAX_PRINTED_CHARS)}")
    return await _finish(memories, file, args, *undone.now)


async def _accept(memories: LocalMemories, args: Namespace) -> int:
    file = memories.file_of(args.id)
    return await _finish(memories, file, args, await file.memory.accept(args.id))


async def _reject(memories: LocalMemories, args: Namespace) -> int:
    file = memories.file_of(args.id)
    return await _finish(memories, file, args, await file.memory.reject(args.id))


async def _export(memories: LocalMemories, args: Namespace) -> int:
    lines = await _file(memories, args).memory.export()
    if args.output is None:
        print(lines, end="")
        return 0
    from foveal.config.project import open_output

    with open_output(args.output, advice="name another with -o") as file:
        file.write(lines.encode())
    return 0


async def _import(memories: LocalMemories, args: Namespace) -> int:
    try:
        lines = sys.stdin.read() if str(args.path) == "-" else args.path.read_text("utf-8")
    except UnicodeDecodeError:
        raise FovealError(f"{visible(str(args.path))} is not UTF-8, so it is no export of a memory") from None
    file = _file(memories, args)
    return await _finish(memories, file, args, *await file.memory.import_(lines))


async def _erase(memories: LocalMemories, args: Namespace) -> int:
    file = _file(memories, args)
    whose = "the memory of this project" if file is memories.project else "your memory"
    count = len(await file.memory.entries(all=True))
    entries = counted(count, "entry", "entries")
    if not args.yes:
        if not sys.stdin.isatty():
            raise FovealError(f"{whose} is not erased without a yes: pass --yes")
        if input(f"Erase {whose} with {entries} and {file.path}, for good? [y/N] ").lower() not in _YES:
            print("nothing was erased")
            return 1
    await file.memory.erase()
    await file.delete()
    if args.json:
        print(json.dumps({"erased": count}))
        return 0
    print(f"erased {whose}: {entries}, its files, and {file.path}")
    return 0


_ACTS: Final[dict[str, Callable[[LocalMemories, Namespace], Awaitable[int]]]] = {
    "list": _list,
    "search": _list,
    "show": _show,
    "add": _add,
    "edit": _edit,
    "forget": _forget,
    "undo": _undo,
    "accept": _accept,
    "reject": _reject,
    "export": _export,
    "import": _import,
    "erase": _erase,
}


def _file(memories: LocalMemories, args: Namespace) -> MemoryFile:
    if not args.project:
        return memories.user
    if memories.project is None:
        raise FovealError(
            "this folder is in no project: it has no .git, no pyproject.toml and no .foveal folder"
        )
    return memories.project


async def _finish(memories: LocalMemories, file: MemoryFile, args: Namespace, *changed: MemoryEntry) -> int:
    """Write the file of a memory, and print the entries that were changed as they are now."""
    _print_notes(await memories.write(file))
    _print_entries(changed, args)
    return 0


def _print_entries(entries: Sequence[MemoryEntry], args: Namespace) -> None:
    from foveal.config.local_memories import entry_json, entry_state

    if args.json:
        print(json.dumps([entry_json(entry) for entry in entries], ensure_ascii=False, indent=2))
        return
    for entry in entries:
        state = f"  ({text})" if (text := entry_state(entry)) else ""
        print(f"{entry.id:<5} {entry.kind:<10}  {one_line(entry.text, width=_MAX_PRINTED_CHARS)}{state}")


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"foveal memory: {visible(note)}", file=sys.stderr)
