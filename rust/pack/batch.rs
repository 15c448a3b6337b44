//! Copies the pieces of sequences together.

use std::collections::VecDeque;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::{DataType, SchemaRef};

use super::{PackSettings, Piece, Sequence, Source};
use crate::finish::{Labels, Pads};
use crate::forms::{Element, Tensor};

/// The target column of losses.
const LABELS: &str = "labels";

/// Sequences of one length, with what separates their documents.
#[derive(Debug)]
pub struct PackedBatch {
    /// Tensors of the columns, `(sequences, length)` or flat `(1, sequences * length)`, then `labels` if requested.
    pub columns: Vec<(String, Tensor)>,
    /// Each token's position within its piece, from 0, in the same shape.
    pub position_ids: Tensor,
    /// The start of each piece in the flat batch, and the end of the last: int32. Padding is a piece of its own.
    pub cu_seqlens: Tensor,
    /// Number of tokens in the longest piece.
    pub max_seqlen: usize,
    /// Number of sequences.
    pub num_sequences: usize,
    /// Number of tokens in them.
    pub num_tokens: u64,
    /// Number of positions without a token.
    pub num_padding: u64,
}

/// Packs sequences whose documents are all in `sources`.
pub(super) fn pack(
    settings: &PackSettings,
    schema: &SchemaRef,
    sources: &VecDeque<Source>,
    sequences: &[Sequence],
    pads: &Pads,
) -> PackedBatch {
    let shape = match settings.is_flat {
        true => vec![1, signed(sequences.len() * settings.length)],
        false => vec![signed(sequences.len()), signed(settings.length)],
    };
    let lengths = lengths(sequences, settings.length);
    let mut columns = Vec::with_capacity(schema.fields().len() + 1);
    for (column, (field, pad)) in schema.fields().iter().zip(&pads.columns).enumerate() {
        let DataType::LargeList(item) = field.data_type() else { continue };
        let Some(element) = Element::of(item) else { continue };
        let values = tokens(sources, sequences, settings.length, column, element.size_bytes(), pad);
        columns.push((field.name().clone(), Tensor::row_major(element, shape.clone(), values)));
    }
    if let Some(labels) = &pads.labels {
        add_labels(&mut columns, &lengths, labels);
    }
    let num_tokens = sequences.iter().flatten().map(|piece| piece.len as u64).sum();
    let num_places = (sequences.len() * settings.length) as u64;
    let starts = lengths.iter().map(|(len, _)| *len).scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    let starts = [0].into_iter().chain(starts).map(|start| i32::try_from(start).unwrap_or(i32::MAX));
    let starts: Vec<i32> = starts.collect();
    PackedBatch {
        columns,
        position_ids: Tensor::row_major(Element::Int(64), shape, positions(&lengths)),
        cu_seqlens: Tensor::row_major(
            Element::Int(32),
            vec![signed(starts.len())],
            starts.into_iter().collect::<MutableBuffer>().into(),
        ),
        max_seqlen: lengths.iter().map(|(len, _)| *len).max().unwrap_or(0),
        num_sequences: sequences.len(),
        num_tokens,
        num_padding: num_places - num_tokens,
    }
}

/// Returns the lengths of all pieces in order, including padding, and whether each consists of tokens.
fn lengths(sequences: &[Sequence], length: usize) -> Vec<(usize, bool)> {
    let mut lengths = Vec::new();
    for sequence in sequences {
        let filled: usize = sequence.iter().map(|piece| piece.len).sum();
        lengths.extend(sequence.iter().map(|piece| (piece.len, true)));
        lengths.extend((filled < length).then(|| (length - filled, false)));
    }
    lengths
}

fn positions(lengths: &[(usize, bool)]) -> Buffer {
    let positions = lengths.iter().flat_map(|&(len, _)| 0..signed(len));
    let mut out = MutableBuffer::with_capacity(lengths.iter().map(|(len, _)| len * size_of::<i64>()).sum());
    out.extend(positions);
    out.into()
}

/// Copies one column of all pieces, and pads what they do not fill.
fn tokens(
    sources: &VecDeque<Source>,
    sequences: &[Sequence],
    length: usize,
    column: usize,
    width: usize,
    pad: &[u8],
) -> Buffer {
    let mut out = MutableBuffer::with_capacity(sequences.len() * length * width);
    for (number, sequence) in sequences.iter().enumerate() {
        for piece in sequence {
            if let Some(source) = source_of(sources, piece) {
                copy(source, piece, column, width, &mut out);
            }
        }
        let end = (number + 1) * length * width;
        out.extend_from_slice(&pad.repeat((end - out.len()) / width.max(1)));
    }
    out.into()
}

fn source_of<'a>(sources: &'a VecDeque<Source>, piece: &Piece) -> Option<&'a Source> {
    sources.get(sources.partition_point(|source| source.end() <= piece.document))
}

fn copy(source: &Source, piece: &Piece, column: usize, width: usize, out: &mut MutableBuffer) {
    let row = usize::try_from(piece.document - source.first).unwrap_or(usize::MAX);
    let lists = source.batch.column(column).as_list::<i64>();
    let data = lists.values().to_data();
    let start = (data.offset() + source.offsets[row] + piece.start) * width;
    out.extend_from_slice(&data.buffers()[0].as_slice()[start..start + piece.len * width]);
}

/// Adds labels, or masks existing ones: all tokens but the first of each piece, which nothing predicts.
fn add_labels(columns: &mut Vec<(String, Tensor)>, lengths: &[(usize, bool)], labels: &Labels) {
    let Some((_, tensor)) = columns.get(labels.of) else { return };
    let width = labels.ignored.len();
    let mut values = MutableBuffer::with_capacity(tensor.values.len());
    values.extend_from_slice(&tensor.values);
    let mut start = 0;
    for &(len, is_tokens) in lengths {
        let ignored_len = if is_tokens { 1.min(len) } else { len };
        for label in values.as_slice_mut()[start * width..(start + ignored_len) * width].chunks_exact_mut(width) {
            label.copy_from_slice(&labels.ignored);
        }
        start += len;
    }
    let tensor = Tensor { values: values.into(), ..tensor.clone() };
    match columns.iter_mut().find(|(name, _)| name == LABELS) {
        Some((_, labels)) => *labels = tensor,
        None => columns.push((LABELS.to_owned(), tensor)),
    }
}

fn signed(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
