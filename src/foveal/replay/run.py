"""Replay of many recorded conversations under many policies, on all cores.

    recordings = load(["logs/"])
    rows = run(recordings, ["economy", "rolling"], window=32_000, reserve=4_000)
    print(table(rows))

One process replays a conversation under all policies and in all windows, so that its needs are found once. Except
for the measured times, the results do not depend on the number of processes.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from functools import partial
from itertools import chain, product
from math import inf
from multiprocessing.context import BaseContext
from pathlib import Path, PurePath
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from msgspec.structs import replace

from foveal.core.log.events import Instructed, ModelSaid, ToolReturned, UserSaid
from foveal.core.policies import Policy, policy
from foveal.core.tokens.counter import counter
from foveal.core.wire.request_text import fact_text
from foveal.errors import BadSetting, StoreError, UnreadableEvent
from foveal.policies import NO_TABLES, PolicyTables, find_policy
from foveal.ports import Store
from foveal.replay.play import (
    PolicyPlayer,
    ReplayCase,
    ReplaySetting,
    Trace,
    in_window_of,
    replay_everything,
    replay_model,
)
from foveal.replay.recall_score import common_names, find_needs
from foveal.replay.recorded_calls import recorded_conversation
from foveal.replay.statistics import PolicyStatistics, policy_statistics
from foveal.replay.surprise import DEFAULT_SAMPLES
from foveal.replay.upper_bound import replay_oracle
from foveal.stores import open_store
from foveal.transcripts import Transcript, UnreadableTranscript, read

# ── Policies ───────────────────────────────────────────────────────────────────────────────────────────

PolicySpec: TypeAlias = "str | Path | Mapping[str, Any] | Policy | PolicyChoice"
"""A preset's name, a TOML file, a table of settings, or a policy."""


class PolicyChoice(NamedTuple):
    """A policy and its label in the results.

    Examples:
        ```python
        import foveal
        from foveal.replay import PolicyChoice

        choice = PolicyChoice("deep", foveal.policy("economy", target=0.1))
        ```
    """

    label: str
    """The label."""
    policy: Policy
    """The policy."""


def policy_choices(
    given: Iterable[PolicySpec], *, sweeps: Sequence[str] = (), tables: PolicyTables = NO_TABLES
) -> list[PolicyChoice]:
    """Return each policy with each combination of the swept values.

    Args:
        given: Names of presets, of `tables` or of installed policies, TOML files, tables of settings, or policies.
        sweeps: Settings with several values, such as `target=0.2,0.3`. By default there are none.
        tables: The tables `[policies.NAME]` of a configuration, by name.

    Raises:
        BadSetting: A policy or setting is unknown, or a value is invalid.

    Examples:
        ```python
        from foveal.replay import policy_choices

        choices = policy_choices(["economy"], sweeps=["target=0.2,0.3"])
        assert [choice.label for choice in choices] == ["economy target=0.2", "economy target=0.3"]
        ```
    """
    variants = [_parse_sweep(sweep) for sweep in sweeps]
    found: dict[str, PolicyChoice] = {}
    for base in (policy_choice(each, tables) for each in given):
        for values in product(*variants):
            choice = _with_values(base, values)
            found.setdefault(choice.label, choice)
    return list(found.values())


def policy_choice(given: PolicySpec, tables: PolicyTables = NO_TABLES) -> PolicyChoice:
    """Return a policy in any form as a choice; raises `BadSetting`."""
    if isinstance(given, PolicyChoice):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".toml")):
        return _from_file(Path(given))
    try:
        rules = find_policy(given, tables) if isinstance(given, str) else policy(given)
    except BadSetting as problem:
        if problem.field != "policy" or not isinstance(given, str):
            raise
        raise BadSetting("policy", given, f"{problem.allowed}, or a TOML file with its values") from None
    return PolicyChoice(rules.name, rules)


def _from_file(path: Path) -> PolicyChoice:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise BadSetting("policy", str(path), f"a file that can be read ({problem.strerror})") from None
    except ValueError as problem:
        raise BadSetting("policy", str(path), f"a TOML file ({problem})") from None
    named, context = values.get("policies", NO_TABLES), values.get("context", NO_TABLES)
    used = context.get("policy") if isinstance(context, Mapping) else None
    if isinstance(named, Mapping) and (named or isinstance(used, str)):
        # Lines of a configuration: the policy that it uses, or the first.
        rules = find_policy(used if isinstance(used, str) else next(iter(named)), named)
    else:
        table = values.get("policy", values)
        rules = policy({"name": path.stem, **table} if isinstance(table, Mapping) else table)
    return PolicyChoice(rules.name, rules)


def _parse_sweep(given: str) -> list[tuple[str, Any]]:
    """Return `key=a,b,c` as pairs of the key and each value."""
    key, equals, values = given.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise BadSetting("sweep", given, "key=a,b,c, such as target=0.2,0.3,0.4")
    field = key.strip().partition(".")[0]
    if field not in Policy.__struct_fields__:
        raise BadSetting("sweep", key.strip(), f"a setting: {', '.join(Policy.__struct_fields__)}")
    return [(key.strip(), _parse_value(value.strip())) for value in values.split(",")]


def _parse_value(text: str) -> Any:
    """Return a JSON number, true, false or null as its value, other text unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_values(base: PolicyChoice, values: Iterable[tuple[str, Any]]) -> PolicyChoice:
    rules, label = base.policy, base.label
    for key, value in values:
        field, dot, inner = key.partition(".")
        old = rules.values().get(field)
        new: Any = {**(old if isinstance(old, dict) else {}), inner: value} if dot else value
        rules = policy(rules, **{field: new})
        label = f"{label} {key}={json.dumps(value) if not isinstance(value, str) else value}"
    return PolicyChoice(label, rules)


# ── Loading and selecting ─────────────────────────────────────────────────────────────────────────

SQLITE_MAGIC: Final = b"SQLite format 3\0"
Half: TypeAlias = Literal["A", "B"]
OnSkipped: TypeAlias = Callable[[UnreadableTranscript], None]


def load(
    paths: Iterable[str | os.PathLike[str]],
    *,
    format: str = "auto",
    skipped: OnSkipped | None = None,
    damaged: OnSkipped | None = None,
) -> list[Transcript]:
    """Return the conversations in files, folders and session stores.

    Those without a message of a model are left out.

    Args:
        paths: Files, folders and stores.
        format: The name of a format, as in `foveal.transcripts.read`. `"auto"` detects it.
        skipped: Called with the error for each file, folder and store that cannot be read; the others are. None
            raises the error, and skips files of a folder silently.
        damaged: Called with the first problem of each file that is read in part. None says nothing.

    Raises:
        BadSetting: The format is unknown.
        UnreadableTranscript: A file, folder or store cannot be read, and `skipped` is None.

    Examples:
        ```python
        import json
        from pathlib import Path

        from foveal import replay

        messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, reader."}]
        Path("log.json").write_text(json.dumps(messages))
        (recording,) = replay.load(["log.json"])
        ```
    """
    found: list[Transcript] = []
    for path in map(Path, paths):
        try:
            if _is_store(path):
                found += load_store(path)
            else:
                found += read(path, format=format, skipped=skipped, damaged=damaged)
        except UnreadableTranscript as problem:
            if skipped is None:
                raise
            skipped(problem)
    return [each for each in found if any(isinstance(fact, ModelSaid) for fact, _ in each.facts)]


def load_store(path: Path) -> list[Transcript]:
    """Return the sessions in a store, without erased ones; raises `UnreadableTranscript`."""
    with ThreadPoolExecutor(1) as thread:  # the caller's thread may already run an event loop
        try:
            return thread.submit(asyncio.run, _read_sessions(path)).result()
        except (StoreError, UnreadableEvent) as problem:
            raise UnreadableTranscript(str(path), 0, f"the store cannot be read: {problem}") from None


async def _read_sessions(path: Path) -> list[Transcript]:
    async with open_store(path) as store:
        ids = sorted(info.id for info in await store.sessions() if not info.erased)
        return [await read_session(store, id, path=str(path)) for id in ids]


async def read_session(store: Store, id: str, *, path: str = "") -> Transcript:
    """Return a session of a store as a recording.

    Args:
        store: The store.
        id: The id of the session.
        path: The path in the recording, for its name in results.

    Raises:
        UnknownSession: No session has this id.

    Examples:
        ```python
        import foveal
        from foveal import replay

        async with foveal.stores.MemoryStore() as store:
            await store.append("demo", [foveal.Event(0, foveal.UserSaid(content="Hello."))])
            recording = await replay.read_session(store, "demo")
        ```
    """
    events, title = await store.read(id), (await store.info(id)).title
    facts = tuple((event.fact, event.at) for event in events)
    first = events[0].seq if events else 0
    return Transcript(id=id, source="store", facts=facts, title=title, path=path, first=first)


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False


def half_of(recording: Transcript) -> Half:
    """Return the half that a recording belongs to, `A` or `B`.

    It depends only on the id. Choose the values of settings on one half, and report their figures on the other.

    Args:
        recording: The recording.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert replay.half_of(recording) in ("A", "B")
        ```
    """
    return "B" if zlib.crc32(recording.id.encode("utf-8", "surrogatepass")) % 2 else "A"


def select(
    recordings: Sequence[Transcript],
    *,
    half: Half | None = None,
    min_tokens: int = 0,
    limit: int | None = None,
    seed: int = 0,
) -> list[Transcript]:
    """Return some of the recordings, in their order.

    Args:
        recordings: The recordings.
        half: `"A"` or `"B"`. None takes both halves.
        min_tokens: Tokens that a recording must have at least.
        limit: Most recordings, as a random sample. None takes all.
        seed: The same seed gives the same sample.

    Raises:
        BadSetting: A number is negative.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert replay.select([recording], limit=0) == []
        ```
    """
    _check_number("min_tokens", min_tokens, least=0)
    if limit is not None:
        _check_number("limit", limit, least=0)
    kept = [
        each
        for each in recordings
        if half in (None, half_of(each))
        and (not min_tokens or count_tokens(each, enough=min_tokens) >= min_tokens)
    ]
    if limit is None or limit >= len(kept):
        return kept
    places = random.Random(seed).sample(range(len(kept)), max(0, limit))
    return [kept[place] for place in sorted(places)]


def count_tokens(recording: Transcript, *, enough: int | None = None) -> int:
    """Return the tokens of all messages of a recording.

    Args:
        recording: The recording.
        enough: Tokens at which counting stops. None counts all.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        assert replay.count_tokens(recording) > 0
        ```
    """
    count, total = counter().count, 0
    for fact, _ in recording.facts:
        if isinstance(fact, UserSaid | ModelSaid | ToolReturned | Instructed):
            total += count(fact_text(fact))
            if enough is not None and total >= enough:
                break
    return total


# ── Running ───────────────────────────────────────────────────────────────────────────────────────

ReplayProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of conversations that are done, and of all."""
MIN_PARALLEL_FACTS: Final = 500
"""Fewer facts are replayed in this process, because starting others takes longer."""


class ReplayArguments(TypedDict, total=False):
    """Keyword arguments of `run`: how requests are made, and what is measured.

    Examples:
        ```python
        from foveal.replay import ReplayArguments

        arguments: ReplayArguments = {"model": "gpt-4.1", "window": (8_000, 32_000), "bounds": False}
        ```
    """

    model: str
    """The model whose window, prices and cache apply."""
    window: int | Sequence[int] | None
    """Tokens of the window, or several windows, whose statistics are taken together; None for the known one."""
    reserve: int | None
    """Tokens kept free for the answer; None for the default of `Context`."""
    margin: float | None
    """Share of the window that is never planned for; None for the default of `Context`."""
    ttl: int | None
    """Seconds that a prefix stays in the cache; None for the model's known value."""
    pace: float
    """Seconds from call to call if the recording has no times."""
    tokenizer: str
    """The vocabulary that counts."""
    summariser: str
    """`module:function` for `Context(summarise=…)`; "" summarises from the log alone."""
    common: Set[str] | None
    """Names that are no needs; None for `common_names` of the recordings."""
    no_recall: Iterable[str]
    """Patterns for file names or ids of conversations whose needs and surprise are not measured."""
    samples: int
    """Calls of each conversation at which surprise is measured; 0 measures none."""
    bounds: bool
    """Whether the upper bounds are replayed too, which is the default."""


def run(
    recordings: Sequence[Transcript],
    policies: Iterable[PolicySpec] = ("economy",),
    *,
    processes: int | None = None,
    progress: ReplayProgress | None = None,
    **arguments: Unpack[ReplayArguments],
) -> list[PolicyStatistics]:
    """Return the statistics of policies on recorded conversations.

    The first row is sending everything; then one row for each policy and, with `bounds`, the two upper bounds.
    No model is called.

    Args:
        recordings: The conversations.
        policies: Names of presets, TOML files, tables of settings, or policies.
        processes: Processes to use. None uses all cores where that is faster.
        progress: Called with the number of conversations that are done, and of all. None reports nothing.
        **arguments: The fields of `ReplayArguments`, such as `model`, `window` and `reserve`.

    Raises:
        BadSetting: A policy or setting is unknown, or a value is invalid.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert [row.policy for row in rows][:2] == ["everything", "economy"]
        ```
    """
    given: dict[str, Any] = {**arguments}
    windows = _windows(given.pop("window", None))
    common, no_recall = given.pop("common", None), given.pop("no_recall", ())
    samples, bounds = given.pop("samples", DEFAULT_SAMPLES), given.pop("bounds", True)
    setting = ReplaySetting(**given)
    _check_number("pace", setting.pace, least=0)
    _check_number("samples", samples, least=0)
    if processes is not None:
        _check_number("processes", processes, least=1)
    task = _ReplayTask(
        policies=policy_choices(policies),
        settings=[replace(setting, window=each) for each in windows],
        common=common_names(recordings) if common is None else common,
        no_recall=tuple(no_recall),
        samples=samples,
        bounds=bounds,
    )
    found = _traces(task, recordings, processes, progress or _ignore_progress)
    by_window = zip(*found, strict=True)
    rows = zip(*chain.from_iterable(by_window), strict=True)
    rules = dict(task.policies)
    return [
        policy_statistics(row[0].policy, row, replay_model(setting), rules.get(row[0].policy)) for row in rows
    ]


def _check_number(field: str, value: float, *, least: int) -> None:
    if not least <= value < inf:
        raise BadSetting(field, value, f"a number from {least}")


def _windows(given: int | Sequence[int] | None) -> Sequence[int | None]:
    """Return each window once, in the given order; None is the model's own."""
    if given is None or isinstance(given, int):
        return [given]
    if not given:
        raise BadSetting("window", given, "a number of tokens, or several")
    return list(dict.fromkeys(given))


class _ReplayTask(NamedTuple):
    """What is the same for every conversation; sent to each process."""

    policies: list[PolicyChoice]
    settings: list[ReplaySetting]
    """They differ only in the window."""
    common: Set[str]
    no_recall: tuple[str, ...]
    samples: int
    bounds: bool

    def replay(self, recording: Transcript) -> list[list[Trace]]:
        """Replay one conversation; return for each window the traces in the order of the result rows."""
        conversation = recorded_conversation(recording)
        # An agent that saw a part of its history quotes nothing else, so a policy that hides it would look good.
        is_measured = not self._is_without_recall(recording)
        needs = find_needs(conversation.facts, common=self.common) if is_measured else []
        samples = self.samples if is_measured else 0
        case = ReplayCase(conversation, needs, self.settings[0], samples=samples)
        everything = replay_everything(case)
        found = []
        for setting in self.settings:
            case.set_window(setting)
            found.append([in_window_of(case, everything), *self._policy_traces(case)])
        return found

    def _policy_traces(self, case: ReplayCase) -> list[Trace]:
        traces = [PolicyPlayer(case, rules, label=label).play() for label, rules in self.policies]
        if self.bounds:
            traces += [replay_oracle(case, arguments=False), replay_oracle(case, arguments=True)]
        return traces

    def _is_without_recall(self, recording: Transcript) -> bool:
        names = (recording.id, recording.path, PurePath(recording.path).name)
        return any(fnmatch(name, pattern) for pattern in self.no_recall for name in names)


def _traces(
    task: _ReplayTask, recordings: Sequence[Transcript], processes: int | None, progress: ReplayProgress
) -> list[list[list[Trace]]]:
    """Return for each recording the traces in each window."""
    count = min(processes or os.cpu_count() or 1, len(recordings))
    if count <= 1 or (processes is None and sum(len(each.facts) for each in recordings) < MIN_PARALLEL_FACTS):
        return list(
            map(
                partial(_replay_and_report, task, progress, len(recordings)),
                range(len(recordings)),
                recordings,
            )
        )
    largest_first = sorted(range(len(recordings)), key=lambda place: -len(recordings[place].facts))
    found: dict[int, list[list[Trace]]] = {}
    with ProcessPoolExecutor(
        count, mp_context=_process_context(), initializer=_init_worker, initargs=(task,)
    ) as pool:
        places = {pool.submit(_replay_in_worker, recordings[place]): place for place in largest_first}
        for done in as_completed(places):
            found[places[done]] = done.result()
            progress(len(found), len(recordings))
    return [found[place] for place in range(len(recordings))]


def _replay_and_report(
    task: _ReplayTask, progress: ReplayProgress, total: int, place: int, recording: Transcript
) -> list[list[Trace]]:
    traces = task.replay(recording)
    progress(place + 1, total)
    return traces


_worker_task: list[_ReplayTask] = []
"""In a process of the pool, its task; a list, so that the initializer can fill it."""


def _init_worker(task: _ReplayTask) -> None:
    _worker_task[:] = [task]


def _replay_in_worker(recording: Transcript) -> list[list[Trace]]:
    return _worker_task[0].replay(recording)


def _process_context() -> BaseContext:
    """Return the start method: fork where it is safe, so that a user's script needs no `__main__` guard."""
    can_fork = sys.platform.startswith("linux") and "fork" in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if can_fork else None)


def _ignore_progress(done: int, total: int) -> None:
    return None
