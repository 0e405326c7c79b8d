"""Start the command line: `transduce`, or `python -m transduce`.

An interrupt while Python still imports the command line ends the program without a traceback, as later.
"""

import os
import signal

_USUAL = signal.getsignal(signal.SIGINT)
if _USUAL is signal.default_int_handler:  # else the program that started this one ignores interrupts
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def main() -> None:
    """Run the command of sys.argv and exit."""
    from transduce.cli import main as command_line

    signal.signal(signal.SIGINT, _USUAL)
    command_line.main()


if __name__ == "__main__":
    main()
