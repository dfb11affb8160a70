"""Words of corrections, facts and wishes, in several languages.

Each table has a line or more per language, its phrases separated by commas. A phrase is compared as whole words in
lower case. Languages that write without blanks have patterns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final


def words_of(table: str) -> frozenset[str]:
    """Return the words of a table that are separated by blanks."""
    return frozenset(table.split())


def phrases_by_first_word(table: str) -> Mapping[str, tuple[str, ...]]:
    """Return the phrases of a table, with a blank at both ends, by their first word."""
    phrases: dict[str, tuple[str, ...]] = {}
    for phrase in (phrase.strip() for line in table.split("\n") for phrase in line.split(",")):
        if phrase:
            first = phrase.partition(" ")[0]
            phrases[first] = (*phrases.get(first, ()), f" {phrase} ")
    return phrases


REVISIONS: Final = """
    no longer, anymore, never mind, nevermind, scrap that, scrap the, scrap my, scratch that
    strike that
    forget what i said, forget what i told
    ignore my earlier, ignore my previous, ignore my last, ignore what i said, ignore the earlier
    ignore the previous, disregard, on second thought, on second thoughts, on reflection, i meant
    i actually meant
    changed my mind, moved to, moved from, been moved, changed to
    changed from
    has changed, have changed, been changed, was changed, switched to, switched from, is switching to
    pushed back to, brought forward, been extended, been raised, been lowered
    been cut to
    been increased, been reduced, went up to, went down to, increased to, reduced to, raised to, lowered to
    now called, was wrong, i was mistaken
    i misspoke, i take that back, take back what, doesn't apply, does not apply, no need to
    you needn't, you can ignore, is lifted, been lifted, rule is off, is off the table, revoke, i revoke
    withdraw my, replaces what, supersedes, instead
    not what i meant, not what i asked, not what i said, let's not
    i've decided, i made a mistake, new plan, new deadline, new budget, also allowed
    doch nicht, nicht mehr, stattdessen, vergiss was, vergiss die, vergiss das, vergiss den, vergiss meine
    ignoriere meine, ignoriere was, ignorier, ich meinte, ich habe mich vertan, ich habe mich geirrt
    mein fehler
    verschoben, geändert auf, geändert, ist jetzt, sind jetzt, ist nun, sind nun, heißt jetzt, haben jetzt
    hat sich geändert, haben sich geändert, planänderung, umgezogen, umgestellt auf, gilt nicht mehr
    aufgehoben
    wieder erlaubt, ich habe es mir anders überlegt, anders überlegt, lieber doch, nehme ich zurück, statt
    anstatt
    beträgt jetzt, beträgt nun, kannst du jetzt, kannst jetzt, darfst du jetzt, darfst jetzt, darfst wieder
    kannst wieder, dürft jetzt, könnt jetzt, eigentlich, streich die, streich das, streiche die
    ne plus, n'est plus, ne sont plus, n'utilise plus, oublie ce que, oubliez ce que, oublie la, oublie le
    oublie ma, oublie mon, oublie les, ignore ce que, ignore ma, ignore mes, laisse tomber, je voulais dire
    je me suis trompé, je me suis trompée, mon erreur, au temps pour moi, déplacé au, déplacée au, reporté au
    reportée au, reporté, reportée, repoussé, repoussée, passe à, est passé à, est passée à, changé, changée
    a changé, ont changé, est maintenant, est désormais, sont maintenant, sont désormais, avons maintenant
    avons désormais, tu peux maintenant, vous pouvez maintenant, tu peux désormais, vous pouvez désormais
    finalement, en fait, réflexion faite, changé d'avis, plutôt, au lieu de, à la place, plus besoin
    ya no, olvida lo que, olvide lo que, olvida la, olvida el, olvida mi, ignora lo que, ignora mi, ignora mis
    quise decir, quería decir, me equivoqué, me he equivocado, mi error, cambié de opinión, cambio de planes
    he cambiado de idea, se movió, se ha movido, se mueve, se pasó, se ha pasado, pasa al, pasa a, se aplazó
    aplazado, aplazada, se ha cambiado, se cambió, ha cambiado, han cambiado, cambió, es ahora, ahora es
    ahora son, ahora está, ahora tenemos, ahora puedes, ya puedes, puedes ahora, ya se puede, en realidad
    pensándolo bien, mejor dicho, en vez de, en lugar de, en su lugar, deja de
    não mais, nao mais, já não, esqueça o que, esquece o que, esqueça a, esqueça o, ignore o que, ignora o que
    ignore minha, ignore meu, quis dizer, queria dizer, eu me enganei, me enganei, meu erro, mudei de ideia
    mudança de planos, mudou para, foi movido, foi movida, passou para, passa para, foi adiado, foi adiada
    adiado para, adiada para, foi alterado, foi alterada, foi mudado, mudou, agora é, agora são, agora está
    agora temos, agora você pode, agora pode, agora podes, você já pode, já pode, já podes, pode agora
    na verdade
    pensando bem, ou melhor, em vez disso, em vez de, no lugar de, ao invés de
    больше не, уже не, теперь можно, теперь можешь, теперь нельзя, забудь что, забудь про, забудь о, забудь об
    забудьте что, забудьте про, забудьте о, не обращай внимания на, я имел в виду, я имела в виду, я ошибся
    я ошиблась, моя ошибка, передумал, передумала, перенесли, перенесён, перенесен, перенесена, перенесено
    сдвинули
    изменили, изменён, изменен, изменился, изменилась, изменилось, изменились, поменяли, поменялся, поменялось
    на самом деле, лучше, вместо этого, вместо, отмена, отменяется, отменяю, отменили, снова можно
    снова можешь
    планы изменились, теперь у нас, теперь это, теперь зовут, отныне
    been rescheduled, was rescheduled, is rescheduled, rescheduled to, rescheduled for, been postponed
    was postponed
    is postponed, postponed to, postponed until, let's go back to
"""
"""Phrases that revise or revoke what was said before, anywhere in a sentence."""

REVISION_OPENINGS: Final = """
    actually, correction, make it, make that, sorry i meant, let me correct, scrap, forget
    rather
    strike, wait no, no wait, nope, no, now you can, now you may, from now on, instead
    korrektur, nein, nee, doch, vielmehr, eigentlich, ach nein, moment, jetzt darfst, jetzt kannst, ab jetzt
    correction, non, en fait, finalement, plutôt, en réalité, maintenant tu peux, maintenant vous pouvez
    corrección, en realidad, mejor, perdón, olvida, ahora puedes, ahora podéis, espera
    correção, não, na verdade, melhor, esquece, esqueça, agora você pode, agora pode, espera, desculpa
    исправление, поправка, нет, вообще-то, точнее, вернее, забудь, теперь, лучше, стоп
    change of plan, change of plans
    go back to, revert to, turns out, it turns out, my mistake
"""
"""Phrases that do so at the beginning of a sentence."""

NOT_REVISIONS: Final = """
    no problem, no worries, no thanks, no thank you, no idea, no rush, no doubt, no luck, now run, now fix
    no questions, no question, no one, no changes, no errors, no longer works, no matter
    now we have, now we get, update the, update your, update to, update all, update it, update this, update my
    scrap of, forget to, wait for, wait until, make it work, make it so, make it pass, make it look
    make it possible
    make it more, make it easier, make it faster, make it easy, instead of just
    nein danke, kein problem, non merci, não obrigado, não obrigada, нет проблем, теперь запусти
    теперь исправь
    no that's all, no that's it, no that's okay, no that's ok, no that's fine, no this is fine, no response
    no it's fine
    nah that's it, nope that's it, nope that's all, no thank, no i'm good, no just, right now, for now
    a while now
    months now, years now, year now, month now, weeks now, days now, hours now, just now, now that, until now
    by now
    even now, till now, for the moment, no signal, no service
    another question, something else, was wondering, also wondering, anything has changed, see how, cannot be
"""
"""Phrases that revise nothing, though they begin like those above."""

PERMISSIONS: Final = """
    you can, you may, you could, you're allowed, you are allowed, we can, we may, feel free, fine to, ok to
    okay to
    it's fine, is fine, is ok, is okay, is allowed, are allowed, allowed to, is permitted, permitted
    go ahead and
    don't mind, do not mind, you're free to, are free to, are fine, are ok, are okay, green light, i allow
    du kannst, du darfst, ihr dürft, ihr könnt, sie können, sie dürfen, kannst du, darfst du, darfst, dürft
    kannst
    könnt, erlaubt, gestattet, ist ok, ist okay, in ordnung, man darf, man kann, ich erlaube
    tu peux, vous pouvez, on peut, peux-tu, autorisé, autorisée, permis, permise, est ok, j'autorise
    d'accord pour, tu as le droit
    puedes, puede, podéis, pueden, se puede, se permite, permitido, permitida, está bien, autorizado
    tienes permiso
    podes, pode, podem, você pode, vocês podem, se pode, permitido, permitida, tudo bem, autorizado
    está liberado
    liberado, liberada
    можно, можешь, можете, разрешено, разрешаю, разрешается, разрешил, разрешила, разрешили
"""
"""Phrases that permit something."""

NOW_WORDS: Final = """
    now, jetzt, nun, inzwischen, maintenant, désormais, ahora, ya, agora, já, теперь, сейчас
"""
"""Words that say that something has changed, beside a permission or a value."""

IS_NOW: Final = re.compile(r" (?:is|are|will) now (?!\w+ing |like |the |of |correctly |not |in )")
AGAIN_WORDS: Final = """
    again, wieder, de nouveau, à nouveau, de nuevo, otra vez, de novo, novamente, снова, опять
"""
"""Words that say so beside a permission only."""

BE_WORDS: Final = """
    is, are, was, were, will be, has, have, had, costs, takes, runs, lives, works, called, named, starts
    ends, it's
    that's, i'm, i've, we're, we've, means, equals, goes, belongs, needs, uses, expires, owns, handles, stays
    there's, she's, he's, they're, i live, i work, i use, we use, we need, i need, we ship, ships, opens
    closes, lies
    ist, sind, war, waren, wird, werden, hat, haben, habe, kostet, kosten, heißt, heisst, heiße, heißen
    liegt, läuft
    beginnt, endet, beträgt, wohne, wohnt, arbeite, arbeitet, bin, gibt, brauchen, brauche, nutzen, nehmen
    gilt
    gehört, steht
    est, sont, était, sera, seront, ai, j'ai, avons, ont, coûte, s'appelle, m'appelle, habite, travaille
    commence
    finit, suis, c'est, livrons, utilisons, se trouve
    es, son, era, será, tiene, tengo, tenemos, cuesta, llama, llamo, está, están, vive, vivo, trabajo, empieza
    termina, soy, somos, usamos, hay, vence
    é, são, será, tem, tenho, temos, custa, chama, chamo, estão, fica, moro, trabalho, começa, sou, usamos
    vence
    есть, будет, был, была, было, были, стоит, зовут, живу, работаю, начинается, составляет, находится, это
    называется, равен, равна, используем, нужно
"""
"""Verbs of sentences that state how things are."""

SUBJECTS: Final = """
    the, my, our, his, her, their, its, this, that, it's, we, i, i'm, i've, we're, we've, it, he, she, they
    there
    there's, all, both, each, every, your, a, an, one, nobody, everyone, i'll, we'll, i'd, we'd, she's, he's
    der, die, das, den, dem, mein, meine, meinen, meiner, unser, unsere, unseren, unserer, ich, wir, er, sie
    es
    dieser, diese, dieses, ihr, alle
    le, la, les, l, mon, ma, mes, notre, nos, je, j, nous, on, ce, cette, c'est, il, elle, son, sa, un, une
    j'ai
    el, los, las, mi, mis, nuestro, nuestra, nuestros, yo, nosotros, este, esta, su, una
    o, a, os, as, meu, minha, meus, nosso, nossa, nossos, eu, nós, este, esta, seu, sua, um, uma, ele, ela
    мой, моя, моё, мое, мои, наш, наша, наше, наши, я, мы, у, меня, его, её, этот, эта, это, он, она
    tengo, tenemos, vivo, trabajo, soy, somos, usamos, tenho, temos, moro, trabalho, sou
"""
"""Words with which a statement begins."""

KEY_NOUNS: Final = """
    deadline, budget, limit, due date, date, price, fee, rent, salary, port, host, hostname, server
    address
    version, email, e-mail, phone, number, name, username, user id, zip, zip code, meeting
    appointment
    launch, release, release date, timeout, quota, size, birthday, wedding, flight, schedule, target, goal
    start date, end date, owner, customer, client, region, timezone, time zone, currency, language, rate
    discount
    frist, termin, stichtag, preis, kosten, miete, gehalt, adresse, telefon, nummer, besprechung, treffen
    ziel
    geburtstag, größe, grenze, passwort, kunde, sprache, währung, abgabe
    échéance, date limite, prix, coût, loyer, salaire, adresse, téléphone, numéro, nom, réunion, rendez-vous
    lancement, limite, objectif, serveur, hôte, client, langue, devise, délai
    plazo, fecha, fecha límite, presupuesto, precio, coste, costo, alquiler, puerto, servidor, dirección
    teléfono
    número, nombre, reunión, cita, lanzamiento, límite, objetivo, cliente, idioma, moneda, versión, entrega
    prazo, data, orçamento, preço, custo, aluguel, porta, servidor, endereço, telefone, nome, reunião
    lançamento
    limite, meta, cliente, moeda, versão
    срок, дедлайн, дата, бюджет, цена, стоимость, аренда, зарплата, порт, сервер, хост, адрес, телефон, номер
    имя
    встреча, запуск, релиз, лимит, цель, клиент, язык, валюта, версия
"""
"""Nouns whose value is a fact, with or without a verb."""

DECISIONS: Final = """
    we decided, i decided, we've decided, i've decided, we agreed, we've agreed, i agreed, let's go with
    i'll go with
    we go with, we're going with, i'm going with, i went with, we chose, i chose, we'll use, we'll go
    i'd go with
    i prefer, we prefer, i'd prefer, i would prefer, i'd rather, i would rather, i'd like the
    i would like the
    i'd like my, i'd like your, i'd like it, i want the, i want my, i want your, i want it, i want all
    i want every
    i want answers, i like my, i like it when, it would be great if, it would be nice if, it'd be great if
    it'd be nice if, it would be good if, it would be helpful if, it would help if, would be great if
    would be nice if, would be good if, i would appreciate, i'd appreciate, we would appreciate
    would love it if
    i'd love it if, i hope the, ideally, name's, known as
    i live in
    i work at, i work for, i work as, i'm a, i am a, i'm an, i am an, i'm allergic, i'm vegan, i'm vegetarian
    we ship, our policy, is responsible for, the plan is, the goal is, the idea is, belongs to, is owned by
    stands for, i'll be using, we settled on, i settled on
    wir haben beschlossen, wir haben entschieden, wir haben uns entschieden, ich habe entschieden, wir nehmen
    ich nehme, wir nutzen, wir verwenden, ich bevorzuge, mir wäre lieber, ich möchte, ich hätte gern
    ich hätte gerne
    ich will, es wäre schön, es wäre gut, es wäre toll, wäre es möglich, ich würde gerne, ich wohne
    ich arbeite
    ich heiße, wir liefern, lieber wäre mir, am liebsten
    nous avons décidé, on a décidé, j'ai décidé, nous utilisons, on utilise, je préfère, nous préférons
    je préférerais, j'aimerais, je voudrais que, ce serait bien, ce serait mieux, il serait bien, j'habite
    je travaille, je m'appelle, s'appelle, nous livrons, on livre, idéalement, je souhaite
    hemos decidido, decidimos, he decidido, decidí, usamos, prefiero, preferimos, preferiría, me gustaría
    sería bueno, sería genial, estaría bien, quisiera, vivo en, trabajo en, me llamo, se llama, enviamos
    idealmente, quiero que
    decidimos, nós decidimos, decidi, prefiro, preferimos, gostaria, eu gostaria, seria bom, seria ótimo
    seria legal, moro em, trabalho em, me chamo, chama-se, se chama, enviamos, quero que
    мы решили, я решил, я решила, решено, мы используем, предпочитаю, я предпочитаю, мне бы хотелось
    хотелось бы, я хотел бы, я хотела бы, было бы хорошо, было бы здорово, было бы неплохо, я живу, я работаю
    меня зовут, зовут, мы поставляем, желательно, хочу чтобы, я хочу чтобы, мы отправляем
"""
"""Phrases of decisions, lasting wishes and names, which state a fact without a value too."""

PERMISSION_OPENINGS: Final = """
    you may, you can also, you're allowed, you are allowed, you can delete, you can push, you can commit
    you can change, you can edit, you can merge, you can deploy, you can spend, you can ignore, feel free
    du darfst, sie dürfen, ihr dürft, du kannst gern, du kannst gerne, du kannst auch, tu peux, vous pouvez
    puedes, podéis, se puede, você pode, vocês podem, podes, можешь, можете, можно
"""
"""Phrases that permit at the beginning of a sentence."""

POLITE_WISHES: Final = """
    you make sure, you please make sure, you ensure, you please ensure, you see to it, you keep
    you please keep
    you try to keep, you avoid, you please avoid, you please not, you not, you refrain, you be careful
    you mind
    you stick to, you take care, you leave out, you please leave out, you limit, you hide, you prefer
    we make sure
    we keep, we avoid, be possible to keep, be possible to avoid, would be great if, be nice if, be good if
    you please stick
    du darauf achten, du bitte darauf achten, du dafür sorgen, du bitte dafür sorgen, du sicherstellen
    du bitte sicherstellen, sie darauf achten, sie bitte darauf achten, sie dafür sorgen
    sie bitte dafür sorgen
    sie sicherstellen, sie bitte sicherstellen, achtest du, achten sie, du vermeiden, sie vermeiden
    faire en sorte, veiller à, t'assurer, vous assurer, éviter de, garder les, pourrais-tu éviter
    serait-il possible
    asegurarte, asegurarse, evitar que, procurar que, evitar, mantener, sería posible
    garantir que, certificar, cuidar para, evitar que, seria possível, manter
    сделать так чтобы, проследить чтобы, убедиться что, позаботиться чтобы, следить чтобы, избегать
    постараться не, не могли бы, было бы возможно
"""
"""Phrases of polite questions that ask for something lasting."""

NOT_FACTS: Final = """
    error, errors, exception, traceback, fails, failed, failing, failure, crash, crashes, crashed, broken
    bug, stack
    trace, i get, i got an, i'm getting, i see, getting the, thanks, thank, i want you to, i need you to
    i'd like you
    i would like you, you to, i think you, i was wondering, i'm wondering, i wonder, i'm looking for
    i'm trying to
    having trouble, can you, could you, let me, here is, here's, here are, below is, following, the following
    lines, line
    fehler, fehlgeschlagen, danke, hier ist, erreur, merci, voici, gracias, aquí está, obrigado, obrigada
    aqui está
    ошибка, ошибку, спасибо, вот
    still, i tried, i just tried, i've tried, i checked, i've checked, i just checked, i turned, i've turned
    it looks like
    looks like, i don't see, isn't working, not working, can't send, i ran, i've run, shows, showing
    having an issue
    having issues, i'm worried, i'm not sure, i'm starting, i don't have, i've heard, i heard, unable
    i'm upset
    really upset, reproduce, bug report, expected, i've reset, i reset, i restarted, i've restarted
    i went ahead
    i've disconnected, i don't know, immer noch, toujours pas, todavía, ainda não, всё ещё
    i don't remember, i can't remember, your task is, i haven't
    i'd like to know, i'm interested in, interested in learning, i'm curious, also curious, i'm excited
    i can't believe
    i'm glad, i had no idea, looking forward, appreciate the help, i appreciate, i'd love to know
    like to learn
    like to explore, learn more, know more, i know i, it's sad, i'm skeptical, i noticed you, as you
    particularly interested
    also interested, step-by-step, i now see, i followed
    interested in, need to understand, i didn't realize, i cannot find, i can't find, i believe
    it's inspiring, may need
    keep trying, like to discuss
"""
"""Phrases of reports, thanks and introductions, which state no fact."""

ANSWERS: Final = """
    yes, yeah, yep, yup, no, nope, nah, ok, okay, sure, go, option, correct, right, exactly, agreed, please
    do, don't
    both, neither, either, none, all, the first, the second, the third, the last, first, second, fine
    absolutely
    definitely, of course, go ahead, sounds good, perfect, that works, let's, i prefer, y, n
    ja, nein, genau, gern, gerne, einverstanden, klar, beide, keins, die erste, die zweite, natürlich
    oui, non, d'accord, bien sûr, exactement, les deux, la première, la deuxième, vas-y
    sí, si, vale, claro, de acuerdo, exacto, ambos, ninguno, la primera, la segunda, adelante
    sim, não, certo, claro, de acordo, exato, ambos, nenhum, a primeira, a segunda, pode
    да, нет, ага, конечно, хорошо, ладно, согласен, согласна, оба, первый, второй, давай
"""
"""Beginnings of answers to a question."""

NO_ANSWERS: Final = """
    thanks, thank you, hello, hi, hey, good morning, bye, goodbye, great, danke, hallo, tschüss, merci
    bonjour, salut
    gracias, hola, adiós, obrigado, obrigada, olá, tchau, спасибо, привет, здравствуйте, пока
    no problem, no worries, ugh, hmm, wow, lol
"""
"""Greetings and thanks."""

REOPENINGS: Final = """
    still fails, still failing, still fail, still broken, still doesn't, still does not, still not
    still don't
    still isn't, still get, still getting, still see, still seeing, still have, still there, still wrong
    still happens
    still happening, still red, still crashes, still crashing, still an error, still errors, still the same
    broken again, fails again, failing again, failed again, failed, crashes again, happened again
    happening again
    is back, it's back, came back, not fixed, isn't fixed, not solved, not resolved, not done, isn't done
    not yet
    doesn't work, does not work, didn't work, did not work, not working, isn't working, doesn't help
    didn't help
    didn't fix, did not fix, doesn't fix, same error, same problem, same issue, same result, that's wrong
    that is wrong, that's not right, that is not right, not what i, try again, wrong again, reopen, no change
    made it worse, you forgot, you missed, is missing, regression, keeps failing, keeps crashing
    nothing changed
    immer noch, noch immer, noch nicht, schon wieder, wieder kaputt, geht nicht, funktioniert nicht
    klappt nicht
    nicht behoben, nicht gelöst, selbe fehler, gleiche fehler, derselbe fehler, hat nicht geholfen
    fehlgeschlagen
    toujours pas, toujours la même, encore cassé, encore cassée, pas encore, ne marche pas, ne fonctionne pas
    n'a pas marché, même erreur, même problème, pas réglé, pas résolu, échoue toujours, échoue encore
    plante encore
    sigue fallando, sigue sin, sigue roto, sigue rota, todavía no, aún no, no funciona, no funcionó
    mismo error
    mismo problema, no está arreglado, otra vez roto, falla otra vez, falla de nuevo, sigue igual
    continua falhando, continua quebrado, continua sem, continua com, ainda não, ainda falha, ainda está
    não funciona
    não funcionou, mesmo erro, mesmo problema, não está resolvido, quebrou de novo, falhou de novo
    всё ещё, все еще, всё равно, все равно, ещё не, еще не, опять, снова не, снова сломал, снова падает
    не работает
    не сработало, не помогло, не исправлено, не решено, та же ошибка, то же самое, по-прежнему
    сломалось снова
"""
"""Phrases that reopen what was answered before."""

UNSPACED_REVISION: Final = re.compile(
    "不再|改成|改为|改為|改到|改用|换成|換成|换到|换为|变成|變成|变为|變為|移到|推迟到|推遲到|提前到|延期到|延后到|延到|调整为|調整為|调到|更正"
    "|忘了我|忘掉|忽略我|忽略之前|别管|算了|取消|作废|其实|其實|说错|說錯|我的意思是|我是说|我改主意|改主意|现在可以|現在可以|现在是"
    "|现在有|现在叫|可以.{0,20}了(?:[。！]|$)|现在不|不用再|不需要再|而是|撤销|撤回|恢复"
    "|変更|変わり|変わった|になりました|に移|延期|ではなく|じゃなくて|もう.{0,20}(?:ない|ません|いい|必要)|やっぱり|やはり|訂正"
    "|忘れて|なかったことに|取り消|撤回|実は|間違え|代わりに|今は|今から|てもいい|ても構い|てもよい|てよく|もうできます|無視して"
    "|더 이상|대신|바뀌었|변경|취소|사실은|이제"
)
UNSPACED_WISH: Final = re.compile(
    "^(?:你|您|你们)可以|希望|最好|尽量|盡量|能不能确保|能否确保|能不能保证|能否保证|我喜欢|我喜歡|我想要|偏好|倾向|就好了|我们决定|我們決定|决定用|决定|決定"
    "|我叫|名叫|名字|我住|我在.{1,12}工作|能.{0,4}保证|可以.{0,4}确保|能.{0,4}注意"
    "|ていただけると|てもらえると|と助かり|と嬉し|とうれし|てほしい|て欲しい|が好き|好みは|が望まし|に決め|ことにし|と呼|といいます|という名前"
    "|名前は|住んでい|働いてい|ようにしていただけ|ようにしてもらえ|たいと思"
)
UNSPACED_STYLE: Final = re.compile("用|使|回答|答え|翻译|訳|写|書|说|話|回复|返答")
"""Orders that last if they name a choice."""
UNSPACED_STATE: Final = re.compile(
    "是|为|為|叫|在|有|定|共|住|发货|發貨|[：:]|です|だ。|である|ます|は|が|에서|입니다|은|는"
)
UNSPACED_COMMAND: Final = re.compile(
    r"^(?:请|請|帮|幫|把|给我|給我|运行|運行|执行|修复|修改|删除|检查|看看|添加|写|生成)|(?:ください|下さい|て|ろ|せよ|해줘|하세요)[。！!]?$"
)
UNSPACED_QUESTION: Final = re.compile(
    "[吗嗎呢么]$|(?:です|ます|でしょう|ません)か[。]?$|什么|怎么|为什么|哪|何ですか"
)
UNSPACED_NOT_FACT: Final = re.compile(
    "错误|錯誤|报错|失败|失敗|谢谢|謝謝|エラー|ありがとう|あいさつ|以下|如下|오류|감사"
)
UNSPACED_ANSWER: Final = re.compile(
    "^(?:是的?|对|對|好|行|可以|不是?|不要|没问题|选|第[一二三]|はい|いいえ|いや|ええ|うん|そう|お願い|了解|네|아니)"
)
UNSPACED_REOPENING: Final = re.compile(
    "还是|還是|仍然|仍旧|又坏|又失败|又报错|又出|还没|還沒|不行|没用|沒用|没有解决|没解决|同样的错误|没修好|没有修|依然"
    "|まだ|また(?:壊|失敗|エラー|落ち|同じ)|直っていない|直ってない|直っていません|動かない|動きません|同じエラー|解決していない|変わらない"
    "|여전히|아직|또"
)
HAS_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
"""A character of a language that writes without blanks, or joins endings to words."""

MONTHS_AND_DAYS: Final = words_of(
    """
    january february march april june july august september october november december monday tuesday
    wednesday thursday friday saturday sunday tomorrow weekend januar februar märz mai juni juli oktober
    dezember montag dienstag mittwoch donnerstag freitag samstag sonntag janvier février mars avril juin
    juillet août septembre octobre novembre décembre lundi mardi mercredi jeudi vendredi samedi dimanche
    enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre lunes martes
    miércoles jueves viernes sábado domingo janeiro fevereiro março maio junho julho setembro outubro
    novembro dezembro segunda-feira terça-feira quarta-feira quinta-feira sexta-feira января февраля марта
    апреля мая июня июля августа сентября октября ноября декабря понедельник вторник среда среду четверг
    пятница пятницу суббота субботу воскресенье
    """
)
