"""Background work that survives `kill -9`: prompts at given times, summaries, and attempts that failed.

async with Service.open(config) as service, Work.open(service) as work:
    await work.run("default", "demo", "Hello", key="hello-1")     # stored: from here on it will be done, once
"""

from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.schedule import Schedule, configured, stamp
from foveal.server.jobs.schedule_store import (
    ScheduleExists,
    ScheduleIsConfigured,
    ScheduleState,
    ScheduleStore,
    UnknownSchedule,
)
from foveal.server.jobs.worker import PACE, JobWorker, WorkerPace

__all__ = [
    "PACE",
    "Job",
    "JobQueue",
    "JobWorker",
    "Schedule",
    "ScheduleExists",
    "ScheduleIsConfigured",
    "ScheduleState",
    "ScheduleStore",
    "UnknownSchedule",
    "WorkerPace",
    "configured",
    "stamp",
]
