"""Folders that tests read from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
ROOT: Final = TESTS.parent
SUPPORT: Final = TESTS / "support"
TRANSCRIPTS: Final = TESTS / "data" / "transcripts"
"""Small transcripts of other products, made for the tests."""
RECORDED: Final = ROOT.parent / "shared" / "data"
"""Recorded conversations beside the checkout; tests that need them are skipped where it is missing."""
