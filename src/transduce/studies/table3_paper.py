"""Table 3 in the paper: the figures of each row, and the claims of section 6.2 about them."""

from dataclasses import dataclass

from transduce.studies.comparison import Effect


@dataclass(frozen=True)
class PublishedModel:
    """A row of the paper: perplexity per token and BLEU on the development set, and parameters in millions or None."""

    group: str
    changed: str
    perplexity: float
    bleu: float
    parameters: int | None = None

    @property
    def title(self) -> str:
        return f"({self.group}) {self.changed}" if self.group else self.changed


PAPER = {
    "base": PublishedModel("", "base", 4.92, 25.8, 65),
    "h1": PublishedModel("A", "h = 1", 5.29, 24.9),
    "h4": PublishedModel("A", "h = 4", 5.00, 25.5),
    "h16": PublishedModel("A", "h = 16", 4.91, 25.8),
    "h32": PublishedModel("A", "h = 32", 5.01, 25.4),
    "dk16": PublishedModel("B", "d_k = 16", 5.16, 25.1, 58),
    "dk32": PublishedModel("B", "d_k = 32", 5.01, 25.4, 60),
    "n2": PublishedModel("C", "N = 2", 6.11, 23.7, 36),
    "n4": PublishedModel("C", "N = 4", 5.19, 25.3, 50),
    "n8": PublishedModel("C", "N = 8", 4.88, 25.5, 80),
    "d256": PublishedModel("C", "d_model = 256", 5.75, 24.5, 28),
    "d1024": PublishedModel("C", "d_model = 1024", 4.66, 26.0, 168),
    "ff1024": PublishedModel("C", "d_ff = 1024", 5.12, 25.4, 53),
    "ff4096": PublishedModel("C", "d_ff = 4096", 4.75, 26.2, 90),
    "dropout0": PublishedModel("D", "dropout 0", 5.77, 24.6),
    "dropout0.2": PublishedModel("D", "dropout 0.2", 4.95, 25.5),
    "smoothing0": PublishedModel("D", "smoothing 0", 4.67, 25.3),
    "smoothing0.2": PublishedModel("D", "smoothing 0.2", 5.47, 25.7),
    "learned": PublishedModel("E", "learned positions", 4.92, 25.7),
    "big": PublishedModel("", "big", 4.33, 26.4, 213),
}


@dataclass(frozen=True)
class Claim:
    """A sentence of section 6.2. effects: the claimed effect of each row that it is about, compared with base."""

    sentence: str
    effects: dict[str, Effect]


CLAIMS = (
    Claim("Single-head attention is worse than the best setting", {"h1": "hurts"}),
    Claim("Quality also drops off with too many heads", {"h32": "hurts"}),
    Claim("Reducing the attention key size d_k hurts model quality", {"dk16": "hurts", "dk32": "hurts"}),
    Claim(
        "Bigger models are better",
        {
            "n2": "hurts",
            "n4": "hurts",
            "n8": "helps",
            "d256": "hurts",
            "d1024": "helps",
            "ff1024": "hurts",
            "ff4096": "helps",
            "big": "helps",
        },
    ),
    Claim("Dropout is very helpful in avoiding over-fitting", {"dropout0": "hurts"}),
    Claim("Learned positions give nearly identical results to sinusoids", {"learned": "none"}),
)
SMALLEST_FACTOR = 1.02  # of perplexity: the largest difference that counts as nearly identical
