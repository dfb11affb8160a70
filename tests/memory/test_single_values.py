"""In a memory, what has one value at a time has the later one; everything else stays side by side."""

from __future__ import annotations

import asyncio

import pytest

from foveal import Memory
from foveal.core.log.events import Event, UserSaid
from foveal.core.tokens.counter import Estimate
from foveal.stores import MemoryStore

REPLACED = (
    ("My e-mail is ada@example.com.", "My email address is grace@example.com."),
    ("I'm Ada.", "I'm called Grace."),
    ("My name is Ada.", "My name is Grace."),
    ("My name is Ada.", "I'm called Grace"),
    ("My first name is Ada.", "my first name is Grace now"),
    ("My birthday is 3 May.", "My birthday is 4 May."),
    ("My birthday is 3 May.", "I was born on 4 May."),
    ("My e-mail is ada@example.com.", "My email is grace@example.com."),
    ("My role is tester.", "My role is maintainer."),
    ("I work as a nurse.", "My job is teaching."),
    ("I live in Paris.", "I live in Rome."),
    ("My favourite editor is vim.", "My favourite editor is Helix."),
    ("We use pytest for tests.", "We use unittest for tests."),
    ("We use pytest for tests.", "We now use unittest for tests"),
    ("Ich heiße Ada.", "Mein Name ist Grace."),
    ("Je m'appelle Ada.", "Mon nom est Grace."),
    ("Me llamo Ada.", "Mi nombre es Grace."),
    ("Meu nome é Ada.", "Me chamo Grace."),
    ("Меня зовут Ада.", "Меня зовут Грейс."),
    ("我叫小明。", "我的名字是小红。"),
    ("私の名前はエイダです。", "私の名前はグレースです。"),
    ("Server a is in rack 0.", "Server a is in rack 1."),
    ("My name's Ada.", "My name is Grace."),
    ("I am Ada.", "I am Grace."),
    ("I'm Ada.", "My name is Grace."),
    ("My favourite colour is red.", "My favorite color is blue."),
    ("My job is teaching.", "My job is nursing."),
    ("The staging port is 8081.", "The staging port is 9090."),
    ("Use tabs.", "Use spaces."),
    ("Indent with tabs.", "Indent with 4 spaces."),
    ("I prefer tabs.", "I prefer spaces."),
    ("Answer in French.", "Answer in German."),
    ("Never push to main.", "You can push to main now."),
    ("The deadline is 14 March.", "The deadline is 2 April."),
    ("My sister's name is Ada.", "My sister's name is Grace."),
    ("My boss is Bob.", "My boss is Carol."),
    ("The standup is at 9:00.", "The standup is at 10:00."),
    ("The meeting is on Monday.", "The meeting is on Tuesday."),
    ("The limit is 10 MB.", "The limit is 20 MB."),
    ("Our database is PostgreSQL.", "Our database is MySQL."),
    ("My time zone is CET.", "My timezone is PST."),
    ("I weigh 80 kg.", "I weigh 78 kg."),
    ("I am 30 years old.", "I am 31 years old."),
    ("Use metric units.", "Use imperial units."),
    ("Der Port ist 8081.", "Der Port ist 9090."),
    ("Antworte auf Deutsch.", "Antworte auf Englisch."),
    ("Le port est 8081.", "Le port est 9090."),
    ("El puerto es 8081.", "El puerto es 9090."),
    ("端口是8081。", "端口是9090。"),
    ("Ich wohne in Bern.", "Ich wohne in Rom."),
    ("Je suis Ada.", "Je m'appelle Grace."),
    ("私は東京に住んでいます。", "私は大阪に住んでいます。"),
    ("My name is Ada.", "Call me Grace."),
    ("I am Ada Lovelace.", "My name is Grace."),
    ("I'm 30.", "I'm 31 years old."),
    ("Mi chiamo Ada.", "Il mio nome è Grace."),
    ("Soy Ada.", "Me llamo Grace."),
    ("Je suis Ada.", "Je suis Grace."),
    ("Réponds en français.", "Réponds en anglais."),
    ("Responde en español.", "Responde en inglés."),
    ("Use dark mode.", "Use light mode."),
    ("Keep answers short.", "Keep answers long."),
    ("I prefer vim.", "I prefer emacs."),
    ("Use npm.", "Use pnpm."),
    ("Use 2 spaces.", "Use tabs."),
    ("My manager is Bob.", "My manager's Carol."),
    ("My wife's name is Ada.", "My wife's name is Eva."),
    ("My phone number is 555 1234.", "My phone number is 555 9876."),
    ("My pronouns are she/her.", "My pronouns are they/them."),
    ("Отвечай по-русски.", "Отвечай по-английски."),
    ("用中文回答。", "用英文回答。"),
    ("日本語で答えてください。", "英語で答えてください。"),
    ("Мне 30 лет.", "Мне 31 год."),
    ("我今年30岁。", "我今年31岁。"),
    ("The budget is 500 EUR.", "The budget is 700 EUR."),
    ("Die Frist ist der 3. Mai.", "Die Frist ist der 4. Mai."),
    ("I like tea.", "I don't like tea."),
    ("I don't like tea.", "I like tea."),
    ("I am allergic to nuts.", "I am not allergic to nuts."),
    ("My name is Ada.", "My name is not Ada."),
    ("I live in Berlin.", "I no longer live in Berlin."),
    ("I live in Berlin.", "I don't live in Berlin any more."),
    ("I live in Berlin.", "I now live in Paris."),
    ("I live in Berlin.", "I relocated to Paris."),
    ("I live in Germany.", "I live in France."),
    ("Ich mag Tee.", "Ich mag keinen Tee."),
    ("J'aime le thé.", "Je n'aime pas le thé."),
    ("我喜欢茶。", "我不喜欢茶。"),
    ("My dog is called Rex.", "My dog is called Bello."),
    ("My dog's name is Rex.", "My dog is called Bello."),
    ("Meine Lieblingsfarbe ist rot.", "Meine Lieblingsfarbe ist blau."),
    ("Ma couleur préférée est le rouge.", "Ma couleur préférée est le bleu."),
    ("Mi color favorito es el rojo.", "Mi color favorito es el azul."),
    ("Minha cor favorita é vermelho.", "Minha cor favorita é azul."),
    ("Мой любимый цвет — красный.", "Мой любимый цвет — синий."),
    ("我最喜欢的颜色是红色。", "我最喜欢的颜色是蓝色。"),
    ("私の好きな色は赤です。", "私の好きな色は青です。"),
    ("Mein Chef heißt Karl.", "Mein Chef heißt Otto."),
    ("Ich arbeite als Lehrer.", "Ich arbeite als Arzt."),
    ("Ich arbeite bei Bosch.", "Ich arbeite jetzt bei BMW."),
    ("Moro em Lisboa.", "Moro no Porto."),
    ("Wir nutzen pytest für Tests.", "Wir nutzen unittest für Tests."),
    ("I live in Berlin.", "I live in Paris now."),
)
BOTH = (
    ("I am Ada.", "I am Mary's husband."),
    ("Use tabs.", "Use tabs and spaces."),
    ("Je m'appelle Ada.", "Mon chien s'appelle Rex."),
    ("我叫小明。", "我的狗叫旺财。"),
    ("Bus 5 leaves at 8:00.", "Bus 6 leaves at 8:30."),
    ("I use vim.", "I use emacs."),
    ("My name is Ada.", "My name is Bob in the tests."),
    ("My name is Ada and I use tabs.", "My name is Grace."),
    ("My name is Ada.", "My sister's name is Grace."),
    ("My name is Ada.", "My name is not Grace."),
    ("My name is Ada.", "My birthday is 3 May."),
    ("My first name is Ada.", "My last name is Lovelace."),
    ("We use pytest for tests.", "We also use tox for tests."),
    ("We use pytest for tests.", "We use tox for tests too."),
    ("We use pytest for tests.", "We use ruff for linting."),
    ("We use pytest for tests.", "We never use unittest for tests."),
    ("I am an engineer.", "I am a vegetarian."),
    ("My name is Ada.", "My name is often misspelled."),
    ("I live in Bern.", "I live in fear of merges."),
    ("I work at Acme.", "I work at night."),
    ("My birthday is 1 May.", "My birthday is a secret."),
    ("Server a is in rack 0.", "Server b is in rack 1."),
    ("Server 1 is in rack 0.", "Server 2 is in rack 1."),
    ("My job is teaching.", "My job is hard."),
    ("I am Ada.", "I am German."),
    ("I am Ada.", "I am tired."),
    ("I am Ada.", "I am Vegan"),
    ("Anna is 30 years old.", "Bob is 31 years old."),
    ("The staging port is 8081.", "The production port is 9090."),
    ("Use tabs in Go.", "Use spaces in Python."),
    ("Use tabs for Makefiles.", "Use spaces for YAML files."),
    ("The cat weighs 4 kg.", "The dog weighs 20 kg."),
    ("Bob's phone is 555-1234.", "Ann's phone is 555-9876."),
    ("Room a has 3 desks.", "Room b has 4 desks."),
    ("Team x meets at 9:00.", "Team y meets at 10:00."),
    ("I have 2 cats.", "I have 3 dogs."),
    ("Node a runs version 1.", "Node b runs version 2."),
    ("Port 80 is open.", "Port 443 is open."),
    ("Key a maps to 1.", "Key b maps to 2."),
    ("Der Server a steht in Rack 0.", "Der Server b steht in Rack 1."),
    ("Le serveur a est dans le rack 0.", "Le serveur b est dans le rack 1."),
    ("服务器A在机架0。", "服务器B在机架1。"),
    ("My role is tester.", "My role is unclear."),
    ("My title is too long.", "My title is CTO."),
    ("My address is Main Street 5.", "My address is private."),
    ("My favourite editor is vim.", "My favourite colour is red."),
    ("My birthday is 3 May.", "My sister's birthday is 4 May."),
    ("Our role is support.", "My role is maintainer."),
    ("My work e-mail is a@x.com.", "My private e-mail is b@x.com."),
    ("I live in Paris.", "I live in Rome in summer."),
    ("Answer in French.", "Write comments in English."),
    ("Mein Bruder ist 30 Jahre alt.", "Meine Schwester ist 31 Jahre alt."),
    ("Meeting a is on Monday.", "Meeting b is on Tuesday."),
    ("Use Python 3.12 for the server.", "Use Python 3.13 for the client."),
    ("I drink 2 coffees in the morning.", "I drink 1 coffee in the evening."),
    ("The door code is 1234.", "The safe code is 9999."),
    ("The i3 has 4 cores.", "The i7 has 8 cores."),
    ("We use v1 in prod.", "We use v2 in staging."),
    ("Line 1 is blue.", "Line 2 is red."),
    ("The A team has 3 people.", "The B team has 5 people."),
    ("X is 3.", "Y is 4."),
    ("The c flag is 3.", "The d flag is 4."),
    ("I love French.", "I love German."),
    ("I like Python.", "I like Rust."),
    ("I hate tabs.", "I hate spaces."),
    ("I speak French.", "I speak German."),
    ("My mother is German.", "My mother is Ada."),
    ("My boss is Bob.", "My boss is nice."),
    ("My boss is Bob.", "My wife is Ada."),
    ("I am Ada.", "I am Swiss."),
    ("I am Ada.", "I am CTO."),
    ("I am Ada.", "I am a nurse."),
    ("I am Ada.", "I am Left-handed."),
    ("I am 30.", "I am 180 cm tall."),
    ("Ich bin Lehrer.", "Ich bin Veganer."),
    ("Ich heiße Ada.", "Ich bin Deutscher."),
    ("Je suis Ada.", "Je suis français."),
    ("Soy Ada.", "Soy vegetariano."),
    ("Use tabs.", "Use spaces in Python."),
    ("Use tabs in Go files.", "Use spaces in YAML files."),
    ("Use Python.", "Use Rust."),
    ("Answer in French.", "Answer Bob in German."),
    ("Answer in French.", "Translate to German."),
    ("My cat's name is Tom.", "My dog's name is Rex."),
    ("My name is Ada.", "My cat's name is Tom."),
    ("My title is CTO.", "My title is silly."),
    ("My role is tester.", "My role is changing."),
    ("My role is to review.", "My role is tester."),
    ("My job is a nightmare.", "My job is teaching."),
    ("The limit is 10 MB.", "The quota is 20 MB."),
    ("Disk 1 is full.", "Disk 2 is full."),
    ("Alice starts at 9:00.", "Bob starts at 10:00."),
    ("The 9:00 train is late.", "The 10:00 train is late."),
    ("Our office is in Bern.", "My home is in Rome."),
    ("Backups run at 2:00.", "Reports run at 3:00."),
    ("The db port is 5432.", "The web port is 8080."),
    ("El servidor a está en el rack 0.", "El servidor b está en el rack 1."),
    ("Der Port von A ist 1.", "Der Port von B ist 2."),
    ("The red team has 3 members.", "The blue team has 4 members."),
    ("server-a is in rack 0", "server-b is in rack 1"),
    ("host1 is in Bern", "host2 is in Rome"),
    ("db1 has 4 GB", "db2 has 8 GB"),
    ("Ann's birthday is 3 May.", "Bob's birthday is 4 May."),
    ("My son's birthday is 3 May.", "My daughter's birthday is 4 May."),
    ("I run 5 km on Mondays.", "I run 10 km on Sundays."),
    ("Serverul x are 3 GB.", "Serverul y are 4 GB."),
    ("Сервер а стоит 100 рублей.", "Сервер б стоит 200 рублей."),
    ("端口A是1。", "端口B是2。"),
    ("会议室3在二楼。", "会议室4在三楼。"),
    ("I live in Bern.", "I live in a house."),
    ("My favourite editor is vim.", "My favourite editor is broken."),
    ("Call me Ada.", "Call me tomorrow."),
    ("Call me Ada.", "Call me at 9:00."),
    ("Keep tests short.", "Keep docs long."),
    ("Use short names.", "Use long lines."),
    ("My sister is 30 years old.", "I am 31 years old."),
    ("Mia is 3.", "Tom is 5."),
    ("Rack 1 has 10 servers.", "Rack 2 has 12 servers."),
    ("Chapter 2 is done.", "Chapter 3 is done."),
    ("The key for a is 1.", "The key for b is 2."),
    ("Option a costs 3 EUR.", "Option b costs 4 EUR."),
    ("Use Python 3.12.", "Use Python 3.13 in CI."),
    ("Monday meetings are short.", "Friday meetings are long."),
    ("私は東京に住んでいます。", "母は大阪に住んでいます。"),
    ("私は東京に住んでいます。", "妹は大阪に住んでいます。"),
    ("私は東京に住んでいます。", "私の母は大阪に住んでいます。"),
    ("私は東京に住んでいます。", "友達は大阪に住んでいます。"),
    ("My email is a@x.com.", "My work email is b@x.com."),
    ("My email is a", "My work email is b"),
    ("My phone is 1.", "My work phone is 2."),
    ("I live in Berlin.", "I live in Germany."),
    ("Use tabs in Go.", "Use spaces."),
    ("Ich arbeite bei Bosch.", "Ich arbeite bei Nacht."),
    ("I like tea.", "My sister doesn't like tea."),
    ("My boss is Bob.", "My boss is not Carol."),
    ("Meine Lieblingsfarbe ist rot.", "Meine Lieblingsfarbe ist nicht mehr so wichtig."),
    ("Mein Chef heißt Karl.", "Mein Chef ist nett."),
    ("I live in Berlin.", "I moved to Kubernetes."),
    ("My dog is called Rex.", "My cat is called Tom."),
    ("My dog is called Rex.", "My dog is called often."),
)


def test_a_longer_name_replaces_a_shorter_one_and_not_the_other_way_round() -> None:
    assert kept("My name is Ada.", "My name is Ada Lovelace.") == ["My name is Ada Lovelace."]
    assert kept("My name is Ada Lovelace.", "Call me Ada.") == ["My name is Ada Lovelace.", "Call me Ada."]


def kept(*statements: str) -> list[str]:
    async def run() -> list[str]:
        memory = Memory("ada", store=MemoryStore(), counting=Estimate())
        for statement in statements:
            await memory.remember(statement)
        return [entry.text for entry in await memory.entries()]

    return asyncio.run(run())


@pytest.mark.parametrize(("earlier", "later"), REPLACED)
def test_the_later_value_counts(earlier: str, later: str) -> None:
    assert kept(earlier, later) == [later]


@pytest.mark.parametrize(("one", "other"), BOTH)
def test_two_things_are_both_kept(one: str, other: str) -> None:
    assert kept(one, other) == [one, other]
    assert kept(other, one) == [other, one]


def test_a_name_is_a_fact_told_said_or_proposed() -> None:
    async def run() -> None:
        memory = Memory("ada", store=MemoryStore(), counting=Estimate())
        assert (await memory.remember("My name is Ada.")).kind == "fact"
        (note,) = await memory.hear([Event(1, UserSaid(content="Remember that my birthday is 3 May."))])
        assert note.entry.kind == "fact"
        (proposal,) = await memory.propose([Event(2, UserSaid(content="My name is Grace. Why is CI red?"))])
        assert (proposal.kind, proposal.text) == ("fact", "My name is Grace.")
        await memory.accept(proposal.id)
        assert [entry.text for entry in await memory.entries()] == [
            "my birthday is 3 May.",
            "My name is Grace.",
        ]
        assert (await memory.why("m0")).replaced_by == proposal.id
        await memory.undo("m0")
        assert len(await memory.entries()) == 3

    asyncio.run(run())


def test_a_name_is_replaced_among_many_entries() -> None:
    others = [f"Box {number} holds part {number * 7}." for number in range(300)]
    assert kept("My name is Ada.", *others, "My name is Grace.") == [*others, "My name is Grace."]
