//! Tests the store against a Hub with two ports that answers one request per connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use futures::future::try_join_all;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::{Hub, HubStore};
use crate::io::Io;
use crate::source::StoreKey;
use crate::source::traffic::Traffic;

const BODY: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The requests to a server: the lines of each.
type Log = Arc<Mutex<Vec<Vec<String>>>>;

/// Starts a server that answers each request, given its number and lines, and then closes the connection.
fn serve(answer: impl Fn(usize, &[String]) -> Vec<u8> + Send + 'static) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (origin, log) = (format!("http://{}", listener.local_addr().unwrap()), Log::default());
    let noted = Arc::clone(&log);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let lines: Vec<String> = lines.map(|line| line.to_lowercase()).collect();
            let number = noted.lock().unwrap().len();
            noted.lock().unwrap().push(lines.clone());
            stream.write_all(&answer(number, &lines)).unwrap();
        }
    });
    (origin, log)
}

fn response(status: &str, headers: &[(&str, &str)], body: &[u8], length: usize) -> Vec<u8> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Answers a range request with at most `num_bytes`.
fn part(lines: &[String], num_bytes: usize) -> Vec<u8> {
    let range = lines.iter().find_map(|line| line.strip_prefix("range: bytes=")).unwrap();
    let (first, last) = range.split_once('-').unwrap();
    let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
    let body = &BODY[first..=last];
    let content_range = format!("bytes {first}-{last}/{}", BODY.len());
    let sent = &body[..num_bytes.min(body.len())];
    response("206 Partial Content", &[("content-range", &content_range)], sent, body.len())
}

fn redirect(cdn: &str) -> Vec<u8> {
    let (location, size) = (format!("{cdn}/signed?Signature=1"), BODY.len().to_string());
    let headers = [("location", location.as_str()), ("x-linked-etag", "\"tag\""), ("x-linked-size", &size)];
    response("302 Found", &headers, b"", 0)
}

/// Returns the store as it is normally read, with retries.
fn recovering(hub: &str) -> Arc<dyn ObjectStore> {
    HubStore::recovering(store(hub).0)
}

fn store(hub: &str) -> HubStore {
    let options = [("hf_endpoint", hub), ("hf_token", "s3cr3t"), ("hf_patience", "5 s")];
    let options: BTreeMap<String, String> = options.map(|(name, value)| (name.into(), value.into())).into();
    let root = "hf://datasets/org/name@1";
    let traffic = Traffic::current(&StoreKey::Hub(root.into()), &options);
    HubStore(Hub::current(root, &options, &traffic).unwrap())
}

async fn read(store: &dyn ObjectStore, range: std::ops::Range<u64>) -> object_store::Result<Vec<u8>> {
    let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
    Ok(store.get_opts(&Path::from("x.parquet"), options).await?.bytes().await?.to_vec())
}

#[test]
fn many_tasks_resolve_a_file_once_and_the_token_stays_with_the_hub() {
    let (cdn, cdn_log) = serve(|_, lines| part(lines, usize::MAX));
    let (hub, hub_log) = serve(move |_, _| redirect(&cdn));
    let store = store(&hub);
    Io::current().unwrap().block_on(async {
        let found = try_join_all((0..20).map(|start| read(&store, start..start + 9))).await.unwrap();
        for (start, bytes) in found.iter().enumerate() {
            assert_eq!(bytes, &BODY[start..start + 9]);
        }
    });
    let has_token = |lines: &Vec<String>| lines.iter().any(|line| line.starts_with("authorization: bearer s3cr3t"));
    assert_eq!(hub_log.lock().unwrap().iter().map(has_token).collect::<Vec<_>>(), [true]);
    assert_eq!(cdn_log.lock().unwrap().len(), 20);
    assert!(!cdn_log.lock().unwrap().iter().flatten().any(|line| line.starts_with("authorization")));
}

#[test]
fn a_file_that_the_hub_has_itself_elsewhere_is_read_there_with_the_token() {
    let size = BODY.len().to_string();
    let (hub, log) = serve(move |_, lines| {
        if !lines.iter().any(|line| line.starts_with("authorization: bearer s3cr3t")) {
            return response("401 Unauthorized", &[], b"", 0);
        }
        if lines[0].contains("/api/resolve-cache/") {
            return part(lines, usize::MAX);
        }
        let location = "/api/resolve-cache/datasets/org/name/1/x.parquet?etag=%22tag%22";
        let headers = [("location", location), ("x-linked-etag", "\"tag\""), ("x-linked-size", &size)];
        response("307 Temporary Redirect", &headers, b"", 0)
    });
    let store = store(&hub);
    let options =
        GetOptions { range: Some(GetRange::Bounded(2..30)), if_match: Some("tag".into()), ..Default::default() };
    let path = Path::from("x.parquet");
    let found = async { store.get_opts(&path, options).await?.bytes().await };
    assert_eq!(Io::current().unwrap().block_on(found).unwrap(), &BODY[2..30]);
    assert_eq!(log.lock().unwrap().len(), 3, "resolved, found there, and read");
}

/// Answers as a Hub that has the file itself.
fn own(lines: &[String]) -> Vec<u8> {
    let answer = String::from_utf8(part(lines, usize::MAX)).unwrap();
    answer.replacen("\r\n", "\r\nx-repo-commit: 1\r\netag: \"tag\"\r\n", 1).into_bytes()
}

/// Reads a range of the version that was opened.
async fn read_same(store: &dyn ObjectStore) -> object_store::Result<Vec<u8>> {
    let options = GetOptions { range: Some(GetRange::Bounded(2..30)), ..GetOptions::default() };
    let opened = store.get_opts(&Path::from("x.parquet"), options.with_if_match(Some("tag"))).await?;
    Ok(opened.bytes().await?.to_vec())
}

#[test]
fn what_another_answers_for_the_hub_is_no_file() {
    let wrong = [
        response("200 OK", &[], b"", 0),
        response("200 OK", &[("etag", "\"another\"")], b"", 0),
        response("200 OK", &[("content-type", "text/html")], b"<html>", 6),
        response("204 No Content", &[("etag", "\"tag\"")], b"", 0),
        response("206 Partial Content", &[("etag", "\"tag\"")], b"x", 1),
        response("200 OK", &[("etag", "\"tag\"")], b"", 0),
    ];
    for wrong in wrong {
        let said = String::from_utf8(wrong.clone()).unwrap();
        let (cdn, _) = serve(|_, lines| part(lines, usize::MAX));
        for is_own in [false, true] {
            let (wrong, cdn) = (wrong.clone(), cdn.clone());
            let (hub, _) = serve(move |number, lines| match number {
                0 => wrong.clone(),
                _ if is_own => own(lines),
                _ => redirect(&cdn),
            });
            let found = Io::current().unwrap().block_on(read_same(&*recovering(&hub)));
            assert_eq!(found.unwrap(), &BODY[2..30], "{said}");
        }
    }
}

#[test]
fn a_file_that_moves_is_found_once_more() {
    let (cdn, _) = serve(|_, lines| part(lines, usize::MAX));
    let (hub, log) = serve(move |number, lines| if number < 2 { own(lines) } else { redirect(&cdn) });
    let store = store(&hub);
    Io::current().unwrap().block_on(async {
        for _ in 0..3 {
            assert_eq!(read_same(&store).await.unwrap(), &BODY[2..30]);
        }
    });
    assert_eq!(log.lock().unwrap().len(), 4, "found, read, refused there, and found elsewhere");
}

#[test]
fn another_version_that_the_hub_has_itself_is_refused_and_not_remembered() {
    let (hub, _) = serve(|number, lines| {
        let answer = String::from_utf8(own(lines)).unwrap();
        if number < 2 { answer.replace("\"tag\"", "\"another\"").into_bytes() } else { answer.into_bytes() }
    });
    let store = store(&hub);
    Io::current().unwrap().block_on(async {
        assert!(matches!(read_same(&store).await, Err(object_store::Error::Precondition { .. })));
        assert_eq!(read_same(&store).await.unwrap(), &BODY[2..30]);
    });
}

#[test]
fn a_body_that_breaks_off_goes_on_where_it_stopped() {
    let (cdn, cdn_log) = serve(|number, lines| part(lines, [5, 0, 7, usize::MAX][number.min(3)]));
    let (hub, _) = serve(move |_, _| redirect(&cdn));
    let store = recovering(&hub);
    let found = Io::current().unwrap().block_on(read(&*store, 2..30)).unwrap();
    assert_eq!(found, &BODY[2..30]);
    let ranges: Vec<String> =
        cdn_log.lock().unwrap().iter().flatten().filter(|line| line.starts_with("range")).cloned().collect();
    assert_eq!(ranges, ["range: bytes=2-29", "range: bytes=7-29", "range: bytes=7-29", "range: bytes=14-29"]);
}

#[test]
fn a_wrong_answer_is_asked_for_again_and_three_are_an_error() {
    let page = || response("200 OK", &[("content-type", "text/html")], b"<html>", 6);
    let shifted = || response("206 Partial Content", &[("content-range", "bytes 9-29/36")], &BODY[9..30], 21);
    for num_wrong in [2, 3] {
        let (cdn, cdn_log) = serve(move |number, lines| match number {
            _ if number >= num_wrong => {
                String::from_utf8(part(lines, usize::MAX)).unwrap().replace("bytes ", "Bytes ").into_bytes()
            }
            0 => shifted(),
            1 => response("206 Partial Content", &[], &BODY[2..30], 28),
            _ => page(),
        });
        let (hub, _) = serve(move |_, _| redirect(&cdn));
        let read = Io::current().unwrap().block_on(read(&*recovering(&hub), 2..30));
        assert_eq!(cdn_log.lock().unwrap().len(), 3);
        match read {
            Ok(found) => assert!(num_wrong == 2 && found == BODY[2..30]),
            Err(error) => assert!(num_wrong == 3 && error.to_string().contains("a page of HTML"), "{error}"),
        }
    }
}

#[test]
fn a_whole_file_answers_a_request_for_all_of_it_only() {
    let (cdn, cdn_log) = serve(|_, _| response("200 OK", &[], BODY, BODY.len()));
    let (hub, _) = serve(move |_, _| redirect(&cdn));
    let store = recovering(&hub);
    Io::current().unwrap().block_on(async {
        assert_eq!(read(&*store, 0..BODY.len() as u64).await.unwrap(), BODY);
        for range in [0..9, 2..BODY.len() as u64] {
            let said = read(&*store, range).await.unwrap_err().to_string();
            assert!(said.contains("sent the whole file when asked for bytes="), "{said}");
        }
    });
    assert_eq!(cdn_log.lock().unwrap().len(), 1 + 3 + 3);
    // Its length is not known, so it may be anything.
    let (cdn, _) = serve(|_, _| [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".as_slice(), BODY].concat());
    let (hub, _) = serve(move |_, _| redirect(&cdn));
    let store = recovering(&hub);
    assert!(Io::current().unwrap().block_on(read(&*store, 0..BODY.len() as u64)).is_err());
}

#[test]
fn a_url_that_is_refused_is_resolved_once_more_and_no_more() {
    let (cdn, cdn_log) = serve(|_, _| response("403 Forbidden", &[], b"", 0));
    let (hub, hub_log) = serve(move |_, _| redirect(&cdn));
    let store = store(&hub);
    let refused = Io::current().unwrap().block_on(read(&store, 0..9)).unwrap_err();
    assert!(matches!(refused, object_store::Error::PermissionDenied { .. }), "{refused}");
    assert_eq!((hub_log.lock().unwrap().len(), cdn_log.lock().unwrap().len()), (2, 2));
    assert!(!refused.to_string().contains("Signature"), "{refused}");
}

#[test]
fn another_version_than_the_one_that_was_opened_is_refused() {
    let (cdn, _) = serve(|_, lines| part(lines, usize::MAX));
    let (hub, _) = serve(move |_, _| redirect(&cdn));
    let store = store(&hub);
    let get = async |tag: &str| {
        let options = GetOptions { range: Some(GetRange::Bounded(0..3)), ..GetOptions::default() };
        store.get_opts(&Path::from("x.parquet"), options.with_if_match(Some(tag))).await
    };
    Io::current().unwrap().block_on(async {
        assert_eq!(get("tag").await.unwrap().meta.e_tag.as_deref(), Some("tag"));
        assert!(matches!(get("other").await, Err(object_store::Error::Precondition { .. })));
    });
}

#[test]
fn nothing_is_written_or_listed() {
    let store = store("http://127.0.0.1:9");
    let refused = Io::current().unwrap().block_on(store.list_with_delimiter(None)).unwrap_err();
    assert!(matches!(refused, object_store::Error::NotSupported { .. }));
    assert!(!format!("{store:?} {store}").contains("s3cr3t"));
}
