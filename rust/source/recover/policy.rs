//! What happens between a failed request and the next one, for reads and everything else.

use std::sync::Arc;
use std::time::Duration;

use object_store::Error;

use super::notes::Notes;
use super::pace::{Pass, Stalled};
use super::patience::{Limit, Patience};
use super::trouble::{Kind, Sorted, causes, is_out_of_descriptors, sort};
use crate::notices::{self, Notice};
use crate::source::traffic::Traffic;

/// How requests to one store are retried.
#[derive(Debug, Clone)]
pub(in crate::source) struct Policy {
    pub(in crate::source) traffic: Arc<Traffic>,
    pub(in crate::source) limit: Limit,
    /// Whether a late request may be hedged by a second one.
    pub(in crate::source) is_hedging: bool,
    /// The store's name for warnings.
    pub(in crate::source) root: String,
}

impl Policy {
    /// Returns the initial patience of a read, which restarts with each byte.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.limit)
    }

    /// Repeats a request that is not a read until it is answered.
    pub(in crate::source) async fn persist<T, F: Future<Output = Result<T, Error>> + Send>(
        &self,
        ask: impl Fn() -> F + Send + Sync,
    ) -> Result<T, Error> {
        let (notes, mut patience) = (Notes::default(), self.patience());
        loop {
            let pass = self.traffic.pace().enter(&mut patience).await?;
            match patience.watch.run(ask()).await {
                Ok(answer) => {
                    pass.answered();
                    self.traffic.answered();
                    return Ok(answer);
                }
                Err(error) => self.recover(error, pass, &notes, &mut patience).await?,
            }
        }
    }

    /// Waits after `error` until the request may be repeated; returns the error if retrying is useless.
    pub(super) async fn recover(
        &self,
        error: Error,
        pass: Pass<'_>,
        notes: &Notes,
        patience: &mut Patience,
    ) -> Result<(), Error> {
        let Sorted::Again(kind, retry_after) = sort(&error) else {
            pass.answered();
            return Err(error);
        };
        let said = said(&error);
        let error = patience.note(kind, self.traffic.has_answered(), error)?;
        notes.again(kind);
        patience.failure = Some(said.clone());
        self.tell_within(kind, &said, patience.longest());
        match kind {
            // All wait together, unless others are answered.
            Kind::Throttled => {
                // A single probe says nothing about how many requests are too many.
                if !pass.is_probe() {
                    self.traffic.throttled();
                }
                let Some(_alone) = pass.refused(retry_after, said) else { return Ok(()) };
                return patience.rest(retry_after, error).await;
            }
            // These may also be too many, for a store that serves requests one after another.
            Kind::Stalled => match pass.stalled(self.traffic.num_under_way(), said) {
                Stalled::Ordinary => {}
                Stalled::Held => return Ok(()),
                Stalled::TooMany => {
                    self.traffic.throttled();
                    return Ok(());
                }
            },
            Kind::Failed | Kind::Wrong => pass.answered(),
            Kind::Broken => drop(pass),
        }
        patience.pause(error).await
    }

    /// Waits like [`recover`](Self::recover), after a request that does not keep to the pace of the store.
    pub(super) async fn recover_alone(&self, error: Error, patience: &mut Patience) -> Result<(), Error> {
        let Sorted::Again(kind, retry_after) = sort(&error) else { return Err(error) };
        let said = said(&error);
        let error = patience.note(kind, self.traffic.has_answered(), error)?;
        self.tell_within(kind, &said, patience.longest());
        match retry_after {
            Some(_) => patience.rest(retry_after, error).await,
            None => patience.pause(error).await,
        }
    }

    /// Warns of the first trouble of its kind.
    pub(in crate::source) fn tell(&self, kind: Kind, said: &str) {
        self.tell_within(kind, said, self.limit.time);
    }

    /// Warns of the first trouble of its kind, given that requests are retried for `longest`.
    fn tell_within(&self, kind: Kind, said: &str, longest: Duration) {
        if self.traffic.is_first_of(kind) {
            let seconds = longest.as_secs_f64();
            notices::push(Notice::Store(format!(
                "`{}` {} ({said}); requests are retried, each for up to {seconds} seconds (`{}`); `stats()` counts \
                 them",
                self.root,
                kind.verb(),
                self.limit.option,
            )));
        }
    }
}

/// Returns the message of the deepest causes, without the client's wrapping, which includes URLs.
fn said(error: &Error) -> String {
    let mut said = String::new();
    let inner = causes(error).filter(|cause| {
        let is_around = cause.is::<Error>() || cause.is::<object_store::client::HttpError>();
        !is_around && !cause.to_string().contains("Error performing")
    });
    for text in inner.map(ToString::to_string) {
        let text = text.trim_start_matches("HTTP error: ");
        if !said.contains(text) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(text);
        }
    }
    if is_out_of_descriptors(error) {
        said.push_str("; `ulimit -n` raises how many there may be");
    }
    said
}

#[cfg(test)]
mod tests {
    use object_store::client::{HttpError, HttpErrorKind};

    use super::*;
    use crate::source::recover::Trouble;

    #[test]
    fn what_is_said_is_said_once_and_without_the_client() {
        let cause = Trouble::new(Kind::Failed, "the store answered 500");
        let source = Box::new(HttpError::new(HttpErrorKind::Unknown, cause));
        assert_eq!(said(&Error::Generic { store: "S3", source }), "the store answered 500");
    }
}
