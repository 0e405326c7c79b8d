"""Pictures of coloured shapes, drawn here, with captions and boxes: CLIP names unseen combinations, DETR finds shapes.

    python benchmarks/shapes.py clip [--steps 2000] [--seed 1]
    python benchmarks/shapes.py detr [--steps 1600] [--seed 1] [--no-object 0.1]

CLIP sees one shape of 36 combinations of colour and shape, of which six, each colour and each shape once, are in no
training picture. DETR sees one to four shapes, and is judged on pictures of its own. The weights of both are random at
the start, and each picture is drawn anew.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from transduce.family.images.clip import Clip
from transduce.family.images.configs import ClipConfig, DetrConfig, ViTConfig
from transduce.family.images.detr import Detr
from transduce.family.images.detr_loss import Objects, pairwise_iou, set_loss
from transduce.training.optimizer import adam, learning_rate

SIDE = 32  # pixels
COLOURS = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.8, 0.2),
    "blue": (0.2, 0.3, 1.0),
    "yellow": (0.9, 0.9, 0.1),
    "purple": (0.7, 0.1, 0.9),
    "white": (1.0, 1.0, 1.0),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
PAIRS = [(colour, shape) for colour in COLOURS for shape in SHAPES]
HELD_OUT_PAIRS = list(zip(COLOURS, SHAPES, strict=True))
TRAINING_PAIRS = [pair for pair in PAIRS if pair not in HELD_OUT_PAIRS]
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
WORDS = ["a", "small", "large", *COLOURS, *SHAPES, "at", "the", *ROWS, *COLUMNS, "<end>"]


@dataclass(frozen=True)
class Thing:
    """A shape on a picture. centre: column and row in pixels. radius: half of its width and height."""

    colour: str
    shape: str
    centre: tuple[float, float]
    radius: float

    @property
    def box(self) -> list[float]:
        """Centre, width and height, as shares of the picture."""
        return [float(x) / SIDE for x in (*self.centre, 2 * self.radius, 2 * self.radius)]


def random_thing(generator: np.random.Generator, pairs: list[tuple[str, str]]) -> Thing:
    """Return a shape that lies within the picture, with one of the pairs of colour and shape."""
    colour, shape = pairs[generator.integers(len(pairs))]
    radius = generator.uniform(3, 7)
    x, y = generator.uniform(radius, SIDE - radius, 2)
    return Thing(colour, shape, (x, y), radius)


def is_inside(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return which points belong to a shape whose box goes from -1 to 1."""
    box = np.maximum(abs(x), abs(y)) <= 1
    forms = {
        "circle": x**2 + y**2 <= 1,
        "square": box,
        "triangle": box & (2 * abs(x) <= y + 1),
        "cross": box & (np.minimum(abs(x), abs(y)) <= 0.35),
        "ring": (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
        "diamond": abs(x) + abs(y) <= 1,
    }
    return forms[shape]


def draw(generator: np.random.Generator, things: list[Thing]) -> np.ndarray:
    """Return a picture (3,SIDE,SIDE), from -1 to 1, of shapes on a dark and noisy ground. Later ones are in front."""
    picture = generator.uniform(0, 0.3, (3, 1, 1)) + generator.uniform(0, 0.15, (3, SIDE, SIDE))
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    for thing in things:
        place = is_inside(thing.shape, (x - thing.centre[0]) / thing.radius, (y - thing.centre[1]) / thing.radius)
        colour = np.array(COLOURS[thing.colour])[:, None] * generator.uniform(0.8, 1)
        picture[:, place] = colour
    return (2 * picture - 1).astype(np.float32)


# ---- CLIP ----------------------------------------------------------------------------------------------------------


def caption(generator: np.random.Generator, thing: Thing) -> str:
    """Return a caption; size and place are in half of the captions each."""
    size = ("small " if thing.radius < 5 else "large ") if generator.random() < 0.5 else ""
    column, row = (int(3 * x / SIDE) for x in thing.centre)
    place = f" at the {ROWS[row]} {COLUMNS[column]}" if generator.random() < 0.5 else ""
    return f"a {size}{thing.colour} {thing.shape}{place}"


def ids_of(captions: list[str]) -> Tensor:
    """Return the ids (B,T) of captions with their ends."""
    rows = [[WORDS.index(word) for word in [*text.split(), "<end>"]] for text in captions]
    longest = max(map(len, rows))
    return torch.tensor([row + [len(WORDS) - 1] * (longest - len(row)) for row in rows])


def small_clip() -> Clip:
    images = ViTConfig(SIDE, 4, d_model=64, n_layers=3, n_heads=4, d_ff=128, norm_eps=1e-5)
    return Clip(ClipConfig(images, len(WORDS), 64, 2, 4, 128, max_positions=12, d_joint=32))


def pictures_of(generator: np.random.Generator, pairs: list[tuple[str, str]], count: int) -> tuple[Tensor, list[Thing]]:
    """Return pictures with one shape each."""
    things = [random_thing(generator, pairs) for _ in range(count)]
    return torch.from_numpy(np.stack([draw(generator, [thing]) for thing in things])), things


def train_clip(steps: int, seed: int, batch: int = 64) -> Clip:
    """Train a CLIP on pictures of the pairs in `TRAINING_PAIRS`, with their captions."""
    torch.manual_seed(seed)
    generator, model = np.random.default_rng(seed), small_clip()

    def loss() -> Tensor:
        pictures, things = pictures_of(generator, TRAINING_PAIRS, batch)
        return model.loss(pictures, ids_of([caption(generator, thing) for thing in things]))

    return train(model, loss, steps)


@torch.inference_mode()
def zero_shot(model: Clip, pairs: list[tuple[str, str]], count: int = 50) -> float:
    """Return the share of pictures, `count` of each pair, whose pair is the most likely of all 36."""
    generator, right = np.random.default_rng(0), 0
    texts = model.texts.pooled(ids_of([f"a {colour} {shape}" for colour, shape in PAIRS]))
    for pair in pairs:
        pictures, _ = pictures_of(generator, [pair], count)
        answers = model.logits(model.images.pooled(pictures), texts).argmax(dim=1)
        right += int((answers == PAIRS.index(pair)).sum())
    return right / (count * len(pairs))


def clip(steps: int, seed: int) -> None:
    model = train_clip(steps, seed).eval()
    print("| pictures of | right of 36, in % |\n|---|---|")
    print(f"| combinations in the training | {100 * zero_shot(model, TRAINING_PAIRS):.1f} |")
    print(f"| combinations that it never saw | {100 * zero_shot(model, HELD_OUT_PAIRS):.1f} |")


# ---- DETR ----------------------------------------------------------------------------------------------------------


def small_detr() -> Detr:
    """Return a DETR whose backbone has three convolutions, and makes 8 x 8 features."""
    widths, layers = (3, 32, 64, 64), list[nn.Module]()
    for i, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, 2 if i < 2 else 1, 1), nn.BatchNorm2d(after), nn.ReLU()]
    sizes = DetrConfig(n_features=64, d_model=64, n_layers=2, n_heads=4, d_ff=128, n_queries=8, dropout=0.0)
    return Detr(sizes, nn.Sequential(*layers), SHAPES)


def scenes_of(generator: np.random.Generator, count: int) -> tuple[Tensor, list[Objects]]:
    """Return pictures of one to four shapes, whose boxes have an IoU below 0.1, and what is on them."""
    pictures, truth = [], []
    for _ in range(count):
        things = list[Thing]()
        for _ in range(generator.integers(1, 5)):
            thing = random_thing(generator, PAIRS)
            boxes = torch.tensor([other.box for other in things]).view(-1, 4)
            if (pairwise_iou(torch.tensor([thing.box]), boxes)[0] < 0.1).all():
                things.append(thing)
        pictures.append(draw(generator, things))
        classes = torch.tensor([SHAPES.index(thing.shape) for thing in things])
        truth.append((classes, torch.tensor([thing.box for thing in things])))
    return torch.from_numpy(np.stack(pictures)), truth


def train_detr(steps: int, seed: int, no_object: float, batch: int = 32) -> Detr:
    """Train a DETR to find shapes. no_object: weight of the queries without an object."""
    torch.manual_seed(seed)
    generator, model = np.random.default_rng(seed), small_detr()

    def loss() -> Tensor:
        pictures, truth = scenes_of(generator, batch)
        return set_loss(model(pictures), truth, no_object)

    return train(model, loss, steps)


@torch.inference_mode()
def detection(model: Detr, count: int = 500) -> dict[str, float]:
    """Return figures of pictures that were not in the training.

    An answer is a query whose most likely class is a shape. The mean IoU is that of each true shape and the best answer
    of its class, and 0 where there is none. Average precision is the area under precision and recall of each class, its
    answers by their probability, a box of IoU 0.5 or 0.75 being right once; the mean of the classes.
    """
    pictures, truth = scenes_of(np.random.default_rng(0), count)
    logits, boxes = model(pictures)[-1]
    probabilities, classes = logits.softmax(dim=-1)[..., :-1].max(dim=-1)
    is_object = logits.argmax(dim=-1) < len(SHAPES)
    overlaps, numbers = list[float](), list[bool]()
    for i, (true_classes, true_boxes) in enumerate(truth):
        numbers.append(int(is_object[i].sum()) == len(true_classes))
        iou = pairwise_iou(boxes[i], true_boxes)[0] * is_object[i, :, None] * (classes[i, :, None] == true_classes)
        overlaps += iou.max(dim=0).values.tolist()
    figures = {"mean IoU": float(np.mean(overlaps)), "pictures with the right number": float(np.mean(numbers))}
    for least in (0.5, 0.75):
        figures[f"average precision at IoU {least}"] = mean_precision(least, probabilities, classes, boxes, truth)
    return figures


def mean_precision(least: float, probabilities: Tensor, classes: Tensor, boxes: Tensor, truth: list[Objects]) -> float:
    """Return the mean average precision of the classes, at IoU of `least` or more."""
    areas = []
    for shape in range(len(SHAPES)):
        free = {(i, int(k)) for i, (true_classes, _) in enumerate(truth) for k in (true_classes == shape).nonzero()}
        n_objects, right = len(free), list[bool]()
        answers = (classes == shape).nonzero().tolist()
        for i, query in sorted(answers, key=lambda place: -float(probabilities[tuple(place)])):
            iou = pairwise_iou(boxes[i, query : query + 1], truth[i][1])[0][0].tolist()
            best = max(((value, k) for k, value in enumerate(iou) if (i, k) in free), default=(0.0, -1))
            right.append(best[0] >= least)
            free.discard((i, best[1]) if right[-1] else (-1, -1))
        precision = np.cumsum(right) / np.arange(1, len(right) + 1)
        best_from_here = np.maximum.accumulate(precision[::-1])[::-1]
        areas.append(float((best_from_here * np.array(right)).sum() / n_objects))
    return float(np.mean(areas))


def detr(steps: int, seed: int, no_object: float) -> None:
    model = train_detr(steps, seed, no_object).eval()
    print("| 500 pictures that were not in the training | |\n|---|---|")
    for name, value in detection(model).items():
        print(f"| {name} | {value:.3f} |")


# ---- training ------------------------------------------------------------------------------------------------------


def train(model: nn.Module, loss: Callable[[], Tensor], steps: int, peak: float = 1e-3) -> nn.Module:
    """Train a model by `steps` of Adam, whose rate rises for a tenth of them, and falls to zero in the last half."""
    optimizer, started_at = adam(model.parameters()), time.process_time()
    warmup = max(1, steps // 10)
    for step in range(1, steps + 1):
        rate = learning_rate(
            step, d_model=1, warmup_steps=warmup, lr_factor=peak * warmup**0.5, max_steps=steps, decay_steps=steps // 2
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, steps // 20) == 0:
            print(f"step {step}: loss {value.item():.3f}, {time.process_time() - started_at:.0f} s", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["clip", "detr"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-object", type=float, default=0.1, help="detr: weight of the queries without an object")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.task == "clip":
        clip(args.steps or 2_000, args.seed)
    else:
        detr(args.steps or 1_600, args.seed, args.no_object)


if __name__ == "__main__":
    main()
