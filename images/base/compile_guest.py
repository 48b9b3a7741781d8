"""Compiles the guest with the image's own Python: `python3 -I compile_guest.py guest.py guest.pyc`.

The result holds no time stamp and is never compared with a source: the image's label says which guest it is.
"""

import py_compile
import sys

source, compiled = sys.argv[1:]
py_compile.compile(
    source,
    cfile=compiled,
    dfile="<guest>",
    doraise=True,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
