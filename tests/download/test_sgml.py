"""WMT's test sets as text: the lines that sacreBLEU reads."""

from pathlib import Path

from sacrebleu.dataset.fake_sgml import FakeSGMLDataset
from support.wmt_archives import sgml

from transduce.download.sgml import read_segments

LINES = [
    "A sentence.",
    'AT&T &amp; "Poor\'s" < 5 > 3',
    "Zwei  Männer\tund ein\u00a0Hund",
    "",
    "</p> </seg> is text",
    "\u2028 in a line",
]


def test_segments_are_lines_with_single_spaces(tmp_path: Path) -> None:
    path = tmp_path / "x.sgm"
    path.write_bytes(sgml(LINES))
    assert list(read_segments(path)) == [" ".join(line.split()) for line in LINES]


def test_sacrebleu_reads_the_same_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.sgm"
    path.write_bytes(sgml(LINES))
    FakeSGMLDataset("x")._convert_format(str(path), str(tmp_path / "x.txt"))
    expected = (tmp_path / "x.txt").read_text("utf-8")
    assert "".join(f"{line}\n" for line in read_segments(path)) == expected


def test_lines_without_a_segment_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.sgm"
    path.write_bytes(b'<refset>\r\n<hl>\r\n<seg id="1"> Title </seg>\r\n</hl>\r\n<p>\n<seg>b</seg></p>\n</refset>\n')
    assert list(read_segments(path)) == ["Title", "b"]
