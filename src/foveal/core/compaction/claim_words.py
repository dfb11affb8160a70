"""Words that claim a rule or an approval, or negate one, in several languages.

The patterns are for text in lower case with straight apostrophes.
"""

from __future__ import annotations

import re
from typing import Final


def _pattern(phrases: str, inside: str = "", *, start: str = r"\b") -> re.Pattern[str]:
    """Return a pattern for phrases of whole words, and for words of languages that write without blanks."""
    listed = [phrase.strip() for line in phrases.split("\n") for phrase in line.split(",")]
    alternatives = rf"(?:{'|'.join(filter(None, listed))})(?!\w)"
    return re.compile(f"{start}(?:{alternatives}|{inside})" if inside else start + alternatives)


THE_USER: Final = _pattern(
    r"""
    users?, customers?, clients?, owners?, benutzer(?:in)?, nutzer(?:in)?, anwender(?:in)?, kunden?, kundin
    utilisat\w+, usuari\w+, usuári\w+, clientes?, utent[ei], пользовател\w*, клиент\w*, заказчик\w*, користувач\w*
    """,
    "用户|用戶|客户|客戶|ユーザー|利用者|사용자|고객",
    start="(?<![a-zà-ÿ])",
)
APPROVAL: Final = _pattern(
    r"""
    approv\w+, allow\w*, permit\w*, permission, agree[ds]?, agreement, confirm\w*, consent\w*, authori[sz]\w+
    accept(?:s|ed)?, said yes, said ok(?:ay)?, go-?ahead
    ok'?d, okayed, green-?l(?:ight|it)\w*, signed off, sign-off
    genehmig\w*, erlaub\w*, zu(?:ge)?stimm\w*, stimmt\w* zu, bestätigt\w*, einverstanden, freigegeben
    approuv\w+, autoris\w+, accepté\w*, permis\w*, d'accordo?, aprob\w+, aprov\w+, autoriz\w+, acept\w+, aceit\w+
    de acuerdo, de acordo, approvat\w*, accettat\w*, permess\w*, confermat\w*
    одобр\w+, разреш\w+, соглас\w+, подтверд\w+, позвол\w+
    """,
    "同意|批准|允许|允許|许可|許可|确认|確認|授权|授權|承認|了承|승인|허락|허가|동의|확인",
    start="(?<![a-zà-ÿ])",
)
PERMISSION: Final = _pattern(
    r"""
    you may, you can
    you are (?:now )?(?:allowed|free|permitted|authori[sz]ed), (?:is|are|was|were|been) (?:now )?approved
    (?:is|are|was|were|been) (?:now )?authori[sz]ed, permission (?:was |is |has been )?(?:given|granted)
    du darfst, sie dürfen, vous pouvez, tu peux, puedes, puoi, можно
    """,
    "可以|してもよい|해도 (?:된|좋)",
    start="(?<![a-zà-ÿ])",
)
ABILITY: Final = _pattern("you can, vous pouvez, tu peux, puedes, puoi")
"""Permissions that may tell of a possibility only: "you can run it with …"."""
RULE: Final = _pattern(
    r"""
    never, always, must, shall, forbid\w*, forbade
    prohibit\w*, insist\w*, requires?, required, demand\w*, not allowed
    nie(?:mals)?, immer, muss, verbot\w*, verbiet\w*, jamais
    toujours, interdi\w+, nunca, siempre, sempre, prohíb\w+
    prohib\w+, proíb\w+, proib\w+, mai, vieta\w*, никогда, всегда, запре\w+, нельзя
    """,
    "禁止|必须|必須|绝不|總是|总是|必ず|절대|항상|반드시",
    start="(?<![a-zà-ÿ])",
)
OBLIGATION: Final = _pattern(
    r"""
    may, can, could, must, always, should, shall
    needs? to, has to, have to, will, allowed, permitted, free to, ok to
    okay, fine to, wants?, wanted, asked, told, said, darfs?t?, solls?t?, muss, immer, peut, doit, puedes?, debes?
    pode, deve, puoi, можно, нужно, должен, всегда, ^\W*do not, ^\W*don't
    """,
    "可以|应该|必须|してよい|べき|해도|해야",
    start="(?<![a-zà-ÿ])",
)
ASSENT: Final = _pattern(
    r"""
    fine, all right, no problem, decided, agreed, planned, granted
    as (?:requested|agreed|asked|instructed|approved|told|wanted|planned|discussed|required|confirmed)
    in ordnung, wie (?:gewünscht|vereinbart|besprochen), comme (?:demandé|convenu), según lo (?:pedido|acordado)
    """,
    "按要求|没问题|同意",
    start="(?<![a-zà-ÿ])",
)
"""Words with which a sentence about something forbidden permits it, even if it reports the past."""
ALLOWED: Final = _pattern(
    r"""
    allowed, permitted, approved, approval, authori[sz]ed, authori[sz]ation, permission, granted, okayed
    erlaubt, genehmigt, freigegeben, genehmigung, erlaubnis, autorisée?s?, permise?s?, approuvée?s?, autorisation
    autorizad[oa]s?, autorizó, permitid[oa]s?, aprobad[oa]s?, aprovad[oa]s?, permess[oaie], autorizzat[oaie]
    разреш\w+, одобрен\w*, можно
    """,
    "允许|允許|批准|同意|许可|許可|可以|허용|허가|승인",
    start="(?<![a-zà-ÿ])",
)
"""Words that permit the thing itself: "sudo is allowed"."""
CONDITION: Final = _pattern(
    r"""
    without, unless, until, except, before, if, when, while, but, because, since, as long as, instead
    ohne, außer, bevor, bis, wenn, solange, sondern, weil, sans, sauf, avant, tant que, mais
    sin, salvo, excepto, antes, hasta, pero, sino, sem, exceto, senza, tranne, prima, ma
    без, кроме, пока, если, но
    """,
    "除非|之前|直到|如果|까지|없이",
)
"""Words at which a prohibition ends and its condition or its reason begins."""
RESTRICTION: Final = _pattern(
    r"""
    only, ask(?:s|ed|ing)?, before, unless, until, except, if, first, without, needs?, requires?
    nur, erst, vorher, frag\w*, gefragt, wenn, bevor, ohne, außer, seulement, demand\w+, avant, sauf, sans
    solo, sólo, pregunt\w+, antes, salvo, sin, apenas, pergunt\w+, sem, chied\w+, senza
    только, спрос\w+, спраш\w+, если, без, кроме
    """,
    "只|仅|除非|之前|先|问|だけ|のみ|前に|확인|만 ",
)
"""Words with which a sentence names a condition too."""
ALTERNATIVE: Final = re.compile(r"\s+(?:or|nor|oder|noch|ou|ni|o|или|ни)\s+")
_NO_OBJECTION: Final = (
    r"(?:\bnot|n't) mind\b|\bno (?:objections?|problem)\b|\bnot? (?:a|an) (?:problem|issue)\b|\bnothing against\b"
    r"|\bnichts dagegen\b|\bkein problem\b|\bpas de problème\b|\bno hay problema\b"
    r"|\bне против\b|不介意|没问题|問題ない"
)
NO_OBJECTION: Final = re.compile(_NO_OBJECTION)
"""Negations that permit."""
_NO_PROHIBITION: Final = (
    r"(?:\bnot|n't|\bno|\bnever) (?:need|have to|hesitate|forget|worry|be afraid|only)\b|\bneedn't\b"
    r"|\bmusst nicht\b|\bbrauchst nicht\b|\bn'hésite|\bno dudes\b|\bне забудь|不用|不必"
)
NOT_FORBIDDING: Final = re.compile(f"{_NO_OBJECTION}|{_NO_PROHIBITION}")
"""Negations that forbid nothing."""
DESCRIPTION: Final = re.compile(
    r"\b(?:does|is|are|was|were|did|has|have|had|could|would|ca|wo)(?: not|n't) "
    r"(?!(?:\w+ )?(?:allowed|permitted|ok|okay|acceptable|fine)\b)"
)
"""Negations that tell how something is, not what is forbidden."""
NOT_AN_ORDER: Final = re.compile(
    r"(?:ed|ing|é|ée|és|ées|ad[oa]s?|id[oa]s?|at[oaie]|it[oaie]|ó|ou|л|ла|ли|ло)$"
)
"""Endings of verbs that tell of the past, or serve as nouns."""
PAST: Final = re.compile(
    r"^(?:was|were|had|has|have|been|did|ran|broke|made|wrote|went|took|sent|found|left|wurden?|hat|haben|été|fue|foi"
    r"|stat[oa]|был[аои]?)$|(?:ed|é|ée|és|ées|ad[oa]s?|id[oa]s?|ó|ou|л|ла|ли|ло)$"
)
"""Words that tell of the past."""
UNSPACED_PAST: Final = re.compile("已|了|过|過|ました|した|았|었|했")
AFFIRMATION: Final = _pattern(
    r"""
    yes, yep, yeah, yup, sure, ok(?:ay)?, fine
    agreed, approved, confirmed, correct, right, exactly, please do, do it
    go ahead, go for it, sounds good, lgtm, proceed, ja, gerne
    genau, einverstanden, mach das, oui, d'accord, vas-y, sí
    si, vale, claro, sim, certo, va bene, да, давай, хорошо, ладно, конечно, так
    """,
    "是|好|可以|行|对|同意|确认|はい|ええ|お願い|네|예|응|좋",
    start=r"^\W*",
)
CLOSING_MARKS: Final = " \t*_`\"')]}»”"
"""Marks that may follow the end of a sentence."""
_NEGATION_WORDS: Final = """
    not never no nor cannot forbade stop nicht nie niemals ne pas jamais nunca jamás não nao non mai
    не ни никогда нельзя
"""
NEGATIONS: Final = frozenset(_NEGATION_WORDS.split())
NEGATION_BEGINNINGS: Final = (
    "n'", "forbid", "prohib", "avoid", "refus", "disallow", "declin", "reject", "kein", "verbot", "verbiet",
    "vermeid", "interdi", "évit", "evit", "prohíb", "proib", "proíb", "vieta", "запре", "избега",
)  # fmt: skip
UNSPACED_NEGATION: Final = re.compile(
    "不[要得能可许許准应應](?!以)|不(?!过|過)|请勿|切勿|别|別|勿|禁止?|没|沒|ない|ません|するな"
    "|않|안 |못|지 ?마|지 ?말|금지"
)
UNSPACED_CLAIM: Final = re.compile("可以|应该|必须|務必|务必|总是|總是|绝不|绝对|絕對|絶対|必ず")
_WORDS_WITHOUT_CONTENT: Final = """
    the and for that this these those with from into onto
    over under then than also only just such each every any all
    some was were are been being has have had does did doing done will would should could can may might must shall
    always said says say asked asks ask told tell
    wants wanted want wishes wished requested request requests requires
    required require requirement rule rules given give gave made
    make makes now later before after when whenever while
    because its his her their them they you your our ours who which what where how why there here please very more
    most other else anything something everything explicitly clearly again still yet once about without user users
    thing things way need needs needed per via let lets
    der die das den dem des ein eine einen einem und oder mit von vom zum zur für auf ist sind war hat haben dass
    immer muss darf darfst soll bitte sie wir ihr ich les une est sont que qui pour dans sur avec toujours
    los las una uno por para con del son sus siempre sempre uma dos das com che per gli della
    это что как для при или все всё его она они был была были надо нужно можно всегда
"""
NO_CONTENT: Final = frozenset(_WORDS_WITHOUT_CONTENT.split())
"""Words that say nothing of what a rule or an approval is about."""
