"""What Telegram updates mean for the bot: texts, quotes, files, topics, and what is not read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from telegram import Update, User

from foveal.server import ChatPlace
from foveal.server.gateways.incoming import EDITS, ChatAuthor, IncomingFile, IncomingMessage, QuotedText
from foveal.server.gateways.place_intake import MessagePiece
from foveal.server.gateways.telegram.updates import ButtonPressed, ParsedUpdate, parse_update
from support.telegram_stand_in import NAME, Json
from support.telegram_users import TelegramUsers, external_reply, origin

USER = 42
ME = User(id=110201543, first_name="Foveal", is_bot=True, username=NAME)
OWN = {
    "message_id": 3,
    "date": 1,
    "chat": {"id": -100, "type": "supergroup"},
    "from": ME.to_dict(),
    "text": "Hi.",
}
TALK = IncomingMessage(
    key="telegram-1",
    place=ChatPlace(-100),
    user=USER,
    text="",
    reply_to=1_001,
    place_name="Group",
    speaker=ChatAuthor("A", USER),
)
OWN_QUOTE = QuotedText(kind="reply", text="Hi.", is_own=True)


class Users(TelegramUsers):
    """Users whose updates are parsed at once."""

    def give(self, update: Json) -> Json:
        return {"update_id": 1, **update}


def parse(update: Json) -> ParsedUpdate:
    return parse_update(Update.de_json(update), ME)  # type: ignore[arg-type]


def heard(
    text: str | None, *, chat: int | None = None, users: Users | None = None, **more: Any
) -> MessagePiece:
    piece = parse((users or Users()).hear(text, user=USER, chat=chat, **more))
    assert isinstance(piece, MessagePiece)
    return piece


@pytest.mark.parametrize(
    ("text", "fields", "meant"),
    [
        ("talk among people", {}, None),
        (f"@{NAME}, hello", {}, "hello"),
        (f"hello @{NAME.upper()}", {}, f"hello @{NAME.upper()}"),
        ("hello @other_bot", {}, None),
        (f"@{NAME}", {}, f"@{NAME}"),
        ("yes", {"reply_to": OWN}, "yes"),
        ("/context", {}, "/context"),
        (f"/compact@{NAME} the plan", {}, "/compact the plan"),
        (f"/weather@{NAME}", {}, "/weather"),
    ],
)
def test_in_a_group_a_message_to_the_bot_is_addressed(text: str, fields: Json, meant: str | None) -> None:
    piece = heard(text, chat=-100, **fields)
    quotes = (OWN_QUOTE,) if fields else ()
    assert piece.is_addressed == (meant is not None)
    assert piece.message == replace(TALK, text=text if meant is None else meant, quotes=quotes)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("/compact@other_bot", {}),
        ("/weather", {}),
        ("x", {"from": {"id": 5, "is_bot": True, "first_name": "B"}}),
        (None, {"new_chat_title": "x"}),
    ],
)
def test_other_messages_are_ignored(text: str | None, fields: Json) -> None:
    assert parse(Users().hear(text, user=USER, chat=-100, **fields)) is None


def test_posts_of_channels_are_ignored() -> None:
    update = Users().hear("x", user=USER, chat=-100, reply_to=OWN)
    update["message"]["chat"] = {"id": -5, "type": "channel", "title": "c"}
    assert parse(update) is None


def test_a_topic_is_a_place_of_its_own_and_general_is_the_chat() -> None:
    assert heard(f"@{NAME} hi", chat=-100, topic=7).message.place == ChatPlace(-100, 7)
    assert heard(f"@{NAME} hi", chat=-100, topic=1).message.place == ChatPlace(-100)
    in_thread_of_replies = heard("yes", chat=-100, reply_to=OWN)
    assert in_thread_of_replies.message.place == ChatPlace(-100)


def test_a_place_has_the_names_of_group_and_topic() -> None:
    named = [
        heard(f"@{NAME} hi", **place).message.place_name  # type: ignore[arg-type]
        for place in (
            {},
            {"chat": -100},
            {"chat": -100, "topic": 7},
            {"chat": -100, "topic": 7, "reply_to": OWN},
        )
    ]
    assert named == ["", "Group", "Group / Topic", "Group / topic 7"]


def test_the_message_that_created_a_topic_is_not_quoted() -> None:
    assert heard(f"@{NAME} hi", chat=-100, topic=7).message.quotes == ()


def test_a_button_in_a_topic_belongs_to_the_topic() -> None:
    users = Users()
    message = users.hear("x", user=USER, chat=-100, topic=7)["message"]
    pressed = parse(users.press("compact", user=USER, message=message))
    assert isinstance(pressed, ButtonPressed)
    assert pressed.place == ChatPlace(-100, 7)


def test_of_an_old_button_in_a_forum_the_topic_is_unknown() -> None:
    users = Users()
    for topic, place in ((None, ChatPlace(-100)), (7, None)):
        old = {"chat": users.chat_of(-100, topic=topic), "message_id": 5, "date": 0}
        pressed = parse(users.press("compact", user=USER, message=old))
        assert isinstance(pressed, ButtonPressed)
        assert pressed.place == place


def test_a_private_chat_names_no_speaker() -> None:
    assert heard("Hello.").message == IncomingMessage(
        key="telegram-1", place=ChatPlace(USER), user=USER, text="Hello."
    )


# ── quotes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reply_quotes_the_message_or_the_chosen_part_of_it() -> None:
    users = Users()
    users.names[7] = "Bob"
    first = users.hear("Tea at five? Or six?", user=7, chat=-100)
    whole = QuotedText(kind="reply", text="Tea at five? Or six?", author=ChatAuthor("Bob", 7))
    assert heard(f"@{NAME} yes", chat=-100, users=users, reply_to=first).message.quotes == (whole,)
    part = heard(f"@{NAME} yes", chat=-100, users=users, reply_to=first, quote="Or six?")
    assert part.message.quotes == (replace(whole, text="Or six?"),)


def test_a_reply_to_another_chat_quotes_the_chosen_part() -> None:
    quotes = heard("Is that so?", **external_reply("Snow in July")).message.quotes
    assert quotes == (QuotedText(kind="reply", text="Snow in July", author=ChatAuthor("Eve", 99)),)


def test_a_reply_to_a_message_without_text_says_what_it_is() -> None:
    users = Users()
    photo = users.hear(None, user=7, chat=-100, **users.photo(b"x" * 99))
    voice = users.hear(None, user=7, chat=-100, **users.voice())
    found = [
        heard("?", chat=-100, users=users, reply_to=one).message.quotes[0].text for one in (photo, voice)
    ]
    assert found == ["(photo)", "(voice messages)"]


def test_a_reply_to_a_file_with_a_caption_names_both() -> None:
    users = Users()
    photo = users.hear("My cat.", user=7, chat=-100, **users.photo(b"x" * 99))
    file = users.hear("My notes.", user=7, chat=-100, **users.document("a.txt", b"One."))
    found = [heard("?", chat=-100, users=users, reply_to=one).message.quotes[0].text for one in (photo, file)]
    assert found == ["(photo) My cat.", "(file) My notes."]


@pytest.mark.parametrize(
    ("kind", "author"),
    [
        ("user", ChatAuthor("Eve", 99)),
        ("hidden_user", ChatAuthor("Eve")),
        ("chat", ChatAuthor("Eve", -1_009)),
        ("channel", ChatAuthor("Eve", -1_009)),
    ],
)
def test_a_forwarded_text_is_quoted_and_runs_no_command(kind: str, author: ChatAuthor) -> None:
    message = heard("/new", forward=origin(kind)).message
    assert message.text == ""
    assert message.quotes == (QuotedText(kind="forward", text="/new", author=author),)


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "joint"),
    [
        ("x" * 3_999, None),
        ("x" * 4_000, "\n"),
        ("x" * 4_096, ""),
        ("🙂" * 2_048, ""),
        ("/new " + "x" * 4_050, None),
    ],
)
def test_a_nearly_full_text_may_be_a_piece(text: str, joint: str | None) -> None:
    assert heard(text).joint == joint


# ── files and other content ──────────────────────────────────────────────────────────────────────────────


def test_a_photo_is_taken_in_a_size_that_providers_keep() -> None:
    users = Users()
    piece = heard(
        "What is this?", users=users, album="a", **users.photo(b"x" * 1_400, width=2_560, height=1_440)
    )
    name = f"photo-{piece.message.files[0].name[6:10]}.jpg"
    file = IncomingFile(name=name, mime="image/jpeg", size=350, reference="AgAD1")
    assert (piece.message.text, piece.message.files, piece.album) == ("What is this?", (file,), "a")


def test_a_document_has_its_name_and_type() -> None:
    users = Users()
    message = heard(None, users=users, **users.document("a.txt", b"One.")).message
    assert message.files == (IncomingFile(name="a.txt", mime="text/plain", size=4, reference="AgAD0"),)


def test_other_content_is_named() -> None:
    users = Users()
    sent = (users.voice(), users.sticker(), users.location(), users.location(live_s=60))
    unread = [heard(None, users=users, **one).message.unread for one in sent]
    assert unread == [("voice messages",), ("stickers",), ("locations",), ("locations",)]


def test_an_edit_is_named_and_a_moving_location_is_no_edit() -> None:
    users = Users()
    edited = parse(users.edit(users.hear("Hello.", user=USER), "Hullo."))
    assert isinstance(edited, MessagePiece)
    assert (edited.message.text, edited.message.unread) == ("", (EDITS,))
    assert parse(users.edit(users.hear("Hello.", user=USER, chat=-100), "Hullo.")) is None
    assert parse(users.move(users.hear(None, user=USER, **users.location(live_s=60)), 1.0, 2.0)) is None
