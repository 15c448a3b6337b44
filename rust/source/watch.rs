//! Watches what the HTTP client does by itself: it makes requests again when a store fails, and tells nobody.

use std::sync::Arc;

use futures::future::BoxFuture;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

use super::traffic::{Attempts, Traffic};

/// Statuses by which stores say that there are too many requests.
const THROTTLED: [u16; 2] = [429, 503];

/// Makes clients whose requests are counted in one [`Traffic`].
#[derive(Debug)]
pub(super) struct Watching {
    pub(super) traffic: Arc<Traffic>,
}

#[derive(Debug)]
struct Watched {
    client: HttpClient,
    traffic: Arc<Traffic>,
}

impl HttpConnector for Watching {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Watched { client, traffic: Arc::clone(&self.traffic) }))
    }
}

/// Makes clients that are good for nothing, to see whether a store can be made of its options: a real one reads all
/// certificates of the system.
#[derive(Debug)]
pub(super) struct Unconnected;

impl HttpConnector for Unconnected {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Self))
    }
}

impl HttpService for Unconnected {
    fn call<'s, 'f>(&'s self, _: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
    {
        Box::pin(async { Err(HttpError::new(HttpErrorKind::Connect, std::io::Error::other("it is not connected"))) })
    }
}

impl HttpService for Watched {
    fn call<'s, 'f>(&'s self, request: HttpRequest) -> BoxFuture<'f, Result<HttpResponse, HttpError>>
    where
        's: 'f,
    {
        // Requests for credentials and listings go elsewhere or are few: they have none.
        let attempts = request.extensions().get::<Attempts>().cloned();
        Box::pin(async move {
            attempts.iter().for_each(Attempts::count);
            let response = self.client.execute(request).await?;
            if attempts.is_some() && THROTTLED.contains(&response.status().as_u16()) {
                self.traffic.throttled();
            }
            Ok(response)
        })
    }
}
