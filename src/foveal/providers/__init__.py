"""Clients of model APIs: one `Provider` per dialect, and the bundled local model.

`selection.provider` finds the provider of a model by its name, or by the keys in the environment. The client
libraries are optional and slow to import, so a provider imports its library with the first request.
"""

from typing import Final

LOCAL_SERVICE: Final = "local"
"""The service, in the name of a model, of models that run on this machine."""
