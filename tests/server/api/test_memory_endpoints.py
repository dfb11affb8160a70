"""The memory of a tenant's users over real HTTP: learned in one session, used in the next, seen and erased."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.core.tokens.counter import Estimate
from support.api_server import ApiServer

NAME, RULE = "my name is Ada", "never push to main"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("memory")) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with server.client(server.token("acme")) as made:
        yield made


def say(client: httpx.Client, session: str, user: str, *texts: str) -> None:
    """Say texts in a session of a user, which is created first."""
    assert client.post("/api/sessions", json={"id": session, "user": user}).json()["user"] == user
    for text in texts:
        turn = client.post(f"/api/sessions/{session}/turns", json={"text": text, "stream": False})
        assert turn.status_code == 200, turn.text


def shown(client: httpx.Client, session: str) -> str:
    """Return what the next request of a session shows in front of the conversation."""
    messages = client.get(f"/api/sessions/{session}/export", params={"to": "openai"}).json()
    return "\n".join(str(message["content"]) for message in messages if message["role"] == "system")


def entries(client: httpx.Client, user: str, **query: Any) -> dict[str, str]:
    found = client.get(f"/api/memory/{user}", params=query).json()["entries"]
    return {entry["id"]: entry["text"] for entry in found}


def test_what_a_user_says_is_known_in_the_next_session(client: httpx.Client) -> None:
    say(
        client,
        "monday",
        "ada",
        f"Please remember that {NAME}.",
        f"Remember: {RULE}.",
        "Remember that the deadline is 14 March.",
        "Remember that the deadline moved to 2 April.",
    )
    say(client, "tuesday", "ada", "Hello.")
    now = shown(client, "tuesday")
    assert "Ada" in now
    assert "ever push to main" in now
    assert "2 April" in now
    assert "14 March" not in now

    forgotten = next(id for id, text in entries(client, "ada").items() if "2 April" in text)
    assert client.delete(f"/api/memory/ada/entries/{forgotten}").json()["forgotten"]
    say(client, "wednesday", "ada", "Hello.")
    assert "April" not in shown(client, "wednesday")
    turn = {"text": "And here?", "stream": False}
    client.post("/api/sessions/tuesday/turns", json=turn)
    assert "April" not in shown(client, "tuesday")


def test_the_stream_says_what_was_remembered(client: httpx.Client) -> None:
    client.post("/api/sessions", json={"id": "streamed", "user": "stream"})
    given = {"text": "Remember that I like tea.", "stream": True}
    events = client.post("/api/sessions/streamed/turns", json=given).text
    assert '"text":"Remembered m0: I like tea."' in events
    (entry,) = client.get("/api/memory/stream").json()["entries"]
    assert entry["origin"]["session"] == "streamed"
    handle = entry["origin"]["event"]
    whole = client.get(f"/api/sessions/streamed/events/{handle}").json()
    assert whole["original"] == given["text"]


def test_a_session_without_a_user_remembers_nothing(client: httpx.Client) -> None:
    client.post("/api/sessions", json={"id": "nobody"})
    client.post("/api/sessions/nobody/turns", json={"text": "Remember that I like tea.", "stream": False})
    assert "tea" not in shown(client, "nobody")


def test_users_and_tenants_never_see_each_other(server: ApiServer, client: httpx.Client) -> None:
    say(client, "own", "eve", "Remember that my code word is plover.")
    say(client, "other-user", "bob", "Hello.")
    with server.client(server.token("other")) as other:
        say(other, "own", "eve", "Hello.")
        for seen, session, user in ((client, "other-user", "bob"), (other, "own", "eve")):
            assert "plover" not in shown(seen, session)
            assert entries(seen, user) == {}
            assert entries(seen, user, q="plover", all=True) == {}
            assert seen.get(f"/api/memory/{user}/entries/m0").status_code == 404
            assert seen.get(f"/api/memory/{user}/export").text == ""
    assert entries(client, "eve") == {"m0": "my code word is plover."}


@pytest.mark.parametrize("carry", ["record", "summary", "rules", ["e1"]], ids=str)
def test_a_session_of_another_user_cannot_be_continued(client: httpx.Client, carry: Any) -> None:
    own = f"own-{''.join(carry)}"
    say(client, own, "amy", "My code word is plover.")
    given = {"id": f"{own}-continued", "user": "eli", "continue_from": own, "carry": carry}
    refused = client.post("/api/sessions", json=given)
    assert refused.status_code == 422
    assert "another user" in refused.json()["detail"]
    assert "amy" not in refused.text
    assert client.get(f"/api/sessions/{own}-continued").status_code == 404
    assert client.post("/api/sessions", json=given | {"user": "amy"}).status_code == 201


def test_words_of_a_user_reach_no_other_by_way_of_a_session_without_user(client: httpx.Client) -> None:
    say(client, "first-amy", "amy", "My code word is plover.")
    assert client.post("/api/sessions/first-amy/fork", json={"id": "forked-amy"}).json()["user"] == "amy"
    between = client.post("/api/sessions", json={"id": "between", "continue_from": "forked-amy"})
    assert (between.status_code, between.json()["user"]) == (201, "")
    client.post("/api/sessions/between/fork", json={"id": "between-2"})
    for origin in ("forked-amy", "between", "between-2"):
        given = {"user": "eli", "continue_from": origin}
        assert client.post("/api/sessions", json=given).status_code == 422, origin
        assert client.post("/api/sessions", json=given | {"user": "amy"}).status_code == 201, origin


def test_a_user_can_continue_a_session_without_user(client: httpx.Client) -> None:
    client.post("/api/sessions", json={"id": "before-login"})
    turn = {"text": "My parcel number is 4711.", "stream": False}
    client.post("/api/sessions/before-login/turns", json=turn)
    given = {"id": "after-login", "user": "eli", "continue_from": "before-login"}
    assert client.post("/api/sessions", json=given).status_code == 201
    assert "4711" in client.get("/api/sessions/after-login/export", params={"to": "openai"}).text


def test_a_session_of_a_chat_has_the_users_who_write_there(server: ApiServer) -> None:
    with server.client(server.token("telegram")) as bot:
        refused = bot.post("/api/sessions", json={"id": "telegram-42", "user": "eli"})
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:foveal:other_user")
        assert bot.post("/api/sessions", json={"id": "telegram-42"}).status_code == 201
        assert bot.post("/api/sessions", json={"id": "own", "user": "eli"}).status_code == 201


def test_entries_are_added_edited_found_forgotten_and_brought_back(client: httpx.Client) -> None:
    path = "/api/memory/carl"
    added = client.post(path, json={"text": "The staging port is 8081.", "kind": "fact"})
    assert (added.status_code, added.json()["origin"]["source"]) == (201, "told")
    entry = f"{path}/entries/{added.json()['id']}"
    assert client.patch(entry, json={"text": "The staging port is 9000."}).json()["text"].endswith("9000.")
    assert list(entries(client, "carl", q="which port has staging").values()) == ["The staging port is 9000."]
    assert client.delete(entry).json()["forgotten"]
    assert client.delete(entry).status_code == 422
    assert entries(client, "carl") == {}
    assert client.post(f"{entry}/undo").json()["entry"]["counts"]
    assert client.post(f"{path}/undo").json()["entry"]["text"].endswith("8081.")
    assert client.get(entry).json()["text"].endswith("8081.")


def test_nothing_to_undo_is_a_conflict(client: httpx.Client) -> None:
    path = "/api/memory/fresh"
    added = client.post(path, json={"text": "I like tea."}).json()["id"]
    assert client.post(f"{path}/undo").json() == {"entry": None}
    for undo in (f"{path}/undo", "/api/memory/nothing-yet/undo"):
        refused = client.post(undo)
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:foveal:nothing_to_undo")
    assert client.post(f"{path}/entries/{added}/undo").status_code == 404


def test_entries_come_in_pages(client: httpx.Client) -> None:
    texts = [
        "I like tea.",
        "My cat is called Tom.",
        "Answer in French.",
        "We ship on Mondays.",
        "I use tabs.",
    ]
    for text in texts:
        client.post("/api/memory/pages", json={"text": text})
    found, after = [], ""
    while after is not None:
        page = client.get("/api/memory/pages", params={"limit": 2, "after": after}).json()
        assert len(page["entries"]) <= 2
        found += [entry["text"] for entry in page["entries"]]
        after = page["next"]
    assert found == texts
    assert client.get("/api/memory/pages", params={"after": "x"}).status_code == 422


def test_proposals_wait_for_a_yes(client: httpx.Client) -> None:
    say(client, "stated", "dora", "Never deploy on Fridays. Always answer in French. Why is CI red?")
    say(client, "not-hers", "bert", "Never deploy on Fridays.")
    path = "/api/memory/dora/proposals"
    assert client.post(path, json={"session": "not-hers"}).status_code == 422
    first, second = client.post(path, json={"session": "stated"}).json()["entries"]
    assert client.get(path).json()["entries"] == [first, second]
    assert entries(client, "dora") == {}
    assert client.post(f"/api/memory/dora/entries/{first['id']}/accept", json={}).json()["counts"]
    assert client.post(f"/api/memory/dora/entries/{second['id']}/reject").json()["forgotten"]
    assert entries(client, "dora") == {first["id"]: first["text"]}
    assert client.post(path, json={"session": "stated"}).json()["entries"] == []


def test_an_export_can_be_imported_for_another_user(client: httpx.Client) -> None:
    client.post("/api/memory/from", json={"text": "Answer in French."})
    lines = client.get("/api/memory/from/export").text
    client.post("/api/memory/to/import", json={"lines": lines})
    assert list(entries(client, "to").values()) == ["Answer in French."]
    assert client.post("/api/memory/to/import", json={"lines": "no entry"}).status_code == 422


SECRET = "sk-proj-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z" * 2


def test_secrets_are_not_remembered(client: httpx.Client) -> None:
    say(client, "secret", "fay", f"Remember that my key is {SECRET}.")
    added = client.post("/api/memory/fay", json={"text": f"The other key is {SECRET}."}).json()
    client.patch(f"/api/memory/fay/entries/{added['id']}", json={"text": f"It is {SECRET}."})
    lines = client.get("/api/memory/fay/export").text.replace("It is", f"It is not {SECRET}, it is")
    assert client.post("/api/memory/fay/import", json={"lines": lines}).status_code == 200
    assert len(entries(client, "fay")) >= 2
    assert SECRET not in client.get("/api/memory/fay", params={"all": True}).text


def test_erasing_a_user_leaves_no_text(tmp_path: Path) -> None:
    with ApiServer(tmp_path / "erased") as server, server.client() as client:
        say(client, "told", "gil", "Remember that my dog is called Quetzalcoatl.", "Hello.")
        say(client, "kept", "hal", "Hello.")
        client.post("/api/memory/gil", json={"text": "My cat is called Quetzalcoatl too."})
        client.delete("/api/memory/gil/entries/m0")
        assert "Quetzalcoatl" in client.get("/api/memory/gil", params={"all": True}).text
        assert client.delete("/api/users/gil").json() == {"sessions": ["told"], "kept": []}
        assert client.get("/api/memory/gil", params={"all": True}).json()["entries"] == []
        assert client.get("/api/sessions/told").status_code == 404
        assert client.get("/api/sessions/kept").status_code == 200
        assert entries(client, "gil", q="dog") == {}
        client.post("/api/memory/gil", json={"text": "I am back."})
        assert list(entries(client, "gil").values()) == ["I am back."]
    files = [path for path in (tmp_path / "erased").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"Quetzalcoatl" in path.read_bytes()]


@pytest.mark.parametrize("user", ["a b", "..%2f", "%00", "x" * 201, "☃", "-a"])
def test_a_name_that_no_user_can_have_is_refused(client: httpx.Client, user: str) -> None:
    assert client.get(f"/api/memory/{user}").status_code in (400, 404)
    assert client.post("/api/sessions", json={"user": user}).status_code == 400


def test_an_empty_user_is_no_session_without_user(client: httpx.Client) -> None:
    assert client.post("/api/sessions", json={"id": "empty-user", "user": ""}).status_code == 400
    assert client.get("/api/sessions/empty-user").status_code == 404
    assert client.post("/api/sessions", json={"user": None}).json()["user"] == ""


LOOKS_LIKE_RENE = (
    "ren\u00e9",  # é in one character
    "rene\u0301",  # and in two
    "rene\u200b",
    "\u2060rene",
    "rene\u00ad",
    "r\u0435ne",  # a Cyrillic letter
    "\uff52ene",  # a wide letter
    "rene\u202e",
    "rene ",
    "rene\n",
    "rene\0",
)


@pytest.mark.parametrize("user", LOOKS_LIKE_RENE, ids=ascii)
def test_a_name_that_looks_like_another_opens_no_memory(client: httpx.Client, user: str) -> None:
    client.post("/api/memory/rene", json={"text": "My code word is plover."})
    path = f"/api/memory/{quote(user, safe='')}"
    asked = [client.get(path), client.post(path, json={"text": "I allow deploys."}), client.delete(path)]
    asked += [client.get(f"{path}/export"), client.delete(f"/api/users/{quote(user, safe='')}")]
    assert {reply.status_code for reply in asked} <= {400, 404}
    assert "plover" not in "".join(reply.text for reply in asked)
    assert client.post("/api/sessions", json={"user": user}).status_code == 400
    assert list(entries(client, "rene").values()) == ["My code word is plover."]


@pytest.mark.parametrize("user", ["RENE", "Rene", "rene.", "rene~", "rene:files", "rene@a", "rene|a"])
def test_users_whose_ids_differ_in_any_character_share_nothing(client: httpx.Client, user: str) -> None:
    client.post("/api/memory/rene", json={"text": "My code word is plover."})
    assert entries(client, user) == {}
    assert client.delete(f"/api/users/{user}").json() == {"sessions": [], "kept": []}
    client.post(f"/api/memory/{user}", json={"text": "My code word is heron."})
    assert list(entries(client, "rene").values()) == ["My code word is plover."]
    assert list(entries(client, user).values()) == ["My code word is heron."]


@pytest.mark.soak
def test_ten_thousand_entries_are_paged_found_and_stay_in_the_budget(tmp_path: Path) -> None:
    texts = [f"Box {n} holds part {n * 7}." for n in range(10_000)]
    lines = [
        json.dumps({"id": f"m{n}", "kind": "fact", "text": text, "origin": {}})
        for n, text in enumerate(texts)
    ]
    budget = {"server__memory_budget": 500, "tokenizer": "estimate"}
    with ApiServer(tmp_path / "many", **budget) as server, server.client() as client:
        for first in range(0, 10_000, 2_500):
            imported = client.post(
                "/api/memory/ida/import", json={"lines": "\n".join(lines[first : first + 2_500])}
            )
            assert imported.status_code == 200, imported.text
        client.post("/api/memory/ida", json={"text": "Never push to main."})
        found, after = list[str](), ""
        while after is not None:
            page = client.get("/api/memory/ida", params={"limit": 500, "after": after}).json()
            assert len(page["entries"]) <= 500
            found, after = found + [entry["text"] for entry in page["entries"]], page["next"]
        assert found == [*texts, "Never push to main."]
        assert len(client.get("/api/memory/ida").json()["entries"]) == 200
        searched = client.get("/api/memory/ida", params={"q": "part 63000", "limit": 1}).json()["entries"]
        assert [entry["text"] for entry in searched] == ["Box 9000 holds part 63000."]
        say(client, "many", "ida", "Hello.")
        block = shown(client, "many").partition("# Memory")[2]
        assert "Never push to main." in block
        assert Estimate().count(block) <= 500


def test_memory_can_be_turned_off(tmp_path: Path) -> None:
    with ApiServer(tmp_path / "off", server__memory=False) as server, server.client() as client:
        client.post("/api/memory/ada", json={"text": "I like tea."})
        say(client, "off", "ada", "Remember that I like coffee.")
        assert "tea" not in shown(client, "off")
        assert list(entries(client, "ada").values()) == ["I like tea."]


def test_a_memory_is_no_session(client: httpx.Client) -> None:
    client.post("/api/memory/iris", json={"text": "I like tea."})
    log = quote(f"{MEMORY_LOG_PREFIX}iris", safe="")
    for path in (f"/api/sessions/{log}", f"/api/sessions/{log}/events", f"/api/sessions/{log}/export"):
        assert client.get(path).status_code in (400, 404, 422)
    assert client.delete(f"/api/sessions/{log}").status_code in (400, 404, 422)
    assert client.post("/api/sessions", json={"id": f"{MEMORY_LOG_PREFIX}iris"}).status_code in (400, 422)
    listed = client.get("/api/sessions", params={"limit": 500}).json()["sessions"]
    assert not [one["id"] for one in listed if "iris" in one["id"]]
    assert list(entries(client, "iris").values()) == ["I like tea."]
