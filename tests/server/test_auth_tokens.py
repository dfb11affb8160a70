"""Tests of `foveal token`: creating, storing and revoking tokens without storing their secrets."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from foveal.cli.__main__ import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "server"


def token(folder: Path, *arguments: str) -> int:
    return main(["token", *arguments, "--folder", str(folder)])


def create_token(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Create a token; return its id and its secret."""
    assert token(folder, "create", *arguments) == 0
    printed = capsys.readouterr()
    secret = printed.out.strip()
    assert re.fullmatch(r"fv_[A-Za-z0-9_-]{43}", secret)
    assert secret not in printed.err
    return printed.err.split()[1], secret


def test_the_secret_is_printed_once_and_never_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, secret = create_token(folder, capsys, "--tenant", "alice", "--label", "the laptop")
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert secret.encode() not in kept
    assert secret.removeprefix("fv_").encode() not in kept
    assert sha256(secret.encode()).digest() in kept
    assert token(folder, "list") == 0
    printed = capsys.readouterr().out
    assert "alice" in printed
    assert "the laptop" in printed
    assert secret[3:10] not in printed


def test_only_the_owner_can_read_the_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_token(folder, capsys)
    assert folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_file()}
    assert modes["service.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_a_revoked_token_loses_even_its_hash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id, secret = create_token(folder, capsys)
    other, _ = create_token(folder, capsys, "--tenant", "bob")
    assert token(folder, "revoke", id) == 0
    assert token(folder, "revoke", id) == 1
    assert token(folder, "revoke", "unknown\x1b[2J") == 1
    printed = capsys.readouterr()
    assert "there is no valid token" in printed.err
    assert "\x1b" not in printed.err
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert sha256(secret.encode()).digest() not in kept
    assert token(folder, "list") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "revoked" in lines[id]
    assert "valid" in lines[other]


@pytest.mark.parametrize("name", ["", "Alice", "a/b", "../a", "a" * 64, "-a", "ä"])
def test_an_invalid_tenant_name_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert token(folder, "create", f"--tenant={name}") == 1
    assert "tenant" in capsys.readouterr().err


def test_an_empty_list_says_how_to_create_a_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    assert main(["token", "--folder", str(folder), "list"]) == 0
    assert f"`foveal token create --folder {folder}`" in capsys.readouterr().out
    assert main(["token", "list"]) == 0
    assert "`foveal token create`" in capsys.readouterr().out


def test_a_label_is_shown_as_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_token(folder, capsys, "--label", "evil\x1b[2J\u202e")
    assert token(folder, "list") == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert token(folder, "create", "--label", "x" * 201) == 1


@pytest.mark.parametrize("memory", ["ada", "ada; hears", "@request", "@request; hears"])
def test_a_token_may_name_a_memory(folder: Path, capsys: pytest.CaptureFixture[str], memory: str) -> None:
    create_token(folder, capsys, "--memory", memory, "--label", "the laptop")
    assert token(folder, "list") == 0
    assert f"memory: {memory}  the laptop" in capsys.readouterr().out


@pytest.mark.parametrize(
    "memory", ["", " ", "a b", "@ada", "ada; writes", "-", "x" * 201, "ada\n", "аda", "ada\u200b"]
)
def test_a_memory_that_no_user_can_have_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], memory: str
) -> None:
    assert token(folder, "create", f"--memory={memory}") == 1
    assert "--memory" in capsys.readouterr().err
    assert token(folder, "list") == 0
    assert "no token yet" in capsys.readouterr().out
