"""``python -m octavo``: the same as the command ``octavo``."""

import sys

from octavo.cli.main import main

sys.exit(main())
