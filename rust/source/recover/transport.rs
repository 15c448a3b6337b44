//! Sends requests and follows redirects; reads certificates only when they are needed.

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse};
use reqwest::StatusCode;
use tokio::sync::OnceCell;
use url::Url;

use super::connect::{Trust, connect, proxy_of};
use super::redirect::{self, Elsewhere};
use super::trouble::{Astray, causes, is_of_certificates};
use crate::error::Result;
use crate::io::unfinished;
use crate::secrets::Sent;
use crate::source::settings::{Named, certificates, refused};

/// Maximum number of redirects of one request.
const MOST_REDIRECTS: usize = 10;

/// The client's message for a proxy that requires authentication.
const UNAUTHORIZED: &str = "proxy authorization required";

/// A server was not reached, through a proxy.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
struct ByProxy {
    said: String,
    #[source]
    source: HttpError,
}

/// A client for plain HTTP, and one that knows the trusted certificates.
///
/// There are hundreds of certificates: reading them takes longer than opening a dataset on a nearby store.
#[derive(Debug)]
pub(super) struct Transport {
    plain: HttpClient,
    secure: OnceCell<HttpClient>,
    options: ClientOptions,
    /// The option with additional trusted certificates.
    certificate: Option<Named>,
}

impl Transport {
    /// Makes the client that needs no certificates.
    ///
    /// # Errors
    ///
    /// Those of [`connect`], for options that do not make a client.
    pub(super) fn try_new(options: ClientOptions, certificate: Option<Named>) -> Result<Self> {
        let plain = connect(&options, Trust::Nobody)?;
        Ok(Self { plain, secure: OnceCell::new(), options, certificate })
    }

    /// Makes a request, and those that it is redirected to. Unsuccessful responses come with what was [`Sent`], and to
    /// whom, if that is [`Elsewhere`].
    pub(super) async fn execute(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut num_redirects, mut elsewhere) = (0, None::<Elsewhere>);
        loop {
            let sent = self.send(request.clone()).await;
            let mut response = sent.map_err(|error| match &elsewhere {
                Some(elsewhere) => elsewhere.explain(error),
                None => error,
            })?;
            if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED
                && let Some(proxy) = proxy_of(&self.options, request.uri().scheme_str().unwrap_or_default())
            {
                return Err(refused_by(&proxy));
            }
            match redirect::next(&request, &response).filter(|_| num_redirects < MOST_REDIRECTS) {
                Some(next) => {
                    elsewhere = Elsewhere::of(&request, &next).or(elsewhere);
                    request = next;
                }
                None => {
                    if let Some(astray) = redirect::astray(&request, &response, num_redirects) {
                        return Err(HttpError::new(HttpErrorKind::Unknown, astray));
                    }
                    if !response.status().is_success() {
                        response.extensions_mut().insert(Sent::new(request.uri().query(), request.headers()));
                        if let Some(elsewhere) = elsewhere {
                            response.extensions_mut().insert(elsewhere);
                        }
                    }
                    return Ok(response);
                }
            }
            num_redirects += 1;
        }
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // The client assumes a valid URL.
        if let Err(error) = Url::parse(&request.uri().to_string()) {
            return Err(unusable(refused(format!("they do not make a valid URL of a store or service: {error}"))));
        }
        if request.uri().scheme_str() != Some("https") {
            match self.plain.execute(request.clone()).await {
                // Plain HTTP goes through a proxy.
                Err(error) if causes(&error).any(is_of_certificates) => {}
                answer => return answer.map_err(|error| self.by_proxy("http", error)),
            }
        }
        let scheme = request.uri().scheme_str().unwrap_or_default().to_owned();
        self.secure().await?.execute(request).await.map_err(|error| self.by_proxy(&scheme, error))
    }

    /// Adds the proxy to the error of a failed connection: it may be the proxy that was not reached.
    fn by_proxy(&self, scheme: &str, error: HttpError) -> HttpError {
        let is_of_connection = error.kind() == HttpErrorKind::Connect || error.kind() == HttpErrorKind::Timeout;
        let proxy = if is_of_connection { proxy_of(&self.options, scheme) } else { None };
        match proxy {
            // The client has no type for it.
            Some(said) if causes(&error).any(|cause| cause.to_string().ends_with(UNAUTHORIZED)) => refused_by(&said),
            Some(said) => HttpError::new(error.kind(), ByProxy { said, source: error }),
            None => error,
        }
    }

    /// Returns the client that knows the certificates, which the first request to need it reads for all others.
    async fn secure(&self) -> Result<&HttpClient, HttpError> {
        let read = || {
            let (options, certificate) = (self.options.clone(), self.certificate.clone());
            let read = move || {
                let trusted = certificate.as_ref().map_or_else(|| Ok(Vec::new()), certificates)?;
                connect(&options, Trust::System(trusted))
            };
            async move { tokio::task::spawn_blocking(read).await.map_err(unfinished).flatten().map_err(unusable) }
        };
        self.secure.get_or_try_init(read).await
    }
}

/// Returns the error for a proxy that requires authentication; `proxy` describes it.
fn refused_by(proxy: &str) -> HttpError {
    let said = format!(
        "{proxy}, which requires a user name and a password (407 Proxy Authentication Required), or rejected those \
         that it was given: they belong in its URL, `http://user:password@host:port`"
    );
    HttpError::new(HttpErrorKind::Unknown, Astray(said))
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Connect, error)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use object_store::client::HttpRequestBody;

    use super::super::trouble::{Sorted, sort};
    use super::*;
    use crate::io::Io;

    fn transport(certificate: Option<&str>) -> Transport {
        drop(rustls::crypto::ring::default_provider().install_default());
        let certificate = certificate.map(|path| Named::new("ca_certificate", path.to_owned()));
        Transport::try_new(ClientOptions::new().with_allow_http(true), certificate).unwrap()
    }

    async fn ask(transport: &Transport, url: &str) -> Result<HttpResponse, HttpError> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().unwrap();
        transport.execute(request).await
    }

    #[test]
    fn certificates_are_read_for_tls_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            assert!(connection.read(&mut [0; 1000]).unwrap() > 0);
            connection.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").unwrap();
        });
        let (plain, secure) = (format!("http://{address}/"), format!("https://{address}/"));
        let io = Io::current().unwrap();
        let (without, missing) = (transport(None), transport(Some("/no/such.pem")));
        assert_eq!(io.block_on(ask(&missing, &plain)).unwrap().status(), 204);
        assert!(missing.secure.get().is_none());
        server.join().unwrap();
        let failed = io.block_on(ask(&missing, &secure)).unwrap_err();
        let said = causes(&failed).map(ToString::to_string).collect::<String>();
        assert!(said.contains("cannot read `/no/such.pem`"), "{said}");
        // Retrying would not bring it back.
        let failed = object_store::Error::Generic { store: "S3", source: Box::new(failed) };
        assert_eq!(sort(&failed), Sorted::Final);
        // The server is gone.
        assert!(io.block_on(ask(&without, &secure)).is_err());
        assert!(without.secure.get().is_some());
    }

    #[cfg(unix)]
    #[test]
    fn others_go_on_while_certificates_are_read() {
        const LONG: Duration = Duration::from_secs(60);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        // It has one thread.
        let io = Io::for_scan().unwrap();
        let transport = transport(path.to_str());
        let asked = io.spawn(async move { ask(&transport, "https://127.0.0.1:1/").await.map(drop) });
        // Waits until somebody reads, who then waits for the end.
        let (opened, pipe) = std::sync::mpsc::channel();
        std::thread::spawn(move || opened.send(std::fs::File::options().write(true).open(&path)));
        let pipe = pipe.recv_timeout(LONG).unwrap().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = io.spawn(async move { sender.send(()) });
        let went_on = receiver.recv_timeout(LONG);
        drop(pipe);
        let failed = io.block_on(asked).unwrap().unwrap_err();
        assert!(causes(&failed).any(|cause| cause.to_string().contains("got none")), "{failed}");
        went_on.unwrap();
        io.block_on(other).unwrap().unwrap();
    }
}
