"""Models that answer: adapters of the `Provider` port, one file a dialect, and the local model.

`choose.provider` finds the right one by name or by what the environment has. The client libraries are optional and
slow to import, so they are loaded when the first request is made and not before.
"""
