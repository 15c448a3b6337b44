"""Buckets on the S3 server of the tests."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ACCESS_KEY = "test"
SECRET_KEY = "test"
REGION = "us-east-1"


@dataclass(frozen=True)
class Bucket:
    """One bucket, empty at first, of one test."""

    name: str
    storage_options: Mapping[str, str]
    client: Any

    @property
    def url(self) -> str:
        """The bucket as Forebay is given it."""
        return f"s3://{self.name}"

    def put(self, key: str, body: bytes) -> str:
        """Writes one object and returns its URL."""
        self.client.put_object(Bucket=self.name, Key=key, Body=body)
        return f"{self.url}/{key}"

    def upload(self, folder: Path, prefix: str = "") -> str:
        """Writes every file below a folder, under its path relative to it, and returns the URL of the prefix."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.url}/{prefix}"


@dataclass(frozen=True)
class S3:
    """The S3 server: where it is and how to get a bucket."""

    endpoint: str

    @property
    def storage_options(self) -> dict[str, str]:
        """What `fb.load_dataset(..., storage_options=...)` needs to reach the server."""
        return {
            "aws_endpoint_url": self.endpoint,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": REGION,
            "aws_allow_http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {name.upper(): value for name, value in self.storage_options.items()}

    def create_bucket(self) -> Bucket:
        """Makes a bucket that nobody else uses."""
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )
        name = f"forebay-{uuid.uuid4().hex}"
        client.create_bucket(Bucket=name)
        return Bucket(name, self.storage_options, client)
