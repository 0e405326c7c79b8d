"""DETR beside Hugging Face transformers behind the same features, and its matching and its loss beside loops."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb
from torch import Tensor, nn

from transduce.errors import NotFiniteError, UserError
from transduce.family.hugging_face.conversion import Entry, linear, set_parameters
from transduce.family.images.configs import DetrConfig
from transduce.family.images.detr import Detr, sines_of_grid
from transduce.family.images.detr_loss import loss_of_layer, matching_costs, pairwise_giou, set_loss
from transduce.family.images.matching import cheapest
from transduce.model.transformer import parameter_count

CONFIG = DetrConfig(n_features=12, d_model=16, n_layers=2, n_heads=4, d_ff=20, n_queries=5)
Models = tuple[Detr, Any]
IMAGES = torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(1))


def entries(n_layers: int) -> list[Entry]:
    """Return the parameters that are not of the convolutions, by their names in the memory of transformers."""
    pairs = linear("model.input_projection", "projection") + linear("model.decoder.layernorm", "norm")
    pairs += [Entry("model.query_position_embeddings.weight", ("queries",))]
    pairs += linear("class_labels_classifier", "output")
    for i, number in enumerate((0, 2, 4)):
        pairs += linear(f"bbox_predictor.layers.{i}", f"boxes.{number}")
    letters = {"q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "o_proj": "w_o"}
    for side, i in itertools.product(("encoder", "decoder"), range(n_layers)):
        theirs, ours = f"model.{side}.layers.{i}", f"{side}.{i}"
        attentions = {"self_attn": "self_attention"} | (
            {"encoder_attn": "cross_attention"} if side == "decoder" else {}
        )
        for name, other in attentions.items():
            for letter, w in letters.items():
                pairs += linear(f"{theirs}.{name}.{letter}", f"{ours}.{other}.{w}")
        norms = [f"{name}_layer_norm" for name in attentions] + ["final_layer_norm"]
        for k, norm in enumerate(norms):
            pairs += linear(f"{theirs}.{norm}", f"{ours}.residuals.{k}.norm")
        for k in (1, 2):
            pairs += linear(f"{theirs}.mlp.fc{k}", f"{ours}.feed_forward.w_{k}")
    return pairs


@pytest.fixture(scope="module")
def models() -> Models:
    """Return our model, whose backbone passes features on, and theirs with a small ResNet."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    backbone = transformers.ResNetConfig(
        embedding_size=6, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "d_model": 16, "num_queries": 5}
    config = transformers.DetrConfig(backbone_config=backbone, use_timm_backbone=False, num_labels=3, **sizes)
    theirs = disturb(transformers.DetrForObjectDetection(config))
    ours = Detr(CONFIG, nn.Identity(), "abc").eval()
    set_parameters(entries(2), ours, theirs.state_dict())
    return ours, theirs


def is_without_effect(name: str) -> bool:
    """Check whether a gradient is 0 except for rounding.

    softmax cancels a key's bias. In the first self-attention of the decoder, all inputs are 0 and all values equal.
    """
    first = [f"model.decoder.layers.0.self_attn.{letter}_proj" for letter in "qkv"]
    without_effect = [f"{module}.weight" for module in first] + [f"{first[0]}.bias"]
    return name.endswith("k_proj.bias") or name in without_effect


def features_of(theirs: Any, images: Tensor) -> Tensor:
    return theirs.model.backbone(images, torch.ones(len(images), *images.shape[2:]))[-1][0].detach()


def test_classes_and_boxes_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    expected = theirs(IMAGES)
    logits, boxes = ours(features_of(theirs, IMAGES))[-1]
    assert difference(logits, expected.logits) < TOLERANCE
    assert difference(boxes, expected.pred_boxes) < TOLERANCE


def test_gradients_are_those_of_hugging_face(models: Models) -> None:
    """In fp64, since some gradients are a thousand times smaller than others, and in fp32 mostly rounding."""
    ours, theirs = (copy.deepcopy(model).double() for model in models)
    images = IMAGES.double()
    expected = theirs(images)
    logits, boxes = ours(features_of(theirs, images))[-1]
    factors = torch.randn(logits.shape), torch.randn(boxes.shape)
    ((logits * factors[0]).sum() + (boxes * factors[1]).sum()).backward()
    ((expected.logits * factors[0]).sum() + (expected.pred_boxes * factors[1]).sum()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    own = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for entry in entries(2):
        gradient = gradients[entry.theirs]
        assert gradient is not None
        if not is_without_effect(entry.theirs):
            value = own[entry.ours[0]]
            assert value is not None and difference(value, gradient) < TOLERANCE, entry


def test_the_default_has_the_parameters_of_the_public_one() -> None:
    """The public one has 41,524,768, of which a ResNet-50 has 23,454,912."""
    with torch.device("meta"):
        model = Detr(DetrConfig(), nn.Identity(), [str(i) for i in range(91)])
    assert parameter_count(model) == 41_524_768 - 23_454_912


def test_positions_are_those_of_a_loop() -> None:
    expected = torch.zeros(3, 5, 8)
    for row, column, i in itertools.product(range(3), range(5), range(8)):
        place, n = (row, 3) if i < 4 else (column, 5)
        angle = 2 * np.pi * (place + 1) / (n + 1e-6) / 10_000 ** (2 * (i % 4 // 2) / 4)
        expected[row, column, i] = np.cos(angle) if i % 2 else np.sin(angle)
    torch.testing.assert_close(sines_of_grid(3, 5, 8).float(), expected.flatten(0, 1))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 3), (3, 6), (5, 6), (0, 3)])
def test_the_matching_is_the_cheapest_of_all(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(1)
    for scale in (0, 1, 0.001, -1):  # all equal, and then random ones
        costs = generator.normal(size=shape).round(1) * scale
        columns = cheapest(costs)
        assert len({*columns}) == shape[0]
        sums = [sum(costs[range(shape[0]), p]) for p in itertools.permutations(range(shape[1]), shape[0])]
        assert sum(costs[range(shape[0]), columns]) == pytest.approx(min(sums))


def test_a_large_matching_is_not_worse_than_random_swaps() -> None:
    generator = np.random.default_rng(1)
    costs = generator.normal(size=(40, 60))
    columns = np.array(cheapest(costs))
    assert len({*columns.tolist()}) == 40
    for i, j in itertools.combinations(range(40), 2):
        assert costs[i, columns[i]] + costs[j, columns[j]] <= costs[i, columns[j]] + costs[j, columns[i]] + 1e-9


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_costs_that_are_not_finite_are_refused(value: float) -> None:
    costs = np.zeros((2, 3))
    costs[1, 2] = value
    with pytest.raises(NotFiniteError, match="costs of the matching: expected finite numbers"):
        cheapest(costs)


def test_more_objects_than_queries_are_refused() -> None:
    truth = [(torch.zeros(3, dtype=torch.long), torch.rand(3, 4))]
    with pytest.raises(UserError, match="3 objects in an image: expected at most 2, one for each query"):
        loss_of_layer(torch.randn(1, 2, 4), torch.rand(1, 2, 4), truth)


def cost_by_loop(logits: list[float], box: list[float], true_class: int, true_box: list[float]) -> float:
    """Return -p + 5 L1 - 2 GIoU, number by number."""
    p = math.exp(logits[true_class]) / sum(map(math.exp, logits))
    sides = [(min(x + w / 2, y + v / 2) - max(x - w / 2, y - v / 2)) for x, w, y, v in sides_of(box, true_box)]
    around = math.prod(max(x + w / 2, y + v / 2) - min(x - w / 2, y - v / 2) for x, w, y, v in sides_of(box, true_box))
    shared = math.prod(max(side, 0) for side in sides)
    union = box[2] * box[3] + true_box[2] * true_box[3] - shared
    giou = shared / union - (around - union) / around
    return -p + 5 * sum(abs(a - b) for a, b in zip(box, true_box, strict=True)) - 2 * giou


def sides_of(box: list[float], other: list[float]) -> list[tuple[float, float, float, float]]:
    """Return centre and size of a box, and of another, along each axis."""
    return [(box[i], box[i + 2], other[i], other[i + 2]) for i in (0, 1)]


def costs_by_loop(logits: Tensor, boxes: Tensor, classes: Tensor, true_boxes: Tensor) -> np.ndarray:
    costs = np.zeros((len(classes), len(boxes)))
    for i, j in itertools.product(range(len(classes)), range(len(boxes))):
        costs[i, j] = cost_by_loop(logits[j].tolist(), boxes[j].tolist(), int(classes[i]), true_boxes[i].tolist())
    return costs


def test_the_costs_are_those_of_a_loop() -> None:
    torch.manual_seed(1)
    inputs = torch.randn(5, 4), torch.rand(5, 4), torch.tensor([2, 0, 2]), torch.rand(3, 4)
    np.testing.assert_allclose(matching_costs(*inputs), costs_by_loop(*inputs), rtol=1e-5, atol=1e-5)


def test_the_loss_and_its_gradients_are_those_of_hugging_face() -> None:
    """The expected matching is the cheapest of all, by costs of a loop."""
    loss_module = pytest.importorskip("transformers.loss.loss_for_object_detection")
    torch.manual_seed(1)
    logits, boxes = torch.randn(2, 5, 4, requires_grad=True), torch.rand(2, 5, 4, requires_grad=True)
    truth = [(torch.tensor([2, 0]), torch.rand(2, 4)), (torch.tensor([], dtype=torch.long), torch.rand(0, 4))]
    costs = costs_by_loop(logits[0], boxes[0], *truth[0])
    match = min(itertools.permutations(range(5), 2), key=lambda rows: costs[0, rows[0]] + costs[1, rows[1]])
    indices = [(torch.tensor(rows, dtype=torch.long), torch.arange(len(rows))) for rows in (match, ())]
    theirs = loss_module.ImageLoss(lambda *_: indices, 3, 0.1, ["labels", "boxes"])
    targets = [{"class_labels": classes, "boxes": true_boxes} for classes, true_boxes in truth]
    parts = theirs({"logits": logits, "pred_boxes": boxes}, targets)
    expected = parts["loss_ce"] + 5 * parts["loss_bbox"] + 2 * parts["loss_giou"]
    loss = loss_of_layer(logits, boxes, truth)
    torch.testing.assert_close(loss, expected)
    gradients, theirs = (torch.autograd.grad(value, (logits, boxes)) for value in (loss, expected))
    torch.testing.assert_close(gradients, theirs)
    torch.testing.assert_close(set_loss([(logits, boxes)] * 3, truth), 3 * expected)


def test_equal_boxes_overlap_wholly_and_distant_ones_less_than_not() -> None:
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.1, 0.1]])
    giou = pairwise_giou(boxes, boxes)
    torch.testing.assert_close(giou.diagonal(), torch.ones(2))
    assert giou[0, 1] < 0


def test_the_order_of_the_true_objects_does_not_count() -> None:
    torch.manual_seed(1)
    logits, boxes = torch.randn(1, 5, 4), torch.rand(1, 5, 4)
    classes, true_boxes = torch.tensor([2, 0, 1]), torch.rand(3, 4)
    order = torch.tensor([1, 2, 0])
    losses = [loss_of_layer(logits, boxes, [x]) for x in ((classes, true_boxes), (classes[order], true_boxes[order]))]
    torch.testing.assert_close(*losses)


def test_two_objects_of_a_picture_are_learned() -> None:
    torch.manual_seed(1)
    model = Detr(DetrConfig(3, 16, 1, 2, 32, 4, dropout=0.0), nn.Identity(), "ab")
    picture = torch.randn(1, 3, 4, 4)
    truth = [(torch.tensor([0, 1]), torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.7, 0.6, 0.4, 0.2]]))]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        set_loss(model(picture), truth).backward()
        optimizer.step()
    logits, boxes = model(picture)[-1]
    classes = logits[0].argmax(dim=1)
    assert sorted(classes.tolist()) == [0, 1, 2, 2]
    order = torch.stack([boxes[0, classes == i][0] for i in (0, 1)])
    torch.testing.assert_close(order, truth[0][1], atol=0.05, rtol=0)
