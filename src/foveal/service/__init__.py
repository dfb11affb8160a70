"""Sessions behind a server, without HTTP: tenants, rooms, turns, and what they need to survive each other.

    async with Service.open(config) as service:
        room = await service.tenant("default").ensure("demo")
        turn = await room.say("Hello")          # stored: from here on it is not lost
        print((await turn.outcome()).text)

`apps/server` and `apps/gateways` are faces of this.
"""

from foveal.errors import Busy
from foveal.service.room import Compaction, Room
from foveal.service.rooms import Service
from foveal.service.tenants import Tenant
from foveal.service.turns import Outcome, Turn

__all__ = ["Busy", "Compaction", "Outcome", "Room", "Service", "Tenant", "Turn"]
