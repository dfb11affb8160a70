"""Secrets of many kinds and in the files, statements and languages in which they stand. All are generated."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from bench.secret_kinds import MadeSecret, made_secrets, remains
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.redaction import StreamRedactor, find_secrets, scrub
from support.effort import rest_in_soak
from support.made_secrets import made

PER_KIND = 50
"""Enough for every place of a kind. `python -m bench redaction` measures 2,000."""
SIMPLE = "hunter2"
STRONG = "Zq7vT9xLm2Rk"
PASSWORD = "Tr0ub4dor-3"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def missed(cases: list[MadeSecret]) -> dict[str, int]:
    return Counter(case.kind.name for case in cases if remains(case, scrub(case.text)))


def test_no_secret_with_a_prefix_is_missed_and_hardly_one_of_the_others() -> None:
    cases = list(made_secrets(PER_KIND, seed=5))
    assert missed([case for case in cases if case.kind.prefix]) == {}
    others = [case for case in cases if not case.kind.prefix]
    assert sum(missed(others).values()) <= len(others) // 200, missed(others)


WITHOUT_DIGITS = {
    "GitLab": "gl" + "pat-" + made(20, LETTERS),
    "Stripe": "rk" + "_live_" + made(24, LETTERS),
    "npm": "np" + "m_" + made(36, LETTERS),
    "AWS": "AK" + "IA" + made(16, LETTERS[26:]),
    "Anthropic": "sk-ant-api03-" + made(95, LETTERS),
    "Slack": "xox" + "b-" + made(24, LETTERS),
    "Telegram": "123456789:AA" + made(33, LETTERS),
    "Slack webhook": "https://hooks.slack.com/services/TABCDEFGH/BABCDEFGH/" + made(24, LETTERS),
    "in JSON": '"api_key": "' + made(32, LETTERS) + '"',
}


@pytest.mark.parametrize("text", WITHOUT_DIGITS.values(), ids=WITHOUT_DIGITS)
@pytest.mark.parametrize("place", ["{}", "see {}.", "<b>{}</b>", "| {} |", "`{}`"])
def test_a_token_without_a_digit_is_found(text: str, place: str) -> None:
    scrubbed = scrub(place.format(text))
    assert "[foveal: redacted " in scrubbed
    assert text[-12:-4] not in scrubbed


FILES = {
    ".netrc": ("machine example.org login ada password {}\n", SIMPLE),
    ".netrc over lines": ("machine example.org\n  login ada\n  password {}\n", "mackerel"),
    ".pgpass": ("db.example.org:5432:app:ada:{}\n", SIMPLE),
    ".pgpass with stars": ("# hosts\n*:*:*:ada:{}\n", "mackerel"),
    "Kubernetes variable": ("- name: DB_PASSWORD\n  value: {}\n", SIMPLE),
    "Kubernetes variable in quotes": ('    - name: DB_PASSWORD\n      value: "{}"\n', "mackerel"),
    "Kubernetes variable in JSON": ('{{"name": "DB_PASSWORD", "value": "{}"}}', SIMPLE),
    "Kubernetes variable with a key": ("- name: API_KEY\n  value: {}\n", made(32)),
    "Kubernetes secret": (
        "apiVersion: v1\nkind: Secret\ntype: Opaque\ndata:\n  anything: {}\n",
        "aHVudGVyMg==",
    ),
    "Kubernetes secret, sorted": ("apiVersion: v1\ndata:\n  anything: {}\nkind: Secret\n", "aHVudGVyMg=="),
    "Kubernetes secret in JSON": ('{{"kind": "Secret", "data": {{"anything": "{}"}}}}', "aHVudGVyMg=="),
    "Kubernetes secret as text": ("kind: Secret\nstringData:\n  anything: {}\n", "mackerel"),
    "Ansible": ("web ansible_host=10.0.0.7 ansible_ssh_pass={}\n", "mackerel"),
    "Ansible in YAML": ("ansible_become_pass: {}\n", PASSWORD),
    "wpa_supplicant": ('network={{\n  ssid="home"\n  psk="{}"\n}}\n', "mackerel"),
    "wpa_supplicant, hexadecimal": ("network={{\n  psk={}\n}}\n", made(64, "0123456789abcdef")),
    "hostapd": ("wpa_passphrase={}\n", "mackerel"),
    "Django": ("SECRET_KEY = '{}'\n", "django-insecure-x(3#k!=v&9z@q$t%w2^m*b+d)h4j8r5n6p7s"),
    "settings": ("user=ada\npassword={}\n", SIMPLE),
    "Dockerfile": ("FROM x\nENV DB_PASSWORD {}\n", "mackerel"),
    "docker -e": ("docker run -e DB_PASSWORD={} image", "mackerel"),
    "HCL": ('variable "x" {{\n  password = "{}"\n}}\n', SIMPLE),
    "TOML": ('[db]\npassword = "{}"\n', SIMPLE),
    "SMTP": ("smtp_pass: {}\n", PASSWORD),
    ".pgpass with IPv6": ("[::1]:5432:*:postgres:{}\n", "mackerel"),
    ".pgpass with an escaped host": ("fe80\\:\\:1:5432:*:postgres:{}\n", "mackerel"),
    ".pgpass with an escaped colon": ("localhost:5432:*:postgres:{}\n", "Zq7\\:" + STRONG),
    ".pgpass in a command": ('echo "db:5432:app:ada:{}" > ~/.pgpass', "mackerel"),
    ".pgpass with another port": ("db.example.org:6543:app:ada:{}\n", SIMPLE),
    ".pgpass with another port and stars": ("*:6432:*:ada:{}\n", STRONG),
    ".pgpass with another port and IPv4": ("10.0.0.7:15432:app:ada:{}\n", STRONG),
    ".netrc in a command": ('echo "machine web login ada password {}" > ~/.netrc', "mackerel"),
    "YAML block": ("db:\n  password: |\n    {}\n  port: 1\n", STRONG),
    "YAML folded block": ("password: >-\n  {}", STRONG),
    "YAML block with a key": ("api_key: |-\n  {}\n", made(32)),
    "YAML anchor": ("password: &pw {}\n", STRONG),
    "YAML tag": ("password: !!str {}\n", STRONG),
    "YAML tag and quotes": ('password: !!str "{}"\n', SIMPLE),
    "YAML anchor of a token": ("token: &t {}\n", made(32)),
    "tag of AWS": ('{{"Key":"DB_PASSWORD","Value":"{}"}}', "mackerel"),
    "parameter of AWS": ('{{"Name": "/app/db_password", "Type": "SecureString", "Value": "{}"}}', SIMPLE),
    "parameter of a stack": ('{{"ParameterKey":"DbPassword","ParameterValue":"{}"}}', SIMPLE),
    "token of AWS": ('{{"Key":"API_TOKEN","Value":"{}"}}', made(32)),
    "escaped": ('{{\\"Key\\":\\"DB_PASSWORD\\",\\"Value\\":\\"{}\\"}}', "mackerel"),
    "XML attributes": ('<add key="DbPassword" value="{}"/>', SIMPLE),
    "bytes of Python": ("{{'password': b'{}'}}", STRONG),
    "key of Python as bytes": ('API_KEY = b"{}"\n', made(32)),
    "string of C#": ('password = @"{}";', STRONG),
}
STATEMENTS = {
    "CREATE USER of PostgreSQL": ("CREATE USER ada WITH PASSWORD '{}';", "mackerel"),
    "ALTER ROLE": ("ALTER ROLE ada ENCRYPTED PASSWORD '{}' LOGIN;", "mackerel"),
    "CREATE USER of MySQL": ("CREATE USER 'ada'@'%' IDENTIFIED BY '{}';", "mackerel"),
    "CREATE USER with a plugin": ("CREATE USER ada IDENTIFIED WITH sha256_password BY '{}';", "mackerel"),
    "CREATE USER of Oracle": ('CREATE USER ada IDENTIFIED BY "{}"', "mackerel"),
    "SET PASSWORD": ("SET PASSWORD FOR ada = PASSWORD('{}');", "mackerel"),
    "CREATE LOGIN": ("CREATE LOGIN ada WITH PASSWORD = N'{}';", "mackerel"),
    "PASSWORD of SQL Server": ("PASSWORD = N'{}'", STRONG),
    "PASSWORD of PostgreSQL": ("ALTER ROLE ada PASSWORD E'{}'", "mackerel"),
    "PASSWORD with a doubled quote": ("PASSWORD '{}'", "it''s" + STRONG),
    "PASSWORD with an escaped quote": ("ALTER USER ada PASSWORD '{}'", "it\\'s" + STRONG),
    "PASSWORD with blanks": ("CREATE USER ada WITH PASSWORD '{}';", "correct horse battery staple"),
    "IDENTIFIED BY with a doubled quote": ("IDENTIFIED BY '{}'", "it''s" + STRONG),
    "IDENTIFIED BY without quotes": ("IDENTIFIED BY {}", STRONG),
    "ALTER USER of Oracle": ("alter user ada identified by {};", "mackerel"),
    "shell with escapes": ("DB_PASSWORD=$'{}'", "mackerel"),
    "option with escapes": ("tool --password=$'{}' -q", "mackerel"),
    "sshpass, attached": ("sshpass -p{} ssh -p 2222 ada@db", "mackerel"),
    "sshpass, attached in quotes": ("sshpass -v -p'{}' ssh -p2222 ada@db", "mackerel"),
    "curl with joined options": ("curl -su bob:{} https://example.org", STRONG),
    "curl with joined options in quotes": ('curl -fsSLu "bob:{}" https://example.org', STRONG),
    "list of arguments": ('["--password", "{}"]', STRONG),
    "list of arguments of Python": ("run(['tool', '--db-password', '{}', '-q'])", SIMPLE),
    "list over lines": ('[\n  "--password",\n  "{}"\n]', STRONG),
    "list in JSON in JSON": ('{{\\"args\\":[\\"--password\\",\\"{}\\"]}}', STRONG),
    "list with a token": ('["--token", "{}"]', made(32)),
    "list of curl": ('["curl", "-u", "bob:{}", "https://example.org"]', STRONG),
    "list of sshpass": ('["sshpass", "-p", "{}", "ssh", "-p", "2222"]', "mackerel"),
    "gpg": ("gpg --batch --passphrase {} -c file", "mackerel"),
    "openssl": ("openssl rsa -passin pass:{} -in key.pem", "mackerel"),
    "openssl, output": ("openssl pkcs12 -passout pass:{} -in key.pem", "mackerel"),
}
TEXTS = {
    "f-string": ("""f"password={{'{}'}}\"""", SIMPLE),
    "f-string of a connection": ("""dsn = f"host={{host}} password={{'{}'}} user={{user}}\"""", STRONG),
    "f-string with a key": ("""f'api_key={{"{}"}}'""", made(32)),
    "f-string with a conversion": ("""f"token={{'{}'!r}}\"""", made(32)),
    "JSON without blanks": ('{{"password":"{}"}}', SIMPLE),
    "JSON with an escaped address": ('{{"url": "https:\\/\\/ada:{}@example.org\\/x"}}', SIMPLE),
    "colours around the name": ("\x1b[36mpassword\x1b[0m=\x1b[33m{}\x1b[0m\n", PASSWORD),
    "colours in YAML": ("\x1b[94mapi_key\x1b[39;49;00m:\x1b[37m \x1b[39;49;00m{}\x1b[0m\n", made(32)),
    "bold": ("- **Password:** `{}`\n", STRONG),
    "bold without code": ("**Password:** {}", SIMPLE),
    "bold before the colon": ("**Password**: `{}`", SIMPLE),
    "bold key": ("**API key:** `{}`", made(32)),
    "bold in HTML": ("<b>Password:</b> {}", SIMPLE),
    "table": ("| Password     | `{}` |", STRONG),
    "German": ("Mein Passwort ist {}", SIMPLE),
    "Chinese": ("我的密码是{}，谢谢", SIMPLE),
    "Chinese with a colon": ("密码：{}", SIMPLE),
    "Japanese": ("パスワードは {} です", SIMPLE),
    "Russian": ("Пароль: {}", SIMPLE),
    "Spanish": ("mi contraseña es {}", SIMPLE),
    "a name after Chinese": ("请用password={}，谢谢", PASSWORD),
    "a key after Chinese": ("令牌api_key={}。", made(32)),
    "a command after Chinese": ("运行curl -u ada:{} https://example.org", SIMPLE),
}
ALL = FILES | STATEMENTS | TEXTS


@pytest.mark.parametrize(("place", "secret"), ALL.values(), ids=ALL)
def test_a_secret_is_masked_whole_and_nothing_else_is(place: str, secret: str) -> None:
    before, _, after = place.format("\0").partition("\0")
    scrubbed = scrub(place.format(secret))
    assert scrubbed.startswith(f"{before}[foveal: redacted ")
    assert scrubbed.endswith(f"]{after}")
    assert secret[:5] not in scrubbed
    assert scrub(scrubbed) is scrubbed


@pytest.mark.parametrize("levels", range(4))
@pytest.mark.parametrize(
    ("name", "secret"), [("password", PASSWORD), ("api_key", made(32)), ("password", SIMPLE)]
)
def test_json_in_json_is_redacted(levels: int, name: str, secret: str) -> None:
    text = json.dumps({name: secret, "n": 1})
    for _ in range(levels):
        text = json.dumps(text)
    scrubbed = scrub(f"body: {text} end")
    assert secret[:5] not in scrubbed
    inner = scrubbed.removeprefix("body: ").removesuffix(" end")
    for _ in range(levels + 1):
        inner = json.loads(inner)
    assert inner[name].startswith("[foveal: redacted ")


def test_a_password_of_letters_that_are_not_ascii_is_masked_whole() -> None:
    assert scrub("password=Pässw0rd-1") == "password=[foveal: redacted password …]"


HARMLESS = {
    "tokens": "cache = Cache(cookie=cookie, tokens=all_tokens, size=3)",
    "a class": "def sign(private_key: x448.X448PrivateKey) -> bytes: isinstance(private_key, x448.X448PrivateKey)",
    "pass in code": "    pass\n  else: pass\nbypass = compass; passes=3; all tests pass: yes",
    "passphrase in code": "passphrase = getpass.getpass(); passphrase: str | None = None; pass_=self.pass_",
    "prose": "The value is identified by 'name'. Enter your password 'here'. Is the password a word?",
    "SQL without a password": "CREATE USER ada PASSWORD NULL; IDENTIFIED BY '<password>'; PASSWORD '%s'",
    "another manifest": "apiVersion: v1\nkind: ConfigMap\ndata:\n  anything: aHVudGVyMg==\n",
    "a reference": "kind: SecretProviderClass\ndata:\n  anything: aHVudGVyMg==\n",
    "a secret's metadata": "kind: Secret\nmetadata:\n  name: my-long-secret-name\n  namespace: production\n",
    "a compiler": "main.c:1234:12: error: x\nsrc/a.py:1200:x:y:z\n12:34:56 1:2:3:4:5:6",
    "a log with numbers": "db.py:6543:app:ada:line12\n12:6543:app:ada:value12\nx:6543:1:2:value12 a:6543:b:c:words",
    "more than five fields": "db.example.org:6543:app:ada:value12:more1 db.example.org:6543:app:value12",
    "f-strings with names": """f"password={password}"; f"password={password!r}"; f"token={cfg['token_12345']}\"""",
    "f-strings with expressions": """f"password={'*' * 8}"; f"password={os.environ['DB_PASSWORD_1']}\"""",
    "braces of JSON": """{"password": {"type": "string1"}, "token": {"a1b2c3d4e5f6a7b8c9": 1}}""",
    "an assembly": '<dependentAssembly publicKeyToken="1fc8b3b9a1e18e3b"></dependentAssembly>',
    "an example": 'create_engine("postgresql://scott:tiger@localhost/test")',
    "a login": "login required password needed; account settings password field",
    "a macro": "#define sk_X509V3_EXT_METHOD_new_reserve(cmp, n) sk_X509_POLICY_NODE_set_cmp_func(sk, cmp)",
    "a type": "export type Password = string;\ntype Passwd = number | null;\nlet password = String;",
    "C++": "char *password = nullptr; std::optional<std::string> password = nullopt;\nDB_PASSWORD=nullptr;",
    "a statement": "password = inputs;\n",
    "messages": "PASSWORD 'must be set'; PASSWORD \"may not be empty\"; Password 'is too short: 8 Characters'",
    "words of .netrc": "machine learning login page password reset flow; default login page password reset it",
    "prose with IDENTIFIED BY": "IDENTIFIED BY THE USER; identified by CVE-2024-12x; IDENTIFIED BY RANDOM PASSWORD",
    "options of a parser": 'add_argument("--password", "-p", help="a1"); option("--password", "Password of ada 1")',
    "ports of ssh": "sshpass -e ssh -p 2222 ada@db; sshpass -f file ssh -p2222 ada@db",
    "references of YAML": "password: !Ref DbPassword\npassword: !GetAtt a.b\npassword: *pw\npassword: !secret db_1",
    "a text in YAML": "password: |\n  The one that you set\npassword: >-\n  Words\ntoken: |\n  a text of words\n",
    "bold words": "**Password:** required\n**Password**: `string`\n**API key:** the key of your account",
    "a table": "| Password | string | the password of the user |\n| API key | `str` | required |",
    "empty values": '{"Key":"DB_PASSWORD","Value":""} password = b\'\'; ["--password", ""] PASSWORD \'\'',
    "HTML": "{ psk: &#x3C;Buffer|TypedArray|DataView>, [passphrase: &lt;string2&gt;] ://&lt;user&gt;:&lt;pw&gt;@h",
    "tests": "--- PASS: TestE2E_RewindMultipleFiles (21.3s)\nPASS: a1b2c3d4\npassword='hashed_password_123'",
    "Chinese": "密码是必需的。密码: 不能为空 password？是的",
    "colours": "\x1b[32mpassed\x1b[0m \x1b[1;31mpassword\x1b[0m: \x1b[33mrequired\x1b[0m",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_a_text_that_only_resembles_these_places_is_kept(text: str) -> None:
    assert [text[hit.start : hit.end] for hit in find_secrets(text)] == []


def streamed(text: str, size: int) -> str:
    redactor = StreamRedactor()
    shown = [redactor.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join([*shown, redactor.close()])


@pytest.mark.parametrize("name", rest_in_soak(ALL, every=3))
def test_a_secret_in_a_stream_is_masked_however_it_is_split(name: str) -> None:
    place, secret = ALL[name]
    text = f"ada said: {place.format(secret)} and more\n"
    assert [streamed(text, size) for size in range(1, 40, 3)] == [scrub(text)] * 13


@given(
    st.lists(
        st.sampled_from([place.format(secret) for place, secret in ALL.values()])
        | st.sampled_from(list(HARMLESS.values())),
        max_size=3,
    ).map("\n".join),
    st.integers(min_value=1, max_value=40),
)
def test_a_stream_is_masked_as_the_whole_text_is(text: str, size: int) -> None:
    assert streamed(text, size) == scrub(text)
