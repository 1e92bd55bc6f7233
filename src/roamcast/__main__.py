"""`python -m roamcast`: the `roamcast` command for those who have the package but not its script."""

import sys

from roamcast.cli import main

sys.exit(main())
