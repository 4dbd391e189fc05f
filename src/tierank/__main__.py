"""``python -m tierank``: the command line."""

import sys

from tierank.cli import main

sys.exit(main())
