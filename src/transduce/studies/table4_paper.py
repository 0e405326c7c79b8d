"""Table 4 in the paper: F1 on section 23 of the Wall Street Journal (WSJ)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A row of the paper."""

    parser: str
    training: str
    f1: float


WSJ, SEMI = "WSJ only, discriminative", "semi-supervised"

PAPER = (
    Published("Vinyals & Kaiser et al. (2014)", WSJ, 88.3),
    Published("Petrov et al. (2006)", WSJ, 90.4),
    Published("Zhu et al. (2013)", WSJ, 90.4),
    Published("Dyer et al. (2016)", WSJ, 91.7),
    Published("Transformer (4 layers)", WSJ, 91.3),
    Published("Zhu et al. (2013)", SEMI, 91.3),
    Published("Huang & Harper (2009)", SEMI, 91.3),
    Published("McClosky et al. (2006)", SEMI, 92.1),
    Published("Vinyals & Kaiser et al. (2014)", SEMI, 92.1),
    Published("Transformer (4 layers)", SEMI, 92.7),
    Published("Luong et al. (2015)", "multi-task", 93.0),
    Published("Dyer et al. (2016)", "generative", 93.3),
)
