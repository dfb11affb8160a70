"""Tokens as they are made, kept and taken back: the secret is nowhere but with whom it was given to."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from foveal.apps.__main__ import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "server"


def token(folder: Path, *arguments: str) -> int:
    return main(["token", *arguments, "--folder", str(folder)])


def created(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """The id and the secret of a new token."""
    assert token(folder, "create", *arguments) == 0
    told = capsys.readouterr()
    secret = told.out.strip()
    assert re.fullmatch(r"fv_[A-Za-z0-9_-]{43}", secret)
    assert secret not in told.err
    return told.err.split()[1], secret


def test_the_secret_is_printed_once_and_kept_nowhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, secret = created(folder, capsys, "--tenant", "alice", "--label", "the laptop")
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert secret.encode() not in kept
    assert secret.removeprefix("fv_").encode() not in kept
    assert sha256(secret.encode()).digest() in kept
    assert token(folder, "list") == 0
    told = capsys.readouterr().out
    assert "alice" in told
    assert "the laptop" in told
    assert secret[3:10] not in told


def test_the_files_are_their_owners_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    created(folder, capsys)
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()}
    assert modes["service.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_a_revoked_token_loses_even_its_hash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id, secret = created(folder, capsys)
    other, _ = created(folder, capsys, "--tenant", "bob")
    assert token(folder, "revoke", id) == 0
    assert token(folder, "revoke", id) == 1
    assert token(folder, "revoke", "unknown\x1b[2J") == 1
    told = capsys.readouterr()
    assert "there is no good token" in told.err
    assert "\x1b" not in told.err
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert sha256(secret.encode()).digest() not in kept
    assert token(folder, "list") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "revoked" in lines[id]
    assert "good" in lines[other]


@pytest.mark.parametrize("name", ["", "Alice", "a/b", "../a", "a" * 64, "-a", "ä"])
def test_a_tenant_has_a_plain_name(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert token(folder, "create", f"--tenant={name}") == 1
    assert "tenant" in capsys.readouterr().err


def test_without_tokens_the_list_says_how_to_make_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "--folder", str(folder), "list"]) == 0
    assert f"`foveal token create --folder {folder}`" in capsys.readouterr().out
    assert main(["token", "list"]) == 0
    assert "`foveal token create`" in capsys.readouterr().out


def test_a_label_is_shown_as_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    created(folder, capsys, "--label", "evil\x1b[2J\u202e")
    assert token(folder, "list") == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert token(folder, "create", "--label", "x" * 201) == 1
