"""Sessions behind a server, without HTTP: tenants, rooms, turns, and what they need to survive each other.

    async with Service.open(config) as service:
        room = await service.tenant("default").ensure("demo")
        turn = await room.say("Hello")          # stored: from here on it is not lost
        print((await turn.outcome()).text)

`apps/server` and `apps/gateways` are faces of this.
"""

from foveal.errors import Busy
from foveal.server.live_session import Compaction, LiveSession
from foveal.server.service import Service
from foveal.server.tenants import Tenant
from foveal.server.turns import Turn, TurnOutcome

__all__ = ["Busy", "Compaction", "LiveSession", "Service", "Tenant", "Turn", "TurnOutcome"]
