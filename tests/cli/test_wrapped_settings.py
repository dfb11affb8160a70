"""Foveal's settings in a file of another program can be taken back, whatever has happened to the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveal.cli.wrap.settings_file import SettingsFile
from foveal.errors import FovealError
from support.effort import examples

URL = {("env", "ANTHROPIC_BASE_URL"): '"http://127.0.0.1:8790"', ("env", "DISABLE_AUTO_COMPACT"): '"1"'}
OTHER_URL = {**URL, ("env", "ANTHROPIC_BASE_URL"): '"http://127.0.0.1:9999"'}
MINE = (
    b'\xef\xbb\xbf{\r\n\t// mine\r\n\t"model": "opus",\r\n\t"env": {"ANTHROPIC_BASE_URL": "https://gw"},\r\n}'
)


def opened(home: Path) -> SettingsFile:
    return SettingsFile(home / ".claude/settings.json", home / "records", "claude")


def save(home: Path, wanted: dict[tuple[str, ...], str] = URL) -> None:
    file = opened(home)
    file.write(file.planned(wanted))


def given_file(home: Path, content: bytes) -> Path:
    path = home / ".claude/settings.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_bytes_of_the_file_come_back(tmp_path: Path, times: int) -> None:
    path = given_file(tmp_path, MINE)
    path.chmod(0o640)
    for number in range(times):
        save(tmp_path, OTHER_URL if number % 2 else URL)
    assert path.read_bytes() != MINE
    assert path.stat().st_mode & 0o777 == 0o640
    assert opened(tmp_path).restore().is_exact
    assert path.read_bytes() == MINE
    assert path.stat().st_mode & 0o777 == 0o640
    assert list((tmp_path / "records").iterdir()) == []


@pytest.mark.parametrize("chosen", [None, 0o620])
def test_the_mode_of_a_file_comes_back_after_a_secret(tmp_path: Path, chosen: int | None) -> None:
    path = given_file(tmp_path, MINE)
    path.chmod(0o644)
    for _ in range(2):
        file = opened(tmp_path)
        file.write(file.planned(URL), is_secret=True)
        assert path.stat().st_mode & 0o777 == 0o600
    if chosen is not None:
        path.chmod(chosen)
    opened(tmp_path).restore()
    assert path.stat().st_mode & 0o777 == (chosen or 0o644)


def test_a_file_keeps_its_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    path = given_file(tmp_path, MINE)
    save(tmp_path)
    written = path.read_bytes()
    assert written.startswith(b"\xef\xbb\xbf{\r\n\t// mine\r\n")
    assert written.count(b"\n") == written.count(b"\r\n")


def test_a_file_and_folder_that_were_missing_are_removed_again(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / ".claude/settings.json"
    assert json.loads(path.read_text())["env"]["DISABLE_AUTO_COMPACT"] == "1"
    assert path.stat().st_mode & 0o077 == 0
    opened(tmp_path).restore()
    assert not path.parent.exists()


def test_a_new_folder_stays_if_it_holds_other_files(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / ".claude/history.jsonl").write_text("{}")
    opened(tmp_path).restore()
    assert [file.name for file in (tmp_path / ".claude").iterdir()] == ["history.jsonl"]


def test_what_the_user_has_changed_since_stays(tmp_path: Path) -> None:
    path = given_file(tmp_path, MINE)
    save(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"opus"', b'"haiku"'))
    restored = opened(tmp_path).restore()
    assert (restored.is_exact, restored.changed_by_user) == (False, ())
    assert path.read_bytes() == MINE.replace(b'"opus"', b'"haiku"')


def test_a_setting_that_the_user_has_changed_since_stays_and_is_named(tmp_path: Path) -> None:
    path = given_file(tmp_path, b"{}")
    save(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"http://127.0.0.1:8790", b"https://new"))
    assert opened(tmp_path).restore().changed_by_user == (("env", "ANTHROPIC_BASE_URL"),)
    assert json.loads(path.read_bytes()) == {"env": {"ANTHROPIC_BASE_URL": "https://new"}}


def test_a_new_file_to_which_the_user_has_added_settings_stays(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / ".claude/settings.json"
    path.write_bytes(path.read_bytes().replace(b"{\n", b'{\n  "model": "opus",\n', 1))
    opened(tmp_path).restore()
    assert json.loads(path.read_bytes()) == {"model": "opus"}


def test_a_file_that_the_user_has_removed_stays_removed(tmp_path: Path) -> None:
    path = given_file(tmp_path, MINE)
    save(tmp_path)
    path.unlink()
    opened(tmp_path).restore()
    assert not path.exists()
    assert list(SettingsFile.changed(tmp_path / "records", "claude")) == []


def test_settings_that_the_user_has_changed_survive_another_save(tmp_path: Path) -> None:
    path = given_file(tmp_path, MINE)
    save(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"opus"', b'"haiku"'))
    save(tmp_path, OTHER_URL)
    opened(tmp_path).restore()
    assert path.read_bytes() == MINE.replace(b'"opus"', b'"haiku"')


def test_saving_twice_changes_nothing(tmp_path: Path) -> None:
    path = given_file(tmp_path, MINE)
    save(tmp_path)
    once = path.read_bytes()
    file = opened(tmp_path)
    assert file.planned(URL) == file.record
    save(tmp_path)
    assert path.read_bytes() == once


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles/claude.json"
    real.write_bytes(MINE)
    (tmp_path / ".claude").mkdir()
    link = tmp_path / ".claude/settings.json"
    link.symlink_to("../dotfiles/claude.json")
    save(tmp_path)
    assert os.readlink(link) == "../dotfiles/claude.json"
    assert real.read_bytes() != MINE
    opened(tmp_path).restore()
    assert os.readlink(link) == "../dotfiles/claude.json"
    assert real.read_bytes() == MINE


def test_a_link_to_a_missing_file_stays_and_its_file_goes_again(tmp_path: Path) -> None:
    (tmp_path / ".claude").mkdir()
    link = tmp_path / ".claude/settings.json"
    link.symlink_to(tmp_path / "dotfiles/claude.json")
    save(tmp_path)
    assert (tmp_path / "dotfiles/claude.json").exists()
    opened(tmp_path).restore()
    assert link.is_symlink()
    assert not (tmp_path / "dotfiles").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe{\x00}\x00", b"{", b"[]"])
def test_a_file_that_cannot_be_read_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = given_file(tmp_path, content)
    with pytest.raises(FovealError, match="cannot be changed safely"):
        opened(tmp_path).planned(URL)
    assert path.read_bytes() == content


def test_a_file_that_changes_before_the_write_is_left_alone(tmp_path: Path) -> None:
    path = given_file(tmp_path, MINE)
    file = opened(tmp_path)
    planned = file.planned(URL)
    path.write_bytes(b"{}")
    with pytest.raises(FovealError, match="run the command again"):
        file.write(planned)
    assert path.read_bytes() == b"{}"


KILLED = """
import ast, os, sys
from pathlib import Path
from foveal.cli.wrap.settings_file import SettingsFile
home, at, wanted = Path(sys.argv[1]), int(sys.argv[2]), ast.literal_eval(sys.argv[3])
calls, replace = 0, os.replace
def killed(*names):
    global calls
    calls += 1
    if calls == at:
        os._exit(9)
    replace(*names)
    if calls == at - 1 and at % 2:
        os._exit(9)
os.replace = killed
file = SettingsFile(home / ".claude/settings.json", home / "records", "claude")
file.write(file.planned(wanted))
"""


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_process_that_is_killed_leaves_a_file_that_can_be_restored(
    tmp_path: Path, at: int, is_wrapped: bool
) -> None:
    path = given_file(tmp_path, MINE)
    if is_wrapped:
        save(tmp_path)
    before = path.read_bytes()
    arguments = [sys.executable, "-c", KILLED, str(tmp_path), str(at), repr(OTHER_URL)]
    assert subprocess.run(arguments, timeout=60, check=False).returncode == 9
    assert (path.read_bytes() == before) == (at < 3)
    for file in SettingsFile.changed(tmp_path / "records", "claude"):
        file.restore()
    assert path.read_bytes() == MINE


users = st.dictionaries(st.sampled_from(["model", "env", "hooks", "a"]), st.just({"A": "1"}) | st.just({}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], parent=examples(50))
@given(users, users, st.sampled_from([None, 2]))
def test_any_later_content_of_the_user_stays(
    tmp_path: Path, before: dict[str, object], later: dict[str, object], indent: int | None
) -> None:
    path = given_file(tmp_path, json.dumps(before, indent=indent).encode())
    save(tmp_path)
    with_ours = json.loads(path.read_bytes())
    env = {**later.get("env", {}), **with_ours["env"]}  # type: ignore[dict-item]
    path.write_text(json.dumps({**later, "env": env}))
    opened(tmp_path).restore()
    mine = {key: value for key, value in env.items() if ("env", key) not in URL}
    others = {key: value for key, value in later.items() if key != "env"}
    assert json.loads(path.read_bytes()) == others | ({"env": mine} if mine else {})
