"""A server with a Telegram bot that waits an hour for the rest of a text; a test kills it meanwhile.

python -m support.patient_bot FOLDER URL
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from foveal.config import load
from foveal.server import Pairing, Service
from foveal.server.gateways.telegram import telegram
from support.telegram_bot import USER
from support.telegram_stand_in import TOKEN


async def main(folder: Path, url: str) -> None:
    flags = {"telegram.allowed": [USER], "telegram.base_url": url}
    config = load(folder, flags=flags, environ={}, user_folder=folder / "no-config")
    async with Service.open(config, folder=folder / "served", environment={}) as service:
        pairing, token = Pairing(service.runtime.database), {"TELEGRAM_BOT_TOKEN": TOKEN}
        async with telegram(service, pairing, config, token, piece_wait_s=3_600.0):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
