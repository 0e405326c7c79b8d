"""COMET's folders, and the scores of translations.

    FOLDER/   hparams.yaml, checkpoints/model.ckpt   of COMET's library: settings, and weights with settings
              config.json, sentencepiece.bpe.model   of the encoder that its settings name, such as xlm-roberta-large

The checkpoint is a pickle. torch reads only tensors and plain values of it, and no code of it runs.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from transduce.data.sentencepiece_pair import processor
from transduce.decoding.batched_search import in_batches
from transduce.errors import UserError
from transduce.evaluation.metrics import Score
from transduce.family.bert import Bert
from transduce.family.comet import ACTIVATIONS, FEATURES, POOLINGS, Comet, CometConfig
from transduce.family.configs import BertConfig
from transduce.family.hugging_face import bert
from transduce.family.hugging_face.conversion import Entry, linear, set_parameters, their_shapes
from transduce.family.hugging_face.folder import read_file, read_json
from transduce.family.hugging_face.settings import Settings
from transduce.family.inference.text_encoder import batches_of_one_length, finite
from transduce.model.cpu_backend import faster_products
from transduce.model.devices import device
from transduce.storage.atomic_folder import MAX_JSON_BYTES
from transduce.training.weights import check_finite

HPARAMS, CHECKPOINT = "hparams.yaml", "checkpoints/model.ckpt"
ENCODER_CONFIG, PIECES = "config.json", "sentencepiece.bpe.model"
MOST_PIECES_BYTES = 64 << 20
# Ids of XLM-RoBERTa; the other pieces have the id of sentencepiece plus 1.
START = 0
END = 2
UNKNOWN = 3
FIRST_POSITION = 2
ROWS = 512  # translations whose scores are computed together


class CometScorer:
    """A COMET model with the pieces of its encoder. name: of its folder."""

    def __init__(self, model: Comet, pieces: Any, name: str) -> None:
        self._model = model
        self._pieces = pieces
        self._name = name
        self._longest = model.encoder.positions.num_embeddings

    @torch.inference_mode()
    def scores(self, sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[float]:
        """Return the score of each translation. A model without references does not read them."""
        if self._model.config.kind == "unified_metric":
            columns = [self._joined(outputs, sources)]
        else:
            n_columns = 3 if self._model.config.kind == "regression_metric" else 2
            columns = [[self._ids(text) for text in texts] for texts in (outputs, sources, references)[:n_columns]]
        texts = [*dict.fromkeys(text for column in columns for text in column)]
        rows = {text: i for i, text in enumerate(texts)}
        vectors = self._vectors(texts)
        scores = list[float]()
        for start in range(0, len(outputs), ROWS):
            parts = [vectors[[rows[text] for text in column[start : start + ROWS]]] for column in columns]
            scores += finite(self._model(parts), self._name).tolist()
        return scores

    def corpus_scores(self, sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[Score]:
        """Return the system score: the mean of all translations, times 100."""
        scores = self.scores(sources, outputs, references)
        kind = self._model.config.kind
        reads_references = kind == "regression_metric"
        texts = [*outputs, *sources, *(references if reads_references else ())]
        groups = zip(outputs, sources, strict=True) if kind == "unified_metric" else ((text,) for text in texts)
        n_cut = sum(sum(len(self._pieces.encode(text)) for text in group) + 4 > self._longest for group in groups)
        signature = f"model:{self._name}|class:{kind}" + (f"|cut:{n_cut}" if n_cut else "")
        label = f"COMET with {'' if reads_references else 'no '}references, of the same model only"
        return [Score("comet", 100 * sum(scores) / len(scores), signature, label)]

    def _ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text, cut as COMET's library cuts it: two before the last position."""
        ids = [i + 1 if i else UNKNOWN for i in self._pieces.encode(text)]
        return (START, *ids[: self._longest - 4], END)

    def _joined(self, outputs: Sequence[str], sources: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the ids of each translation and its source as one text."""
        pairs = ((self._ids(output), self._ids(source)) for output, source in zip(outputs, sources, strict=True))
        return [(*output, END, *source[1:])[: self._longest] for output, source in pairs]

    def _vectors(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Return the vector (B,D) of each text."""
        place = self._model.encoder.embedding.weight.device
        vectors = torch.empty(len(texts), self._model.encoder.config.d_model, device=place)

        def of_batch(members: Sequence[int]) -> Tensor:
            with faster_products(place):
                return self._model.vectors(torch.tensor([texts[i] for i in members], device=place))

        lengths = {i: len(text) for i, text in enumerate(texts)}
        for members, values in in_batches(of_batch, batches_of_one_length(lengths)):
            vectors[list(members)] = values
        return vectors


def load_comet(folder: Path) -> CometScorer:
    """Return the COMET model in a folder. Raises UserError for one that is not whole, or not supported."""
    checkpoint = _checkpoint(folder / CHECKPOINT)
    settings = Settings({**checkpoint.hyper_parameters, **_corrections(folder / HPARAMS)}, folder / CHECKPOINT)
    encoder = Settings(read_json(folder / ENCODER_CONFIG), folder / ENCODER_CONFIG)
    try:
        pieces = processor(read_file(folder / PIECES, MOST_PIECES_BYTES))
    except ValueError as problem:
        raise UserError(f"{folder / PIECES}: expected a sentencepiece model ({problem}); copy it again") from None
    with torch.device("meta"):
        base = Bert(
            _encoder_config(encoder), heads=(), n_segments=1, norm_eps=encoder.number("layer_norm_eps", 1e-5, below=1)
        )
        model = Comet(base.encoder, _config(settings, encoder.n_layers("num_hidden_layers")))
    tensors = checkpoint.state_dict
    positions = f"{PREFIX}embeddings.position_embeddings.weight"
    tensors[positions] = tensors.get(positions, torch.empty(0))[FIRST_POSITION:]
    entries = _entries(base, model)
    shapes = their_shapes(entries, model)
    for name, shape in shapes.items():
        if not isinstance(tensors.get(name), Tensor) or tensors[name].shape != shape:
            raise UserError(
                f"{folder / CHECKPOINT}: expected {name} of the shape {shape}; use the config.json of its encoder"
            )
    check_finite({name: tensors[name] for name in shapes}, folder, "use another copy of the folder")
    if pieces.vocab_size() + 1 > encoder.size("vocab_size"):
        raise UserError(
            f"{folder / PIECES}: expected the pieces of the encoder of its config.json; copy them from there"
        )
    set_parameters(entries, model, tensors)
    return CometScorer(model.eval().to(device()), pieces, folder.resolve().name)


PREFIX = "encoder.model."  # of the tensors of the encoder in a checkpoint


Widths = Annotated[list[Annotated[int, msgspec.Meta(gt=0, lt=1 << 20)]], msgspec.Meta(min_length=1)]


class _Checkpoint(msgspec.Struct):
    state_dict: dict[str, Any]
    hyper_parameters: dict[str, Any]


def _checkpoint(path: Path) -> _Checkpoint:
    """Return the content of a checkpoint: state_dict and hyper_parameters, without running code of the pickle."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"{path}: expected a whole checkpoint of COMET; give the folder with {CHECKPOINT}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as problem:  # a damaged file makes torch raise errors of many kinds
        reason = str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__
        keep = "{k: c[k] for k in ('state_dict', 'hyper_parameters')}"
        remedy = (
            f"where COMET's library is installed: c = torch.load(PATH, weights_only=False); torch.save({keep}, PATH)"
        )
        raise UserError(f"{path}: expected tensors and plain values only ({reason}); {remedy}") from None
    try:
        return msgspec.convert(content, _Checkpoint)
    except msgspec.ValidationError:
        raise UserError(
            f"{path}: expected state_dict and hyper_parameters, as COMET's library saves them; copy it again"
        ) from None


def _corrections(path: Path) -> dict[str, str]:
    """Return the settings for which COMET's library reads hparams.yaml instead of the checkpoint.

    `sparsemax_patch` there means softmax: an older library trained with softmax where the checkpoint says sparsemax.
    """
    lines = read_file(path, MAX_JSON_BYTES).decode(errors="replace").splitlines()
    values = {name.strip(): value.strip(" '\"") for name, _, value in (line.partition(":") for line in lines)}
    corrections = {"class_identifier": values.get("class_identifier", "")}
    if values.get("layer_transformation") == "sparsemax_patch":
        corrections["layer_transformation"] = "softmax"
    return corrections


def _encoder_config(settings: Settings) -> BertConfig:
    settings.one_of("model_type", "xlm-roberta")
    settings.one_of("hidden_act", "gelu")
    settings.one_of("position_embedding_type", "absolute")
    settings.one_of("type_vocab_size", 1)
    settings.one_of("pad_token_id", FIRST_POSITION - 1)
    return BertConfig(
        vocab_size=settings.size("vocab_size"),
        d_model=settings.size("hidden_size", multiple_of="num_attention_heads"),
        n_layers=settings.n_layers("num_hidden_layers"),
        n_heads=settings.size("num_attention_heads"),
        d_ff=settings.size("intermediate_size"),
        max_positions=settings.size("max_position_embeddings", 514) - FIRST_POSITION,
    )


def _config(settings: Settings, n_layers: int) -> CometConfig:
    """Return the settings of the model besides the encoder."""
    kind = settings.one_of("class_identifier", *FEATURES)
    settings.one_of("encoder_model", "XLM-RoBERTa")
    is_unified = kind == "unified_metric"
    if is_unified and sorted(settings.get("input_segments") or []) != ["mt", "src"]:
        raise settings.refusal("input_segments", "['mt', 'src'], of a model without references")
    key = "sent_layer" if is_unified else "layer"
    layer = settings.one_of(key, "mix", *range(n_layers + 1))
    try:
        hidden = msgspec.convert(settings.get("hidden_sizes"), Widths)
    except msgspec.ValidationError:
        raise settings.refusal("hidden_sizes", "a list of widths") from None
    return CometConfig(
        kind=kind,
        layer=None if layer == "mix" else layer,
        is_sparse=settings.one_of("layer_transformation", "softmax", "sparsemax") == "sparsemax",
        normalises=settings.one_of("layer_norm", True, False),
        pooling="cls" if is_unified else settings.one_of("pool", *POOLINGS),
        hidden=hidden,
        activation=settings.one_of("activations", *ACTIVATIONS),
        final=None if settings.get("final_activation") is None else settings.one_of("final_activation", *ACTIVATIONS),
    )


def _entries(base: Bert, model: Comet) -> list[Entry]:
    """Return the tensors of a checkpoint, and the parameters of the model that they are."""
    entries = [entry._replace(theirs=PREFIX + entry.theirs) for entry in bert.entries_of(base)]
    if model.mix is not None:
        entries.append(Entry("layerwise_attention.gamma", ("mix.gamma",)))
        names = [f"scalar_parameters.{i}" for i in range(len(model.mix.weights))]
        entries += [Entry(f"layerwise_attention.{name}", (f"mix.weights.{i}",)) for i, name in enumerate(names)]
    for i, part in enumerate(model.estimator):
        if isinstance(part, nn.Linear):
            entries += linear(f"estimator.ff.{i}", f"estimator.{i}")
    return entries
