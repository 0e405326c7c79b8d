"""The public corpora that `transduce download` knows: WMT 2014, English to German and to French, as in the paper.

Sizes and checksums come from other projects: TensorFlow Datasets (url_checksums/wmt13_translate.txt,
wmt14_translate.txt) for the training files and dev.tgz, whose sizes GluonNLP repeats, and sacreBLEU (wmt14/full) for
the test set. None: the size is not known. The sizes were not checked by a download.
"""

from dataclasses import dataclass

from transduce.download.fetch import RemoteFile
from transduce.errors import UserError, nearest

STATMT = "https://www.statmt.org"


@dataclass(frozen=True)
class TextPair:
    """Two texts that correspond line by line, in an archive.

    name: name of the part of a corpus, or of the test set. src, tgt: names of members of the archive: text (also gz),
    or SGML if they end in .sgm. lines: the expected number; None: not checked.
    """

    name: str
    archive: RemoteFile
    src: str
    tgt: str
    lines: int | None = None


@dataclass(frozen=True)
class PublicCorpus:
    """A corpus: its training parts, and its test sets, which are written without cleaning.

    src, tgt: codes of the languages. recipe: the name of the paper's base model for it. text_bytes: approximate size of
    the training text of both sides, as Hugging Face's wmt14 has it. The unpacked text and the clean text are about as
    large, or smaller.
    """

    name: str
    src: str
    tgt: str
    recipe: str
    text_bytes: int
    train: tuple[TextPair, ...]
    tests: tuple[TextPair, ...]

    @property
    def archives(self) -> list[RemoteFile]:
        """The archives to download, each once."""
        return list(dict.fromkeys(pair.archive for pair in (*self.train, *self.tests)))


EUROPARL = RemoteFile(
    f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz",
    657_632_379,
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = RemoteFile(
    f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz",
    918_311_367,
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
NEWS_COMMENTARY = RemoteFile(
    f"{STATMT}/wmt14/training-parallel-nc-v9.tgz",
    80_418_416,
    "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
UNITED_NATIONS = RemoteFile(
    f"{STATMT}/wmt13/training-parallel-un.tgz",
    2_365_634_246,
    "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
GIGA_FRENCH = RemoteFile(
    f"{STATMT}/wmt10/training-giga-fren.tar",
    2_595_102_720,
    "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)
DEV = RemoteFile(
    "https://data.statmt.org/wmt19/translation-task/dev.tgz",
    38_654_961,
    "sha256:7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)
TEST = RemoteFile(f"{STATMT}/wmt14/test-full.tgz", None, "md5:a8cd784e006feb32ac6f3d9ec7eb389a")


def _common_parts(pair: str, src: str, tgt: str) -> tuple[TextPair, ...]:
    """Return the parts that both language pairs have. pair: pair as in the names of the files, such as de-en."""
    files = {
        "europarl-v7": (EUROPARL, f"training/europarl-v7.{pair}"),
        "commoncrawl": (COMMON_CRAWL, f"commoncrawl.{pair}"),
        "news-commentary-v9": (NEWS_COMMENTARY, f"training/news-commentary-v9.{pair}"),
    }
    return tuple(TextPair(name, file, f"{start}.{src}", f"{start}.{tgt}") for name, (file, start) in files.items())


def _tests(pair: str, src: str, tgt: str) -> tuple[TextPair, ...]:
    """Return the test sets of 2013, for validation, and of 2014, complete. pair: as in the file names, such as deen."""
    start = f"test-full/newstest2014-{pair}"
    return (
        TextPair("newstest2013", DEV, f"dev/newstest2013.{src}", f"dev/newstest2013.{tgt}", 3_000),
        TextPair("newstest2014", TEST, f"{start}-src.{src}.sgm", f"{start}-ref.{tgt}.sgm", 3_003),
    )


FRENCH_PARTS = (
    TextPair("un", UNITED_NATIONS, "un/undoc.2000.fr-en.en", "un/undoc.2000.fr-en.fr"),
    TextPair("giga-fren", GIGA_FRENCH, "giga-fren.release2.fixed.en.gz", "giga-fren.release2.fixed.fr.gz"),
)

ENGLISH_GERMAN = PublicCorpus(
    name="wmt14-en-de",
    src="en",
    tgt="de",
    recipe="vaswani2017-base",
    text_bytes=1_400_000_000,
    train=_common_parts("de-en", "en", "de"),
    tests=_tests("deen", "en", "de"),
)
ENGLISH_FRENCH = PublicCorpus(
    name="wmt14-en-fr",
    src="en",
    tgt="fr",
    recipe="vaswani2017-base-enfr",
    text_bytes=14_800_000_000,
    train=(*_common_parts("fr-en", "en", "fr"), *FRENCH_PARTS),
    tests=_tests("fren", "en", "fr"),
)
CORPORA = {corpus.name: corpus for corpus in (ENGLISH_GERMAN, ENGLISH_FRENCH)}


def find_corpus(name: str) -> PublicCorpus:
    """Return the corpus called `name`. Raises UserError if there is none."""
    if name in CORPORA:
        return CORPORA[name]
    raise UserError(f"name={name}: expected one of {', '.join(CORPORA)}{nearest(name, CORPORA)}")
