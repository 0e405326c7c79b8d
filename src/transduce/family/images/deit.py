"""DeiT, the data-efficient image Transformer (Touvron et al. 2021, section 4).

What changed since ViT: a second learned vector, the distillation token, stands after x_class. Its last state learns
what a teacher answers, and the last state of x_class learns the true class. With the two heads f and g, and LN(z) of
the two tokens:

    loss = 1/2 CE(f(z_class), y) + 1/2 CE(g(z_distillation), argmax of the teacher)     eq. 3, hard distillation
    answer = (f(z_class) + g(z_distillation)) / 2                                       as in the published code

Section 4 adds the softmax outputs of the two heads instead.
"""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.images.configs import ViTConfig
from transduce.family.images.vit import PatchEncoder


class TwoHeads(nn.Module):
    """The heads of the two tokens: (B,2,D) -> (B,V), the mean of their logits."""

    def __init__(self, d_model: int, n_classes: int) -> None:
        super().__init__()
        self.truth, self.teacher = nn.Linear(d_model, n_classes), nn.Linear(d_model, n_classes)

    def logits(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (B,V) of x_class and of the distillation token."""
        return self.truth(states[:, 0]), self.teacher(states[:, 1])

    def forward(self, states: Tensor) -> Tensor:
        truth, teacher = self.logits(states)
        return (truth + teacher) / 2


class DeiT(PatchEncoder):
    """A ViT with a distillation token. labels: names of the classes."""

    def __init__(self, config: ViTConfig, labels: Sequence[str]) -> None:
        super().__init__(config, n_starts=2)
        self.output, self.labels = TwoHeads(config.d_model, len(labels)), tuple(labels)
        self.initialise()

    def pooled(self, images: Tensor) -> Tensor:
        """Return the states (B,2,D) of the two tokens."""
        return self.states(images)[:, :2]

    def loss(self, images: Tensor, classes: Tensor, teacher_classes: Tensor) -> Tensor:
        """Return the loss of eq. 3. classes: true classes (B,). teacher_classes: what a teacher answers, (B,)."""
        truth, teacher = cast(TwoHeads, self.output).logits(self.pooled(images))
        return (F.cross_entropy(truth, classes) + F.cross_entropy(teacher, teacher_classes)) / 2
