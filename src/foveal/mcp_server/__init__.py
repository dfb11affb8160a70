"""MCP server with recall tools over past sessions, read-only. Needs `foveal[mcp]`."""
