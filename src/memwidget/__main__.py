"""``python -m memwidget``: the console script."""

import sys

from memwidget.cli import main

sys.exit(main())
