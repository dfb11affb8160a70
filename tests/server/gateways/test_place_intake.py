"""Intake of messages: order in each place, and pieces of one message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from foveal.server import ChatPlace
from foveal.server.gateways.incoming import ChatAuthor, IncomingFile, IncomingMessage, QuotedText
from foveal.server.gateways.place_intake import MessagePiece, PlaceIntake, continues, join
from support.gated_provider import run

PLACE = ChatPlace(-100)


def piece(
    key: str, text: str = "text", *, user: int = 42, place: ChatPlace = PLACE, **more: object
) -> MessagePiece:
    message = IncomingMessage(key=key, place=place, user=user, text=text)
    return MessagePiece(message=message, **more)  # type: ignore[arg-type]


class Accepted:
    """Collects accepted messages as (key, text); `hold` delays those of a place."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        self.joined: list[list[str]] = []
        self.holds: dict[ChatPlace, asyncio.Event] = {}
        self.decided: dict[str, list[str]] = {}

    async def accept(self, message: IncomingMessage) -> None:
        if message.place in self.holds:
            await self.holds[message.place].wait()
        self.messages.append((message.key, message.text))

    async def join_keys(self, place: ChatPlace, keys: Sequence[str]) -> list[str]:
        self.joined.append(list(keys))
        return self.decided.get(keys[0], list(keys))


@run
async def test_pieces_of_a_text_become_one_message() -> None:
    seen = Accepted()
    intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=60)
    parts = [piece("1", "one", joint=""), piece("2", "two", joint="\n"), piece("3", "three")]
    await asyncio.gather(*(intake.put(part) for part in parts))
    assert seen.messages == [("1", "onetwo\nthree")]
    assert seen.joined == [["1", "2", "3"]]


@run
async def test_the_wait_for_a_piece_ends_and_other_places_do_not_wait() -> None:
    seen = Accepted()
    intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=0.05)
    first = intake.put(piece("1", joint=""))
    await intake.put(piece("2", place=ChatPlace(7)))
    assert [key for key, _ in seen.messages] == ["2"]
    await first
    await intake.put(piece("3"))
    assert [key for key, _ in seen.messages] == ["2", "1", "3"]


@run
async def test_a_message_of_another_user_neither_ends_nor_joins_a_text() -> None:
    seen = Accepted()
    intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=60)
    parts = [piece("1", "one", joint=""), piece("2", "lol", user=7), piece("3", "two")]
    await asyncio.gather(*(intake.put(part) for part in parts))
    assert seen.messages == [("1", "onetwo"), ("2", "lol")]


@run
async def test_only_what_continues_a_message_for_the_bot_is_taken_of_other_messages() -> None:
    seen = Accepted()
    intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=60)
    parts = [
        piece("0", "chatter", is_addressed=False),
        piece("1", "one", joint=""),
        piece("2", "two", is_addressed=False),
        piece("3", "chatter", user=7, is_addressed=False),
    ]
    await asyncio.gather(*(intake.put(part) for part in parts))
    assert seen.messages == [("1", "onetwo")]


@run
async def test_an_album_is_for_the_bot_if_one_of_its_messages_is() -> None:
    seen = Accepted()
    intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=0.05)
    parts = [
        piece("1", "", album="a", is_addressed=False),
        piece("2", "What is this?", album="a"),
        piece("3", "", album="b", is_addressed=False),
    ]
    await asyncio.gather(*(intake.put(part) for part in parts))
    assert seen.messages == [("1", "What is this?")]


@run
async def test_pieces_are_those_that_were_recorded_before() -> None:
    seen = Accepted()
    seen.decided = {"1": ["1", "2"]}
    intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=60)
    parts = [piece("1", "one", joint=""), piece("2", "two", joint=""), piece("3", "three")]
    await asyncio.gather(*(intake.put(part) for part in parts))
    assert seen.messages == [("1", "onetwo"), ("3", "three")]


@run
async def test_closing_accepts_what_has_arrived_or_leaves_it_to_the_chat_app() -> None:
    kept, dropped = Accepted(), Accepted()
    for seen, drops in ((kept, False), (dropped, True)):
        intake = PlaceIntake(seen.accept, seen.join_keys, wait_s=60)
        intake.put(piece("1", "one", joint=""))
        await asyncio.sleep(0.01)
        await intake.close(drops_waiting=drops)
    assert kept.messages == [("1", "one")]
    assert dropped.messages == []


@run
async def test_a_message_that_cannot_be_accepted_does_not_stop_the_next() -> None:
    accepted = list[str]()

    async def accept(message: IncomingMessage) -> None:
        if message.text == "bad":
            raise RuntimeError
        accepted.append(message.text)

    intake = PlaceIntake(accept, Accepted().join_keys)
    await asyncio.gather(intake.put(piece("1", "bad")), intake.put(piece("2", "good")))
    assert accepted == ["good"]


def test_what_continues_a_text() -> None:
    first = piece("1", joint="", sent_at=10)
    second = piece("2", sent_at=11)
    reply = QuotedText(kind="reply", text="x")
    forward = QuotedText(kind="forward", text="x", author=ChatAuthor("Eve"))
    image = IncomingFile(name="a.png", mime="image/png")
    assert continues(first, second)
    assert not continues(replace(first, joint=None), second)
    assert not continues(first, replace(second, sent_at=13))
    assert not continues(first, piece("2", user=7, sent_at=11))
    assert not continues(first, piece("2", "/stop", sent_at=11))
    assert not continues(first, piece("2", place=ChatPlace(-100, 7), sent_at=11))
    assert not continues(first, replace(second, album="a"))
    for more in ({"quotes": (reply,)}, {"quotes": (forward,)}, {"files": (image,)}):
        assert not continues(first, replace(second, message=replace(second.message, **more)))


def test_the_pieces_of_a_forwarded_text_are_one_quote() -> None:
    parts = [
        replace(
            one,
            message=replace(
                one.message,
                text="",
                quotes=(QuotedText(kind="forward", text=text, author=ChatAuthor("Eve")),),
            ),
        )
        for one, text in ((piece("1", joint=""), "one"), (piece("2"), "two"))
    ]
    assert continues(*parts)
    assert join(parts).quotes == (QuotedText(kind="forward", text="onetwo", author=ChatAuthor("Eve")),)


def test_an_album_has_all_files_and_the_caption() -> None:
    files = [IncomingFile(name=f"{n}.png", mime="image/png") for n in range(3)]
    parts = [
        MessagePiece(
            message=replace(piece(str(n), "Look." if n == 0 else "").message, files=(file,)), album="a"
        )
        for n, file in enumerate(files)
    ]
    whole = join(parts)
    assert (whole.key, whole.text, whole.files) == ("0", "Look.", tuple(files))
