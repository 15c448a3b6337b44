"""Hugging Face's environment variables, read only when needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from os.path import expandvars
from pathlib import Path
from urllib.parse import urlsplit

from forebay.exceptions import AccessDeniedError, SettingError

DEFAULT_ENDPOINT = "https://huggingface.co"

_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True)
class Settings:
    """The Hub's endpoint, the user's token, and the folder of downloads."""

    endpoint: str
    token: str | None
    """Never shown."""
    is_offline: bool
    cache: Path
    """The folder of downloaded repositories."""

    def without_token(self, said: str) -> str:
        """Returns a text of the Hub without the token, which it may repeat."""
        return said.replace(self.token, "…") if self.token else said

    def __repr__(self) -> str:
        return f"Settings(endpoint={self.endpoint!r}, has_token={self.token is not None}, is_offline={self.is_offline})"


def current(token: str | bool | None, endpoint: str | None = None) -> Settings:
    """Returns the current settings. `token` overrides that of the environment, which overrides that of a login.

    `False` means no token; `True` the user's own, even if `HF_HUB_DISABLE_IMPLICIT_TOKEN` is set.

    Raises:
        SettingError: the token or the endpoint is invalid.
        AccessDeniedError: `token` is True, and nobody is logged in.
    """
    home = _path(_variable("HF_HOME") or f"{_variable('XDG_CACHE_HOME') or '~/.cache'}/huggingface")
    found = _token(token, home)
    if found is not None and not (found.isascii() and found.isprintable()):
        raise SettingError(
            "the token of the Hub has characters that are not allowed in a token; copy it again, or log in again"
        )
    cache = _variable("HF_HUB_CACHE") or _variable("HUGGINGFACE_HUB_CACHE")
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return Settings(
        endpoint=endpoint_of(endpoint),
        token=found,
        is_offline=any(_is_true(name) for name in offline),
        cache=_path(cache) if cache else home / "hub",
    )


def endpoint_of(given: str | None) -> str:
    """Returns the Hub's endpoint, as given or else from the environment.

    Raises:
        SettingError: it is not a URL.
    """
    return _checked(given or _variable("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def _checked(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(
            f"the endpoint of the Hub is `{endpoint}`, expected a URL such as `{DEFAULT_ENDPOINT}`: set `HF_ENDPOINT`"
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
    named = _variable("HF_TOKEN_PATH")
    path = _path(named) if named else home / "token"
    # Errors redact the value of `HF_TOKEN_PATH`, whose name looks like that of a secret, so they name the variable.
    where = f"`{path}` (`HF_TOKEN_PATH`)" if named else f"`{path}`"
    try:
        saved = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read {where}, where a login at the Hub is kept: {error}; log in again") from error
    if token is True and not saved:
        raise AccessDeniedError(
            f"token: True means the token of a login, but there is none in `HF_TOKEN` or {where}; log in "
            "(`hf auth login`), or pass the token itself"
        )
    return saved or None


def _path(text: str) -> Path:
    """Returns a path from the environment, with `~` and `$NAME` expanded as in a shell."""
    return Path(expandvars(text)).expanduser()


def _variable(name: str) -> str | None:
    return (os.environ.get(name) or "").strip() or None


def _is_true(name: str) -> bool:
    return (_variable(name) or "").upper() in _TRUE
