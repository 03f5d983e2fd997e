"""``python -m bmrl`` is ``bmrl``."""

from bmrl.cli import main

main()
