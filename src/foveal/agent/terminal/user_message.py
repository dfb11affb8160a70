"""A message of the user with what is attached to it."""

from __future__ import annotations

import msgspec

from foveal.core.log.events import AnyPart, Content, Dialect, Media, Text
from foveal.core.wire.safe_print import counted


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file, a folder or an image as it is sent with a message."""

    name: str
    part: AnyPart
    tokens: int = 0
    total_tokens: int = 0
    """Tokens of the whole text; more than `tokens` if it was clipped."""

    @property
    def chip(self) -> str:
        """The attachment in a few words."""
        return f"[{self.name} · {self.size}]"

    @property
    def size(self) -> str:
        if isinstance(self.part, Media):
            return f"image, {counted(self.tokens, 'token')}"
        if self.total_tokens > self.tokens:
            return f"{self.tokens:,} of {counted(self.total_tokens, 'token')}"
        return counted(self.tokens, "token")


class UserMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is sent and as it is shown."""

    content: Content
    """The text; with attachments, parts of which the first is the text."""
    dialect: Dialect = ""
    """The dialect of images in the content."""
    shown: str
    """The text with a chip in place of each attachment."""
    attachments: tuple[Attachment, ...] = ()
    notes: tuple[str, ...] = ()
    """Why something was not attached."""


def typed_text(content: Content) -> str:
    """Return what the user typed of a stored message: its first text, without attachments."""
    if isinstance(content, str):
        return content
    return next((part.text for part in content if isinstance(part, Text)), "")
