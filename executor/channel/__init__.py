"""The host end of the stream: requests in flight, deadlines, back-pressure, and checks of what comes back.

Everything that arrives here is from the sandbox and hostile. A breach of the protocol poisons the channel
for good; there is no way back but a new sandbox.
"""

from executor.channel.attestation import Expected, check_attestation
from executor.channel.connection import Channel
from executor.channel.runs import RunHandle, RunSpec

__all__ = ["Channel", "Expected", "RunHandle", "RunSpec", "check_attestation"]
