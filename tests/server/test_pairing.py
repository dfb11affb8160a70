"""Codes from the terminal let people talk to a bot: once, for ten minutes, and nobody guesses them."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from foveal.apps.gateways import pair_command
from foveal.server import ALPHABET, GUESSES, Database, Paired, Pairing
from foveal.server.pairing import LENGTH, LIFE, WINDOW

NOW = 1_000_000.0


@asynccontextmanager
async def pairing(folder: Path) -> AsyncIterator[Pairing]:
    database = Database(folder / "service.db")
    try:
        yield Pairing(database)
    finally:
        await database.close()


def test_a_code_pairs_whoever_brings_it_and_nobody_else(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            code = await desk.offer("discord", now=NOW)
            assert not await desk.paired("discord", 7)
            assert await desk.claim("discord", code, 7, now=NOW + 1)
            assert await desk.paired("discord", 7)
            assert not await desk.paired("discord", 8)
            assert not await desk.paired("telegram", 7)

    asyncio.run(proof())


def test_a_code_is_good_once(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            code = await desk.offer("discord", now=NOW)
            claims = [desk.claim("discord", code, user, now=NOW) for user in (7, 8)]
            assert sorted(await asyncio.gather(*claims)) == [False, True]
            assert len(await desk.list()) == 1

    asyncio.run(proof())


def test_a_code_is_good_for_ten_minutes(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            late, timely = await desk.offer("discord", now=NOW), await desk.offer("discord", now=NOW)
            assert await desk.claim("discord", timely, 7, now=NOW + LIFE - 1)
            assert not await desk.claim("discord", late, 8, now=NOW + LIFE)
            assert not await desk.claim("discord", late, 8, now=NOW), "not even if the clock goes backwards"

    asyncio.run(proof())


def test_a_code_of_one_face_is_none_of_another(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            code = await desk.offer("telegram", now=NOW)
            assert not await desk.claim("discord", code, 7, now=NOW)
            assert await desk.claim("telegram", code, 7, now=NOW)

    asyncio.run(proof())


def test_after_five_wrong_codes_a_right_one_is_wrong_for_an_hour(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            for _ in range(GUESSES):
                assert not await desk.claim("discord", "23456789", 7, now=NOW)
            code = await desk.offer("discord", now=NOW)
            assert not await desk.claim("discord", code, 7, now=NOW + 1)
            assert await desk.wait("discord", 7, now=NOW + 1) == WINDOW - 1
            assert await desk.wait("discord", 8, now=NOW + 1) == 0.0
            assert await desk.claim("discord", code, 8, now=NOW + 1), "others may still claim it"
            later = await desk.offer("discord", now=NOW + WINDOW)
            assert await desk.wait("discord", 7, now=NOW + WINDOW) == 0.0
            assert await desk.claim("discord", later, 7, now=NOW + WINDOW)

    asyncio.run(proof())


def test_a_code_may_be_typed_in_lower_case_and_with_dashes(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            code = await desk.offer("discord", now=NOW)
            assert await desk.claim("discord", f" {code[:4].lower()}-{code[4:].lower()} ", 7, now=NOW)

    asyncio.run(proof())


def test_whatever_is_typed_as_a_code_is_only_wrong(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            for user, typed in enumerate(("", "\ud800", "x" * 100_000, "' OR 1=1 --", "\0")):
                assert not await desk.claim("discord", typed, user, now=NOW)
            assert await desk.list() == ()

    asyncio.run(proof())


def test_codes_have_eight_characters_that_do_not_look_alike_and_differ(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            codes = {await desk.offer("discord", now=NOW) for _ in range(20)}
            assert len(codes) == 20
            assert {len(code) for code in codes} == {LENGTH} == {8}
            assert set("".join(codes)) <= set(ALPHABET)
            assert not set(ALPHABET) & set("01OIL")

    asyncio.run(proof())


def test_the_file_does_not_hold_the_codes(tmp_path: Path) -> None:
    async def proof() -> str:
        async with pairing(tmp_path) as desk:
            return await desk.offer("discord", now=NOW)

    code = asyncio.run(proof())
    assert not any(code.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_whoever_is_forgotten_is_not_paired_any_more(tmp_path: Path) -> None:
    async def proof() -> None:
        async with pairing(tmp_path) as desk:
            for user in (7, 8):
                code = await desk.offer("discord", now=NOW)
                assert await desk.claim("discord", code, user, now=NOW + user)
            assert await desk.forget("discord", 7)
            assert not await desk.forget("discord", 7)
            assert not await desk.paired("discord", 7)
            assert await desk.list() == (Paired(face="discord", user=8, since=NOW + 8),)

    asyncio.run(proof())


CLAIM = """
import asyncio, sys
from pathlib import Path
from foveal.server.database import Database
from foveal.server.pairing import Pairing

async def claim():
    database = Database(Path(sys.argv[1]) / "service.db")
    print(await Pairing(database).claim("discord", sys.argv[2], int(sys.argv[3]), now=float(sys.argv[4])))
    await database.close()

asyncio.run(claim())
"""


def test_a_code_from_one_process_is_claimed_in_another_and_only_once(tmp_path: Path) -> None:
    async def offered() -> str:
        async with pairing(tmp_path) as desk:
            return await desk.offer("discord", now=NOW)

    code = asyncio.run(offered())
    claims = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path), code, str(user), str(NOW)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for user in (7, 8)
    ]
    said = [claim.communicate(timeout=60)[0].strip() for claim in claims]
    assert sorted(said) == ["False", "True"]

    async def found() -> None:
        async with pairing(tmp_path) as desk:
            (one,) = await desk.list()
            assert one.user == (7, 8)[said.index("True")]

    asyncio.run(found())


def command(*given: str, folder: Path) -> int:
    """`foveal pair …`, without the rest of the program."""
    parser = argparse.ArgumentParser()
    pair_command.add_commands(parser.add_subparsers())
    return asyncio.run(pair_command.pair(parser.parse_args(["pair", *given, "--folder", str(folder)])))


def test_the_command_prints_a_code_that_works_and_says_who_is_paired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "served"
    assert command("discord", "--list", folder=folder) == 0
    assert capsys.readouterr().out == "nobody is paired with the bot on Discord\n"
    assert command("discord", folder=folder) == 0
    code = capsys.readouterr().out.partition("/pair ")[2].split()[0]

    async def claimed() -> bool:
        async with pairing(folder) as desk:
            return await desk.claim("discord", code, 7, now=time.time())

    assert asyncio.run(claimed())
    assert command("discord", "--list", folder=folder) == 0
    assert capsys.readouterr().out.startswith("7 ")
    assert command("telegram", "--forget", "7", folder=folder) == 1
    assert command("discord", "--forget", "7", folder=folder) == 0
    assert command("discord", "--forget", "7", folder=folder) == 1
    assert (folder / "service.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "required: telegram|discord"),
        (("mastodon",), "there is no bot on 'mastodon', only on telegram and discord"),
        (("discord", "--forget", "abc"), "a user is named by a number, as `--list` shows it, not by 'abc'"),
    ],
)
def test_what_the_command_does_not_understand_is_told_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], told: str
) -> None:
    with pytest.raises(SystemExit):
        command(*given, folder=tmp_path)
    assert told in capsys.readouterr().err
