"""Support for tests of agents: a scripted provider, a check of the prompt prefix, and the laws of a policy.

    with foveal.testing.capture() as requests:
        run_the_agent()
    requests.check()                                    # raises PrefixMoved

1. `Scripted` is a provider that returns prepared answers, for code that uses `foveal.agent`.
2. `capture` records the LLM requests that any code sends with httpx, httpx2, requests or botocore. `check` fails if
   the beginning of a request changes within a conversation. The code need not use Foveal.
3. `check_policy` plays made conversations under a policy of your own, and raises `LawBroken` if it breaks a law.
4. The pytest plugin (`foveal.testing.pytest_plugin`) has a fixture, a marker and an option for it.

pytest imports this package in every run, so each name loads its module when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foveal.testing.captured_request import CapturedRequest as CapturedRequest
    from foveal.testing.moved_prefix import MovedPrefix as MovedPrefix
    from foveal.testing.policy_laws import LAWS as LAWS
    from foveal.testing.policy_laws import HistoryStep as HistoryStep
    from foveal.testing.policy_laws import LawBroken as LawBroken
    from foveal.testing.policy_laws import PolicyCheck as PolicyCheck
    from foveal.testing.policy_laws import check_policy as check_policy
    from foveal.testing.provider_cache import UncachedPrefix as UncachedPrefix
    from foveal.testing.scripted_provider import Answer as Answer
    from foveal.testing.scripted_provider import Calls as Calls
    from foveal.testing.scripted_provider import PromptTooLong as PromptTooLong
    from foveal.testing.scripted_provider import Scripted as Scripted
    from foveal.testing.stable_prefix import CapturedRequests as CapturedRequests
    from foveal.testing.stable_prefix import IllegalRequest as IllegalRequest
    from foveal.testing.stable_prefix import NothingCaptured as NothingCaptured
    from foveal.testing.stable_prefix import PrefixMoved as PrefixMoved
    from foveal.testing.stable_prefix import PrefixNotCached as PrefixNotCached
    from foveal.testing.stable_prefix import assert_stable_prefix as assert_stable_prefix
    from foveal.testing.stable_prefix import capture as capture
else:
    _MODULE_OF = {
        "Answer": "scripted_provider",
        "Calls": "scripted_provider",
        "CapturedRequest": "captured_request",
        "CapturedRequests": "stable_prefix",
        "HistoryStep": "policy_laws",
        "IllegalRequest": "stable_prefix",
        "LAWS": "policy_laws",
        "LawBroken": "policy_laws",
        "MovedPrefix": "moved_prefix",
        "NothingCaptured": "stable_prefix",
        "PolicyCheck": "policy_laws",
        "PrefixMoved": "stable_prefix",
        "PrefixNotCached": "stable_prefix",
        "PromptTooLong": "scripted_provider",
        "Scripted": "scripted_provider",
        "UncachedPrefix": "provider_cache",
        "assert_stable_prefix": "stable_prefix",
        "capture": "stable_prefix",
        "check_policy": "policy_laws",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'foveal.testing' has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"foveal.testing.{_MODULE_OF[name]}"), name)
        return value

    def __dir__():
        return sorted(_MODULE_OF)
