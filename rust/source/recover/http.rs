//! Below the clients: sends requests, reads once, everything else with retries.
//!
//! Reads come with [`Notes`]: the layer above retries them, since each needs a signature of its own. Listings, writes
//! and requests for credentials have none: they are retried here, with their bodies; the latter not at the pace of the
//! store, whose requests wait for them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::{ClientOptions, Error, GetOptions};
use reqwest::header::{ACCEPT_ENCODING, HeaderValue, RANGE};
use reqwest::{Method, StatusCode};
use tokio::time::timeout;

use super::answer;
use super::listing::Listing;
use super::notes::Notes;
use super::patience::Limit;
use super::policy::Policy;
use super::transport::Transport;
use super::trouble::{Kind, NoCredentials, Trouble};
use crate::source::settings::Named;

/// A signature is valid for a quarter of an hour: a signed request is not repeated for longer than this.
const LONGEST_SIGNED: Duration = Duration::from_secs(600);

/// The longest wait for one response of a machine's metadata service, which is near if it exists.
const METADATA_TIME: Duration = Duration::from_secs(2);

/// Path prefixes of metadata services, and the headers of requests to them: of Amazon, Google and Azure. Objects may
/// have such paths.
const METADATA: [(&str, &str); 4] = [
    ("/latest/api/token", "x-aws-ec2-metadata-token-ttl-seconds"),
    ("/latest/meta-data/", "x-aws-ec2-metadata-token"),
    ("/computeMetadata/", "metadata-flavor"),
    ("/metadata/identity/", "metadata"),
];

/// The path prefix at Amazon's older service, which wants no header; objects are only written here.
const OLD_METADATA_PATH: &str = "/latest/meta-data/iam/";

/// Path and query of an object's URL as given: they may contain a signature, which covers exactly this text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Written(Arc<str>);

impl Written {
    /// Returns `None` for a text with characters that URLs cannot contain, such as a space.
    pub(crate) fn try_new(path_and_query: &str) -> Option<Self> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = path_and_query.parse().ok()?;
        Some(Self(path_and_query.into()))
    }

    /// Returns the text, which may contain secrets.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether there is more than a path.
    pub(crate) fn has_query(&self) -> bool {
        self.0.contains('?')
    }

    /// Returns options that request the object by this text, if given, and otherwise by its key.
    pub(crate) fn options(written: Option<&Self>) -> GetOptions {
        let mut options = GetOptions::default();
        if let Some(written) = written {
            options.extensions.insert(written.clone());
        }
        options
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written(…)")
    }
}

/// Makes clients whose responses are checked.
#[derive(Debug, Clone)]
pub(in crate::source) struct Connector {
    pub(in crate::source) policy: Policy,
    /// The option with additional trusted certificates.
    pub(in crate::source) certificate: Option<Named>,
}

#[derive(Debug)]
struct Checked {
    transport: Transport,
    policy: Policy,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let transport = Transport::try_new(options.clone(), self.certificate.clone())
            .map_err(|error| Error::Generic { store: "HTTP", source: Box::new(error) })?;
        Ok(HttpClient::new(Checked { transport, policy: self.policy.clone() }))
    }
}

impl HttpService for Checked {
    fn call<'s, 'f>(&'s self, mut request: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
    {
        if request.extensions().get::<Notes>().is_none() {
            return Box::pin(self.again(request));
        }
        Box::pin(async move {
            if let Some(Written(written)) = request.extensions().get::<Written>().cloned() {
                let mut parts = request.uri().clone().into_parts();
                let invalid =
                    |_| HttpError::new(HttpErrorKind::Unknown, std::io::Error::other("its query is not valid"));
                parts.path_and_query = Some(written.parse().map_err(invalid)?);
                let unfit = |_| HttpError::new(HttpErrorKind::Unknown, std::io::Error::other("its query does not fit"));
                *request.uri_mut() = parts.try_into().map_err(unfit)?;
            }
            // A request for bytes must not get an encoded response. Signatures do not cover this header.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            let range = request.headers().get(RANGE).and_then(|range| range.to_str().ok()).map(str::to_owned);
            answer::check(range.as_deref(), self.transport.execute(request).await?).await
        })
    }
}

impl Checked {
    /// Repeats a request until its response is complete.
    async fn again(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_for_machine = is_for_machine(&request);
        let is_paced = !is_for_machine && is_for_objects(&request);
        if is_for_machine && !self.policy.traffic.has_role() {
            return self.look_for_machine(request).await;
        }
        let limit = Limit { time: self.policy.limit.time.min(LONGEST_SIGNED), ..self.policy.limit };
        let policy = Policy { limit, ..self.policy.clone() };
        let (notes, mut patience) = (Notes::default(), policy.patience());
        loop {
            let pass = if is_paced {
                let entered = policy.traffic.pace().enter(&mut patience).await;
                Some(entered.map_err(|error| HttpError::new(HttpErrorKind::Timeout, error))?)
            } else {
                None
            };
            let answer = async {
                match is_for_machine {
                    true => self.ask_machine(request.clone()).await.map_err(of_machine),
                    false => self.whole(request.clone()).await,
                }
            };
            let failed = match patience.watch.run(answer).await {
                Ok(response) => {
                    if let Some(pass) = pass {
                        pass.answered();
                        policy.traffic.answered();
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            let kind = failed.kind();
            let error = Error::Generic { store: "store", source: Box::new(failed) };
            let waited = match pass {
                Some(pass) => policy.recover(error, pass, &notes, &mut patience).await,
                None => policy.recover_alone(error, &mut patience).await,
            };
            waited.map_err(|error| HttpError::new(kind, error))?;
        }
    }

    /// Makes a request once, and reads its whole response.
    async fn whole(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let has_data = request.method() == Method::GET;
        let listing = Listing::of(&request);
        let mut response = answer::check(None, self.transport.execute(request).await?).await?;
        if has_data {
            response = answer::check_data(response)?;
        }
        let (head, body) = response.into_parts();
        let body = answer::whole(body).await?;
        if let Some(listing) = listing.filter(|_| head.status.is_success()) {
            listing.check(&body).map_err(answer::wrong)?;
        }
        Ok(HttpResponse::from_parts(head, body.into()))
    }

    /// Asks a metadata service that has not given any credentials yet, once: most machines have none.
    async fn look_for_machine(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_for_credentials = is_for_credentials(&request);
        let answer = self.ask_machine(request).await;
        if is_for_credentials && answer.as_ref().is_ok_and(|response| response.status().is_success()) {
            self.policy.traffic.found_role();
        }
        answer.map_err(|Trouble { said, .. }| HttpError::new(HttpErrorKind::Unknown, NoCredentials { said }))
    }

    /// Asks the metadata service, which is near.
    async fn ask_machine(&self, request: HttpRequest) -> Result<HttpResponse, Trouble> {
        match timeout(METADATA_TIME, self.whole(request)).await {
            // With 403, an old service asks for the old protocol.
            Ok(Ok(response)) if response.status().is_success() || response.status() == StatusCode::FORBIDDEN => {
                Ok(response)
            }
            Ok(Ok(response)) => Err(Trouble::new(Kind::Failed, format!("it answered {}", response.status()))),
            Ok(Err(error)) => Err(Trouble::new(Kind::Failed, error.to_string())),
            Err(_) => {
                let said = format!("it did not answer within {} seconds", METADATA_TIME.as_secs());
                Err(Trouble::new(Kind::Stalled, said))
            }
        }
    }
}

/// Returns the error for a metadata service that has given credentials before.
fn of_machine(trouble: Trouble) -> HttpError {
    let said = format!("the machine's metadata service gives no credentials: {}", trouble.said);
    HttpError::new(HttpErrorKind::Unknown, Trouble { said, ..trouble })
}

/// Returns whether a request is a listing or a write: these keep to the pace of the store.
///
/// All others are for credentials. The clients make them for a read, which may be the one that goes ahead, while all
/// others wait for these credentials: if they waited for their turn, too, none would ever come.
fn is_for_objects(request: &HttpRequest) -> bool {
    Listing::of(request).is_some() || [Method::PUT, Method::DELETE].contains(request.method())
}

/// Returns whether a request to a metadata service is for credentials themselves: before, Amazon's is asked for a
/// session and for the name of the role, which a machine with a metadata service need not have.
fn is_for_credentials(request: &HttpRequest) -> bool {
    request.method() == Method::GET && !request.uri().path().ends_with('/')
}

/// Returns whether a request is for the metadata service of this machine.
fn is_for_machine(request: &HttpRequest) -> bool {
    let (path, headers) = (request.uri().path(), request.headers());
    let is_marked = METADATA.iter().any(|(prefix, header)| path.starts_with(prefix) && headers.contains_key(*header));
    is_marked || request.method() == Method::GET && path.starts_with(OLD_METADATA_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_may_be_called_like_metadata_services() {
        let is_for_machine = |method: Method, url: &str, header: Option<&'static str>| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method;
            *request.uri_mut() = url.parse().unwrap();
            if let Some(header) = header {
                request.headers_mut().insert(header, HeaderValue::from_static("x"));
            }
            super::is_for_machine(&request)
        };
        for (method, path, header) in [
            (Method::PUT, "/latest/api/token", Some("x-aws-ec2-metadata-token-ttl-seconds")),
            (Method::GET, "/latest/meta-data/iam/security-credentials/", Some("x-aws-ec2-metadata-token")),
            (Method::GET, "/latest/meta-data/iam/security-credentials/role", None),
            (Method::GET, "/computeMetadata/v1/instance/token", Some("metadata-flavor")),
            (Method::GET, "/metadata/identity/oauth2/token?resource=x", Some("metadata")),
        ] {
            let url = format!("http://169.254.169.254{path}");
            assert!(is_for_machine(method, &url, header), "{path}");
        }
        for path in ["/latest/m.forebay", "/latest/api/token", "/computeMetadata/m", "/metadata/identity/m"] {
            let url = format!("https://s3.here.amazonaws.com{path}");
            assert!(!is_for_machine(Method::PUT, &url, Some("authorization")), "{path}");
        }
    }
}
