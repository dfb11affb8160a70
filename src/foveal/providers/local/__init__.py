"""The bundled small model: its download, its server process and its provider."""
