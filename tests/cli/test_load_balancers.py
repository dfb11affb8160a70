"""Load balancers, configured as in `docs/service/deploy.md`, in front of two servers on one database."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
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
    page = (ROOT / "docs/service/deploy.md").read_text(encoding="utf-8")
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
        process = subprocess.Popen(
            [_path(command[0]), *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        self.url = f"http://127.0.0.1:{port}"
        until(self._is_ready)

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
            suppress(httpx.HTTPError),  # its server was killed
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
    return until(lambda: next((s for s in cluster.servers if s.ask("/healthz").json["turns_running"]), None))


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


def test_a_restart_loses_no_turn_and_refuses_no_request(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number in range(6):
            assert client.post("/api/sessions", json={"id": f"s{number}"}).status_code == 201
    turn = FollowedTurn(cluster, "s0", "hold on", "k1")
    turn.start()
    until(lambda: "streamed" in turn.names())
    old = running(cluster)
    old.interrupt()
    old.wait_for("stopping")
    assert statuses(cluster, "while it stops") == {200}
    cluster.gate.touch()
    turn.join(DEADLINE)
    assert turn.events[-1][1]["text"] == "You said: hold on"
    assert old.wait() == 0
    assert statuses(cluster, "while it is away") == {200}
    cluster.start(cluster.ports[cluster.servers.index(old)])
    assert statuses(cluster, "when it is back") == {200}


def statuses(cluster: Cluster, text: str) -> set[int]:
    """Send a message to each of the other sessions."""
    with cluster.client() as client:
        return {
            client.post(f"/api/sessions/s{number}/turns", json={"text": text, "stream": False}).status_code
            for number in range(1, 6)
        }


def test_a_turn_whose_server_dies_is_followed_to_its_end_on_another(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert client.post("/api/sessions", json={"id": "demo"}).status_code == 201
        turn = FollowedTurn(cluster, "demo", "hold on", "k1")
        turn.start()
        until(lambda: "streamed" in turn.names())
        running(cluster).kill()
        cluster.gate.touch()
        turn.join(DEADLINE)
        assert "outcome" not in turn.names()
        rest = client.get(f"/api/sessions/demo/turns/{turn.turn}", headers={"Last-Event-ID": "2"})
        assert json.loads(rest.text.rpartition("event: outcome\ndata: ")[2])["text"] == "You said: hold on"
        again = client.post(
            "/api/sessions/demo/turns", json={"text": "hold on", "key": "k1", "stream": False}
        )
        assert again.json()["outcome"]["text"] == "You said: hold on"
        kinds = [event["kind"] for event in client.get("/api/sessions/demo/events").json()["events"]]
    assert kinds.count("user_said") == 1


def test_a_half_closed_client_gets_its_answer(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert client.post("/api/sessions", json={"id": "demo"}).status_code == 201
    body = json.dumps({"text": "hello", "stream": False}).encode()
    head = f"POST /api/sessions/demo/turns HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    place = urlsplit(cluster.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=DEADLINE) as connection:
        connection.sendall(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.shutdown(socket.SHUT_WR)
        response = b""
        while data := connection.recv(1 << 16):
            response += data
    assert b"You said: hello" in response
