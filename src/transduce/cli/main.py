"""The command line: the commands, their exit codes, and messages instead of tracebacks.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 a defect of this program, 2 the user's
mistake, 3 the machine (disk, memory, I/O). Each command imports its modules when it runs, so that help and completion
never load torch.
"""

import os
import sys
from contextlib import redirect_stderr
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from transduce import __version__
from transduce.cli.add_tags import add_tags
from transduce.cli.attend import attend
from transduce.cli.average import average
from transduce.cli.backtranslate import backtranslate
from transduce.cli.calibrate import calibrate
from transduce.cli.check import check
from transduce.cli.classify import classify
from transduce.cli.clean import clean
from transduce.cli.configure import configure
from transduce.cli.continue_ import continue_
from transduce.cli.demo import demo
from transduce.cli.distil import distil
from transduce.cli.diversify import diversify
from transduce.cli.download import download
from transduce.cli.embed import embed
from transduce.cli.evaluate import evaluate
from transduce.cli.export import export
from transduce.cli.fill import fill
from transduce.cli.finetune import finetune
from transduce.cli.heads import heads
from transduce.cli.help import add_command, limit_size
from transduce.cli.import_ import import_
from transduce.cli.linearize import linearize
from transduce.cli.messages import describe_lack, describe_os_error, describe_usage_error, name_option_as_typed, shorten
from transduce.cli.output import standard_output
from transduce.cli.parse import parse
from transduce.cli.prune import prune
from transduce.cli.recipes import recipes
from transduce.cli.report import report
from transduce.cli.score import score
from transduce.cli.serve import serve
from transduce.cli.shortlist import shortlist
from transduce.cli.study import app as study
from transduce.cli.train import train
from transduce.cli.transcribe import transcribe
from transduce.cli.translate import translate
from transduce.console import best_effort_stderr, drop_unwritten, open_missing_streams, printable, repeat_lost_interrupt
from transduce.errors import UserError

# In the order of use. `transduce --help` lists them in this order.
COMMANDS = (
    demo,
    download,
    check,
    clean,
    linearize,
    train,
    finetune,
    report,
    evaluate,
    translate,
    parse,
    serve,
    score,
    attend,
    heads,
    prune,
    average,
    shortlist,
    calibrate,
    configure,
    add_tags,
    backtranslate,
    distil,
    diversify,
    export,
    import_,
    continue_,
    fill,
    embed,
    classify,
    transcribe,
    recipes,
)

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
app["evaluate"].usage = "Usage: transduce evaluate (--ref PATH | --trees PATH) [OPTIONS] [MODELS...]"
app["recipes"].usage = "Usage: transduce recipes [NAME]"


def main() -> None:
    """Run the command of sys.argv and exit."""
    open_missing_streams()
    sys.unraisablehook = repeat_lost_interrupt
    errors = sys.stderr
    try:
        with redirect_stderr(best_effort_stderr()):
            _run()
    finally:
        drop_unwritten(errors)


def _run() -> None:
    limit_size()
    try:
        with standard_output():
            app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as mistake:
        _stop(describe_usage_error(mistake), 2)
    except UserError as mistake:
        messages = [name_option_as_typed(message, sys.argv[1:]) for message in mistake.args]
        _stop(str(UserError(*messages)), 2)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        sys.exit(0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # of rich, which prints help and exits with 1
            sys.exit(0)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except ConnectionError as problem:
        _print(describe_os_error(problem))
        os._exit(3)  # sys.exit would wait for threads that wait for lost ranks, or abort in them
    except OSError as problem:
        _stop(describe_os_error(problem), 3)
    except (MemoryError, RuntimeError) as problem:
        message = describe_lack(problem)
        if message is None:
            raise
        _stop(message, 3)


def _stop(message: str, code: int) -> NoReturn:
    _print(message)
    sys.exit(code)


def _print(message: str) -> None:
    text = shorten(printable(message, keep="\n"))
    print(f"transduce: {text}", file=sys.stderr, flush=True)
