"""Settings for lists and images in `to_torch`: `Pad`, `Pack` and `Image`, checked when they are made.

The work happens in Rust, on the reading threads; this module only describes it, as JSON.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from forebay.access import is_number
from forebay.exceptions import SettingError
from forebay.feature_types import MEDIA
from forebay.options import (
    OnError,
    as_number,
    check_choice,
    check_count,
    check_flag,
    check_names,
    check_text,
    keep_count,
)

if TYPE_CHECKING:
    import torch

    from forebay.formats import Format
    from forebay.options import ReadOptions

Side = Literal["right", "left"]
Dtype = Literal["int64", "int32"]
PadTo = Literal["longest", "max_length"]
PackMode = Literal["concat", "best_fit"]
Crop = Literal["random", "center"]
Layout = Literal["CHW", "HWC"]
ColorMode = Literal["RGB", "L"]

MAX_PIXELS = 178_956_970
"""The most pixels of an encoded image by default: PIL's limit for decompression bombs."""


def _keep_values(options: Pad | Pack) -> None:
    """Checks the padding values, and makes them Python numbers."""
    values: object = options.values
    if not isinstance(values, Mapping):
        raise SettingError(f'values: expected a dict such as {{"labels": -100}}, got {values!r}')
    numbers = {check_text("values", column): as_number(value) for column, value in values.items()}
    for column, number in numbers.items():
        if number is None or not abs(number) <= sys.float_info.max:
            raise SettingError(f"values[{column!r}]: expected a number, got {values[column]!r}")
    object.__setattr__(options, "values", numbers)


def _keep_dtype(options: Pad | Pack) -> None:
    """Checks the type of integers, and makes a dtype of torch or NumPy its name."""
    dtype: object = options.dtype
    if isinstance(dtype, type):
        dtype = dtype.__name__
    elif hasattr(dtype, "itemsize"):
        dtype = str(dtype).removeprefix("torch.")
    check_choice("dtype", dtype, Literal[Dtype, None])
    object.__setattr__(options, "dtype", dtype)


def _integers(options: Pad | Pack) -> object:
    return "stored" if options.dtype is None else options.dtype


@dataclass(frozen=True, kw_only=True)
class Pad:
    """How lists of numbers are padded to one length in each batch: `to_torch(padding=fb.Pad(...))`.

    Example:
        >>> padding = forebay.Pad(columns=["tokens"], multiple_of=8)
        >>> batch = next(iter(ds.select_columns(["tokens", "size"]).to_torch(32, padding=padding)))
        >>> batch["tokens"].shape, batch["attention_mask"].sum(1)[:3].tolist()
        (torch.Size([32, 8]), [4, 4, 4])
    """

    columns: Sequence[str] | None = None
    """The columns; by default all lists of numbers that may differ in length."""
    to: PadTo = "longest"
    """Length of the rows: that of the longest row in the batch, or `max_length` in all batches."""
    max_length: int | None = None
    """Longer lists are cut to this many items."""
    multiple_of: int = 1
    """The length is rounded up to a multiple of this."""
    side: Side = "right"
    """The side that is padded."""
    truncation_side: Side = "right"
    """The side on which lists are cut."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Padding values by column; by default -100 for `labels`, which losses ignore, and 0 for others."""
    dtype: Dtype | torch.dtype | None = "int64"
    """Type of integers in batches, by its name or as torch's; `None` keeps the stored type. A value that does not fit
    is an error, unless it is cut."""
    mask: str | None = "attention_mask"
    """Name of an int64 column to add: 1 for items and 0 for padding of `input_ids`, or else of the first padded column.
    Not added if a padded column has this name."""

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", check_names("columns", self.columns))
        check_choice("to", self.to, PadTo)
        if self.max_length is not None:
            keep_count(self, "max_length", most=(1 << 31) - 1)
        elif self.to == "max_length":
            raise SettingError("max_length: `to='max_length'` needs one")
        keep_count(self, "multiple_of", most=1 << 20)
        check_choice("side", self.side, Side)
        check_choice("truncation_side", self.truncation_side, Side)
        _keep_values(self)
        _keep_dtype(self)
        if self.mask is not None:
            check_text("mask", self.mask)

    def _settings(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "max_length": self.max_length,
            "is_fixed": self.to == "max_length",
            "multiple_of": self.multiple_of,
            "side": self.side,
            "truncation_side": self.truncation_side,
            "values": dict(self.values),
            "integers": _integers(self),
            "mask": self.mask,
        }


@dataclass(frozen=True, kw_only=True)
class Pack:
    """How lists of tokens are packed into sequences of one length: `to_torch(pack=fb.Pack(length=2048))`.

    Example:
        >>> pack = forebay.Pack(length=16, columns=["tokens"])
        >>> batch = next(iter(ds.to_torch(batch_size=2, pack=pack)))
        >>> batch["tokens"].shape, batch["cu_seqlens"].tolist()
        (torch.Size([2, 16]), [0, 4, 8, 12, 16, 20, 24, 28, 32])
    """

    length: int = field(kw_only=False)
    """Tokens per sequence."""
    mode: PackMode = "concat"
    """`"concat"` puts all tokens end to end and cuts them every `length`: nothing is wasted, documents are divided.
    `"best_fit"` keeps documents whole (cutting longer ones), puts those together that fit, and pads the rest."""
    columns: Sequence[str] | None = None
    """The columns, packed alike: lists of numbers that have the same length within each row. By default all."""
    window: int = 4096
    """Documents per rank that `"best_fit"` packs together and holds in memory, besides what `memory_limit` counts. If
    they take more than the limit themselves, that is a `MemoryLimitError`."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Padding values by column; by default -100 for `labels`, which losses ignore, and 0 for others."""
    labels: bool = False
    """Make `labels`, int64 or int32, from the column of that name or else from the tokens. Padding and the first token
    of each document or piece of one, which has no context, get -100, or the value for `labels` in `values`."""
    flatten: bool = False
    """Put the sequences of a batch into one row, `(1, batch_size * length)`, with the names that transformers' models
    take for training without padding: `cu_seq_lens_q`, `max_length_q`, ..."""
    dtype: Dtype | torch.dtype | None = "int64"
    """Type of integers in batches, by its name or as torch's; `None` keeps the stored type. A value that does not fit
    is an error."""

    def __post_init__(self) -> None:
        keep_count(self, "length", most=(1 << 31) - 1)
        check_choice("mode", self.mode, PackMode)
        if self.columns is not None:
            object.__setattr__(self, "columns", check_names("columns", self.columns))
            if not self.columns:
                raise SettingError("columns: expected at least one, got none")
        keep_count(self, "window", most=1 << 24)
        _keep_values(self)
        check_flag("labels", self.labels)
        check_flag("flatten", self.flatten)
        _keep_dtype(self)

    def _documents(self, columns: Sequence[str]) -> str:
        """Returns how batches are prepared before packing, as JSON."""
        documents = {
            "columns": list(columns),
            "integers": _integers(self),
            "values": dict(self.values),
            "labels": self.labels,
        }
        return json.dumps({"documents": documents})

    def _settings(self, batch_size: int, *, drop_last: bool) -> str:
        return json.dumps(
            {
                "length": self.length,
                "mode": self.mode,
                "window": self.window,
                "batch_size": batch_size,
                "drop_last": drop_last,
                "values": dict(self.values),
                "labels": self.labels,
                "is_flat": self.flatten,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Image:
    """How images are decoded: `to_torch(decode={"image": fb.Image(size=(224, 224))})`.

    Columns hold JPEG, PNG or WebP, as binary or as structs of `bytes` and `path` as Hugging Face writes them. Tensors
    are uint8.

    Example:
        >>> decode = {"image": forebay.Image(size=224, crop="random", flip=True)}
        >>> decode["image"].layout
        'CHW'
    """

    size: tuple[int, int] | int = field(kw_only=False)
    """Height and width, or one number for both."""
    crop: Crop | None = None
    """The part of the image that is resized. `None`: all of it, whatever its aspect ratio. `"center"`: the largest
    centred part of the right aspect ratio. `"random"`: a random part as in torchvision's `RandomResizedCrop`, from the
    shuffle's seed, the epoch and the row's position, so the same for any number of ranks and threads."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Range of a random part's area, as a fraction of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of a random part's aspect ratio, width / height."""
    flip: bool | float = False
    """Mirror images left to right at random: half of them, or this fraction."""
    layout: Layout = "CHW"
    """Channels first, as PyTorch's layers expect, or last."""
    mode: ColorMode = "RGB"
    """Three channels, or greyscale (`"L"`). Transparency is dropped."""
    on_error: OnError = "raise"
    """What to do with a broken or missing image: `"raise"` ends the stream with an error that names the row, `"skip"`
    leaves the row out of its batch; `stats()["images_skipped"]` counts these rows."""
    max_pixels: int = MAX_PIXELS
    """The most pixels of an encoded image; more are an error, because a small file may hold a huge image."""

    def __post_init__(self) -> None:
        self._size()
        check_choice("crop", self.crop, Literal[Crop, None])
        _check_range("scale", self.scale, most=1.0)
        _check_range("ratio", self.ratio, most=math.inf)
        _check_flip(self.flip)
        check_choice("layout", self.layout, Layout)
        check_choice("mode", self.mode, ColorMode)
        check_choice("on_error", self.on_error, OnError)
        keep_count(self, "max_pixels")

    def _size(self) -> tuple[int, int]:
        sides: object = (self.size, self.size) if is_number(self.size) else self.size
        if not isinstance(sides, tuple | list) or len(sides) != 2:
            raise SettingError(f"size: expected (height, width) or one number for both, got {self.size!r}")
        height, width = (check_count("size", side, most=16_384) for side in sides)
        return height, width

    def _settings(self) -> dict[str, Any]:
        flip = 0.5 if self.flip is True else float(self.flip)
        return {
            "size": self._size(),
            "crop": self.crop or "whole",
            "scale": [float(share) for share in self.scale],
            "ratio": [float(ratio) for ratio in self.ratio],
            "flip": flip,
            "layout": self.layout,
            "mode": self.mode,
            "on_error": self.on_error,
            "max_pixels": self.max_pixels,
        }


def _check_flip(value: object) -> None:
    share = value if isinstance(value, bool) else as_number(value)
    if share is None or not 0 <= share <= 1:
        raise SettingError(f"flip: expected True, False or a share from 0 to 1, got {value!r}")


def _check_range(name: str, value: object, *, most: float) -> None:
    numbers: list[Any] = [as_number(number) for number in value] if isinstance(value, tuple | list) else []
    is_pair = len(numbers) == 2 and None not in numbers
    if not is_pair or not 0 < numbers[0] <= numbers[1] <= min(most, sys.float_info.max):
        within = f" within 0 to {most:g}" if math.isfinite(most) else " above 0"
        raise SettingError(f"{name}: expected (least, most){within}, got {value!r}")


def chosen(
    format: Format,
    padding: bool | Pad | None,
    pack: Pack | None,
    decode: Mapping[str, Image] | None,
    read: ReadOptions,
) -> Format | Pack:
    """Returns the format that pads lists and decodes images, or how lists are packed.

    Raises:
        SettingError: an argument has the wrong type, or the arguments exclude each other.
    """
    from forebay.formats import TensorFormat

    pad = _check_padding(padding)
    if not isinstance(pack, Pack | None):
        raise SettingError(f"pack: expected fb.Pack(length=...), got {pack!r}")
    images = _check_images(decode)
    if pad is None and pack is None and not images:
        return format
    if read.on_error != "raise":
        raise SettingError(
            "on_error: rows that cannot be read cannot be left out where lists are padded or packed or images decoded; "
            "leave one of the two out"
        )
    if not isinstance(format, TensorFormat):
        raise SettingError("compat: `padding`, `pack` and `decode` make batches of our own; leave one of the two out")
    if pack is None:
        settings: dict[str, Any] = {"images": {name: image._settings() for name, image in images.items()}}
        if pad is not None:
            settings["padding"] = pad._settings()
        return format.finished(json.dumps(settings))
    if pad is not None or images or format.has_requests:
        raise SettingError("pack: packed batches hold packed lists alone; leave `padding`, `decode` and `forms` out")
    return pack


def check_are_images(features: Mapping[str, Any]) -> None:
    """Refuses columns to decode as images, given by their features in JSON form, that hold other media.

    Raises:
        SettingError: there is such a column.
    """
    for name, feature in features.items():
        kind = feature.get("_type") if isinstance(feature, dict) else None
        if kind in MEDIA and kind != "Image":
            raise SettingError(
                f"decode: column `{name}` holds `{kind}`, not images; `datasets` decodes it, by `compat='datasets'` or "
                "`ds.decode()`"
            )


def _check_padding(padding: object) -> Pad | None:
    if isinstance(padding, Pad):
        return padding
    if not isinstance(padding, bool | None):
        raise SettingError(f"padding: expected True or fb.Pad(...), got {padding!r}")
    return Pad() if padding else None


def _check_images(decode: object) -> dict[str, Image]:
    if decode is None:
        return {}
    if not isinstance(decode, Mapping) or not all(isinstance(image, Image) for image in decode.values()):
        raise SettingError(f'decode: expected a dict such as {{"image": fb.Image(size=224)}}, got {decode!r}')
    return {check_text("decode", name): image for name, image in decode.items()}
