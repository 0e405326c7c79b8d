"""DeiT in Hugging Face's files: the form for answers, in which both heads have their part."""

from transduce.family.hugging_face.conversion import Conversion, Entry, linear
from transduce.family.hugging_face.settings import Settings
from transduce.family.hugging_face.vit import encoder_entries, image_sizes
from transduce.family.hugging_face.vit import settings_of as vit_settings
from transduce.family.images.deit import DeiT


def build(settings: Settings) -> DeiT:
    """Return the model of a config.json. Raises UserError for values that it cannot have."""
    settings.one_of("model_type", "deit")
    settings.one_of("architectures", ["DeiTForImageClassificationWithTeacher"])
    return DeiT(image_sizes(settings, settings.size("intermediate_size")), settings.labels())


def settings_of(model: DeiT) -> dict[str, object]:
    """Return the config.json of a model."""
    names = {"model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]}
    return vit_settings(model) | names


def entries_of(model: DeiT) -> list[Entry]:
    """Return the tensors of the file."""
    token = Entry("deit.embeddings.distillation_token", ("starts.1",))
    heads = linear("cls_classifier", "output.truth") + linear("distillation_classifier", "output.teacher")
    return [token, *encoder_entries("deit", model), *heads]


CONVERSION = Conversion(
    model=DeiT,
    build=build,
    settings=settings_of,
    entries=entries_of,
    prefix="",  # only a model without heads leaves it out
    without_weights=r"deit\.pooler\.dense\.(weight|bias)",
)
