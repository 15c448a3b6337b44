//! Makes HTTP clients from a store's options, as `object_store` does, except for redirects: these are left to
//! [`redirect`](super::redirect), since `reqwest` reveals the previous URL and a store's headers to the target.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use object_store::client::HttpClient;
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::tls::Certificate;
use reqwest::{ClientBuilder, NoProxy, Proxy, redirect};
use tokio::sync::Semaphore;
use url::Url;

use super::super::settings;
use crate::error::{Error, Result};

/// Names that one client has looked up at a time.
const MOST_RESOLVED: usize = 4;

const USER_AGENT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// Whom a client trusts.
pub(super) enum Trust {
    /// Nobody: it is for plain HTTP servers.
    Nobody,
    /// The system's certificates, unless the options say otherwise, and these.
    System(Vec<Certificate>),
}

/// Makes a client that does not follow redirects.
///
/// # Errors
///
/// [`Error::Setting`] for options that do not make a client.
pub(super) fn connect(options: &ClientOptions, trust: Trust) -> Result<HttpClient> {
    let given = Given(options);
    let builder = ClientBuilder::new().redirect(redirect::Policy::none()).referer(false);
    let agent = given.text(ClientConfigKey::UserAgent);
    let builder = builder.user_agent(agent.as_deref().unwrap_or(USER_AGENT));
    let builder = match trust {
        Trust::Nobody => builder.tls_certs_only([]),
        Trust::System(besides) if given.flag(ClientConfigKey::NoSystemCertificates)? => builder.tls_certs_only(besides),
        Trust::System(besides) => builder.tls_certs_merge(besides),
    };
    let mut builder = protocol(times(proxied(builder, &given)?, &given)?, &given)?
        .danger_accept_invalid_certs(given.flag(ClientConfigKey::AllowInvalidCertificates)?)
        .https_only(!given.flag(ClientConfigKey::AllowHttp)?);
    if given.flag(ClientConfigKey::RandomizeAddresses)? {
        builder = builder.dns_resolver(Arc::new(InTurn::default()));
    }
    // Options are checked above: what is left are the system's certificates.
    let unusable = |error| Error::Setting { name: "environment", reason: said(&error) };
    builder.build().map(HttpClient::new).map_err(unusable)
}

fn proxied(builder: ClientBuilder, given: &Given<'_>) -> Result<ClientBuilder> {
    let excluded = given.text(ClientConfigKey::ProxyExcludes);
    let Some(url) = given.text(ClientConfigKey::ProxyUrl) else { return Ok(by_environment(builder)) };
    if excluded.as_deref().is_some_and(are_all) {
        return Ok(builder.no_proxy());
    }
    let unusable = |key: ClientConfigKey, error| settings::refused(format!("`{}`: {}", key.as_ref(), said(&error)));
    let proxy = Proxy::all(url).map_err(|error| unusable(ClientConfigKey::ProxyUrl, error))?;
    let builder =
        builder.proxy(proxy.no_proxy(excluded.and_then(|hosts| NoProxy::from_string(&without_ports(&hosts)))));
    let Some(pem) = given.text(ClientConfigKey::ProxyCaCertificate) else { return Ok(builder) };
    let certificate = Certificate::from_pem(pem.as_bytes());
    Ok(builder.tls_certs_merge([certificate.map_err(|error| unusable(ClientConfigKey::ProxyCaCertificate, error))?]))
}

/// Uses the proxies of the environment, as the client would, and the excluded hosts in all their forms: the client
/// supports neither `*` for IP addresses nor hosts with a port.
pub(in crate::source) fn by_environment(builder: ClientBuilder) -> ClientBuilder {
    let variable = |names: [&str; 2]| names.into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    if ["NO_PROXY", "no_proxy"].into_iter().any(|name| std::env::var(name).is_ok_and(|hosts| are_all(&hosts))) {
        return builder.no_proxy();
    }
    let excluded = variable(["NO_PROXY", "no_proxy"]);
    let hosts = without_ports(&excluded);
    // In a CGI program, `HTTP_PROXY` is a header that the caller controls.
    if hosts == excluded || std::env::var_os("REQUEST_METHOD").is_some() {
        return builder;
    }
    let all = variable(["ALL_PROXY", "all_proxy"]);
    let or_all = |url: String| if url.is_empty() { all.clone() } else { url };
    let proxies = [
        Proxy::http(or_all(variable(["HTTP_PROXY", "http_proxy"]))),
        Proxy::https(or_all(variable(["HTTPS_PROXY", "https_proxy"]))),
    ];
    // The client ignores invalid URLs, too.
    let proxies = proxies.into_iter().flatten().map(|proxy| proxy.no_proxy(NoProxy::from_string(&hosts)));
    proxies.fold(builder.no_proxy(), ClientBuilder::proxy)
}

/// Returns a description of the proxy for requests by `scheme`, if there is one.
pub(super) fn proxy_of(options: &ClientOptions, scheme: &str) -> Option<String> {
    let (given, variable) = (Given(options), |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty()));
    let (name, url, excluding, excluded) = match given.text(ClientConfigKey::ProxyUrl) {
        Some(url) => ("proxy_url", url, "proxy_excludes", given.text(ClientConfigKey::ProxyExcludes)),
        None => {
            let names = match scheme {
                "https" => ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
                _ => ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
            };
            let name = names.into_iter().find(variable)?;
            let excluding = ["NO_PROXY", "no_proxy"].into_iter().find(variable);
            (
                name,
                std::env::var(name).ok()?,
                excluding.unwrap_or_default(),
                excluding.and_then(|of| std::env::var(of).ok()),
            )
        }
    };
    if excluded.as_deref().is_some_and(are_all) {
        return None;
    }
    // It may contain a password.
    let parsed = Url::parse(&url).ok().filter(Url::has_host).or_else(|| Url::parse(&format!("http://{url}")).ok())?;
    let port = parsed.port_or_known_default().map_or_else(String::new, |port| format!(":{port}"));
    let unless = excluded.map_or_else(String::new, |_| format!(", unless `{excluding}` leaves it out"));
    Some(format!("requests to it go through the proxy `{}{port}` of `{name}`{unless}", parsed.host_str()?))
}

/// Returns a list of hosts excluded from the proxy, without their ports.
fn without_ports(excluded: &str) -> String {
    let host = |entry: &str| match entry.trim().rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
                Some(address) => address.to_owned(),
                None if host.contains(':') => entry.to_owned(),
                None => host.to_owned(),
            }
        }
        _ => entry.to_owned(),
    };
    excluded.split(',').map(host).collect::<Vec<_>>().join(",")
}

/// Returns whether all hosts are excluded from the proxy.
fn are_all(excluded: &str) -> bool {
    excluded.split(',').any(|host| host.trim() == "*")
}

fn times(mut builder: ClientBuilder, given: &Given<'_>) -> Result<ClientBuilder> {
    if let Some(time) = given.time(ClientConfigKey::Timeout)? {
        builder = builder.timeout(time);
    }
    if let Some(time) = given.time(ClientConfigKey::ReadTimeout)? {
        builder = builder.read_timeout(time);
    }
    if let Some(time) = given.time(ClientConfigKey::ConnectTimeout)? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = given.time(ClientConfigKey::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(time);
    }
    Ok(builder)
}

fn protocol(mut builder: ClientBuilder, given: &Given<'_>) -> Result<ClientBuilder> {
    if let Some(most) = given.number(ClientConfigKey::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(most);
    }
    if let Some(time) = given.time(ClientConfigKey::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(time);
    }
    if let Some(time) = given.time(ClientConfigKey::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(time);
    }
    if given.flag(ClientConfigKey::Http2KeepAliveWhileIdle)? {
        builder = builder.http2_keep_alive_while_idle(true);
    }
    if let Some(size) = given.number(ClientConfigKey::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(Some(size));
    }
    if given.flag(ClientConfigKey::Http1Only)? {
        builder = builder.http1_only();
    }
    if given.flag(ClientConfigKey::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    Ok(builder)
}

/// Returns why a client could not be made.
pub(in crate::source) fn said(error: &reqwest::Error) -> String {
    let said = super::causes(error).last().map(ToString::to_string).unwrap_or_default();
    match said.contains("No CA certificates") {
        true => "this machine has no certificates of authorities, or not where `SSL_CERT_FILE` or `SSL_CERT_DIR` \
                 point: install the package `ca-certificates`, or set `SSL_CERT_FILE` to a file of them"
            .into(),
        false => said,
    }
}

/// Options as they were given.
struct Given<'o>(&'o ClientOptions);

impl Given<'_> {
    fn text(&self, key: ClientConfigKey) -> Option<String> {
        self.0.get_config_value(&key)
    }

    fn flag(&self, key: ClientConfigKey) -> Result<bool> {
        self.text(key).map_or(Ok(false), |text| settings::flag(key.as_ref(), &text))
    }

    fn time(&self, key: ClientConfigKey) -> Result<Option<Duration>> {
        self.text(key).map(|text| settings::time(key.as_ref(), &text)).transpose()
    }

    fn number<N: FromStr>(&self, key: ClientConfigKey) -> Result<Option<N>> {
        let unusable = |text: &str| settings::refused(format!("`{}`: expected a number, got `{text}`", key.as_ref()));
        self.text(key).map(|text| text.trim().parse().map_err(|_| unusable(&text))).transpose()
    }
}

/// Resolves names as the system does, but rotates the first address: a large store's servers share the load.
///
/// While the system looks a name up, it keeps a blocking thread, and possibly for long. Only a few are kept: others
/// decode, and read files.
pub(in crate::source) struct InTurn {
    turn: Arc<AtomicUsize>,
    /// Room for one more at a time.
    room: Arc<Semaphore>,
}

impl Default for InTurn {
    fn default() -> Self {
        Self { turn: Arc::default(), room: Arc::new(Semaphore::new(MOST_RESOLVED)) }
    }
}

impl Resolve for InTurn {
    fn resolve(&self, name: Name) -> Resolving {
        let (turn, room) = (Arc::clone(&self.turn), Arc::clone(&self.room));
        Box::pin(async move {
            let taken = room.acquire_owned().await?;
            let find = move || {
                // Kept until the system returns, even if nobody waits any more.
                let _taken = taken;
                (name.as_str(), 0).to_socket_addrs().map(Vec::from_iter)
            };
            let mut addresses: Vec<SocketAddr> = tokio::task::spawn_blocking(find).await??;
            if !addresses.is_empty() {
                let first = turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
                addresses.rotate_left(first);
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_proxy_may_have_ports() {
        for (excluded, hosts) in [
            ("localhost:9000, minio:9000,.corp.test:443", "localhost,minio,.corp.test"),
            ("127.0.0.1:9000,[::1]:9000,::1,fe80::1:2", "127.0.0.1,::1,::1,fe80::1:2"),
            ("10.0.0.0/8,fd00::/8,host,host:port,host:,", "10.0.0.0/8,fd00::/8,host,host:port,host:,"),
        ] {
            assert_eq!(without_ports(excluded), hosts);
        }
    }

    #[test]
    fn a_few_names_are_looked_up_at_a_time() {
        crate::Io::current().unwrap().block_on(async {
            let resolver = InTurn::default();
            let resolve = || resolver.resolve("127.0.0.1".parse().unwrap());
            let taken = (0..MOST_RESOLVED).map(|_| resolver.room.try_acquire().unwrap()).collect::<Vec<_>>();
            let mut waiting = resolve();
            let waited = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
            assert!(waited.is_err());
            drop(taken);
            drop(waiting.await.unwrap());
            let all = futures::future::try_join_all((0..40).map(|_| resolve())).await.unwrap();
            assert_eq!((all.len(), resolver.room.available_permits()), (40, MOST_RESOLVED));
        });
    }

    #[test]
    fn what_makes_no_client_is_named() {
        drop(rustls::crypto::ring::default_provider().install_default());
        for (key, value) in [
            (ClientConfigKey::Timeout, "soon"),
            (ClientConfigKey::AllowHttp, "perhaps"),
            (ClientConfigKey::PoolMaxIdlePerHost, "many"),
            (ClientConfigKey::ProxyUrl, "http://"),
        ] {
            let options = ClientOptions::new().with_config(key, value);
            let said = connect(&options, Trust::Nobody).unwrap_err().to_string();
            assert!(said.contains(key.as_ref()), "{said}");
        }
        assert!(connect(&ClientOptions::new(), Trust::Nobody).is_ok());
    }
}
