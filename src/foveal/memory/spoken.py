"""Recognises requests to remember or forget something in what the user says, in eight languages.

    spoken_requests("Please remember that I use tabs.")     → remember "I use tabs."

Recognition is conservative, because a mistake plants an entry. Only a sentence that begins with the request counts
(in Japanese, one that ends with it). Questions, quotations, code and pasted text do not count, and a sentence that
only says "from now on" holds for its conversation: it counts if it names all projects or conversations too.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from foveal.core.compaction.standing.statements import split_sentences
from foveal.memory.quotes import MAX_ENTRY_CHARS, own_places, plain_lines

MAX_SPOKEN_CHARS_READ: Final = 6_000
"""Characters of the longest message in which requests are looked for: a longer one is mostly pasted."""
MAX_SPOKEN_REQUESTS: Final = 10
"""Requests of one message."""
_MIN_WORD_CHARS: Final = 2

_POLITE: Final = (
    r"(?:(?:please|pls|ok|okay|and|also|hey|hi|so|btw|by the way|oh|great|thanks|bitte|und|ach ja|übrigens"
    r"|s'il (?:te|vous) plaît|et|por favor|y|e|ah|пожалуйста|и|кстати)[,!.]?\s+)*"
)
_REMEMBER: Final = re.compile(
    rf"""{_POLITE}(?:
        (?:please\s+)?(?:always\s+)?remember\b
            (?:\s+(?:this|the\s+following|please|for\s+(?:later|next\s+time|the\s+future)))*
            (?:\s*:\s*|\s*,?\s+that\s+
              |\s*,?\s+(?=(?:i|i'm|i've|my|we|our|never|always|to\s+always|to\s+never)\b))
      | (?:please\s+)?(?:don't|do\s+not|never)\s+(?:ever\s+)?forget\s*
            (?::\s*|,?\s+that\s+|\s+(?=(?:i|i'm|my|we|our)\b))
      | please\s+(?:remember|keep\s+in\s+memory)\s*:?\s+(?:that\s+)?
      | merke?\s+dir(?:\s+bitte)?\s*(?::\s*|,?\s+dass\s+)
      | merken\s+sie\s+sich(?:\s+bitte)?\s*(?::\s*|,?\s+dass\s+)
      | (?:denke?|denken\s+sie)\s+(?:bitte\s+)?daran\s*(?::\s*|,?\s+dass\s+)
      | (?:vergiss|vergessen\s+sie)\s+(?:bitte\s+)?nicht\s*(?::\s*|,?\s+dass\s+)
      | (?:souviens-toi|souvenez-vous|rappelle-toi|rappelez-vous|retiens|retenez|n'oublie[sz]?\s+pas)\s*
            (?::\s*|\s+(?:bien\s+)?qu(?:e\s+|'))
      | (?:recuerda|recuerde|recordad|no\s+olvides|no\s+olvide|no\s+te\s+olvides\s+de|acuérdate\s+de)\s*
            (?::\s*|\s+que\s+)
      | (?:lembre(?:-se)?|lembra(?:-te)?|não\s+(?:se\s+)?esque(?:ça|ças|ce))(?:\s+de)?\s*(?::\s*|\s+que\s+)
      | (?:запомни(?:те)?|не\s+забудь(?:те)?|не\s+забывай(?:те)?)(?:\s*,?\s*пожалуйста)?\s*(?::\s*|,?\s+что\s+)
      | (?:请|請)?(?:你)?(?:记住|記住|记得|記得|别忘了|別忘了|不要忘记|不要忘記)\s*[，,：:]?\s*(?!吗|嗎)
    )(?P<what>.+)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_REMEMBER_JAPANESE: Final = re.compile(
    r"(?P<what>.+?)(?:という?こと|こと|のを|と)?(?:を|は)?(?:覚えて(?:おいて)?|記憶して(?:おいて)?|忘れないで)(?:ください|下さい|ね|。|！)*$"
)
_FORGET: Final = re.compile(
    rf"""{_POLITE}(?:
        (?:please\s+)?(?:you\s+can\s+)?forget\s+(?:that\s+(?=\w+\s+\w)|what\s+i\s+(?:said|told\s+you)\s+about\s+|about\s+|(?=(?:my|our)\s+\w))
      | (?:vergiss|vergessen\s+sie)(?:\s+bitte)?\s*(?:,?\s+dass\s+|,?\s+was\s+ich\s+(?:über|zu[rm]?)\s+)
      | (?:oublie|oubliez)\s+(?:que\s+|qu'|ce\s+que\s+j'ai\s+dit\s+(?:sur|de)\s+)
      | (?:olvida|olvide|olvídate\s+de)\s+(?:que\s+|lo\s+que\s+dije\s+(?:de|sobre)\s+)
      | (?:esqueça|esquece)\s+(?:que\s+|o\s+que\s+eu\s+disse\s+sobre\s+)
      | (?:забудь|забудьте)\s*,?\s+(?:что\s+|о\s+том,?\s+что\s+|про\s+)
      | (?:请|請)?(?:忘记|忘記|忘掉)(?!了)\s*(?:我说的|我說的)?
    )(?P<what>.+)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_FORGET_JAPANESE: Final = re.compile(
    r"(?P<what>.+?)(?:という?こと|こと|という話|のこと)?(?:を|は)忘れて(?:ください|下さい|ね|。|！)*$"
)
_LASTING: Final = re.compile(
    r"\b(?:from now on|from today on|going forward|in (?:the )?future|always"
    r"|ab jetzt|ab sofort|von nun an|künftig|immer"
    r"|désormais|dorénavant|à partir de maintenant|toujours|a partir de ahora|de ahora en adelante|siempre"
    r"|a partir de agora|de agora em diante|sempre|отныне|впредь|с этого момента|всегда)\b"
    r"|从现在(?:起|开始)|從現在(?:起|開始)|以后|以後|今后|今後|これから|常に|いつも",
    re.IGNORECASE,
)
_EVERYWHERE: Final = re.compile(
    r"\b(?:(?:in|for|across) (?:all|every)(?: of)?(?: my| our| the| future)*"
    r" (?:projects?|repos|repositories|repository|sessions?|chats?|conversations?)"
    r"|(?:in|für) (?:allen?|jedem)(?: meinen| unseren)? (?:projekten?|gesprächen?|sitzungen?|chats?)"
    r"|(?:dans|pour) (?:tous|toutes)(?: les| mes| nos)* (?:projets|conversations|sessions)"
    r"|(?:en|para) tod[oa]s(?: los| las| mis| nuestr[oa]s)* (?:proyectos|conversaciones|sesiones)"
    r"|(?:em|para) tod[oa]s(?: os| as| meus| minhas| nossos| nossas)* (?:projetos|conversas|sessões)"
    r"|(?:во|для) (?:всех|всём)(?: моих| наших)? (?:проектах|проектов|разговорах|разговоров|чатах))\b"
    r"|(?:所有|每个|每個|全部)(?:的)?(?:项目|項目|专案|專案|对话|對話|会话)"
    r"|(?:すべて|全て|全部)の(?:プロジェクト|会話|セッション)",
    re.IGNORECASE,
)
_QUOTATIONS: Final = {'"': '"', "“": "”", "„": "“”", "«": "»", "»": "«", "「": "」", "『": "』", "`": "`"}
"""Quotation marks that open, each with those that close it."""
_QUOTATION_MARKS: Final = (*_QUOTATIONS, "‚", "‘", "'", ">")
_ASKS: Final = ("?", "？", "؟")
_ASKS_UNSPACED: Final = re.compile(r"[吗嗎][。？?]?$|ますか[。？?]?$")
_TAKES_BACK: Final = re.compile(r"[,;.!]")


class SpokenRequest(NamedTuple):
    """A request of the user to remember or to forget something.

    Examples:
        ```python
        from foveal.memory import SpokenRequest, spoken_requests

        sentence = "Please remember that I use tabs."
        assert spoken_requests(sentence) == (SpokenRequest("remember", "I use tabs.", sentence, False),)
        ```
    """

    action: Literal["remember", "forget"]
    """What the user asks for."""
    text: str
    """What to remember, or the words about what to forget."""
    quote: str
    """The sentence in which the user said it."""
    is_everywhere: bool
    """Whether the user named all projects or conversations."""


def spoken_requests(text: str) -> tuple[SpokenRequest, ...]:
    """Return the requests to remember or to forget in a message.

    Args:
        text: The message.

    Examples:
        ```python
        from foveal.memory import spoken_requests

        (request,) = spoken_requests("Fix the parser. And remember that I use tabs.")
        assert (request.action, request.text) == ("remember", "I use tabs.")
        assert spoken_requests("Do you remember that I use tabs?") == ()
        ```
    """
    text = plain_lines(text)
    if len(text) > MAX_SPOKEN_CHARS_READ:
        return ()
    found: list[SpokenRequest] = []
    for start, end in split_sentences(text):
        sentence = text[start:end]
        request = _request(" ".join(sentence.split()))
        if request is not None and not _is_quoted(text, start) and _is_own(text, sentence):
            found.append(request)
            if len(found) == MAX_SPOKEN_REQUESTS:
                break
    return tuple(found)


def _request(sentence: str) -> SpokenRequest | None:
    if sentence.endswith(_ASKS) or _ASKS_UNSPACED.search(sentence) or len(sentence) > MAX_ENTRY_CHARS:
        return None
    is_everywhere = _EVERYWHERE.search(sentence) is not None
    for pattern in (_REMEMBER, _REMEMBER_JAPANESE):
        if (match := pattern.match(sentence)) and _has_words(match["what"]):
            return SpokenRequest("remember", match["what"].strip(" ,:，、"), sentence, is_everywhere)
    for pattern in (_FORGET, _FORGET_JAPANESE):
        if (match := pattern.match(sentence)) and _has_words(match["what"]):
            # "Forget that I said so, use tabs" is an order.
            what = _TAKES_BACK.split(match["what"])[0]
            return SpokenRequest("forget", what.strip(" ,:，、。"), sentence, is_everywhere)
    if is_everywhere and _LASTING.search(sentence):
        return SpokenRequest("remember", sentence, sentence, is_everywhere)
    return None


def _has_words(text: str) -> bool:
    return sum(character.isalnum() for character in text) >= _MIN_WORD_CHARS


def _is_quoted(text: str, start: int) -> bool:
    """Return whether a sentence begins with a quotation mark, inside a quotation, or after a line that announces
    one with a colon."""
    if text[start:].startswith(_QUOTATION_MARKS) or text[:start].rstrip().endswith((":", "：")):
        return True
    opened: list[str] = []
    for mark in text[text.rfind("\n\n", 0, start) + 1 : start]:
        if opened and mark in _QUOTATIONS[opened[-1]]:
            opened.pop()
        elif mark in _QUOTATIONS:
            opened.append(mark)
    return bool(opened)


def _is_own(text: str, sentence: str) -> bool:
    return next(own_places(text, re.compile(re.escape(sentence))), None) is not None
