"""Takes `obstore` stores apart, so that Forebay's own client can open the same store.

A client cannot be passed between two extensions, but its constructor's arguments can.
"""

from __future__ import annotations

from typing import Any

from forebay.exceptions import SettingError

_SCHEMES = {"S3Store": ("s3", "bucket"), "GCSStore": ("gs", "bucket"), "AzureStore": ("az", "container_name")}


def from_obstore(store: Any) -> tuple[str, dict[str, str]]:
    """Returns the URI and the `storage_options` of an `obstore` store.

    Raises:
        SettingError: the store cannot be rebuilt, because it is in memory or has a credential provider.
    """
    name = type(store).__name__
    if name == "LocalStore":
        prefix = store.prefix
        return str(prefix) if prefix is not None else "/", {}
    if name == "HTTPStore":
        return str(store.url), _texts(store.client_options)
    if name not in _SCHEMES:
        raise SettingError(
            f"source: a {name} lives in its own process only; expected a local, S3, GCS, Azure or HTTP store"
        )
    if getattr(store, "credential_provider", None) is not None:
        raise SettingError(
            "source: a store with a credential provider cannot be rebuilt; pass `storage_options` instead"
        )
    scheme, container_key = _SCHEMES[name]
    options = _texts(store.config) | _texts(store.client_options)
    container = next((options.pop(key) for key in list(options) if key.removeprefix("aws_") == container_key), None)
    container = container or next((options.pop(key) for key in list(options) if key.endswith(container_key)), None)
    if container is None:
        raise SettingError(f"source: the {name} names no {container_key}")
    prefix = f"{store.prefix}/" if store.prefix else ""
    return f"{scheme}://{container}/{prefix}", options


def _texts(config: Any) -> dict[str, str]:
    """Returns options as text, as in environment variables."""
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in dict(config or {}).items()
        if value is not None
    }
