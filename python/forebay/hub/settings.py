"""The environment of Hugging Face, read when it is needed and not before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forebay.exceptions import SettingError

DEFAULT_ENDPOINT = "https://huggingface.co"

_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True)
class Settings:
    """Where the Hub is, who asks, and what is on disk."""

    endpoint: str
    token: str | None
    """Never shown."""
    is_offline: bool
    cache: Path
    """The folder of downloaded repositories."""

    def without_token(self, said: str) -> str:
        """Returns what a Hub said, which may repeat what it was sent."""
        return said.replace(self.token, "…") if self.token else said

    def __repr__(self) -> str:
        return f"Settings(endpoint={self.endpoint!r}, has_token={self.token is not None}, is_offline={self.is_offline})"


def current(token: str | bool | None, endpoint: str | None = None) -> Settings:
    """Returns the settings of now: `token` over that of the environment, which is over that of a login.

    `False` is nobody; `True` the user who is logged in, even where that is not done by itself.

    Raises:
        SettingError: the token or the endpoint is none.
    """
    home = Path(_variable("HF_HOME") or Path(_variable("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()
    found = _token(token, home)
    if found is not None and not (found.isascii() and found.isprintable()):
        raise SettingError("the token of the Hub has characters that no token has; copy it again, or log in again")
    cache = _variable("HF_HUB_CACHE") or _variable("HUGGINGFACE_HUB_CACHE")
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return Settings(
        endpoint=_checked(endpoint or _variable("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
        token=found,
        is_offline=any(_is_true(name) for name in offline),
        cache=Path(cache).expanduser() if cache else home / "hub",
    )


def _checked(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(
            f"the endpoint of the Hub is `{endpoint}`, expected a URL as `{DEFAULT_ENDPOINT}`: set `HF_ENDPOINT`"
        )
    return endpoint


def _token(token: str | bool | None, home: Path) -> str | None:
    if isinstance(token, str):
        return token.strip() or None
    if token is False or (token is None and _is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return None
    found = _variable("HF_TOKEN") or _variable("HUGGING_FACE_HUB_TOKEN")
    if found:
        return found
    path = Path(_variable("HF_TOKEN_PATH") or home / "token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip() or None if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read `{path}`, where a login at the Hub is kept: {error}; log in again") from error


def _variable(name: str) -> str | None:
    return (os.environ.get(name) or "").strip() or None


def _is_true(name: str) -> bool:
    return (_variable(name) or "").upper() in _TRUE
