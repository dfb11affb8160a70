"""The guard over real connections: hosts, origins, limits, tokens; raw bytes where HTTP clients are too strict."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.errors import (
    BadSetting,
    Busy,
    Conflict,
    ContextOverflow,
    FovealError,
    MalformedMessage,
    NotCompacted,
    ProviderError,
    SessionExists,
    StoreError,
    StoreUnusable,
    UnknownHandle,
    UnknownSession,
)
from foveal.server import AuthTokens, RateLimiter
from foveal.server.auth_tokens import TOKEN_ROLES, TokenRole
from foveal.server.http import guard
from foveal.web import bounded_protocol
from foveal.web.http_errors import (
    HttpError,
    error_body,
    error_format,
    http_error_of,
    stream_error_event,
)
from foveal.web.http_headers import (
    SECURITY_HEADERS,
    host_of,
    is_allowed_host,
    is_cross_site,
    is_loopback,
    response_headers,
    token_of,
)
from foveal.web.request_body import has_more_values_than, is_deeper_than
from support.serve_process import CANARY, DEADLINE, HttpReply, ask, raw, until
from support.upstream import ProxyServer, RawUpstream, stream_head

SCRIPTED: Final = {"FOVEAL_PROVIDER": "support.serve_process:scripted"}
PATHS_OF_ALL_FORMATS: Final = ("/v1/chat/completions", "/v1/messages", "/api/sessions")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """A server on loopback without tokens."""
    folder = tmp_path_factory.mktemp("open")
    settings: dict[str, Any] = {
        "server__max_body": 200_000,
        "server__hosts": ["chat.example"],
        "server__models": ["*"],
    }
    with ProxyServer(folder, environment=SCRIPTED, tokenizer="estimate", **settings) as made:
        yield made


@pytest.fixture(scope="module")
def with_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """A server with tokens and two requests a minute for each."""
    folder = tmp_path_factory.mktemp("closed")
    with ProxyServer(folder, environment=SCRIPTED, tokenizer="estimate", server__rate=2) as made:
        made.token("nobody")
        until(lambda: ask(made.url, "/api/sessions").status == 401)
        yield made


def request(path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    """Return a request as bytes that closes the connection."""
    lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def message(answer: HttpReply | bytes, path: str) -> str:
    """Return the error message from the place where clients of the path read it."""
    body = json.loads(answer.partition(b"\r\n\r\n")[2]) if isinstance(answer, bytes) else answer.json
    if path == "/v1/messages":
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return str(body["error"]["message"])
    if path.startswith("/v1"):
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return str(body["error"]["message"])
    assert {"type", "title", "status", "detail"} <= set(body)
    return str(body["detail"])


# ── Hosts and origins ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1:8790",
        "127.9.9.9",
        "[::1]:8790",
        "me.localhost",
        "Chat.Example",
    ],
)
def test_the_names_of_this_machine_and_server_hosts_are_accepted(proxy: ProxyServer, host: str) -> None:
    assert status(raw(proxy.url, request("/api/sessions", f"Host: {host}"))) == 200


@pytest.mark.parametrize("host", ["chat.example", "localhost:8790"])
def test_a_request_line_with_the_whole_url_of_this_server_is_accepted(proxy: ProxyServer, host: str) -> None:
    assert status(raw(proxy.url, request(f"http://{host}/api/sessions?limit=1", f"Host: {host}"))) == 200


@pytest.mark.parametrize(
    "line",
    [
        "http://evil.example",
        "http://localhost@evil.example",
        "http://evil.example:8790",
        "HTTPS://evil.example",
        "http://localhost:1",
    ],
)
@pytest.mark.parametrize("path", ["/healthz", *PATHS_OF_ALL_FORMATS])
def test_a_request_line_with_the_url_of_another_host_is_refused(
    proxy: ProxyServer, line: str, path: str
) -> None:
    answer = raw(proxy.url, request(f"{line}{path}", "Host: localhost"))
    assert status(answer) == 421
    assert message(answer, path).startswith("the request line does not name this server")


def test_with_a_url_in_the_request_line_a_wrong_host_header_is_named(proxy: ProxyServer) -> None:
    for line in ("http://evil.example", "http://localhost"):
        answer = raw(proxy.url, request(f"{line}/healthz", "Host: evil.example"))
        assert status(answer) == 421
        assert message(answer, "/healthz").startswith("the Host header does not name this server")


@pytest.mark.parametrize("line", ["http://evil.example?/healthz", "http:///healthz", "*", "evil.example:443"])
@pytest.mark.parametrize("method", ["GET", "CONNECT", "OPTIONS"])
def test_a_request_line_without_a_path_of_this_server_is_refused(
    proxy: ProxyServer, method: str, line: str
) -> None:
    assert status(raw(proxy.url, request(line, "Host: localhost", method=method))) in (400, 421)


@pytest.mark.parametrize(
    "headers",
    [
        ["Host: evil.example"],
        ["Host: localhost.evil.example"],
        ["Host: 127.0.0.1.evil.example"],
        ["Host: 10.0.0.1"],
        ["Host: "],
        ["Host: localhost", "Host: evil.example"],
        ["Host: localhost:80:80"],
        ["Host: \xff"],
    ],
)
@pytest.mark.parametrize("path", ["/healthz", *PATHS_OF_ALL_FORMATS])
def test_another_host_is_refused_with_421(proxy: ProxyServer, path: str, headers: list[str]) -> None:
    answer = raw(proxy.url, request(path, *headers))
    assert status(answer) == 421
    assert "does not name this server" in message(answer, path)


def test_a_missing_host_is_refused_with_421(proxy: ProxyServer) -> None:
    assert status(raw(proxy.url, request("/api/sessions"))) in (400, 421)
    assert status(raw(proxy.url, b"GET /api/sessions HTTP/1.0\r\n\r\n")) == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", PATHS_OF_ALL_FORMATS)
def test_a_page_of_another_site_is_refused(proxy: ProxyServer, path: str, headers: dict[str, str]) -> None:
    for method in ("OPTIONS", "POST", "GET"):
        answer = ask(proxy.url, path, method=method, headers=headers)
        assert answer.status == 403
        assert "another site" in message(answer, path)
        assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_this_server_itself_is_accepted(proxy: ProxyServer) -> None:
    own = {"Origin": proxy.url, "Sec-Fetch-Site": "same-origin"}
    assert ask(proxy.url, "/api/sessions", headers=own).status == 200
    assert ask(proxy.url, "/api/sessions", headers={"Sec-Fetch-Site": "none"}).status == 200


def test_host_origin_and_token_are_read_from_headers() -> None:
    assert [is_loopback(host) for host in ("::1", "127.1.2.3", "localhost.", "0.0.0.0", "", "1")] == [
        *(True, True, True),
        *(False, False, False),
    ]
    assert host_of([(b"host", b"[::1]:80")]) == "[::1]"
    assert not is_allowed_host("", ["*"])
    assert is_allowed_host("anything", ["*"])
    far = ["192.168.1.5", "[2001:db8::1]", "10.0.0.1.evil.example", "1", ""]
    assert [is_allowed_host(host, [], addresses=True) for host in far] == [True, True, False, False, False]
    assert not any(is_allowed_host(host, []) for host in far)
    assert is_cross_site([(b"host", b"a"), (b"origin", b"http://a"), (b"origin", b"http://b")])
    assert token_of([(b"authorization", b"bearer  fv_a "), (b"x-api-key", b"fv_b")]) == "fv_a"
    assert token_of([(b"authorization", b"Bearer sk-ours"), (b"x-api-key", b"fv_b")]) == "fv_b"
    assert token_of([(b"x-foveal-token", b"fv_c"), (b"authorization", b"Bearer fv_a")]) == "fv_c"
    assert token_of([(b"authorization", b"Basic fv_a")]) == ""


def test_upstream_headers_stay_and_get_security_headers() -> None:
    theirs = [
        (b"X-Request-Id", b"theirs"),
        (b"Cache-Control", b"no-cache"),
        (b"Referrer-Policy", b"unsafe-url"),
    ]
    assert response_headers(theirs, id="ours") == [
        (b"x-request-id", b"theirs"),
        (b"cache-control", b"no-cache"),
        *SECURITY_HEADERS,
        (b"x-foveal-request-id", b"ours"),
    ]


# ── Size and time limits ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PATHS_OF_ALL_FORMATS)
def test_a_too_large_content_length_is_refused_at_once(proxy: ProxyServer, path: str) -> None:
    sent = request(
        path, "Host: localhost", "Content-Length: 200001", "Content-Type: application/json", method="POST"
    )
    answer = raw(proxy.url, sent)
    assert status(answer) == 413
    assert "200,000 bytes" in message(answer, path)


@pytest.mark.parametrize("path", PATHS_OF_ALL_FORMATS)
def test_a_body_without_content_length_is_counted(proxy: ProxyServer, path: str) -> None:
    headers = ("Host: localhost", "Transfer-Encoding: chunked", "Content-Type: application/json")
    chunk = b"4e20\r\n" + b" " * 20_000 + b"\r\n"
    answer = raw(proxy.url, request(path, *headers, method="POST", body=chunk * 11 + b"0\r\n\r\n"))
    assert status(answer) == 413
    assert "200,000 bytes" in message(answer, path)


def test_a_connection_is_usable_after_a_refusal(proxy: ProxyServer) -> None:
    """The rest of the body is discarded, and the next request is answered."""
    large = (
        b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    )
    come = raw(proxy.url, large + request("/healthz", "Host: localhost"))
    assert come.startswith(b"HTTP/1.1 413 ")
    assert b"HTTP/1.1 200 " in come


def test_too_many_headers_are_refused(proxy: ProxyServer) -> None:
    many = [f"X-{number}: y" for number in range(300)]
    assert status(raw(proxy.url, request("/healthz", "Host: localhost", *many))) == 431
    assert status(raw(proxy.url, request("/healthz", "Host: localhost", f"X: {'y' * 66_000}"))) == 431


@pytest.mark.parametrize("start", [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"GET /"])
def test_headers_that_never_end_are_cut_off(proxy: ProxyServer, start: bytes) -> None:
    host, port = "127.0.0.1", proxy.port
    with socket.create_connection((host, port), timeout=DEADLINE) as connection:
        connection.sendall(start)
        with pytest.raises(OSError):  # noqa: PT012 (which of the two finds out is the system's business)
            for _ in range(1_000):
                connection.sendall(b"a" * 16_384)
            raise AssertionError("16 MB were taken")


def test_late_headers_are_refused(proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_protocol, "HEADERS_TIMEOUT_S", 0.05)
    assert status(raw(proxy.url, b"GET /healthz HTTP/1.1\r\nHost: loc")) == 408
    assert status(raw(proxy.url, b"")) == 408


POST: Final = b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (POST + b"Content-Length: 1000\r\n\r\n", 408),
        (POST + b"Content-Length: 1000\r\n\r\n{", 408),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 408),
        (POST + b"Content-Length: 300000\r\n\r\n{", 413),  # which is answered at once
        (POST.replace(b"localhost", b"evil") + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", 421),
    ],
)
def test_a_late_body_is_refused(
    proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch, sent: bytes, code: int
) -> None:
    # A refusal has more time than a body that never comes: it must be first on a busy machine too.
    monkeypatch.setattr(bounded_protocol, "BODY_CHECK_INTERVAL_S", 0.05 if code == 408 else 0.4)
    come = raw(proxy.url, sent)  # which ends when the server has hung up
    assert (status(come), come.count(b"HTTP/1.1 ")) == (code, 1)


def test_a_slow_body_is_accepted(proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    look = bounded_protocol.BoundedProtocol._check

    def seen(connection: bounded_protocol.BoundedProtocol) -> None:
        look(connection)
        looked.append(connection)

    monkeypatch.setattr(bounded_protocol, "BODY_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(bounded_protocol, "MIN_BODY_BYTES_PER_CHECK", 0)
    monkeypatch.setattr(bounded_protocol.BoundedProtocol, "_check", seen)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE) as connection:
        connection.sendall(POST + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{")
        until(lambda: len(looked) >= 3)
        connection.sendall(b"}")
        assert status(connection.recv(1 << 16)) == 201


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_invalid_request_gets_a_short_400(proxy: ProxyServer, sent: bytes) -> None:
    come = raw(proxy.url, sent)
    assert status(come) == 400
    for name, value in SECURITY_HEADERS:
        assert name + b": " + value in come
    assert b"uvicorn" not in come.lower()


# ── JSON bodies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[" * 100_000, "nested"),
        (b'{"id": ' * 150 + b"1" + b"}" * 150, "nested"),
        (b'{"id": "a\\\\", "title": ' + b"[" * 150 + b"]" * 150 + b"}", "nested"),
        (b" ", "empty"),
        (b"\x00", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"id": "\xff"}', "UTF-8"),
        (b'{"id": "\\ud800"}', "JSON"),
        (b'{"id": "a\x00b"}', "JSON"),
        (b'{"id": NaN}', "JSON"),
        (b'{"id": 1e999}', ""),
        (b'{"id": ' + b"9" * 5_000 + b"}", ""),
        (b'{"id": "a"} {', "JSON"),
        (b'"' + b'\\"' * 80_000, "JSON"),
    ],
)
def test_invalid_or_too_deep_json_is_refused(proxy: ProxyServer, body: bytes, expected: str) -> None:
    answer = ask(proxy.url, "/api/sessions", body=body)
    assert answer.status == 400, answer.body
    assert expected in message(answer, "/api/sessions")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_deep_body_is_refused_in_the_format_of_the_path(proxy: ProxyServer, path: str) -> None:
    answer = ask(proxy.url, path, body=b'{"messages": ' + b"[" * 5_000)
    assert answer.status == 400
    assert "nested" in message(answer, path)


DEEP = "[" * 150 + "]" * 150


@pytest.mark.parametrize(
    "body",
    [
        f'{{"model": "m", "messages": [{{"role": "user", "content": {DEEP}}}]}}',
        f'{{"model": "m", "tools": {DEEP}, "messages": [{{"role": "user", "content": "?"}}]}}',
        f'{{"messages": [{{"role": "user", "content": {DEEP}}}]}}',
        f'{{"model": "m", "messages": {DEEP}}}',
        DEEP,
    ],
)
def test_every_part_of_a_deep_request_is_refused_again_and_again(proxy: ProxyServer, body: str) -> None:
    for _ in range(2):
        answer = ask(proxy.url, "/v1/chat/completions", body=body.encode())
        assert answer.status == 400
        assert "nested" in message(answer, "/v1/chat/completions")


def test_brackets_in_strings_are_not_nesting(proxy: ProxyServer) -> None:
    body = json.dumps({"system": '[{"\\' * 1_000}).encode()[:-1] + b', "id": "first", "id": "second"}'
    answer = ask(proxy.url, "/api/sessions", body=body)
    assert answer.status == 201, answer.body
    assert answer.json["id"] == "second"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('"\\[]{},: a', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\[{', max_size=3), inner, max_size=4)
    ),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth_of, inner), default=0)
    return 0


@given(JSON)
def test_the_measured_depth_is_the_depth_of_the_value(value: Any) -> None:
    text, depth = json.dumps(value).encode(), depth_of(value)
    assert not is_deeper_than(text, depth)
    assert depth == 0 or is_deeper_than(text, depth - 1)


def test_values_are_counted_outside_strings() -> None:
    text = json.dumps([[1, 2], {"a": "," * 100}, ["[", "{"]]).encode()
    assert not has_more_values_than(text, 8)
    assert has_more_values_than(text, 7)


def test_a_body_with_too_many_values_is_not_decoded(tmp_path: Path) -> None:
    too_many = b"[" + b"0," * 1_000_001 + b"0]"
    with ProxyServer(tmp_path, environment=SCRIPTED) as proxy:
        for path in ("/api/sessions", "/v1/chat/completions", "/v1/messages"):
            for body in (too_many, b'{"model": "m", "messages": ' + too_many + b"}"):
                answer = ask(proxy.url, path, body=body)
                assert answer.status == 413
                assert "1,000,000 values" in message(answer, path)


def test_a_compressed_body_is_refused(proxy: ProxyServer) -> None:
    answer = ask(proxy.url, "/v1/messages", body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert answer.status == 415


# ── Responses ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path", ["/healthz", "/openapi.json", "/metrics", "/api/sessions", "/nowhere", "/v1/nowhere"]
)
def test_every_response_has_the_security_headers(proxy: ProxyServer, path: str) -> None:
    answer = ask(proxy.url, path)
    assert {
        name.decode(): value.decode() for name, value in SECURITY_HEADERS
    }.items() <= answer.headers.items()
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1.2_3", True), ("a" * 65, False), ("a b", False), ("<b>", False)]
)
def test_a_valid_request_id_is_kept(proxy: ProxyServer, given: str, kept: bool) -> None:
    answer = ask(proxy.url, "/healthz", headers={"X-Request-Id": given})
    assert (answer.headers["x-request-id"] == given) is kept


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [
        ("/nowhere", "GET", 404),
        ("/v1/nowhere", "GET", 404),
        ("/v1/messages/nowhere", "GET", 404),
        ("/healthz", "POST", 405),
        ("/v1/messages", "GET", 405),
        ("/v1/chat/completions", "DELETE", 405),
        ("/api/sessions/", "GET", 404),
    ],
)
def test_a_wrong_path_or_method_gets_the_format_of_the_path(
    proxy: ProxyServer, path: str, method: str, code: int
) -> None:
    answer = ask(proxy.url, path, method=method)
    assert answer.status == code
    assert message(answer, "/v1/messages" if path.startswith("/v1/messages") else path)
    assert ("allow" in answer.headers) is (code == 405)


def test_an_unexpected_error_is_answered_without_its_message(proxy: ProxyServer) -> None:
    answer = ask(proxy.url, "/api/sessions", body={"model": "broken/model"})
    assert answer.status == 500
    assert CANARY not in answer.body.decode()
    assert answer.headers["x-request-id"] in message(answer, "/api/sessions")


# ── Tokens ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [*PATHS_OF_ALL_FORMATS, "/metrics", "/nowhere"])
def test_every_request_needs_a_token_once_one_exists(with_tokens: ProxyServer, path: str) -> None:
    messages = {
        "": "this request needs a token: Authorization: Bearer fv_… (`foveal token create` creates one)",
        "Bearer fv_wrong": "this token is unknown or revoked",
        "Bearer sk-provider": "put the token into X-Foveal-Token",
    }
    for key, expected in messages.items():
        answer = ask(with_tokens.url, path, headers={"Authorization": key} if key else {})
        assert answer.status == 401
        assert message(answer, path).endswith(expected)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_health_and_openapi_need_no_token(with_tokens: ProxyServer) -> None:
    assert ask(with_tokens.url, "/healthz").status == 200
    assert ask(with_tokens.url, "/openapi.json").status == 200


@pytest.mark.parametrize("header", ["Authorization", "X-Foveal-Token", "X-Api-Key"])
def test_a_token_can_be_sent_in_three_ways(with_tokens: ProxyServer, header: str) -> None:
    secret = with_tokens.token("three")
    value = f"Bearer {secret}" if header == "Authorization" else secret
    assert ask(with_tokens.url, "/api/sessions", headers={header: value}).status == 200


def test_sessions_of_one_tenant_are_invisible_to_another(with_tokens: ProxyServer) -> None:
    mine, theirs, same = with_tokens.token("mine"), with_tokens.token("theirs"), with_tokens.token("mine")
    assert ask(with_tokens.url, "/api/sessions", body={"id": "secret-plan"}, token=mine).status == 201
    assert ask(with_tokens.url, "/api/sessions/secret-plan", token=theirs).status == 404
    assert ask(with_tokens.url, "/api/sessions", token=theirs).json["sessions"] == []
    assert ask(with_tokens.url, "/api/sessions/secret-plan", token=same).status == 200
    named = {"X-Foveal-Tenant": "mine", "Tenant": "mine"}
    other = with_tokens.token("other")
    assert ask(with_tokens.url, "/api/sessions/secret-plan", token=other, headers=named).status == 404


def test_a_revoked_token_is_refused_and_tokens_stay_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProxyServer(tmp_path, environment=SCRIPTED) as proxy:
        assert ask(proxy.url, "/api/sessions").status == 200
        tokens = AuthTokens(proxy.service.runtime.database)
        id, secret = proxy.do(tokens.create("new", now=1.0))
        assert ask(proxy.url, "/api/sessions", body={"id": "mine"}, token=secret).status == 201
        assert proxy.sessions("new") == ["mine"]  # at once
        assert ask(proxy.url, "/api/sessions").status == 401
        assert ask(proxy.url, "/api/sessions", token=secret).status == 200
        assert proxy.do(tokens.revoke(id, now=2.0))
        monkeypatch.setattr(guard, "CALLER_TTL_S", 0.0)
        assert ask(proxy.url, "/api/sessions", token=secret).status == 401
        assert ask(proxy.url, "/api/sessions").status == 401


OPENED_BY: Final = {
    "/metrics": ("admin", "metrics"),
    "/api/admin/tenants": ("admin",),
    "/api/admin/audit": ("admin",),
    "/api/sessions": ("tenant",),
}


@pytest.mark.parametrize("path", OPENED_BY)
@pytest.mark.parametrize("role", TOKEN_ROLES)
def test_a_role_opens_its_own_paths_only(with_tokens: ProxyServer, role: TokenRole, path: str) -> None:
    tokens = AuthTokens(with_tokens.service.runtime.database)
    tenant = "roles" if role == "tenant" else ""
    _, secret = with_tokens.do(tokens.create(tenant, role=role, now=0.0))
    answer = ask(with_tokens.url, path, token=secret)
    if role in OPENED_BY[path]:
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert f"this token has the role {role}, and this path needs a token" in message(answer, path)
        assert f"`foveal token create{' --role' if path != '/api/sessions' else '`'}" in message(answer, path)


def test_neither_role_of_the_operator_opens_a_conversation(with_tokens: ProxyServer) -> None:
    tokens = AuthTokens(with_tokens.service.runtime.database)
    for role in ("admin", "metrics"):
        _, secret = with_tokens.do(tokens.create("", role=role, now=0.0))
        for path in ("/v1/chat/completions", "/v1/messages", "/api/memory/ada", "/inspect/api/sessions"):
            assert ask(with_tokens.url, path, token=secret).status == 403


def test_without_tokens_every_program_on_the_machine_reads_the_numbers(proxy: ProxyServer) -> None:
    assert ask(proxy.url, "/metrics").status == 200
    assert ask(proxy.url, "/api/admin/tenants").status == 200


@contextmanager
def two_servers(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[ProxyServer, ProxyServer, threading.Event]]:
    """Two servers that share a folder or a database, before an upstream that sends a word and ends its response
    after the event."""
    held = threading.Event()
    word = b'data: {"choices":[{"index":0,"delta":{"content":"Well"}}]}\n\n'
    flags: dict[str, Any] = {}
    if place == "postgres":
        flags["server__database"] = request.getfixturevalue("service_url")
    with RawUpstream(lambda seen, number: [stream_head() + word, held]) as upstream:
        flags |= {"openai": upstream.openai, "anthropic": upstream.anthropic}
        with ProxyServer(tmp_path, **flags) as one, ProxyServer(tmp_path, **flags) as other:
            try:
                yield one, other, held
            finally:
                held.set()


@pytest.mark.parametrize("place", ["folder", "postgres"])
def test_a_revoked_token_ends_drop_in_streams_on_every_server(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with two_servers(place, tmp_path, request) as (one, other, ending):
        tokens = AuthTokens(one.service.runtime.database)
        id, secret = one.do(tokens.create("t", now=1.0))
        _, kept = one.do(tokens.create("t", now=1.0))
        body = {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}

        def stream(path: str, token: str) -> Any:
            headers = {"X-Foveal-Token": token, "Authorization": "Bearer sk-mine", "X-Api-Key": "sk-mine"}
            return httpx.stream("POST", f"{other.url}{path}", json=body, headers=headers, timeout=DEADLINE)

        with (
            stream("/v1/chat/completions", secret) as openai,
            stream("/v1/messages", secret) as anthropic,
            stream("/v1/chat/completions", kept) as untouched,
        ):
            of_kept = untouched.iter_bytes()
            assert b"Well" in next(of_kept)
            assert one.do(tokens.revoke(id, now=2.0)).tenant == "t"
            last = [b"".join(each.iter_bytes()).split(b"\n\n")[-2] for each in (openai, anthropic)]
            assert json.loads(last[0].removeprefix(b"data: "))["error"]["code"] == "token_revoked"
            assert last[1].startswith(b"event: error\n")
            assert b"this token was revoked" in last[1]
            assert ask(other.url, "/api/sessions", token=kept).status == 200
            ending.set()
            assert b"token_revoked" not in b"".join(of_kept)


@pytest.mark.parametrize("path", PATHS_OF_ALL_FORMATS)
def test_too_many_requests_get_retry_after(with_tokens: ProxyServer, path: str) -> None:
    often, other = with_tokens.token("often"), with_tokens.token("often")
    until(lambda: ask(with_tokens.url, "/api/sessions", token=often).status == 429)
    answer = ask(with_tokens.url, path, token=often)
    assert answer.status == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert "too many requests" in message(answer, path)
    assert ask(with_tokens.url, "/api/sessions", token=other).status == 200


def test_the_rate_limit_refills_evenly() -> None:
    rate = RateLimiter(60)
    assert [rate.take("a", now=0.0) for _ in range(60)] == [0.0] * 60
    assert rate.take("a", now=0.0) == pytest.approx(1.0)
    assert rate.take("a", now=0.5) == pytest.approx(0.5)
    assert rate.take("a", now=-100.0) == pytest.approx(0.5)
    assert rate.take("b", now=-100.0) == 0.0
    assert rate.take("a", now=1e9) == 0.0
    assert RateLimiter(0).take("a", now=0.0) == 0.0


def test_the_rate_limiter_keeps_a_bounded_number_of_tokens() -> None:
    rate = RateLimiter(2)
    assert [rate.take("greedy", now=0.0) for _ in range(3)][:2] == [0.0, 0.0]
    for number in range(10_050):
        rate.take(str(number), now=0.0)
    assert rate.take("greedy", now=0.0) > 0.0


# ── Error formats ──────────────────────────────────────────────────────────────────────────────────────

OVERFLOW = ContextOverflow("too large", needed=9, available=8, window=7, reserve=6, margin=5, floor=4)


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (OVERFLOW, 413),
        (UnknownSession("s"), 404),
        (UnknownHandle("e9"), 404),
        (SessionExists("s"), 409),
        (Conflict("s", given=1, next_seq=2), 409),
        (Busy("later"), 409),
        (NotCompacted("nothing"), 409),
        (MalformedMessage(0, "role", "missing"), 400),
        (BadSetting("window", -1, "more"), 400),
        (ProviderError("no key", code="key"), 502),
        (ProviderError("slow down", code="rate"), 503),
        (ProviderError("nobody there", code="connection"), 504),
        (StoreUnusable("full"), 503),
        (StoreError("closed"), 503),
        (FovealError("something else"), 500),
    ],
)
def test_every_library_error_has_a_status(problem: FovealError, status: int) -> None:
    refusal = http_error_of(problem)
    assert refusal.status == status
    assert error_body(refusal, "problem")["type"].startswith("urn:foveal:")


def test_an_overflow_error_contains_its_numbers() -> None:
    body = error_body(http_error_of(OVERFLOW), "problem")
    assert body == {
        "type": "urn:foveal:context_length_exceeded",
        "title": "Too large",
        "status": 413,
        "detail": "too large",
        "needed": 9,
        "available": 8,
        "window": 7,
        "reserve": 6,
        "margin": 5,
        "floor": 4,
    }
    assert error_body(http_error_of(OVERFLOW), "openai")["error"]["code"] == "context_length_exceeded"


def test_the_error_event_of_a_stream_is_in_its_dialect() -> None:
    refusal = HttpError(503, "the server is \ud800 stopping")
    assert stream_error_event(refusal, error_format("/v1/messages")).startswith(
        b'\n\nevent: error\ndata: {"type":"error"'
    )
    assert stream_error_event(refusal, error_format("/v1/chat/completions")).startswith(
        b'\n\ndata: {"error":{"message":"the server is ?'
    )
    assert stream_error_event(refusal, error_format("/v1/responses"), number=4).startswith(
        b'\n\nevent: error\ndata: {"type":"error","sequence_number":4,"code":null,"message":"the server is ?'
    )
    assert stream_error_event(refusal, error_format("/v1x")).startswith(
        b'\n\nevent: error\ndata: {"type":"about:blank"'
    )
