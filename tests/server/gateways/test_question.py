"""Mode `confirm` in the bots: the question with yes and no, the limit, and the colours of the footer."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from foveal.config import load
from foveal.core.engine.report import Report
from foveal.core.log.events import REDUCTIONS
from foveal.server import ChatPlace, LiveSession, Pairing, Service
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.incoming import IncomingMessage
from foveal.server.gateways.outgoing import AGREE_ACTION, DECLINE_ACTION, QUESTION_BUTTONS, ChannelMessage
from foveal.testing import Scripted
from support.effort import rest_in_soak
from support.gated_provider import run
from support.provided import provided

CONFIRMED = {"window": 6_000, "compaction.mode": "confirm", "compaction.threshold": 0.9}
"""The example of docs/reference/config.md."""


class Chat:
    """One chat with the bot, whose model writes answers of 40 words."""

    def __init__(self, service: Service, *, sent: int = 0) -> None:
        allowed = frozenset({42})
        pairing = Pairing(service.runtime.database)
        self._chats = ChatSessions(service, pairing, platform="telegram", allowed=allowed)
        self._tenant = service.tenant("telegram")
        self._sent = sent

    async def say(self, text: str = "Go on.") -> list[ChannelMessage]:
        self._sent += 1
        message = IncomingMessage(key=f"telegram-{self._sent}", place=ChatPlace(42), user=42, text=text)
        return [reply async for reply in (await self._chats.accept(message)).replies]

    async def press(self, action: str) -> str:
        answer = await self._chats.press_button(place=ChatPlace(42), user=42, action=action)
        (reply,) = [reply async for reply in answer.replies]
        return reply.text

    async def live(self) -> LiveSession:
        return await self._tenant.ensure("telegram-42")

    async def report(self) -> Report:
        return await (await self.live()).report()

    async def reductions(self) -> list[str]:
        """Return the rules of the reductions so far."""
        events = await (await self.live()).events()
        return [event.fact.rule for event in events if isinstance(event.fact, REDUCTIONS)]

    async def until_asked(self) -> ChannelMessage:
        for _ in range(150):
            (reply,) = await self.say()
            if reply.buttons == QUESTION_BUTTONS:
                assert await self.reductions() == []
                return reply
        raise AssertionError("no question")


@asynccontextmanager
async def chatting(folder: Path, *, sent: int = 0, **settings: Any) -> AsyncIterator[Chat]:
    """Chat in a folder, in which `sent` messages were sent before."""
    answers = [f"Answer {n}: " + " ".join(f"word{n}x{i}" for i in range(40)) for n in range(sent, sent + 200)]
    config = load(folder, flags=settings, environ={}, user_folder=folder / "no-config")
    async with Service.open(
        config, folder=folder / "served", environment={}, make_provider=provided(Scripted(*answers))
    ) as service:
        yield Chat(service, sent=sent)


class Asked(NamedTuple):
    folder: Path
    reply: ChannelMessage
    """The first reply with a question."""


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A conversation up to its first question, of which each test gets a copy."""
    folder = tmp_path_factory.mktemp("asked")

    async def ask() -> ChannelMessage:
        async with chatting(folder, **CONFIRMED) as chat:
            return await chat.until_asked()

    return Asked(folder, asyncio.run(ask()))


@asynccontextmanager
async def continuing(asked: Asked, folder: Path) -> AsyncIterator[Chat]:
    """Continue a copy of the conversation."""
    shutil.copytree(asked.folder, folder, dirs_exist_ok=True)
    async with chatting(folder, sent=1_000, **CONFIRMED) as chat:
        yield chat


@pytest.mark.long
@run
async def test_after_no_the_question_comes_with_each_answer_until_the_limit(
    asked_once: Asked, tmp_path: Path
) -> None:
    async with continuing(asked_once, tmp_path) as chat:
        asked = [asked_once.reply]
        live = await chat.live()
        while True:
            report = await live.report()
            assert report.used > report.act
            assert await chat.press(DECLINE_ACTION) == texts.DECLINED
            assert (await chat.say("/context"))[0].buttons == (), "not in between"
            replies = await chat.say()
            if len(replies) > 1:
                break
            assert replies[0].buttons == QUESTION_BUTTONS
            assert await chat.reductions() == []
            asked += replies
        assert len(asked) >= 2, "once after each answer"
        assert re.match(
            r"🔴 Context: [\d,]+/6,000 \(([\d.]+ %)\)\n(⏳ .*\n)?"
            r"⚠️ The context window is full: \1, and a request may take at most [\d.]+ %\. "
            r"Shall I shorten our conversation now\?$",
            asked[0].footer,
        )
        assert "⏳ The next turn needs about " in asked[-1].footer, "told before it is likely"
        before, answer = replies
        assert re.match(
            r"⚠️ The next request needs [\d,]+ tokens and at most [\d,]+ fit: older turns are reduced now\. "
            r"You are told what was reduced, and how to undo it\.$",
            before.text,
        )
        assert set(await chat.reductions()) == {"economy: no consent"}
        assert re.match(
            r"🗜 I summarised older messages: [\d,]+ → [\d,]+ tokens\. /undo e\d+ takes it back\.\n",
            answer.footer,
        )
        assert answer.text.startswith("Answer ")
        (undone,) = await chat.say("/undo")
        assert re.fullmatch(
            r"↩️ I took back a summary \(e\d+\): the model sees it all again\. The context window is too full now "
            r"\([\d.]+ %, and a request may take at most [\d.]+ %\), so I shorten older messages again "
            r"before the next answer\.",
            undone.text,
        )
        again, answer = await chat.say()
        assert again.text.startswith("⚠️ The next request needs ")
        assert "🗜 I summarised older messages: " in answer.footer


@pytest.mark.long
@run
async def test_a_message_that_can_never_fit_is_told_once_with_one_limit(
    asked_once: Asked, tmp_path: Path
) -> None:
    async with continuing(asked_once, tmp_path) as chat:
        (refused,) = await chat.say("huge " * 9_000)
        limit = (await (await chat.live()).report()).limit
        assert re.match(
            rf"❌ Sorry, I have no answer: your message takes [\d,]+ tokens, .* at most {limit:,}\. "
            r"It stays in our conversation",
            refused.text,
        )


@run
async def test_a_message_that_is_too_large_can_be_taken_out(tmp_path: Path) -> None:
    async with chatting(tmp_path, window=6_000) as chat:
        used = (await chat.report()).used if await chat.say() else 0
        (refused,) = await chat.say("huge " * 9_000)
        (button,) = refused.buttons
        assert button.label == "Take it out"
        assert await chat.press(button.action) == texts.TAKEN_OUT
        assert (await chat.report()).used == used
        (answer,) = await chat.say("Hello.")
        assert "✂️" not in answer.footer
        assert await chat.press(button.action) == texts.NOT_TAKEN_OUT


@run
async def test_a_message_that_is_too_large_stays_as_the_reply_says(tmp_path: Path) -> None:
    async with chatting(tmp_path, window=6_000) as chat:
        await chat.say()
        await chat.say("huge " * 9_000)
        (answer,) = await chat.say("Hello.")
        assert "✂️ I clipped a long text to " in answer.footer
        assert "\nOf one long text the model sees only a part; " in (await chat.say("/context"))[0].text
        assert "I took back a clipped text (e" in (await chat.say("/undo"))[0].text


@pytest.mark.long
@run
async def test_the_tokens_of_the_tools_for_looking_back_are_told(tmp_path: Path) -> None:
    async with chatting(tmp_path, window=6_000) as chat:
        while "🗜" not in (answer := (await chat.say())[0]).footer:
            pass
        tools = (await chat.report()).totals["tools"]
        assert (
            f"\n🔎 The model can now look up what it no longer sees, with tools that take {tools:,} tokens."
            in answer.footer
        )
        assert tools > 100
        while "🗜" not in (answer := (await chat.say())[0]).footer:
            assert "🔎" not in answer.footer
        assert "🔎" not in answer.footer, "they came with the first reduction"


@pytest.mark.long
@run
async def test_the_tokens_after_a_yes_are_those_of_the_footer_and_of_context(
    asked_once: Asked, tmp_path: Path
) -> None:
    async with continuing(asked_once, tmp_path) as chat:
        said = await chat.press(AGREE_ACTION)
        report = await chat.report()
        assert f" → {report.used:,} tokens" in said
        assert report.totals["tools"] > 100
        await chat.say("/undo")
        assert (await chat.report()).totals["tools"] == 0, "nothing is left to look up"
        said = await chat.press(AGREE_ACTION)
        assert f" → {(await chat.report()).used:,} tokens" in said
        (answer,) = await chat.say()
        assert "🔎" not in answer.footer, "the numbers of the yes have them"


@pytest.mark.parametrize(
    ("policy", "count", "names_it"),
    rest_in_soak(
        [
            ("economy", 3, True),
            ("recent-summary", 3, False),
            ("economy", 3, False),
            ("economy", 6, True),
            ("economy", 6, False),
            ("recent-summary", 3, True),
            ("recent-summary", 6, True),
            ("recent-summary", 6, False),
        ],
        kept=2,
    ),
)
@run
async def test_after_a_yes_one_undo_takes_back_all_that_was_made(
    tmp_path: Path, policy: str, count: int, *, names_it: bool
) -> None:
    async with chatting(tmp_path, **CONFIRMED, **{"context.policy": policy}) as chat:
        for _ in range(count):
            await chat.say(" ".join(f"n{number}" for number in range(1_200 // count)))
        while (await chat.say())[-1].buttons != QUESTION_BUTTONS:
            pass
        said = await chat.press(AGREE_ACTION)
        made = len(await chat.reductions())
        assert made == count - 1
        found = re.fullmatch(
            r"🗜 Shortened: [\d,]+ → [\d,]+ tokens \(\d+ % less\)\. (/undo e\d+) takes it back\.", said
        )
        assert found
        undone = (await chat.say(found[1] if names_it else "/undo"))[0].text
        assert undone.startswith(f"↩️ I took back {made} clipped texts (e")
        assert (await chat.report()).reduced.clipped == 0


@run
async def test_one_huge_message_does_not_make_the_next_turn_huge(tmp_path: Path) -> None:
    async with chatting(tmp_path, **CONFIRMED) as chat:
        for _ in range(6):
            await chat.say()
        report = await chat.report()
        await chat.say("huge " * (report.act - report.used + 150))
        report = await chat.report()
        assert report.question
        assert report.turn_tokens is not None
        assert report.turn_tokens < 250


@pytest.mark.parametrize(
    ("policy", "threshold"),
    rest_in_soak([("handoff", 0.5), ("recent-summary", 0.5), ("recent-summary", 0.7)]),
)
@run
async def test_the_threshold_that_a_text_names_is_the_one_that_acts(
    tmp_path: Path, policy: str, threshold: float
) -> None:
    settings = {"context.policy": policy, "compaction.threshold": threshold}
    async with chatting(tmp_path, window=6_000, **settings) as chat:
        footers, before = list[tuple[str, str]](), await chat.report()
        while "🗜" not in (answer := (await chat.say())[0]).footer:
            before = await chat.report()
            footers.append((answer.footer, before.percent(before.act)))
        ((warned, act),) = [footer for footer in footers if "⚠️" in footer[0]]
        assert f" would take more than {act}." in warned
        (context,), now = await chat.say("/context"), await chat.report()
        assert f" would take more than {now.percent(now.act)}." in context.text
        assert before.act < threshold * 6_000
        # A summary is written in the background: it may take the next turns, and on a loaded machine it does.
        assert abs(before.used - before.act) < 5 * (before.turn_tokens or 0), "it came when the text says"


@run
async def test_economy_names_the_limit_of_a_request(tmp_path: Path) -> None:
    async with chatting(tmp_path, window=6_000) as chat:
        await chat.say()
        report, (context,) = await chat.report(), await chat.say("/context")
        when = "as soon as it pays off, at the latest before a request would take more than"
        assert f"{when} {report.percent(report.limit)}." in context.text


@run
async def test_compact_says_what_fills_the_window_if_there_is_nothing_to_summarise(tmp_path: Path) -> None:
    async with chatting(tmp_path, **CONFIRMED) as chat:
        answer = (await chat.say("huge " * 4_400))[-1]
        (told,) = re.findall(r"⏳ .*", answer.footer)
        report = await (await chat.live()).report()
        most = f"your messages take the most ({report.totals['user']:,} tokens)."
        assert told.endswith(f" No turn is left to summarise, only long texts can be clipped: {most}")
        (reply,) = await chat.say("/compact the bounds")
        assert reply.text.endswith(f" is worth a summary. In the context window, {most}")


@pytest.mark.long
@pytest.mark.parametrize("policy", rest_in_soak(["handoff", "economy", "rolling", "recent", "confirm"]))
@run
async def test_a_yes_reduces_what_the_policy_reduces(tmp_path: Path, policy: str) -> None:
    async with chatting(tmp_path, **CONFIRMED, **{"context.policy": policy}) as chat:
        await chat.until_asked()
        said = await chat.press(AGREE_ACTION)
        assert re.match(
            r"🗜 (Summarised|Shortened).*: [\d,]+ → [\d,]+ tokens \(\d+ % less\)\. /undo e\d+ takes it back\.",
            said,
        )
        assert set(await chat.reductions()) == {f"{policy}: agreed"}
        report = await (await chat.live()).report()
        assert report.question == ""
        (reply,) = await chat.say()
        assert reply.footer.startswith(("🟢 Context: ", "🟡 Context: ")), (
            "what was agreed to is not reported again"
        )
        for action in (AGREE_ACTION, DECLINE_ACTION):
            assert await chat.press(action) == texts.compaction_not_needed(await (await chat.live()).report())


@pytest.mark.long
@run
async def test_undo_after_a_yes_asks_after_the_next_answer(asked_once: Asked, tmp_path: Path) -> None:
    async with continuing(asked_once, tmp_path) as chat:
        await chat.press(AGREE_ACTION)
        (undone,) = await chat.say("/undo")
        assert (undone.footer[0], undone.buttons) == ("🔴", ())
        replies = await chat.say()
        assert replies[-1].buttons == QUESTION_BUTTONS


@pytest.mark.long
@run
async def test_each_colour_is_warned_of_once(tmp_path: Path) -> None:
    async with chatting(tmp_path, window=6_000, **{"compaction.mode": "confirm"}) as chat:
        replies = [(await chat.say())[0]]
        while replies[-1].buttons != QUESTION_BUTTONS:
            replies += await chat.say()
        colours = [reply.footer[0] for reply in replies]
        assert colours == sorted(colours, key="🟢🟡🔴".index)
        assert set(colours) == set("🟢🟡🔴")
        (warned,) = [reply for reply in replies if reply.footer[0] == "🟡" and reply.buttons]
        assert re.search(
            r"\(([\d.]+ %)\)\n⚠️ Our conversation fills \1 of the context window\. "
            r"From [\d.]+ % on, I ask whether to shorten it\.$",
            warned.footer,
        )


@run
async def test_without_confirm_no_text_speaks_of_a_question(tmp_path: Path) -> None:
    async with chatting(
        tmp_path, window=6_000, **{"compaction.mode": "off", "context.policy": "handoff"}
    ) as chat:
        while not (replies := await chat.say())[0].buttons:
            pass
        assert re.search(
            r"⚠️ Our conversation fills [\d.]+ % of the context window, and a request may take at most [\d.]+ %\. "
            r"/compact summarises older messages\.$",
            replies[0].footer,
        )
        (context,) = await chat.say("/context")
        assert "only /compact summarises older messages." in context.text


@run
async def test_a_clipped_message_of_the_user_is_always_told(tmp_path: Path) -> None:
    async with chatting(tmp_path, window=6_000) as chat:
        await chat.say("A gigantic text. " * 4_000)
        replies = await chat.say("Hello.")
        assert "✂️ I clipped a long text to " in replies[-1].footer
