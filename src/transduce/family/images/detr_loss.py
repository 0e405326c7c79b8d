"""What DETR learns (Carion et al. 2020, section 3.1): a set of objects, whatever the order of the queries.

First comes the cheapest matching of queries and true objects (`matching.py`), with p the probability of the true class:

    cost = -p + 5 |box - true box|_1 - 2 GIoU                                             eq. 1
    loss = mean CE of all queries (no object: weight w) + 5 L1 + 2 (1 - GIoU) of the matched boxes, per object

The weight w keeps the many queries without an object from outweighing the others: 0.1 in the paper, for a hundred.
GIoU, the generalized IoU, is the intersection over the union, less the share of the smallest common box that is in
neither (appendix A.2).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.family.images.matching import cheapest

# Weights of the parts of the loss.
NO_OBJECT = 0.1
OF_BOX = 5.0
OF_GIOU = 2.0
Objects = tuple[Tensor, Tensor]  # classes (M,) and boxes (M,4) of an image


def set_loss(outputs: Sequence[Objects], truth: Sequence[Objects], no_object: float = NO_OBJECT) -> Tensor:
    """Return the loss of all layers. outputs: see `Detr.forward`. truth: the objects of each image. no_object: w.

    Raises UserError for more objects than queries, and NotFiniteError if the costs of a matching are not finite.
    """
    return torch.stack([loss_of_layer(logits, boxes, truth, no_object) for logits, boxes in outputs]).sum()


def loss_of_layer(logits: Tensor, boxes: Tensor, truth: Sequence[Objects], no_object: float = NO_OBJECT) -> Tensor:
    """Return the loss of logits (B,N,V+1) and boxes (B,N,4)."""
    n_objects = max(sum(len(classes) for classes, _ in truth), 1)
    classes = torch.full(logits.shape[:2], logits.size(2) - 1, device=logits.device)
    loss = logits.new_zeros(())
    for i, (true_classes, true_boxes) in enumerate(truth):
        rows = torch.tensor(cheapest(matching_costs(logits[i], boxes[i], true_classes, true_boxes)), dtype=torch.long)
        classes[i, rows] = true_classes
        matched = boxes[i, rows]
        l1 = (matched - true_boxes).abs().sum()
        giou = pairwise_giou(matched, true_boxes).diagonal()
        loss = loss + (OF_BOX * l1 + OF_GIOU * (1 - giou).sum()) / n_objects
    weights = torch.ones(logits.size(2), device=logits.device)
    weights[-1] = no_object
    return loss + F.cross_entropy(logits.flatten(0, 1), classes.flatten(), weights)


@torch.no_grad()
def matching_costs(logits: Tensor, boxes: Tensor, classes: Tensor, true_boxes: Tensor) -> np.ndarray:
    """Return the cost (M,N) of each object with each query."""
    probabilities = logits.softmax(dim=-1)[:, classes]
    costs = OF_BOX * torch.cdist(boxes, true_boxes, p=1) - probabilities - OF_GIOU * pairwise_giou(boxes, true_boxes)
    return costs.mT.double().cpu().numpy()


def corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper left and the lower right corners, (...,2), of boxes (...,4) of centre, width and height."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return centre - size / 2, centre + size / 2


def pairwise_iou(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection over the union (N,M) of boxes (N,4) and (M,4), and the union."""
    (low, high), (other_low, other_high) = corners(boxes[:, None]), corners(others[None])
    shared = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0).prod(dim=-1)
    union = boxes[:, None, 2:].prod(dim=-1) + others[None, :, 2:].prod(dim=-1) - shared
    return shared / union, union


def pairwise_giou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the generalized IoU (N,M) of boxes (N,4) and (M,4)."""
    iou, union = pairwise_iou(boxes, others)
    (low, high), (other_low, other_high) = corners(boxes[:, None]), corners(others[None])
    around = (torch.maximum(high, other_high) - torch.minimum(low, other_low)).prod(dim=-1)
    return iou - (around - union) / around
