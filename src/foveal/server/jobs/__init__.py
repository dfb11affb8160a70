"""Background jobs that survive `kill -9`: scheduled prompts, summaries, and retries.

async with Service.open(config) as service, JobWorker.open(service) as worker:
    await worker.run("default", "demo", "Hello", key="hello-1")     # stored: from here on it runs, once
"""

from foveal.server.jobs.worker import JobWorker

__all__ = [
    "JobWorker",
]
