"""Recognises requests to remember or forget something in what the user says, in eight languages.

    spoken_requests("Please remember that I use tabs.")     → remember "I use tabs."

Recognition is conservative, because a mistake plants an entry. Only a sentence that begins with the request counts
(in Japanese, also one that ends with it). Questions other than polite requests, references ("remember that function
from yesterday"), quotations, code and words of others do not count. A sentence that only says "from now on" holds
for its conversation: it counts if it names all projects or conversations too.

A message that says anything else too may quote another person: `is_only_requests` tells which are obeyed at once.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from foveal.core.compaction.standing.statements import split_sentences
from foveal.memory.quotes import is_reported, own_places, plain_lines

MAX_SPOKEN_CHARS_READ: Final = 6_000
"""Characters of the longest message in which requests are looked for: a longer one is mostly pasted."""
MAX_SPOKEN_REQUESTS: Final = 10
"""Requests of one message."""
_MIN_WORD_CHARS: Final = 2

_POLITE: Final = (
    r"(?:(?:please|pls|ok|okay|and|also|hey|hi|so|btw|by the way|oh|great|thanks|bitte|und|ach ja|übrigens"
    r"|s'il (?:te|vous) plaît|et|por favor|y|e|ah|пожалуйста|и|кстати)[,!.]?\s+)*"
)
_THANKS: Final = (
    r"please|pls|thanks(?: a lot| so much)?|thank you(?: very much| so much)?|thx|ok|okay|great|hi|hey|hello|bitte"
    r"|danke(?: dir| schön)?|vielen dank|hallo|s'il (?:te|vous) plaît|merci(?: beaucoup)?|bonjour|por favor"
    r"|(?:muchas )?gracias|hola|(?:muito )?obrigad[oa]|olá|пожалуйста|спасибо|привет|谢谢(?:你|您)?|謝謝|好的|你好"
    r"|よろしく(?:お願いします)?|お願いします|ありがとう(?:ございます)?|こんにちは"
)
_ONLY_THANKS: Final = re.compile(rf"(?:(?:{_THANKS})[\s,!.。！，、]*)+", re.IGNORECASE)
_THANKS_AFTER: Final = re.compile(rf"(?:[\s,!.。！，、]+(?:{_THANKS}))+[\s!.。！]*$", re.IGNORECASE)
_ATTRIBUTED: Final = re.compile(
    r"""[,;]\s*(?:says|said|writes|wrote|according\s+to|as\s+per|sagt|sagte|schreibt|schrieb|laut|so|dit|écrit|selon
        |dice|dijo|escribe|según|diz|disse|escreve|segundo|говорит|сказал|сказала|пишет|по\s+словам)\s+\S[^,;]*$
      | \b(?:says|said|writes|wrote)\s+(?:the\s+\w+|my\s+\w+|(?-i:[A-Z])\w+)\W*$
      | \s(?:[—–~/]|--?)\s*\S+(?:\s\S+){0,2}$
      | \((?:from|by|via|von|de|от|(?-i:[A-Z])\w+\))
      | [,.!]\s*(?:(?:best|kind|warm)\s+)?(?:regards|wishes|cheers|sincerely|yours|best,|grüße|gruß
        |(?:viele|liebe)\s+grüße|cordialement|saludos|atentamente|abraços|с\s+уважением)\b
      | によると|によれば|からの|曰く|[：:].*(?:覚えて|記憶して|忘れ)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Who said it, behind the words: "…, says the mail", "… — Eve"."""
_TASK_AFTER: Final = re.compile(
    r"[,;]?\s+(?:and\s+(?:then\s+|please\s+)?(?:(?:tell|show|give|send|help|answer|write|make|find)\s+(?:me|us)"
    r"|explain|suggest)|und\s+(?:dann\s+|bitte\s+)?(?:sag|zeig|gib|erklär|schreib|hilf|nenn)e?\s+(?:mir|uns)"
    r"|et\s+(?:dis|montre|donne|explique|écris)-moi|y\s+(?:dime|muéstrame|dame|explícame)"
    r"|e\s+(?:me\s+(?:diga|mostre|explique)|diga-me|mostre-me)|и\s+(?:скажи|покажи|объясни|напиши)(?:\s+мне)?)\b.*$",
    re.IGNORECASE | re.DOTALL,
)
"""A task behind what to remember: "… and tell me what I can eat"."""
_MAY_BE_TASK: Final = re.compile(
    r"\band\s+(?:then|please|fix|run|write|make|list|find|check|send|create|do|add|remove|update|build|test|deploy)\b"
    r"|\bund\s+(?:dann|bitte|mach\w*|schreib\w*|prüf\w*|behebe?)\b|\bet\s+(?:fais|écris|corrige|lance)\b"
    r"|\by\s+(?:haz|escribe|corrige|ejecuta)\b|\be\s+(?:faça|escreva|corrija|rode)\b|\bи\s+(?:сделай|исправь)\b",
    re.IGNORECASE,
)
"""Words that may begin a task behind what to remember, or be a part of it."""
_REMEMBER: Final = re.compile(
    rf"""{_POLITE}(?:
        (?:please\s+)?(?:always\s+)?remember\b
            (?:\s+(?:this|the\s+following|please|for\s+(?:later|next\s+time|the\s+future)))*
            (?:\s*:\s*|\s*,?\s+that\s+
              |\s*,?\s+(?=(?:i|i'm|i've|my|we|our|never|always|to\s+always|to\s+never)\b))
      | (?:please\s+)?(?:don't|do\s+not|never)\s+(?:ever\s+)?forget\s*
            (?::\s*|,?\s+that\s+|\s+(?=(?:i|i'm|my|we|our)\b))
      | please\s+(?:remember|keep\s+in\s+memory)\s*:?\s+(?:that\s+)?
      | (?:i\s+want\s+you\s+to\s+remember|i(?:'d|\s+would)\s+like\s+you\s+to\s+remember|keep\s+in\s+mind)\s*
            (?::\s*|,?\s+that\s+|\s+(?=(?:i|i'm|my|we|our)\b))
      | bitte\s+merken\s*:\s*
      | merke?\s+dir(?:\s+bitte)?\s*(?::\s*|,?\s+dass\s+)
      | merken\s+sie\s+sich(?:\s+bitte)?\s*(?::\s*|,?\s+dass\s+)
      | (?:denke?|denken\s+sie)\s+(?:bitte\s+)?daran\s*(?::\s*|,?\s+dass\s+)
      | (?:vergiss|vergessen\s+sie)\s+(?:bitte\s+)?nicht\s*(?::\s*|,?\s+dass\s+)
      | (?:souviens-toi|souvenez-vous|rappelle-toi|rappelez-vous|retiens|retenez|n'oublie[sz]?\s+pas)\s*
            (?::\s*|\s+(?:bien\s+)?qu(?:e\s+|'))
      | (?:recuerda|recuerde|recordad|no\s+olvides|no\s+olvide|no\s+te\s+olvides\s+de|acuérdate\s+de)\s*
            (?::\s*|\s+que\s+)
      | (?:ricorda(?:ti)?|ricordi|non\s+dimenticare|tieni\s+presente)\s*(?::\s*|\s+che\s+)
      | (?:lembre(?:-se)?|lembra(?:-te)?|não\s+(?:se\s+)?esque(?:ça|ças|ce))(?:\s+de)?\s*(?::\s*|\s+que\s+)
      | (?:запомни(?:те)?|не\s+забудь(?:те)?|не\s+забывай(?:те)?)(?:\s*,?\s*пожалуйста)?\s*(?::\s*|,?\s+что\s+)
      | (?:请|請)?(?:你)?(?:记住|記住|记得|記得|别忘了|別忘了|不要忘记|不要忘記)\s*[，,：:]?\s*(?!吗|嗎)
      | (?:これを)?(?:覚えて|記憶して)おいて(?:ください|下さい|ね)?\s*[：:、，,]\s*
    )(?P<what>.+)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_REMEMBER_JAPANESE: Final = re.compile(
    r"(?P<what>.+?)(?:という?こと|こと|のを|と)?(?:を|は)?(?:覚えて(?:おいて)?|記憶して(?:おいて)?|忘れないで)(?:ください|下さい|ね|。|！)*$"
)
_ASKED_POLITELY: Final = re.compile(
    rf"""{_POLITE}¿?(?:
        (?:(?:can|could|would|will)\s+you(?:\s+please)?|would\s+you\s+mind)\s+
            (?:remember(?:ing)?|keep(?:ing)?\s+in\s+mind|not(?:e|ing))\s*(?::\s*|,?\s+that\s+|\s+(?=(?:i|i'm|my|we|our)\b))
      | (?:kannst|könntest|würdest)\s+du\s+dir\s+(?:bitte\s+)?merken\s*(?::\s*|,?\s+dass\s+)
      | (?:können|könnten|würden)\s+sie\s+sich\s+(?:bitte\s+)?merken\s*(?::\s*|,?\s+dass\s+)
      | (?:peux-tu|pourrais-tu|pouvez-vous|pourriez-vous|tu\s+peux|tu\s+pourrais)\s+
            (?:s'il\s+(?:te|vous)\s+plaît\s+)?(?:retenir|te\s+souvenir|vous\s+souvenir|te\s+rappeler|vous\s+rappeler|noter)\s*
            (?::\s*|\s+qu(?:e\s+|'))
      | (?:puedes|podrías|puede|podría)\s+(?:por\s+favor\s+)?(?:recordar|acordarte\s+de|tener\s+en\s+cuenta)\s*
            (?::\s*|\s+que\s+)
      | (?:você\s+)?(?:pode|poderia|podes|podias)\s+(?:por\s+favor\s+)?(?:se\s+)?lembrar(?:-se)?(?:\s+de)?\s*
            (?::\s*|\s+que\s+)
      | (?:puoi|potresti|può|potrebbe)\s+(?:per\s+favore\s+)?ricordar(?:e|ti|si)\s*(?::\s*|\s+che\s+)
      | (?:(?:не\s+)?мог(?:ла)?\s+бы\s+ты|(?:не\s+)?могли\s+бы\s+вы|можешь|можете)\s+(?:пожалуйста\s+)?запомнить\s*
            (?::\s*|,?\s+что\s+)
      | (?:你|您)?(?:能不能|可不可以|能|可以)(?:帮我|请)?(?:记住|記住|记一下)\s*[，,：:]?\s*
    )(?P<what>.+?)[\s?？吗嗎。]*$""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Requests in the form of a question."""
_ASKED_JAPANESE: Final = re.compile(
    r"(?P<what>.+?)(?:という?こと|こと|のを|と)?(?:を|は)?(?:覚えて|記憶して)おいて(?:もらえますか|もらえませんか|くれますか|くれませんか|いただけますか)"
    r"[。？?]*$"
)
_REFERS: Final = re.compile(
    r"(?:(?:for|thing|one)\b|(?:the\s+|same\s+)?[\w'-]+(?:\s+[\w'-]+)?(?:\s+(?:from|where|when|we|i|you|he|she|they|with)\b.*)?[.!…]*$)",
    re.IGNORECASE | re.DOTALL,
)
"""What follows "remember that" where "that" points at a thing: "function from yesterday"."""
_STATES: Final = re.compile(
    r"\b(?:is|are|was|were|be|am|i'm|has|have|had|must|should|can|may|will|do|does|don't|never|always|\w+n't|\w+'s)\b"
    r"|^(?:i|we|my|our|you|it|he|she|they|this|these|those|all|every|each|no)\b",
    re.IGNORECASE,
)
_FORGET: Final = re.compile(
    rf"""{_POLITE}¿?(?:
        (?:(?:you\s+can|i\s+want\s+you\s+to|(?P<en>(?:can|could|would|will)\s+you))\s+)?(?:please\s+)?(?:
            forget\s+(?:that\s+(?=[\w'-]+\s+\w)|(?:what|everything)\s+i\s+(?:said|told\s+you)\s+about\s+|about\s+
              |(?=(?:my|our|the|where|when|how|who|i|i'm|i've|we|we're|we've)\s+\w)|(?=[a-z]\d+\b|everything\b))
          | (?:delete|remove|erase)\s+(?:that\s+(?=(?:i|i'm|i've|my|we|we're|our)\b)
              |(?=.+\sfrom\s+(?:\w+\s+)?memory\b)))
      | (?:vergiss|vergessen\s+sie|(?P<de>(?:kannst|könntest|würdest)\s+du|(?:können|könnten|würden)\s+sie))
            (?:\s+bitte)?(?(de)\s+vergessen)\s*(?:,?\s+dass\s+|,?\s+was\s+ich\s+(?:über|zu[rm]?)\s+
              |(?=\s+(?:alles|(?:mein|unser)\w*|de[nr]|das|die|wo|[a-z]\d+)\b))
      | (?:oublie|oubliez|(?P<fr>peux-tu|pourrais-tu|pouvez-vous|pourriez-vous))(?(fr)\s+oublier)\s+
            (?:que\s+|qu'|ce\s+que\s+j'ai\s+dit\s+(?:sur|de)\s+|(?=(?:tout|mon|ma|mes|notre|nos|le|la|les|où|[a-z]\d+)\b))
      | (?:olvida|olvide|olvídate\s+de|(?P<es>puedes|podrías|puede|podría))(?(es)\s+olvidar)\s+
            (?:que\s+|lo\s+que\s+dije\s+(?:de|sobre)\s+|(?=(?:todo|mi|mis|nuestr[oa]s?|el|la|los|las|dónde|[a-z]\d+)\b))
      | (?:esqueça|esquece|(?P<pt>(?:você\s+)?(?:pode|poderia)))(?(pt)\s+esquecer)\s+
            (?:que\s+|o\s+que\s+eu\s+disse\s+sobre\s+|(?=(?:tudo|(?:o\s+|a\s+)?(?:meu|minha)|o|a|onde|[a-z]\d+)\s*\b))
      | (?:забудь|забудьте|(?P<ru>можешь|можете))(?(ru)\s+забыть)\s*,?\s+
            (?:что\s+|о\s+том,?\s+что\s+|про\s+|(?=(?:вс[её]|мо\w+|наш\w*|где|[a-z]\d+)\b))
      | (?P<zh>(?:你|您)?(?:能不能|可不可以|能|可以))?(?:请|請)?(?:忘记|忘記|忘掉)(?!了)\s*(?:我说的|我說的)?
    )(?P<what>.+?)[\s?？吗嗎]*$""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""Requests to forget. Those of which a named group matched may be questions."""
_FORGET_JAPANESE: Final = re.compile(
    r"(?P<what>.+?)(?:という?こと|こと|という話|のこと)?(?:を|は)忘れて"
    r"(?P<ja>もらえますか|もらえませんか|くれますか|くれませんか|いただけますか)?(?:ください|下さい|ね|。|！|？)*$"
)
_STATED: Final = re.compile(r"(?:\b(?:that|dass|que|что)\s|\bqu')$", re.IGNORECASE)
"""What stands before a whole statement that is to be forgotten."""
_BEGINS_STATEMENT: Final = re.compile(r"(?:i|i'm|i've|we|we're|we've)\s|我(?!的)|.+[はが]", re.IGNORECASE)
_FROM_MEMORY: Final = re.compile(r"^(?:the\s+)?(.+)\s+from\s+(?:\w+\s+)?memory\b.*$", re.IGNORECASE)
CALLS_OFF: Final = re.compile(
    rf"{_POLITE}(?:forget\s+(?:about|the|where|when|how|who)|vergiss\s+(?:de[nr]|das|die|wo)|oublie\s+(?:le|la|les|où)"
    r"|olvida\s+(?:el|la|los|las|dónde)|esqueça\s+(?:o|a|onde))\b",
    re.IGNORECASE,
)
"""Requests that may also call off an order: "forget about the tests"."""
EVERYTHING: Final = re.compile(
    r"(?:everything|alles|tout|todo|tudo|вс[её])\b|一切|全部|すべて|全て", re.IGNORECASE
)
"""What to forget, if it is everything."""
SAID_WRONG: Final = re.compile(
    r"(?:no|wrong|(?:that|this|it)(?:'s|\s+is)\s+(?:wrong|false|incorrect|not\s+(?:true|right|correct))|das\s+ist\s+falsch"
    r"|das\s+stimmt\s+nicht|c'est\s+faux|es\s+falso|está\s+errado|это\s+неверно)[\s,.;:!]+",
    re.IGNORECASE,
)
"""What a correction begins with."""
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
_BEGINS_LASTING: Final = re.compile(rf"{_POLITE}(?:{_LASTING.pattern}|{_EVERYWHERE.pattern})", re.IGNORECASE)
_QUOTATIONS: Final = {'"': '"', "“": "”", "„": "“”", "«": "»", "»": "«", "「": "」", "『": "』", "`": "`"}
"""Quotation marks that open, each with those that close it."""
_QUOTATION_MARKS: Final = (*_QUOTATIONS, "‚", "‘", "'", ">")
_ASKS: Final = ("?", "？", "؟")
_ASKS_UNSPACED: Final = re.compile(r"[吗嗎][。？?]?$|(?:ますか|ませんか)[。？?]?$")
_TAKES_BACK: Final = re.compile(r"[,;!]|\.(?:\s|$)")


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
    names_topic: bool = False
    """Whether the words name what to forget ("my dog"), and do not say it ("that my dog is called Rex")."""


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
        is_announced = text[:start].rstrip().endswith((":", "："))
        if request is None or is_announced or is_quoted(text, start):
            continue
        is_whole_sentence = request.text == request.quote
        if _is_own(text, sentence) and not (is_whole_sentence and is_reported(sentence)):
            found.append(request)
            if len(found) == MAX_SPOKEN_REQUESTS:
                break
    return tuple(found)


def is_only_requests(text: str) -> bool:
    """Return whether a message consists of requests and politeness, on one line.

    A label, a mark of a list, a name behind it or another sentence may mean that the words are another person's, or
    text to work on."""
    line = plain_lines(text).strip()
    if "\n" in line or not (line[:1].isalpha() or line.startswith("¿")):
        return False
    said = [line[start:end] for start, end in split_sentences(line)]
    if "".join(said).replace(" ", "") != line.replace(" ", ""):  # a mark of a list was left out
        return False
    return all(_ONLY_THANKS.fullmatch(one) or _is_plain(" ".join(one.split())) for one in said)


def _is_plain(sentence: str) -> bool:
    """Return whether a sentence is a request from its first word to its last."""
    request = _request(sentence)
    if request is None or any(one.search(sentence) for one in (_ATTRIBUTED, _TASK_AFTER, _MAY_BE_TASK)):
        return False
    if request.text != sentence:
        return True
    return _BEGINS_LASTING.match(sentence) is not None


def _request(sentence: str) -> SpokenRequest | None:
    is_everywhere = _EVERYWHERE.search(sentence) is not None
    asks = sentence.endswith(_ASKS) or _ASKS_UNSPACED.search(sentence) is not None
    polite, plain = (_ASKED_POLITELY, _ASKED_JAPANESE), (_REMEMBER, _REMEMBER_JAPANESE)
    for pattern in polite if asks else (*plain, *polite):
        match = pattern.match(sentence)
        if match and _has_words(match["what"]) and not _refers(match):
            what = _THANKS_AFTER.sub("", _TASK_AFTER.sub("", match["what"]))
            return SpokenRequest("remember", what.strip(" ,:，、"), sentence, is_everywhere)
    for pattern in (_FORGET, _FORGET_JAPANESE):
        match = pattern.match(sentence)
        if match and _has_words(match["what"]) and (not asks or _is_polite(match)):
            return _request_to_forget(match, is_everywhere=is_everywhere)
    if not asks and is_everywhere and _LASTING.search(sentence):
        return SpokenRequest("remember", sentence, sentence, is_everywhere)
    return None


def _is_polite(match: re.Match[str]) -> bool:
    return any(words for group, words in match.groupdict().items() if group != "what")


def _request_to_forget(match: re.Match[str], *, is_everywhere: bool) -> SpokenRequest:
    # "Forget that I said so, use tabs" is an order.
    what = _FROM_MEMORY.sub("\\1", _TAKES_BACK.split(_THANKS_AFTER.sub("", match["what"]).lstrip())[0])
    before = match.string[: match.start("what")]
    names_topic = _STATED.search(before) is None and _BEGINS_STATEMENT.match(what) is None
    return SpokenRequest("forget", what.strip(" ,:，、。"), match.string, is_everywhere, names_topic)


def _refers(match: re.Match[str]) -> bool:
    """Return whether "that" in "remember that …" points at a thing, and begins no statement."""
    if not match.string[: match.start("what")].lower().endswith("that "):
        return False
    what = match["what"]
    return _REFERS.match(what) is not None and _STATES.search(what) is None


def _has_words(text: str) -> bool:
    return sum(character.isalnum() for character in text) >= _MIN_WORD_CHARS


def is_quoted(text: str, start: int) -> bool:
    """Return whether a sentence begins with a quotation mark, or inside a quotation."""
    if text.startswith(_QUOTATION_MARKS, start):
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
