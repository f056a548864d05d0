"""`python -m tpspec`."""

from tpspec.cli.entry import main

main()
