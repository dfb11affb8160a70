"""`foveal replay` and `foveal why`: what a policy costs and forgets on recorded conversations."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError

if TYPE_CHECKING:
    from foveal.transcripts import Transcript, UnreadableTranscript

COMMANDS = ("replay", "why")
DEFAULT = ("economy", "rolling", "recent")
"""The policies that are compared when none is named."""


def add_commands(commands: Any, store: Path) -> None:
    """Add both commands to the parser; `store` is where sessions are kept."""
    about = "what policies cost and forget on recorded conversations; calls no model"
    replay = commands.add_parser("replay", help=about, description=about, parents=[_setting()])
    replay.set_defaults(store=store)
    logs = "files, folders or stores of sessions; default: the sessions of FOVEAL_STORE"
    replay.add_argument("logs", nargs="*", type=Path, metavar="LOGS", help=logs)
    named = f"a preset or a TOML file; again for another one (default: {', '.join(DEFAULT)})"
    replay.add_argument("--policy", action="append", metavar="NAME", help=named)
    swept = "every policy with each of these values; again for another setting"
    replay.add_argument("--sweep", action="append", default=[], metavar="KEY=A,B,C", help=swept)
    _add_choice(replay)
    _add_output(replay)

    about = "was a text in the request of a call, and if not, since when and by which rule"
    why = commands.add_parser("why", help=about, description=about, parents=[_setting()])
    why.add_argument("file", type=Path, metavar="FILE", help="a recording, or a store of sessions")
    why.add_argument("--call", type=int, required=True, metavar="N", help="which request, counted from 1")
    why.add_argument("--text", required=True, help="the text, exactly as it was said")
    which = "the conversation, where the file has several: its id, or the beginning of it"
    why.add_argument("--conversation", metavar="ID", help=which)
    named = "a preset or a TOML file (default: what the log itself recorded, else economy)"
    why.add_argument("--policy", metavar="NAME", help=named)
    why.add_argument("--json", action="store_true", help="the answer as JSON")


def _setting() -> ArgumentParser:
    part = ArgumentParser(add_help=False)
    part.add_argument("--model", default="gpt-5", help="whose window and prices count (default: gpt-5)")
    part.add_argument("--window", type=int, metavar="TOKENS", help="default: what is known of the model")
    part.add_argument("--reserve", type=int, metavar="TOKENS", help="kept free for the answer")
    part.add_argument("--margin", type=float, metavar="SHARE", help="of the window, never planned for")
    part.add_argument("--ttl", type=int, metavar="SECONDS", help="how long a cached prefix lives")
    pace = "from call to call, where the recording has no times (default: 15)"
    part.add_argument("--pace", type=float, default=15.0, metavar="SECONDS", help=pace)
    asked = "writes summaries; default: the ledger, which needs no model"
    part.add_argument("--summariser", default="", metavar="MODULE:FUNCTION", help=asked)
    part.add_argument("--format", default="auto", help="how recordings are written; recognised if not given")
    return part


def _add_choice(parser: ArgumentParser) -> None:
    parser.add_argument("--long", type=int, default=0, metavar="TOKENS", help="only conversations so long")
    parser.add_argument("--only", action="append", metavar="GLOB", help="only these ids or file names")
    parser.add_argument("--limit", type=int, metavar="N", help="a sample of so many conversations")
    parser.add_argument("--seed", type=int, default=0, help="which sample (default: 0)")
    unseen = "ids or file names whose needs do not count: their agents did not see all of their own history"
    parser.add_argument("--no-recall", action="append", default=[], metavar="GLOB", help=unseen)
    parser.add_argument("--no-bounds", action="store_true", help="without the rows that know the future")
    parser.add_argument("--processes", type=int, metavar="N", help="default: one a core")


def _add_output(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="figures and losses as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots as well")
    parser.add_argument("--losses", type=int, default=5, metavar="N", help="worst losses of each policy")
    shown = argparse.BooleanOptionalAction
    parser.add_argument("--progress", action=shown, default=None, help="default: on a terminal")


async def replay(given: Namespace) -> int:
    from foveal import replay as lab

    contenders = lab.policy_choices(given.policy or DEFAULT, sweeps=given.sweep)
    everything = lab.load(given.logs or [_store(given)], format=given.format, skipped=_skipped)
    chosen = lab.choose(
        [one for one in everything if _named(one, given.only)],
        long=given.long,
        limit=given.limit,
        seed=given.seed,
    )
    if not chosen:
        raise FovealError(_nothing(len(everything)))
    rows = lab.run(
        chosen,
        contenders,
        common=lab.vocabulary(everything),
        no_recall=given.no_recall,
        bounds=not given.no_bounds,
        processes=given.processes,
        progress=_progress(given),
        **_values(given),
    )
    if given.html is not None:
        from foveal.replay.html import page

        given.html.write_text(page(rows, setting=lab.ReplaySetting(**_values(given))), encoding="utf-8")
        print(f"written: {visible(str(given.html))}", file=sys.stderr)
    print(lab.as_json(rows, losses=given.losses) if given.json else lab.table(rows, losses=given.losses))
    return 0


async def why(given: Namespace) -> int:
    import msgspec

    from foveal import replay as lab
    from foveal.replay import why as asking

    recording = _one(lab.load([given.file], format=given.format, skipped=_skipped), given)
    recorded = given.policy is None and asking.reduced(recording)
    policy = None if recorded else lab.policy_choices([given.policy or "economy"])[0].policy
    setting = lab.ReplaySetting(**_values(given))
    found = asking.why(recording, call=given.call, text=given.text, policy=policy, setting=setting)
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print(visible(asking.answer_text(found)))
    return 0


# ── what was given ───────────────────────────────────────────────────────────────────────────────────────


def _values(given: Namespace) -> dict[str, Any]:
    fields = ("model", "window", "reserve", "margin", "ttl", "pace", "summariser")
    return {field: getattr(given, field) for field in fields}


def _store(given: Namespace) -> Path:
    path: Path = given.store
    if not path.exists():
        raise FovealError(f"name the LOGS to replay: there is no store at {visible(str(path))} yet")
    return path


def _named(recording: Transcript, patterns: list[str] | None) -> bool:
    names = (recording.id, recording.path, Path(recording.path).name)
    return patterns is None or any(fnmatch(name, pattern) for pattern in patterns for name in names)


def _nothing(loaded: int) -> str:
    if not loaded:
        return "there is no conversation with a model in these LOGS; name others, or say their --format"
    return f"none of {loaded:,} conversations is left to replay: lower --long, or change --only or --limit"


def _one(recordings: list[Transcript], given: Namespace) -> Transcript:
    if not recordings:
        raise FovealError(f"there is no conversation with a model in {visible(str(given.file))}")
    wanted = given.conversation
    found = recordings if wanted is None else [one for one in recordings if one.id.startswith(wanted)]
    found = [one for one in found if one.id == wanted] or found
    if len(found) == 1:
        return found[0]
    ids = ", ".join(one.id for one in (found or recordings)[:5])
    problem = "several conversations fit" if found else f"no conversation begins with {wanted!r}"
    raise FovealError(f"{problem}; name one with --conversation: {ids}{', …' if len(recordings) > 5 else ''}")


# ── telling ──────────────────────────────────────────────────────────────────────────────────────────────


def _skipped(problem: UnreadableTranscript) -> None:
    print(f"foveal: passed over {visible(str(problem))}", file=sys.stderr)


def _progress(given: Namespace) -> Callable[[int, int], None] | None:
    """A bar on standard error: on a terminal, or when asked for."""
    if given.progress is False or (given.progress is None and not sys.stderr.isatty()):
        return None

    def told(done: int, total: int) -> None:
        filled = 30 * done // total
        bar = "█" * filled + "·" * (30 - filled)
        end = "\n" if done == total else ""
        print(f"\rreplaying ▕{bar}▏ {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)

    return told
