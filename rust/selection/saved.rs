//! The format of a saved selection; `docs/reference/selections.md` describes it.
//!
//! It is data, never code: a magic number and the version, a header in JSON, the rows of each row group, and a checksum
//! of everything before it. Reading checks everything, so the result is valid whatever the bytes were.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Selection;
use super::codec::{put_number, put_sets, take_number, take_sets};
use super::subset::{Shard, Subset};

pub(super) const MAGIC: &[u8; 8] = b"fbselect";

/// The version of the format that this release writes and reads.
pub(super) const VERSION: u32 = 1;

const DIGEST_BYTES: usize = 32;

/// Maximum number of row groups of a selection: a few bytes may claim any number of them.
const MAX_ROW_GROUPS: u64 = 1 << 24;

/// Describes a selection.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// The snapshot's.
    fingerprint: String,
    /// The filters, if nothing else made it.
    query: Option<Vec<String>>,
    /// The shard's number, and the number of shards, if it is a shard.
    part: Option<(u32, u32)>,
    /// Number of the snapshot's row groups that have rows.
    num_row_groups: u64,
    /// Number of kept rows.
    num_rows: u64,
    made_by: String,
}

/// Returns the selection as bytes.
pub(super) fn to_bytes(subset: &Subset) -> Vec<u8> {
    let header = Header {
        fingerprint: subset.fingerprint().to_owned(),
        query: subset.query().map(<[String]>::to_vec),
        part: subset.shard().map(|shard| (shard.index, shard.num_shards)),
        num_row_groups: subset.sizes().len() as u64,
        num_rows: subset.num_rows(),
        made_by: concat!("forebay ", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    #[expect(clippy::expect_used, reason = "strings, integers and lists of them always serialise")]
    let header = serde_json::to_vec(&header).expect("a header is plain data");
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for sizes in subset.sizes().chunk_by(|a, b| a == b) {
        put_number(sizes.len() as u64, &mut bytes);
        put_number(u64::from(sizes[0]), &mut bytes);
    }
    put_sets(subset.selection().sets(), subset.sizes(), &mut bytes);
    bytes.extend(Sha256::digest(&bytes));
    bytes
}

/// Restores the selection that [`to_bytes`] wrote.
///
/// # Errors
///
/// What is wrong with other bytes.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<Subset, String> {
    let not_ours = || format!("expected a file that begins with `{}`", MAGIC.escape_ascii());
    let mut rest = bytes.strip_prefix(MAGIC).ok_or_else(not_ours)?;
    let version = u32::from_le_bytes(*take(&mut rest).ok_or_else(cut_off)?);
    if version != VERSION {
        return Err(format!("expected version `{VERSION}` of the format, got `{version}`"));
    }
    let (hashed, sum) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or_else(cut_off)?;
    if Sha256::digest(hashed)[..] != sum[..] {
        return Err("its checksum is wrong: it is cut off or damaged; make it again".into());
    }
    rest = &hashed[MAGIC.len() + size_of::<u32>()..];
    let header_len = u64::from_le_bytes(*take(&mut rest).ok_or_else(cut_off)?);
    let header_len = usize::try_from(header_len).map_err(|_| cut_off())?;
    let (header, mut rest) = rest.split_at_checked(header_len).ok_or_else(cut_off)?;
    let header: Header = serde_json::from_slice(header).map_err(|error| format!("its header is not valid: {error}"))?;
    let sizes = take_sizes(&mut rest, header.num_row_groups).ok_or("its row groups contradict its header")?;
    let sets = take_sets(&mut rest, &sizes).ok_or("its rows contradict its row groups")?;
    let selection = Selection::of_sizes(sets, &sizes);
    if !rest.is_empty() || selection.num_rows() != header.num_rows {
        return Err("its rows contradict its header".into());
    }
    let shard = header.part.map(|(index, num_shards)| Shard::try_new(index, num_shards)).transpose();
    let shard = shard.map_err(|error| error.to_string())?;
    Subset::try_new(header.fingerprint, sizes.into(), header.query, shard, selection)
}

fn cut_off() -> String {
    "it is cut off".into()
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(taken)
}

/// Takes the row counts of `num_row_groups` non-empty row groups.
fn take_sizes(bytes: &mut &[u8], num_row_groups: u64) -> Option<Vec<u32>> {
    let num_row_groups = usize::try_from(num_row_groups).ok().filter(|_| num_row_groups <= MAX_ROW_GROUPS)?;
    let mut sizes = Vec::new();
    while sizes.len() < num_row_groups {
        let len = usize::try_from(take_number(bytes)?).ok()?;
        let num_rows = u32::try_from(take_number(bytes)?).ok()?;
        let is_sound = num_rows > 0 && len > 0 && len <= num_row_groups - sizes.len();
        sizes.extend(is_sound.then(|| std::iter::repeat_n(num_rows, len))?);
    }
    Some(sizes)
}
