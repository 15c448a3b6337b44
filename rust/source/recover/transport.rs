//! Sends requests, and reads certificates when somebody needs them.

use std::sync::OnceLock;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, ReqwestConnector,
};

use super::super::settings::certificates;
use super::trouble::{causes, is_of_certificates};

/// A client for servers that speak plainly, and one that knows whom the system trusts.
///
/// There are hundreds of certificates: to read them takes longer than to open a dataset of a store that is near.
#[derive(Debug)]
pub(super) struct Transport {
    plain: HttpClient,
    secure: OnceLock<HttpClient>,
    options: ClientOptions,
    /// The option that says which certificates are trusted besides those of the system.
    certificate: Option<String>,
}

impl Transport {
    /// Makes the client that needs no certificates.
    ///
    /// # Errors
    ///
    /// Those of [`HttpConnector::connect`], for options that make no client.
    pub(super) fn try_new(options: ClientOptions, certificate: Option<String>) -> object_store::Result<Self> {
        let plain = connect(&options.clone().with_no_system_certificates(true))?;
        Ok(Self { plain, secure: OnceLock::new(), options, certificate })
    }

    /// Makes a request.
    pub(super) async fn execute(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.uri().scheme_str() != Some("https") {
            match self.plain.execute(request.clone()).await {
                // It was sent elsewhere, or goes by a proxy.
                Err(error) if causes(&error).any(is_of_certificates) => {}
                answer => return answer,
            }
        }
        self.secure()?.execute(request).await
    }

    fn secure(&self) -> Result<&HttpClient, HttpError> {
        if let Some(client) = self.secure.get() {
            return Ok(client);
        }
        let trusted = self.certificate.as_deref().map_or(Ok(Vec::new()), certificates).map_err(unusable)?;
        let options = trusted.into_iter().fold(self.options.clone(), ClientOptions::with_root_certificate);
        let client = connect(&options).map_err(unusable)?;
        Ok(self.secure.get_or_init(|| client))
    }
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Connect, error)
}

fn connect(options: &ClientOptions) -> object_store::Result<HttpClient> {
    ReqwestConnector::default().connect(options)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use object_store::client::HttpRequestBody;

    use super::super::trouble::{Sorted, sort};
    use super::*;
    use crate::io::Io;

    #[test]
    fn certificates_are_read_for_tls_alone() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            assert!(connection.read(&mut [0; 1000]).unwrap() > 0);
            connection.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").unwrap();
        });
        let transport = |certificate: Option<&str>| {
            Transport::try_new(ClientOptions::new().with_allow_http(true), certificate.map(str::to_owned)).unwrap()
        };
        let ask = async |transport: &Transport, scheme: &str| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = format!("{scheme}://{address}/").parse().unwrap();
            transport.execute(request).await
        };
        let io = Io::current().unwrap();
        let (without, missing) = (transport(None), transport(Some("/no/such.pem")));
        assert_eq!(io.block_on(ask(&missing, "http")).unwrap().status(), 204);
        assert!(missing.secure.get().is_none());
        server.join().unwrap();
        let failed = io.block_on(ask(&missing, "https")).unwrap_err();
        let said = causes(&failed).map(ToString::to_string).collect::<String>();
        assert!(said.contains("cannot read `/no/such.pem`"), "{said}");
        // Asked for again it would still be gone.
        let failed = object_store::Error::Generic { store: "S3", source: Box::new(failed) };
        assert_eq!(sort(&failed), Sorted::Final);
        // Nobody is there any more.
        assert!(io.block_on(ask(&without, "https")).is_err());
        assert!(without.secure.get().is_some());
    }
}
