"""`transduce download`: fetch a public corpus, and write it as clean text."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

CorpusName = Literal["wmt14-en-de", "wmt14-en-fr"]


def download(
    corpus: CorpusName,
    /,
    *,
    out: Annotated[Path | None, Parameter(show_default="CORPUS")] = None,
    mirror: str | None = None,
) -> None:
    """Download a public corpus, and write it as clean text.

    The corpora are the ones of the paper: WMT 2014, English to German (1.7 GB to download, 5 GB of disk) and to French
    (6.7 GB and 37 GB). The same command continues an interrupted download. For a complete corpus it does nothing. It
    never replaces a file that you changed.

    Parameters
    ----------
    corpus
        Name of the corpus.
    out
        Folder for the texts: train, newstest2013 for validation and newstest2014 for the test, in both languages. The
        archives are in OUT/raw, and can be deleted at the end.
    mirror
        Address of a server with copies of the archives, under the paths that they have at statmt.org.

    Examples
    --------
    transduce download wmt14-en-de
    transduce download wmt14-en-fr --out corpora/wmt14-en-fr
    """
    from transduce.download.corpus import download_corpus, format_summary

    folder = Path(corpus) if out is None else out
    try:
        summary = download_corpus(corpus, folder, mirror)
    except KeyboardInterrupt:
        print("transduce: interrupted; the same command continues", file=sys.stderr, flush=True)
        raise
    print(format_summary(summary, folder))
