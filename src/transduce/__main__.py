"""`python -m transduce`."""

from transduce.cli import main

main()
