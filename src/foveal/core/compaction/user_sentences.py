"""Removes from a draft what a model says about the user: a summary speaks about work.

What the user permits, forbids, decides and reveals is quoted from the log (`ledger.user_requests`). Sentences of a
model about it are removed, true or not:

1. sentences about the user, or addressed to the reader or the agent;
2. sentences about a will: a rule, a permission, a prohibition, an agreement, a request, a confirmation;
3. sentences that tell a password or a key;
4. orders to do what needs the user's word: delete, disable, skip, push, publish;
5. what stands under a heading, or in the list after a line, that was removed.

Names of code do not count, nor do words that are parts of a program ("the user table", "a lint rule"). Invisible
characters, markup, compatible letters and letters of another script that look the same make no difference.

Sentences are judged by their words, in ten languages. In doubt a sentence is removed: the
user's words are in the record anyway, and the model's are in the log.

Words of sentences about the user: what the user wills, permits, forbids, agrees to and reveals.

A list has words and phrases in English, German, French, Spanish and Portuguese, Russian; then parts of words in
Chinese and Japanese. `*` stands for the rest of a word. All patterns are for text that `fold` returned.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

CODE_MARK: Final = "§"
"""Stands for code in a folded text."""
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_LETTER: Final = r"[a-z\u0400-\u04ff]"


def fold(text: str) -> str:
    """Return a text in one case, without accents, and with compatible letters made equal."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", _ACCENTS.sub("", folded)).replace("’", "'")


def _alternatives(phrases: str) -> str:
    listed = (" ".join(phrase.split()) for phrase in fold(phrases).replace("\n", ",").split(","))
    return "|".join(filter(None, listed)).replace(" ", r"\s+").replace("*", r"\w*")


def _pattern(phrases: str, unspaced: str = "") -> re.Pattern[str]:
    """Return a pattern for phrases of whole words, and for parts of words of languages without blanks."""
    inside = "|".join(["", *fold(unspaced).split()])
    return re.compile(rf"(?<!{_LETTER})(?:{_alternatives(phrases)})(?!{_LETTER}){inside}")


# ── Who ──────────────────────────────────────────────────────────────────────────────────────────────────

USER: Final = _pattern(
    """
    user's, users', (the|this|our|per|by|with|from|of|to|for|and|as|ask|asking|tell|told|initial|latest) user
    he, she
    user (message|feedback|clarification|insight|request|instruction|answer|question|comment)*
    user (quote|word|wish|decision)*
    user (approval|consent|permission|preference|confirmation|intent|concern)*, him, his, her, requester
    the boss, (den|dem|der|des|ein|vom|beim|zum|laut|dieser|unser) (be)?nutzer(s|in)?, (der|dem|den) anwenders?
    auftraggeber*, l'utilisat(eur|rice), (de|par|cet|notre) utilisat(eur|rice), le patron
    (el|la|del|al|este|nuestro|o|a|do|da|ao|pelo|pela|nosso) (usuari[oa]|utilizador), el jefe, o chefe
    пользовател(ь|я|ю|ем|е), заказчик*, юзер*
    """,
    "(用户|用戶|使用者)(?![a-z表界服名输輸数數模列接页頁类類会會登注权權角]) (ユーザー?|利用者"
    "|依頼者)(?=[はがのからもにへと、様側]) お客様",
)
"""The person who uses the agent. "Users" and "a user" are those of a product."""
SUBJECT_USER: Final = re.compile(
    r"(?:^|[.:;,!?()\"«»—–→-]\s?|\b(?:and|but|since|because|so|then|that|und|dass|weil)\s+)\W{0,4}"
    r"(?:user|usuario|utilisateur|(?:be)?nutzer|utilizador)(?=\s+[a-z]|\s*:)"
)
"""The same without an article, where a clause begins: "User wants …"."""
ADDRESS: Final = _pattern(
    """
    you, your, yours, yourself, please, my, let's
    i (want|need|allow|permit|agree|approve|confirm|insist|expect|wish)
    (assistant|agent|model|ai|bot|claude|we) (now )?(may|can|could|must|should|shall|is free|decided|discussed)
    du (darf|kann|soll|muss|ha)s?t, (darf|kann|soll|muss|ha)s?t du, dich, dein*, euch, euer*, bitte, mein*
    (ich|sie|ihr|wir) (darf|durfen|konnen|sollen|mussen|will|mochte), tu, vous, votre, vos, toi, veuillez
    s'il (te|vous) plait, merci de, mon, mes, on (peut|doit)
    (assistent|agente?|asistente|assistente|modell?[oe]?) (darf|kann|soll|muss|peut|doit|puede|debe|pode|deve)
    usted*, por favor, puedes, debes, mi, mis, voce*, meu, minha, podes, deves, ты, тебе, тебя, вы, вам, вас
    ваш*, мой, мне, пожалуйста, прошу, (агент|ассистент|модель) (теперь )?(может|должен|вправе)
    """,
    "你 您 请(?!求) 請(?!求) 我[要想希同允批] (助手|模型|代理|我们)(现在)?(可|能|应|必须|有权) あなた"
    " ください 下さい お願い 願います",
)
"""Words with which a text speaks to its reader, as the user, or of what the agent may do."""

# ── What ─────────────────────────────────────────────────────────────────────────────────────────────────

WILL: Final = _pattern(
    r"""
    agree*, approv*, consent*, assent*, okay*, ok'd, endors*, allowed, permitted, permissible, sanctioned
    vetoe?*
    (is|are|was|were|it's|that's) (\w+ )?(ok|fine|all ?right|acceptable|welcome)(?= to| with| now| for| by|.?$)
    (ok|okay) (to|with|from|by|for), permission (to|for|from|was|is|has|had|given|granted), clearance*
    (root|full) access, forbid*, forbade, prohibit*, ban, bans, banned, disallow*, off[- ]limits, embargo
    moratorium, (the|code) freeze, mandate*, lift(s|ed), waiv*, rescind*, repeal*, abolish*, retract*, overrul*
    exempt*, entitle*, grant(s|ed|ing)?, (was|were|been) relaxed, wish*, wants?, wanted, desires, prefers
    (is|was) preferred, preferences?, insist*, demand(s|ed)?, would (like|rather|love), asks?, asked
    asking (for|to|first), told, tells, instruct*, said, says, promis*, stated that, mentioned that, ordered to
    (was|were|been|as|explicitly|also|then|first|later) requested, requested (that|to|by|a)
    requests? (to|that|from|of|by)
    (at|on|upon|per|by|initial|latest|last|main|primary|current|new|first|explicit) (\w+ )?(\w+ )?requests?
    according to the (client|customer|owner|team|conversation), (per|by) (order|agreement|decision|directive)s?
    as (discussed|ordered|desired|planned together|wished|directed), sign(ed|s)?[- ]?offs?, go[- ]?ahead
    green[- ]?l(ight|it)*, thumbs[- ]up, blessing, carte blanche, free (rein|hand|to), lgtm, everyone, everybody
    in favou?r of, (it's|is|was) settled, cleared (with|for|to), no more (tests|reviews|checks|asking)
    at (will|liberty), consensus, unanimous*, feel free, the right to, (no|any) objections?
    (not|n't) (mind|object)
    (it|that|this|team|was|were|been) (was |is |has been )?(decided|settled|understood|ruled)
    decided (that|by|with|jointly), decisions? (was|is|has|by|of|to), (an|the|mutual) understanding (that|with)
    misunderstanding, no need to, needn't, from (now|here) on, going forward, henceforth, hereby
    as of (now|today), until further notice, in force, disregard, without (asking|confirm*|review|supervision)
    no longer (need*|requir*|necessary|appl*|hold*|valid|binding|exist*|matters)
    (needed|required|necessary) any ?(more|longer), null and void, (is|are|was) void, off the table
    (is|are) obsolete

    genehmig*, erlaub*, zustimm*, zugestimmt, einverst*, freigegeben, freigabe*, einwillig*, bewilligt*
    gestattet*, befug*, vereinbar(t|te|ten|ung|ungen), abgesprochen, abgemacht, beschlossen, entschieden
    geeinigt, verabredet, stimmt* zu, verbot*, verbiet*, untersagt*, aufgehoben, hinfallig, entfall*
    weggefallen, freiwillig, erledigt, gilt nicht mehr, gelten nicht mehr, ab (jetzt|sofort|heute)
    nicht mehr (notig|erforderlich|notwendig|gultig|verlangt|gebraucht|muss*), kunftig, bis auf weiteres
    in ordnung, darf, durfen, durfte*, soll, sollen, *wunsch, gewunscht, wunscht*, verlangt*, gebeten, bittet
    angewiesen, *weisung*, gesagt, sagte, sagt, mochte, beauftragt*, nichts dagegen, gru?n(es|em) licht
    freie hand, ohne *(frage|fragen), regeln?, bestatigung*, ruckfrage*, vorschrift*, vorgaben?, beschrankung*
    einschrankung*, wie (besprochen|gefordert)

    approuv*, autoris*, accord, accorde*, d'accord, permise?s?, feu vert, convenu*, entendu, a valide*, interdi*
    defendu, levee?s?, leve, abroge*
    plus (besoin|necessaire*|obligatoire*|requis*|en vigueur|valable*|demander), n'est plus, desormais
    dorenavant, a l'avenir, regles?, consignes?, restrictions?, exigences?, demande[esrz]?, souhait*, veut
    voulait, exig*, a dit, ordonne*, sans (demander|validation|verification), confirmations?, aucune objection
    *decide (que|par|avec|de), facultati*, optionnel*

    aprob*, aprov*, autoriz*, permiso*, permissao, permit*, acord(o|ad[oa]s?|aron|amos|ou|aram), acuerdo*
    acordo*, concord(ou|aram|a|am), convenid*, visto bueno, luz verde, sinal verde, via libre, liberad[oa]
    prohib*, proib*, se levant*, levantad*, derog*, revog*, suspens[oa]s?, sin efecto, ya no
    nao (e|sao|precisa*|vale|se aplica|ha) mais, ja nao, no es necesari*
    no (hace|hay) (falta|problema|inconveniente), a partir de (ahora|agora|hoy|hoje), desde (ahora|agora)
    de ahora en adelante, de agora em diante, reglas?, regras?, normas?, restric*, instruc*
    pedido (de|do|da|del)*, pidi*, solicit*, peticion*, quier*, quiso, quer, queria*, desea*, deseja*, exig*
    ordeno*, dijo, dice, disse, diz, mandou, sin preguntar, sem perguntar, confirmac*
    se (decidio|puede*|dispuso|convino), (foi|ficou|fue|quedo) (decidid|combinad|clar)*, combinad*, decidi*
    opcional*, facultativ*

    одобр*, разреш(ил|ен|ает|ить|ать|ают|али)*, соглас(ен|на|ны|ил|ие|ия|ован|овал)*, договор*, позвол*
    допуска*, добро, утверд*, зелен* свет, запре*, запрещ*, нельзя, снят(о|а|ы)?, снял*, отмен(ил|ен|яет)*
    ослаблен*, больше не, отныне, впредь, с этого момента, правил(о|а|у|ом|ам|ами|ах)?, ограничени*, требовани*
    указани*, инструкци*, приказ*, поручил*, просьб*, попрос*, просил*, хоч*, хотел*, желае*, пожелани*, требу*
    велел*, сказал*, говорит, можно, решено, решил*, подтверждени*, без (спрос|вопрос|согласован)*
    не (против|возража*), вправе
    """,
    """
    同意 批准 允许 允許 许可 許可 准许 授权 授權 认可 認可 赞成 约定 商定 协议(?!栈) 共识 决定 決定 绿灯 放行
    默许 一致认为 禁止 不得 不准 不许 不許 禁令 解除 取消 撤销 撤銷 废除 豁免 失效 作废 放宽 放寬
    不再(?=[需要适有生受执是]) 获准 获批 无需 無需 不必 不用 今后 以后 从现在 從現在 从今 即日起 随意
    规则(?!引擎|文件) 規則(?!引擎) 规定 規定 (约束|限制)(?=[已被不解取没]) 指示 吩咐 要求 愿望 希望 想要 意愿
    表示 告诉 告訴 说(?=[过了：:，可要密他她没]) 說 可以 没问题 沒問題 异议 確認後 确认后
    (经|得到|获得|未经|无|需|要|再)[^。，]{0,3}(确认|確認) 承認 了承 合意 認め 承諾 賛成 取り決め 約束 決ま 決め
    てよい ても(?=[よ良い構か大問]) 構わない 問題(?=ない|ありま) 不要 必要(?=は?(ない|なく|なし|ありま)) 撤回
    撤廃 廃止 解禁 免除 緩和 取り消 今後 これから 以後 禁じ ルール(?!エンジン) 規約 方針 要望 依頼 希望 望ん
    頼ま 求め 言っ 言い 述べ 伝え 確認(?=は|が?必要|なし|せず|しな|を?(求|得|取|省)) 自由に ゴーサイン 任意
    ことにし ことになっ
    """,
)
"""A will: what is wanted, permitted, forbidden, lifted or agreed."""
AMBIGUOUS_WILL: Final = _pattern(
    """
    rules?, polic(y|ies), restrictions?, constraints?, guidelines?, requirements?, directives?, permissions?
    permits?, allow(s|ing)?, authori[sz]*, confirmations?, accepted, acceptance, revok*, requests?, requested
    autorizacao, permissoes
    """
)
"""Words of a will that programs have too. They may stand in a report of work on code."""
DUTY: Final = _pattern(
    """
    must, shall, may, mandatory, obligatory, always, never, unnecessary, superfluous, any ?more, no need
    (is|are|was|were|now) (now |not |only )?(required|necessary|needed|optional), muss, mussen, nie, niemals
    immer, stets, notig, unnotig, notwendig, erforderlich, uberflussig, jamais, toujours, doit, doivent, faut
    *necessaires?, nunca, jamas, siempre, sempre, deben?, devem?, obligatori*, obrigatori*, *necesari*
    *necessari*, никогда, всегда, долж(ен|н)*, обязательн*, необязательн*, нужн*, надо, необходим*
    """,
    "必须 必須 务必 应当 总是 绝不 永远 不能 不可 不要 必ず 常に 絶対 決して べき なければ",
)
"""Duties. A sentence with one and without code states a rule; with code it may describe how the code works."""
RULE_START: Final = re.compile(
    r"^\W*(?:(?:rule|note|important|next|also|regel|wichtig|regla|regra)s?\W+)?"
    r"(?:do not|don't|dont|never|always|stop \w+ing|remember|under no|avoid|refrain|nie|niemals|immer|kein\w*|stets"
    r"|ne \w+ (?:pas|jamais|plus)|n'\w+|toujours|jamais|evite\w*|nunca|siempre|sempre|jamas|никогда|всегда|не"
    r"|нельзя)\s"
    r"|^\W*(?:不要|别|勿|切勿|绝不|永远|絶対|必ず|決して)"
)
"""How an order starts that holds for ever."""

# ── Secrets ──────────────────────────────────────────────────────────────────────────────────────────────

_SECRETS: Final = _alternatives(
    """
    pass ?words?, passphrase, pass ?code, pin( code)?, secret( key)?, credentials?( for \\w+)?, api[- ]?keys?
    access keys?, private key, token, card number, credit card, iban, passwort, kennwort, zugangsdaten
    schlussel, mot de passe, cle, code secret, contrasena, clave, credenciales, senha, credenciais, chave
    пароль, логин, секрет, токен, ключ
    """
)
_NO_VALUE: Final = (
    r"(?!\s*(?:not|never|only|now|no|also|still|already|read|stored|set|in|from|by|at|empty|missing|invalid"
    r"|nicht|aus|leer"
    r"|pas|lue?|dans|en|desde|nao|em|из|в|не|\w+ed)\b)"
)
SECRET_TOLD: Final = re.compile(
    rf"(?<!{_LETTER})(?:{_SECRETS})(?![a-z\u0400-\u04ff-])(?:\s+[^\s:=.]+){{0,5}}?"
    rf"\s*(?:[:=—–]|\s(?:is|are|was|lautet|ist|est|sont|es|e|son|sao)(?![a-z])){_NO_VALUE}\s*\S"
    "|(?:密码|密碼|口令|密钥|令牌|凭证|卡号)[^。；，]{0,8}(?:是|为|為|[:：=])"
    "|(?:パスワード|暗証番号|合言葉|秘密鍵|トークン|apiキー)[^。、]{0,8}(?:は|[:：=])(?!.{0,12}(?:ハッシュ"
    "|環境|保存|検証))"
)
"""A password, key or number with its value."""

# ── Orders for what only the user may decide ─────────────────────────────────────────────────────────────

_GUARDED: Final = _alternatives(
    """
    delet, drop, disabl, deactivat, skip, bypass, ignor, eras, wip(?=e|in), purg, truncat, destroy, overwrit
    push, force[- ]?push, deploy, publish, releas, circumvent, revok, transfer, send, leak, expos, shar, pay
    shut (down|off), turn off, switch off, take down, get rid, throw away, merg, discard, omit, abandon, losch
    deaktivier, uberspr, verw(irf|erf|orf), entfern, veroffentlich, (ab|aus)(ge)?schalt, umgeh, umgangen
    uberschr[ie], streich, strich, supprim, effac, desactiv, saut(?=e), contourn, pouss, publi, ecras, vid(?=e)
    borr, elimin, salt(?=a), despleg, despli, sobrescr, apag, exclu, desativ, deslig, pul(?=a|e), descart
    implant, удал, отключ, пропус, игнорир, обой, стер, сотр, очист, запуш, пуш, отправ, депло, опублик, выключ
    сброс, перезапис
    """
)
_CLAUSE_START: Final = (
    r"(?:^|[.:;,!?—–→¡]\s?|\b(?:and|then|now|just|simply|next|please|und|dann|jetzt|et|puis|y|luego|ahora|e"
    r"|depois|agora|и|затем)\s+)\W{0,4}"
)
_NO_ORDER: Final = r"(?!\w*(?:ed|ing|ion|ions|ado|ada|ido|ida|ung|л|ла|ли|ло|но|н|на|ны)\b)"
_MODAL: Final = (
    r"(?:may|can|could|should|shall|must|might|(?<!flag )(?<!option )(?<!function )to be|kann|konnen|darf"
    r"|soll|sollen|peut|peuvent"
    r"|puede|pueden|pode|podem|может|могут|следует|(?:is|was|step|plan|decided|needs?|ready|safe|time|going"
    r"|remains|sure) to)"
)
_UNSPACED_GUARDED: Final = (
    "(?:删除|刪除|删掉|禁用|停用|关闭|跳过|跳過|忽略|丢弃|清空|推送|部署|发布|绕过|覆盖|强制|合并到"
    "|省略)(?![了后後失成时時的功接按逻操函命])"
)
GUARDED_ORDER: Final = re.compile(
    rf"{_CLAUSE_START}{_NO_ORDER}(?:{_GUARDED})[a-zа-я]*(?![-/a-z])(?! (?:failed|fails|returns|was|is"
    rf"|patterns?|paths?)\b)"
    rf"|\b{_MODAL} (?:\S+ ){{0,4}}?(?:ge)?(?:{_GUARDED})\w*|(?<!zu )\b(?:{_GUARDED})\w*en\W{{0,4}}$"
    rf"|(?:^|[:：,，。；、\s>*-])(?:直接|立即|现在|接下来|下一步|然后|将|把|先|再|就|并)*{_UNSPACED_GUARDED}"
    rf"|[可能应應需该]\S{{0,14}}{_UNSPACED_GUARDED}"
    "|(?:削除|無効化?に?|スキップ|省略|無視|破棄|プッシュ|デプロイ|公開|停止|上書き|消去|マージ)(?:する|せよ"
    "|しろ|すべき|可能?|できる)(?=[。、.\\s]|$|こと)"
)
"""An order or a permission to do what needs the user's own word: delete, disable, skip, push, publish."""

# ── Work ─────────────────────────────────────────────────────────────────────────────────────────────────

_PARTS: Final = _alternatives(
    """
    tables?, columns?, rows?, models?, schemas?, class(es)?, objects?, types?, fields?, ids?, names?
    interfaces?, services?, servers?, endpoints?, routes?, apis?, handlers?, prompts?, inputs?, data, agents?
    sessions?, accounts?, profiles?, lists?, roles?, pages?, forms?, menus?, settings, configs?, controllers?
    components?, modules?, flows?, stor(y|ies), guides?, docs, documentation, experience, groups?, space
    strings?, headers?, payloads?, parsers?, methods?, param*, queues?, cache, stores?, files?, folders?
    director(y|ies), database, quer(y|ies), index(es)?, deletion, registration, login, lookups?, tokens?
    """
)
_MORE_PARTS: Final = _alternatives(
    """
    check*, tests?, hooks?, bits?, errors?, denied, flags?, body, timeouts?, limits?, logs?, dialogs?, modals?
    buttons?, screens?, emails?, engine, sets?, validat*, middleware, logic, hash*, resets?, managers?, events?
    state, status, count*, keys?, code
    """
)
TECHNICAL: Final = re.compile(
    rf"\busers?[ -](?:{_PARTS})\b|\buser-\w+|\b(?:confirmation|consent|approval) (?:dialogs?|modals?|e?mails?"
    rf"|screens?|pages?)\b"
    rf"|\b(?:permissions?|requests?|rules?|polic(?:y|ies)|passwords?|authori[sz]ation|constraints?|tokens?"
    rf"|secrets?|requirements?"
    rf"|instructions?|decision|preferences?|allow|api keys?)[ -](?:{_PARTS}|{_MORE_PARTS})\b"
    r"|\b(?:pull|merge|https?|get|post|put|patch|api|web|rest|client|network|outgoing|incoming|concurrent"
    r"|failed) requests?\b"
    r"|\b(?:lint(?:er|ing)?|eslint|ruff|css|style|firewall|routing|grammar|validation|build|redirect|ignore"
    r"|eligibility) rules?\b"
    r"|\b(?:file|folder|directory|unix|read|write|execution|database|iam) permissions?\b|\b(?:cache|retry"
    r"|security|cors) polic\w+"
    r"|\b(?:check|unique|foreign[- ]key|key|db|database|type|version) constraints?\b"
    r"|\b(?:errors?|message|hooks?|logs?|docs|output|comment|readme|tests?|tool|linter|compiler|mypy|response"
    r"|server|api|parser"
    r"|function|method|validator|regex|schema|code|library|spec|cli|script|config|class|handler|browser|git"
    r"|which) (?:\w+ )?"
    r"(?:said|says|wants?|asks?|told|prefers|requires?|allows?|allowed|forbids|permits|accepts?|demands|must"
    r"|may|shall)\b"
    r"|\b403 forbidden|\bpermission denied\b|\bdo(?:es)? not (?:work|compile|exist|match|fail|pass|run|build"
    r"|start)\b"
    r"|(?:请求|請求)(?:头|体|参数|返回|失败|超时)"
)
"""Words of the lists above as parts of a program, and verbs of a will whose subject is one."""
WORK_REPORT: Final = re.compile(
    r"^[\W_]*(?:i |also |then |\w+ly )*(?:fixed|added|implemented|changed|updated|created|renamed|refactored"
    r"|rewrote|moved|removed"
    r"|replaced|wrote|extended|simplified|tested|verified|checked|traced|reproduced|found|identified|located"
    r"|documented|extracted"
    r"|reverted|improved|introduced|adjusted|handled|converted|read|reviewed|debugged|patched|corrected"
    r"|discovered|designed|ran)\b"
    r"|\b(?:behoben|hinzugefugt|implementiert|korrigiert|repariert|corrigee?s?|ajoutee?s?|renommee?s?"
    r"|corregid[oa]s?|anadid[oa]s?"
    r"|implementad[oa]s?|corrigid[oa]s?|adicionad[oa]s?)\b|исправл|добавл|реализован|修复|新增了|实现了"
    r"|重构了|修正し|追加し|実装し"
)
"""Reports of work on code, in which an ambiguous word names a part of a program."""


EMPTY_SECTION: Final = "-"
"""Stands in a section of which nothing is left."""
MAX_READ_CHARS: Final = 1_000
"""Characters of a sentence that are read at once; a longer one is read in parts."""
OVERLAP_CHARS: Final = 100
"""Characters that two parts share."""
_END_CHARS: Final = 40
"""Characters at the end of a sentence in which its last mark is looked for."""
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_MARKUP_TAG: Final = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>\n]{0,200}>", re.DOTALL)
_EMPHASIS: Final = re.compile(r"[*~]+|(?<![^\W_])_+|_+(?![^\W_])|\\(?=\W)")
_SPACED_LETTERS: Final = re.compile(r"(?<!\w)(?:[^\W\d_][ .·-]){3,}[^\W\d_](?!\w)")
_CODE_SPAN: Final = re.compile(r"`+([^`\n]+)`+")
_FILE_ENDINGS: Final = (
    "py|pyi|js|jsx|mjs|ts|tsx|go|rs|rb|java|kt|c|h|cc|cpp|hpp|cs|php|sh|bash|ps1|sql|db|sqlite|jsonl?|ya?ml|toml|ini|cfg|conf"
    "|env|md|rst|txt|csv|html?|s?css|xml|lock|logs?|gz|zip|png|svg|vue|swift|scala|proto|tf|patch|diff"
)
_CODE: Final = re.compile(
    r"https?://\S+|(?<![\w.@+/~-])(?:[~.]{0,2}(?:/[\w.@+-]+){2,}/?|[\w.@+-]+(?:/[\w.@+-]+)*/[\w@+-]+\.\w{1,5}\b"
    rf"|[\w-]+(?:/[\w.-]+){{2,}}|[\w.-]{{0,80}}[\w-]\.(?:{_FILE_ENDINGS})\b(?::\d+)*|\.(?:{_FILE_ENDINGS}|git\w*)\b)"
    r"|\b\w[\w.]{0,80}\([\w.,\"'=*]{0,80}\)|\b\w*[^\W_]_+[^\W_]\w*(?:\.\w+)*|\b\w*[a-z][A-Z]\w*|\b\w+(?:\.\w+){2,}"
    r"|(?<!\S)--[a-z][\w-]*|\$\{?\w+\}?"
)
"""Paths, file names, calls and identifiers."""
_HANDLE: Final = re.compile(r"\be\d+(?:[-–]e?\d+)?\b")
_LOOKALIKES: Final = str.maketrans("асекморртухііѕјԁһνοαερτυιкзвнԛ", "acekmopptyxiisjdhvoaeptuikzbhq")
"""Letters of other scripts that look like Latin ones."""
_WORD: Final = re.compile(r"\w+")
_HEADING: Final = re.compile(r"[ \t>]*(#{1,6})[ \t]")
_BOLD_LINE: Final = re.compile(r"[ \t>]*(?:\*\*|__)[^*_\n]+(?:\*\*|__):?[ \t]*$")
_MARKER: Final = re.compile(r"[ \t>]*(?:(?:[-*+•–—·]|\d{1,3}[.)]|[a-z][.)])[ \t]+)?(?:\[[ xX]\][ \t]*)?")
_FENCE: Final = re.compile(r"[ \t>]*(?:```|~~~)")
_SENTENCE: Final = re.compile(r".+?(?:[.!?…]+[\"')\]*_`”»]*(?=\s|$)\s*|;\s+|[；。！？]+[」』”]?\s*|$)")
_UNFINISHED: Final = re.compile(r"[^.!?…。！？;；\"')\]`*_|”»\s][\"')\]*_`]*\s*$")
_LEAD_END: Final = re.compile(r"[:：][\s*_`)]*$")


def remove_user_sentences(text: str, *, headings: Collection[str] = ()) -> tuple[str, int]:
    """Return a draft without what it says about the user, and how many sentences were removed.

    The `headings` are those that were asked for: they stay, and a section without any other text has a dash."""
    removal = _Removal(frozenset(_heading_words(heading) for heading in headings))
    blocks = [removal.keep(block) for block in _split_blocks(text)]
    lines = "".join(filter(None, blocks)).split("\n")
    return _with_dashes(lines, removal.asked), removal.count


def is_about_user(sentence: str) -> bool:
    """Return whether a sentence is about the user or a will, tells a secret, or orders what needs permission."""
    step = MAX_READ_CHARS - OVERLAP_CHARS
    parts = range(0, max(1, len(sentence) - OVERLAP_CHARS), step)
    return any(_is_part_about_user(sentence[start : start + MAX_READ_CHARS]) for start in parts)


def _is_part_about_user(sentence: str) -> bool:
    text, has_code = _readable(sentence)
    plain = TECHNICAL.sub(CODE_MARK, text)
    if any(pattern.search(plain) for pattern in _ALWAYS) or SECRET_TOLD.search(plain):
        return True
    is_report = has_code and WORK_REPORT.search(text) is not None
    if AMBIGUOUS_WILL.search(plain) and not is_report:
        return True
    return not has_code and DUTY.search(plain) is not None


_ALWAYS: Final = (
    USER, SUBJECT_USER, ADDRESS, WILL, RULE_START, GUARDED_ORDER
)  # fmt: skip


# ── Reading a sentence ───────────────────────────────────────────────────────────────────────────────────


def _readable(sentence: str) -> tuple[str, bool]:
    """Return a sentence as the lists of words expect it, with a mark for code, and whether it has code."""
    text = unicodedata.normalize("NFKC", html.unescape(sentence))
    text = _MARKUP_TAG.sub("", _INVISIBLE.sub("", text))
    text = _CODE_SPAN.sub(_code_or_prose, text)
    text, names = _CODE.subn(f" {CODE_MARK} ", text)
    has_code = names > 0 or CODE_MARK in text
    text = _HANDLE.sub(" ", text)
    text = _EMPHASIS.sub("", _MARKER.sub("", text, count=1))
    text = _SPACED_LETTERS.sub(lambda found: re.sub(r"[ .·-]", "", found[0]), text)
    return " ".join(fold(_WORD.sub(_latin, text)).split()), has_code


def _code_or_prose(found: re.Match[str]) -> str:
    """Return a mark for a code span, but its text if it consists of plain words."""
    inside = found[1].strip()
    is_prose = re.fullmatch(r"[^\W\d_]+(?:['’ ,.!?-]+[^\W\d_]+)*[.!?]?", inside) and not _CODE.search(inside)
    return inside if is_prose else f" {CODE_MARK} "


def _latin(found: re.Match[str]) -> str:
    """Return a word with letters of two scripts in one."""
    word = found[0]
    if word.isascii() or not re.search("[A-Za-z]", word):
        return word
    return word.casefold().translate(_LOOKALIKES)


# ── Splitting a draft ────────────────────────────────────────────────────────────────────────────────────


class _DraftBlock(NamedTuple):
    """A heading, a list item with its further lines, a paragraph, a line of code, or blank lines."""

    text: str
    """With its line breaks."""
    kind: str
    """`heading`, `item`, `text`, `code` or `blank`."""
    depth: int = 0
    """The level of a heading, or the indent of an item."""


def _split_blocks(text: str) -> list[_DraftBlock]:
    blocks: list[_DraftBlock] = []
    is_code = False
    for line in (text + "\n").splitlines():
        line += "\n"  # whatever ended it: the patterns and the blank lines know this one
        is_fence = _FENCE.match(line) is not None
        if is_fence:
            is_code = not is_code
        last = blocks[-1] if blocks else None
        block = _DraftBlock(line, "code") if is_code or is_fence else _read_line(line)
        if (
            block.kind == "text"
            and last
            and last.kind in ("text", "item")
            and not line.lstrip(" \t>").startswith("|")
        ):
            blocks[-1] = last._replace(text=last.text + line)
        else:
            blocks.append(block)
    return blocks


def _read_line(line: str) -> _DraftBlock:
    if not line.strip(" \t>\n"):
        return _DraftBlock(line, "blank")
    if found := _HEADING.match(line):
        return _DraftBlock(line, "heading", len(found[1]))
    if _BOLD_LINE.match(line):
        return _DraftBlock(line, "heading", 7)
    marker = _MARKER.match(line)
    if marker and marker[0].strip(" \t>"):
        return _DraftBlock(line, "item", len(line) - len(line.lstrip(" \t>")))
    return _DraftBlock(line, "text")


def _split_sentences(block: str) -> list[str]:
    """Return the sentences of a block; joined they are the block. A line that begins a new sentence is one too."""
    units: list[str] = []
    for line in block.splitlines():
        marker = _MARKER.match(line)
        start = marker.end() if marker else 0
        sentences = _SENTENCE.findall(line[start:]) or [""]
        sentences[0] = line[:start] + sentences[0]
        sentences[-1] += "\n"
        if units and line[start : start + 1].islower() and _is_unfinished(units[-1]):
            units[-1] += sentences.pop(0)
        units += sentences
    return units


# ── Removing ─────────────────────────────────────────────────────────────────────────────────────────────


class _Removal:
    """The removal from one draft, block by block."""

    def __init__(self, asked: frozenset[str]) -> None:
        self.asked = asked
        """Headings that were asked for, in comparable form."""
        self.count: int = 0
        self._heading_depth = 0
        """The level of the removed heading above, 0 if there is none."""
        self._lead_depth: int | None = None
        """The indent of the removed line above that announces what follows."""
        self._announced = ""
        """The kind of the blocks that it announces: those of a list, of a code block, or one paragraph."""

    def keep(self, block: _DraftBlock) -> str:
        """Return what stays of the next block."""
        if block.kind == "blank":
            return block.text
        if block.kind == "heading":
            return self._keep_heading(block)
        if self._heading_depth or self._is_below_lead(block):
            self.count += len(_split_sentences(block.text))
            return ""
        self._lead_depth = None
        if block.kind == "code":
            return self._keep_line(block.text)
        return self._keep_sentences(block)

    def _keep_heading(self, block: _DraftBlock) -> str:
        self._lead_depth = None
        if _heading_words(block.text) in self.asked:
            self._heading_depth = 0
            return block.text
        if self._heading_depth and block.depth > self._heading_depth:
            self.count += 1
            return ""
        self._heading_depth = block.depth if is_about_user(block.text) else 0
        self.count += bool(self._heading_depth)
        return "" if self._heading_depth else block.text

    def _is_below_lead(self, block: _DraftBlock) -> bool:
        if self._lead_depth is None or self._announced not in ("", block.kind) or self._announced == "text":
            return False
        if not self._announced and block.kind == "item":
            # A list may stand at the indent of the item that announces it.
            self._lead_depth = min(self._lead_depth, block.depth - 1)
        self._announced = block.kind
        return block.kind != "item" or block.depth > self._lead_depth

    def _keep_line(self, line: str) -> str:
        if not is_about_user(line):
            return line
        self.count += 1
        return ""

    def _keep_sentences(self, block: _DraftBlock) -> str:
        sentences = _split_sentences(block.text)
        removed = list(_removed(sentences))
        if not any(removed):
            return block.text
        self.count += sum(removed)
        if removed[-1] and _LEAD_END.search(sentences[-1][-_END_CHARS:]):
            self._lead_depth, self._announced = (block.depth if block.kind == "item" else -1), ""
        marker = _MARKER.match(block.text)
        start = marker[0] if marker and removed[0] else ""
        rest = ""
        for sentence, is_removed in zip(sentences, removed, strict=True):
            if not is_removed:
                rest += sentence
            elif sentence.endswith("\n") and rest.strip() and not rest.endswith("\n"):
                rest = rest.rstrip() + "\n"
        if not re.search(r"\w", rest):
            return ""
        rest = rest.rstrip()
        rest = rest[:-1] + "." if removed[-1] and rest.endswith(";") else rest
        return start + rest.lstrip(" \t" if start else "") + "\n"


def _removed(sentences: list[str]) -> Iterator[bool]:
    """Yield for each sentence whether it goes: by itself, or as the rest of an unfinished line before it."""
    found = [is_about_user(sentence) for sentence in sentences]
    for place, sentence in enumerate(sentences):
        before = sentences[place - 1] if place and _is_unfinished(sentences[place - 1]) else ""
        after = sentences[place + 1] if place + 1 < len(sentences) and _is_unfinished(sentence) else ""
        yield (
            found[place]
            or (bool(before) and (found[place - 1] or is_about_user(f"{before} {sentence}")))
            or (bool(after) and not found[place + 1] and is_about_user(f"{sentence} {after}"))
        )


def _is_unfinished(sentence: str) -> bool:
    return _UNFINISHED.search(sentence[-_END_CHARS:]) is not None


def _heading_words(line: str) -> str:
    return " ".join(re.findall(r"\w+", fold(line)))


def _with_dashes(lines: list[str], asked: frozenset[str]) -> str:
    """Return the lines with a dash in each section that was asked for and has none left."""
    kept: list[str] = []
    is_empty = False
    for line in (*lines, "#"):
        is_heading = line.lstrip().startswith("#") or _heading_words(line) in asked
        if is_heading and is_empty:
            while kept and not kept[-1].strip():
                kept.pop()
            kept += [EMPTY_SECTION, ""]
        if line.strip():
            is_empty = _heading_words(line) in asked if is_heading else False
        kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept[:-1])).strip()
