"""The HTTP face of the service: drop-in endpoints, the native API, and what keeps them safe and observable.

app.py        all of it as one ASGI application; listening.py: the socket and the parser in front of it
protocol.py   what comes before a body, bounded
watching.py   sees and answers every request; logs.py, meters.py, tracing.py
closing.py    knows what is in flight, so that the end can wait for it; stopping.py: signals, and the end
guard.py      who may come in, and with how much; headers.py, callers.py, nesting.py, bodies.py
refusals.py   how the server says no, in the language of whoever asked
health.py     whether it is well
dropin/       /v1; api/ and schedules_api.py: /api
commands.py   `foveal token`
"""
