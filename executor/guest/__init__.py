"""What runs inside the sandbox, and the codec that both ends share.

`wire` and `records` are used by host and guest; `agent` runs only as process 1 of a sandbox. All three
are standard-library Python 3.9 and are sent into the sandbox as one file by `bundle`.
"""
