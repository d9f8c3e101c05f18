"""``python -m astra.cli``."""

import sys

from astra.cli import main

if __name__ == "__main__":
    sys.exit(main())
