//! Takes pages out of their compression, into memory that is used again from page to page and column to column.

use std::fmt;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::Compression;
use zstd::bulk::Decompressor;

use super::{Fit, Misfit};

/// What snappy makes of a byte at most: a copy of 64 bytes takes three.
const MOST_BY_SNAPPY: usize = 32;

/// What LZ4 makes of a byte at most.
const MOST_BY_LZ4: usize = 256;

/// Bytes that brotli takes in at once.
const BUFFER_BYTES: usize = 1 << 16;

/// What gzip makes of a byte at most.
const MOST_BY_GZIP: u64 = 1032;

/// Returns whether `stored` unpacks to `num_bytes` at most, or fails.
///
/// Counts only where the `parquet` crate would not stop, and it may be more than `memory_bytes`: that costs as much as
/// unpacking it does. Of brotli a few bytes may be any number, of the old LZ4 frames may follow each other.
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

/// The compressions that are known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Uncompressed,
    Snappy,
    Gzip,
    Brotli,
    Zstd,
    Lz4Raw,
    /// What was called LZ4 before, whichever it is.
    OldLz4,
}

impl Codec {
    /// Returns the codec of a column; `None` where it is left to the `parquet` crate.
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

/// What decoding a column needs beside its arrays: one page, and the state of the codec.
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
    /// Returns the page that was unpacked last.
    pub(super) fn page(&self) -> &[u8] {
        &self.page
    }

    /// Unpacks `stored`, which should be of `num_bytes`; `None` where it cannot be.
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

    /// Unpacks at least the first `num_bytes` of `stored`, which should be of `all_bytes`; `None` where it cannot be.
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
        // A few blocks of it, by a decoder that takes its memory each time.
        match compression {
            Compression::GZIP(_) => self.read(num_bytes, MultiGzDecoder::new(stored)),
            Compression::BROTLI(_) => self.read(num_bytes, brotli::Decompressor::new(stored, BUFFER_BYTES)),
            Compression::ZSTD(_) => self.read(num_bytes, zstd::stream::read::Decoder::with_buffer(stored).ok()?),
            _ => return self.unpack_any(compression, stored, all_bytes),
        }
        .ok()?;
        Some(&self.page)
    }

    /// Unpacks `stored`, which must be of exactly `num_bytes`.
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

    /// Unpacks the member of gzip that `stored` is, at once and faster than by parts; `None` where it is anything else.
    fn unpack_member(&mut self, stored: &[u8], num_bytes: usize) -> Fit<Option<usize>> {
        // What it comes to is at the end of it.
        let told = stored.last_chunk().map(|told| u32::from_le_bytes(*told) as usize);
        if told != Some(num_bytes) {
            return Ok(None);
        }
        self.resize(num_bytes)?;
        let gzip = self.gzip.get_or_insert_with(libdeflater::Decompressor::new);
        let unpacked = gzip.gzip_decompress(stored, &mut self.page);
        Ok(unpacked.ok().filter(|unpacked| *unpacked == num_bytes))
    }

    /// Reads `num_bytes` at most; returns how many.
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

/// Unpacks what the old `LZ4` stands for: blocks with their lengths before them, as Hadoop writes them, frames of LZ4 or one
/// block, whichever it is, in the order in which the `parquet` crate tries them.
fn old_lz4(stored: &[u8], num_bytes: usize) -> Option<Vec<u8>> {
    let of_frames = || {
        let mut page = Vec::new();
        FrameDecoder::new(stored).take(num_bytes as u64 + 1).read_to_end(&mut page).ok()?;
        Some(page)
    };
    of_hadoop(stored, num_bytes).or_else(of_frames).or_else(|| of_block(stored, num_bytes))
}

/// Unpacks blocks of LZ4, each behind the bytes that it comes to and those that it takes.
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
