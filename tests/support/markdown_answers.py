"""Generated answers in Markdown, with numbered words, addresses and code lines that can be found again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import strategies as st


class Answer(NamedTuple):
    """Markdown, and what a reader must find in its parts."""

    markdown: str
    words: list[str]
    urls: list[str]
    code: list[str]
    """Lines of code blocks."""


class AnswerWriter:
    """Writes one answer from the choices that Hypothesis makes."""

    def __init__(self, draw: st.DrawFn, *, has_images: bool = False) -> None:
        self._draw = draw
        self._images = ["image", "image link"] if has_images else []
        self._numbers = itertools.count(1)
        self.words: list[str] = []
        self.urls: list[str] = []
        self.code: list[str] = []

    def word(self) -> str:
        number = next(self._numbers)
        self.words.append(f"{('word', 'größe', '😀', '字')[number % 4]}{number}x")
        return self.words[-1]

    def url(self) -> str:
        self.urls.append(f"https://example.org/{next(self._numbers)}x")
        return self.urls[-1]

    def inline(self) -> str:
        kinds = ["plain", "bold", "italic", "both", "code", "link", "code link", "many", *self._images]
        match self._draw(st.sampled_from(kinds)):
            case "bold":
                return f"**{self.phrase()}**"
            case "italic":
                return f"*{self.phrase()}*"
            case "both":
                return f"**{self.word()} *{self.phrase()}* {self.word()}**"
            case "code":
                return f"`{self.phrase()}`"
            case "link":
                return f"[{self.phrase()}]({self.url()})"
            case "code link":
                return f"[`{self.phrase()}`]({self.url()})"
            case "image":
                return f"![{self.phrase()}]({self.url()})"
            case "image link":
                return f"[![{self.phrase()}](picture.png)]({self.url()})"
            case "many":
                return " ".join(
                    f"[**{self.word()}**]({self.url()})" for _ in range(self._draw(st.integers(1, 60)))
                )
        return self.phrase()

    def phrase(self) -> str:
        return " ".join(self.word() for _ in range(self._draw(st.sampled_from([1, 3, 40]))))

    def block(self) -> str:
        match self._draw(st.sampled_from(["text", "heading", "list", "numbers", "quote", "fence", "table"])):
            case "heading":
                return f"## {self.inline()}"
            case "list":
                return "\n".join(f"- {self.inline()}" for _ in range(self._draw(st.integers(1, 5))))
            case "numbers":
                return "\n".join(f"1. {self.inline()}" for _ in range(self._draw(st.integers(1, 5))))
            case "quote":
                return f"> {self.inline()}\n>\n> {self.inline()}"
            case "fence":
                lines = [
                    f"code{next(self._numbers)}x()" for _ in range(self._draw(st.sampled_from([1, 30, 400])))
                ]
                self.code += lines
                return "```py\n" + "\n".join(lines) + "\n```"
            case "table":
                rows = "".join(
                    f"\n| {self.word()} | [{self.word()}]({self.url()}) |" for _ in range(self._rows())
                )
                return f"| {self.word()} | {self.word()} |\n|---|---|{rows}"
        return " ".join(self.inline() for _ in range(self._draw(st.integers(1, 6))))

    def _rows(self) -> int:
        return self._draw(st.sampled_from([1, 4, 150]))


@st.composite
def answers(draw: st.DrawFn, *, has_images: bool = False) -> Answer:
    writer = AnswerWriter(draw, has_images=has_images)
    blocks = [writer.block() for _ in range(draw(st.integers(1, 6)))]
    return Answer("\n\n".join(blocks), writer.words, writer.urls, writer.code)


def numbered(count: int, form: str) -> Iterator[str]:
    """Yield a form such as `line {}` with the numbers from 1 on."""
    return (form.format(number) for number in range(1, count + 1))
