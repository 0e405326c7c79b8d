"""`transduce demo`: train and try a model on generated text."""

from pathlib import Path


def demo(*, out: Path = Path("transduce-demo")) -> None:
    """Train and try a model on an embedded English-German grammar; a few minutes on two cores.

    Parameters
    ----------
    out
        A folder that does not exist yet: corpus, run, report.json and a picture of attention go there.

    Examples
    --------
    transduce demo
    transduce demo --out /tmp/demo
    """
    from transduce.demo.tour import run_demo

    run_demo(out)
