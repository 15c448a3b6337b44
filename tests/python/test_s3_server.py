"""What the tests take for granted of the S3 server, so that a failure of theirs is not the server's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
import pytest
from botocore.exceptions import ClientError
from obstore.store import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from s3 import Bucket

BODY = bytes(range(256))


def test_the_server_reads_ranges_and_honours_preconditions(bucket: Bucket) -> None:
    bucket.put("a/object", BODY)
    client = bucket.client
    tag = client.head_object(Bucket=bucket.name, Key="a/object")["ETag"]
    for header, expected in (("bytes=10-19", BODY[10:20]), ("bytes=-8", BODY[-8:]), ("bytes=250-999", BODY[250:])):
        got = client.get_object(Bucket=bucket.name, Key="a/object", Range=header, IfMatch=tag)
        assert got["Body"].read() == expected, header
    bucket.put("a/object", BODY[::-1])
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.get_object(Bucket=bucket.name, Key="a/object", Range="bytes=0-9", IfMatch=tag)


def test_the_storage_options_are_those_of_object_store(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "sp ace+%=ü.parquet").write_bytes(BODY)
    (tmp_path / "top.parquet").write_bytes(BODY)
    assert bucket.upload(tmp_path, "data/") == f"{bucket.url}/data/"

    store = S3Store(bucket.name, config=dict(bucket.storage_options), client_options={"allow_http": True})
    listed = [entry for page in obstore.list(store, "data") for entry in page]
    assert sorted(entry["path"] for entry in listed) == ["data/deep/sp ace+%=ü.parquet", "data/top.parquet"]
    assert all(entry["e_tag"] for entry in listed)
    assert bytes(obstore.get_range(store, "data/deep/sp ace+%=ü.parquet", start=3, end=7)) == BODY[3:7]
