"""`python -m lmcache_core` is `lmcache`."""

import sys

from lmcache_core.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
