"""HTTP server: drop-in endpoints, native API, authentication, limits, observability.

app                 all of it as one ASGI application
json_logs           outermost middleware: request id, log line, metrics; prometheus, tracing
guard               authentication, rates, the audit trail
shutdown            stop signals and requests in flight

What it shares with the inspector is in `foveal.web`; `server.proxy` and `server.api` have the endpoints.
"""
