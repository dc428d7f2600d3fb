#!/bin/sh
# The public package's command by its own entry point: the `lmcache` of an environment with both belongs to one of them.
exec "$(dirname "$0")/../.venv-engine/bin/python" -c 'import sys; from lmcache.cli.main import main; sys.exit(main())' "$@"
