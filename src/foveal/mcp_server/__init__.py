"""MCP server with tools over past sessions and memories. Needs `foveal[mcp]`."""
