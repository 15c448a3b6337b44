use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, RecordBatch, types::Int64Type};
use proptest::prelude::*;

use super::*;

/// Settings for int64 columns that are padded with -1.
fn settings(mode: PackMode, length: usize, window: usize, batch_size: usize) -> PackSettings {
    PackSettings {
        length,
        mode,
        window,
        batch_size,
        drop_last: false,
        values: [("input_ids".to_owned(), (-1).into())].into(),
        labels: false,
        is_flat: false,
    }
}

/// A batch whose tokens identify their document and position: 1000 times the document, plus the position.
fn documents(first: usize, lengths: &[usize]) -> RecordBatch {
    let tokens = lengths.iter().enumerate().map(|(index, &len)| {
        let document = i64::try_from(first + index).unwrap();
        Some((0..i64::try_from(len).unwrap()).map(move |place| Some(document * 1000 + place)))
    });
    let lists = LargeListArray::from_iter_primitive::<Int64Type, _, _>(tokens);
    RecordBatch::try_from_iter([("input_ids", Arc::new(lists) as ArrayRef)]).unwrap()
}

/// All batches as rows of tokens, with the mark after each; documents come in reads of `read` rows.
fn packed(settings: &PackSettings, lengths: &[usize], from: Mark, read: usize) -> Vec<(Vec<Vec<i64>>, Mark)> {
    let mut packer = Packer::try_new(settings.clone(), from).unwrap();
    let mut first = usize::try_from(from.document).unwrap();
    let mut out = Vec::new();
    while !packer.is_done() {
        if let Some(batch) = packer.next_batch().unwrap() {
            let rows = batch.columns[0].1.values.typed_data::<i64>().chunks(settings.length);
            out.push((rows.map(<[i64]>::to_vec).collect(), packer.mark()));
            continue;
        }
        let len = read.min(lengths.len() - first);
        match len {
            0 => packer.end(),
            len => packer.push(documents(first, &lengths[first..first + len])),
        }
        .unwrap();
        first += len;
    }
    out
}

/// The sequences of all tokens end to end, in the obvious way.
fn concat_model(length: usize, lengths: &[usize]) -> Vec<Vec<i64>> {
    let tokens: Vec<i64> = lengths
        .iter()
        .enumerate()
        .flat_map(|(document, &len)| (0..len).map(move |place| i64::try_from(document * 1000 + place).unwrap()))
        .collect();
    let mut rows: Vec<Vec<i64>> = tokens.chunks(length).map(<[i64]>::to_vec).collect();
    rows.iter_mut().for_each(|row| row.resize(length, -1));
    rows
}

/// The sequences of best-fit decreasing, window by window, trying every sequence for every piece.
fn best_fit_model(length: usize, window: usize, lengths: &[usize]) -> Vec<Vec<i64>> {
    let mut out = Vec::new();
    for (number, lengths) in lengths.chunks(window).enumerate() {
        let mut pieces: Vec<Vec<i64>> = Vec::new();
        for (index, &len) in lengths.iter().enumerate() {
            let document = i64::try_from(number * window + index).unwrap();
            let tokens: Vec<i64> = (0..i64::try_from(len).unwrap()).map(|place| document * 1000 + place).collect();
            pieces.extend(tokens.chunks(length).map(<[i64]>::to_vec));
        }
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|&index| (std::cmp::Reverse(pieces[index].len()), index));
        let mut bins: Vec<Vec<usize>> = Vec::new();
        let room = |bin: &Vec<usize>| length - bin.iter().map(|&index| pieces[index].len()).sum::<usize>();
        for index in order {
            let fitting = (0..bins.len()).filter(|&bin| room(&bins[bin]) >= pieces[index].len());
            match fitting.min_by_key(|&bin| (room(&bins[bin]), bin)) {
                Some(bin) => bins[bin].push(index),
                None => bins.push(vec![index]),
            }
        }
        bins.iter_mut().for_each(|bin| bin.sort_unstable());
        bins.sort();
        for bin in bins {
            let mut row: Vec<i64> = bin.into_iter().flat_map(|index| pieces[index].clone()).collect();
            row.resize(length, -1);
            out.push(row);
        }
    }
    out
}

proptest! {
    #[test]
    fn sequences_are_those_of_the_model_and_go_on_from_every_batch(
        is_best_fit in any::<bool>(),
        length in 1_usize..40,
        window in 1_usize..12,
        batch_size in 1_usize..5,
        lengths in prop::collection::vec(0_usize..90, 0..40),
        read in 1_usize..9,
        other_batch_size in 1_usize..5,
    ) {
        let mode = if is_best_fit { PackMode::BestFit } else { PackMode::Concat };
        let settings = settings(mode, length, window, batch_size);
        let expected = match mode {
            PackMode::Concat => concat_model(length, &lengths),
            PackMode::BestFit => best_fit_model(length, window, &lengths),
        };
        let batches = packed(&settings, &lengths, Mark::default(), read);
        let rows: Vec<Vec<i64>> = batches.iter().flat_map(|(rows, _)| rows.clone()).collect();
        prop_assert_eq!(&rows, &expected);
        if let Some((_, mark)) = batches.last() {
            prop_assert_eq!(*mark, Mark { document: lengths.len() as u64, done: 0 }, "behind empty documents, too");
        }
        let mut num_delivered = 0;
        for (rows, mark) in &batches {
            num_delivered += rows.len();
            let resumed = PackSettings { batch_size: other_batch_size, ..settings.clone() };
            let rest = packed(&resumed, &lengths, *mark, read);
            let rest: Vec<Vec<i64>> = rest.into_iter().flat_map(|(rows, _)| rows).collect();
            prop_assert_eq!(&rest[..], &expected[num_delivered..]);
        }
    }

    #[test]
    fn what_is_not_full_is_left_out_on_request(
        is_best_fit in any::<bool>(),
        batch_size in 1_usize..5,
        lengths in prop::collection::vec(0_usize..30, 0..40),
    ) {
        let mode = if is_best_fit { PackMode::BestFit } else { PackMode::Concat };
        let all = settings(mode, 16, 8, batch_size);
        let rows = |settings: &PackSettings| -> Vec<Vec<i64>> {
            packed(settings, &lengths, Mark::default(), 7).into_iter().flat_map(|(rows, _)| rows).collect()
        };
        let (kept, all) = (rows(&PackSettings { drop_last: true, ..all.clone() }), rows(&all));
        let whole = match mode {
            PackMode::Concat => lengths.iter().sum::<usize>() / 16,
            PackMode::BestFit => all.len(),
        };
        prop_assert_eq!(&kept[..], &all[..whole / batch_size * batch_size]);
    }
}

#[test]
fn documents_of_a_batch_are_told_apart() {
    let mut packer =
        Packer::try_new(PackSettings { labels: true, ..settings(PackMode::BestFit, 6, 8, 2) }, Mark::default())
            .unwrap();
    packer.push(documents(0, &[4, 1, 5])).unwrap();
    packer.end().unwrap();
    let batch = packer.next_batch().unwrap().unwrap();
    let column = |index: usize| batch.columns[index].1.values.typed_data::<i64>().to_vec();
    assert_eq!(column(0), [0, 1, 2, 3, -1, -1, 1000, 2000, 2001, 2002, 2003, 2004]);
    assert_eq!(batch.position_ids.values.typed_data::<i64>(), [0, 1, 2, 3, 0, 1, 0, 0, 1, 2, 3, 4]);
    assert_eq!(batch.cu_seqlens.values.typed_data::<i32>(), [0, 4, 6, 7, 12]);
    assert_eq!((batch.max_seqlen, batch.num_tokens, batch.num_padding), (5, 10, 2));
    assert_eq!(batch.columns[1].0, "labels");
    assert_eq!(column(1), [-100, 1, 2, 3, -100, -100, -100, -100, 2001, 2002, 2003, 2004]);
    assert_eq!(batch.columns[0].1.shape, [2, 6]);
    assert!(packer.is_done());
}

#[test]
fn labels_have_the_value_that_is_asked_for_where_nothing_is_to_be_learnt() {
    let values = [("labels".to_owned(), (-7).into())].into();
    let settings = PackSettings { labels: true, values, ..settings(PackMode::Concat, 4, 8, 1) };
    let mut packer = Packer::try_new(settings, Mark::default()).unwrap();
    packer.push(documents(0, &[2, 1])).unwrap();
    packer.end().unwrap();
    let batch = packer.next_batch().unwrap().unwrap();
    let (name, labels) = &batch.columns[1];
    assert_eq!((name.as_str(), labels.values.typed_data::<i64>()), ("labels", &[-7, 1, -7, -7][..]));
}

#[test]
fn documents_that_were_delivered_are_let_go() {
    for mode in [PackMode::Concat, PackMode::BestFit] {
        let mut packer = Packer::try_new(settings(mode, 8, 4, 1), Mark::default()).unwrap();
        for first in (0..400).step_by(4) {
            packer.push(documents(first, &[3, 5, 8, 2])).unwrap();
            while packer.next_batch().unwrap().is_some() {}
            assert!(packer.sources.len() <= 2, "{mode:?} holds {} reads", packer.sources.len());
        }
    }
}

#[test]
fn empty_documents_are_let_go_though_there_is_no_batch() {
    for mode in [PackMode::Concat, PackMode::BestFit] {
        let mut packer = Packer::try_new(settings(mode, 8, 4, 1), Mark::default()).unwrap();
        for first in (0..400).step_by(4) {
            packer.push(documents(first, &[0; 4])).unwrap();
            assert!(packer.sources.len() <= 2, "{mode:?} holds {} reads", packer.sources.len());
        }
    }
}

#[test]
fn a_window_that_takes_more_than_the_memory_is_refused() {
    // 100 documents of 100 tokens of 8 bytes, and an offset of 8 bytes more for each and for the end of each read.
    let bytes = 100 * (100 * 8 + 8) + 10 * 8;
    let packed_within = |mode, window, memory_bytes| -> Result<usize> {
        let mut packer = Packer::try_new(settings(mode, 100, window, 3), Mark::default())?.within(memory_bytes);
        let mut num_sequences = 0;
        for first in (0..310).step_by(10) {
            if first < 300 {
                packer.push(documents(first, &[100; 10]))?
            } else {
                packer.end()?
            }
            while let Some(batch) = packer.next_batch()? {
                num_sequences += batch.num_sequences;
            }
        }
        Ok(num_sequences)
    };
    assert_eq!(packed_within(PackMode::BestFit, 100, bytes).unwrap(), 300);
    let error = packed_within(PackMode::BestFit, 100, bytes - 1).unwrap_err();
    let Error::WindowMemory { window: 100, num_documents: 100, held_bytes, .. } = error else { panic!("{error}") };
    assert_eq!(held_bytes, bytes);
    assert_eq!(packed_within(PackMode::BestFit, 10, bytes / 10).unwrap(), 300);
    assert_eq!(packed_within(PackMode::Concat, 100, 1).unwrap(), 300);
}

#[test]
fn sizes_of_nothing_are_refused() {
    for (length, window, batch_size, named) in [(0, 1, 1, "length"), (1, 0, 1, "window"), (1, 1, 0, "batch_size")] {
        let error = Packer::try_new(settings(PackMode::Concat, length, window, batch_size), Mark::default());
        assert!(error.unwrap_err().to_string().starts_with(named));
    }
    let error = Packer::try_new(settings(PackMode::Concat, 1 << 20, 1, 1 << 20), Mark::default()).unwrap_err();
    assert!(error.to_string().contains("32 bits"), "{error}");
}

#[test]
fn a_mark_by_which_more_was_delivered_than_there_is_is_refused() {
    // Document 1 has 5 tokens; the window that starts with it makes 2 sequences.
    for (mode, most) in [(PackMode::Concat, 5), (PackMode::BestFit, 2)] {
        for done in [0, most - 1, most, most + 1, u64::MAX >> 1] {
            let mut packer = Packer::try_new(settings(mode, 6, 2, 1), Mark { document: 1, done }).unwrap();
            let pushed = packer.push(documents(1, &[5, 3])).and_then(|()| packer.end());
            assert_eq!(pushed.is_ok(), done < most, "{mode:?}, {done}");
        }
        let mut packer = Packer::try_new(settings(mode, 6, 2, 1), Mark { document: 3, done: 1 }).unwrap();
        let error = packer.end().unwrap_err();
        assert!(error.to_string().starts_with("not a Forebay state: pack.done: 1 "), "{error}");
    }
}
