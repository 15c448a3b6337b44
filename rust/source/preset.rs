//! How requests are made to one kind of store, until it has been measured.

use std::ops::RangeInclusive;

use super::StoreKey;
use crate::config;

/// Related numbers about requests, one set for each kind of store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preset {
    /// Ranges with gaps up to this are read together before anything is measured, which is also the maximum afterwards:
    /// reads are planned and charged by this number.
    pub(crate) gap_bytes: u64,
    /// Ranges with gaps up to this are read together, whatever was measured: a request costs more.
    pub(crate) least_gap_bytes: u64,
    /// Maximum that one more dependent round trip must save: less for a store that was measured to send less in that
    /// time.
    pub(crate) round_trip_bytes: u64,
    /// Larger ranges are split, because one connection does not saturate a network.
    pub(crate) max_request_bytes: u64,
    /// Initial number of concurrent requests.
    pub(crate) first_concurrency: usize,
    /// Whether bytes come through user-supplied code, which is slower.
    pub(crate) is_file_system: bool,
    /// Minimum and maximum of concurrent requests; equal if there is nothing to adapt.
    pub(crate) concurrency: RangeInclusive<usize>,
}

impl Preset {
    /// Returns the preset for the store of `key`.
    pub(crate) fn of(key: &StoreKey) -> Self {
        match key {
            StoreKey::Local => Self::local(),
            StoreKey::Http(_) => Self::http(),
            StoreKey::FileSystem(_) => Self::file_system(),
            StoreKey::S3(_) | StoreKey::Gcs(_) | StoreKey::Azure(_) | StoreKey::Hub(_) => Self::object_storage(),
        }
    }

    /// Returns the preset for stores that spread over many machines and answer in tens of milliseconds.
    pub(crate) fn object_storage() -> Self {
        Self {
            is_file_system: false,
            gap_bytes: config::REMOTE_GAP_BYTES,
            least_gap_bytes: config::LEAST_REMOTE_GAP_BYTES,
            round_trip_bytes: config::REMOTE_ROUND_TRIP_BYTES,
            max_request_bytes: config::MAX_REQUEST_BYTES,
            first_concurrency: config::OBJECT_STORE_REQUESTS_IN_FLIGHT,
            concurrency: config::LEAST_REQUESTS_IN_FLIGHT..=config::MAX_REQUESTS_IN_FLIGHT,
        }
    }

    /// Returns the preset for a web server, which may be one machine that others use, too.
    pub(crate) fn http() -> Self {
        Self {
            first_concurrency: config::REQUESTS_IN_FLIGHT,
            concurrency: config::LEAST_REQUESTS_IN_FLIGHT..=config::MAX_HTTP_REQUESTS_IN_FLIGHT,
            ..Self::object_storage()
        }
    }

    /// Returns the preset for user-supplied file systems, whose calls each take a thread.
    pub(crate) fn file_system() -> Self {
        let first_concurrency = config::FILE_SYSTEM_CALLS_IN_FLIGHT;
        let of_calls = Self { first_concurrency, is_file_system: true, ..Self::object_storage() };
        of_calls.unmeasured()
    }

    /// Returns the preset for files.
    pub(crate) fn local() -> Self {
        let of_files = Self {
            gap_bytes: config::LOCAL_GAP_BYTES,
            least_gap_bytes: config::LOCAL_GAP_BYTES,
            round_trip_bytes: config::LOCAL_ROUND_TRIP_BYTES,
            max_request_bytes: u64::MAX,
            first_concurrency: config::REQUESTS_IN_FLIGHT,
            ..Self::object_storage()
        };
        of_files.unmeasured()
    }

    /// Returns the preset with measurement disabled.
    pub(crate) fn unmeasured(self) -> Self {
        Self { concurrency: self.first_concurrency..=self.first_concurrency, ..self }
    }

    /// Returns whether measurement may change anything.
    pub(crate) fn is_measured(&self) -> bool {
        self.concurrency.start() < self.concurrency.end()
    }
}
