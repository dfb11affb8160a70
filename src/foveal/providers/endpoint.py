"""Endpoint of a provider: its name, URL and API key, which is never shown.

A key that no HTTP header can carry is refused here, because the client libraries would quote it in their errors.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit, urlunsplit

from foveal.errors import ProviderError

REDACTED_KEY: Final = "***"
_MIN_QUOTED_CHARS: Final = 8
"""Length from which a piece of a key in a text counts as a quotation of it."""


class SecretKey:
    """An API key that `repr` hides; only `reveal` returns it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret.strip()

    def __bool__(self) -> bool:
        return bool(self._secret)

    def __repr__(self) -> str:
        return f"SecretKey({REDACTED_KEY if self else ''})"

    def reveal(self) -> str:
        """Return the key."""
        return self._secret

    def redact(self, text: str) -> str:
        """Return a text without words that quote the key or eight characters in a row of it."""
        if len(self._secret) < _MIN_QUOTED_CHARS:
            return text
        return " ".join(REDACTED_KEY if self._is_quoted_in(word) else word for word in text.split(" "))

    def _is_quoted_in(self, word: str) -> bool:
        starts = range(len(self._secret) - _MIN_QUOTED_CHARS + 1)
        return any(self._secret[start : start + _MIN_QUOTED_CHARS] in word for start in starts)


class ProviderEndpoint:
    """Where requests go, and under which name errors mention it."""

    __slots__ = ("key", "key_variable", "provider", "url")

    def __init__(self, provider: str, *, url: str, key: str = "", key_variable: str = "") -> None:
        """`key_variable` is the environment variable of the key; "" for a service that needs none."""
        self.provider: str = provider
        self.url: str = url
        self.key: SecretKey = SecretKey(key)
        self.key_variable: str = key_variable
        if not (self.key.reveal().isascii() and self.key.reveal().isprintable()):
            raise ProviderError(
                f"the key in {key_variable} contains characters that API keys do not have (a line break, a quote "
                "or an accented letter, for example): copy it again",
                code="key",
            )

    def __repr__(self) -> str:
        return f"ProviderEndpoint({self.provider!r}, url={self.display_url!r}, key={self.key!r})"

    @property
    def display_url(self) -> str:
        """The URL without user name, password and query, for messages."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")
