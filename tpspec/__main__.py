"""`python -m tpspec`."""

from tpspec.cli.app import main

main()
