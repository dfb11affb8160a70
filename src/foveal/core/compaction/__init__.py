"""Old turns become a summary: planned, written, checked and recorded."""
