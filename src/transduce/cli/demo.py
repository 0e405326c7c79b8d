"""`transduce demo`: train a model on generated text and try it."""

from pathlib import Path

from transduce.cli.options import with_device


@with_device
def demo(*, out: Path = Path("transduce-demo")) -> None:
    """Train a small model on generated text, and try it.

    The text is English and German. The command takes a few minutes on two cores.

    Parameters
    ----------
    out
        New folder for the corpus, the run, report.json and a plot of the attention.

    Examples
    --------
    transduce demo
    transduce demo --out /tmp/demo
    """
    from transduce.demo.tour import run_demo

    run_demo(out)
