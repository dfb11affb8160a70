"""Words by which two statements are compared: negations, permissions, conditions and values, in several languages.

Each table has a line or more per language, its phrases separated by commas.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.core.compaction.standing.statement_words import words_of

FORBIDDING: Final = """
    never, do not, don't, no longer, dont, must not, mustn't, may not, cannot, can't, should not, shouldn't
    stop, avoid, not
    forbidden, prohibited, not allowed, no, under no circumstances, refrain from, no more, hands off
    leave alone
    are not to, is not to, not supposed to, you can't, you cannot, i forbid, off limits, doesn't, does not
    isn't
    aren't, won't, will not, shan't, nicht, nicht mehr, nie, niemals, kein, keine, keinen, keinem, keiner
    verboten
    auf keinen fall, darfst nicht, hör auf, lass das
    ne, n', pas, jamais, interdit, interdite, ne pas, évite, évitez, arrête, arrêtez, aucun, aucune
    défense de
    nunca, jamás, no, ya no, prohibido, prohibida, evita, evite, deja de, dejad de, ningún, ninguna
    queda prohibido
    não, nao, já não, nunca, jamais, proibido, proibida, evite, pare de, nenhum, nenhuma
    не, больше не, уже не, никогда, нельзя, запрещено, запрещается, запрещаю, избегай, избегайте, перестань
    ни в коем случае
    хватит, прекрати
"""
"""Phrases that forbid or deny."""

RELEASING: Final = """
    no need to, no need for, needn't, don't need to, do not need to, don't have to, do not have to
    not necessary
    isn't necessary, unnecessary, isn't needed, not needed, not required, isn't required, optional
    no longer need to
    no longer have to, no longer required, no longer needed, no longer necessary, doesn't need to
    doesn't have to
    musst nicht, müssen nicht, brauchst nicht, brauchst du nicht, musst du nicht, nicht nötig
    nicht mehr nötig
    nicht notwendig, nicht mehr notwendig, nicht erforderlich, unnötig
    plus besoin de, plus besoin d', pas besoin de, pas besoin d', n'es plus obligé de, plus nécessaire
    pas nécessaire
    plus obligatoire, inutile de
    no hace falta, ya no hace falta, no es necesario, ya no es necesario, no necesitas, ya no necesitas
    no tienes que, ya no tienes que
    não precisa, não precisa mais, não é necessário, não é mais necessário, não é preciso, já não é preciso
    já não precisa, não tens de, não tem que, não precisas, já não precisas
    не нужно, не надо, больше не нужно, больше не надо, не обязательно, необязательно, уже не нужно
    не требуется
"""
"""Phrases that end an obligation."""

REQUIRING: Final = """
    always, must, shall, should, have to, has to, need to, needs to, required, mandatory, make sure, ensure
    only
    every time, whenever, immer, stets, muss, musst, müssen, soll, sollst, sollte, nur, pflicht, jedes mal
    toujours, dois, doit, devez, il faut, obligatoire, seulement, uniquement, chaque fois
    siempre, debe, debes, tienes que, hay que, obligatorio, solo, sólo, solamente, cada vez
    sempre, deve, deves, tem que, obrigatório, apenas, somente, só, precisa, toda vez
    всегда, должен, должна, должны, надо, нужно, обязательно, только, необходимо, каждый раз
"""
"""Phrases that demand."""

PERMITTING: Final = """
    can, may, could, allowed, permitted, feel free to, feel free, free to, fine to, ok to, okay to
    go ahead and, fine
    ok, okay, allow, i allow, green light, go ahead, don't mind, do not mind, is fine, are fine, welcome to
    kannst, darfst, dürft, könnt, können, dürfen, darf, kann, erlaubt, gestattet, in ordnung, erlaube
    wieder erlaubt
    peux, peut, pouvez, autorisé, autorisée, autorisés, permis, permise, autorise, d'accord, as le droit de
    puedes, puede, podéis, pueden, permitido, permitida, permito, se permite, está bien, autorizado
    podes, pode, podem, permitido, permitida, permito, tudo bem, autorizado, liberado, liberada, está liberado
    можно, можешь, можете, разрешено, разрешаю, разрешается, разрешил, разрешила
"""
"""Phrases that permit."""

CHANGING: Final = """
    now, instead, no longer, any more, anymore, again, actually, from now on, from here on, going forward
    henceforth
    from today, moved to, moved, been moved, moved from, changed to, changed, been changed, changes to
    switched to
    switch to, switch, postponed to, postponed, rescheduled to, rescheduled, pushed back to, pushed to
    brought forward to, extended to, extended, been extended, raised to, raised, lowered to, lowered, cut to
    increased to, increased, reduced to, reduced, went up to, went down to, grew to, correction, i meant
    make it
    make that, rather, on second thought, on second thoughts, new, update, turns out, from today on, today
    starting today, changed my mind, meanwhile, slipped to, starting now
    jetzt, nun, stattdessen, nicht mehr, wieder, eigentlich, ab jetzt, ab sofort, von jetzt an, künftig
    verschoben
    wurde verschoben, verschiebt sich, geändert, wurde geändert, umgestellt, erhöht, gesenkt, verlängert
    korrektur
    ich meinte, doch, lieber, inzwischen, neu, neue, neuer, neues, mittlerweile, doch lieber
    maintenant, désormais, plutôt, à la place, plus, de nouveau, à nouveau, en fait, finalement, dorénavant
    à partir de maintenant, déplacé, déplacée, reporté, reportée, repoussé, repoussée, changé, changée, passé
    passée
    passe, augmenté, réduit, prolongé, correction, je voulais dire, nouveau, nouvelle, été
    à partir d'aujourd'hui
    ahora, ya no, ya, en su lugar, en cambio, de nuevo, otra vez, en realidad, mejor, a partir de ahora
    de ahora en adelante, movió, movido, pasó, pasado, pasa, aplazó, aplazado, aplazada, cambió, cambiado
    cambia
    subió, bajó, aumentó, corrección, quise decir, nuevo, nueva, ha, se, en vez de eso, desde ahora
    agora, já não, já, em vez disso, de novo, novamente, na verdade, melhor, a partir de agora
    de agora em diante
    mudou, mudado, mudada, passou, passa, adiado, adiada, movido, movida, alterado, alterada, aumentou, subiu
    baixou
    correção, quis dizer, novo, nova, foi, mais, daqui em diante
    теперь, сейчас, вместо этого, больше, снова, опять, на самом деле, лучше, отныне, впредь, с этого момента
    перенесли, перенесён, перенесен, перенесена, перенесено, сдвинули, сдвинут, изменили, изменён, изменен
    изменился
    изменилась, увеличили, уменьшили, поменяли, исправление, я имел в виду, новый, новая, новое, уже
    с сегодняшнего дня
    переехал, перешли, отныне и впредь
"""
"""Phrases that say that something has changed."""

REVOKING: Final = """
    forget what i said about, forget what i told you about, forget about, forget, scrap, scratch, strike
    ignore
    ignore what i said about, ignore my earlier, ignore my previous, disregard, disregard what i said about
    drop
    never mind, nevermind, never mind what i said about, i revoke, revoke, withdraw, lift, cancel, i take back
    take back what i said about, no longer applies, doesn't apply, does not apply, is lifted, been lifted
    doesn't apply any more, is off, is cancelled, is canceled, is obsolete, is void
    vergiss was ich über, vergiss was ich zu, vergiss, vergesst, ignoriere, ignorier, streiche, streich
    gilt nicht mehr
    gilt nicht, ist aufgehoben, aufgehoben, hinfällig, nehme zurück
    oublie ce que j'ai dit sur, oublie ce que j'ai dit à propos de, oublie, oubliez, ignore, ignorez
    laisse tomber
    annule, ne s'applique plus, n'est plus valable, est annulée, est annulé, est levée
    olvida lo que dije sobre, olvida lo que dije de, olvida, olvide, ignora, ignore, cancela, descarta
    ya no se aplica, ya no aplica, queda anulada, queda anulado, ya no vale
    esqueça o que eu disse sobre, esqueça o que disse sobre, esqueça, esquece, esquece o que eu disse sobre
    esquece o que disse sobre, ignore, ignora, cancele, cancela, não se aplica mais, não vale mais
    já não se aplica, está cancelada, está cancelado
    забудь что я говорил о, забудь что я говорил про, забудь что я сказал о, забудь что я сказал про
    забудь про
    забудь о, забудь об, забудь, забудьте, игнорируй, отмени, отменяю, отменяется, больше не действует
    уже не действует, не действует
"""
"""Phrases that revoke what they name."""

INSTEAD_OF: Final = """
    instead of, rather than, not, in place of, statt, anstatt, anstelle von, nicht, au lieu de
    au lieu d', plutôt que, et non, pas, en vez de, en lugar de, y no, em vez de, no lugar de, ao invés de
    e não
    вместо, а не
"""
"""Phrases before what no longer counts."""

CONDITIONS: Final = """
    without, unless, until, before, after, if, when, while, except, once, as long as, provided, only if
    but only
    apart from, besides, for now, during
    ohne, außer, bis, bevor, wenn, sobald, nachdem, solange, falls, während
    sans, sauf, avant, après, si, quand, lorsque, tant que, jusqu'à, pendant, à condition
    sin, excepto, salvo, hasta, antes, después, si, cuando, mientras, siempre que
    sem, exceto, salvo, até, antes, depois, quando, enquanto, desde que, se os, se as, se o, se a, se você
    se for, se não
    без, кроме, пока, если, когда, после, перед
"""
"""Phrases that begin a condition."""

REASONS: Final = """
    because, since, as, so that, so, now that, given, weil, da, denn, damit, car, parce que, puisque, comme
    porque
    ya que, pues, pois, já que, потому что, поскольку, так как, ведь
"""
"""Phrases that begin a reason."""

CONJUNCTIONS: Final = words_of(
    """
    and or nor oder und ou et y o e u или и & sowie
    """
)

ADDITIONS: Final = words_of(
    """
    also too additionally another besides auch zusätzlich außerdem aussi également además también também
    além также тоже ещё еще
    """
)
"""Words of statements that add to the earlier ones."""
BEING: Final = words_of(
    """
    is are be will has have costs cost takes called named it's that's equals runs lives uses starts ends
    expires stays closes opens weighs wiegt pèse pesa we've i've we're i'm appelle ist sind hat haben
    habe kostet heißt heisst beträgt liegt läuft beginnt endet gilt wird est sont ai ont avons coûte s'appelle
    sera es son tiene tengo tenemos cuesta llama está será vence é são tem tenho temos custa chama fica есть
    будет стоит зовут составляет это называется
    """
)
"""Verbs between a thing and its value."""

EMPTY: Final = words_of(
    """
    a an the this that these those it its i me my we us our you your he she they them their his her to of
    in on at by for from with into onto as is are be been was were will would has have had do does did
    done use uses using used please just also too so then there here very really about said say told tell
    what which who than but not s t re ve ll d am let's lets let want wants like i'd i'm i've i'll we'd
    we're we've we'll you're it's that's there's ever all any some only everything anything something
    thing things rule rules every each one ones directly freely already yet still well ok okay yes yeah
    thanks sorry wait oh hm earlier previous last instruction instructions statement part bit time times
    going go get got keep put set work works per over up out off if team client customer boss manager
    management they've called named kindly der die das den dem des ein eine einen einem einer eines ich
    mich mir mein meine meinen meiner wir uns unser unsere unserem unseren unserer du dir dich dein deine
    sie ihr ihnen er es zu zum zur im ins auf aus bei von vom mit für über unter um als ist sind war waren
    wird werden wurde wurden hat haben habe sein bitte auch dann da dass man sich benutze benutz benutzen
    verwende verwenden nutze nutzen nimm nehmen regel noch schon sage gesagt beträgt liegt uhr heißt alle
    alles etwas direkt gern gerne mal ja und oder kunde chef le la les l un une de à au aux en dans sur
    pour par avec ce cet cette ces il elle nous vous tu te toi je j moi mon ma mes ton ta tes notre nos
    votre vos son sa ses leur est sont être été était sera ai ont avons avez que qu qui quoi se y et ou
    utilise utilisez utiliser s'il plaît règle tout tous toute aussi bien dit j'ai directement c'est el
    los las una unos del al con por para qué o e lo su sus mi mis tus nuestro nuestra yo está están era
    ser fue ha han hay usa usar usen utiliza utilice utilizar favor regla todo todos también dije tenemos
    tiene tengo directamente cliente vez os uma dos no na nas ao em com pelo pela seu sua seus meu minha
    nosso nossa eu você vocês é são foi há utilize regra tudo também disse temos tem tenho diretamente
    gente я мы ты вы он она они меня мне нас нам тебя тебе вас вам мой моя моё мое мои наш наша наше наши
    твой в во на с со к ко о об обо по за от из у для и или а но что чтобы это этот эта эти то так же бы
    ли есть будет был была было были используй используйте использовать правило пожалуйста всё все также
    тоже говорил сказал сказала клиент напрямую про делай делать
    hacer haz haga hagas haces hace fazer faça faças faz faire fais faites fait mache mach machen tun
    """
)
"""Words without content of their own."""

MONTHS: Final = words_of(
    """
    january february march april may june july august september october november december jan feb mar apr
    jun jul aug sep sept oct nov dec januar februar märz mai juni juli oktober dezember janvier février
    mars avril juin juillet août septembre octobre novembre décembre enero febrero marzo abril mayo junio
    julio agosto septiembre octubre noviembre diciembre janeiro fevereiro março maio junho julho setembro
    outubro novembro dezembro января февраля марта апреля мая июня июля августа сентября октября ноября
    декабря январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь
    """
)
DAYS: Final = words_of(
    """
    monday tuesday wednesday thursday friday saturday sunday mondays fridays tomorrow montag dienstag
    mittwoch donnerstag freitag samstag sonntag lundi mardi mercredi jeudi vendredi samedi dimanche lunes
    martes miércoles jueves viernes sábado domingo segunda-feira terça-feira quarta-feira quinta-feira
    sexta-feira понедельник вторник среда среду четверг пятница пятницу суббота субботу воскресенье noon
    midnight am pm uhr cet cest utc gmt est pst h
    """
)
UNITS: Final = words_of(
    """
    eur euro euros usd dollar dollars gbp pounds chf franken rub yen € $ £ ¥ % percent prozent k million
    millions dólares reais рублей евро долларов kb mb gb tb kib mib gib kg km cm mm lb lbs кг км мб гб
    """
)
DURATIONS: Final = words_of(
    """
    second seconds sec secs minute minutes min mins hour hours hrs day days week weeks month months year
    years ms sekunde sekunden minuten stunde stunden tag tage tagen woche wochen monat monate jahr jahre
    seconde secondes heure heures jour jours semaine semaines mois an ans segundo segundos minuto minutos
    hora horas día días semana semanas mes meses año años dia dias mês ano anos секунда секунд минута
    минут час часа часов день дня дней неделя недели недель месяц месяца месяцев год года лет
    """
)
CHOICES: Final = """
    english french german spanish portuguese russian chinese japanese italian dutch polish korean turkish
    arabic hindi
    swedish ukrainian mandarin deutsch englisch französisch spanisch portugiesisch russisch chinesisch
    japanisch
    italienisch spanische deutsche englische französische russische chinesische japanische portugiesische
    italienische anglais français allemand espagnol portugais russe chinois japonais italien inglés francés
    alemán
    español portugués ruso chino japonés italiano inglês francês alemão espanhol português russo chinês
    japonês
    английском английский английски французском французский французски немецком немецкий немецки испанском
    испанский
    испански португальском португальский русском русский русски китайском китайский китайски японском японский
    японски по-русски по-английски по-немецки по-французски по-испански по-китайски по-японски
    |tabs tab spaces space tabulatoren leerzeichen tabulations espaces tabulaciones tabuladores espacios
    tabulações
    espaços табы табуляцию пробелы
    |short brief concise long detailed verbose breve corto corta cortas largo larga largas detallado kurz
    kurze knapp
    ausführlich lang lange court courte courtes longue longues détaillé détaillées curto curta curtas longo
    longa longas
    detalhado коротко кратко подробно короткие подробные
    |npm yarn pnpm bun|pip uv poetry conda pipenv|postgres postgresql mysql sqlite mariadb mongodb|dark light
    dunkel hell
    |metric imperial|formal informal casual formell informell|vim emacs nano|pytest unittest|aws gcp azure
    |camelcase snake_case kebab-case|celsius fahrenheit|jpeg jpg png webp|json yaml toml xml csv
    |python rust golang java kotlin typescript javascript ruby php|merge rebase squash|black ruff flake8
"""
"""Words of which one replaces another, a class after each bar."""

UNSPACED_DATE: Final = re.compile(
    r"(?:\d{4}年)?\d{1,2}月(?:\d{1,2}[日号號])?|\d{4}年|(?:下?周|星期|礼拜)[一二三四五六日天]|[月火水木金土日]曜日?|\d{1,2}[点時时](?:\d{1,2}分|半)?"
)
UNSPACED_NUMBER: Final = re.compile(
    r"\d[\d,.]*(?:\s*(?:万|千|亿|億|欧元|美元|元|块|円|ユーロ|ドル|人|个|名|天|小时|分钟|秒|周|个月|時間|分|日間|日|秒|週間|EUR|USD))?"
)
UNSPACED_CHOICE: Final = re.compile(
    "(?P<language>(?:英|法|德|西班牙|葡萄牙|俄|中|汉|日|韩|意大利)(?:语|文|語)|英語|フランス語|ドイツ語|スペイン語|ポルトガル語|ロシア語|中国語|日本語|韓国語"
    "|イタリア語)|(?P<indent>制表符|空格|タブ|スペース)|(?P<length>简短|简洁|详细|短く|長く|詳しく|簡潔に?)|(?P<style>正式|口语|敬語|ため口|丁寧)"
)
UNSPACED_FORBIDDING: Final = re.compile(
    "不要|不得|不能|不可以?|不许|不准|禁止|切勿|请勿|别|絕不|绝不|从不|永远不|决不|不应|ないでください|ないで|てはいけません|てはいけない|てはならない|ないこと"
    "|しない|せず|やめて|てはだめ|しません|なく|ません|ない"
)
UNSPACED_RELEASING: Final = re.compile(
    "不用再|不必再|不需要再|不用|不必|不需要|无需|無需|不再需要|なくてもいい|なくていい|なくても構い(?:ません)?|必要はありません|必要はない|必要ありません|不要です"
)
UNSPACED_PERMITTING: Final = re.compile(
    "可以|允许|允許|能够|准许|没问题|てもいいです|てもいい|てもよい|ても構いません|ても構わない|ても大丈夫|ていいです|ていい|てよい|許可します|許可|できます"
)
UNSPACED_REQUIRING: Final = re.compile(
    "必须|必須|务必|一定要|总是|始终|每次|都要|应该|必ず|常に|いつも|毎回|べき|なければなりません|なければならない|てください|下さい|ください"
)
UNSPACED_CHANGING: Final = re.compile(
    "从现在开始|从现在起|从今以后|今后|以后|现在|目前|已经|改成|改为|改到|改用|改在|换成|换到|变成|变为|移到|推迟到|推迟|提前到|延期到|延到|延长到|调整为|调整到"
    "|调到|增加到|减少到|提高到|降到|更正|其实|不再|而是|我的意思是|我是说|改|又|再"
    "|これからは|これから|今から|今後は|今後|今は|今|変更になりました|変更になった|変更されました|変更します|変更しました|変更|変わりました|変わった|になりました"
    "|に移動しました|に移りました|延期されました|延期になりました|延期|延びました|ではなく|じゃなくて|代わりに|やっぱり|やはり|訂正|実は|もう|引き上げ|増え"
)
UNSPACED_REVOKING: Final = re.compile(
    "忘了我(?:之前|刚才)?(?:说的)?(?:关于)?|忘掉|忽略我(?:之前|刚才)?(?:说的)?(?:关于)?|忽略之前(?:关于)?|取消|作废|撤销|撤回|别管|不再适用|不适用了|についての?(?:話|件|ルール|こと)は?忘れて(?:ください)?"
    "|忘れて(?:ください)?|なかったことに|取り消し(?:ます|てください)?|取り消|無視して(?:ください)?|無効(?:です)?"
)
UNSPACED_INSTEAD_OF: Final = re.compile(
    "(?:不是|而不是|而非|代替|不再用)(?P<after>[\\w]{1,12})|(?P<before>[\\w]{1,12})(?:ではなく|じゃなくて|の代わりに)"
)
UNSPACED_CONDITION: Final = re.compile(
    r"除非|如果|[\u3400-\u9fff]{1,4}(?:之前|以前|前|之后)|没有|除了|的时候|なしに|なしで|までは|場合|前に|後に|たら|なければ|以外"
)
UNSPACED_EMPTY: Final = re.compile(
    "我们|你们|我|你|您|的|了|是|在|到|为|為|和|与|也|都|请|把|用|要|会|有|就|上|里|中|给|对|这|那|说|关于|规则|的话|话|回答时|那条|这条|之前|刚才|使用|について|ルール|ください|下さい|"
    "私|使って|使い|使用|こと|"
    "[\u3040-\u309f]+"
)
UNSPACED_BEING: Final = re.compile("是|为|為|叫|は|が")
UNSPACED_ADDITION: Final = re.compile("也|还要|還要|另外|以及|さらに|もまた|追加で|加えて")
UNSPACED_AND: Final = re.compile("和|或|以及|并|也|と|や|または|および")
