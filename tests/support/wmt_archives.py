"""Small archives in the layout of WMT's, with texts of our own, and a catalogue with their sizes and checksums."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from transduce.download.catalogue import PublicCorpus, TextPair
from transduce.download.fetch import RemoteFile

Lines = tuple[Sequence[str], Sequence[str]]  # of the source and of the target


def tar(members: Mapping[str, bytes], compression: str = "gz") -> bytes:
    """Return a tar archive. compression: "gz" or ""."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz" if compression == "gz" else "w:") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return output.getvalue()


def sgml(lines: Sequence[str]) -> bytes:
    """Return lines in the format of WMT's test sets."""
    segments = [f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, start=1)]
    head = (
        '<srcset setid="newstest2014" srclang="any">\n<doc sysid="ref" docid="a.1" genre="news" origlang="en">\n<p>\n'
    )
    return "".join([head, *segments, "</p>\n</doc>\n</srcset>\n"]).encode()


def miniature(corpus: PublicCorpus, texts: Mapping[str, Lines]) -> tuple[PublicCorpus, dict[str, bytes]]:
    """Return `corpus` with other texts and their checksums, and the archives by the paths of their addresses.

    texts: the lines of each part and test set, by name.
    """
    members: dict[RemoteFile, dict[str, bytes]] = {
        file: {"training/other.cs-en.cs": b"a\n"} for file in corpus.archives
    }
    for pair in (*corpus.train, *corpus.tests):
        for name, lines in zip((pair.src, pair.tgt), texts[pair.name], strict=True):
            plain = "".join(f"{line}\n" for line in lines).encode()
            packed = gzip.compress(plain) if name.endswith(".gz") else sgml(lines) if name.endswith(".sgm") else plain
            members[pair.archive][name] = packed
    archives = {file: tar(content, "" if file.name.endswith(".tar") else "gz") for file, content in members.items()}
    files = {file: _described(file, content) for file, content in archives.items()}

    def adapted(pair: TextPair) -> TextPair:
        return replace(pair, archive=files[pair.archive], lines=pair.lines and len(texts[pair.name][0]))

    train, tests = (tuple(map(adapted, pairs)) for pairs in (corpus.train, corpus.tests))
    small = replace(corpus, train=train, tests=tests, text_bytes=1_000)
    return small, {urlsplit(file.url).path: content for file, content in archives.items()}


def _described(file: RemoteFile, content: bytes) -> RemoteFile:
    """Return `file` with the checksum of `content`, and with its size if the size of `file` is known."""
    kind = file.checksum.partition(":")[0]
    checksum = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
    return replace(file, size=file.size and len(content), checksum=checksum)
