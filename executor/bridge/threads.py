"""Work that blocks, each in a thread of its own: what never ends takes no place from anybody else.

The threads of `asyncio.to_thread` are few, and all of this process's work shares them; what a script or a
stranger's server can make slow is not for there.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import threading
from collections.abc import Callable
from typing import Any


class _ThreadFuture(asyncio.Future[Any]):
    """A thread's result. It cannot be cancelled, and says so: its end is still seen."""

    def cancel(self, msg: Any = None) -> bool:
        return False


def in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run in a thread of its own, which a stuck handler may keep for ever without stopping this process."""
    loop = asyncio.get_running_loop()
    future = _ThreadFuture(loop=loop)
    future.add_done_callback(lambda done: done.exception())  # seen, also when nobody waits any more
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as caught:
            error = RuntimeError("the handler stopped") if isinstance(caught, StopIteration) else caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop has ended: nobody waits any more

    threading.Thread(target=run, name="bridge-" + secrets.token_hex(3), daemon=True).start()
    return future
