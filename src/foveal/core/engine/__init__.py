"""The engine: decide, do, record; reports and metrics."""
