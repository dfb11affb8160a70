"""`foveal serve` with a PostgreSQL database in place of its folder."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from foveal.cli.__main__ import main
from foveal.cli.serve import UNUSED_FOLDER, startup_notes
from foveal.config import load
from foveal.errors import FovealError
from foveal.server.storage import FolderStorage, open_storage
from support import warm_start
from support.serve_process import environment_of, serving, until


def with_password(url: str) -> str:
    """Return the URL with a password, which a server that trusts its own users ignores."""
    parts = urlsplit(url)
    user = parts.username or "postgres"
    return parts._replace(netloc=f"{user}:hunter2-secret@{parts.netloc.rpartition('@')[2]}").geturl()


def test_a_session_in_a_database_survives_its_server(postgres_url: str) -> None:
    url = with_password(postgres_url)
    with serving(environment={"FOVEAL_DATABASE": url}) as server:
        assert server.ask("/api/sessions", body={"id": "demo"}).status == 201
        turn = server.ask("/api/sessions/demo/turns", body={"text": "hello", "stream": False})
        assert turn.json["outcome"]["text"] == "You said: hello"
        assert not server.folder.exists()
        assert server.stop() == 0
        output = server.output
    assert "  database  " in output
    assert "hunter2" not in output
    with serving(settings={"server.database": url}) as server:
        listed = server.ask("/api/sessions").json["sessions"]
        assert [session["id"] for session in listed] == ["demo"]
        assert server.ask("/healthz").json["status"] == "ok"


def test_a_stopping_server_refuses_connections_and_ends_its_streams(
    postgres_url: str, tmp_path: Path
) -> None:
    environment = {"FOVEAL_DATABASE": postgres_url, "GATE": str(tmp_path / "gate")}
    with serving(environment=environment) as server:
        server.ask("/api/sessions", body={"id": "demo"})
        with ThreadPoolExecutor(1) as pool:
            turn = pool.submit(server.ask, "/api/sessions/demo/turns", body={"text": "hold on"})
            until(lambda: b"hold on" in server.ask("/api/sessions/demo/events").body)  # the turn has begun
            server.interrupt()
            server.wait_for("stopping")
            with pytest.raises(ConnectionError):  # refused, or reset while the port closes
                until(lambda: server.ask("/healthz").status == 0)
            (tmp_path / "gate").touch()
            assert b'"text":"You said: hold on","why":"answered"' in turn.result().body
        assert server.wait() == 0


IMPATIENT: Final = """
import sys
from foveal.cli.__main__ import main
from foveal.stores.postgres.connection import PostgresPool
PostgresPool.__init__.__kwdefaults__["wait_s"] = 0.5
sys.exit(main())
"""
"""`foveal` that waits half a second for a database, in place of ten seconds."""


def test_a_database_that_cannot_be_reached_ends_the_command_with_one_sentence(tmp_path: Path) -> None:
    url = "postgresql://alice:hunter2-secret@127.0.0.1:1/foveal"
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    ended = warm_start.run(
        [tmp_path / "impatient.py", "serve", "--port=0", f"--database={url}"],
        env=environment_of(tmp_path, FOVEAL_PROVIDER="support.serve_process:scripted"),
        cwd=tmp_path,
        encoding="utf-8",
    )
    assert ended.returncode == 1
    assert "127.0.0.1" in ended.stderr
    assert "hunter2" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_url_of_a_database_is_shown_without_its_password(tmp_path: Path) -> None:
    environ = {"FOVEAL_DATABASE": "postgresql://alice:hunter2@db.example/foveal?password=hunter2"}
    config = load(tmp_path, environ=environ, user_folder=tmp_path)
    shown = {entry.name: entry.value for entry in config.entries()}
    assert config.get("server.database") == environ["FOVEAL_DATABASE"]
    assert shown["server.database"] == "postgresql://db.example/foveal"


def test_a_url_of_another_database_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(FovealError) as caught:
        load(tmp_path, environ={"FOVEAL_DATABASE": "mysql://alice:hunter2@db/foveal"}, user_folder=tmp_path)
    assert "server.database = mysql://… is not allowed: a URL that begins with postgresql://" in str(
        caught.value
    )
    assert "hunter2" not in str(caught.value)


def test_a_folder_beside_a_database_is_named_as_unused(tmp_path: Path) -> None:
    both = {"FOVEAL_SERVER_FOLDER": str(tmp_path), "FOVEAL_DATABASE": "postgresql://db/foveal"}
    for given, notes in ((both, [UNUSED_FOLDER]), ({"FOVEAL_SERVER_FOLDER": str(tmp_path)}, [])):
        assert startup_notes(load(tmp_path, environ=given, user_folder=tmp_path)) == notes


def test_a_folder_that_a_flag_sets_is_used_in_place_of_a_configured_database(tmp_path: Path) -> None:
    environ = {"FOVEAL_DATABASE": "postgresql://db/foveal"}
    flags = {"server.folder": str(tmp_path / "data")}
    config = load(tmp_path, flags=flags, environ=environ, user_folder=tmp_path)
    storage = open_storage(config, environ)
    assert (config.get("server.database"), storage.folder) == (None, tmp_path / "data")
    assert startup_notes(config) == []
    config = load(tmp_path, flags={"server.folder": ""}, environ=environ, user_folder=tmp_path)
    assert config.get("server.database") == environ["FOVEAL_DATABASE"]


def test_a_database_that_a_flag_sets_is_used_in_place_of_a_configured_folder(tmp_path: Path) -> None:
    flags = {"server.database": "postgresql://db/foveal"}
    environ = {"FOVEAL_SERVER_FOLDER": str(tmp_path)}
    config = load(tmp_path, flags=flags, environ=environ, user_folder=tmp_path)
    assert config.get("server.database") == flags["server.database"]
    assert startup_notes(config) == [UNUSED_FOLDER]


def test_a_folder_and_a_database_as_flags_exclude_each_other(tmp_path: Path) -> None:
    flags = {"server.folder": str(tmp_path), "server.database": "postgresql://db/foveal"}
    with pytest.raises(FovealError, match=r"server\.folder \(--folder\) .* server\.database \(--database\)"):
        load(tmp_path, flags=flags, environ={}, user_folder=tmp_path)


def test_commands_beside_the_server_work_on_the_folder_that_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOVEAL_DATABASE", "postgresql://127.0.0.1:1/foveal")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    for words in (["token", "create", "--tenant", "alice"], ["pair", "telegram"], ["admin", "usage"]):
        assert main([*words, "--folder", str(folder)]) == 0
    capsys.readouterr()
    assert main(["token", "list", "--folder", str(folder)]) == 0
    assert "alice" in capsys.readouterr().out
    assert (folder / "service.db").exists()


def test_without_psycopg_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("foveal.server.postgres", "psycopg"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("foveal.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    config = load(tmp_path, environ={"FOVEAL_DATABASE": "postgresql://db/foveal"}, user_folder=tmp_path)
    with pytest.raises(FovealError, match=r"foveal\[postgres\]"):
        open_storage(config, {})
    assert isinstance(
        open_storage(load(tmp_path, environ={}, user_folder=tmp_path), {}, folder=tmp_path), FolderStorage
    )
