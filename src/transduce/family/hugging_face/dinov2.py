"""DINOv2 in Hugging Face's files: the encoder, or the encoder with a linear head."""

from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import MOST, Settings
from transduce.family.hugging_face.vit import encoder_entries, image_sizes
from transduce.family.hugging_face.vit import settings_of as vit_settings
from transduce.family.images.dinov2 import DinoV2

ENCODER, CLASSIFIER = ["Dinov2Model"], ["Dinov2ForImageClassification"]
LAYER = """
norm1 attention.attention.query attention.attention.key attention.attention.value attention.output.dense
norm2 mlp.fc1 mlp.fc2
"""


def build(settings: Settings) -> DinoV2:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "dinov2")
    has_classes = settings.one_of("architectures", ENCODER, CLASSIFIER) == CLASSIFIER
    gated = settings.one_of("use_swiglu_ffn", False, True)
    d_model, ratio = settings.size("hidden_size"), settings.size("mlp_ratio", 4)
    if d_model * ratio > MOST:
        raise settings.refusal(
            "mlp_ratio", f"at most {MOST // d_model:,}, so that hidden_size * mlp_ratio is at most {MOST:,}"
        )
    return DinoV2(image_sizes(settings, d_model * ratio, 1e-6), settings.labels() if has_classes else (), gated=gated)


def settings_of(model: DinoV2) -> dict[str, object]:
    """Return the config.json of a model."""
    settings = vit_settings(model)
    ratio = settings.pop("intermediate_size") // model.config.d_model
    names = {"model_type": "dinov2", "architectures": CLASSIFIER if model.labels else ENCODER}
    return settings | names | {"mlp_ratio": ratio, "use_swiglu_ffn": model.gated, "use_mask_token": False}


def entries_of(model: DinoV2) -> list[Entry]:
    """Return the tensors of the file."""
    layer = LAYER.replace("mlp.fc1", "mlp.weights_in").replace("mlp.fc2", "mlp.weights_out") if model.gated else LAYER
    entries = encoder_entries("dinov2", model, layer)
    if model.gated:  # one matrix of theirs is two of ours
        entries = [with_gate(entry) for entry in entries]
    for i in range(len(model.layers)):
        scales = [
            (f"dinov2.encoder.layer.{i}.layer_scale{k + 1}.lambda1", f"layers.{i}.residuals.{k}.scale") for k in (0, 1)
        ]
        entries += [Entry(theirs, (ours,)) for theirs, ours in scales]
    return entries + (linear("classifier", "output") if model.labels else [])


def with_gate(entry: Entry) -> Entry:
    """Return the entry of the matrix before the gated product, which holds W_1 and then W_3; others as they are."""
    (ours,) = entry.ours
    return entry._replace(ours=(ours, ours.replace("w_1", "w_3"))) if ".w_1." in ours else entry


CONVERSION = Conversion(
    model=DinoV2,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="dinov2.",
    without_weights="embeddings.mask_token",  # of the training
)
