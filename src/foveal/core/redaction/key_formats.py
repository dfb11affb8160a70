"""Formats of keys: what services issue, as a table of facts, and private keys in PEM blocks.

1. A row states the prefix of a key and the characters after it. `{a36}` stands for 36 characters of the alphabet
   `a`, `{u20+}` for at least 20, `{h32-40}` for 32 to 40, and a final `…` for further parts after a dot;
   everything else stands for itself. The alphabets are in `ALPHABETS`.
2. A row of `SERVICE_KEYS` describes a key without a prefix: it counts only after a name that contains the name of
   the service.
3. Public identifiers (client ids, publishable keys) have no row.
4. A private key is a PEM block. It may be indented, quoted, numbered or have escaped line ends, and a truncated one
   extends as far as its Base64. BEGIN and END lines without Base64 between them, as in documentation, are no key.

The prefixes, alphabets and lengths are those that the services publish, collected with the help of the default
rules of gitleaks (MIT licence).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from foveal.core.redaction.secret_values import Secret

ALPHABETS: Final = {
    "a": "A-Za-z0-9",
    "u": "A-Za-z0-9_-",
    "w": "A-Za-z0-9_",
    "p": "A-Za-z0-9_.-",
    "t": "A-Za-z0-9_.~-",
    "b": "A-Za-z0-9+/",
    "h": "0-9a-f",
    "x": "0-9a-fA-F",
    "l": "a-z0-9",
    "m": "a-z0-9_-",
    "c": "A-Z0-9",
    "v": "A-Z2-7",
    "z": "A-Za-z",
    "d": "0-9",
}
"""Alphabets by their letter in a format, as the inside of a character class."""
FIELD: Final = re.compile(r"\{(?P<alphabet>[a-z])(?P<low>[0-9]+)(?P<more>\+|-(?P<high>[0-9]+))?\}")


class KeyFormat(NamedTuple):
    """A format of keys that begin with a prefix."""

    kind: str
    """What the placeholder calls it."""
    prefixes: str
    """The prefixes, separated by blanks."""
    rest: str
    """What follows the prefix; see the module docstring."""
    proof: str = ""
    """What the key must contain as well: `mixed`, a digit or a capital letter, or `random` characters. A word or a
    name after the prefix has neither; nearly all keys have both."""


KEY_FORMATS: Final = (
    KeyFormat("1Password key", "A3-", "{c6}-{c11}-{c5}-{c5}-{c5}"),
    KeyFormat("1Password key", "A3-", "{c6}-{c6}-{c5}-{c5}-{c5}-{c5}"),
    KeyFormat("1Password token", "ops_eyJ", "{b250+}"),
    KeyFormat("Adobe secret", "p8e-", "{a32+}", "mixed"),
    KeyFormat("age key", "AGE-SECRET-KEY-1", "{c58}"),
    KeyFormat("Airtable token", "pat", "{a14}.{h64}"),
    KeyFormat("Alibaba key id", "LTAI", "{a20}", "mixed"),
    KeyFormat("Anthropic key", "sk-ant-", "{u16+}", "mixed"),
    KeyFormat("Artifactory key", "AKCp", "{a69}", "mixed"),
    KeyFormat("Artifactory token", "cmVmd", "{a59}", "mixed"),
    KeyFormat("Atlassian token", "ATATT3", "{u180+}"),
    KeyFormat(
        "Authress key", "sc_ ext_ scauth_ authress_", "{a5-30}.{a4-6}.acc{m11-33}.{u30-120}", "mixed"
    ),
    KeyFormat("AWS key id", "AKIA ASIA ABIA ACCA", "{v16}"),
    KeyFormat("AWS Bedrock key", "ABSK", "{b109-269}"),
    KeyFormat("ClickHouse key", "4b1d", "{a38}"),
    KeyFormat("Clojars token", "CLOJARS_", "{a60}"),
    KeyFormat("Cloudflare key", "v1.0-", "{h24}-{h146}"),
    KeyFormat("Databricks token", "dapi", "{h32}"),
    KeyFormat("Defined Networking token", "dnkey-", "{m26}-{m52}"),
    KeyFormat("DigitalOcean token", "doo_v1_ dop_v1_ dor_v1_", "{x64}"),
    KeyFormat("Docker token", "dckr_pat_ dckr_oat_", "{u20+}"),
    KeyFormat("Doppler token", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", "{a40-44}"),
    KeyFormat("Dropbox token", "sl.", "{u130-200}", "random"),
    KeyFormat("Duffel token", "duffel_test_ duffel_live_", "{u43}"),
    KeyFormat("Dynatrace token", "dt0c01.", "{a24}.{a64}"),
    KeyFormat("EasyPost token", "EZAK EZTK", "{a54}"),
    KeyFormat("Facebook token", "EAAM EAAC", "{a100+}"),
    KeyFormat("Flutterwave key", "FLWSECK_TEST- FLWSECK-", "{l32}-X"),
    KeyFormat("Flutterwave key", "FLWSECK_TEST-", "{l12}"),
    KeyFormat("Fly.io token", "fo1_", "{u43}"),
    KeyFormat("Fly.io token", "fm1a_ fm1r_ fm2_", "{b100+}"),
    KeyFormat("Foveal token", "fv_", "{u32+}", "random"),
    KeyFormat("Frame.io token", "fio-u-", "{u64}"),
    KeyFormat("Freemius key", "sk_", "{t29}", "random"),
    KeyFormat("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", "{a30+}…"),
    KeyFormat("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", "{u30+}…", "random"),
    KeyFormat("GitHub token", "github_pat_", "{w22+}", "mixed"),
    KeyFormat("GitLab token", "glcbt-", "{a1-5}_{u20+}"),
    KeyFormat(
        "GitLab token",
        "glpat- glptt- gldt- glrt- glrtr- glsoat- glft- glcbt- glagent- gloas- glimt- glffct- glwt- GR1348941",
        "{u20+}…",
        "mixed",
    ),
    KeyFormat("GoCardless token", "live_", "{u40}", "random"),
    KeyFormat("Google key", "AIza", "{u35}"),
    KeyFormat("Google secret", "GOCSPX-", "{u20+}"),
    KeyFormat("Google token", "ya29.", "{u20+}"),
    KeyFormat("Grafana key", "eyJrIjoi", "{a70-400}"),
    KeyFormat("Grafana token", "glc_", "{b32+}", "mixed"),
    KeyFormat("Grafana token", "glsa_", "{a32}_{x8}"),
    KeyFormat("Groq key", "gsk_", "{a32+}"),
    KeyFormat("Harness key", "pat. sat.", "{u22}.{a24}.{a20}"),
    KeyFormat("Heroku key", "HRKU-AA", "{u58}"),
    KeyFormat("Hugging Face token", "hf_", "{a30+}"),
    KeyFormat("Hugging Face token", "api_org_", "{z34}"),
    KeyFormat("Infracost token", "ico-", "{a32}", "mixed"),
    KeyFormat("Intra42 secret", "s-s4t2ud- s-s4t2af-", "{x64}"),
    KeyFormat("LaunchDarkly key", "sdk- mob- api-", "{h8}-{h4}-{h4}-{h4}-{h12}"),
    KeyFormat("Linear key", "lin_api_ lin_oauth_", "{a40+}"),
    KeyFormat("Lob key", "live_ test_", "{h35}"),
    KeyFormat("Mailgun key", "key-", "{h32}"),
    KeyFormat("Mapbox token", "sk.eyJ", "{u57+}.{u22}"),
    KeyFormat("New Relic key", "NRAK-", "{a27}"),
    KeyFormat("New Relic key", "NRII-", "{u32}"),
    KeyFormat("New Relic key", "NRJS-", "{h19}"),
    KeyFormat("Notion token", "ntn_", "{d11}{a35}"),
    KeyFormat("Notion token", "secret_", "{a43}"),
    KeyFormat("npm token", "npm_", "{a36+}"),
    KeyFormat("NVIDIA key", "nvapi-", "{u60+}"),
    KeyFormat("Octopus Deploy key", "API-", "{c26}"),
    KeyFormat("OpenAI key", "sk-proj- sk-svcacct- sk-admin- sk-None-", "{u16+}", "mixed"),
    KeyFormat("OpenRouter key", "sk-or-", "{u24+}", "mixed"),
    KeyFormat("OpenAI key", "sk-", "{a20+}"),
    KeyFormat("OpenAI key", "sk-", "{u20+}", "random"),
    KeyFormat("OpenShift token", "sha256~", "{u43}"),
    KeyFormat("Perplexity key", "pplx-", "{a48+}"),
    KeyFormat("Pinecone key", "pcsk_", "{w60+}"),
    KeyFormat("Plaid token", "access-sandbox- access-development- access-production-", "{h8}-{h4}-{h4}-{h4}-{h12}"),
    KeyFormat("PlanetScale token", "pscale_tkn_ pscale_oauth_ pscale_pw_", "{p32-64}", "mixed"),
    KeyFormat("Postman key", "PMAK-", "{x24}-{x34}"),
    KeyFormat("Prefect key", "pnu_", "{a36}"),
    KeyFormat("Pulumi token", "pul-", "{h40}"),
    KeyFormat("PyPI token", "pypi-", "{u50+}", "mixed"),
    KeyFormat("ReadMe key", "rdme_", "{l70}"),
    KeyFormat("Replicate token", "r8_", "{a37}"),
    KeyFormat("RubyGems key", "rubygems_", "{h48}"),
    KeyFormat("Scalingo token", "tk-us-", "{u48}"),
    KeyFormat("SendGrid key", "SG.", "{u20+}.{u20+}"),
    KeyFormat("SendGrid key", "SG.", "{u20+}"),
    KeyFormat("Sendinblue key", "xkeysib- xsmtpsib-", "{h64}-{a16}"),
    KeyFormat("Sentry token", "sntrys_eyJ", "{b30+}={0,2}_{b43}"),
    KeyFormat("Sentry token", "sntryu_", "{h64}"),
    KeyFormat("SettleMint token", "sm_aat_ sm_pat_ sm_sat_", "{a16}"),
    KeyFormat("Shippo token", "shippo_live_ shippo_test_", "{x40}"),
    KeyFormat("Shopify token", "shpat_ shpca_ shppa_ shpss_", "{x32}"),
    KeyFormat("Slack token", "xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs-", "{u18+}", "mixed"),
    KeyFormat("Slack token", "xoxe.xoxb- xoxe.xoxp-", "{u18+}", "mixed"),
    KeyFormat("Slack token", "xapp-", "{d1}-{u16+}"),
    KeyFormat("SonarQube token", "squ_ sqp_ sqa_", "{h40}"),
    KeyFormat("Sourcegraph token", "sgp_local_", "{x40}"),
    KeyFormat("Sourcegraph token", "sgp_", "{x16}_{x40}"),
    KeyFormat("Sourcegraph token", "sgp_", "{x40}"),
    KeyFormat("Square token", "sq0atp- sq0csp-", "{u22-60}"),
    KeyFormat("Square token", "EAAA", "{u60}"),
    KeyFormat("Stripe key", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_", "{a16+}", "mixed"),
    KeyFormat("Supabase key", "sbp_ sb_secret_", "{a20+}", "mixed"),
    KeyFormat("Tailscale key", "tskey-auth- tskey-api- tskey-client-", "{a8+}-{a16+}"),
    KeyFormat("Together key", "tgp_v1_", "{u40+}"),
    KeyFormat("Twilio key", "SK", "{h32}"),
    KeyFormat("Typeform token", "tfp_", "{p40-70}", "mixed"),
    KeyFormat("Vault token", "hvs. hvb. hvr.", "{u20+}"),
    KeyFormat("Vault token", "s.", "{a24}", "random"),
    KeyFormat("webhook secret", "whsec_", "{b24+}", "mixed"),
    KeyFormat("xAI key", "xai-", "{a32+}"),
    KeyFormat("Yandex key", "AQVN", "{u35-38}", "random"),
    KeyFormat("Yandex token", "t1.", "{u7+}={0,2}.{u86}"),
    KeyFormat("Yandex key", "YC", "{u38}", "random"),
)  # fmt: skip


class ServiceKey(NamedTuple):
    """A key without a prefix, which a name that contains the service's name introduces."""

    service: str
    """The name of the service in lower case; several names are separated by blanks."""
    rest: str


UUID_FORMAT: Final = "{x8}-{x4}-{x4}-{x4}-{x12}"
SERVICE_KEYS: Final = (
    ServiceKey("adafruit", "{m32}"),
    ServiceKey("airtable", "{a17}"),
    ServiceKey("algolia", "{l32}"),
    ServiceKey("alibaba", "{a30}"),
    ServiceKey("asana", "{l32}"),
    ServiceKey("atlassian confluence jira", "{a24}"),
    ServiceKey("beamer", "b_{m44}"),
    ServiceKey("bitbucket", "{m64}"),
    ServiceKey("bittrex", "{l32}"),
    ServiceKey("cloudflare", "{m40}"),
    ServiceKey("cloudflare", "{h37}"),
    ServiceKey("codecov", "{l32}"),
    ServiceKey("cohere", "{a40}"),
    ServiceKey("coinbase", "{m64}"),
    ServiceKey("confluent", "{b64}"),
    ServiceKey("confluent", "{c16}"),
    ServiceKey("contentful", "{u43}"),
    ServiceKey("datadog", "{l40}"),
    ServiceKey("discord", "{h64}"),
    ServiceKey("discord", "{u32}"),
    ServiceKey("droneci", "{l32}"),
    ServiceKey("dropbox", "{l15}"),
    ServiceKey("dropbox", "{l11}AAAAAAAAAA{u43}"),
    ServiceKey("etsy", "{l24}"),
    ServiceKey("facebook", "{h32}"),
    ServiceKey("fastly", "{u32}"),
    ServiceKey("finicity", "{h32}"),
    ServiceKey("finicity", "{l20}"),
    ServiceKey("finnhub", "{l20}"),
    ServiceKey("flickr", "{l32}"),
    ServiceKey("freshbooks", "{l64}"),
    ServiceKey("gitlab_session", "{l32}"),
    ServiceKey("gitter", "{m40}"),
    ServiceKey("heroku", UUID_FORMAT),
    ServiceKey("hubspot", UUID_FORMAT),
    ServiceKey("intercom", "{u60}"),
    ServiceKey("jfrog artifactory bintray xray", "{a73}"),
    ServiceKey("jfrog artifactory bintray xray", "{a64}"),
    ServiceKey("kraken", "{b80-88}"),
    ServiceKey("kucoin", "{h24}"),
    ServiceKey("kucoin", UUID_FORMAT),
    ServiceKey("launchdarkly", "{m40}"),
    ServiceKey("linkedin linked_in", "{a16}"),
    ServiceKey("mailchimp", "{h32}-us{d2}"),
    ServiceKey("mailgun", "{h32}-{h8}-{h8}"),
    ServiceKey("mattermost", "{l26}"),
    ServiceKey("maxmind", "{a6}_{a29}_mmk"),
    ServiceKey("meraki", "{h40}"),
    ServiceKey("messagebird message_bird", "{a25}"),
    ServiceKey("netlify", "{u40-46}"),
    ServiceKey("nytimes newyorktimes", "{u32}"),
    ServiceKey("okta", "00{u40}"),
    ServiceKey("plaid", "{l30}"),
    ServiceKey("privateai private_ai", "{l32}"),
    ServiceKey("rapidapi", "{u50}"),
    ServiceKey("sendbird", "{h40}"),
    ServiceKey("sentry", "{h64}"),
    ServiceKey("snyk", UUID_FORMAT),
    ServiceKey("sonar", "{l40}"),
    ServiceKey("sourcegraph", "{h40}"),
    ServiceKey("squarespace", UUID_FORMAT),
    ServiceKey("sumo", "{a64}"),
    ServiceKey("travis", "{a22}"),
    ServiceKey("twilio", "{h32}"),
    ServiceKey("twitch", "{l30}"),
    ServiceKey("twitter", "{a45}"),
    ServiceKey("twitter", "{a50}"),
    ServiceKey("twitter", "{a25}"),
    ServiceKey("twitter", "{d15-25}-{a20-40}"),
    ServiceKey("zendesk", "{a40}"),
)


def to_pattern(rest: str) -> str:
    """Return a format as a regular expression, which ends where the characters of its last field end."""
    parts: list[str] = []
    at, ending = 0, "A-Za-z0-9"
    for field in FIELD.finditer(rest):
        ending = ALPHABETS[field["alphabet"]]
        high = field["high"] or ("" if field["more"] else field["low"])
        parts += [_escape(rest[at : field.start()]), f"[{ending}]{{{field['low']},{high}}}"]
        at = field.end()
    if rest.endswith("…"):
        return "".join(parts) + r"+(?:[_.-][A-Za-z0-9_-]+)*+"
    return "".join([*parts, _escape(rest[at:])]) + f"(?![{ending}])"


def _escape(text: str) -> str:
    """Escape literal text; `={0,2}` is the only repetition that a format has."""
    return "={0,2}".join(map(re.escape, text.split("={0,2}")))


# ── Private keys ───────────────────────────────────────────────────────────────────────────────────────

MAX_KEY_BLOCK_CHARS: Final = 32_768
"""Characters of the longest block: a key of 16,384 bits, quoted and indented."""

_GAP: Final = r"(?:[ +]|%20)"
_MARK: Final = re.compile(
    rf"-----(?i:(?P<begin>begin)|end){_GAP}(?:[A-Za-z0-9]{{1,12}}{_GAP}){{0,3}}"
    rf"(?i:private{_GAP}key(?:{_GAP}block)?)-{{2,5}}"
)
_BREAK: Final = r"(?:\\{1,3}[nrt]|%0[AaDd]|[\s\"'`,+>|-]|[0-9]{1,6}[:|\t→])"
_BODY: Final = r"(?:[A-Za-z0-9/=+]|%2[BbFf]|%3[Dd]|\\/)"
_HEADER: Final = r"(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\%]{0,120}"
_AFTER: Final = re.compile(
    rf"(?:{_BREAK}*+(?:{_HEADER}|{_BODY}{{24,}}+))*+"
    rf"(?:{_BREAK}{{1,8}}+(?=[A-Za-z]*(?:[0-9+/=]|[a-z][A-Z])){_BODY}{{1,23}}+(?![A-Za-z0-9_.]))?"
)
_REVERSED_BREAK: Final = r"(?:[\s\"'`,+>|-]|[nrt]\\{1,3}|[AaDd]0%)"
_BEFORE: Final = re.compile(rf"(?:{_REVERSED_BREAK}*+[A-Za-z0-9+/=]{{24,}}+)++")
"""`_AFTER` for a reversed text: the Base64 before an END line is read backwards."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{24}")


_PARTIAL_MARK: Final = re.compile(r"-{1,5}(?:[A-Za-z]{1,5}(?:[ +%][A-Za-z0-9 +%-]{0,70})?)?\Z")
_OPEN_BASE64: Final = re.compile(rf"[A-Za-z0-9+/=]{{0,23}}{_BEFORE.pattern}")
_WORDS: Final = re.compile(rb"v(?<=priv)ate(?:[ +]|%20)key")
MAX_MARK_CHARS: Final = 80
"""Characters of a BEGIN line before `private key`."""


def find_private_keys(text: str, lower: bytes) -> Iterator[Secret]:
    """Find private keys; `lower` is the text in lower case with `?` for other characters than ASCII."""
    marks = [mark for words in _WORDS.finditer(lower) if (mark := _mark_around(text, words))]
    last = 0
    for at, mark in enumerate(marks):
        if mark.start() < last:
            continue
        after = marks[at + 1] if at + 1 < len(marks) else None
        span = _block_from(text, mark, after) if mark["begin"] else _block_up_to(text, last, mark)
        if span:
            yield Secret(*span, "private key", tail=False)
            last = span[1]
        else:
            last = mark.end()


def open_block_start(text: str) -> int | None:
    """Return where a block begins that the text may not contain whole: its BEGIN line, or Base64 at the end."""
    first = max(0, len(text) - MAX_KEY_BLOCK_CHARS - MAX_MARK_CHARS)
    marks = list(_MARK.finditer(text, first))
    if marks and marks[-1]["begin"]:
        return marks[-1].start()
    partial = _PARTIAL_MARK.search(text, max(first, len(text) - MAX_MARK_CHARS))
    end = partial.start() if partial else len(text)
    rest = _OPEN_BASE64.match(text[first:end][::-1])
    return end - rest.end() if rest else partial and partial.start()


def _mark_around(text: str, words: re.Match[bytes]) -> re.Match[str] | None:
    start = text.rfind("-----", max(0, words.start() - MAX_MARK_CHARS), words.start())
    mark = _MARK.match(text, start) if start >= 0 else None
    return mark if mark and mark.end() > words.end() else None


def _block_from(text: str, mark: re.Match[str], after: re.Match[str] | None) -> tuple[int, int] | None:
    """Return the block that begins here, up to its END line or as far as its Base64 goes."""
    if after and not after["begin"] and after.start() - mark.end() < MAX_KEY_BLOCK_CHARS:
        found = _BASE64.search(text, mark.end(), after.start())
        return (mark.start(), after.end()) if found else None
    rest = _AFTER.match(text, mark.end())
    return (mark.start(), rest.end()) if rest and _BASE64.search(rest.group()) else None


def _block_up_to(text: str, last: int, mark: re.Match[str]) -> tuple[int, int] | None:
    """Return the rest of a block whose beginning was cut off."""
    backwards = text[max(last, mark.start() - MAX_KEY_BLOCK_CHARS) : mark.start()][::-1]
    rest = _BEFORE.match(backwards)
    return (mark.start() - rest.end(), mark.end()) if rest else None
