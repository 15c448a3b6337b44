"""What is said where the Hub of Hugging Face cannot be used as was meant: what is the matter, and what to write."""

from __future__ import annotations

import re

import pytest
from hub import TOKEN, Hub
from hub_data import ids_file

import forebay as fb

pytestmark = pytest.mark.usefixtures("hub")


@pytest.fixture
def hub(served: Hub, tmp_path, monkeypatch) -> Hub:
    served.point(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    served.create("org/x", {"data/f.parquet": ids_file(0, 3)})
    served.clear()
    return served


@pytest.mark.parametrize(
    ("rest", "meant"),
    [
        ("", "org/x"),
        ("/", "org/x"),
        ("?row=7", "org/x"),
        ("/tree/main", "org/x"),
        ("/tree/main/data", "hf://datasets/org/x/data"),
        ("/tree/v1", "org/x@v1"),
        ("/tree/refs%2Fconvert%2Fparquet/default", "hf://datasets/org/x@refs%2Fconvert%2Fparquet/default"),
        ("/blob/main/data/f.parquet", "hf://datasets/org/x/data/f.parquet"),
        ("/blob/main/a%20b.parquet#L1", "hf://datasets/org/x/a b.parquet"),
        ("/viewer", "org/x"),
        ("/viewer/default/train?p=1", "org/x"),
    ],
)
def test_a_page_of_the_hub_is_answered_with_what_to_write(hub: Hub, rest: str, meant: str) -> None:
    url = f"{hub.url}/datasets/org/x{rest}"
    said = re.escape(f"is a page of the Hub, not a file; write `{meant}`")
    with pytest.raises(fb.SettingError, match=said):
        fb.load_dataset(url, split="train")
    with pytest.raises(fb.SettingError, match=said):
        fb.load_dataset("parquet", data_files=url, split="train")
    assert not hub.log


@pytest.mark.parametrize("meant", ["org/x", "hf://datasets/org/x/data", "hf://datasets/org/x/data/f.parquet"])
def test_what_is_said_to_be_written_is_read(meant: str) -> None:
    assert len(fb.load_dataset(meant, split="train")) == 3


@pytest.mark.parametrize("path", ["datasets/org/x", "org/x/", "datasets/org/x/"])
def test_other_spellings_of_a_name_are_answered_with_the_name(path: str) -> None:
    with pytest.raises(fb.NotFoundError, match=f"`{path}`; a dataset of the Hub is named `org/x`$"):
        fb.load_dataset(path, split="train")


@pytest.mark.parametrize("path", ["datasets/none/", "datasets/a/b.parquet", "/datasets/org/x", "a/b/c/"])
def test_paths_that_are_no_names_are_not_taken_for_some(path: str) -> None:
    with pytest.raises(fb.NotFoundError) as caught:
        fb.load_dataset(path, split="train")
    assert "Hub" not in str(caught.value)


def test_a_file_of_another_server_is_no_page(hub: Hub) -> None:
    with pytest.raises(fb.ForebayError) as caught:
        fb.load_dataset(f"{hub.url}/datasets/corpus/none.parquet", split="train", storage_options={"retry_for": "1s"})
    assert "a page of the Hub" not in str(caught.value)


def test_what_the_hub_says_of_a_refusal_is_shown(hub: Hub) -> None:
    said = "Access to this resource is disabled."
    for headers in ({"X-Error-Code": "DisabledRepo", "X-Error-Message": said}, {"X-Error-Message": said}):
        hub.fail("api", 1, status=403, headers=headers)
        with pytest.raises(fb.DatasetNotFoundError, match=f"`org/x` cannot be accessed on the Hub at .*: {said}$"):
            fb.load_dataset("org/x", split="train")
    hub.fail("api", 1, status=403)
    with pytest.raises(fb.DatasetNotFoundError, match="does not exist on the Hub at .*, or cannot be accessed; if it"):
        fb.load_dataset("org/x", split="train")


def test_a_list_that_goes_on_elsewhere_is_told(hub: Hub, monkeypatch) -> None:
    """The Hub calls itself by an address, and the user by a name; the token goes to one of both."""
    hub.create_bucket("org/bucket", {f"{n}.parquet": ids_file(n, n + 1) for n in range(3)}, private=True)
    monkeypatch.setattr(hub, "page_size", 2)
    assert len(fb.load_dataset("hf://buckets/org/bucket", split="train", token=TOKEN)) == 3
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("127.0.0.1", "localhost"))
    said = f"goes on at `{hub.url}`, which gets no token, as the Hub is at `http://localhost:.*`HF_ENDPOINT`"
    with pytest.raises(fb.AccessDeniedError, match=said):
        fb.load_dataset("hf://buckets/org/bucket", split="train", token=TOKEN)
    hub.create_bucket("org/bucket", {f"{n}.parquet": ids_file(n, n + 1) for n in range(3)})
    assert len(fb.load_dataset("hf://buckets/org/bucket", split="train", token=TOKEN)) == 3


def test_a_proxy_that_is_not_there_is_named(hub: Hub) -> None:
    proxy = "http://user:p4ssw0rd@127.0.0.1:9"
    with pytest.raises(
        fb.HubUnreachableError, match=f"cannot reach the Hub at `{hub.url}` by `proxy_url`, `"
    ) as caught:
        fb.load_dataset("org/x", split="train", storage_options={"proxy_url": proxy, "hf_patience": "100ms"})
    assert "127.0.0.1:9`: " in str(caught.value)
    assert "p4ssw0rd" not in str(caught.value)


def test_where_a_login_is_looked_for_is_named_by_the_variable_that_says_so(tmp_path, monkeypatch) -> None:
    path = tmp_path / "of-login"
    monkeypatch.setenv("HF_TOKEN_PATH", str(path))
    with pytest.raises(fb.AccessDeniedError, match=r"there is none in `HF_TOKEN` or `.*` \(`HF_TOKEN_PATH`\)"):
        fb.load_dataset("org/x", split="train", token=True)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(fb.SettingError, match=r"cannot read `.*` \(`HF_TOKEN_PATH`\), where a login at the Hub"):
        fb.load_dataset("org/x", split="train")
