"""Redaction: secrets stay out of the log, other text is unchanged. The secrets are generated at run time."""

from __future__ import annotations

import asyncio
import base64
import json
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from foveal.core.log import (
    AnyFact,
    Call,
    Clipped,
    Compacted,
    CompactionFailed,
    Equipped,
    Instructed,
    Mark,
    Marked,
    Mask,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opaque,
    Opened,
    Overflowed,
    Pinned,
    SnapshotTaken,
    Text,
    Thinking,
    ToolReturned,
    Unknown,
    UserSaid,
    raw,
    unraw,
)
from foveal.core.redaction import find_secrets, redact_fact, scrub
from foveal.core.redaction.redact import scrub_json
from foveal.sessions import Session, SessionOptions
from foveal.stores import open_store
from support.histories import ESTIMATE, plain_model
from support.legality import check_chat
from support.made_secrets import made

ALNUM = string.ascii_letters + string.digits
URL_SAFE = ALNUM + "_-"


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


HEX = "0123456789abcdef"
PEM_BODY = "\n".join(made(64, ALNUM + "+/", seed=line) for line in range(12))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----"
JWT = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{encoded({'sub': '1234', 'name': 'Ada'})}.{made(43, URL_SAFE)}"
SECRETS = {
    "OpenAI key": "sk-" + made(48),
    "OpenAI key (project)": "sk-proj-" + made(120, URL_SAFE),
    "OpenAI key (plain)": "sk-" + string.ascii_lowercase + "1234567890",
    "Anthropic key": "sk-ant-api03-" + made(95, URL_SAFE),
    "OpenRouter key": "sk-or-v1-" + made(64, HEX),
    "Google key": "AI" + "za" + made(35, URL_SAFE),
    "AWS key id": "AK" + "IA" + made(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "AWS key id (temporary)": "AS" + "IA" + made(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "GitHub token": "gh" + "p_" + made(36),
    "GitHub token (app)": "gh" + "s_" + made(36),
    "GitHub token (fine)": "github" + "_pat_" + made(22) + "_" + made(59),
    "GitLab token": "gl" + "pat-" + made(20, URL_SAFE),
    "Slack token": "xox" + f"b-{made(12, string.digits)}-{made(12, string.digits)}-{made(24)}",
    "Stripe key": "sk" + "_live_" + made(24),
    "Stripe key (restricted)": "rk" + "_test_" + made(24),
    "Hugging Face token": "h" + "f_" + made(34, string.ascii_letters),
    "npm token": "np" + "m_" + made(36),
    "PyPI token": "py" + "pi-" + made(150, URL_SAFE),
    "Telegram token": "1234567890:AA" + made(33, URL_SAFE),
    "Discord token": f"MT{made(24)}.{made(6)}.{made(38, URL_SAFE)}",
    "JWT": JWT,
    "Foveal token": "f" + "v_" + made(43, URL_SAFE),
    "Groq key": "gs" + "k_" + made(52),
    "xAI key": "xa" + "i-" + made(80),
    "Google secret": "GOC" + "SPX-" + made(28, URL_SAFE),
    "Google token": "ya" + "29." + made(120, URL_SAFE),
    "DigitalOcean token": "do" + "p_v1_" + made(64, HEX),
    "Docker token": "dckr" + "_pat_" + made(27, URL_SAFE),
    "webhook secret": "wh" + "sec_" + made(32),
    "SendGrid key": "S" + f"G.{made(22, URL_SAFE)}.{made(43, URL_SAFE)}",
    "Vault token": "hv" + "s." + made(90, URL_SAFE),
    "Slack token (app)": "xa" + f"pp-1-{made(10).upper()}-{made(13, string.digits)}-{made(64, HEX)}",
    "private key": PEM,
}
"""By their kind; the text in brackets distinguishes the cases of a kind."""

PLACES = {
    "alone": "{}",
    "in a sentence": "Use {}, please.",
    "quoted": "key: '{}'",
    "after an escaped newline": "first\\n{}\\nlast",
    "in a query": "https://example.org/x?a=1&k={}&b=2",
    "after an encoded sign": "next=k%3D{}%26b",
    "in colours": "\x1b[32m{}\x1b[0m",
    "in markdown": "`{}`",
    "beside odd characters": "\ud800\x00{}\x00\udfff",
    "in an assignment": "export K={}\n",
}


def pieces(secret: str) -> set[str]:
    """Return what must not remain of a secret: any five successive characters outside its public part."""
    body = (
        secret.removeprefix("sk-ant-api03-")
        .removeprefix("github_pat_")
        .replace("-----BEGIN RSA PRIVATE KEY", "")
    )
    body = body.replace("-----END RSA PRIVATE KEY-----", "").replace("\n", "")
    return {body[at : at + 5] for at in range(9, len(body) - 5)}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_replaced_by_its_kind_and_at_most_four_characters(name: str, place: str) -> None:
    secret = SECRETS[name]
    scrubbed = scrub(place.format(secret))
    kind = name.partition(" (")[0]
    tail = secret[-4:] if secret[-4:].isalnum() else ""
    assert scrubbed == place.format(f"[foveal: redacted {kind} …{tail}]")
    assert not [piece for piece in pieces(secret) if piece in scrubbed]
    assert scrub(scrubbed) is scrubbed


PASSWORD = "c0rrect-h0rse!"
NAMED = {
    "env": ("OPENAI_API_KEY={}", made(32, HEX)),
    "python": ("api_key = '{}'", made(40)),
    "json": ('{{"apiKey": "{}"}}', made(32)),
    "escaped json": ('{{\\"api_key\\": \\"{}\\"}}', made(32)),
    "yaml": ("client_secret: {}\n", made(32)),
    "header": ("X-Api-Key: {}", made(32, HEX)),
    "query": ("/x?access_token={}&y", made(32)),
    "encoded query": ("next=%2Fx%3Fapi_key%3D{}%26y", made(32)),
    "option": ("curl --api-key {} x", made(32)),
    "capitals": ("Secret_Token := {}", made(32)),
    "aws": ("aws_secret_access_key = {}", made(40, ALNUM + "/+")),
    "aws json": ('"SecretAccessKey": "{}"', made(40, ALNUM + "/+")),
    "azure": ("AccountName=a;AccountKey={};End", made(86, ALNUM + "/+") + "=="),
    "bearer": ("authorization: bearer {}", made(30)),
    "BEARER": ("AUTHORIZATION: BEARER {}", made(30)),
    "bearer in code": ('headers.set("Authorization", "Bearer {}")', made(30)),
    "bearer in a url": ("x%3DBearer%20{}", made(30)),
    "basic": ("Authorization: Basic {}", base64.b64encode(b"ada:lovelace1815").decode()),
    "token scheme": ("Authorization: Token {}", made(20)),
    "login": ("git clone https://ada:{}@example.org/x.git", PASSWORD),
    "login with an at sign": ("postgres://ada:{}@db:5432/x", "p@ss#w0rd"),
    "login in an encoded url": ("u=postgres%3A%2F%2Fada%3A{}%40db%2Fx", "hunter22"),
    "redis": ("redis://:{}@cache:6379/0", "hunter22"),
    "connection string": ("Server=db;User Id=ada;Password={};Timeout=3", "hunter"),
    "odbc": ("UID=ada;PWD={};", "tiger"),
    "libpq": ("host=db user=ada password={} dbname=x", "hunter"),
    "password in json": ('{{"password": "{}"}}', PASSWORD),
    "password in yaml": ("password: {}\n", PASSWORD),
    "webhook": ("https://hooks.slack.com/services/{}", f"T{made(8).upper()}/B{made(8).upper()}/{made(24)}"),
    "discord webhook": ("https://discord.com/api/webhooks/123456789012345678/{}", made(68, URL_SAFE)),
}


@pytest.mark.parametrize(("place", "secret"), NAMED.values(), ids=NAMED)
def test_a_secret_without_a_known_format_is_found_by_its_context(place: str, secret: str) -> None:
    text = place.format(secret)
    scrubbed = scrub(text)
    before, _, after = place.format("\0").partition("\0")
    assert scrubbed.startswith(f"{before}[foveal: redacted ")
    assert scrubbed.endswith(f"]{after}")
    assert not any(secret[at : at + 5] in scrubbed for at in range(len(secret) - 4))
    assert scrub(scrubbed) is scrubbed


@pytest.mark.parametrize(
    "command", ["mysql -p{}", "redis-cli -a {}", "podman login -p {}", "x --password={}", "curl -u ada:{}"]
)
def test_a_secret_option_is_found_after_many_options_of_other_commands(command: str) -> None:
    many = "docker run -p 8080:80 -u root -a -b --api-key $KEY img\n" * 200
    assert scrub(many + command.format(PASSWORD)) == many + command.format("[foveal: redacted password …]")


HARMLESS = (
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "session_id = 123e4567-e89b-12d3-a456-426614174000",
    "token = 123e4567-e89b-12d3-a456-426614174000",
    "next_page_token: CAUQAA8fK2x1d3pkcXJ4eXo",
    "cache_key = d41d8cd98f00b204e9800998ecf8427e; SORT_KEY=d41d8cd98f00b204e9800998ecf8427e",
    '{"key": "d41d8cd98f00b204e9800998ecf8427e", "password": "$PASSWORD1", "pwd" := <aB3-password>}',
    "curl --username-key d41d8cd98f00b204e9800998ecf8427e --cookie cookies.txt -u ada",
    "api_key = os.environ['OPENAI_API_KEY']",
    "api_key=settings.PROVIDERS_V2.openai_key_name",
    "password = request.form['password']; token: str = ''",
    "connect(host=host, user=user, password=password, port=5432)",
    "postgres://user:password@localhost/x and https://$USER:$TOKEN@host and http://{user}:{pw}@h",
    "http://localhost:8080/a@b http://[::1]:80/ see x://y:8000,me@example.org",
    "class='sk-container-id-14 sk-estimator-doc-link' risk-assessment-of-2024-and-2025 task-1234567890abcdef",
    "hf_hub_download npm_config_registry pypi-attestations fv_some_long_function_name_of_the_solver_2d",
    "The header Authorization: Bearer <token>, or Bearer authentication-scheme",
    "it begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----.",
    "-----BEGIN CERTIFICATE-----\n" + PEM_BODY + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + PEM_BODY + "\n-----END PUBLIC KEY-----",
    "data:image/png;base64," + made(4_000, ALNUM + "+/"),
    "1.2.3-rc4+build.20240102 10.0.0.1:443 2024-01-02T03:04:05.678901Z 00:1A:2B:3C:4D:5E",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + made(40),
    "PWD=/home/ada/work PATH=/usr/bin; keys: ['abcdefghijklmnop', 'qrstuvwxyzabcdef']",
    "\ud800\x00 lone \udfff",
    "",
)


@pytest.mark.parametrize("text", HARMLESS, ids=range(len(HARMLESS)))
def test_a_text_without_secrets_is_returned_as_the_same_object(text: str) -> None:
    assert find_secrets(text) == []
    assert scrub(text) is text
    assert scrub_json(literal := json.dumps({"a": [text]})) is literal


PEM_FORMS = {
    "as it is": (PEM, ""),
    "with escaped line ends": (json.dumps(PEM)[1:-1], ""),
    "with line ends escaped twice": (json.dumps(json.dumps(PEM))[3:-3], ""),
    "in a url": (PEM.replace(" ", "%20").replace("\n", "%0A").replace("+", "%2B").replace("/", "%2F"), ""),
    "indented": (PEM.replace("\n", "\n    "), ""),
    "quoted in a mail": ("> " + PEM.replace("\n", "\n> "), "> "),
    "in lower case": (PEM.replace("BEGIN RSA PRIVATE KEY", "begin rsa private key"), ""),
    "with Windows line ends": (PEM.replace("\n", "\r\n"), ""),
    "cut off": (PEM[:700], ""),
    "cut off in the last line": (PEM[:487].rpartition("\n")[0] + "\nAb3xY", ""),
    "without its beginning": (PEM[100:], ""),
    "encoded once more": (base64.b64encode(PEM.encode()).decode(), ""),
    "of another sort": (PEM.replace("RSA ", "OPENSSH "), ""),
    "without a sort": (PEM.replace("RSA ", ""), ""),
    "of PGP": (PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"), ""),
    "encrypted": (
        PEM.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n", 1),
        "",
    ),
}


@pytest.mark.parametrize(("text", "before"), PEM_FORMS.values(), ids=PEM_FORMS)
def test_a_private_key_is_found_whole_quoted_or_truncated(text: str, before: str) -> None:
    assert scrub(f"see\n{text}\nthat") == f"see\n{before}[foveal: redacted private key …]\nthat"


def test_two_private_keys_are_redacted_separately() -> None:
    assert (
        scrub(f"{PEM}\nand\n{PEM}")
        == "[foveal: redacted private key …]\nand\n[foveal: redacted private key …]"
    )


def test_text_after_a_truncated_private_key_is_kept() -> None:
    cut = PEM[:500].rpartition("\n")[0]
    assert (
        scrub(f"{cut}\nNow the program goes on.")
        == "[foveal: redacted private key …]\nNow the program goes on."
    )


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────

KEY = SECRETS["OpenAI key"]
SHOWN = f"[foveal: redacted OpenAI key …{KEY[-4:]}]"


def test_arguments_stay_json_and_only_the_secret_in_them_changes() -> None:
    given = {
        "command": f'curl -H "Authorization: Bearer {KEY}" \\\n\t"x" 😀',
        "n": 1.50,
        "deep": [{"k": KEY}],
    }
    arguments = json.dumps(given, indent=1)
    call = Call(id=KEY, name="run", arguments=arguments)
    scrubbed = redact_fact(ModelSaid(content=(call,)))
    assert isinstance(scrubbed, ModelSaid)
    (part,) = scrubbed.content
    assert isinstance(part, Call)
    assert (part.id, part.name) == (KEY, "run")
    expected = {**given, "command": str(given["command"]).replace(KEY, SHOWN), "deep": [{"k": SHOWN}]}
    assert json.loads(part.arguments) == expected
    assert '"n": 1.5' in part.arguments


def test_a_json_string_is_judged_with_its_key() -> None:
    value = made(32)
    text = json.dumps(
        {"db": {"client_secret": value, "password": "hunter2-Ab", "key": value, "note": "password"}}
    )
    assert json.loads(scrub_json(text)) == {
        "db": {
            "client_secret": f"[foveal: redacted secret key …{value[-4:]}]",
            "password": "[foveal: redacted password …]",
            "key": value,
            "note": "password",
        }
    }


def test_a_json_string_is_judged_with_the_strings_before_it() -> None:
    secret = "Zq7vT9xLm2Rk"
    arguments = {
        "argv": ["tool", "--password", secret, "--user", "ada"],
        "request": ["curl", "-u", f"bob:{secret}"],
        "tags": [{"Key": "DB_PASSWORD", "Value": secret}],
        "note": "a\nb",
    }
    call = Call(id="a", name="run", arguments=json.dumps(arguments))
    scrubbed = redact_fact(ModelSaid(content=(call,)))
    assert isinstance(scrubbed, ModelSaid)
    (part,) = scrubbed.content
    assert isinstance(part, Call)
    gone = "[foveal: redacted password …]"
    assert json.loads(part.arguments) == {
        "argv": ["tool", "--password", gone, "--user", "ada"],
        "request": ["curl", "-u", f"bob:{gone}"],
        "tags": [{"Key": "DB_PASSWORD", "Value": gone}],
        "note": "a\nb",
    }


def test_a_secret_with_json_escapes_is_found() -> None:
    hidden = '{"a": "https:\\/\\/ada:hunter22@example.org", "b": "' + KEY.replace("-", "\\u002d") + '"}'
    assert json.loads(scrub_json(hidden)) == {
        "a": "https://ada:[foveal: redacted password …]@example.org",
        "b": SHOWN,
    }


def test_a_private_key_that_is_a_list_of_lines_is_found() -> None:
    lines = [*PEM.splitlines(keepends=True)]
    text = json.dumps({"cells": [{"source": ["before\n", *lines, "after"], "id": 1}, "end"]}, indent=1)
    gone = "[foveal: redacted private key …]"
    assert json.loads(scrub_json(text)) == {
        "cells": [{"source": ["before\n", *[gone] * len(lines), "after"], "id": 1}, "end"]
    }
    assert scrub_json(scrub_json(text)) == scrub_json(text)


def test_arguments_that_are_not_json_are_redacted_as_text() -> None:
    call = Call(id="a", name="run", arguments=f'{{"command": "echo {KEY}')
    assert redact_fact(ModelSaid(content=(call,))) == ModelSaid(
        content=(msgspec.structs.replace(call, arguments=f'{{"command": "echo {SHOWN}'),)
    )


def test_json_nested_too_deeply_is_redacted() -> None:
    deep = Raw(b'{"a":' * 20_000 + json.dumps(KEY).encode() + b"}" * 20_000)
    fact = redact_fact(SnapshotTaken(data=deep))
    assert isinstance(fact, SnapshotTaken)
    assert bytes(fact.data) == bytes(deep).replace(KEY.encode(), SHOWN.encode())


def test_lone_surrogates_and_nuls_beside_a_secret_are_kept() -> None:
    text = f"\ud800 \x00 {KEY} \udfff"
    assert scrub(text) == f"\ud800 \x00 {SHOWN} \udfff"
    fact = redact_fact(SnapshotTaken(data=raw({"a": text})))
    assert isinstance(fact, SnapshotTaken)
    assert unraw(fact.data) == {"a": f"\ud800 \x00 {SHOWN} \udfff"}


def test_invalid_utf8_beside_a_secret_is_kept() -> None:
    odd = b'{"a": "\xff\xfe", "b": "%s"}'
    fact = redact_fact(SnapshotTaken(data=Raw(odd % KEY.encode())))
    assert isinstance(fact, SnapshotTaken)
    assert bytes(fact.data) == odd % SHOWN.encode()


# ── Facts ────────────────────────────────────────────────────────────────────────────────────────────────


def every_fact(word: str) -> list[AnyFact]:
    """Return facts of all kinds with this word in every text field that is not a reference."""
    data = raw({word: [word, {"x": word}]})
    parts = (
        Text(text=word, extra=data),
        Thinking(native=data, text=word),
        Call(id="i", name="n", arguments=json.dumps({"a": word}, ensure_ascii=False), extra=data),
        Media(native=data),
        Opaque(native=data),
    )
    return [
        Opened(model=word, settings=data),
        Equipped(tools=data),
        Instructed(content=word, source=word, extra=data),
        UserSaid(content=word, extra=data),
        UserSaid(content=parts),
        ModelSaid(content=parts, extra=data),
        ToolReturned(call_id="i", name="n", content=word),
        ToolReturned(call_id="i", content=parts, extra=data),
        Pinned(text=word),
        Noted(text=word, topic=word),
        SnapshotTaken(data=data, label=word),
        Marked(target=1, marks=(Mark(part=-1, extra=data),)),
        Clipped(target=1, pieces=((0, 4), word)),
        Masked(masks=(Mask(target=1, text=word),)),
        Compacted(first=1, last=2, summary=word, chunks=(word, "b"), by=word, metrics=data),
        CompactionFailed(first=1, last=2, problem=word, metrics=data),
        Overflowed(model="m", problem=word),
        Unknown(kind="later", raw=raw({"kind": "later", "a": word})),
    ]


def test_every_text_of_every_fact_is_redacted() -> None:
    assert [redact_fact(fact) for fact in every_fact(KEY)] == every_fact(SHOWN)


def test_a_fact_without_secrets_is_the_same_object() -> None:
    harmless = every_fact("api_key, password: none") + every_fact(SHOWN)
    assert all(redact_fact(fact) is fact for fact in harmless)


def test_call_ids_are_never_redacted() -> None:
    fact = ToolReturned(call_id=KEY, name=KEY, content="done")
    assert redact_fact(fact) is fact


def test_a_redacting_session_clips_and_reopens_the_stored_text(tmp_path: Path) -> None:
    """A clipped result is stored as spans of its text, so the spans must refer to the redacted text."""
    small: Any = {
        "model": plain_model(6_000),
        "tokenizer": ESTIMATE,
        "options": SessionOptions(redact=redact_fact),
    }
    lines = [f"line {number} of the log, with nothing in it" for number in range(400)]
    result = "\n".join([*lines[:5], f"key {KEY} ends", *lines[5:390], f"ERROR: {PEM}", *lines[390:]])

    async def main() -> None:
        async with open_store(tmp_path / "a.db", durability="normal") as store:
            session, sent = await Session.open(store, "a", **small), ""
            for number in range(6):
                call = Call(id=f"c{number}", name="run", arguments=json.dumps({"key": KEY, "number": number}))
                await session.append(UserSaid(content=f"number {number}"), ModelSaid(content=(call,)))
                await session.append(ToolReturned(call_id=f"c{number}", name="run", content=result))
                await session.append(ModelSaid(content=f"It says {KEY}."))
                fitted = await session.fit()
                assert check_chat(fitted.to_openai()) == []
                sent += repr(fitted.to_openai())
            again = await Session.open(store, "a", **small)
            assert (await again.fit()).facts == fitted.facts
            stored = repr(await session.events())
        assert f"key {SHOWN} ends\\n" in sent
        assert KEY not in sent + stored
        assert PEM[60:100] not in sent + stored

    asyncio.run(main())


# ── Arbitrary text ───────────────────────────────────────────────────────────────────────────────────────

FRAGMENTS = [
    *SECRETS.values(),
    *(place.format(secret) for place, secret in NAMED.values()),
    *HARMLESS[:18],
    PEM[:300],
    PEM[200:],
    *[
        "sk-",
        "eyJ",
        "://",
        ":",
        "=",
        "@",
        "%",
        "%3A",
        "%3D",
        "%40",
        "%2F%2F",
        "api_key=",
        "password=",
        "Bearer",
        "Authorization:",
        "-----BEGIN",
        "PRIVATE",
        "KEY-----",
    ],
    *[
        "\\n",
        "\\",
        '"',
        "'",
        "[",
        "]",
        " ",
        "\n",
        ";",
        "…",
        "[foveal: redacted password …]",
        "1234567",
        "AA",
        "x",
        "_",
        "-",
    ],
]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=8).map("".join))
def test_redaction_is_idempotent(text: str) -> None:
    once = scrub(text)
    assert scrub(once) is once
    assert scrub(text) == once


@given(
    st.recursive(
        st.sampled_from(FRAGMENTS) | st.text(max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FRAGMENTS), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_redacted_json_has_the_same_structure(value: Any) -> None:
    text = json.dumps(value)
    once = scrub_json(text)
    assert scrub_json(once) is once
    assert structure(once) == structure(text)


def structure(text: str) -> str:
    """Return a JSON text with every string emptied; duplicate fields are kept."""
    return repr(_emptied(json.loads(text, object_pairs_hook=tuple)))


def _emptied(value: Any) -> Any:
    return type(value)(map(_emptied, value)) if isinstance(value, list | tuple) else ""


HOSTILE_CHARS = 100_000
HOSTILE = (
    "sk-", "-eyJ", "eyJaaaaaaaa.", "://a:", "://a:b", ":", "=", "api_key: ", "token:a", "a_", "--a-",
    ".aaaaaa", "A",
    "xoxb-", "github_pat_", "hf_", "1:", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "-----BEGIN ",
    "LS0tLS1CRUdJTi", "bearer+", "Authorization,a+", "password=", "pwd=a ", "%3A%2F%2Fa%3A",
    "\\", '"', '{"a":', "hooks/", "\n",
)  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_long_hostile_text_takes_linear_time(unit: str) -> None:
    """A quadratic search would take many minutes."""
    bait = f"{PEM[:40]}{unit * (HOSTILE_CHARS // len(unit))}("
    assert len(scrub(bait)) <= 3 * len(bait)
    inner = unit * (HOSTILE_CHARS // 10 // len(unit))
    assert len(scrub_json(f'["{inner}", "{KEY}"]')) <= HOSTILE_CHARS


def test_ten_megabytes_are_redacted_as_one_text() -> None:
    text = "the quick brown fox: jumps = over_the lazy-dog. " * 210_000
    assert scrub(text) is text
    assert scrub(text + KEY) == text + SHOWN
