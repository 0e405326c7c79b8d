"""What DETR learns (Carion et al. 2020, section 3.1): a set of objects, whatever the order of the queries.

The cheapest matching of queries and true objects is found first, with p the probability of the true class:

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

from transduce.errors import NotFiniteError, UserError

NO_OBJECT, OF_BOX, OF_GIOU = 0.1, 5.0, 2.0  # weights of the parts of the loss
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


def cheapest(costs: np.ndarray) -> list[int]:
    """Return the column of each row of `costs` (M,N), M <= N, no column twice, with the least sum.

    The Hungarian method: each row joins by a shortest path over reduced costs, in time M M N. Raises UserError
    for more rows (objects) than columns (queries), and NotFiniteError for costs that are not finite.
    """
    n_rows, n_columns = costs.shape
    if n_rows > n_columns:
        raise UserError(f"{n_rows} objects in an image: expected at most {n_columns}, one for each query; add queries")
    if not np.isfinite(costs).all():
        raise NotFiniteError(
            "costs of the matching: expected finite numbers; lower the learning rate or check the boxes"
        )
    of_rows = np.zeros(n_rows)  # prices, which keep all reduced costs at 0 or more
    of_columns = np.zeros(n_columns)
    row_of = np.full(n_columns, -1)
    for new in range(n_rows):
        lengths = np.full(n_columns, np.inf)
        before = np.full(n_columns, -1)
        done = np.zeros(n_columns, dtype=bool)
        row = new
        column = -1
        length = 0.0
        while row >= 0:  # until a column is free
            through = length + costs[row] - of_rows[row] - of_columns
            is_shorter = ~done & (through < lengths)
            lengths[is_shorter] = through[is_shorter]
            before[is_shorter] = column
            column = int(np.where(done, np.inf, lengths).argmin())
            length = lengths[column]
            done[column] = True
            row = row_of[column]
        of_rows[new] += length
        passed = done & (row_of >= 0)
        of_rows[row_of[passed]] += length - lengths[passed]
        of_columns[done] -= length - lengths[done]
        while column >= 0:  # each column on the path takes the row of the one before it
            row_of[column] = row_of[before[column]] if before[column] >= 0 else new
            column = before[column]
    columns = {int(row): column for column, row in enumerate(row_of) if row >= 0}
    return [columns[row] for row in range(n_rows)]
