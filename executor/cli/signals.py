"""Ctrl-C, SIGTERM and a closed terminal end the work in an orderly way: what was started is ended first."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Coroutine, Iterator
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(BaseException):
    """A signal asked this process to end. The exit status is 128 + `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = int(number)


def raise_interrupted(number: int, _frame: object = None) -> None:
    """A signal handler for work without an event loop."""
    raise Interrupted(number)


@contextlib.contextmanager
def raising_on_signals() -> Iterator[None]:
    """Let the signals raise `Interrupted`. One that is ignored (nohup, a background job) stays ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, raise_interrupted)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end. A signal cancels the work, which then cleans up; a second one ends this process.

    Also then nothing is left running: a sandbox ends by itself when its host process is gone.
    """
    import asyncio

    caught: list[int] = []

    async def whole() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            if caught:
                os._exit(128 + number)
            caught.append(number)
            task.cancel()

        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                with contextlib.suppress(NotImplementedError):
                    loop.add_signal_handler(number, stop, int(number))
        return await work

    try:
        return asyncio.run(whole())
    except asyncio.CancelledError:
        if caught:
            raise Interrupted(caught[0]) from None
        raise
