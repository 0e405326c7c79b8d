"""The configurations of members that see images. They have no kind: no task of the training loop trains them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ViTConfig:
    """The sizes of a ViT. The defaults make ViT base with patches of 16 x 16."""

    image_size: int = 224  # height and width in pixels, a multiple of patch_size
    patch_size: int = 16  # height and width in pixels
    d_model: int = 768  # width of every sub-layer's output
    n_layers: int = 12
    n_heads: int = 12
    n_channels: int = 3
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    dropout: float = 0.0  # of the input, the attention weights and the residuals
    norm_eps: float = 1e-6  # added to the variances


@dataclass(frozen=True)
class ClipConfig:
    """The sizes of a CLIP. The defaults make the public one with patches of 32 x 32."""

    images: ViTConfig = ViTConfig(patch_size=32, norm_eps=1e-5)
    vocab_size: int = 49_408
    d_model: int = 512  # width of the text tower, as the next ones are its sizes
    n_layers: int = 12
    n_heads: int = 8
    d_ff: int | None = None  # inner width of the feed-forward layer; None: 4 * d_model
    max_positions: int = 77  # maximum number of tokens of a text with both ends
    d_joint: int = 512  # width of the vectors of images and texts
    norm_eps: float = 1e-5  # added to the variances of the text tower
    dropout: float = 0.0  # of the attention weights and the residuals of the text tower


@dataclass(frozen=True)
class SwinConfig:
    """The sizes of a Swin. The defaults make Swin-T."""

    image_size: int = 224  # height and width in pixels of the training, which no parameter depends on
    patch_size: int = 4  # height and width in pixels
    d_model: int = 96  # width of the first stage; each next one has twice as much
    depths: tuple[int, ...] = (2, 2, 6, 2)  # number of layers of each stage
    n_heads: tuple[int, ...] = (3, 6, 12, 24)  # of each stage
    window: int = 7  # height and width of a window in patches
    n_channels: int = 3
    expansion: int = 4  # inner width of the feed-forward layers, in widths of their stage
    dropout: float = 0.0  # of the input, the attention weights and the residuals
    norm_eps: float = 1e-5  # added to the variances


@dataclass(frozen=True)
class DetrConfig:
    """The sizes of a DETR without its convolutions. The defaults make the public one behind a ResNet-50."""

    n_features: int = 2_048  # channels of the features that the convolutions make
    d_model: int = 256  # width of every sub-layer's output, a multiple of four
    n_layers: int = 6  # of the encoder, and of the decoder
    n_heads: int = 8
    d_ff: int = 2_048  # inner width of the feed-forward layer
    n_queries: int = 100  # maximum number of objects on an image
    dropout: float = 0.1  # of the attention weights and the residuals


@dataclass(frozen=True)
class DallEConfig:
    """The sizes of a DALL-E. The defaults make the decoder of the paper, of twelve billion values."""

    n_text_ids: int = 16_384  # vocabulary of captions; the next ids are codes of images
    n_text: int = 256  # tokens of a caption, the start included
    n_codes: int = 8_192  # codes of a piece of an image
    side: int = 32  # rows and columns of codes of an image
    d_model: int = 3_968  # width of every sub-layer's output
    n_layers: int = 64
    n_heads: int = 62
    dropout: float = 0.1  # of the embedding, the attention weights and the residuals
    n_channels: int = 3  # of an image, which has two pixels for each row and column of codes in the autoencoder here
    d_pixels: int = 64  # width of the convolutions of the autoencoder
