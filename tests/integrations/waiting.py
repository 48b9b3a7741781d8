"""Waiting for something in a sandbox, without a clock in the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from executor import AsyncSession

# Does not find itself: its own command line is longer.
FIND = """
for one in /proc/[0-9]*/cmdline; do
    tr '\\0' ' ' <$one | grep -Fxq "$1 " && exit
done 2>/dev/null
exit 1
"""


async def until(check: Callable[[], Awaitable[Any]], seconds: float = 10.0) -> None:
    """Wait until an awaited answer is true. TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110 - what it waits for happens in a sandbox
            await asyncio.sleep(0.02)


async def lives(session: AsyncSession, command: str) -> bool:
    """Whether a process of this command line is in the session's sandbox."""
    return (await session.exec(["sh", "-c", FIND, "sh", command])).ok


async def gone(session: AsyncSession, command: str) -> bool:
    """Whether no process is."""
    return not await lives(session, command)
