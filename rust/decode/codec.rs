//! Decompresses pages, into memory that is reused from page to page and column to column.

use std::fmt;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::Compression;
use zstd::bulk::Decompressor;

use super::{Fit, Misfit};

/// Maximum compression ratio of snappy: a copy of 64 bytes takes three.
const MOST_BY_SNAPPY: usize = 32;

/// Maximum compression ratio of LZ4.
const MOST_BY_LZ4: usize = 256;

/// Bytes that brotli reads at once.
const BUFFER_BYTES: usize = 1 << 16;

/// Maximum compression ratio of gzip.
const MOST_BY_GZIP: u64 = 1032;

/// Returns whether `stored` decompresses to at most `num_bytes`, or fails.
///
/// Counts only if the `parquet` crate would not stop, and it may be more than `memory_bytes`: that costs as much as
/// decompressing. With brotli, a few bytes may become any number; with the old LZ4, frames may follow one another.
pub(super) fn is_at_most(compression: Compression, stored: &[u8], num_bytes: usize, memory_bytes: u64) -> bool {
    let count = |reader: &mut dyn Read| io::copy(&mut reader.take(num_bytes as u64 + 1), &mut io::sink());
    let unpacked = match compression {
        Compression::GZIP(_) if stored.len() as u64 * MOST_BY_GZIP > memory_bytes => {
            count(&mut MultiGzDecoder::new(stored))
        }
        Compression::BROTLI(_) => count(&mut brotli::Decompressor::new(stored, BUFFER_BYTES)),
        Compression::LZ4 => count(&mut FrameDecoder::new(stored)),
        _ => return true,
    };
    unpacked.map_or(true, |unpacked| unpacked <= num_bytes as u64)
}

/// The supported compressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Uncompressed,
    Snappy,
    Gzip,
    Brotli,
    Zstd,
    Lz4Raw,
    /// What used to be called LZ4, in any variant.
    OldLz4,
}

impl Codec {
    /// Returns the codec of a column; `None` if it is left to the `parquet` crate.
    pub(super) fn of(compression: Compression) -> Option<Self> {
        match compression {
            Compression::UNCOMPRESSED => Some(Self::Uncompressed),
            Compression::SNAPPY => Some(Self::Snappy),
            Compression::GZIP(_) => Some(Self::Gzip),
            Compression::BROTLI(_) => Some(Self::Brotli),
            Compression::ZSTD(_) => Some(Self::Zstd),
            Compression::LZ4_RAW => Some(Self::Lz4Raw),
            Compression::LZ4 => Some(Self::OldLz4),
            Compression::LZO => None,
        }
    }
}

/// What decoding a column needs in addition to its arrays: one page, and the state of the codec.
#[derive(Default)]
pub(crate) struct Scratch {
    /// A page as it was read from a file.
    pub(super) stored: Vec<u8>,
    page: Vec<u8>,
    /// The values of a page that were not plain.
    pub(super) plain: Vec<u8>,
    gzip: Option<libdeflater::Decompressor>,
    zstd: Option<Decompressor<'static>>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scratch").field("page_bytes", &self.page.len()).finish_non_exhaustive()
    }
}

impl Scratch {
    /// Returns the last decompressed page.
    pub(super) fn page(&self) -> &[u8] {
        &self.page
    }

    /// Decompresses `stored`, which should become `num_bytes`; `None` if that fails.
    pub(super) fn unpack_any<'s>(
        &'s mut self,
        compression: Compression,
        stored: &'s [u8],
        num_bytes: usize,
    ) -> Option<&'s [u8]> {
        if compression == Compression::UNCOMPRESSED {
            return Some(stored);
        }
        self.unpack(Codec::of(compression)?, stored, num_bytes).ok()?;
        Some(&self.page)
    }

    /// Decompresses at least the first `num_bytes` of `stored`, which should become `all_bytes`; `None` if that fails.
    pub(super) fn unpack_first<'s>(
        &'s mut self,
        compression: Compression,
        stored: &'s [u8],
        all_bytes: usize,
        num_bytes: usize,
    ) -> Option<&'s [u8]> {
        if num_bytes >= all_bytes / 2 {
            return self.unpack_any(compression, stored, all_bytes);
        }
        // A few blocks of it, with a decoder that allocates each time.
        match compression {
            Compression::GZIP(_) => self.read(num_bytes, MultiGzDecoder::new(stored)),
            Compression::BROTLI(_) => self.read(num_bytes, brotli::Decompressor::new(stored, BUFFER_BYTES)),
            Compression::ZSTD(_) => self.read(num_bytes, zstd::stream::read::Decoder::with_buffer(stored).ok()?),
            _ => return self.unpack_any(compression, stored, all_bytes),
        }
        .ok()?;
        Some(&self.page)
    }

    /// Decompresses `stored`, which must become exactly `num_bytes`.
    pub(super) fn unpack(&mut self, codec: Codec, stored: &[u8], num_bytes: usize) -> Fit<()> {
        const CORRUPT: Misfit = Misfit("a page cannot be taken out of its compression");
        let unpacked = match codec {
            Codec::Uncompressed => {
                self.page.clear();
                self.page.extend_from_slice(stored);
                stored.len()
            }
            Codec::Snappy => {
                let told = snap::raw::decompress_len(stored).map_err(|_| CORRUPT)?;
                if told != num_bytes || num_bytes / MOST_BY_SNAPPY > stored.len() {
                    return Err(CORRUPT);
                }
                self.resize(num_bytes)?;
                snap::raw::Decoder::new().decompress(stored, &mut self.page).map_err(|_| CORRUPT)?
            }
            Codec::Gzip => {
                if num_bytes as u64 / MOST_BY_GZIP > stored.len() as u64 {
                    return Err(CORRUPT);
                }
                match self.unpack_member(stored, num_bytes)? {
                    Some(unpacked) => unpacked,
                    // Several members, or none.
                    None => self.read(num_bytes + 1, MultiGzDecoder::new(stored)).map_err(|_| CORRUPT)?,
                }
            }
            Codec::Brotli => {
                self.read(num_bytes + 1, brotli::Decompressor::new(stored, BUFFER_BYTES)).map_err(|_| CORRUPT)?
            }
            Codec::Zstd => {
                self.page.clear();
                self.page.try_reserve(num_bytes).map_err(|_| Misfit::MEMORY)?;
                if self.zstd.is_none() {
                    self.zstd = Decompressor::new().ok();
                }
                let zstd = self.zstd.as_mut().ok_or(Misfit::MEMORY)?;
                zstd.decompress_to_buffer(stored, &mut self.page).map_err(|_| CORRUPT)?
            }
            Codec::Lz4Raw => {
                if num_bytes / MOST_BY_LZ4 > stored.len() {
                    return Err(CORRUPT);
                }
                self.resize(num_bytes)?;
                lz4_flex::block::decompress_into(stored, &mut self.page).map_err(|_| CORRUPT)?
            }
            Codec::OldLz4 => {
                self.page = old_lz4(stored, num_bytes).ok_or(CORRUPT)?;
                self.page.len()
            }
        };
        if unpacked == num_bytes { Ok(()) } else { Err(CORRUPT) }
    }

    /// Decompresses `stored` as a single gzip member, at once and faster than in parts; `None` if it is anything else.
    fn unpack_member(&mut self, stored: &[u8], num_bytes: usize) -> Fit<Option<usize>> {
        // Its decompressed size is at the end.
        let told = stored.last_chunk().map(|told| u32::from_le_bytes(*told) as usize);
        if told != Some(num_bytes) {
            return Ok(None);
        }
        self.resize(num_bytes)?;
        let gzip = self.gzip.get_or_insert_with(libdeflater::Decompressor::new);
        let unpacked = gzip.gzip_decompress(stored, &mut self.page);
        Ok(unpacked.ok().filter(|unpacked| *unpacked == num_bytes))
    }

    /// Reads at most `num_bytes`; returns how many.
    fn read(&mut self, num_bytes: usize, reader: impl Read) -> io::Result<usize> {
        self.page.clear();
        reader.take(num_bytes as u64).read_to_end(&mut self.page)
    }

    fn resize(&mut self, num_bytes: usize) -> Fit<()> {
        self.page.try_reserve(num_bytes.saturating_sub(self.page.len())).map_err(|_| Misfit::MEMORY)?;
        self.page.resize(num_bytes, 0);
        Ok(())
    }
}

/// Decompresses the variants of the old `LZ4`: Hadoop's length-prefixed blocks, LZ4 frames, or a single block, tried in
/// the same order as the `parquet` crate does.
fn old_lz4(stored: &[u8], num_bytes: usize) -> Option<Vec<u8>> {
    let of_frames = || {
        let mut page = Vec::new();
        FrameDecoder::new(stored).take(num_bytes as u64 + 1).read_to_end(&mut page).ok()?;
        Some(page)
    };
    of_hadoop(stored, num_bytes).or_else(of_frames).or_else(|| of_block(stored, num_bytes))
}

/// Decompresses LZ4 blocks, each prefixed by its decompressed and its stored size.
fn of_hadoop(stored: &[u8], num_bytes: usize) -> Option<Vec<u8>> {
    let (mut page, mut rest) = (Vec::new(), stored);
    let length = |rest: &mut &[u8]| {
        let (len, after) = rest.split_first_chunk()?;
        *rest = after;
        Some(u32::from_be_bytes(*len) as usize)
    };
    while !rest.is_empty() {
        let (unpacked_bytes, stored_bytes) = (length(&mut rest)?, length(&mut rest)?);
        let (block, after) = rest.split_at_checked(stored_bytes)?;
        if unpacked_bytes > num_bytes - page.len() {
            return None;
        }
        page.extend(of_block(block, unpacked_bytes)?);
        rest = after;
    }
    (page.len() == num_bytes).then_some(page)
}

fn of_block(stored: &[u8], num_bytes: usize) -> Option<Vec<u8>> {
    let is_possible = num_bytes / MOST_BY_LZ4 <= stored.len();
    is_possible.then(|| lz4_flex::block::decompress(stored, num_bytes).ok()).flatten()
}
