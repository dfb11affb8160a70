"""Units of each message in a request, counted once and cached by seq.

Units are what the counter counts (o200k tokens, or an estimate of them). `calibration` turns them into the
tokens that the provider reports.

Images, audio and files cost what providers count for them. Only the header bytes that give the size of an image are
decoded. A source that cannot be read costs a fixed default.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Callable, Set
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from foveal.core.log.events import (
    DIALOGUE_TYPES,
    AnyPart,
    Call,
    Content,
    ForeignSummary,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    parts,
    unraw,
)
from foveal.core.tokens.counter import Counter, counter_stamp

MAX_STORED_COUNTS: Final = 16_384
"""The newest events whose units a checkpoint has: it does not grow further with the session."""
COUNTING_VERSION: Final = 1
"""Raised when the units of the same message change: stored counts of another version are not used."""
PER_MESSAGE: Final = 4
"""Units of role and separators, which every chat template adds to a message."""
PER_CALL: Final = 6
"""Units of the frame of a call: its id, type and brackets."""
UNCOUNTED_EXTRA_BYTES: Final = 200
"""Bytes of extra fields (ids, cache marks) that no provider is known to count."""

CountedFact = Instructed | UserSaid | ModelSaid | ToolReturned | ForeignSummary
COUNTED_TYPES: Final = DIALOGUE_TYPES | {Instructed, ForeignSummary}
"""The types of `CountedFact`."""


class MessageCounts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Units of consecutive events, as a checkpoint stores them. The field names are stored data."""

    counter: str
    """What has counted: the version of the rules, the vocabulary and its version."""
    first: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    units: tuple[Annotated[int, Meta(ge=0, lt=2**32)], ...] = ()
    """For each event from `first` on; 0 if it is no message or was not counted."""


class MessageTokens:
    """Counts facts with one counter. The cache key is the seq, so no event is counted twice."""

    def __init__(self, counter: Counter, known: MessageCounts | None = None) -> None:
        """`known` are counts of the same log; those of another counter are not used."""
        self.counter = counter
        self._facts = array("I")
        """By seq; 0 for an event that was not counted. Four bytes for each event, so all of a session stay."""
        if known is not None and known.counter == self._stamp:
            self._facts.frombytes(bytes(known.first * self._facts.itemsize))
            self._facts.extend(known.units)
        self._texts: dict[tuple[int, int, int], int] = {}

    def message(self, seq: int, fact: CountedFact) -> int:
        """Return the units of a message in full."""
        if seq < 0:
            # The notice of dropped messages is no event: after a revert, the same drop shows other numbers.
            return self._measure(fact)
        facts = self._facts
        if seq < len(facts) and (known := facts[seq]):
            return known
        units = self._measure(fact)
        if seq >= len(facts):
            facts.frombytes(bytes((seq + 1 - len(facts)) * facts.itemsize))
        facts[seq] = units
        return units

    def counts(self) -> MessageCounts | None:
        """Return what is known of the newest events; None if the counter has no version, by which another process
        knows whether it counts alike."""
        if not self._stamp:
            return None
        first = max(0, len(self._facts) - MAX_STORED_COUNTS)
        return MessageCounts(counter=self._stamp, first=first, units=tuple(self._facts[first:]))

    @property
    def _stamp(self) -> str:
        stamp = counter_stamp(self.counter)
        return f"{COUNTING_VERSION} {stamp}" if stamp else ""

    def text(self, owner: int, target: int, part: int, text: str) -> int:
        """Return the units of a text that event `owner` shows in place of a part of event `target`."""
        key = (owner, target, part)
        known = self._texts.get(key)
        if known is None:
            known = self._texts[key] = self.counter.count(text)
        return known

    def replaceable_units(self, seq: int, place: int, content: Content) -> int:
        """Return the units that an overlay on one part replaces: the arguments of a call, or the whole part."""
        key = (seq, seq, place)
        known = self._texts.get(key)
        if known is None:
            part = parts(content)[place]
            units = self.counter.count(part.arguments) if isinstance(part, Call) else self._part(part)
            known = self._texts[key] = units
        return known

    def keep_only(self, seqs: Set[int]) -> None:
        """Keep only the counts of these events; those of whole messages take little, and stay."""
        self._texts = {key: units for key, units in self._texts.items() if key[1] in seqs or key[1] < 0}

    def forget_from(self, seq: int) -> None:
        """Drop the counts of events from `seq` on, because other events will get these seqs."""
        del self._facts[max(seq, 0) :]
        self._texts = {key: units for key, units in self._texts.items() if key[0] < seq}

    def _measure(self, fact: CountedFact) -> int:
        if isinstance(fact, ForeignSummary):  # what an opaque one takes is not known: as for opaque thinking
            text = unraw(fact.native).get("content")
            readable = self.counter.count(text) if isinstance(text, str) else 0
            return PER_MESSAGE + (readable or len(bytes(fact.native)) // 4)
        return PER_MESSAGE + self._content(fact.content) + self.extra_units(fact.extra)

    def extra_units(self, extra: Raw | UnsetType) -> int:
        """Return the units of the extra fields of a message or a part."""
        if extra is UNSET or len(fields := bytes(extra)) <= UNCOUNTED_EXTRA_BYTES:
            return 0
        return self.counter.count(fields.decode("utf-8", "replace"))

    def _content(self, content: Content) -> int:
        if isinstance(content, str):
            return self.counter.count(content)
        return sum(map(self._part, content))

    def _part(self, part: AnyPart) -> int:
        match part:
            case Text():
                return self.counter.count(part.text) + self.extra_units(part.extra)
            case Call():
                units = PER_CALL + self.counter.count(part.name) + self.counter.count(part.arguments)
                return units + self.extra_units(part.extra) if part.replaceable else units
            case Thinking():
                return self.counter.count(part.text) if part.text else len(bytes(part.native)) // 4
            case Media():
                return part.units
            case Opaque():
                return self.counter.count(bytes(part.native).decode("utf-8", "replace"))


# ── Images, audio and files ──────────────────────────────────────────────────────────────────────────────

DEFAULT_MEDIA_UNITS: Final = 1_000
"""Tokens for media of unknown size: behind a URL, in an unknown format, or broken."""
PIXELS_PER_UNIT: Final = 750
MAX_IMAGE_UNITS: Final = 1_600
"""Providers scale larger images down: Anthropic to 1,568 pixels on the long edge, about 1,600 tokens; OpenAI's
tiles end at about 1,100. So no image costs more, whatever its header says."""
AUDIO_BYTES_PER_UNIT: Final = 1_600
"""Ten tokens per second at 16 kB per second of ordinary MP3; uncompressed sound is overcounted, never
undercounted."""
TEXT_BYTES_PER_UNIT: Final = 4
PDF_BYTES_PER_UNIT: Final = 20
"""A page has about 40 kB and costs about 2,000 tokens."""
MAX_FILE_UNITS: Final = 300_000
"""100 pages, the most that providers accept, at no more than 3,000 tokens each."""


MediaKind = Literal["image", "audio", "file"]


class MediaSource(NamedTuple):
    """An image, sound or file, independent of the dialect."""

    kind: MediaKind
    mime: str = ""
    data: str = ""
    """Base64, a data URL, or the text of a plain document."""
    url: str = ""
    name: str = ""
    plain: bool = False
    """Whether `data` is text, not Base64."""
    body: int = 0
    """Where the Base64 begins inside `data`: a data URL is stored uncopied."""

    @property
    def base64(self) -> str:
        return self.data[self.body :]

    @property
    def data_url(self) -> str:
        return f"data:{self.mime};base64,{self.base64}" if self.data and not self.plain else self.url


def media_units(found: MediaSource) -> int:
    encoded = len(found.data) - found.body
    if found.kind == "image":
        return _image_units(found) if encoded else DEFAULT_MEDIA_UNITS
    if not encoded:
        return DEFAULT_MEDIA_UNITS
    count = encoded if found.plain else encoded * 3 // 4
    if found.kind == "audio":
        return max(1, count // AUDIO_BYTES_PER_UNIT)
    if found.plain or found.mime.startswith("text/"):
        return max(1, count // TEXT_BYTES_PER_UNIT)
    return min(MAX_FILE_UNITS, max(DEFAULT_MEDIA_UNITS, count // PDF_BYTES_PER_UNIT))


def _image_units(found: MediaSource) -> int:
    pixels = image_dimensions(found.data, found.body)
    if pixels is None:
        return DEFAULT_MEDIA_UNITS
    width, height = pixels
    return min(MAX_IMAGE_UNITS, -(-width * height // PIXELS_PER_UNIT))


def image_dimensions(data: str, start: int = 0) -> tuple[int, int] | None:
    """Return width and height of the Base64 image that begins at `start`, None if its header cannot be read."""

    def read(offset: int, count: int) -> bytes:
        """Decode bytes at an offset without decoding the bytes before them."""
        first = start + offset // 3 * 4
        last = start + (offset + count + 2) // 3 * 4
        decoded = b64decode(data[first:last], validate=True)
        return decoded[offset % 3 : offset % 3 + count]

    try:
        size = _read_dimensions(read)
    except (ValueError, IndexError):
        return None
    return size if size is not None and min(size) > 0 else None


def _read_dimensions(read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    head = read(0, 30)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    if head.startswith((b"GIF87a", b"GIF89a")):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP" and len(head) == 30:
        return _webp(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg(read)
    return None


def _webp(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8 ":
            width, height = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case _:
            return None


def _jpeg(read: Callable[[int, int], bytes]) -> tuple[int, int] | None:
    """Return the size from the start-of-frame segment; segments before it, such as previews, are skipped."""
    offset = 2
    for _ in range(64):
        segment = read(offset, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        if segment[1] in range(0xC0, 0xD0) and segment[1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(segment[7:9]), int.from_bytes(segment[5:7])
        offset += 2 + int.from_bytes(segment[2:4])
    return None
