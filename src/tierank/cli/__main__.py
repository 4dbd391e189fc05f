"""``python -m tierank.cli``."""

import sys

from tierank.cli import main

sys.exit(main())
