//! Tells a web server who asks.

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};
use reqwest::header::{AUTHORIZATION, HeaderValue};

/// Makes the clients of `connector`, and adds the user's header to the requests that they are given. These are for the
/// server itself: redirects are followed [below](super::recover), and take no such header to another origin.
#[derive(Debug)]
pub(super) struct Authorized<C> {
    pub(super) connector: C,
    /// The header; `None` for a server that is not told.
    pub(super) value: Option<HeaderValue>,
}

#[derive(Debug)]
struct Client {
    client: HttpClient,
    value: HeaderValue,
}

impl<C: HttpConnector> HttpConnector for Authorized<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.connector.connect(options)?;
        Ok(match self.value.clone() {
            Some(value) => HttpClient::new(Client { client, value }),
            None => client,
        })
    }
}

#[async_trait::async_trait]
impl HttpService for Client {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        request.headers_mut().insert(AUTHORIZATION, self.value.clone());
        self.client.execute(request).await
    }
}
