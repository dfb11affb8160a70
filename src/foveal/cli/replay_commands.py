"""Commands `replay`, `tune` and `why`: policies measured on recorded conversations."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveal.core.wire.safe_print import visible
from foveal.errors import BadSetting, FovealError

if TYPE_CHECKING:
    from foveal.core.policies import Policy
    from foveal.policies import PolicyTables
    from foveal.transcripts import Transcript, UnreadableTranscript

COMMANDS = ("replay", "tune", "why")
DEFAULT_MODEL = "gpt-5"
DEFAULT_PACE_S = 15.0
PROGRESS_BAR_CELLS = 30
_POLICY_NAME = re.compile(r"[A-Za-z0-9_-]+")


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    about = "measure what policies cost and lose on recorded conversations; calls no model"
    replay = commands.add_parser("replay", help=about, description=about, parents=[_setting()])
    replay.set_defaults(store=None)
    logs = "files, folders or stores of sessions; default: the sessions of FOVEAL_STORE"
    replay.add_argument("logs", nargs="*", type=Path, metavar="LOGS", help=logs)
    about = (
        "a preset, an installed policy, a table [policies.NAME] of your configuration, or a TOML file; may be "
        "repeated (default: every preset)"
    )
    replay.add_argument("--policy", action="append", metavar="NAME", help=about)
    about = "run every policy with each of these values; may be repeated for another setting"
    replay.add_argument("--sweep", action="append", default=[], metavar="KEY=A,B,C", help=about)
    about = "context window to replay in; default: the model's; may be several, such as 32000,64000"
    replay.add_argument("--window", action="extend", type=_windows, metavar="TOKENS", help=about)
    _add_selection_options(replay)
    _add_output_options(replay)

    about = "choose the constants of economy for your recordings, with half of them kept back; calls no model"
    tune = commands.add_parser("tune", help=about, description=about, parents=[_setting()])
    tune.set_defaults(store=None)
    tune.add_argument("logs", nargs="*", type=Path, metavar="LOGS", help=logs)
    about = "context window to replay in; default: the model's"
    tune.add_argument("--window", type=int, metavar="TOKENS", help=about)
    about = "only conversations of at least this size"
    tune.add_argument("--long", type=int, default=0, metavar="TOKENS", help=about)
    tune.add_argument("--only", action="append", metavar="GLOB", help="only these ids or file names")
    about = "ids or file names left out of recall and surprise"
    tune.add_argument("--no-recall", action="append", default=[], metavar="GLOB", help=about)
    about = "most calls that are replayed, under about a dozen policies; this bounds the time (default: 4000)"
    tune.add_argument("--calls", type=int, default=4_000, metavar="N", help=about)
    tune.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    about = "calls of each conversation at which surprise is measured (default: 8); 0 measures none"
    tune.add_argument("--samples", type=int, default=8, metavar="N", help=about)
    about = "processes that replay at the same time; default: one per core"
    tune.add_argument("--processes", type=int, metavar="N", help=about)
    tune.add_argument("--name", default="tuned", help="name of the policy (default: tuned)")
    about = "also write the policy to a new file, as lines of a configuration"
    tune.add_argument("--write", type=Path, metavar="FILE", help=about)
    tune.add_argument("--json", action="store_true", help="the result as JSON")
    about = "show how far it is; default: on a terminal"
    tune.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None, help=about)

    about = "say whether a text was in a request, and if not, since when and by which rule (exit code 1)"
    options = _setting(model="that of the log, else gpt-5")
    why = commands.add_parser("why", help=about, description=about, parents=[options])
    about = "a session id, or the beginning of it; or a file: a recording, or a store of sessions"
    why.add_argument("recording", metavar="SESSION|FILE", help=about)
    about = "the file in which a session is looked up (FOVEAL_STORE)"
    why.add_argument("--store", type=Path, metavar="STORE", help=about)
    about = "which request, counted from 1 (default: the last one)"
    why.add_argument("--call", type=int, metavar="N", help=about)
    why.add_argument(
        "words", nargs="*", metavar="TEXT", help="the exact text, directly after SESSION or FILE"
    )
    why.add_argument("--text", help="the exact text, in place of TEXT")
    why.set_defaults(usage_error=why.error, error_code=2, model=None, pace=None)
    about = "the conversation, if the file has several: its id, or the beginning of it"
    why.add_argument("--conversation", metavar="ID", help=about)
    about = (
        "a preset or a TOML file. Without this option and others that change a request (--window, --model, …), a "
        "session is examined as recorded; with one, it is replayed"
    )
    why.add_argument("--policy", metavar="NAME", help=about)
    about = "context window to replay in; default: that of the log, else the model's"
    why.add_argument("--window", type=int, metavar="TOKENS", help=about)
    why.add_argument("--json", action="store_true", help="the answer as JSON")


def _setting(*, model: str = DEFAULT_MODEL) -> ArgumentParser:
    part = ArgumentParser(add_help=False)
    about = f"model whose window and prices apply (default: {model})"
    part.add_argument("--model", default=DEFAULT_MODEL, help=about)
    about = (
        "tokens kept free for the answer; default: what the model may write, at most an eighth of the window"
    )
    part.add_argument("--reserve", type=int, metavar="TOKENS", help=about)
    about = "share of the window that stays unused; default: the measured error of counting"
    part.add_argument("--margin", type=float, metavar="SHARE", help=about)
    about = "lifetime of a cached prefix; default: that of the model's provider"
    part.add_argument("--ttl", type=int, metavar="SECONDS", help=about)
    about = "time between calls, where the recording has no times (default: 15)"
    part.add_argument("--pace", type=float, default=DEFAULT_PACE_S, metavar="SECONDS", help=about)
    about = "function that writes the summaries; default: none, so that they are written without a model"
    part.add_argument("--summariser", default="", metavar="MODULE:FUNCTION", help=about)
    part.add_argument("--format", default="auto", help="format of the recordings; default: detected")
    return part


def _windows(text: str) -> list[int]:
    """Return `a,b,c` as numbers."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of tokens, such as 32000 or 32000,64000"
        ) from None


def _add_selection_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--long", type=int, default=0, metavar="TOKENS", help="only conversations of at least this size"
    )
    parser.add_argument("--only", action="append", metavar="GLOB", help="only these ids or file names")
    about = "only one half of the conversations, chosen by their ids"
    parser.add_argument("--half", choices=("A", "B"), help=about)
    parser.add_argument("--limit", type=int, metavar="N", help="only a random sample of N conversations")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    about = (
        "ids or file names left out of recall and surprise: their agents did not see all of their own history"
    )
    parser.add_argument("--no-recall", action="append", default=[], metavar="GLOB", help=about)
    about = "calls of each conversation at which surprise is measured (default: 8); 0 measures none"
    parser.add_argument("--samples", type=int, default=8, metavar="N", help=about)
    parser.add_argument("--no-bounds", action="store_true", help="leave out the rows that know the future")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="processes that replay at the same time; default: one per core",
    )


def _add_output_options(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="figures, losses and surprising calls as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots")
    about = "also a table by source; and for each source, the policy that is best on all others"
    parser.add_argument("--by-source", action="store_true", help=about)
    parser.add_argument(
        "--losses",
        type=int,
        default=5,
        metavar="N",
        help="how many of the worst losses and most surprising calls of each policy are listed (default: 5)",
    )
    toggle = argparse.BooleanOptionalAction
    parser.add_argument(
        "--progress", action=toggle, default=None, help="show how far the replay is; default: on a terminal"
    )


async def replay(args: Namespace) -> int:
    """Replay recorded conversations under several policies and print a table of costs and losses."""
    from foveal import replay as lab
    from foveal.core.policies import PRESETS

    if args.html is not None and not args.html.parent.is_dir():
        raise FovealError(f"--html: there is no folder {visible(str(args.html.parent))}")
    if args.losses < 0:
        raise BadSetting("losses", args.losses, "a number from 0")
    _say_unknown_window(args)
    policies = lab.policy_choices(args.policy or PRESETS, sweeps=args.sweep, tables=_tables_for(args.policy))
    recordings, is_whole = _load_logs(args)
    chosen = lab.select(
        [recording for recording in recordings if _matches(recording, args.only)],
        half=args.half,
        min_tokens=args.long,
        limit=args.limit,
        seed=args.seed,
    )
    if not chosen:
        if not recordings and not is_whole:
            return 1  # the reasons are printed
        raise FovealError(_nothing_to_replay(len(recordings)))
    rows = lab.run(
        chosen,
        policies,
        common=lab.common_names(recordings),
        no_recall=args.no_recall,
        samples=args.samples,
        bounds=not args.no_bounds,
        processes=args.processes,
        progress=_progress(args),
        **_settings(args),
    )
    setting = lab.ReplaySetting(**{**_settings(args), "window": None})  # the rows have their windows
    if args.html is not None:
        page = lab.html_page(rows, setting=setting, sources=args.by_source)
        args.html.write_text(page, encoding="utf-8")
        print(f"wrote {visible(str(args.html))}", file=sys.stderr)
    if args.json:
        print(lab.as_json(rows, losses=args.losses, setting=setting))
    else:
        print(lab.table(rows, losses=args.losses, sources=args.by_source, setting=setting))
    return 0 if is_whole else 1


def _tables_for(names: Sequence[str] | None) -> PolicyTables:
    """Return the tables `[policies.NAME]` of the configuration, which is read only if a name may be one of them."""
    from foveal.config import load
    from foveal.core.policies import PRESETS

    is_needed = any(name not in PRESETS and not name.endswith(".toml") for name in names or ())
    return load().named_policies if is_needed else {}


def _chosen_policy(name: str) -> Policy:
    from foveal import replay as lab

    return lab.policy_choices([name], tables=_tables_for([name]))[0].policy


async def tune(args: Namespace) -> int:
    """Choose the constants of economy on half of the recordings, measure them on the other, and print a policy."""
    import msgspec

    from foveal import replay as lab
    from foveal.core.policies import PRESETS

    if args.name in PRESETS or not _POLICY_NAME.fullmatch(args.name):
        allowed = f"letters, digits, - and _, and no preset ({', '.join(PRESETS)})"
        raise BadSetting("name", args.name, allowed)
    if args.write is not None and args.write.exists():
        raise FovealError(f"--write: {visible(str(args.write))} exists; name a new file")
    if args.calls < 1:
        raise BadSetting("calls", args.calls, "a number from 1")
    _say_unknown_window(args)
    recordings, is_whole = _load_logs(args)
    matching = [recording for recording in recordings if _matches(recording, args.only)]
    chosen = lab.select(matching, min_tokens=args.long)
    found = lab.tune(
        chosen,
        name=args.name,
        max_calls=args.calls,
        seed=args.seed,
        processes=args.processes,
        progress=_progress(args),
        no_recall=args.no_recall,
        samples=args.samples,
        **_settings(args),
    )
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print(lab.tuning_text(found))
    if args.write is not None and found.config:
        args.write.write_text(f"{found.config}\n", encoding="utf-8")
        print(f"wrote {visible(str(args.write))}", file=sys.stderr)
    return 0 if is_whole and found.verdict != "too few" else 1


async def why(args: Namespace) -> int:
    """Print whether a text was in a request, and which rule hid it; like `grep`, return 1 if it was not."""
    import msgspec

    from foveal import replay as lab
    from foveal.replay import why as lab_why

    if bool(args.words) == (args.text is not None):
        args.usage_error("give the text once, after SESSION or FILE or with --text")
    text = " ".join(args.words) or args.text
    recording = await _named_recording(args)
    policy = _what_if_policy(args, recording)
    setting = lab.ReplaySetting(**_settings(args))
    found = lab_why.why(recording, call=args.call, text=text, policy=policy, setting=setting)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print(visible(lab_why.answer_text(found)))
    return 0 if found.shown else 1


def _what_if_policy(args: Namespace, recording: Transcript) -> Policy | None:
    """Return the policy to replay under, and complete the settings by those of the log; None if no option asks for
    another request than that of the log, which is then examined as recorded."""
    from foveal.replay import why as lab_why

    is_log = lab_why.is_session_log(recording)
    is_asked = args.policy is not None or any(value not in (None, "") for value in _settings(args).values())
    own = lab_why.recorded_settings(recording) if is_log and is_asked else None
    if own is not None and args.model is None:
        args.model = own.model.name
        args.window = own.model.window if args.window is None else args.window
        args.reserve = own.caps.reserve if args.reserve is None else args.reserve
    args.model = args.model or DEFAULT_MODEL
    args.pace = DEFAULT_PACE_S if args.pace is None else args.pace
    if is_log and not is_asked:
        return None
    _say_unknown_window(args)
    return own.policy if own is not None and args.policy is None else _chosen_policy(args.policy or "economy")


# ── Arguments ──────────────────────────────────────────────────────────────────────────────────────────


def _settings(args: Namespace) -> dict[str, Any]:
    fields = ("model", "window", "reserve", "margin", "ttl", "pace", "summariser")
    return {field: getattr(args, field) for field in fields}


def _say_unknown_window(args: Namespace) -> None:
    from foveal.core.models.model import model as find_model

    known = find_model(args.model)
    if args.window is None and known.sources["window"] == "default":
        about = f"the window of {visible(args.model)} is not known: it is taken to be {known.window:,} tokens"
        print(f"foveal: {about}; set it with --window", file=sys.stderr)


def _load_logs(args: Namespace) -> tuple[list[Transcript], bool]:
    """Return the recordings, and whether every file was read whole; prints what is wrong with the others."""
    from foveal import replay as lab
    from foveal.cli.session_commands import print_damaged, print_skipped

    problems: list[UnreadableTranscript] = []

    def on_skipped(problem: UnreadableTranscript) -> None:
        problems.append(problem)
        print_skipped(problem)

    def on_damaged(problem: UnreadableTranscript) -> None:
        problems.append(problem)
        print_damaged(problem)

    logs = args.logs or [_existing_store(args)]
    found = lab.load(logs, format=args.format, skipped=on_skipped, damaged=on_damaged)
    return found, not problems


def _existing_store(args: Namespace) -> Path:
    path: Path = args.store
    if not path.exists():
        raise FovealError(f"name the LOGS to replay: there is no store at {visible(str(path))} yet")
    return path


def _matches(recording: Transcript, patterns: list[str] | None) -> bool:
    names = (recording.id, recording.path, Path(recording.path).name)
    return patterns is None or any(fnmatch(name, pattern) for pattern in patterns for name in names)


def _nothing_to_replay(loaded: int) -> str:
    if not loaded:
        return "there is no conversation with a model in these LOGS; name others, or set --format"
    return f"none of {loaded:,} conversations is left to replay: lower --long, or change --only, --half or --limit"


async def _named_recording(args: Namespace) -> Transcript:
    """Return the recording of a file, or the session of the store that the argument names."""
    from foveal import replay as lab
    from foveal.cli.session_commands import print_damaged, print_skipped
    from foveal.recall.archive.stored_sessions import find_session
    from foveal.stores import open_store

    is_file = Path(args.recording).exists()
    if not is_file and not args.store.exists():
        raise FovealError(
            f"there is no file {visible(args.recording)}, and no session of this name, because there is no store "
            f"at {visible(str(args.store))}: name another file, or another store with --store"
        )
    if is_file:
        skipped = print_skipped if Path(args.recording).is_dir() else None  # else the error of the file
        found = lab.load([args.recording], format=args.format, skipped=skipped, damaged=print_damaged)
        return _only_recording(found, args)
    async with open_store(args.store) as store:
        return await lab.read_session(store, await find_session(store, args.recording), path=str(args.store))


def _only_recording(recordings: list[Transcript], args: Namespace) -> Transcript:
    """Return the recording that `--conversation` names, or the only one."""
    if not recordings:
        raise FovealError(f"there is no conversation with a model in {visible(args.recording)}")
    wanted = args.conversation
    found = recordings if wanted is None else [r for r in recordings if r.id.startswith(wanted)]
    found = [recording for recording in found if recording.id == wanted] or found
    if len(found) == 1:
        return found[0]
    ids = ", ".join(recording.id for recording in (found or recordings)[:5])
    problem = "several conversations match" if found else f"no conversation begins with {wanted!r}"
    raise FovealError(f"{problem}; name one with --conversation: {ids}{', …' if len(recordings) > 5 else ''}")


def _progress(args: Namespace) -> Callable[[int, int], None] | None:
    """Return a function that draws a bar on standard error: on a terminal, or with `--progress`."""
    if args.progress is False or (args.progress is None and not sys.stderr.isatty()):
        return None

    def print_bar(done: int, total: int) -> None:
        filled = PROGRESS_BAR_CELLS * done // total
        bar = "█" * filled + "·" * (PROGRESS_BAR_CELLS - filled)
        end = "\n" if done == total else ""
        print(f"\rreplaying ▕{bar}▏ {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)

    return print_bar
