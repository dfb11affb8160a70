"""Shows the errors that `fit` raises before a request is sent.

An overflow carries its numbers, a malformed message the index and the field.
"""

import foveal

ctx = foveal.Context("gpt-4.1", window=2_000)
try:
    ctx.fit([{"role": "user", "content": "word " * 5_000}])
except foveal.ContextOverflow as problem:
    print(problem)
    print(f"needed {problem.needed:,}, available {problem.available:,}, floor {problem.floor:,}")

try:
    foveal.Context("gpt-4.1").fit(
        [{"role": "user", "content": "hello"}, {"role": "tool", "content": "found"}]
    )
except foveal.MalformedMessage as problem:
    print(problem)

try:
    ctx.original("e999")
except foveal.UnknownHandle as problem:
    print(problem)
