//! A store's client, remade when its credentials are refused: tokens expire, and the environment changes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use object_store::ObjectStore;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::error::Result;

/// Prefixes of the variables that clients are made from.
const PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Suffixes of options and variables with credentials that never expire, or that disable credentials.
const LASTING: [&str; 6] =
    ["access_key_id", "account_key", "storage_access_key", "sas_token", "sas_key", "skip_signature"];

type Make = Arc<dyn Fn() -> Result<Arc<dyn ObjectStore>> + Send + Sync>;

/// A client that can be remade.
pub(in crate::source) struct Client {
    current: RwLock<Current>,
    renewal: Option<Renewal>,
}

#[derive(Clone)]
struct Current {
    client: Arc<dyn ObjectStore>,
    generation: u64,
    environment: u64,
}

struct Renewal {
    /// May block.
    make: Make,
    /// Held by whoever makes a client.
    turn: Mutex<()>,
    /// Whether options provide the credentials: then the environment changes nothing.
    is_given: bool,
    /// Whether credentials come from variables, and only from them if these hold ones that never expire.
    is_of_variables: bool,
}

impl Client {
    /// Returns a client that is never remade.
    pub(in crate::source) fn fixed(client: Arc<dyn ObjectStore>) -> Self {
        let current = Current { client, generation: 0, environment: 0 };
        Self { current: RwLock::new(current), renewal: None }
    }

    /// Makes a client, and a new one whenever it is refused.
    pub(in crate::source) fn try_new(options: &BTreeMap<String, String>, make: Make) -> Result<Self> {
        let current = Current { client: make()?, generation: 0, environment: environment() };
        let is_given = options.keys().any(|name| is_lasting(name));
        let renewal = Renewal { make, turn: Mutex::default(), is_given, is_of_variables: true };
        Ok(Self { current: RwLock::new(current), renewal: Some(renewal) })
    }

    /// Returns a client that `make` remakes each time it is refused, if possible.
    pub(in crate::source) fn renewed(client: Arc<dyn ObjectStore>, make: Make) -> Self {
        let renewal = Renewal { make, turn: Mutex::default(), is_given: false, is_of_variables: false };
        Self { renewal: Some(renewal), ..Self::fixed(client) }
    }

    /// Returns the client, and its number.
    pub(super) fn get(&self) -> (Arc<dyn ObjectStore>, u64) {
        let Current { client, generation, .. } = self.current();
        (client, generation)
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether there is another client than number `refused`, made now if that may help. Meanwhile, others use
    /// the current one.
    pub(super) async fn renew(&self, refused: u64) -> bool {
        let Some(renewal) = &self.renewal else { return false };
        let _turn = renewal.turn.lock().await;
        let current = self.current();
        if current.generation != refused {
            return true;
        }
        let environment = environment();
        let is_lasting = || std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(is_lasting_variable));
        let is_same = renewal.is_of_variables && environment == current.environment;
        if renewal.is_given || is_same && is_lasting() {
            return false;
        }
        // What now makes no client has made one before: the refusal says more.
        let make = Arc::clone(&renewal.make);
        let Ok(Ok(client)) = spawn_blocking(move || make()).await else { return false };
        let renewed = Current { client, generation: refused + 1, environment };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        true
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("generation", &self.get().1).finish_non_exhaustive()
    }
}

fn is_lasting(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    LASTING.iter().any(|lasting| name.ends_with(lasting))
}

fn is_lasting_variable(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && is_lasting(name)
}

/// Returns a number that changes with the variables that clients are made from.
fn environment() -> u64 {
    let is_ours = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours)).collect();
    variables.sort_unstable();
    let mut hasher = DefaultHasher::new();
    variables.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use object_store::memory::InMemory;

    use super::*;
    use crate::io::Io;

    fn counting() -> (Arc<AtomicU32>, Make) {
        let count = Arc::new(AtomicU32::new(0));
        let made = Arc::clone(&count);
        let make = move || {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>)
        };
        (count, Arc::new(make))
    }

    #[test]
    fn all_that_were_refused_share_the_next_client() {
        let (count, make) = counting();
        let client = Client::try_new(&BTreeMap::new(), make).unwrap();
        let (_, first) = client.get();
        Io::current().unwrap().block_on(async {
            if client.renew(first).await {
                let again = futures::future::join(client.renew(first), client.renew(first)).await;
                assert_eq!((again, client.get().1, count.load(Ordering::Relaxed)), ((true, true), 1, 2));
            }
            assert!(!Client::fixed(Arc::new(InMemory::new())).renew(0).await);
        });
    }

    #[test]
    fn the_current_client_is_used_while_another_is_made() {
        const LONG: Duration = Duration::from_secs(60);
        let ((begun, has_begun), (end, is_ended)) = (sync_channel(1), sync_channel::<()>(1));
        let is_ended = std::sync::Mutex::new(is_ended);
        let make = move || {
            begun.send(()).unwrap();
            is_ended.lock().unwrap().recv_timeout(LONG).unwrap();
            Ok(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>)
        };
        let client = Arc::new(Client::renewed(Arc::new(InMemory::new()), Arc::new(make)));
        // It has one thread.
        let io = Io::for_scan().unwrap();
        let renewing = Arc::clone(&client);
        let renewing = io.spawn(async move { renewing.renew(0).await });
        has_begun.recv_timeout(LONG).unwrap();
        let (sender, receiver) = sync_channel(1);
        let current = Arc::clone(&client);
        let current = io.spawn(async move { sender.send(current.get().1).unwrap() });
        let number = receiver.recv_timeout(LONG);
        end.send(()).unwrap();
        assert!(io.block_on(renewing).unwrap());
        io.block_on(current).unwrap();
        assert_eq!((number.unwrap(), client.get().1), (0, 1));
    }

    #[test]
    fn credentials_that_were_passed_are_what_they_are() {
        for name in ["aws_access_key_id", "azure_storage_account_key", "skip_signature", "sas_token"] {
            let (count, make) = counting();
            let client = Client::try_new(&BTreeMap::from([(name.to_owned(), "x".to_owned())]), make).unwrap();
            assert!(!Io::current().unwrap().block_on(client.renew(0)), "{name}");
            assert_eq!(count.load(Ordering::Relaxed), 1);
        }
    }
}
