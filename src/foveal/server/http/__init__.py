"""HTTP server: drop-in endpoints, native API, authentication, limits, observability.

app                 all of it as one ASGI application
listener            the socket and uvicorn; bounded_protocol: limits on headers and slow bodies
request_log         outermost middleware: request id, log line, metrics; json_logs, prometheus, tracing
shutdown            stop signals and requests in flight
guard               authentication, rate and size limits; http_headers, request_body
http_errors         errors in the format of the path
server_health       /healthz
proxy/              /v1: drop-in endpoints
api/                /api: sessions and schedules
banner              startup message of `foveal serve`
token_command       `foveal token`
"""
