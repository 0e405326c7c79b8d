"""Members that see images: each cuts them into patches, or reads the features of convolutions.

| member      | paper                    | what changed                                                     |
|-------------|--------------------------|------------------------------------------------------------------|
| `vit.py`    | Dosovitskiy et al. 2020  | encoder-only, of patches of an image; pre-norm; GELU             |
| `deit.py`   | Touvron et al. 2021      | a second token, which learns from a teacher                      |
| `dinov2.py` | Oquab et al. 2023        | LayerScale; the gated network in the largest size                |
| `clip.py`   | Radford et al. 2021      | a ViT and a GPT-2 (`clip_towers.py`), whose vectors meet         |
| `swin.py`   | Liu et al. 2021          | windows that shift (`windows.py`); fewer, wider patches          |
| `detr.py`   | Carion et al. 2020       | queries become a set of objects: `detr_loss.py`, `matching.py`   |
| `dalle.py`  | Ramesh et al. 2021       | a GPT-2 over captions and codes of images                        |

What they share: `configs.py` (sizes), `image_model.py` (what a classifier of images has) and `image_sizes.py` (images
that are larger or smaller than in the training).
"""
