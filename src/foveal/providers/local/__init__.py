"""The bundled small model: download, server, provider."""
