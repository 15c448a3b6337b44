//! A store's client, remade when its credentials are refused: tokens expire, and the environment changes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use object_store::ObjectStore;

use crate::error::Result;

/// Prefixes of the variables that clients are made from.
const PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Suffixes of options and variables with credentials that never expire, or that disable credentials.
const LASTING: [&str; 6] =
    ["access_key_id", "account_key", "storage_access_key", "sas_token", "sas_key", "skip_signature"];

type Make = Box<dyn Fn() -> Result<Arc<dyn ObjectStore>> + Send + Sync>;

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
    make: Make,
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
        let renewal = Renewal { make, is_given, is_of_variables: true };
        Ok(Self { current: RwLock::new(current), renewal: Some(renewal) })
    }

    /// Returns a client that `make` remakes each time it is refused, if possible.
    pub(in crate::source) fn renewed(client: Arc<dyn ObjectStore>, make: Make) -> Self {
        let renewal = Renewal { make, is_given: false, is_of_variables: false };
        Self { renewal: Some(renewal), ..Self::fixed(client) }
    }

    /// Returns the client, and its number.
    pub(super) fn get(&self) -> (Arc<dyn ObjectStore>, u64) {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&current.client), current.generation)
    }

    /// Returns whether there is another client than number `refused`, made now if that may help.
    pub(super) fn renew(&self, refused: u64) -> bool {
        let Some(renewal) = &self.renewal else { return false };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
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
        let Ok(client) = (renewal.make)() else { return false };
        *current = Current { client, generation: refused + 1, environment };
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

    use object_store::memory::InMemory;

    use super::*;

    fn counting() -> (Arc<AtomicU32>, Make) {
        let count = Arc::new(AtomicU32::new(0));
        let made = Arc::clone(&count);
        let make = move || {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>)
        };
        (count, Box::new(make))
    }

    #[test]
    fn all_that_were_refused_share_the_next_client() {
        let (count, make) = counting();
        let client = Client::try_new(&BTreeMap::new(), make).unwrap();
        let (_, first) = client.get();
        if client.renew(first) {
            assert!(client.renew(first) && client.renew(first));
            assert_eq!((client.get().1, count.load(Ordering::Relaxed)), (1, 2));
        }
        assert!(!Client::fixed(Arc::new(InMemory::new())).renew(0));
    }

    #[test]
    fn credentials_that_were_passed_are_what_they_are() {
        for name in ["aws_access_key_id", "azure_storage_account_key", "skip_signature", "sas_token"] {
            let (count, make) = counting();
            let client = Client::try_new(&BTreeMap::from([(name.to_owned(), "x".to_owned())]), make).unwrap();
            assert!(!client.renew(0), "{name}");
            assert_eq!(count.load(Ordering::Relaxed), 1);
        }
    }
}
