//! How requests are made of one kind of store, until measurement knows better.

use std::ops::RangeInclusive;

use super::StoreKey;
use crate::config;

/// Related numbers about requests, one set for each kind of store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preset {
    /// Ranges that lie this close are read together before anything is measured, and at most afterwards: reads are planned
    /// and paid for by this number.
    pub(crate) gap_bytes: u64,
    /// Ranges that lie this close are read together, whatever was measured: asking costs more than reading.
    pub(crate) least_gap_bytes: u64,
    /// What one more dependent round trip must save at most: less of a store that was measured to send less in that time.
    pub(crate) round_trip_bytes: u64,
    /// A larger range is split, because one connection does not fill a network.
    pub(crate) max_request_bytes: u64,
    /// Requests under way at first.
    pub(crate) first_concurrency: usize,
    /// Whether bytes come by the code of others, which is slower.
    pub(crate) is_file_system: bool,
    /// Requests under way at least and at most; one number where nothing is to be found out.
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

    /// Returns the preset for somebody else's file systems, whose calls each take a thread.
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

    /// Returns the preset with nothing left to measurement.
    pub(crate) fn unmeasured(self) -> Self {
        Self { concurrency: self.first_concurrency..=self.first_concurrency, ..self }
    }

    /// Returns whether measurement may change anything.
    pub(crate) fn is_measured(&self) -> bool {
        self.concurrency.start() < self.concurrency.end()
    }
}
