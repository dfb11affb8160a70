"""Background jobs that survive `kill -9`: scheduled prompts, summaries, and retries.

async with Service.open(config) as service, JobWorker.open(service) as worker:
    await worker.run("default", "demo", "Hello", key="hello-1")     # stored: from here on it runs, once
"""

from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.schedule import Schedule, format_time, schedule_from_config
from foveal.server.jobs.schedule_store import (
    ScheduleExists,
    ScheduleIsConfigured,
    ScheduleState,
    ScheduleStore,
    UnknownSchedule,
)
from foveal.server.jobs.worker import DEFAULT_TIMING, JobWorker, WorkerTiming

__all__ = [
    "DEFAULT_TIMING",
    "Job",
    "JobQueue",
    "JobWorker",
    "Schedule",
    "ScheduleExists",
    "ScheduleIsConfigured",
    "ScheduleState",
    "ScheduleStore",
    "UnknownSchedule",
    "WorkerTiming",
    "format_time",
    "schedule_from_config",
]
