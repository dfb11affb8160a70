"""Secrets in the forms in which people and tools write them, and texts that only look like them."""

from __future__ import annotations

import base64
import json
import random
import time
import timeit

import pytest
from bench.made_keys import MadeKey, made_forms, made_keys
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.redaction import StreamRedactor, find_secrets, scrub
from foveal.core.redaction.long_tokens import find_places
from foveal.core.redaction.redact import scan_part, scrub_json
from support.effort import some_cases
from support.made_secrets import made

HEX = "0123456789abcdef"
UUID = "3f2b8c1e-9d47-4a6b-8e05-c7d1f2a94b36"
PASSWORD = "Tr0ub4dor&3"
LOGIN = base64.b64encode(b"ada:lovelace1815").decode()

FORMS = {
    "token with a hex value": ("BUILD_TOKEN={}", made(32, HEX)),
    "key with a hex value": ("APP_KEY={}", made(64, HEX)),
    "secret with a hex value": ("SESSION_SECRET={}", made(40, HEX)),
    "token with a UUID": ("PROVIDER_TOKEN={}", UUID),
    "key with a UUID": ('export SERVICE_KEY="{}"', UUID),
    "password variable": ("DB_PASSWORD={}", "mackerel"),
    "password with an ampersand": ("password={}", PASSWORD),
    "password with an ampersand in a query": ("/login?password={}&user=ada", PASSWORD),
    "password with a semicolon": ("password: {}\n", "Tr0ub;4dor"),
    "password in quotes": ('password = "{}"', "Tr0ub, 4dor)"),
    "curl": ("curl -u ada:{} https://example.org", PASSWORD),
    "curl with an option before": ("curl -sS --user 'ada:{}' https://example.org", PASSWORD),
    "curl over two lines": ("curl -sS \\\n  -u ada:{} https://example.org", PASSWORD),
    "cookie": ("Cookie: theme=dark; session={}", made(26)),
    "two cookies": ("Cookie: session={}; theme=dark", made(26)),
    "set-cookie": ("Set-Cookie: sid={}; Path=/; HttpOnly", made(26)),
    "mysql": ("mysql -u ada -p{} app", "mackerel"),
    "mysqldump": ("mysqldump --host db -p'{}' app", PASSWORD),
    "psql": ("psql postgres://ada:{}@db/app", PASSWORD),
    "sshpass": ("sshpass -p {} ssh ada@db", "mackerel"),
    "password option": ("tool --password {} --quiet", "mackerel"),
    "German": ("Passwort: {}", "geheim123"),
    "spoken": ("my password is {}", "hunter22"),
    "spoken in a sentence": ("Well, my password is {}.", PASSWORD),
    "spoken with a colon": ("my password is: {}", PASSWORD),
    "spoken with a sign": ("my password is = {}", PASSWORD),
    "spoken in German with a colon": ("Das Passwort lautet: {}", PASSWORD),
    "docker": ('{{"auths": {{"example.org": {{"auth": "{}"}}}}}}', LOGIN),
    "service account": ('"private_key_id": "{}"', made(40, HEX)),
    "npm": ("//registry.example.org/:_authToken={}", UUID),
}  # fmt: skip


@pytest.mark.parametrize(("place", "secret"), FORMS.values(), ids=FORMS)
def test_a_secret_is_masked_whole_and_nothing_else_is(place: str, secret: str) -> None:
    before, _, after = place.format("\0").partition("\0")
    scrubbed = scrub(place.format(secret))
    assert scrubbed.startswith(f"{before}[foveal: redacted ")
    assert scrubbed.endswith(f"]{after}")
    assert not any(secret[at : at + 5] in scrubbed for at in range(len(secret) - 4))
    assert scrub(scrubbed) is scrubbed


def test_a_password_in_json_is_masked_whole() -> None:
    text = json.dumps({"user": "ada", "password": "Tr0ub4dor & 3, and more", "auth": LOGIN})
    assert json.loads(scrub_json(text)) == {
        "user": "ada",
        "password": "[foveal: redacted password …]",
        "auth": "[foveal: redacted credential …]",
    }


HARMLESS = {
    "git": "commit 3f786850e387550fdab836ed7e6dc881de23001b\nindex 8baef1b4..5f2b6c3e 100644",
    "lock file": '"integrity": "sha512-' + made(86, HEX + "ABCXYZ+/") + '==",\n"resolved": "https://registry.example.org/a-1.2.3.tgz"',
    "checksums": "sha256:" + made(64, HEX) + "  file.tar.gz\nmd5 = d41d8cd98f00b204e9800998ecf8427e",
    "hash option": "--hash=sha256:" + made(64, HEX),
    "UUID": f"request_id={UUID} trace: {UUID}",
    "other keys": f"CACHE_KEY={made(32, HEX)} primary_key: {UUID} PUBLIC_KEY={made(40)} sort_key={made(32, HEX)}",
    "other tokens": f"next_page_token={made(32)} csrf_token={made(32)} num_tokens=12345678 eos_token: </s>",
    "paths": "KEY_FILE=/etc/ssl/private.pem API_KEY=$API_KEY TOKEN=${TOKEN} SECRET_KEY=<your-secret-key-1>",
    "options": "docker run -u 1000:1000 -p 8080:80 image; mkdir -p a/b; ps -p 1234; ssh -p 2222 host",
    "prose": "My password is not working. The password is required: 8 characters. Passwort: vergessen",
    "cookies": "Cookie: theme=dark; lang=en\nthe cookie = jar; Set-Cookie: a=b; Path=/",
    "code": "cookie = response.cookies[0]; token = self.tokens[index_of_token_12]; key = sorted_keys[12345678]",
    "base64": "data:image/png;base64," + made(5_000, made(62) + "+/"),
    "auth": '"auth": "required-by-the-service", "auth": false',
}  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_hashes_names_and_code_are_not_masked(text: str) -> None:
    assert find_secrets(text) == []


JOINED = {
    "after a sign and a dot": "build_dp.scim." + made(44),
    "after a path": "path/to/ghp_" + made(36),
    "in a short part": "x-whsec_" + made(4) + "/" + made(30),
    "after a short part with a dot": "cache.SG." + made(22) + "." + made(43),
    "after an escape": "\\nghp_" + made(36),
    "after a number of a URL": "q=1%20ghp_" + made(36),
    "after a hash": made(64, HEX) + "_ghp_" + made(36),
}


@pytest.mark.parametrize("text", JOINED.values(), ids=JOINED)
def test_a_key_is_found_behind_what_is_joined_to_it(text: str) -> None:
    assert len(find_secrets(f"see {text} there")) == 1


@pytest.mark.parametrize("word", ["wey", "zey", "tozen", "pkd", "passkord", "authorikation", "coowie"])
def test_words_that_resemble_the_name_of_a_secret_name_none(word: str) -> None:
    assert find_secrets(f"API_{word}={made(32, HEX)}x, {word}: {PASSWORD}") == []


LOCK_FILES = {
    "npm": '"node_modules/a-b": {{"resolved": "https://r.example.org/-/a-b-1.2.3.tgz", "integrity": "sha512-{}"}}',
    "uv": '{{ url = "https://f.example.org/packages/d1/c5/{}/a_b-1.2.3-py3-none-any.whl", hash = "sha256:{}" }}',
    "cargo": 'checksum = "{}"',
    "go": "example.org/a/b v1.2.3 h1:{}=",
    "git": "commit {}",
}


@pytest.mark.parametrize("line", LOCK_FILES.values(), ids=LOCK_FILES)
def test_the_lines_of_a_lock_file_need_no_further_check(line: str) -> None:
    text = "\n".join(line.format(made(60, HEX), made(64, HEX)) for _ in range(20))
    assert list(find_places(text, text.encode())) == []


def many_uuids() -> str:
    """Return JSON with so many UUIDs that the search leaves them out."""
    line = json.dumps({"id": UUID, "parent_id": UUID, "configuration_instance": UUID, "count": 7})
    return f"{line}\n" * 500


SECRETS_BETWEEN_UUIDS = {
    "a key of a service": f'"heroku": "{UUID}"',
    "a key of a service in capitals": f"HUBSPOT: '{UUID.upper()}'",
    "a key with a prefix": f'"key": "sdk-{UUID}"',
    "a token": f'"value": "sk-ant-{made(40)}"',
    "a named key": f'"api_key": "{UUID}"',
}


@pytest.mark.parametrize("secret", SECRETS_BETWEEN_UUIDS.values(), ids=SECRETS_BETWEEN_UUIDS)
def test_a_secret_between_many_uuids_is_found(secret: str) -> None:
    text = f"{many_uuids()}{secret}\n{many_uuids()}"
    found = [hit for hit, _ in scan_part(text, text.encode())]
    assert found
    assert all(secret in text[hit.start - 20 : hit.end + 2] for hit in found)


def leaked(case: MadeKey) -> bool:
    """Return whether six successive characters of the second half of the key remain."""
    scrubbed = scrub(case.text)
    return any(case.key[at : at + 6] in scrubbed for at in range(len(case.key) // 2, len(case.key) - 6))


def test_keys_of_every_format_are_found_in_every_place() -> None:
    cases = [*made_keys(), *made_forms()]
    missed = [case for case in cases if leaked(case)]
    assert len(missed) <= len(cases) // 200, missed


# ── Streams ────────────────────────────────────────────────────────────────────────────────────────────

KEY = "sk-" + made(48)
PEM_BODY = "\n".join(made(64, seed=line) for line in range(9))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----"
WORDS = (
    "The tokens, ",
    "and the key: ",
    "curl ",
    "is a tool. ",
    "user=ada ",
    "; ",
    "\n",
    "datadog ",
    "api ",
    '"',
)
PIECES = [
    *(case.text for case in list(made_keys())[::13]),
    *(place.format(secret) for place, secret in FORMS.values()),
    *HARMLESS.values(),
    *WORDS,
    *(PEM, PEM[:300], PEM[300:]),
]


def streamed(text: str, seed: int) -> str:
    pick, redactor, shown, at = random.Random(seed), StreamRedactor(), [], 0
    while at < len(text):
        size = pick.choice((1, 2, 3, 7, 20, 90))
        shown.append(redactor.feed(text[at : at + size]))
        at += size
    return "".join([*shown, redactor.close()])


@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map(" ".join),
    st.integers(min_value=0, max_value=999),
)
def test_a_stream_is_masked_as_the_whole_text_is(text: str, seed: int) -> None:
    assert streamed(text, seed) == scrub(text)


def test_a_key_split_over_two_pieces_is_masked() -> None:
    redactor = StreamRedactor()
    assert redactor.feed(f"Use {KEY[:20]}") == "Use "
    assert redactor.feed(f"{KEY[20:]} for it") == f"[foveal: redacted OpenAI key …{KEY[-4:]}] for "
    assert redactor.close() == "it"


def test_a_stream_holds_back_no_more_than_the_last_word_of_ordinary_text() -> None:
    redactor = StreamRedactor()
    words = ["The", "build", "has", "finished,", "and", "all", "of", "the", "tests", "have", "passed."]
    assert [redactor.feed(word + " ") for word in words] == [word + " " for word in words]


def test_a_stream_holds_back_a_bounded_text() -> None:
    redactor = StreamRedactor()
    shown = "".join(redactor.feed("x" * 1_000) for _ in range(100))
    assert 50_000 <= len(shown) <= 100_000


# ── Time ───────────────────────────────────────────────────────────────────────────────────────────────

HOSTILE = ("sk_live_", "AKIA", "key=", "key: a1", "token:'", "secret = ", "cookie: a=b; ", "curl -u a:", "mysql -p",
           "my password is ", "https://a:b", "@", "%40", "%2F%2Fa%3A", "-p", "z", "Authorization: ", "eyJ", "ZXlK",
           "Bearer ", "datadog: a1", "private key", "-----BEGIN PRIVATE KEY-----", "auth: YTpi", "a.", "/a", "Q~",
           "hooks/", "password='", "a1" * 10 + "/", "login a password ", "identified by '", ":5432:a:b:", "psk=",
           "kind: Secret\ndata:\n  a: b\n", "data:\n", "password\n  value: ", "密码", "密码是a", "\x1b[0m", "\\/",
           "a@", "pass:", "password: &a ", "password: |\n  ", "password **", "password     |", '"--password", ',
           "password, type: a, ", "create user a identified by a1 ", "-su a", "PASSWORD 'a''", "password='a\\'",
           ":5432:\\:", "machine a.b login a password ", "token: b'")  # fmt: skip


def seconds(text: str) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        find_secrets(text)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("unit", some_cases(HOSTILE, every=5))
def test_ten_times_the_text_takes_about_ten_times_as_long(unit: str) -> None:
    """A quadratic scan would take a hundred times as long."""
    small, large = unit * (8_000 // len(unit)), unit * (80_000 // len(unit))
    assert seconds(large) <= 35 * seconds(small) + 0.02


def test_uuids_take_little_more_time_than_words() -> None:
    """Without RE2; a check of each UUID would take twenty times as long."""
    text = many_uuids()
    words = "a line of words in a text\n" * (len(text) // 26)
    assert scan_seconds(text) <= 10 * scan_seconds(words)


def scan_seconds(text: str) -> float:
    ascii_text = text.encode()
    return min(
        timeit.repeat(lambda: scan_part(text, ascii_text), number=1, repeat=7, timer=time.process_time)
    )
