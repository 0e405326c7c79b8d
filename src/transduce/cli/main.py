"""The command line: the commands, their exit codes, and messages instead of tracebacks.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 a defect of this program, 2 the user's
mistake, 3 the machine (disk, memory, I/O). Each command imports its modules when it runs, so that help and completion
never load torch.
"""

import os
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from transduce.cli.average import average
from transduce.cli.check import check
from transduce.cli.demo import demo
from transduce.cli.evaluate import evaluate
from transduce.cli.export import export
from transduce.cli.help import add_command
from transduce.cli.import_ import import_
from transduce.cli.messages import describe_os_error, describe_usage_error, name_option_as_typed
from transduce.cli.recipes import recipes
from transduce.cli.report import report
from transduce.cli.score import score
from transduce.cli.study import app as study
from transduce.cli.train import train
from transduce.cli.translate import translate
from transduce.errors import UserError, is_out_of_memory
from transduce.version import __version__

# In the order of use. `transduce --help` lists them in this order.
COMMANDS = (demo, check, train, report, evaluate, translate, score, average, export, import_, recipes)

app = App(
    name="transduce",
    version=__version__,
    help="Train, evaluate and use the Transformer of 'Attention Is All You Need'.",
    help_epilogue="Start with:\n  transduce demo",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    result_action="return_none",
)

for _order, _command in enumerate(COMMANDS):
    add_command(app, _command, _order)
app.command(study)  # without a number: after the commands with one

# Cyclopts names optional positional arguments [ARGS].
app["evaluate"].usage = "Usage: transduce evaluate --ref PATH [OPTIONS] [MODELS...]"
app["recipes"].usage = "Usage: transduce recipes [NAME]"


def main() -> None:
    """Run the command of sys.argv and exit."""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as mistake:
        _stop(describe_usage_error(mistake), 2)
    except UserError as mistake:
        messages = [name_option_as_typed(message, sys.argv[1:]) for message in mistake.args]
        _stop(str(UserError(*messages)), 2)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        _drop_output()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except ConnectionError as problem:
        print(f"transduce: {describe_os_error(problem)}", file=sys.stderr, flush=True)
        os._exit(3)  # sys.exit would wait for threads that wait for lost ranks, or abort in them
    except OSError as problem:
        _drop_output()
        _stop(describe_os_error(problem), 3)
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        message = str(problem) if isinstance(problem, MemoryError) else ""
        _stop(f"out of memory: {message or 'use a smaller model, or a machine with more memory'}", 3)


def _stop(message: str, code: int) -> NoReturn:
    print(f"transduce: {message}", file=sys.stderr)
    sys.exit(code)


def _drop_output() -> None:
    """Discard the output that could not be written. Python would otherwise write it again at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
