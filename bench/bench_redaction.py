"""Measures redaction: time per megabyte, keys found of every format, and false alarms on ordinary text.

Recorded conversations are measured too when `FOVEAL_BENCH_DATA` names a folder with `*.jsonl.gz` files, one
conversation a line. Set `FOVEAL_BENCH_SHOW_HITS` to print what was found in them, to be judged by a person.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sysconfig
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.made_keys import MadeKey, made_forms, made_keys
from bench.measure import Row, best_of
from bench.secret_kinds import SECRET_KINDS, MadeSecret, made_secrets, remains
from foveal.core.redaction import StreamRedactor, find_secrets, scrub
from foveal.core.redaction.redact import re2_search, scan_part

MAX_SECONDS_PER_MB: Final = 0.010
MAX_MISSED: Final = 0.01
"""Share of generated keys that may be missed."""
MAX_FALSE_PER_10_MB: Final = 1.0
MEGABYTE: Final = 1_000_000
SECRETS_PER_KIND: Final = 2_000
MAX_OTHERS_MISSED: Final = 0.005
"""Share of the secrets without a prefix that may be missed."""
CODE_MB: Final = 20
MAX_FALSE_IN_CODE: Final = 5.0
DATA_VARIABLE: Final = "FOVEAL_BENCH_DATA"
SHOW_VARIABLE: Final = "FOVEAL_BENCH_SHOW_HITS"


def rows() -> Iterator[Row]:
    note = "with RE2" if re2_search() else "without RE2; install foveal[redaction]"
    for name, text in _texts().items():
        yield Row(f"redact 1 MB, {name}", _seconds(text), limit=MAX_SECONDS_PER_MB, note=note)
        if re2_search():
            seconds = _seconds_without_re2(text)
            yield Row(f"redact 1 MB, {name}, without RE2", seconds, limit=MAX_SECONDS_PER_MB)
    yield _missed_row("keys with a known format, missed", made_keys(seed=3))
    yield _missed_row("secrets in a known form, missed", made_forms(seed=3))
    yield from _kind_rows()
    yield from _code_rows()
    log = _texts()["log"][:100_000]
    yield Row("redact 100 kB as a stream of 20 characters", best_of(3, lambda: _stream(log)))
    folder = os.environ.get(DATA_VARIABLE)
    if folder:
        yield from _recorded_rows(Path(folder))


def _seconds(text: str) -> float:
    return best_of(15, lambda: find_secrets(text))


def _seconds_without_re2(text: str) -> float:
    ascii_text = text.encode("ascii", "replace")
    return best_of(7, lambda: scan_part(ascii_text.decode(), ascii_text))


def _missed_row(what: str, cases: Iterable[MadeKey]) -> Row:
    results = [(case, _leaks(case)) for case in cases]
    missed = [case for case, leaks in results if leaks]
    rules = len({case.rule for case, _ in results})
    note = f"{len(missed)} of {len(results):,}, {rules} rules"
    return Row(what, len(missed) / len(results), unit="%", limit=MAX_MISSED, note=note)


def _leaks(case: MadeKey) -> bool:
    """Return whether six successive characters of the second half of the key remain."""
    text = scrub(case.text)
    return any(case.key[at : at + 6] in text for at in range(len(case.key) // 2, len(case.key) - 6))


def _kind_rows() -> Iterator[Row]:
    """Measure what is missed of many secrets of each kind; a note names the kinds with one or more."""
    missed = [made for made in made_secrets(SECRETS_PER_KIND, seed=3) if remains(made, scrub(made.text))]
    for what, limit, has_prefix in (
        ("secrets with a prefix, missed", 0.0, True),
        ("other secrets, missed", MAX_OTHERS_MISSED, False),
    ):
        kinds = sum(bool(kind.prefix) == has_prefix for kind in SECRET_KINDS)
        of_these = [made for made in missed if bool(made.kind.prefix) == has_prefix]
        total = kinds * SECRETS_PER_KIND
        note = f"{len(of_these)} of {total:,}, {kinds} kinds{_by_kind(of_these)}"
        yield Row(what, len(of_these) / total, unit="%", limit=limit, note=note)


def _by_kind(missed: list[MadeSecret]) -> str:
    return "".join(f", {name} {count}" for name, count in Counter(made.kind.name for made in missed).items())


# ── Code ───────────────────────────────────────────────────────────────────────────────────────────────


def _code_rows() -> Iterator[Row]:
    """Measure false hits and time on the source of Python's library and of the installed packages."""
    texts = list(_code_texts())
    size = sum(map(len, texts)) / MEGABYTE
    start = time.process_time()
    hits = [(text, hit) for text in texts for hit in find_secrets(text)]
    seconds = time.process_time() - start
    if SHOW_VARIABLE in os.environ:
        for text, hit in hits:
            print(f"  {hit.name}: {text[max(0, hit.start - 60) : hit.end]!r}")
    note = f"{size:.0f} MB in {len(texts):,} files"
    yield Row("hits in 20 MB of code", float(len(hits)), unit="×", limit=MAX_FALSE_IN_CODE, note=note)
    yield Row("redact 1 MB, files of code", seconds / size, limit=MAX_SECONDS_PER_MB, note=note)
    whole = "\n".join(texts).encode("ascii", "replace").decode()
    pieces = [whole[at : at + MEGABYTE] for at in range(0, len(whole) - MEGABYTE, 4 * MEGABYTE)]
    scans = sorted(map(_seconds_without_re2, pieces))
    note = f"median of {len(pieces)}; slowest {scans[-1] * 1000:.1f} ms"
    yield Row("redact 1 MB of code without RE2", scans[len(scans) // 2], limit=MAX_SECONDS_PER_MB, note=note)


def _code_texts() -> Iterator[str]:
    """Yield the files in random order, up to `CODE_MB`."""
    folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    paths = sorted({path for folder in folders for path in Path(folder).rglob("*.py")})
    random.Random(1).shuffle(paths)
    size = 0
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        size += len(text)
        if size >= CODE_MB * MEGABYTE:
            return


def _stream(text: str) -> None:
    redactor = StreamRedactor()
    for at in range(0, len(text), 20):
        redactor.feed(text[at : at + 20])
    redactor.close()


# ── Texts ──────────────────────────────────────────────────────────────────────────────────────────────


def _texts() -> dict[str, str]:
    pick = random.Random(1)
    lines = (
        ("log", _log), ("code", _code), ("lock file", _lock), ("shell lines", _shell), ("config file", _config),
        ("stack trace", _stack), ("Java source", _java), ("JSON with UUIDs", _json),
    )  # fmt: skip
    return {name: _fill(line, pick) for name, line in lines}


def _fill(line: Any, pick: random.Random) -> str:
    block = "".join(line(pick) for _ in range(3_000))
    return (block * (MEGABYTE // len(block) + 1))[:MEGABYTE]


def _log(pick: random.Random) -> str:
    place = f"src/part_{pick.randint(1, 99)}/module_{pick.randint(1, 999)}.py:{pick.randint(1, 999)}"
    request = f"{pick.getrandbits(64):016x} took {pick.randint(1, 99)} ms"
    return f"2026-01-02T03:{pick.randint(10, 59)}:12Z INFO {place} request {request}\n"


def _code(pick: random.Random) -> str:
    names = pick.choices(
        ("parser", "load_config", "window_size", "HTTPServer", "result", "self", "sort_key"), k=3
    )
    return (
        f'    {names[0]} = {names[1]}.{names[2]}("{pick.choice(names)}", size={pick.randint(1, 99)})  # why\n'
    )


def _lock(pick: random.Random) -> str:
    fields = {"version": f"1.{pick.randint(0, 99)}.0", "sha256": f"{pick.getrandbits(256):064x}"}
    return f'    "package-{pick.randint(1, 999)}": {json.dumps(fields)},\n'


def _shell(pick: random.Random) -> str:
    options = f"--rm -p 8080:80 -u root -v /a:/b --name web-{pick.randint(1, 9)} -a -b --api-key $KEY"
    return f'$ docker run {options} && curl -s -H "Accept: x" https://h/{pick.randint(1, 99)}\n'


def _config(pick: random.Random) -> str:
    keys = f"sort_key: value_{pick.randint(1, 99)}\nprimary_key = id_{pick.randint(1, 99)}\n"
    return f"{keys}password: ${{DB_PASSWORD}}\ntoken: {pick.choice(['str', 'None'])}\nsecretName: my-secret\n"


def _stack(pick: random.Random) -> str:
    method = f"StandardContextValve.invokeHandlerMethodInternal{pick.randint(1, 99)}"
    return f"\tat org.apache.catalina.core.{method}(AbstractMethodAdapter.java:{pick.randint(1, 999)})\n"


def _java(pick: random.Random) -> str:
    name = pick.choice(("HandlerMethodArgumentResolver", "ConfigurableApplicationContext", "TokenProvider"))
    line = f"    private final {name} my{name} = new Default{name}Factory().create({pick.randint(1, 99)});"
    return f"import org.springframework.web.method.support.{name};\n{line}\n"


def _json(pick: random.Random) -> str:
    ids = {name: str(uuid.UUID(int=pick.getrandbits(128), version=4)) for name in ("id", "parent_id")}
    return (
        json.dumps(
            {**ids, "type": "event", "configuration_instance": ids["id"], "count": pick.randint(1, 999)}
        )
        + "\n"
    )


# ── Recorded conversations ─────────────────────────────────────────────────────────────────────────────


def _recorded_rows(folder: Path) -> Iterator[Row]:
    texts = list(_recorded_texts(folder))
    size = sum(map(len, texts)) / MEGABYTE
    whole = "\n".join(texts)
    pieces = [whole[at : at + MEGABYTE] for at in range(0, len(whole), MEGABYTE)][:-1:4]
    seconds = sorted(best_of(5, lambda: find_secrets(piece)) for piece in pieces)  # noqa: B023
    note = f"median of {len(pieces)}; slowest {seconds[-1] * 1000:.1f} ms"
    yield Row(
        "redact 1 MB, recorded conversations", seconds[len(seconds) // 2], limit=MAX_SECONDS_PER_MB, note=note
    )
    hits = [(text, hit) for text in texts for hit in find_secrets(text)]
    if SHOW_VARIABLE in os.environ:
        for text, hit in hits:
            print(f"  {hit.name}: {text[max(0, hit.start - 60) : hit.end]!r}")
    note = f"{len(hits)} hits in {size:.0f} MB, real secrets among them not subtracted"
    yield Row(
        "hits per 10 MB, recorded conversations",
        len(hits) / size * 10,
        unit="×",
        limit=MAX_FALSE_PER_10_MB,
        note=note,
    )


def _recorded_texts(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                for message in json.loads(line)["messages"]:
                    yield from _message_texts(message)


def _message_texts(message: dict[str, Any]) -> Iterator[str]:
    for field in ("content", "reasoning_content"):
        value = message.get(field)
        if value:
            yield value if isinstance(value, str) else json.dumps(value)
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        yield arguments if isinstance(arguments, str) else json.dumps(arguments)
