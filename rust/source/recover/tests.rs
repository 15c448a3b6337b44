//! Tests reads from a scripted server, over real sockets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::Kind;
use crate::error::{Error, Result};
use crate::io::Io;
use crate::metrics::Recovered;
use crate::source::{Connection, Location, Object, Store, read_ranges};

const SIZE: usize = 300_000;

fn body() -> Vec<u8> {
    (0..SIZE).map(|place| u8::try_from(place % 251).unwrap()).collect()
}

/// The bytes sent for one request, possibly in parts with pauses; then the connection is closed.
#[derive(Default)]
struct Reply {
    parts: Vec<(Duration, Vec<u8>)>,
}

impl Reply {
    fn status(status: &str, headers: &str) -> Self {
        let said = "<Error><Code>Test</Code></Error>";
        let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n", said.len());
        Self { parts: vec![(Duration::ZERO, [head.as_bytes(), said.as_bytes()].concat())] }
    }

    fn ok(body: &str) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        Self { parts: vec![(Duration::ZERO, [head.as_bytes(), body.as_bytes()].concat())] }
    }

    /// Answers with credentials that are due to be renewed as soon as a tenth of a second has passed.
    fn credentials() -> Self {
        let expiration = (chrono::Utc::now() + Duration::from_secs(200)).to_rfc3339();
        Self::ok(&format!(
            r#"{{"AccessKeyId": "key", "SecretAccessKey": "s3cr3t", "Token": "t0k3n", "Expiration": "{expiration}"}}"#
        ))
    }

    fn after(mut self, time: Duration) -> Self {
        self.parts[0].0 = time;
        self
    }
}

/// One request: its first line, and its headers in lower case.
#[derive(Debug, Clone)]
struct Seen {
    line: String,
    headers: Vec<String>,
    at: Instant,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|header| header.strip_prefix(name)?.strip_prefix(": "))
    }

    fn range(&self) -> Range<usize> {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        let Some((first, last)) = range.and_then(|range| range.split_once('-')) else { return 0..SIZE };
        match first.parse::<usize>() {
            Ok(first) => first..last.parse::<usize>().unwrap().min(SIZE - 1) + 1,
            Err(_) => SIZE - last.parse::<usize>().unwrap().min(SIZE)..SIZE,
        }
    }

    /// Answers as a sound server does.
    fn answer(&self) -> Reply {
        self.partly(&self.range(), "\"one\"", SIZE)
    }

    /// Answers with the tag `tag`, and sends at most `num_bytes`.
    fn partly(&self, range: &Range<usize>, tag: &str, num_bytes: usize) -> Reply {
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\netag: {tag}\r\ncontent-range: bytes {}-{}/{SIZE}\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            range.start,
            range.end - 1,
            range.len()
        );
        let sent = &body()[range.start..range.end.min(range.start.saturating_add(num_bytes))];
        Reply { parts: vec![(Duration::ZERO, [head.as_bytes(), sent].concat())] }
    }
}

/// A server, and the requests it received.
struct Server {
    origin: String,
    log: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts a server that answers each request by its number.
    fn start(answer: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let log: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (noted, number, answer) = (Arc::clone(&log), Arc::new(AtomicUsize::new(0)), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let (noted, number, answer) = (Arc::clone(&noted), Arc::clone(&number), Arc::clone(&answer));
                std::thread::spawn(move || serve(&stream, &noted, &number, &*answer));
            }
        });
        Self { origin, log }
    }

    fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().clone()
    }

    fn connect(&self, options: &[(&str, &str)]) -> (Connection, Object) {
        let location = Location::parse(&format!("{}/x.parquet?s3cr3t", self.origin)).unwrap();
        let pairs = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let options: BTreeMap<String, String> = pairs.collect();
        let connection = Store::try_new(location.store.clone(), &options).unwrap().connect().unwrap();
        let (path, url, written) = (location.path.clone(), location.url(), location.written.clone());
        let object = Object { path, url, written, size_bytes: None, e_tag: None };
        (connection, object)
    }

    fn connect_s3(&self, text: &str, options: &[(&str, &str)]) -> (Connection, Location) {
        let location = Location::parse(text).unwrap();
        let here = [("aws_endpoint_url", self.origin.as_str()), ("aws_region", "here")];
        let options = here.iter().chain(options).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        (Store::try_new(location.store.clone(), &options.collect()).unwrap().connect().unwrap(), location)
    }

    /// Connects to the object `s3://bucket/x.parquet`.
    fn connect_s3_object(&self, options: &[(&str, &str)]) -> (Connection, Object) {
        let (connection, location) = self.connect_s3("s3://bucket/x.parquet", options);
        let (path, url) = (location.path.clone(), location.url());
        (connection, Object { path, url, written: None, size_bytes: None, e_tag: None })
    }

    /// Reads a range, and returns the counts of its requests.
    fn read(&self, range: Range<u64>, options: &[(&str, &str)]) -> (Result<Vec<u8>>, Recovered) {
        let (connection, object) = self.connect(options);
        let read = Io::current().unwrap().block_on(read(&connection, &object, range));
        (read, connection.metrics.snapshot().recovered)
    }

    /// Reads a range `times` times in sequence, and returns the counts.
    fn read_repeatedly(&self, times: usize, range: &Range<u64>, options: &[(&str, &str)]) -> Recovered {
        let (connection, object) = self.connect(options);
        Io::current().unwrap().block_on(async {
            for _ in 0..times {
                assert_eq!(read(&connection, &object, range.clone()).await.unwrap(), expected(range.clone()));
            }
        });
        connection.metrics.snapshot().recovered
    }
}

async fn read(connection: &Connection, object: &Object, range: Range<u64>) -> Result<Vec<u8>> {
    Ok(read_ranges(connection, object, std::slice::from_ref(&range)).await?.concat())
}

fn serve(stream: &TcpStream, log: &Mutex<Vec<Seen>>, number: &AtomicUsize, answer: &dyn Fn(usize, &Seen) -> Reply) {
    let mut lines = BufReader::new(stream).lines().map_while(std::result::Result::ok);
    let Some(line) = lines.next() else { return };
    let headers = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let seen = Seen { line, headers, at: Instant::now() };
    let number = number.fetch_add(1, Ordering::SeqCst);
    log.lock().unwrap().push(seen.clone());
    for (pause, bytes) in answer(number, &seen).parts {
        std::thread::sleep(pause);
        // The loser of two requests is gone.
        if (&mut &*stream).write_all(&bytes).is_err() {
            return;
        }
    }
}

const MS: Duration = Duration::from_millis(1);

fn expected(range: Range<u64>) -> Vec<u8> {
    body()[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()].to_vec()
}

#[test]
fn a_sound_store_is_asked_once() {
    let server = Server::start(|_, seen| seen.answer());
    let (read, took) = server.read(10..1000, &[]);
    assert_eq!(read.unwrap(), expected(10..1000));
    assert!(took.is_plain() && server.seen().len() == 1, "{took:?}");
    assert!(server.seen()[0].line.starts_with("GET /x.parquet?s3cr3t "), "as it was given");
}

#[test]
fn failures_of_all_kinds_pass() {
    let server = Server::start(|number, seen| match number {
        0 => Reply::status("500 Internal Server Error", ""),
        1 => Reply::default(), // closed without a word
        2 => Reply::status("503 Slow Down", ""),
        3 => Reply::status("429 Too Many Requests", "retry-after: 1\r\n"),
        4 => Reply::status("200 OK", ""),
        5 => seen.partly(&(seen.range().start + 1..seen.range().end + 1), "\"one\"", SIZE),
        6 => seen.partly(&(seen.range().start..seen.range().end - 1), "\"one\"", 0),
        _ => seen.answer(),
    });
    let (read, took) = server.read(10..1000, &[]);
    // Three wrong responses are too many.
    let failed = read.unwrap_err();
    assert!(matches!(failed, Error::Read { .. }), "{failed:?}");
    assert!(failed.describe().contains("bytes 10-998/300000"), "{}", failed.describe());
    assert_eq!((took.failed, took.throttled, took.broken), (3, 2, 1), "{took:?}");
    let seen = server.seen();
    assert!(seen[4].at - seen[3].at >= 1000 * MS, "as long as it asks");
    let (read, _) = server.read(10..1000, &[]);
    assert_eq!(read.unwrap(), expected(10..1000));
}

#[test]
fn a_body_goes_on_where_it_broke_off_and_only_of_the_same_version() {
    let server =
        Server::start(|number, seen| seen.partly(&seen.range(), "\"one\"", [70_000, 0, usize::MAX][number.min(2)]));
    let (read, took) = server.read(1000..71_002, &[]);
    assert_eq!(read.unwrap(), expected(1000..71_002));
    assert_eq!((took.resumed, took.broken), (2, 2), "{took:?}");
    let seen = server.seen();
    let asked: Vec<_> = seen.iter().map(|seen| (seen.range(), seen.header("if-match").map(str::to_owned))).collect();
    let pinned = Some("\"one\"".to_owned());
    assert_eq!(asked, [(1000..71_002, None), (71_000..71_002, pinned.clone()), (71_000..71_002, pinned)]);
}

#[test]
fn a_body_that_is_too_long_is_asked_for_again_and_three_are_an_error() {
    for num_wrong in [2, 3] {
        let server = Server::start(move |number, seen| {
            let mut reply = seen.answer();
            if number < num_wrong {
                // Without a length, it ends with the connection.
                let (_, bytes) = &mut reply.parts[0];
                let head = String::from_utf8_lossy(&bytes[..200]).into_owned();
                let line = head.lines().find(|line| line.starts_with("content-length")).unwrap();
                let begin = head.find(line).unwrap();
                drop(bytes.splice(begin..begin + line.len() + 2, []));
                bytes.extend_from_slice(b"more");
            }
            reply
        });
        let (read, took) = server.read(10..1000, &[]);
        match read {
            Ok(read) => assert!(num_wrong == 2 && read == expected(10..1000)),
            Err(error) => {
                assert!(num_wrong == 3 && error.describe().contains("longer than the 990 bytes"), "{error:?}")
            }
        }
        assert_eq!((took.failed, server.seen().len()), (2, 3), "{took:?}");
    }
}

#[test]
fn what_a_store_says_of_a_failure_is_read_in_part() {
    let server = Server::start(|_, _| {
        let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_owned();
        Reply { parts: vec![(Duration::ZERO, (head + &"x".repeat(1 << 20)).into_bytes())] }
    });
    let failed = server.read(0..9, &[]).0.unwrap_err().describe();
    assert!(failed.contains("400 Bad Request") && failed.contains("xxx") && failed.len() < 2000, "{}", failed.len());
}

#[test]
fn an_object_that_is_replaced_or_deleted_while_it_is_read_is_an_error_that_says_so() {
    let replaced = Server::start(|number, seen| {
        seen.partly(&seen.range(), if number == 0 { "\"one\"" } else { "\"two\"" }, 50_000)
    });
    assert!(matches!(replaced.read(0..90_000, &[]).0, Err(Error::ObjectChanged { .. })));
    for (status, is_changed) in [("412 Precondition Failed", true), ("404 Not Found", false)] {
        let server = Server::start(move |number, seen| match number {
            0 => seen.partly(&seen.range(), "\"one\"", 50_000),
            _ => Reply::status(status, ""),
        });
        let failed = server.read(0..90_000, &[]).0.unwrap_err();
        assert_eq!(matches!(failed, Error::ObjectChanged { .. }), is_changed, "{failed:?}");
        assert_eq!(matches!(failed, Error::NotFound { .. }), !is_changed, "{failed:?}");
        assert!(failed.describe().contains("x.parquet") && !failed.describe().contains("s3cr3t"));
    }
}

#[test]
fn a_stall_is_what_ends_a_body_and_not_the_time_that_it_takes() {
    let server = Server::start(|number, seen| {
        let mut reply = seen.partly(&seen.range(), "\"one\"", 10_000);
        let rest = body()[seen.range()][10_000..].to_vec();
        // Slowly, and forever.
        let step = if number == 0 { Duration::from_secs(8) } else { 200 * MS };
        reply.parts.extend(rest.chunks(10_000).map(|bytes| (step, bytes.to_vec())));
        reply
    });
    let (read, took) = server.read(0..100_000, &[("read_timeout", "1500 ms")]);
    assert_eq!(read.unwrap(), expected(0..100_000));
    assert_eq!((took.stalled, took.resumed), (1, 1), "{took:?}");
}

#[test]
fn patience_ends_with_an_error_that_says_which_range_for_how_long_and_why() {
    let server = Server::start(|_, _| Reply::status("500 Internal Server Error", ""));
    let start = Instant::now();
    let failed = server.read(3..9, &[("retry_for", "700 ms")]).0.unwrap_err();
    assert!(start.elapsed() < 2000 * MS);
    let said = failed.describe();
    for part in ["bytes 3..9 of", "x.parquet", "within 0.7 seconds", "raise `retry_for`", "500 Internal", "(Test)"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("s3cr3t"), "{said}");
    let never = Server::start(|_, seen| seen.answer().after(Duration::from_secs(20)));
    let failed = never.read(3..9, &[("retry_for", "400 ms")]).0.unwrap_err();
    assert!(matches!(failed, Error::Impatient { .. }) && start.elapsed() < 5000 * MS, "{failed:?}");
    // A request cut off at the end says less than the failure before it.
    let silent = Server::start(|number, seen| match number {
        0 => Reply::status("500 Internal Server Error", ""),
        _ => seen.answer().after(Duration::from_secs(20)),
    });
    let failed = silent.read(3..9, &[("retry_for", "400 ms")]).0.unwrap_err().describe();
    assert!(failed.contains("500 Internal") && failed.contains("no answer in the time left"), "{failed}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nowhere = Server { origin: format!("http://{closed}"), log: Arc::default() };
    let failed = nowhere.read(3..9, &[("retry_for", "300 ms")]).0.unwrap_err();
    assert!(failed.describe().contains("Connection refused"), "{}", failed.describe());
}

#[test]
fn what_cannot_pass_is_not_waited_for() {
    for (status, expected) in [("404 Not Found", "no such object"), ("403 Forbidden", "permission denied")] {
        let server = Server::start(move |_, _| Reply::status(status, ""));
        let (read, took) = server.read(0..9, &[]);
        assert!(read.unwrap_err().to_string().contains(expected));
        assert!(took.is_plain() && server.seen().len() == 1);
    }
}

#[test]
fn a_storm_is_probed_and_everything_arrives_after_it() {
    let since = Arc::new(Mutex::new(None::<Instant>));
    let server = Server::start(move |_, seen| {
        let start = *since.lock().unwrap().get_or_insert(seen.at);
        if seen.at < start + 2500 * MS { Reply::status("503 Slow Down", "") } else { seen.answer() }
    });
    let (connection, object) = server.connect(&[]);
    let before = connection.traffic.known().concurrency;
    let read = async |part: u64| {
        let range = part * 50_000..part * 50_000 + 10;
        assert_eq!(self::read(&connection, &object, range.clone()).await.unwrap(), expected(range));
    };
    let start = Instant::now();
    let num_parts = 6;
    Io::current().unwrap().block_on(join_all((0..num_parts).map(read)));
    assert!(start.elapsed() < 6000 * MS, "recovery is quick: {:?}", start.elapsed());
    let (num_asked, num_probes) = (server.seen().len(), 5);
    let most = 2 * usize::try_from(num_parts).unwrap() + num_probes;
    assert!(num_asked <= most, "{num_asked} requests, expected {most} at most");
    assert!(connection.metrics.snapshot().recovered.throttled > 0);
    // A refused probe says nothing about how many requests are too many.
    assert_eq!(connection.traffic.known().concurrency, before / 2);
}

#[test]
fn one_request_of_a_hundred_that_is_slow_is_made_twice() {
    let server = Server::start(|number, seen| {
        seen.answer().after(if number > 80 && number % 50 == 0 { 10_000 * MS } else { 2 * MS })
    });
    let start = Instant::now();
    let took = server.read_repeatedly(200, &(5..6), &[]);
    assert!(took.hedges >= 2 && took.hedges_won >= 2, "{took:?}");
    assert!(server.seen().len() <= 212, "a part of them only");
    assert!(start.elapsed() < 10_000 * MS, "nobody waits for the slow ones: {:?}", start.elapsed());
}

#[test]
fn a_request_is_made_again_where_the_second_is_slow_too() {
    let server = Server::start(|number, seen| {
        seen.answer().after(if (120..122).contains(&number) { 10_000 * MS } else { 2 * MS })
    });
    let start = Instant::now();
    let took = server.read_repeatedly(200, &(5..6), &[]);
    assert!(took.hedges >= 2 && took.hedges_won >= 1, "{took:?}");
    assert!(start.elapsed() < 10_000 * MS, "nobody waits for the slow ones: {:?}", start.elapsed());
}

#[test]
fn nothing_is_made_twice_where_it_is_not_wanted() {
    let server = Server::start(|number, seen| seen.answer().after(if number == 90 { 300 * MS } else { MS }));
    let took = server.read_repeatedly(100, &(5..6), &[("hedge", "false")]);
    assert_eq!((took.hedges, server.seen().len()), (0, 100));
}

#[test]
fn a_slow_body_goes_on_elsewhere() {
    let size = 200_000;
    let server = Server::start(move |number, seen| {
        let mut reply = seen.partly(&seen.range(), "\"one\"", 20_000);
        let rest = body()[seen.range()][20_000.min(seen.range().len())..].to_vec();
        let step = if number == 90 { 1000 * MS } else { Duration::ZERO };
        reply.parts.extend(rest.chunks(20_000).map(|bytes| (step, bytes.to_vec())));
        reply
    });
    let start = Instant::now();
    let took = server.read_repeatedly(100, &(0..size), &[]);
    assert!(took.hedges_won >= 1 && took.retries() == 0, "{took:?}");
    let last = server.seen().into_iter().find(|seen| seen.header("if-match").is_some()).unwrap();
    assert!(last.range().start >= 20_000, "only what was missing");
    assert!(start.elapsed() < 8000 * MS, "{:?}", start.elapsed());
}

const LISTING: &str = "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><Contents><Key>x.parquet</Key>\
                       <LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>7</Size><ETag>\"one\"</ETag>\
                       </Contents><IsTruncated>false</IsTruncated></ListBucketResult>";

#[test]
fn what_is_no_read_is_made_again_as_well() {
    let server = Server::start(|number, seen| match number {
        0 => Reply::status("503 Slow Down", ""),
        1 => Reply::status("500 Internal Server Error", ""),
        _ => {
            assert!(seen.line.contains("list-type=2"), "{}", seen.line);
            let mut reply = Reply::ok(LISTING);
            if number == 2 {
                let (_, bytes) = &mut reply.parts[0];
                bytes.truncate(bytes.len() - LISTING.len() + 40);
            }
            reply
        }
    });
    let listed = s3_listing(&server, &[]).unwrap();
    assert_eq!(listed, ["x.parquet"]);
    assert_eq!(server.seen().len(), 4);
    let refusing = Server::start(|_, _| Reply::status("503 Slow Down", "retry-after: 3600\r\n"));
    let failed = s3_listing(&refusing, &[("retry_for", "1 s")]).unwrap_err();
    assert!(matches!(&failed, Error::Impatient { option: "retry_for", .. }), "{failed:?}");
}

fn s3_listing(server: &Server, options: &[(&str, &str)]) -> Result<Vec<String>> {
    let keys = [("aws_access_key_id", "key"), ("aws_secret_access_key", "s3cr3t")];
    let (connection, location) = server.connect_s3("s3://bucket/", &[&keys[..], options].concat());
    listing(&connection, &location)
}

fn listing(connection: &Connection, location: &Location) -> Result<Vec<String>> {
    let listed = Io::current().unwrap().block_on(crate::source::list(connection, location))?;
    Ok(listed.into_iter().map(|listed| listed.relative).collect())
}

#[test]
fn a_machine_without_a_metadata_service_is_not_waited_for() {
    for reply in ["503 Service Unavailable", "404 Not Found"] {
        let server = Server::start(move |_, seen| {
            assert!(seen.line.contains("/latest/"), "{}", seen.line);
            Reply::status(reply, "")
        });
        let options = [("aws_endpoint_url", "http://127.0.0.1:9"), ("aws_metadata_endpoint", server.origin.as_str())];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let location = Location::parse("s3://bucket/").unwrap();
        let connection = Store::try_new(location.store.clone(), &options).unwrap().connect().unwrap();
        let failed = Io::current().unwrap().block_on(crate::source::list(&connection, &location)).unwrap_err();
        assert!(matches!(failed, Error::NoCredentials { .. }), "{failed:?}");
        assert!(failed.to_string().contains("skip_signature"));
        assert_eq!(server.seen().len(), 1);
    }
}

#[test]
fn a_machine_without_a_role_is_not_waited_for() {
    let server = Server::start(|_, seen| match seen.line.starts_with("PUT /latest/api/token ") {
        true => Reply::ok("session"),
        false => Reply::status("404 Not Found", ""),
    });
    let (connection, location) =
        server.connect_s3("s3://bucket/", &[("aws_metadata_endpoint", server.origin.as_str())]);
    let failed = listing(&connection, &location).unwrap_err();
    assert!(matches!(failed, Error::NoCredentials { .. }), "{failed:?}");
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn a_metadata_service_that_gave_credentials_is_asked_until_it_gives_others() {
    let num_sessions = AtomicUsize::new(0);
    let server = Server::start(move |_, seen| match seen.line.split(' ').nth(1).unwrap() {
        "/latest/api/token" => match num_sessions.fetch_add(1, Ordering::SeqCst) {
            1 => Reply::status("503 Service Unavailable", ""),
            2 => Reply::status("404 Not Found", ""),
            3 => Reply::default(), // closed without a word
            _ => Reply::ok("session"),
        },
        "/latest/meta-data/iam/security-credentials/" => Reply::ok("role"),
        "/latest/meta-data/iam/security-credentials/role" => Reply::credentials(),
        _ => seen.answer(),
    });
    let (connection, object) = server.connect_s3_object(&[("aws_metadata_endpoint", server.origin.as_str())]);
    Io::current().unwrap().block_on(async {
        assert_eq!(read(&connection, &object, 0..9).await.unwrap(), expected(0..9));
        // Until they are due.
        tokio::time::sleep(150 * MS).await;
        assert_eq!(read(&connection, &object, 5..9).await.unwrap(), expected(5..9));
    });
    let has_path = |seen: &&Seen| seen.line.contains("/latest/api/token");
    assert_eq!(server.seen().iter().filter(has_path).count(), 5);
}

/// Options for credentials that are requested from `server`, at `/credentials`.
fn by_request<'a>(url: &'a str, token_file: &'a str) -> [(&'static str, &'a str); 2] {
    [("aws_container_credentials_full_uri", url), ("aws_container_authorization_token_file", token_file)]
}

#[test]
fn credentials_are_renewed_while_the_store_refuses() {
    let (num_reads, token) = (AtomicUsize::new(0), tempfile::NamedTempFile::new().unwrap());
    let server = Server::start(move |_, seen| match seen.line.contains("/credentials") {
        true => Reply::credentials(),
        false => match num_reads.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::status("503 Slow Down", ""),
            _ => seen.answer(),
        },
    });
    let url = format!("{}/credentials", server.origin);
    let options = [&by_request(&url, token.path().to_str().unwrap())[..], &[("retry_for", "4 s")]].concat();
    let (connection, object) = server.connect_s3_object(&options);
    let start = Instant::now();
    // The one that goes ahead needs new credentials; all others wait for it, and for these.
    let reads = (0..5).map(async |part: u64| read(&connection, &object, part * 50_000..part * 50_000 + 9).await);
    for (part, bytes) in (0..).zip(Io::current().unwrap().block_on(join_all(reads))) {
        assert_eq!(bytes.unwrap(), expected(part * 50_000..part * 50_000 + 9));
    }
    assert!(start.elapsed() < 3000 * MS, "{:?}", start.elapsed());
}

#[test]
fn credentials_that_cannot_be_had_are_asked_for_again() {
    let (num_asked, token) = (AtomicUsize::new(0), tempfile::NamedTempFile::new().unwrap());
    let server = Server::start(move |_, seen| match seen.line.contains("/credentials") {
        true => match num_asked.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::status("500 Internal Server Error", ""),
            1 => Reply::status("429 Too Many Requests", "retry-after: 1\r\n"),
            _ => Reply::credentials(),
        },
        false => seen.answer(),
    });
    let url = format!("{}/credentials", server.origin);
    let (connection, object) = server.connect_s3_object(&by_request(&url, token.path().to_str().unwrap()));
    let bytes = Io::current().unwrap().block_on(read(&connection, &object, 0..9));
    assert_eq!(bytes.unwrap(), expected(0..9));
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen[2].at - seen[1].at >= 1000 * MS, "as long as it asks");
}

#[test]
fn a_listing_that_is_refused_is_made_again_with_other_credentials() {
    for num_refused in [1, 2] {
        let (num_listed, token) = (AtomicUsize::new(0), tempfile::NamedTempFile::new().unwrap());
        let server = Server::start(move |_, seen| match seen.line.contains("/credentials") {
            true => Reply::credentials(),
            false if num_listed.fetch_add(1, Ordering::SeqCst) < num_refused => Reply::status("403 Forbidden", ""),
            false => Reply::ok(LISTING),
        });
        let url = format!("{}/credentials", server.origin);
        let options = by_request(&url, token.path().to_str().unwrap());
        let (connection, location) = server.connect_s3("s3://bucket/", &options);
        match listing(&connection, &location) {
            Ok(listed) => assert!(num_refused == 1 && listed == ["x.parquet"]),
            Err(error) => assert!(num_refused == 2 && matches!(error, Error::PermissionDenied { .. }), "{error:?}"),
        }
    }
}

#[test]
fn a_store_without_suffixes_is_asked_for_the_size_first() {
    let server = Server::start(|_, seen| match seen.line.starts_with("HEAD") {
        true => {
            let head =
                format!("HTTP/1.1 200 OK\r\netag: \"one\"\r\ncontent-length: {SIZE}\r\nconnection: close\r\n\r\n");
            Reply { parts: vec![(Duration::ZERO, head.into_bytes())] }
        }
        false => seen.answer(),
    });
    let (connection, mut object) = server.connect(&[]);
    let connection = Connection { has_suffixes: false, ..connection };
    let read = crate::source::read_suffix(&connection, &mut object, 100);
    let read = Io::current().unwrap().block_on(read).unwrap();
    assert_eq!(read, expected(SIZE as u64 - 100..SIZE as u64));
    assert_eq!((object.size_bytes, object.e_tag.as_deref()), (Some(SIZE as u64), Some("\"one\"")));
    assert_eq!(server.seen()[1].range(), SIZE - 100..SIZE);
    assert_eq!(connection.metrics.snapshot().depth, 2);
}

#[test]
fn troubles_are_told_once_each() {
    let server = Server::start(|number, seen| match number {
        0 | 1 => Reply::status("500 Internal Server Error", ""),
        _ => seen.answer(),
    });
    let (connection, object) = server.connect(&[]);
    Io::current().unwrap().block_on(read(&connection, &object, 0..1)).unwrap();
    assert!(!connection.traffic.is_first_of(Kind::Failed) && connection.traffic.is_first_of(Kind::Stalled));
    let last = Io::current().unwrap().block_on(async {
        let options = GetOptions { range: Some(GetRange::Suffix(7)), ..GetOptions::default() };
        let answer = connection.client.get_opts(&Path::from("x.parquet"), options).await;
        answer.unwrap().bytes().await.unwrap()
    });
    assert_eq!(last, expected(SIZE as u64 - 7..SIZE as u64));
}
