"""Events as the rows of a store, compressed reversibly, byte for byte, without SQL.

1. Each JSON string of more than 4 KB is taken out of the line and becomes a blob. If the rest of the line is still
   that long (a list of tools, for example), the rest becomes a blob too. A blob is stored once per content.
2. The rest is compressed with zstd and a fixed dictionary, because a short line has little text to refer back to.
3. The strings are found in the bytes of the line, not in the fields of facts, so that large texts in event kinds of
   later versions are found too.
4. The line is that of the fact at seq 0 without a time, so that equal facts have equal lines.
5. Stored bodies refer to the dictionary by the number 1 and need every byte of it to be read. It must never
   change; better words need a second dictionary with another number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple

import zstandard

from foveal.core.log.codec import decode, encode
from foveal.core.log.events import Erased, Event, kind
from foveal.errors import StoreError, UnreadableEvent

MAX_INLINE_BYTES: Final = 4096
"""Longest string that stays in the line; longer ones become blobs."""

LINE_COMPRESSION_LEVEL: Final = 3
BLOB_COMPRESSION_LEVEL: Final = 6

_UNCOMPRESSED_PREFIX: Final = b"{"
"""First byte of a body that is not compressed: it starts like JSON."""
_DICTIONARY_PREFIX: Final = b"\x01"
"""First byte of a body that was compressed with dictionary 1."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class CutText(NamedTuple):
    """A string taken out of a line, and its offset in the bytes that are left."""

    offset: int
    text: bytes


class PackedLine(NamedTuple):
    """A line as the store keeps it."""

    body: bytes
    """The rest of the line, compressed; empty when the rest is the first of the cuts."""
    cuts: tuple[CutText, ...]


def digest(text: bytes) -> bytes:
    """Return the key under which a blob with this content is stored."""
    return blake2b(text, digest_size=32).digest()


class LinePacker:
    """Packs and unpacks lines. Not thread-safe: each thread needs its own."""

    def __init__(self) -> None:
        dictionary = zstandard.ZstdCompressionDict(DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            LINE_COMPRESSION_LEVEL,
            source_size=MAX_INLINE_BYTES,
            dict_size=len(DICTIONARY),
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=1,
            write_dict_id=0,
        )
        dictionary.precompute_compress(compression_params=parameters)
        self._line_compressor = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
        self._line_decompressor = zstandard.ZstdDecompressor(
            dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
        self._blob_compressor = zstandard.ZstdCompressor(level=BLOB_COMPRESSION_LEVEL, write_checksum=True)
        self._blob_decompressor = zstandard.ZstdDecompressor()

    def pack(self, line: bytes) -> PackedLine:
        """Take the large strings out of a line and compress the rest."""
        if len(line) <= MAX_INLINE_BYTES:
            return PackedLine(self.compress_line(line), ())
        rest, cuts = _extract_large_strings(line)
        if len(rest) <= MAX_INLINE_BYTES:
            return PackedLine(self.compress_line(rest), cuts)
        return PackedLine(b"", (CutText(0, rest), *cuts))

    def unpack(self, body: bytes, cuts: Sequence[CutText] = ()) -> bytes:
        """Return the line; `cuts` are the texts of its blobs, decompressed. Raises `UnreadableEvent` or `ZstdError`
        when the row is damaged."""
        if not isinstance(body, bytes) or not (body or cuts):
            raise UnreadableEvent("the row of an event has no text")
        if not body:
            (_, rest), *cuts = cuts
        elif body[:1] == _DICTIONARY_PREFIX:
            rest = self._line_decompressor.decompress(body[1:])
        else:
            rest = body
        return b"".join(_join(rest, cuts)) if cuts else rest

    def compress_blob(self, text: bytes) -> bytes:
        """Compress the content of a blob, with a checksum."""
        return self._blob_compressor.compress(text)

    def decompress_blob(self, body: bytes) -> bytes:
        """Return the content of a blob; raises `ZstdError` when it is damaged."""
        return self._blob_decompressor.decompress(body)

    def compress_line(self, line: bytes) -> bytes:
        """Return the body of a line of at most `MAX_INLINE_BYTES`.

        A line that compression does not shorten is stored uncompressed, if its first byte shows that."""
        compressed = _DICTIONARY_PREFIX + self._line_compressor.compress(line)
        return compressed if len(compressed) < len(line) or line[:1] != _UNCOMPRESSED_PREFIX else line


def _extract_large_strings(line: bytes) -> tuple[bytes, tuple[CutText, ...]]:
    """Return the line without its large strings, whose quotes stay, and the strings."""
    rest: list[bytes] = []
    cuts: list[CutText] = []
    at = size = 0
    for string in _STRING.finditer(line):
        first, last = string.start() + 1, string.end() - 1
        if last - first > MAX_INLINE_BYTES:
            rest.append(line[at:first])
            size += first - at
            cuts.append(CutText(size, line[first:last]))
            at = last
    rest.append(line[at:])
    return b"".join(rest), tuple(cuts)


def _join(rest: bytes, cuts: Sequence[CutText]) -> Iterator[bytes]:
    at = 0
    for offset, text in cuts:
        yield rest[at:offset]
        yield text
        at = offset
    yield rest[at:]


# ── Dictionary 1: text that event lines are likely to contain ─────────────────────────────────────────────

_ENGLISH: Final = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story month lot right study book word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education However, Additionally, Furthermore, Therefore, For
example, In addition, such as because although through between another without within during before after
against under around first second third different important possible available several following example sure
great good better best really actually probably perhaps maybe never always often sometimes already still
should would could might must need want think know understand believe remember help find look give take make
use using used useful provide provided including include includes require required requires recommend suggest
consider option options price order account address payment number customer reservation flight cancel refund
confirm details email phone I'd be happy to help you with that. Is there anything else I can help you with?
Here are some tips: Thank you for your Please let me know if you have any questions. I understand your
concern. Could you please provide the following details
"""

_CODE: Final = r"""
#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nfrom __future__ import annotations\nimport os\nimport
sys\nimport json\nimport re\nfrom typing import Any, Dict, List, Optional, Union\n\nclass Meta:\n    def
__init__(self, *args, **kwargs):\n        super().__init__(*args,
**kwargs)\n        self.assertEqual(\n        self.name =
name\n    @property\n    def    @classmethod\n    @staticmethod\n    return None\n        return
self._\n            raise ValueError(\"        raise TypeError(f\"Expected \n        raise
NotImplementedError\n        if isinstance(value, str):\n        if value is not None and len(value) >
0:\n        elif not in \n        else:\n            continue\n        for key, value in
data.items():\n        for i in range(len(\n        while
True:\n            break\n        try:\n            pass\n        except Exception as
e:\n            print(f\"Error: {e}\")\n        finally:\n    with open(path, 'r', encoding='utf-8') as
f:\n        lines = f.readlines()\n        content = f.read()\n    assert result == expected\n    assert
response.status_code ==
200\n    \"\"\"\n    Parameters\n    ----------\n    Returns\n    -------\n    Examples\n    --------\n    >>>
\n    :param :type :return: :rtype: str int float bool list    default=None, True, False, lambda x: np.array([
pd.DataFrame( import numpy as np\nimport pandas as pd\nimport pytest\nif __name__ ==
'__main__':\n    main()\nfunction const let var async await import { } from 'export default interface
typestring number boolean public static void private protected final return new this null undefined throw
catch require(console.log( => { }, [] ); \n}\n\n/** * @param {string} @returns */ #include <stdio.h> struct
int char unsigned sizeof(SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE <div class=\" <a
href=\" <p> </p> </div> <span> </span>
"""

_SHELL: Final = r"""
Traceback (most recent call last):\n  File \"/usr/lib/python3.11/site-packages/\", line , in
<module>\n    main()\nModuleNotFoundError: No module named ' ImportError: cannot import name ' AttributeError:
' object has no attribute 'KeyError: TypeError: missing 1 required positional argument: ' AssertionError:
assert IndexError: list index out of rangeSyntaxError: invalid syntax\nFileNotFoundError: [Errno 2] No such
file or directory: ' Permission denied\nExit code: 0RuntimeWarning: DeprecationWarning: UserWarning: ERROR
FAILED tests/test_ PASSED [100%]\n============================= testsession starts
==============================\nplatform linux -- Python 3.11, pytest-8, pluggy-1.5\nrootdir:
/testbed\ncollected items\n\n=================================== FAILURES
===================================\n_____________________ short test summary info
============================\n passed, failed, warnings in 0.12s ===\n----------------------Ran tests in
0.001s\n\nOK\nFAILED (failures=1)\ndiff --git a/src/ b/src/\nindex 0000000..1111111 100644\n--- a/\n+++ b/\n@@
-1,6 +1,7 @@ def \nOn branch main\nChanges not staged for commit:\n  (use \"git add <file>...\" to update what
will becommitted)\n  (use \"git restore <file>...\" to discard changes in working
directory)\n\tmodified:   src/\nnothing tocommit, working tree clean\ntotal \ndrwxr-xr-x 2 root root 4096
Jan  1 00:00 .\n-rw-r--r-- 1 root root  .py\n./src/ ./tests/./docs/ /workspace/ /home/user/ /tmp/
/usr/local/bin/python .py: .md .json .txt .yml .toml .cfg .html .js .ts .css setup.pyREADME.md CHANGELOG
requirements.txt pyproject.toml __init__.py conftest.py utils.py models.py views.py settings.py base.pycd
/testbed && git status && git diff && git log --oneline -5 && ls -la && cat > << 'EOF'\n EOF\n && python -m
pytest tests/-xvs 2>&1 | head -50 | tail -20 && grep -rn \" --include=\"*.py\" . | find . -type f -name
\"*.py\" | xargs sed -n '1,100p'sed -i 's/ nl -ba | echo \"COMPLETE\" pip install -e . 2>/dev/null || true &&
rm -f mkdir -p && chmod +x curl -s https://http://localhost:8000/ http://www.w3.org/ https://github.com/
https://docs.python.org/3/ .com/ .org/ 2024-01-01T00:00:00Z[INFO] [WARNING] [ERROR] [DEBUG] INFO: WARNING:
(base) root@ $ user@host:~$ [The command completed with exit code 0.][Current working directory: /] [Python
interpreter: /usr/bin/python]\n<returncode>0</returncode>\n<output>\n</output><tool_response> </tool_response>
[File: / ( lines total)] (Open file: /)\n(Current directory:
/)\nbash-$     1\t     2\t     3\t     4\t     5\t    10\t    20\t    50\t   100\t   101\t   200\t   300\t\n1:
\n2: \n10: \n11: \n12: \n13: \n14: \n15: \n16: \n17: \n18: \n19: \n20: \n100: \n101: \n110: \n120: \n200: \n
"""

_ANSWERS: Final = r"""
I'll help you with that. Let me start by exploring the repository structure to understand the codebase.\n\nLet
me look at the code to understand what it does. Now let me check if there are any tests for this
functionality.Now I need to find where this function is defined and how it is called. Let's create a simple
script to reproduce the issue:\n\nPerfect! The fix works correctly. Let me run the existing tests to make sure
that I haven't broken anything.\n\nTHOUGHT:I can see the problem. The issue is that the method does not handle
the case when the value is None. We need to modify theimplementation so that it returns the correct result.
First, Next, Then, Finally, Great! Now I understand the issue. Let me\n\n## Summary\n\n### Changes\n\n1.
**\n2. **\n3. **\n4. **\n5. **\n\n- **\n- `\n- [ ] \n```python\n```\n\n```bash\n```json\n{\n  \"\":
\"\",\n  \"name\": \"\",\n  \"id\": \n  \"type\": \"string\",\n  \"description\": \"\n  \"status\":
\"\n  \"message\": \"success\",\n  \"error\": null,\n  \"data\": [\n    {\n      \"value\":
true,\n      \"count\": false\n{\"command\": \"view\", \"path\": \"/workspace/ {\"command\": \"str_replace\",
\"path\": \"/testbed/ \", \"old_str\": \"\", \"new_str\": \" {\"command\":\"cd && ls -la\"} {\"query\": \"
{\"file_path\": \" {\"order_id\": \"#W {\"user_id\": \"{\"command\": \"create\", \"file_text\": \"
{\"view_range\": [1, 50]} {\"thought\": \" {\"file_name\": \" {\"code\": \"Here's the result of running `cat
-n` on /workspace/ \n The file has been edited. Review the changes and make sure they areas expected (correct
indentation, no duplicate lines, etc). Edit the file again if necessary. has been edited. Here's theresult of
running `cat -n` on a snippet of Your command ran successfully and did not produce any output. No results
found
"""

_SHAPES: Final = """
{"seq":0,"fact":{"kind":"opened","model":"anthropic/claude-sonnet-4-5","policy":"economy","settings":{"window":200000,{"seq":0,"fact":{"kind":"equipped","tools":[{"type":"function","function":{"name":"","description":"","parameters":{"type":"object","properties":{"path":{"type":"string","description":"The
"}},"required":["path"],"additionalProperties":false}}}]{"seq":0,"fact":{"kind":"instructed","content":"You
are a helpful
assistant","role":"developer","source":"AGENTS.md","aside":true,"replaces":,"dialect":"openai_responses","extra":{"id":"msg_","status":"completed","type":"message"}}}{"seq":0,"fact":{"kind":"pinned","text":"","target":}}{"seq":0,"fact":{"kind":"noted","text":"","topic":""}}{"seq":0,"fact":{"kind":"used","input":,"cache_read":,"cache_write":,"output":,"reasoning":,"model":"","units":,"predicted":,"unreduced":}}{"seq":0,"fact":{"kind":"snapshot_taken","data":{},"label":""}}{"seq":0,"fact":{"kind":"clipped","target":,"pieces":[[0,],"\\n…
lines left out; recall_read
e",[,]],"kept_tokens":,"total_tokens":,"kept_lines":,"total_lines":,"strategy":"smart","rule":"ingest"}}{"seq":0,"fact":{"kind":"masked","masks":[{"target":,"text":"[result
e left out: lines,
tokens"},{"target":,"text":"","part":}],"reason":"economy","rule":""}}{"seq":0,"fact":{"kind":"dropped","ranges":[[,]],"reason":"budget","rule":""}}{"seq":0,"fact":{"kind":"compacted","first":,"last":,"summary":"","by":"ledger","metrics":{},"reason":"","rule":""}}{"seq":0,"fact":{"kind":"reverted","target":}}{"seq":0,"fact":{"kind":"rewound","to":,"keep_reductions":true}}{"seq":0,"fact":{"kind":"erased","was":"user_said"}}{"seq":0,"fact":{"kind":"erased","was":"tool_returned"}}{"part":"media","native":{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo"}},"mime":"image/png","size":,"units":}{"part":"opaque","native":{"type":"reasoning","id":"rs_","summary":[],"encrypted_content":"gAAAAA"}}{"part":"thinking","native":{"type":"thinking","thinking":"","signature":"E"},"text":""}{"part":"text","text":"","extra":{"cache_control":{"type":"ephemeral"}}}{"seq":0,"fact":{"kind":"user_said","content":"Hi,
I
{"seq":0,"fact":{"kind":"user_said","content":[{"part":"text","text":"{"seq":0,"fact":{"kind":"model_said","content":"I
{"seq":0,"fact":{"kind":"model_said","content":"Let
me","dialect":"anthropic"}}","dialect":"openai_chat","extra":{"reasoning_content":"},"listed":true,"dialect":"openai_chat"}}{"seq":0,"fact":{"kind":"model_said","content":[{"part":"text","text":"I'll
"},{"part":"call","id":"toolu_01","name":"bash","arguments":"{\\"command\\": \\"cd /testbed &&
\\"}"}],"dialect":"openai_chat"}}{"seq":0,"fact":{"kind":"model_said","content":[{"part":"call","id":"call_","name":"execute_bash","arguments":"{\\"{"seq":0,"fact":{"kind":"tool_returned","call_id":"toolu_01","content":"","name":"str_replace_editor","error":true}}{"seq":0,"fact":{"kind":"tool_returned","call_id":"call_","content":"{\\"returncode\\":
0, \\"output\\": \\"","dialect":"openai_chat"}}
"""

DICTIONARY: Final = (_ENGLISH + _CODE + _SHELL + _ANSWERS + _SHAPES).replace("\n", " ").encode()


BLOB_ROW_BYTES: Final = 90
"""Bytes of a blob's row beside its body: its digest, which is also in an index, and the rows that refer to it."""
MAX_COUNTED_SHARERS: Final = 100
"""Sessions of a blob that are counted: a text that all sessions have in common must not cost a walk over all."""


class EventRow(NamedTuple):
    """An event as it is inserted: its time and its packed line."""

    at: float | None
    packed: PackedLine


def to_rows(packer: LinePacker, events: Sequence[Event]) -> list[EventRow]:
    """Pack events for insertion; raises `StoreError` if their seqs are not consecutive."""
    return pack_lines(packer, events, to_lines(events))


def to_lines(events: Sequence[Event]) -> list[bytes]:
    """Return the lines of events, at seq 0 and without times; raises `StoreError` if seqs are not consecutive."""
    for before, after in pairwise(events):
        if after.seq != before.seq + 1:
            raise StoreError(f"event {after.seq} was given right after event {before.seq}; seqs are gapless")
    return [encode(Event(0, event.fact)) for event in events]


def pack_lines(packer: LinePacker, events: Sequence[Event], lines: Sequence[bytes]) -> list[EventRow]:
    """Pack the lines of events for insertion."""
    return [
        EventRow(_finite_or_none(event.at), packer.pack(line))
        for event, line in zip(events, lines, strict=True)
    ]


def to_events(
    packer: LinePacker,
    rows: Iterable[tuple[int, float | None, bytes]],
    cuts: Mapping[int, Sequence[CutText]],
) -> list[Event]:
    """Unpack rows of seq, time and body; `cuts` has the decompressed texts of blobs by seq."""
    return [Event(seq, decode(packer.unpack(body, cuts.get(seq, ()))).fact, at) for seq, at, body in rows]


def erase_line(packer: LinePacker, line: bytes) -> bytes:
    """Return the body of an event after erasure: only its kind is left.

    The line may lack its cuts: it is still JSON, with empty strings, and names its kind."""
    fact = decode(line).fact
    left = fact if isinstance(fact, Erased) else Erased(was=kind(fact))
    return packer.pack(encode(Event(0, left))).body


def _finite_or_none(at: float | None) -> float | None:
    return at if at is not None and isfinite(at) else None
