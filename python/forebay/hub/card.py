"""Reads dataset cards: configurations, and what they say about columns and splits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.exceptions import DataError, SettingError, VersionError
from forebay.hub.kept import Kept
from forebay.hub.patterns import sanitized

_FRONT = re.compile(r"\s*---(?:\r\n|\r|\n)(.*?)(?:\r\n|\r|\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
"""The YAML of a card, as recognised by `huggingface_hub`."""

_MARK = "\ufeff"
"""The byte order mark that some editors write before UTF-8."""

_OURS = re.compile("configs|dataset_info")
"""YAML without these words is irrelevant and not parsed. Keys may be quoted, indented or in braces."""


@dataclass(frozen=True)
class Card:
    """The part of a card that describes the files."""

    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The entry of each configuration."""
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`dataset_info` of each configuration."""
    where: str = ""
    """The location of the card, for messages."""

    @property
    def default(self) -> str | None:
        """The configuration that is used if none is named.

        Raises:
            DataError: there are several default configurations.
        """
        chosen = [
            name
            for name, said in self.configs.items()
            if len(self.configs) == 1 or name == "default" or said.get("default")
        ]
        if len(chosen) > 1:
            raise DataError(f"the card has several default configs: `{chosen[0]}` and `{chosen[1]}`")
        if not chosen and len(self.infos) == 1:
            return next(iter(self.infos))
        return chosen[0] if chosen else None

    def info(self, config: str, *, is_told: bool = True) -> dict[str, Any]:
        """Returns `dataset_info` of a configuration; if there is none, or not `is_told`, the configuration's features.

        As in `datasets`, `dataset_info` without features also counts.
        """
        if is_told and config in self.infos:
            return self.infos[config]
        features = self.configs.get(config, {}).get("features")
        return {"features": features} if features else {}

    def kept(self, config: str) -> Kept:
        """Returns the rows and columns of its files that a configuration keeps."""
        said = self.configs.get(config, {})
        what = f"`{self.where}`: of the config `{config}` in the card"
        return Kept(said.get("columns"), said.get("filters"), what)


README = "README.md"

FILES = (README, ".huggingface.yaml", "dataset_infos.json")
"""The files of a card. The second overrides the first; both override the last, from old versions of `datasets`."""


def read(texts: Iterable[str | None], where: str) -> Card:
    """Reads the texts of those of `FILES` that exist, of the first only its head; `where` is for messages.

    Raises:
        DataError: a text is not YAML or JSON, or has invalid content.
        VersionError: PyYAML is missing, and a text may have configurations or features.
    """
    readme, more, legacy = texts
    data: dict[str, Any] = {}
    text = (readme or "").removeprefix(_MARK)
    front = _FRONT.match(text)
    if front is not None:
        data |= _yaml(front[1], f"{where}/{README}", len(text[: front.start(1)].splitlines()))
    if more is not None:
        data |= _yaml(more.removeprefix(_MARK), f"{where}/.huggingface.yaml", 0)
    infos = _legacy_infos(legacy, f"{where}/dataset_infos.json") | _infos(data.get("dataset_info"), where)
    return Card(_configs(data.get("configs"), where), infos, where)


def _yaml(text: str, where: str, first_line: int) -> dict[str, Any]:
    if not _OURS.search(text):
        return {}
    try:
        import yaml
    except ImportError as error:
        raise VersionError(
            f"`{where}` may have configurations or features, which are YAML: `pip install pyyaml`"
        ) from error
    try:
        data = yaml.safe_load(text)
    # The others are for invalid numbers and dates, and for deeply nested brackets.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + first_line + 1}" if mark is not None else ""
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DataError(f"`{where}`{line}: it is not YAML: {what}; the path of a folder in it needs no card") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise DataError(f"`{where}`: expected YAML of keys and values, got {type(data).__name__}")
    return data


def _configs(said: Any, where: str) -> dict[str, dict[str, Any]]:
    if not said:
        return {}
    if not isinstance(said, list):
        raise DataError(f"`{where}`: `configs` in the card is not a list, but {said!r}")
    found: dict[str, dict[str, Any]] = {}
    for config in said:
        if not isinstance(config, Mapping) or not isinstance(config.get("config_name"), str):
            raise DataError(f"`{where}`: each of `configs` in the card needs a `config_name`, got {config!r}")
        name = config["config_name"]
        if config.get("data_files") is not None:
            _check_data_files(config["data_files"], f"`{where}`: `data_files` of the config `{name}` in the card")
        found[name] = {key: value for key, value in config.items() if key != "config_name"}
    return found


def _check_data_files(data_files: Any, what: str) -> None:
    if not isinstance(data_files, str | list):
        raise DataError(f"{what}: expected a path, a list of them, or a list of `split` and `path`, got {data_files!r}")
    try:
        sanitized(data_files, what)
    except SettingError as error:
        raise DataError(str(error)) from None


def _infos(said: Any, where: str) -> dict[str, dict[str, Any]]:
    if not said:
        return {}
    items = said if isinstance(said, list) else [said]
    if not all(isinstance(item, Mapping) for item in items):
        raise DataError(f"`{where}`: `dataset_info` in the card is neither keys and values nor a list of them")
    return {str(item.get("config_name", "default")): dict(item) for item in items}


def _legacy_infos(text: str | None, where: str) -> dict[str, dict[str, Any]]:
    """Returns what old versions of `push_to_hub` wrote per configuration; a single one is the default one."""
    if text is None:
        return {}
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"`{where}`: it is not JSON: {error}") from error
    if not isinstance(said, dict) or not all(isinstance(info, dict) for info in said.values()):
        raise DataError(f"`{where}`: expected what is known of each configuration by its name")
    return {"default" if len(said) == 1 else name: info for name, info in said.items()}
