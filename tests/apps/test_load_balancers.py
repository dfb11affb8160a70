"""The load balancers of `docs/deploy.md`, with their documented configuration, before two servers on one database."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.paths import ROOT
from support.serve_process import DEADLINE, Server, serving, until

SEARCH_PATH = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin"
HOST = "chat.example.com"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def documented(language: str) -> str:
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(block)


def nginx(folder: Path, port: int, servers: list[int]) -> list[str]:
    """Write the documented configuration for these ports, without TLS; return the command."""
    text = re.sub(r".*ssl_certificate.*\n", "", documented("nginx")).replace("443 ssl", f"127.0.0.1:{port}")
    for number, server in enumerate(servers, 1):
        text = text.replace(f"10.0.0.1{number}:8790", f"127.0.0.1:{server}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    head = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{head}http {{ access_log off;\n{places}{text}}}")
    command = ["nginx", "-e", f"{folder}/log", "-p", str(folder), "-c", f"{folder}/nginx.conf"]
    subprocess.run([_path("nginx"), *command[1:], "-t"], check=True, capture_output=True)
    return command


def haproxy(folder: Path, port: int, servers: list[int]) -> list[str]:
    text = re.sub(r"bind :443.*", f"bind 127.0.0.1:{port}", documented("haproxy"))
    for number, server in enumerate(servers, 1):
        text = text.replace(f"10.0.0.1{number}:8790", f"127.0.0.1:{server}")
    (folder / "haproxy.cfg").write_text(text)
    subprocess.run([_path("haproxy"), "-c", "-f", folder / "haproxy.cfg"], check=True, capture_output=True)
    return ["haproxy", "-db", "-f", f"{folder}/haproxy.cfg"]


def _path(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path=SEARCH_PATH)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


class Cluster:
    """Two servers on one database behind a balancer."""

    def __init__(self, balancer: str, database: str, folder: Path, stack: ExitStack) -> None:
        self._database = database
        self._stack = stack
        self.gate = folder / "gate"
        self.ports = [free_port(), free_port()]
        self.servers = [self.start(port) for port in self.ports]
        port = free_port()
        command = {"nginx": nginx, "haproxy": haproxy}[balancer](folder, port, self.ports)
        process = subprocess.Popen([_path(command[0]), *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        self.url = f"http://127.0.0.1:{port}"
        until(lambda: self._is_ready())

    def start(self, port: int) -> Server:
        settings = {"server.port": port, "server.hosts": HOST, "server.grace": 20}
        environment = {"FOVEAL_DATABASE": self._database, "GATE": str(self.gate)}
        return self._stack.enter_context(serving(settings=settings, environment=environment))

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"Host": HOST}, timeout=DEADLINE, trust_env=False, verify=False
        )

    def _is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/healthz").status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(params=["nginx", "haproxy"])
def cluster(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> Iterator[Cluster]:
    _path(request.param)
    with ExitStack() as stack:
        yield Cluster(request.param, postgres_url, tmp_path, stack)


class FollowedTurn(threading.Thread):
    """A client that reads the stream of a turn and notes when each event arrived."""

    def __init__(self, cluster: Cluster, session: str, text: str, key: str) -> None:
        super().__init__()
        self.cluster, self.session, self.body = cluster, session, {"text": text, "key": key}
        self.events: list[tuple[str, Any]] = []
        self.turn = ""

    def run(self) -> None:
        with (
            self.cluster.client() as client,
            client.stream("POST", f"/api/sessions/{self.session}/turns", json=self.body) as response,
        ):
            self.turn = response.headers.get("x-foveal-turn", "")
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line.removeprefix("data: "))))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def running(cluster: Cluster) -> Server:
    """Return the server that runs a turn."""
    return until(
        lambda: next((s for s in cluster.servers if s.ask("/healthz").json["turns_running"]), None)
    )


def test_a_stream_arrives_piece_by_piece(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert client.post("/api/sessions", json={"id": "demo"}).status_code == 201
    turn = FollowedTurn(cluster, "demo", "hold on", "k1")
    turn.start()
    until(lambda: "streamed" in turn.names())
    assert "answered" not in turn.names()
    cluster.gate.touch()
    turn.join(DEADLINE)
    assert turn.events[-1][0] == "outcome"
    assert turn.events[-1][1]["text"] == "You said: hold on"
