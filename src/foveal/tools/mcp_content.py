"""What an MCP server answers, as content of ours: text, pictures, sounds and files, in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from foveal.events import AnyPart, Content, Text
from foveal.tools.media import document, image, sound
from foveal.visible import one_line

if TYPE_CHECKING:
    from mcp_types import (
        BlobResourceContents,
        CallToolResult,
        ContentBlock,
        ResourceLink,
        TextResourceContents,
    )


def content(result: CallToolResult) -> Content:
    """All of a result. Text alone is plain text; what is structured counts only when there is nothing else."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, indent=1)
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(_texts(parts))
    return tuple(parts)


def _texts(parts: Sequence[AnyPart]) -> list[str]:
    return [part.text for part in parts if isinstance(part, Text)]


def _part(block: ContentBlock) -> AnyPart:
    match block.type:
        case "text":
            return Text(text=block.text)
        case "image":
            return image(block.mime_type, block.data)
        case "audio":
            return sound(block.mime_type, block.data)
        case "resource_link":
            return Text(text=_link(block))
        case "resource":
            return _resource(block.resource)
        case _:
            assert_never(block)


def _link(link: ResourceLink) -> str:
    about = " ".join(filter(None, (link.title or link.name, link.mime_type, link.description)))
    return f"[resource {one_line(str(link.uri), width=500)}: {one_line(about, width=500)}]"


def _resource(resource: TextResourceContents | BlobResourceContents) -> AnyPart:
    uri = one_line(str(resource.uri), width=500)
    blob = getattr(resource, "blob", None)
    if blob is not None:
        return document(resource.mime_type or "", blob, name=uri.rpartition("/")[2] or "file")
    return Text(text=f"[resource {uri}]\n{getattr(resource, 'text', '')}")
