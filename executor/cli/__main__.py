"""`python -m executor.cli`: the same as the installed command `executor`."""

import sys

from executor.cli.app import main

sys.exit(main())
