"""`foveal mcp`: recall tools over past sessions for any MCP client.

foveal mcp                                 sessions of Claude Code, Codex, pi, Foveal and its server in their
                                           default places
foveal mcp PATH … [--store FILE|URL]       only these: transcripts, folders of them, stores
foveal mcp --write                         clients may suggest entries for the user's memory
foveal mcp --http PORT                     over HTTP on 127.0.0.1, with a token, instead of standard input
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foveal.errors import BadSetting, FovealError, StoreUnusable

if TYPE_CHECKING:
    from foveal.mcp_server.recall_server import MemoryAccess
    from foveal.recall.archive import Archive, ArchiveSource
    from foveal.recall.archive.index import IndexFile

COMMANDS: Final = ("mcp",)
_MAX_PORT: Final = 65_535
_DEFAULT_TOKENS: Final = 4_000
SEARCH_S: Final = 2.0
"""Time for which a call reads sessions that the index does not have yet; a task indexes them meanwhile."""
_MAX_PROBLEM_CHARS: Final = 500


def add_commands(commands: Any) -> None:
    """Add the command to the parser."""
    about = "MCP server: lets any agent search and read past sessions, of Claude Code, Codex, pi and Foveal"
    parser = commands.add_parser("mcp", help=about, description=about)
    help = (
        "a transcript, a store, or a folder of them; default: where the agents and Foveal keep their sessions"
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help=help)
    help = "a store of Foveal: a file, a folder, or postgresql://user@host/database; may be repeated"
    parser.add_argument("--store", action="append", default=[], metavar="STORE", help=help)
    help = "the tenant whose sessions are read from a database or your server; default: default"
    parser.add_argument("--tenant", default="default", metavar="NAME", help=help)
    help = f"at most so many tokens in an answer; default: {_DEFAULT_TOKENS:,}"
    parser.add_argument("--tokens", type=int, default=_DEFAULT_TOKENS, metavar="N", help=help)
    help = "let clients suggest entries for your memory, which count once you accept them"
    parser.add_argument("--write", action="store_true", help=help)
    help = "serve HTTP on this port of 127.0.0.1 (0: a free one); the token is FOVEAL_MCP_TOKEN, or a new one"
    parser.add_argument("--http", type=int, metavar="PORT", help=help)


def mcp(args: Namespace) -> int:
    """Serve until the client closes the connection, or until Ctrl-C."""
    if find_spec("mcp") is None:
        raise FovealError("foveal mcp needs the package mcp: pip install 'foveal[mcp]'")
    if args.http is not None and not 0 <= args.http <= _MAX_PORT:
        raise BadSetting("--http", args.http, f"a port from 0 to {_MAX_PORT:,}")
    if args.write and (args.paths or args.store):
        raise BadSetting("--write", "with PATH or --store", "alone: the memory is in your own store")
    import asyncio

    try:
        asyncio.run(_serve(args))
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(args: Namespace) -> None:
    import asyncio

    from foveal.recall.archive.listing import find_sources

    given = [*args.paths, *args.store]
    async with AsyncExitStack() as stack:
        find = partial(find_sources, given, tenant=args.tenant, served=_served_store(args.tenant))
        if not args.write:
            find()  # raises if there are no sessions; a memory creates the store, which is then one of the sources
        # With places that the user names, the server reads only these.
        memory = None if given else await _open_memory(stack, writes=args.write)
        sources = find()
        archive = _open_archive(sources, args.tokens)
        stack.push_async_callback(archive.close)
        archive.index_in_background()
        names = ", ".join(source.name for source in sources)
        # Beside the server, because a database that does not answer must not delay the client's connection.
        check = asyncio.create_task(_report_problems(archive)) if given else None
        try:
            await _serve_client(archive, memory, args.http, names)
        finally:
            if check is not None:
                check.cancel()
                await asyncio.wait([check])


def _served_store(tenant: str) -> Path:
    """Return the file in which this user's server keeps the sessions of a tenant."""
    import os

    from foveal.config import load
    from foveal.server.storage import DataFolder, data_folder_path

    return DataFolder(data_folder_path(load(project=False), os.environ)).tenant_file(tenant)


async def _open_memory(stack: AsyncExitStack, *, writes: bool) -> MemoryAccess | None:
    """Return the memories of the user and of the project; None if they are off, or if they cannot be kept here and
    are not to be written."""
    from foveal.config import load
    from foveal.config.local_memories import LocalMemories, project_of
    from foveal.mcp_server.recall_server import MemoryAccess
    from foveal.recall.archive.stored_sessions import make_store_folder
    from foveal.stores import open_store
    from foveal.user_paths import store_path

    config, path = load(), store_path()
    if not config.memory.enabled:
        return None
    try:
        make_store_folder(path)
    except FovealError as problem:
        if writes:
            raise
        _print_problem(f"the memory is not offered: {problem}")
        return None
    store = await stack.enter_async_context(open_store(path))
    return MemoryAccess(LocalMemories(store, config.memory, root=project_of(config)), writes=writes)


async def _serve_client(archive: Archive, memory: MemoryAccess | None, port: int | None, names: str) -> None:
    if port is not None:
        from foveal.mcp_server.recall_server import serve_http

        await serve_http(archive, port, memory)
        return
    if sys.stdin.isatty():
        print(f"foveal mcp: an MCP client speaks on standard input; sessions: {names}", file=sys.stderr)
    from mcp.server.stdio import stdio_server

    from foveal.mcp_server.recall_server import recall_server

    server = recall_server(archive, memory)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


def _open_archive(sources: Sequence[ArchiveSource], tokens: int) -> Archive:
    """Return the archive with the index that lasts, or with one in memory if that cannot be used."""
    from foveal.recall.archive import Archive

    index = _open_index()
    try:
        return Archive(sources, tokens=tokens, work_s=SEARCH_S, kept=index)
    except StoreUnusable as problem:
        if index is None:
            raise
        index.close()
        _print_problem(f"{problem}; until then the index is in memory and ends with the server")
        return Archive(sources, tokens=tokens, work_s=SEARCH_S)


def _open_index() -> IndexFile | None:
    """Return the index in the user's cache folder, None if it cannot be used; say why, and if it is built again."""
    from foveal.recall.archive.index import IndexFile
    from foveal.user_paths import cache_folder

    try:
        index = IndexFile(cache_folder() / "recall")
    except StoreUnusable as problem:
        _print_problem(f"{problem}; until then the index is in memory and ends with the server")
        return None
    if index.notice:
        _print_problem(index.notice)
    return index


async def _report_problems(archive: Archive) -> None:
    """Print what cannot be read of the places that the user named."""
    for problem in await archive.check():
        _print_problem(problem)


def _print_problem(problem: str) -> None:
    from foveal.core.wire.safe_print import one_line

    print(f"foveal mcp: {one_line(problem, width=_MAX_PROBLEM_CHARS)}", file=sys.stderr, flush=True)
