"""Kinds of secrets as services issue them and as files contain them, generated from a seed.

A kind is written down here independently of the rules of redaction: the prefix, the alphabet and the length that
the service publishes, and the text around it. No secret is stored in a file, since each is generated at run time.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_ALNUM: Final = string.ascii_letters + string.digits
_URL_SAFE: Final = _ALNUM + "_-"
_BASE64: Final = _ALNUM + "+/"
_BASE32: Final = string.ascii_uppercase + "234567"
_HEX: Final = "0123456789abcdef"
_LOWER: Final = string.ascii_lowercase + string.digits
_UPPER: Final = string.ascii_uppercase + string.digits

Make = Callable[[random.Random], str]


class SecretKind(NamedTuple):
    """A kind of secret."""

    name: str
    make: Make
    places: tuple[str, ...]
    """Texts with `{}` for the secret."""
    prefix: str = ""
    """The beginning that all secrets of this kind have, if it is unmistakable."""


class MadeSecret(NamedTuple):
    """A generated secret in a text."""

    kind: SecretKind
    secret: str
    text: str


ANYWHERE: Final = (
    "{}",
    "Please use {}, it expires tomorrow.",
    "export VALUE={}\n",
    '{{"value": "{}", "size": 3}}',
    '{{\\"value\\":\\"{}\\"}}',
    "service:\n  value: {}\n",
    "https://example.org/v1/items?value={}&page=2",
    "X-Value: {}\r\nAccept: */*\n",
    "\x1b[32mvalue\x1b[0m=\x1b[1;33m{}\x1b[0m",
    "我的令牌是{}，谢谢",
    "line one\\n{}\\nline two",
    "value=`{}`",
    "| value | {} |",
    "<value>{}</value>",
)
"""Places in which a secret with a prefix is recognised, without a name that says what it is."""
_KEY_PLACES: Final = (
    "API_KEY={}\n",
    '{{"api_key": "{}"}}',
    '{{"apiKey":"{}"}}',
    "api_key: {}\n",
    'api_key = "{}"\n',
    "\x1b[36mapi_key\x1b[0m: \x1b[33m{}\x1b[0m\n",
    "client_secret={}&scope=all",
    '{{\\"access_token\\": \\"{}\\"}}',
    'SECRET_KEY = "{}"\n',
    "X-Api-Key: {}\n",
    "tool login --api-key {} --verbose\n",
    '["tool", "--api-key", "{}"]',
    "api_key: |\n  {}\n",
    "- **API key:** `{}`\n",
    "API_KEY = b'{}'\n",
    '{{"Key":"API_KEY","Value":"{}"}}',
)
_PASSWORD_PLACES: Final = (
    "DB_PASSWORD={}\n",
    'password = "{}"\n',
    '{{"password":"{}"}}',
    '{{"user": "ada", "password": "{}"}}',
    "password: {}\n",
    "my password is {}",
    "Mein Passwort ist {}",
    "psql postgres://ada:{}@db.example.org/app\n",
    "curl -s -u ada:{} https://example.org/api\n",
    "mysql -h db -u ada -p{} app\n",
    "machine example.org login ada password {}\n",
    "db.example.org:5432:app:ada:{}\n",
    "- name: DB_PASSWORD\n  value: {}\n",
    "web ansible_host=10.0.0.7 ansible_ssh_pass={}\n",
    'network={{\n  ssid="home"\n  psk="{}"\n}}\n',
    "wpa_passphrase={}\n",
    "CREATE USER ada WITH PASSWORD '{}';",
    "CREATE USER 'ada'@'%' IDENTIFIED BY '{}';",
    "gpg --batch --passphrase {} -c file\n",
    "openssl rsa -passin pass:{} -in key.pem\n",
    '{{"url": "https:\\/\\/ada:{}@example.org\\/x"}}',
    "\x1b[36mpassword\x1b[0m=\x1b[33m{}\x1b[0m\n",
    "密码password={}，请保密",
    '["tool", "--password", "{}", "-q"]',
    "[::1]:5432:*:ada:{}\n",
    "password: |\n  {}\n",
    "password: &pw {}\n",
    "password: !!str {}\n",
    "CREATE LOGIN ada WITH PASSWORD = N'{}';",
    "CREATE USER ada IDENTIFIED BY {};",
    "DB_PASSWORD=$'{}'\n",
    "sshpass -p{} ssh ada@db\n",
    "curl -su ada:{} https://example.org/api\n",
    "**Password:** `{}`\n",
    "{{'password': b'{}'}}",
    '{{"Key":"DB_PASSWORD","Value":"{}"}}',
)


def _random(letters: str, low: int, high: int = 0) -> Make:
    return lambda pick: "".join(pick.choices(letters, k=pick.randint(low, high or low)))


def _joined(*parts: str | Make) -> Make:
    return lambda pick: "".join(part if isinstance(part, str) else part(pick) for part in parts)


def _prefixed(name: str, prefix: str, *rest: str | Make) -> SecretKind:
    return SecretKind(name, _joined(prefix, *rest), ANYWHERE, prefix)


def _uuid(pick: random.Random) -> str:
    digits = "".join(pick.choices(_HEX, k=32))
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _jwt(pick: random.Random) -> str:
    payload = {"sub": str(pick.getrandbits(40)), "exp": pick.randint(10**9, 2 * 10**9)}
    parts = (json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, payload))
    encoded = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    return f"{encoded}.{_random(_URL_SAFE, 43)(pick)}"


def _password(pick: random.Random) -> str:
    """Return a password of a password manager: letters, digits and signs that need no escape anywhere."""
    length = pick.randint(12, 24)
    while True:
        password = "".join(pick.choices(_ALNUM + "_.!*+-", k=length))
        if password[0].isalnum() and password[-1].isalnum():
            return password


def _encoded(make: Make) -> Make:
    return lambda pick: base64.b64encode(make(pick).encode()).decode()


_DIGITS: Final = string.digits
SECRET_KINDS: Final = (
    _prefixed("OpenAI", "sk-", _random(_ALNUM, 20), "T3BlbkFJ", _random(_ALNUM, 20)),
    _prefixed("OpenAI project", "sk-proj-", _random(_URL_SAFE, 74), "T3BlbkFJ", _random(_URL_SAFE, 74)),
    _prefixed("Anthropic", "sk-ant-api03-", _random(_URL_SAFE, 93), "AA"),
    _prefixed("OpenRouter", "sk-or-v1-", _random(_HEX, 64)),
    _prefixed("AWS", "AKIA", _random(_BASE32, 16)),
    _prefixed("AWS temporary", "ASIA", _random(_BASE32, 16)),
    _prefixed("GitHub", "ghp_", _random(_ALNUM, 36)),
    _prefixed("GitHub fine-grained", "github_pat_", _random(_ALNUM, 22), "_", _random(_ALNUM, 59)),
    _prefixed("GitLab", "glpat-", _random(_URL_SAFE, 20)),
    _prefixed("GitLab deploy", "gldt-", _random(_URL_SAFE, 20)),
    _prefixed(
        "Slack bot", "xoxb-", _random(_DIGITS, 12), "-", _random(_DIGITS, 12), "-", _random(_ALNUM, 24)
    ),
    _prefixed(
        "Slack app", "xapp-1-", "A", _random(_UPPER, 10), "-", _random(_DIGITS, 13), "-", _random(_HEX, 64)
    ),
    _prefixed(
        "Slack webhook", "https://hooks.slack.com/services/",
        "T", _random(_UPPER, 8, 10), "/B", _random(_UPPER, 8, 10), "/", _random(_ALNUM, 24),
    ),
    _prefixed(
        "Discord webhook", "https://discord.com/api/webhooks/123456789012345678/",
        _random(_URL_SAFE, 68),
    ),
    _prefixed("Stripe", "sk_live_", _random(_ALNUM, 24)),
    _prefixed("Stripe restricted", "rk_live_", _random(_ALNUM, 24)),
    _prefixed("webhook secret", "whsec_", _random(_ALNUM, 32)),
    _prefixed("npm", "npm_", _random(_ALNUM, 36)),
    _prefixed("PyPI", "pypi-AgEIcHlwaS5vcmc", _random(_URL_SAFE, 140, 170)),
    _prefixed("Google", "AIza", _random(_URL_SAFE, 35)),
    _prefixed("Google secret", "GOCSPX-", _random(_URL_SAFE, 28)),
    _prefixed("Google token", "ya29.", _random(_URL_SAFE, 120, 180)),
    _prefixed("Hugging Face", "hf_", _random(string.ascii_letters, 34)),
    _prefixed("SendGrid", "SG.", _random(_URL_SAFE, 22), ".", _random(_URL_SAFE, 43)),
    _prefixed("Twilio", "SK", _random(_HEX, 32)),
    _prefixed("DigitalOcean", "dop_v1_", _random(_HEX, 64)),
    _prefixed("Docker", "dckr_pat_", _random(_URL_SAFE, 27)),
    _prefixed("Vault", "hvs.", _random(_URL_SAFE, 90, 100)),
    _prefixed("Databricks", "dapi", _random(_HEX, 32)),
    _prefixed("Shopify", "shpat_", _random(_HEX, 32)),
    _prefixed("Linear", "lin_api_", _random(_ALNUM, 40)),
    _prefixed("Groq", "gsk_", _random(_ALNUM, 52)),
    _prefixed("xAI", "xai-", _random(_ALNUM, 80)),
    _prefixed("Supabase", "sbp_", _random(_HEX, 40)),
    _prefixed("Grafana", "glsa_", _random(_ALNUM, 32), "_", _random(_HEX, 8)),
    _prefixed("New Relic", "NRAK-", _random(_UPPER, 27)),
    _prefixed("Doppler", "dp.pt.", _random(_ALNUM, 43)),
    _prefixed("Tailscale", "tskey-auth-", _random(_ALNUM, 12), "-", _random(_ALNUM, 32)),
    _prefixed("age", "AGE-SECRET-KEY-1", _random("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)),
    _prefixed("Airtable", "pat", _random(_ALNUM, 14), ".", _random(_HEX, 64)),
    SecretKind(
        "Telegram",
        _joined(_random("123456789", 9, 10), ":AA", _random(_URL_SAFE, 33)),
        (*ANYWHERE, "https://api.telegram.org/bot{}/getMe"),
        prefix=":AA",
    ),
    SecretKind("JWT", _jwt, ANYWHERE, prefix="eyJ"),
    SecretKind(
        "Discord bot",
        _joined("MT", _random(_ALNUM, 24), ".G", _random(_ALNUM, 5), ".", _random(_URL_SAFE, 38)),
        ANYWHERE,
    ),
    SecretKind("API key", _random(_ALNUM, 32, 48), _KEY_PLACES),
    SecretKind("hex key", _random(_HEX, 32, 64), _KEY_PLACES),
    SecretKind("lower key", _random(_LOWER, 32, 40), _KEY_PLACES),
    SecretKind("UUID key", _uuid, ('API_KEY="{}"\n', '{{"api_key": "{}"}}', "PROVIDER_TOKEN={}\n")),
    SecretKind(
        "AWS secret", _random(_BASE64, 40), ("aws_secret_access_key = {}\n", '{{"SecretAccessKey": "{}"}}')
    ),
    SecretKind(
        "Azure key",
        _joined(_random(_BASE64, 86), "=="),
        ("AccountName=a;AccountKey={};EndpointSuffix=core.windows.net", 'storage_account_key = "{}"\n'),
    ),
    SecretKind(
        "bearer",
        _random(_ALNUM, 24, 40),
        ("Authorization: Bearer {}\n", "curl -H 'Authorization: Bearer {}' x"),
    ),
    SecretKind(
        "basic",
        _encoded(_joined("ada:", _password)),
        ("Authorization: Basic {}\n", '{{"auths": {{"example.org": {{"auth": "{}"}}}}}}'),
    ),
    SecretKind(
        "cookie",
        _random(_ALNUM, 26, 40),
        ("Cookie: theme=dark; session={}\n", "Set-Cookie: sid={}; Path=/\n"),
    ),
    SecretKind(
        "Django key",
        _joined("django-insecure-", _random(_LOWER + "!@#$%^&*(-_=+)", 50)),
        ("SECRET_KEY = '{}'\n",),
    ),
    SecretKind(
        "Kubernetes secret",
        _encoded(_password),
        (
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\ntype: Opaque\ndata:\n  password: {}\n",
            "kind: Secret\ndata:\n  DB_PASS: {}\n  user: YWRh\n",
        ),
    ),
    SecretKind("password", _password, _PASSWORD_PLACES),
)  # fmt: skip


def made_secrets(per_kind: int, *, seed: int = 1) -> Iterator[MadeSecret]:
    """Yield this many secrets of each kind, in its places by turns."""
    for kind in SECRET_KINDS:
        pick = random.Random(f"{seed} {kind.name}")
        for number in range(per_kind):
            secret = kind.make(pick)
            place = kind.places[number % len(kind.places)]
            yield MadeSecret(kind, secret, place.format(secret))


def remains(made: MadeSecret, scrubbed: str) -> bool:
    """Return whether five successive characters of the secret remain, apart from its public prefix."""
    secret = made.secret
    first = len(made.kind.prefix) if secret.startswith(made.kind.prefix) else 0
    return any(secret[at : at + 5] in scrubbed for at in range(first, len(secret) - 4))
