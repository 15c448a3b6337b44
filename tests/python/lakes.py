"""Every store that Forebay reads, behind one face: where a test puts objects, and how Forebay is told to read them."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

import azurite
import obstore.store
from fsspec.core import url_to_fs

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    from azurite import Azurite
    from hub import Repo
    from s3 import Bucket


class Lake:
    """Objects in one store, under keys as people write them."""

    root: str
    """What stands before the key in a URL."""
    options: dict[str, str]
    """What reaches it."""
    wrong_options: dict[str, str] | None = None
    """What must be refused; `None` where the server refuses nobody."""
    anonymous_options: dict[str, str] | None = None
    """What reads a public store without saying who asks; `None` where there is no such thing."""
    can_list: ClassVar[bool] = True
    is_pinned: ClassVar[bool] = False
    """Objects stay as they were when the dataset was opened."""

    def put(self, key: str, body: bytes) -> None:
        """Writes an object."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """Deletes an object."""
        raise NotImplementedError

    def url(self, key: str) -> str:
        """Returns the URL of an object or a folder."""
        return f"{self.root}{key}"

    def put_all(self, objects: dict[str, bytes]) -> None:
        """Writes objects."""
        for key, body in objects.items():
            self.put(key, body)

    def open(self, keys: str | Iterable[str], **arguments: object) -> fb.Dataset:
        """Opens a folder, a glob or an object, or several, as the split "train"."""
        source = self.url(keys) if isinstance(keys, str) else [self.url(key) for key in keys]
        return fb.load_dataset(source, **{"split": "train", "storage_options": self.options} | arguments)

    def open_folder(self, folder: str, names: Iterable[str], **arguments: object) -> fb.Dataset:
        """Opens a folder, by the names of what is in it where the store cannot list."""
        return self.open(f"{folder}/" if self.can_list else [f"{folder}/{name}" for name in names], **arguments)


class FileLake(Lake):
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.options = f"{folder}/", {}

    def put(self, key: str, body: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def delete(self, key: str) -> None:
        self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return Path(f"{self.root}{key}")


class FsspecLake(Lake):
    """A folder of a file system of `fsspec`."""

    def __init__(self, root: str) -> None:
        self.root, self.options = root, {}
        self._fs, self._folder = url_to_fs(root)

    def put(self, key: str, body: bytes) -> None:
        path = f"{self._folder}/{key}"
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, body)

    def delete(self, key: str) -> None:
        self._fs.rm_file(f"{self._folder}/{key}")


class S3Lake(Lake):
    """A bucket, perhaps with another way to it than the one by which objects are put."""

    def __init__(self, bucket: Bucket, **options: str) -> None:
        self.bucket = bucket
        self.root = f"s3://{bucket.name}/"
        self.options = {**bucket.storage_options, **options}

    def put(self, key: str, body: bytes) -> None:
        self.bucket.put(key, body)

    def delete(self, key: str) -> None:
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key)


class GcsLake(S3Lake):
    """The same bucket, by the client of Google's: its XML API is shaped as that of S3."""

    def __init__(self, bucket: Bucket, endpoint: str) -> None:
        super().__init__(bucket)
        self.root = f"gs://{bucket.name}/"
        account = (
            f'{{"gcs_base_url": "{endpoint}", "disable_oauth": true, '
            '"client_email": "", "private_key": "", "private_key_id": ""}'
        )
        self.options = {"google_service_account_key": account}


class AzureLake(Lake):
    """A container, read by who has the account's key, or a token for this container."""

    def __init__(self, server: Azurite, *, is_public: bool = False, has_token: bool = False) -> None:
        name = f"forebay-{uuid.uuid4().hex}"
        server.create_container(name, is_public=is_public)
        place = {"azure_storage_account_name": azurite.ACCOUNT, "azure_storage_endpoint": server.endpoint}
        self.root = f"az://{name}/"
        self.options = {**place, "azure_storage_account_key": azurite.KEY}
        self.wrong_options = {**place, "azure_storage_account_key": "V1JPTkdTRUNSRVQ="}
        self.anonymous_options = {**place, "azure_skip_signature": "true"}
        if has_token:
            token = azurite.shared_access_signature(name)
            self.options = {**place, "azure_storage_sas_token": token}
            self.wrong_options = {**place, "azure_storage_sas_token": f"{token.split('&sig=')[0]}&sig=V1JPTkc%3D"}
        config = {"account_name": azurite.ACCOUNT, "account_key": azurite.KEY, "endpoint": server.endpoint}
        self._store = obstore.store.AzureStore(name, config=config, client_options={"allow_http": True})

    def put(self, key: str, body: bytes) -> None:
        self._store.put(key, body)

    def delete(self, key: str) -> None:
        self._store.delete(key)


class HttpLake(Lake):
    """Objects of a web server: it has no listing, and its URLs are encoded."""

    can_list = False

    def __init__(self, url: str, objects: MutableMapping[str, bytes], **options: str) -> None:
        self._folder = uuid.uuid4().hex
        self.root = f"{url}/{self._folder}/"
        self.objects = objects
        self.options = options

    def put(self, key: str, body: bytes) -> None:
        self.objects[f"{self._folder}/{key}"] = body

    def delete(self, key: str) -> None:
        del self.objects[f"{self._folder}/{key}"]

    def url(self, key: str) -> str:
        return f"{self.root}{quote(key)}"


class NginxLake(HttpLake):
    """The files of a folder, by nginx."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, {})
        self._files = FileLake(folder / self._folder)

    def put(self, key: str, body: bytes) -> None:
        self._files.put(key, body)

    def delete(self, key: str) -> None:
        self._files.delete(key)


class HubLake(Lake):
    """A repository of the Hub, whose commit is pinned when it is opened."""

    is_pinned = True

    def __init__(self, repo: Repo) -> None:
        self.repo = repo
        self.root = f"hf://datasets/{repo.id}/"
        self.options = {}
        self.wrong_options = {"hf_token": "hf_WRONG"}
        self.anonymous_options = {}

    def put(self, key: str, body: bytes) -> None:
        self.put_all({key: body})

    def put_all(self, objects: dict[str, bytes]) -> None:
        self.repo.commit({**self.repo.commits.get(self.repo.refs.get("main", ""), {}), **objects})

    def delete(self, key: str) -> None:
        self.repo.commit({name: body for name, body in self.repo.commits[self.repo.sha].items() if name != key})


OF_THIS_MACHINE = "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n"


def make_certificates(folder: Path, extensions: str = OF_THIS_MACHINE) -> tuple[Path, Path, Path]:
    """Makes an authority of one's own and a server's certificate; returns its certificate, that one, and its key.

    Raises:
        FileNotFoundError: There is no openssl.
    """
    authority, authority_key = folder / "authority.pem", folder / "authority-key.pem"
    certificate, key, request = folder / "server.pem", folder / "server-key.pem", folder / "request.pem"
    names = folder / "names"
    names.write_text(extensions)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    signed_by = ["-CA", authority, "-CAkey", authority_key, "-CAcreateserial"]
    # Without it Python 3.13 trusts nobody.
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    about = ["-days", "2", "-subj", "/CN=The tests", *usage]
    for command in (
        ["req", "-x509", *curve, *about, "-keyout", authority_key, "-out", authority],
        ["req", *curve, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request],
        ["x509", "-req", *signed_by, "-days", "2", "-in", request, "-extfile", names, "-out", certificate],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return authority, certificate, key
