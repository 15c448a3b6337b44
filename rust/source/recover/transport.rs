//! Sends requests, and reads the certificates of the system when somebody needs them.

use std::sync::OnceLock;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, ReqwestConnector,
};

use super::trouble::{causes, is_of_certificates};

/// A client for servers that speak plainly, and one that knows whom the system trusts.
///
/// There are hundreds of certificates: to read them takes longer than to open a dataset of a store that is near.
#[derive(Debug)]
pub(super) struct Transport {
    plain: HttpClient,
    secure: OnceLock<HttpClient>,
    options: ClientOptions,
}

impl Transport {
    /// Makes the client that needs no certificates.
    ///
    /// # Errors
    ///
    /// Those of [`HttpConnector::connect`], for options that make no client.
    pub(super) fn try_new(options: ClientOptions) -> object_store::Result<Self> {
        let plain = connect(&options.clone().with_no_system_certificates(true))?;
        Ok(Self { plain, secure: OnceLock::new(), options })
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
        let client = connect(&self.options).map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?;
        Ok(self.secure.get_or_init(|| client))
    }
}

fn connect(options: &ClientOptions) -> object_store::Result<HttpClient> {
    ReqwestConnector::default().connect(options)
}
