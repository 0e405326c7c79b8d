"""Run the command line as `python -m transduce`."""

from transduce.cli.main import main

main()
