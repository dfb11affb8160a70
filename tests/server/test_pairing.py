"""Tests of pairing codes and of `foveal pair`."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from foveal.cli import server_commands
from foveal.server import CODE_ALPHABET, MAX_WRONG_CODES, PairedUser, Pairing
from foveal.server.pairing import CODE_CHARS, CODE_TTL_S, WRONG_CODE_WINDOW_S
from support import warm_start
from support.paths import TESTS
from support.service_databases import open_database

NOW = 1_000_000.0


@asynccontextmanager
async def pairing(place: Path | str) -> AsyncIterator[Pairing]:
    async with open_database(place) as database:
        yield Pairing(database)


def test_a_code_pairs_the_user_who_claims_it_and_no_other(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            code = await codes.create_code("discord", now=NOW)
            assert not await codes.is_paired("discord", 7)
            assert await codes.claim("discord", code, 7, now=NOW + 1)
            assert await codes.is_paired("discord", 7)
            assert not await codes.is_paired("discord", 8)
            assert not await codes.is_paired("telegram", 7)

    asyncio.run(check())


def test_a_code_works_once(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            code = await codes.create_code("discord", now=NOW)
            claims = [codes.claim("discord", code, user, now=NOW) for user in (7, 8)]
            assert sorted(await asyncio.gather(*claims)) == [False, True]
            assert len(await codes.list()) == 1

    asyncio.run(check())


def test_a_code_works_for_ten_minutes(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            late, timely = (
                await codes.create_code("discord", now=NOW),
                await codes.create_code("discord", now=NOW),
            )
            assert await codes.claim("discord", timely, 7, now=NOW + CODE_TTL_S - 1)
            assert not await codes.claim("discord", late, 8, now=NOW + CODE_TTL_S)
            assert not await codes.claim("discord", late, 8, now=NOW), "not even if the clock goes backwards"

    asyncio.run(check())


def test_a_code_works_on_one_platform_only(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            code = await codes.create_code("telegram", now=NOW)
            assert not await codes.claim("discord", code, 7, now=NOW)
            assert await codes.claim("telegram", code, 7, now=NOW)

    asyncio.run(check())


def test_after_five_wrong_codes_a_valid_one_is_refused_for_an_hour(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            for _ in range(MAX_WRONG_CODES):
                assert not await codes.claim("discord", "23456789", 7, now=NOW)
            code = await codes.create_code("discord", now=NOW)
            assert not await codes.claim("discord", code, 7, now=NOW + 1)
            assert await codes.retry_after("discord", 7, now=NOW + 1) == WRONG_CODE_WINDOW_S - 1
            assert await codes.retry_after("discord", 8, now=NOW + 1) == 0.0
            assert await codes.claim("discord", code, 8, now=NOW + 1), "others may still claim it"
            later = await codes.create_code("discord", now=NOW + WRONG_CODE_WINDOW_S)
            assert await codes.retry_after("discord", 7, now=NOW + WRONG_CODE_WINDOW_S) == 0.0
            assert await codes.claim("discord", later, 7, now=NOW + WRONG_CODE_WINDOW_S)

    asyncio.run(check())


def test_a_code_may_be_typed_in_lower_case_and_with_dashes(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            code = await codes.create_code("discord", now=NOW)
            assert await codes.claim("discord", f" {code[:4].lower()}-{code[4:].lower()} ", 7, now=NOW)

    asyncio.run(check())


def test_any_text_as_a_code_is_refused_without_an_error(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            for user, typed in enumerate(("", "\ud800", "x" * 100_000, "' OR 1=1 --", "\0")):
                assert not await codes.claim("discord", typed, user, now=NOW)
            assert await codes.list() == ()

    asyncio.run(check())


def test_codes_have_eight_unambiguous_characters_and_differ(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            codes = {await codes.create_code("discord", now=NOW) for _ in range(20)}
            assert len(codes) == 20
            assert {len(code) for code in codes} == {CODE_CHARS} == {8}
            assert set("".join(codes)) <= set(CODE_ALPHABET)
            assert not set(CODE_ALPHABET) & set("01OIL")

    asyncio.run(check())


def test_the_file_does_not_contain_the_codes(tmp_path: Path) -> None:
    async def check() -> str:
        async with pairing(tmp_path) as codes:
            return await codes.create_code("discord", now=NOW)

    code = asyncio.run(check())
    assert not any(code.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_an_unpaired_user_is_no_longer_paired(place: Path | str) -> None:
    async def check() -> None:
        async with pairing(place) as codes:
            for user in (7, 8):
                code = await codes.create_code("discord", now=NOW)
                assert await codes.claim("discord", code, user, now=NOW + user)
            assert await codes.unpair("discord", 7)
            assert not await codes.unpair("discord", 7)
            assert not await codes.is_paired("discord", 7)
            assert await codes.list() == (PairedUser(platform="discord", user=8, since=NOW + 8),)

    asyncio.run(check())


CLAIM = """
import asyncio, sys
from foveal.server.pairing import Pairing
from support.service_databases import open_database, place_of

async def claim():
    async with open_database(place_of(sys.argv[1])) as database:
        print(await Pairing(database).claim("discord", sys.argv[2], int(sys.argv[3]), now=float(sys.argv[4])))

asyncio.run(claim())
"""


def test_a_code_from_one_process_is_claimed_in_another_and_only_once(
    place: Path | str, tmp_path: Path
) -> None:
    async def offered() -> str:
        async with pairing(place) as codes:
            return await codes.create_code("discord", now=NOW)

    code = asyncio.run(offered())
    program = tmp_path / "claim.py"
    program.write_text(CLAIM)
    claims = [
        warm_start.start(
            [program, place, code, user, NOW],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdout=PIPE,
            encoding="utf-8",
        )
        for user in (7, 8)
    ]
    printed = [claim.communicate(timeout=240)[0].strip() for claim in claims]
    assert sorted(printed) == ["False", "True"]

    async def found() -> None:
        async with pairing(place) as codes:
            (one,) = await codes.list()
            assert one.user == (7, 8)[printed.index("True")]

    asyncio.run(found())


def command(*given: str, folder: Path) -> int:
    """Run `foveal pair …` without the rest of the program."""
    parser = argparse.ArgumentParser()
    server_commands.add_commands(parser.add_subparsers())
    return asyncio.run(server_commands.pair(parser.parse_args(["pair", *given, "--folder", str(folder)])))


def test_the_command_prints_a_working_code_and_lists_paired_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "served"
    folder.mkdir()
    assert command("discord", "--list", folder=folder) == 0
    assert capsys.readouterr().out == "no user is paired with the bot on Discord\n"
    assert command("discord", folder=folder) == 0
    code = capsys.readouterr().out.partition("/pair ")[2].split()[0]

    async def claimed() -> bool:
        async with pairing(folder) as codes:
            return await codes.claim("discord", code, 7, now=time.time())

    assert asyncio.run(claimed())
    assert command("discord", "--list", folder=folder) == 0
    assert capsys.readouterr().out.startswith("7 ")
    assert command("telegram", "--forget", "7", folder=folder) == 1
    assert command("discord", "--forget", "7", folder=folder) == 0
    assert command("discord", "--forget", "7", folder=folder) == 1
    assert (folder / "service.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "required: telegram|discord"),
        (("mastodon",), "there is no bot on 'mastodon', only on telegram and discord"),
        (("discord", "--forget", "abc"), "a user id is a number, as `--list` shows it, not 'abc'"),
    ],
)
def test_the_command_explains_invalid_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit):
        command(*given, folder=tmp_path)
    assert message in capsys.readouterr().err
