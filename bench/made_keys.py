"""Made-up keys of every format that redaction knows, in the places where keys stand."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Iterator
from typing import Final, NamedTuple

from foveal.core.redaction.key_formats import ALPHABETS, FIELD, KEY_FORMATS, SERVICE_KEYS

PLACES: Final = {
    "environment": "export {NAME}={key}\n",
    "JSON": '{{"name": "demo", "{name}": "{key}", "size": 3}}',
    "YAML": "service:\n  {name}: {key}\n  size: 3\n",
    "URL": "https://example.org/v1/items?{name}={key}&page=2",
    "header": "GET / HTTP/1.1\nX-{Name}: {key}\nAccept: */*\n",
    "shell": "$ tool login --{dashed} {key} --verbose\n",
    "code": "client = Client({name}='{key}', timeout=3)\n",
    "TOML": '{name} = "{key}"\n',
}
"""Places where a key has a name; the name contains the service's name and a word such as `token`."""
PROSE: Final = {
    "sentence": "Please use {key} for the test, it expires tomorrow.",
    "log": "2026-01-02T03:04:05Z WARN refused request with {key} from 10.0.0.7\n",
}
"""Places without a name: only a key with a prefix can be recognised there."""
WORDS: Final = ("api_key", "token", "secret")


class MadeKey(NamedTuple):
    """A generated key in a text."""

    rule: str
    place: str
    key: str
    text: str


def made_keys(*, seed: int = 1) -> Iterator[MadeKey]:
    """Yield keys of every format in every place."""
    pick = random.Random(seed)
    for row in KEY_FORMATS:
        for prefix in row.prefixes.split():
            name = re.sub(r"[^a-z0-9]+", "_", row.kind.lower()).strip("_")
            rule = f"{row.kind} {prefix}"
            for place in (*PLACES, *PROSE):
                yield _made(rule, place, prefix + random_rest(row.rest, pick), f"{name}_{pick.choice(WORDS)}")
    for service in SERVICE_KEYS:
        for place in PLACES:
            name = f"{service.service.split()[0]}_{pick.choice(WORDS)}"
            yield _made(f"{service.service} {service.rest}", place, random_rest(service.rest, pick), name)


def random_rest(rest: str, pick: random.Random) -> str:
    """Return random text of a format; it begins and ends with a letter or a digit, and contains a digit."""
    while True:
        text = FIELD.sub(lambda field: _random_field(field, pick), rest)
        text = text.replace("={0,2}", "").replace("…", "")
        if text[0].isalnum() and text[-1].isalnum() and any(map(str.isdigit, text)) >= ("{z" not in rest):
            return text


def _random_field(field: re.Match[str], pick: random.Random) -> str:
    letters = _expand(ALPHABETS[field["alphabet"]])
    low = int(field["low"])
    high = int(field["high"]) if field["high"] else low + (8 if field["more"] else 0)
    return "".join(pick.choices(letters, k=pick.randint(low, high)))


def _expand(alphabet: str) -> str:
    ranges = {
        "A-Z": string.ascii_uppercase,
        "a-z": string.ascii_lowercase,
        "0-9": string.digits,
        "a-f": "abcdef",
        "A-F": "ABCDEF",
        "2-7": "234567",
    }
    parts = re.findall("[A-Za-z0-9]-[A-Za-z0-9]|.", alphabet)
    return "".join(ranges.get(part, part) for part in parts)


def _made(rule: str, place: str, key: str, name: str) -> MadeKey:
    names = {
        "name": name,
        "NAME": name.upper(),
        "Name": name.title().replace("_", "-"),
        "dashed": name.replace("_", "-"),
    }
    shown = json.dumps(key)[1:-1] if place == "JSON" else key
    return MadeKey(rule, place, key, (PLACES | PROSE)[place].format(key=shown, **names))


# ── Secrets that are known by their surroundings ───────────────────────────────────────────────────────

_HEX: Final = "0123456789abcdef"


def made_forms(*, seed: int = 1) -> Iterator[MadeKey]:
    """Yield secrets without a format of their own, as commands, headers, variables and sentences contain them."""
    pick = random.Random(seed)
    for number in range(20):
        for form, text in FORMS.items():
            key = _secret_for(form, pick)
            yield MadeKey(form, f"number {number}", key, text.format(key))


FORMS: Final = {
    "hex variable token": "export DEPLOY_TOKEN={}\n",
    "hex variable key": "APP_KEY={}\n",
    "hex variable secret": "SESSION_SECRET={}\n",
    "UUID variable token": "PROVIDER_TOKEN={}\n",
    "UUID variable key": 'PROVIDER_KEY="{}"\n',
    "password variable": "DB_PASSWORD={}\n",
    "password quoted": 'password = "{}"\n',
    "password YAML": "password: {}\n",
    "password spoken": "Hi, my password is {} and it does not work.",
    "password German": "Benutzer: ada\nPasswort: {}\n",
    "password login": "psql postgres://ada:{}@db.example.org/app\n",
    "password curl": "curl -s -u ada:{} https://example.org/api\n",
    "password mysql": "mysql -h db -u ada -p{} app\n",
    "password option": "tool --password {} --verbose\n",
    "cookie": "Cookie: theme=dark; session={}; lang=en\n",
    "set-cookie": "Set-Cookie: sid={}; Path=/; HttpOnly\n",
    "bearer": "curl -H 'Authorization: Bearer {}' https://example.org\n",
    "docker": '{{"auths": {{"registry.example.org": {{"auth": "{}"}}}}}}',
    "service account": '{{"type": "service_account", "private_key_id": "{}"}}',
    "AWS secret": "aws_secret_access_key = {}\n",
}


def _secret_for(form: str, pick: random.Random) -> str:
    if form.startswith("hex") or form == "service account":
        return "".join(pick.choices(_HEX, k=40 if form == "service account" else pick.choice((32, 40, 64))))
    if form.startswith("UUID"):
        digits = "".join(pick.choices(_HEX, k=32))
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if form.startswith("password"):
        return _password(pick)
    if form == "docker":
        return base64.b64encode(f"ada:{_password(pick)}".encode()).decode()
    letters = string.ascii_letters + string.digits + ("+/" if form == "AWS secret" else "")
    return (
        pick.choice(string.ascii_letters) + "".join(pick.choices(letters, k=38)) + pick.choice(string.digits)
    )


def _password(pick: random.Random) -> str:
    words = ("Tr0ub4dor", "c0rrect", "H0rse", "b4ttery", "St4ple", "Wint3r", "s3cure")
    return f"{pick.choice(words)}{pick.choice('!&#$*+-_')}{pick.choice(words)}{pick.randint(0, 99)}"
