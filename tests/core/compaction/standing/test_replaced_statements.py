"""Later statements of the user replace earlier ones about the same thing, in eight languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.compaction.standing import replaced_statements
from foveal.core.compaction.standing.statements import (
    Statement,
    StatementKind,
    find_replaced,
    find_sentences,
)

PAIRS: Final = {
    "English": """
        Never push to main. / You can push to main now.
        The deadline is 14 March 2027. / The deadline moved to 2 April 2027.
        Answer in French. / From now on answer in German.
        The budget is 5,000 EUR. / We have 7,500 EUR now.
        Use tabs. / Use spaces instead.
        Use tabs. / Use spaces instead of tabs.
        Translate everything into Spanish. / Translate everything into Portuguese instead.
        Always run the linter before committing. / No need to run the linter any more.
        Never touch the docs. / Forget what I said about the docs.
        We ship to Bolivia first. / Actually, we ship to Peru first.
        The staging host is db-7.example.com. / The staging host is now db-9.example.com.
        You may delete old branches. / Do not delete old branches any more.
        The meeting is on Monday at 9:00. / The meeting has been moved to Tuesday at 10:00.
        Keep the answers short. / Long answers are fine now.
        The port is 8080. / The port is 9090.
    """,
    "German": """
        Pushe niemals nach main. / Du darfst jetzt nach main pushen.
        Die Frist ist der 14. März 2027. / Die Frist wurde auf den 2. April 2027 verschoben.
        Antworte auf Französisch. / Antworte ab jetzt auf Deutsch.
        Das Budget beträgt 5.000 EUR. / Wir haben jetzt 7.500 EUR.
        Benutze Tabs. / Benutze stattdessen Leerzeichen.
        Benutze Tabs. / Benutze Leerzeichen statt Tabs.
        Übersetze alles ins Spanische. / Vergiss das mit dem Übersetzen.
        Führe immer den Linter aus. / Du musst den Linter nicht mehr ausführen.
        Fass die Dokumentation nicht an. / Vergiss, was ich zur Dokumentation gesagt habe.
        Der Staging-Host ist db-7.example.com. / Der Staging-Host ist jetzt db-9.example.com.
        Du darfst alte Branches löschen. / Du darfst alte Branches nicht mehr löschen.
        Das Treffen ist am Montag um 9:00 Uhr. / Das Treffen ist jetzt am Dienstag um 10:00 Uhr.
        Der Port ist 8080. / Der Port ist jetzt 9090.
    """,
    "French": """
        Ne pousse jamais sur main. / Tu peux maintenant pousser sur main.
        La date limite est le 14 mars 2027. / La date limite est reportée au 2 avril 2027.
        Réponds en anglais. / Désormais, réponds en allemand.
        Le budget est de 5 000 EUR. / Le budget est maintenant de 7 500 EUR.
        Utilise des tabulations. / Utilise plutôt des espaces.
        Utilise des tabulations. / Utilise des espaces au lieu de tabulations.
        Lance toujours le linter. / Plus besoin de lancer le linter.
        Ne touche pas à la documentation. / Oublie ce que j'ai dit sur la documentation.
        Le serveur de test est db-7.example.com. / Le serveur de test est désormais db-9.example.com.
        Tu peux supprimer les anciennes branches. / Ne supprime plus les anciennes branches.
        La réunion est lundi à 9h00. / La réunion est maintenant mardi à 10h00.
        Le port est 8080. / Le port est 9090 maintenant.
    """,
    "Spanish": """
        Nunca hagas push a main. / Ya puedes hacer push a main.
        La fecha límite es el 14 de marzo de 2027. / La fecha límite se movió al 2 de abril de 2027.
        Responde en francés. / A partir de ahora responde en alemán.
        El presupuesto es de 5.000 EUR. / Ahora tenemos 7.500 EUR.
        Usa tabuladores. / Usa espacios en su lugar.
        Usa tabuladores. / Usa espacios en vez de tabuladores.
        Ejecuta siempre el linter. / Ya no hace falta ejecutar el linter.
        No toques la documentación. / Olvida lo que dije sobre la documentación.
        El servidor de pruebas es db-7.example.com. / El servidor de pruebas ahora es db-9.example.com.
        Puedes borrar las ramas viejas. / Ya no borres las ramas viejas.
        La reunión es el lunes a las 9:00. / La reunión pasa al martes a las 10:00.
        El puerto es 8080. / El puerto ahora es 9090.
    """,
    "Portuguese": """
        Nunca faça push para main. / Agora você pode fazer push para main.
        O prazo é 14 de março de 2027. / O prazo mudou para 2 de abril de 2027.
        Responda em francês. / A partir de agora responda em alemão.
        O orçamento é de 5.000 EUR. / Agora temos 7.500 EUR.
        Use tabulações. / Use espaços em vez disso.
        Use tabulações. / Use espaços em vez de tabulações.
        Execute sempre o linter. / Não precisa mais executar o linter.
        Não mexa na documentação. / Esqueça o que eu disse sobre a documentação.
        O servidor de testes é db-7.example.com. / O servidor de testes agora é db-9.example.com.
        Você pode apagar os ramos antigos. / Não apague mais os ramos antigos.
        A reunião é na segunda-feira às 9:00. / A reunião passou para terça-feira às 10:00.
        A porta é 8080. / A porta agora é 9090.
    """,
    "Russian": """
        Никогда не пушь в main. / Теперь можно пушить в main.
        Срок сдачи — 14 марта 2027. / Срок сдачи перенесли на 2 апреля 2027.
        Отвечай на французском. / Отныне отвечай на немецком.
        Бюджет — 5000 евро. / Теперь у нас 7500 евро.
        Используй табы. / Лучше используй пробелы.
        Используй табы. / Используй пробелы вместо табов.
        Всегда запускай линтер. / Больше не нужно запускать линтер.
        Не трогай документацию. / Забудь, что я говорил про документацию.
        Тестовый сервер — db-7.example.com. / Тестовый сервер теперь db-9.example.com.
        Можешь удалять старые ветки. / Больше не удаляй старые ветки.
        Встреча в понедельник в 9:00. / Встречу перенесли на вторник в 10:00.
        Порт 8080. / Порт теперь 9090.
    """,
    "Chinese": """
        不要推送到main。 / 现在可以推送到main了。
        截止日期是2027年3月14日。 / 截止日期改到2027年4月2日。
        用法语回答。 / 从现在起用德语回答。
        预算是5000欧元。 / 我们现在有7500欧元。
        使用制表符。 / 改用空格。
        使用制表符。 / 用空格而不是制表符。
        提交前必须运行检查器。 / 不用再运行检查器了。
        不要动文档。 / 忘了我说的关于文档的话。
        测试服务器是db-7.example.com。 / 测试服务器现在是db-9.example.com。
        你可以删除旧分支。 / 不要再删除旧分支了。
        会议在星期一9点。 / 会议改到星期二10点。
        端口是8080。 / 端口现在是9090。
    """,
    "Japanese": """
        mainにpushしないでください。 / 今後はmainにpushしてもいいです。
        締め切りは2027年3月14日です。 / 締め切りは2027年4月2日に変更になりました。
        フランス語で答えてください。 / これからはドイツ語で答えてください。
        予算は5000ユーロです。 / 今は7500ユーロあります。
        タブを使ってください。 / 代わりにスペースを使ってください。
        タブを使ってください。 / タブではなくスペースを使ってください。
        必ずリンターを実行してください。 / もうリンターを実行する必要はありません。
        ドキュメントに触らないでください。 / ドキュメントについての話は忘れてください。
        テストサーバーはdb-7.example.comです。 / テストサーバーは今db-9.example.comです。
        古いブランチを削除してもいいです。 / もう古いブランチを削除しないでください。
        会議は月曜日の9時です。 / 会議は火曜日の10時に変更になりました。
        ポートは8080です。 / ポートは今9090です。
    """,
}
"""An earlier statement and the later one that replaces it."""

OTHER_PAIRS: Final = """
    Don't email the customer. / It's fine to email the customer now.
    Our launch date is June 3. / Launch date has been pushed back to June 20.
    Write the report in English. / Please write the report in Spanish from now on.
    Use npm. / Switch to pnpm instead.
    The meeting room is B12. / The meeting room is now C4.
    My phone number is 555-1234. / My phone number changed to 555-9876.
    Only use Postgres. / Use MySQL instead of Postgres.
    Bitte keine Emojis verwenden. / Emojis sind jetzt erlaubt.
    Das Meeting findet am Montag statt. / Das Meeting wurde auf Mittwoch verschoben.
    Der Preis ist 20 Euro. / Der Preis ist jetzt 25 Euro.
    Schreib auf Englisch. / Schreib ab sofort auf Deutsch.
    N'utilise pas d'emojis. / Les emojis sont maintenant autorisés.
    Le prix est de 20 euros. / Le prix passe à 25 euros.
    No uses emojis. / Ya puedes usar emojis.
    El precio es de 20 euros. / El precio subió a 25 euros.
    Não use emojis. / Agora pode usar emojis.
    O preço é de 20 euros. / O preço subiu para 25 euros.
    Не используй эмодзи. / Теперь можно использовать эмодзи.
    Цена 20 евро. / Цена теперь 25 евро.
    不要使用表情符号。 / 现在可以使用表情符号了。
    价格是20欧元。 / 价格现在是25欧元。
    絵文字を使わないでください。 / 絵文字を使ってもいいです。
    価格は20ユーロです。 / 価格は25ユーロになりました。
    Always write tests first. / You don't have to write tests first any more.
    Scope: only the API package. / Scrap the API scope rule.
"""
"""Pairs to which no word was tuned."""

UNRELATED: Final = """
    Never delete files in src. / Never delete files in docs.
    Never delete files in src. / You can delete files in docs now.
    Never delete files. / You can delete files in docs now.
    Never push to main or delete branches. / You can push to main now.
    Never push to main. / You can push to main if the tests pass.
    Never push to main. / You can push to develop now.
    Never push to main. / Never commit to main.
    The budget is 12,450.50 EUR and the deadline is 14 March 2027. / The deadline moved to 2 April 2027.
    The deadline for the report is 14 March. / The deadline for the talk is 2 April.
    The deadline is 14 March. / The deadline is 14 March.
    Chapter 1 has 20 pages. / Chapter 2 has 30 pages.
    Room 5 has 20 seats. / Room 6 has 30 seats now.
    My sister is called Ada. / My brother is called Tom now.
    We ship to Bolivia first. / Now fix the tests.
    Use tabs in Makefiles. / Use spaces in Python files.
    Answer in French. / Translate the title into German.
    Never use French in comments. / Never use German in comments.
    The server is fast. / The server is ugly now.
    Always run the tests. / Always run the linter.
    I have 3 cats. / I have 2 dogs.
    Bob owns billing. / Alice owns search now.
    I was in Rome in 2019. / I was in Rome in 2021.
    The train on 3 May leaves at 9:00. / The train on 5 May leaves at 10:00.
    Never show salaries. / Could you show the totals?
    Forget it. / Never push to main.
    Never push to main. / Scrap that.
    Always answer briefly. / Actually, the bug is in the parser.
    Do not mock the database. / You can mock the clock now.
    The limit is 10 requests. / The timeout is 30 seconds now.
    Never log passwords. / You can log user names now.
    Tests need 5 minutes. / Builds need 7 minutes now.
    Only edit files in src. / Now edit the readme.
    Paths are always relative, not absolute. / Paths are always relative, not absolute.
    You can push to docs-5 now. / You can push to docs-6 now.
    Notify Ada of every release. / From now on also notify Eva of every release.
    The meeting is on Monday. / There is also a meeting on Tuesday now.
    Du darfst Ada fragen. / Du darfst jetzt auch Eva fragen.
    Never delete the cache without asking me. / Delete the old cache folder now.
    Lösche nie Dateien in src. / Lösche nie Dateien in docs.
    Lösche nie Dateien in src. / Du darfst jetzt Dateien in docs löschen.
    Die Frist für den Bericht ist der 14. März. / Die Frist für den Vortrag ist der 2. April.
    Antworte auf Deutsch. / Schreib die Kommentare auf Englisch.
    Pushe nie nach main. / Du darfst jetzt nach develop pushen.
    Das Budget beträgt 5.000 EUR. / Die Miete beträgt jetzt 900 EUR.
    Kapitel 1 hat 20 Seiten. / Kapitel 2 hat 30 Seiten.
    Ne supprime jamais de fichiers dans src. / Ne supprime jamais de fichiers dans docs.
    Ne supprime jamais de fichiers dans src. / Tu peux maintenant supprimer des fichiers dans docs.
    La date limite du rapport est le 14 mars. / La date limite de la présentation est le 2 avril.
    Réponds en français. / Écris les commentaires en anglais.
    Le budget est de 5 000 EUR. / Le loyer est maintenant de 900 EUR.
    Nunca borres archivos en src. / Nunca borres archivos en docs.
    Nunca borres archivos en src. / Ya puedes borrar archivos en docs.
    El plazo del informe es el 14 de marzo. / El plazo de la charla es el 2 de abril.
    Responde en español. / Escribe los comentarios en inglés.
    Nunca apague arquivos em src. / Nunca apague arquivos em docs.
    Nunca apague arquivos em src. / Agora você pode apagar arquivos em docs.
    O prazo do relatório é 14 de março. / O prazo da palestra é 2 de abril.
    Responda em português. / Escreva os comentários em inglês.
    Никогда не удаляй файлы в src. / Никогда не удаляй файлы в docs.
    Никогда не удаляй файлы в src. / Теперь можно удалять файлы в docs.
    Срок отчёта — 14 марта. / Срок доклада — 2 апреля.
    Отвечай на русском. / Пиши комментарии на английском.
    不要删除src里的文件。 / 不要删除docs里的文件。
    不要删除src里的文件。 / 现在可以删除docs里的文件了。
    报告的截止日期是3月14日。 / 演讲的截止日期是4月2日。
    用中文回答。 / 用英文写注释。
    srcのファイルを削除しないでください。 / docsのファイルを削除しないでください。
    srcのファイルを削除しないでください。 / docsのファイルは削除してもいいです。
    報告書の締め切りは3月14日です。 / 講演の締め切りは4月2日です。
    日本語で答えてください。 / コメントは英語で書いてください。
    第1章は20ページです。 / 第2章は30ページです。
    Never commit secrets. / You can comment on secrets now.
    Tests run at 5:00. / Backups run at 6:00 now.
    Don't edit README.md. / You can edit CHANGELOG.md now.
    Paul leads design. / Anna leads sales now.
    The first phase costs 5,000. / The second phase costs 7,000.
    Write docs in English. / Write emails in German from now on.
    Benutze keine Emojis im Code. / Emojis sind jetzt in E-Mails erlaubt.
    No borres la base de datos. / Ya puedes borrar los logs.
    价格是20欧元。 / 运费现在是5欧元。
    価格は20ユーロです。 / 送料は今5ユーロです。
    Do not use regex. / You may use regex for parsing dates.
    Answer briefly. / Actually, use French names in the example.
    Server a is in rack 0. / Server b is in rack 1.
    server-a is in rack 0. / server-b is in rack 1.
    Port 80 is open. / Port 443 is open.
    The 9:00 train is late. / The 10:00 train is late.
    Le serveur a est dans le rack 0. / Le serveur b est dans le rack 1.
"""
"""Two statements of which both count."""


def lines_of(table: str) -> list[tuple[str, str]]:
    found = (line.strip().split(" / ") for line in table.strip().splitlines())
    return [(earlier, later) for earlier, later in found]


def statements_of(*texts: str) -> list[Statement]:
    """Return each text as one statement of a message of its own."""

    def kind_of(text: str) -> StatementKind:
        found = find_sentences(text)
        return found[0].kind if found else "fact"

    return [Statement(5 * place, 0, text, kind_of(text)) for place, text in enumerate(texts)]


@pytest.mark.parametrize("language", PAIRS)
def test_nine_of_ten_pairs_are_found(language: str) -> None:
    pairs = lines_of(PAIRS[language])
    missed = [pair for pair in pairs if find_replaced(statements_of(*pair)) != {(0, 0): (5, 0)}]
    assert len(pairs) >= 12
    assert len(missed) <= len(pairs) // 10, missed


@pytest.mark.parametrize(("earlier", "later"), lines_of(OTHER_PAIRS))
def test_a_pair_is_found(earlier: str, later: str) -> None:
    assert find_replaced(statements_of(earlier, later)) == {(0, 0): (5, 0)}


@pytest.mark.parametrize(("earlier", "later"), lines_of(UNRELATED))
def test_statements_about_different_things_both_count(earlier: str, later: str) -> None:
    assert find_replaced(statements_of(earlier, later)) == {}


def test_a_chain_ends_at_the_newest_statement() -> None:
    said = statements_of(
        "The deadline is 14 March.",
        "The deadline moved to 2 April.",
        "Deadline: 5 May now.",
        "Never push to main.",
    )
    assert find_replaced(said) == {(0, 0): (10, 0), (5, 0): (10, 0)}


def test_a_rule_that_is_stated_again_counts_again() -> None:
    said = statements_of("Never push to main.", "You can push to main now.", "Never push to main.")
    assert find_replaced(said) == {(0, 0): (5, 0)} | {(0, 0): (10, 0), (5, 0): (10, 0)}


def test_all_repetitions_of_a_rule_are_replaced() -> None:
    said = statements_of("Never push to main.", "Never push to main!", "You can push to main now.")
    assert find_replaced(said) == {(0, 0): (10, 0), (5, 0): (10, 0)}


def test_the_work_grows_with_the_number_of_statements_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0
    real = replaced_statements._is_replaced

    def counted(earlier: replaced_statements._Known, later: replaced_statements._Known) -> bool:
        nonlocal compared
        compared += 1
        return real(earlier, later)

    def work(count: int) -> int:
        nonlocal compared
        compared = 0
        find_replaced(
            [Statement(n, 0, f"The limit of service s{n} is {n} requests.", "fact") for n in range(count)]
        )
        return compared

    monkeypatch.setattr(replaced_statements, "_is_replaced", counted)
    assert work(400) <= 2.1 * work(200)


def said_by_users() -> Iterator[str]:
    for table in (*PAIRS.values(), UNRELATED):
        for pair in lines_of(table):
            yield from pair


@given(st.lists(st.one_of(st.text(max_size=80), st.sampled_from([*said_by_users()])), max_size=8))
def test_any_statements_can_be_compared(texts: list[str]) -> None:
    said = [Statement(place, 0, text, "fact") for place, text in enumerate(texts)]
    replaced = find_replaced(said)
    assert all(earlier < later for earlier, later in replaced.items())
    assert replaced.keys().isdisjoint(replaced.values())
