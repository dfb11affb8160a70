"""Paths of the two APIs that the server only forwards, over real connections: bytes, methods, keys, refusals."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest

from foveal.server.proxy.routes import ANTHROPIC_RESOURCES, OPENAI_RESOURCES
from support.upstream import (
    DEADLINE,
    Piece,
    ProxyServer,
    RawUpstream,
    ReceivedRequest,
    answer,
    stream_head,
    until,
)

KEY = "sk-client-0123456789abcdef"
OWN_KEY = "sk-of-the-server-0123456789abcdef"
OPENAI_KEY = {"authorization": f"Bearer {KEY}"}
ANTHROPIC_KEY = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
BODY = b'{"object":  "list", "data": [ ] }\n'


def listed(seen: ReceivedRequest) -> list[Piece]:
    """Return the answer of a correct upstream: without a body for HEAD."""
    head, gap, body = answer(BODY).partition(b"\r\n\r\n")
    return [head + gap + (b"" if seen.line.startswith("HEAD ") else body)]


class Switch:
    """An upstream whose script can be changed between tests."""

    def __init__(self) -> None:
        self.script: Any = listed

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        yield from self.script(seen)


class Servers(NamedTuple):
    """The proxy between its two upstreams."""

    switch: Switch
    openai: RawUpstream
    anthropic: RawUpstream
    proxy: ProxyServer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    switch = Switch()
    with RawUpstream(switch) as first, RawUpstream(lambda seen, number: listed(seen)) as second:
        urls = {"openai": first.openai, "anthropic": second.anthropic}
        folder = tmp_path_factory.mktemp("proxy")
        with ProxyServer(folder, **urls, server__silence=2, server__max_body=1 << 22) as proxy:
            yield Servers(switch, first, second, proxy)


@pytest.fixture
def switch(servers: Servers) -> Switch:
    servers.switch.script = listed
    return servers.switch


@pytest.fixture
def to_openai(servers: Servers, switch: Switch) -> RawUpstream:
    servers.openai.seen.clear()
    return servers.openai


@pytest.fixture
def to_anthropic(servers: Servers) -> RawUpstream:
    servers.anthropic.seen.clear()
    return servers.anthropic


@pytest.fixture
def proxy(servers: Servers, switch: Switch) -> ProxyServer:
    return servers.proxy


def ask(proxy: ProxyServer, method: str, path: str, **more: Any) -> httpx.Response:
    more.setdefault("headers", OPENAI_KEY)
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        return http.request(method, f"{proxy.url}{path}", **more)


def sent_raw(proxy: ProxyServer, line: str, *headers: str) -> bytes:
    """Send a request line that HTTP clients would correct, and return the response."""
    head = "\r\n".join([line, f"host: 127.0.0.1:{proxy.port}", *headers, "connection: close", "", ""])
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE) as connection:
        connection.sendall(head.encode("latin-1"))
        come = b""
        while data := connection.recv(1 << 16):
            come += data
    return come


# ── What is forwarded ────────────────────────────────────────────────────────────────────────────────────

OPENAI_REQUESTS = [
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/resp_1?include=a%20b&stream=true"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/conv_1/items"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/file-1/content"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/images/generations"),
    ("GET", "/v1/chat/completions?limit=2"),
    ("DELETE", "/v1/models/ft%3Agpt-4.1%3Aown"),
    ("HEAD", "/v1/files"),
]


@pytest.mark.parametrize(("method", "path"), OPENAI_REQUESTS)
def test_a_path_of_openai_reaches_openai_unchanged(
    proxy: ProxyServer, to_openai: RawUpstream, to_anthropic: RawUpstream, method: str, path: str
) -> None:
    body = b'{ "model":"gpt-4.1", "input": "\\u00fc" }' if method == "POST" else b""
    reply = ask(proxy, method, path, content=body)
    assert reply.status_code == 200
    assert reply.content == (b"" if method == "HEAD" else BODY)
    assert reply.headers["content-length"] == str(len(BODY))
    [seen] = to_openai.seen
    assert (seen.line, seen.body) == (f"{method} {path} HTTP/1.1", body)
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert to_anthropic.seen == []
    assert proxy.sessions() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches/msgbatch_1/results"),
        ("GET", "/v1/files"),
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("GET", "/v1/skills/skill_1"),
    ],
)
@pytest.mark.parametrize("headers", [ANTHROPIC_KEY, {"x-api-key": KEY}], ids=["version", "key"])
def test_a_path_of_anthropic_reaches_anthropic(
    proxy: ProxyServer,
    to_openai: RawUpstream,
    to_anthropic: RawUpstream,
    method: str,
    path: str,
    headers: Any,
) -> None:
    assert ask(proxy, method, path, headers=headers).status_code == 200
    [seen] = to_anthropic.seen
    assert seen.line == f"{method} {path} HTTP/1.1"
    assert seen.headers["x-api-key"] == KEY
    assert to_openai.seen == []


def test_every_path_of_the_client_libraries_is_forwarded() -> None:
    used = {"openai": _first_parts("openai", "/"), "anthropic": _first_parts("anthropic", "/v1/")}
    administration = {"organization", "organizations", "projects", "tunnels", "v1"}
    events = {"webhook_endpoints", "webhook_event_types"}
    assert used["openai"] - administration - events == OPENAI_RESOURCES
    assert used["anthropic"] - administration == ANTHROPIC_RESOURCES


def _first_parts(package: str, start: str) -> set[str]:
    """Return the first parts of the paths that a client library requests."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    files = (Path(spec.origin).parent / "resources").rglob("*.py")
    pattern = re.compile(rf'["\']{start}([a-z_0-9]+)')
    return {found for file in files for found in pattern.findall(file.read_text(encoding="utf-8"))}


def test_status_and_headers_pass_in_both_directions(
    proxy: ProxyServer, to_openai: RawUpstream, switch: Switch
) -> None:
    more = b"x-request-id: req_7\r\nretry-after: 7\r\nset-cookie: a=b\r\nkeep-alive: x\r\nx-foveal-session: f\r\n"
    switch.script = lambda seen: [answer(BODY, status="418 Odd", kind="text/odd", more=more)]
    headers = {**OPENAI_KEY, "openai-project": "proj_1", "cookie": "a=b", "te": "x", "x-foveal-session": "s"}
    reply = ask(proxy, "GET", "/v1/files", headers=headers)
    assert (reply.status_code, reply.content) == (418, BODY)
    assert reply.headers["content-type"] == "text/odd"
    assert (reply.headers["x-request-id"], reply.headers["retry-after"]) == ("req_7", "7")
    assert not {"set-cookie", "keep-alive", "x-foveal-session"} & reply.headers.keys()
    seen = to_openai.seen[-1].headers
    assert seen["openai-project"] == "proj_1"
    assert not {"cookie", "te", "x-foveal-session"} & seen.keys()


def test_a_file_is_uploaded_and_downloaded_byte_for_byte(
    proxy: ProxyServer, to_openai: RawUpstream, switch: Switch
) -> None:
    data = bytes(range(256)) * 12_000
    with openai.OpenAI(base_url=proxy.openai, api_key=KEY, max_retries=0) as client:
        switch.script = lambda seen: [answer(b'{"id": "file-1", "object": "file"}')]
        assert client.files.create(file=("a.bin", data), purpose="user_data").id == "file-1"
        [seen] = to_openai.seen
        assert seen.headers["content-type"].startswith("multipart/form-data; boundary=")
        assert data in seen.body
        assert seen.headers["content-length"] == str(len(seen.body))
        switch.script = lambda seen: [answer(data, kind="application/octet-stream")]
        assert client.files.content("file-1").read() == data


@contextmanager
def upstream_that(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of an upstream that handles the bytes of one connection itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                handle(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread.join(DEADLINE)


def test_a_body_without_a_length_is_streamed(tmp_path: Path) -> None:
    first_arrived = threading.Event()
    seen = bytearray()

    def read(connection: socket.socket) -> None:
        while not seen.endswith(b"0\r\n\r\n"):
            seen.extend(connection.recv(1 << 16))
            if b"one " in seen:
                first_arrived.set()
        connection.sendall(answer(BODY))

    def pieces() -> Iterator[bytes]:
        yield b"one "
        assert first_arrived.wait(DEADLINE)
        yield b"two"

    with upstream_that(read) as url, ProxyServer(tmp_path, openai=url) as proxy:
        assert ask(proxy, "POST", "/v1/audio/transcriptions", content=pieces()).content == BODY
    assert bytes(seen).lower().count(b"transfer-encoding: chunked\r\n") == 1
    assert bytes(seen).endswith(b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n")


def test_a_stream_arrives_piece_by_piece(proxy: ProxyServer, switch: Switch) -> None:
    arrived = threading.Event()
    switch.script = lambda seen: [stream_head(), b"data: 1\n\n", arrived, b"data: 2\n\n"]
    with (
        httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
        http.stream("GET", f"{proxy.url}/v1/responses/resp_1?stream=true", headers=OPENAI_KEY) as reply,
    ):
        pieces = reply.iter_raw()
        assert next(pieces) == b"data: 1\n\n"
        arrived.set()
        assert b"".join(pieces) == b"data: 2\n\n"


def test_a_response_that_breaks_off_does_not_look_complete(proxy: ProxyServer, switch: Switch) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ncontent-length: 99\r\n\r\n"
    switch.script = lambda seen: [head + b"part"]
    with pytest.raises(httpx.RemoteProtocolError):
        ask(proxy, "GET", "/v1/files/file-1/content")
    assert ask(proxy, "GET", "/healthz").status_code == 200


def test_a_client_that_leaves_ends_the_download(tmp_path: Path) -> None:
    has_ended = threading.Event()

    def send_for_ever(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(stream_head("application/octet-stream"))
        with suppress(OSError):
            while True:
                connection.sendall(b"x" * (1 << 16))
        has_ended.set()

    with upstream_that(send_for_ever) as url, ProxyServer(tmp_path, openai=url) as proxy:
        with (
            httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http,
            http.stream("GET", f"{proxy.url}/v1/files/file-1/content", headers=OPENAI_KEY) as reply,
        ):
            assert next(reply.iter_raw())
        assert has_ended.wait(DEADLINE)


def test_an_upstream_that_answers_before_the_body_ends_is_heard(tmp_path: Path) -> None:
    refusal = b'{"error": "no"}'

    def refuse(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer(refusal, status="400 Bad Request"))
        with suppress(OSError):
            while connection.recv(1 << 16):
                pass

    with upstream_that(refuse) as url, ProxyServer(tmp_path, openai=url) as proxy:
        pieces = (b"x" * (1 << 16) for _ in range(200))
        reply = ask(proxy, "POST", "/v1/files", content=pieces)
        assert (reply.status_code, reply.content) == (400, refusal)


def test_a_body_above_the_limit_is_refused_as_too_large(proxy: ProxyServer, tmp_path: Path) -> None:
    assert ask(proxy, "POST", "/v1/files", content=b"x" * (5 << 20)).status_code == 413

    def read(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            pass

    with upstream_that(read) as url, ProxyServer(tmp_path, openai=url, server__max_body=1 << 20) as small:
        too_much = (b"x" * (1 << 16) for _ in range(80))
        reply = ask(small, "POST", "/v1/files", content=too_much)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


def test_the_log_has_neither_ids_nor_keys(proxy: ProxyServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="foveal")  # lines of libraries are written without their text
    ask(proxy, "GET", "/v1/files/file-canary?after=canary")
    lines = until(lambda: [vars(line) for line in caplog.records if line.msg == "request"])
    assert (lines[0]["fields"]["route"], lines[0]["fields"]["status"]) == ("/v1/{path:path}", 200)
    logged = str([vars(line) for line in caplog.records if line.name.startswith("foveal")])
    assert "canary" not in logged
    assert KEY not in logged


# ── What is not ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        "/v1/organization/api_keys", "/v1/organizations/me", "/v1/projects", "/v1/load_lora_adapter", "/v1",
        "/v1/", "/v1/chat", "/v1/chat/x", "/v1/messages/x", "/v1/files/", "/v1//files", "/v1/files//x",
        "/v1/files/../organization", "/v1/../files", "/v1/files/..%2forganization", "/v1/files/%2e%2e/organization",
        "/v1/files/%2E", "/v1/files/..%5cx", "/v1/files/%252e%252e", "/v1/files/a%2fb", "/v1/files/a%00b",
        "/v1/files/a%0d%0ab", "/v1/files/a\\b", "/v1/http://example.com/v1/files", "/v1/%2f%2fexample.com/files",
        "//example.com/v1/files", "/v1@example.com/files", "/v2/files", "/files", "/v1/files/ä",
    ],
)  # fmt: skip
def test_no_other_path_is_forwarded(
    proxy: ProxyServer, to_openai: RawUpstream, to_anthropic: RawUpstream, path: str
) -> None:
    for key in (f"authorization: Bearer {KEY}", f"x-api-key: {KEY}"):
        assert sent_raw(proxy, f"GET {path} HTTP/1.1", key).split()[1] in (b"404", b"400")
    assert to_openai.seen == to_anthropic.seen == []


def test_an_absolute_address_of_another_host_is_refused(proxy: ProxyServer, to_openai: RawUpstream) -> None:
    with RawUpstream(lambda seen, number: [answer(b"{}")]) as elsewhere:
        line = f"GET {elsewhere.openai}/files HTTP/1.1"
        assert b" 421 " in sent_raw(proxy, line, f"authorization: Bearer {KEY}").partition(b"\r\n")[0]
        assert elsewhere.seen == []
    assert to_openai.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/responses"), ("GET", "/v1/messages"), ("PUT", "/v1/chat/completions")],
)
def test_a_fitted_path_allows_post_only(
    proxy: ProxyServer, to_openai: RawUpstream, method: str, path: str
) -> None:
    assert ask(proxy, method, path).status_code == 405
    assert to_openai.seen == []


def test_turned_off_the_error_names_the_setting(to_openai: RawUpstream, tmp_path: Path) -> None:
    with ProxyServer(tmp_path, openai=to_openai.openai, server__forward_other_paths=False) as proxy:
        reply = ask(proxy, "POST", "/v1/embeddings", json={"model": "m", "input": "text"})
        assert reply.status_code == 404
        assert "server.forward_other_paths" in reply.json()["error"]["message"]
        assert to_openai.seen == []
        assert ask(proxy, "GET", "/v1/models").status_code == 200


def test_without_an_upstream_the_error_says_what_to_set(tmp_path: Path) -> None:
    with ProxyServer(tmp_path, environment={"FOVEAL_PROVIDER": "support.serve_process:scripted"}) as proxy:
        reply = ask(proxy, "GET", "/v1/files", headers={})
        assert (reply.status_code, reply.json()["error"]["code"]) == (501, "no_upstream")
        assert "server.openai_url" in reply.json()["error"]["message"]


def test_an_upstream_that_is_gone_is_named(tmp_path: Path) -> None:
    with RawUpstream(lambda seen, number: []) as gone:
        url = gone.openai
    with ProxyServer(tmp_path, openai=url) as proxy:
        reply = ask(proxy, "POST", "/v1/embeddings", json={"model": "m", "input": "text"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_unreachable")


# ── Keys and tenants ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shared(to_openai: RawUpstream, tmp_path: Path) -> Iterator[ProxyServer]:
    """A server with a key of its own."""
    environment = {"OPENAI_API_KEY": OWN_KEY}
    with ProxyServer(tmp_path, openai=to_openai.openai, environment=environment) as made:
        yield made


def test_what_the_provider_stores_needs_a_key_of_the_tenant(
    shared: ProxyServer, to_openai: RawUpstream
) -> None:
    token = {"authorization": f"Bearer {shared.token('alice')}"}
    stored = (
        ("GET", "/v1/files"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/audio/voices"),
        ("DELETE", "/v1/models/ft:own"),
    )
    for method, path in stored:
        reply = ask(shared, method, path, headers=token)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "own_key_needed")
    assert to_openai.seen == []
    both = {"x-foveal-token": shared.token("alice"), **OPENAI_KEY}
    assert ask(shared, "GET", "/v1/files", headers=both).status_code == 200
    assert to_openai.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    embedded = ask(shared, "POST", "/v1/embeddings", headers=token, json={"model": "m", "input": "text"})
    assert embedded.status_code == 200
    assert to_openai.seen[-1].headers["authorization"] == f"Bearer {OWN_KEY}"


def test_a_request_without_a_token_is_refused_once_there_is_one(
    shared: ProxyServer, to_openai: RawUpstream
) -> None:
    assert ask(shared, "GET", "/v1/files", headers={}).status_code == 200
    shared.token("alice")
    assert ask(shared, "GET", "/v1/files", headers={"authorization": "Bearer fv_wrong"}).status_code == 401
    assert len(to_openai.seen) == 1


def test_the_servers_key_is_not_in_a_response(shared: ProxyServer, switch: Switch) -> None:
    quoted = f'{{"error": "bad key {OWN_KEY}"}}'.encode()
    for response in ([answer(quoted)], [stream_head("application/json"), quoted[:30], quoted[30:]]):
        switch.script = lambda seen, response=response: response
        reply = ask(shared, "GET", "/v1/files", headers={})
        assert reply.content == quoted.replace(OWN_KEY.encode(), b"***")


def test_models_that_are_not_allowed_are_refused(to_openai: RawUpstream, tmp_path: Path) -> None:
    with ProxyServer(tmp_path, openai=to_openai.openai, server__models=["gpt-*"]) as proxy:
        allowed = {"model": "gpt-4.1", "input": "text"}
        assert ask(proxy, "POST", "/v1/responses/input_tokens", json=allowed).status_code == 200
        assert json.loads(to_openai.seen[-1].body) == allowed
        assert ask(proxy, "POST", "/v1/files", content=b"data").status_code == 200
        assert ask(proxy, "GET", "/v1/batches").status_code == 200
        before = len(to_openai.seen)
        for path, body in (
            ("/v1/embeddings", {"json": {"model": "other", "input": "text"}}),
            ("/v1/batches", {"json": {"input_file_id": "file-1"}}),
            ("/v1/audio/transcriptions", {"files": {"file": b"sound"}, "data": {"model": "gpt-4.1"}}),
        ):
            reply = ask(proxy, "POST", path, **body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "model_not_allowed")
        assert len(to_openai.seen) == before


# ── Websockets ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime?model=gpt-realtime"])
def test_a_websocket_is_answered_with_426(proxy: ProxyServer, to_openai: RawUpstream, path: str) -> None:
    upgrade = ("upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZQ==")
    head = sent_raw(proxy, f"GET {path} HTTP/1.1", f"authorization: Bearer {KEY}", *upgrade)
    assert head.startswith(b"HTTP/1.1 426 ")
    error = json.loads(head.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], "HTTP" in error["message"]) == ("websocket_not_supported", True)
    assert to_openai.seen == []
