"""Which models read images and PDF files, by their names.

The bundled table does not list it. A model of no known family counts as one that reads text only: a provider
refuses a request with an image that its model cannot read, and the image stays in the conversation.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Modality = Literal["image", "pdf"]

_PDF_FAMILIES: Final = (
    r"claude-(?:3[.-][57]|(?:opus|sonnet|haiku)-[4-9]|[4-9])|gpt-?4o|gpt-?4[.-]1|gpt-?[5-9]|\bo[134]\b|gemini"
)
_IMAGE_FAMILIES: Final = (
    rf"{_PDF_FAMILIES}|claude-3|gpt-4-(?:turbo|vision)|grok-(?:[4-9]|\d+-?vision)|llama-?(?:4|3[.-]2-(?:11|90)b)"
    r"|pixtral|mistral-(?:medium-3|small-3[.-][1-9]|large-3)|gemma-?3(?![-:]?1b)|nova-(?:lite|pro|premier)"
    r"|[-_.:/]vl\b|\bqvq|llava|minicpm-v|internvl|moondream|vision|glm-\d+(?:[.-]\d+)?v|kimi-k2[.-][5-9]"
)
_TEXT_ONLY: Final = re.compile(r"o1-mini|o1-preview|o3-mini|claude-(?:2|instant)|embed|audio|realtime")
_PATTERNS: Final = {"image": re.compile(_IMAGE_FAMILIES), "pdf": re.compile(_PDF_FAMILIES)}


def reads(model: str, modality: Modality) -> bool:
    """Return whether a model is known to read images or PDF files."""
    name = model.lower().partition("@")[0]
    return _PATTERNS[modality].search(name) is not None and _TEXT_ONLY.search(name) is None
