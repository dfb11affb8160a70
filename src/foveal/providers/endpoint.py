"""Where a model is asked: whose service it is, at which address, with which key. The key never shows.

A key that no header can carry is refused here, in a sentence: the libraries would quote it in theirs.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from foveal.errors import ProviderError

HIDDEN = "***"


class SecretKey:
    """A secret that is only shown to who asks for it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret.strip()

    def __bool__(self) -> bool:
        return bool(self._secret)

    def __repr__(self) -> str:
        return f"Key({HIDDEN if self else ''})"

    def reveal(self) -> str:
        return self._secret

    def scrub(self, text: str) -> str:
        """The text without the secret, or any long piece of it that an error message quotes."""
        if len(self._secret) < 8:
            return text
        return " ".join(HIDDEN if self._quotes(word) else word for word in text.split(" "))

    def _quotes(self, word: str) -> bool:
        return self._secret in word or any(
            self._secret[start : start + 8] in word for start in range(len(self._secret) - 7)
        )


class Endpoint:
    """A provider as its user knows it."""

    __slots__ = ("key", "provider", "url", "variable")

    def __init__(self, provider: str, *, url: str, key: str = "", variable: str = "") -> None:
        """`variable` is where the key comes from; "" for a service that needs none."""
        self.provider = provider
        self.url = url
        self.key = SecretKey(key)
        self.variable = variable
        if not (self.key.reveal().isascii() and self.key.reveal().isprintable()):
            raise ProviderError(
                f"the key in {variable} has characters that no key has (a line break, a quote or a letter with an "
                "accent, say): copy it again",
                code="key",
            )

    def __repr__(self) -> str:
        return f"Place({self.provider!r}, url={self.address!r}, key={self.key!r})"

    @property
    def address(self) -> str:
        """The address as it may be shown: without a password, without a query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))

    @property
    def here(self) -> bool:
        """It is on this machine."""
        return (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")
