//! Infers the splits of a dataset from its objects' names, as Hugging Face `datasets` does.
//!
//! First `data/{split}-00000-of-00005.parquet`, then keywords as folders, then keywords in file names; otherwise
//! everything is `train`. An object whose name has several splits is in each of them.

/// The keywords of each split, in the order in which splits are listed.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Returns the splits of objects by their relative paths: names in order, with the objects' indexes.
pub(crate) fn infer(paths: &[String]) -> Vec<(String, Vec<usize>)> {
    let sharded = group(paths, |path| sharded_split(path).into_iter().collect());
    if !sharded.is_empty() {
        return sharded;
    }
    for rule in [folder_splits, file_splits] {
        let found = group(paths, rule);
        if !found.is_empty() {
            return found;
        }
    }
    vec![("train".into(), (0..paths.len()).collect())]
}

fn group(paths: &[String], splits_of: impl Fn(&str) -> Vec<&str>) -> Vec<(String, Vec<usize>)> {
    let mut splits: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        for name in splits_of(path) {
            match splits.iter_mut().find(|(known, _)| known == name) {
                Some((_, members)) => members.push(index),
                None => splits.push((name.to_owned(), vec![index])),
            }
        }
    }
    let rank = |name: &str| KEYWORDS.iter().position(|(split, _)| *split == name).unwrap_or(KEYWORDS.len());
    splits.sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
    splits
}

/// Returns the split of `data/{split}-00000-of-00005*.*`.
fn sharded_split(path: &str) -> Option<&str> {
    let file = path.strip_prefix("data/")?;
    let (before, after) = file.rsplit_once("-of-")?;
    let (split, number) = before.rsplit_once('-')?;
    let is_number = |text: &str| text.len() >= 5 && text.as_bytes()[..5].iter().all(u8::is_ascii_digit);
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_.".contains(c));
    (number.len() == 5 && is_number(number) && is_number(after) && is_name(split)).then_some(split)
}

fn folder_splits(path: &str) -> Vec<&str> {
    let Some((folders, _)) = path.rsplit_once('/') else { return Vec::new() };
    splits_of(&folders.split('/').collect::<Vec<_>>())
}

fn file_splits(path: &str) -> Vec<&str> {
    splits_of(&[path.rsplit('/').next().unwrap_or(path)])
}

/// Returns the splits with a keyword in any of the names.
fn splits_of(names: &[&str]) -> Vec<&'static str> {
    let is_told = |words: &[&str]| names.iter().any(|name| has_keyword(name, words));
    KEYWORDS.iter().filter(|(_, words)| is_told(words)).map(|(split, _)| *split).collect()
}

/// Returns whether `name` has a keyword delimited by separators or its ends.
fn has_keyword(name: &str, words: &[&str]) -> bool {
    let parts = |c: char| "-._ ".contains(c) || c.is_ascii_digit();
    name.split(parts).any(|part| words.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splits(paths: &[&str]) -> Vec<(String, Vec<usize>)> {
        infer(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
    }

    fn named(expected: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
        expected.iter().map(|(name, members)| ((*name).to_owned(), members.to_vec())).collect()
    }

    #[test]
    fn sharded_names_give_any_split() {
        let found = splits(&[
            "data/test-00000-of-00001.parquet",
            "data/extra-00000-of-00001-abc.parquet",
            "data/train-00000-of-00001.parquet",
        ]);
        assert_eq!(found, named(&[("train", &[2]), ("test", &[0]), ("extra", &[1])]));
    }

    #[test]
    fn folders_come_before_file_names() {
        assert_eq!(
            splits(&["dev/test.parquet", "training/0.parquet"]),
            named(&[("train", &[1]), ("validation", &[0])])
        );
        assert_eq!(splits(&["a/my-train_1.parquet", "a/eval.parquet"]), named(&[("train", &[0]), ("test", &[1])]));
    }

    #[test]
    fn a_name_that_tells_several_splits_is_in_each() {
        let found = splits(&["dev.parquet", "test-dev.parquet", "x.parquet"]);
        assert_eq!(found, named(&[("validation", &[0, 1]), ("test", &[1])]));
        let found = splits(&["test/train/dev.parquet", "train/a.parquet"]);
        assert_eq!(found, named(&[("train", &[0, 1]), ("test", &[0])]));
    }

    #[test]
    fn without_any_name_everything_is_train() {
        assert_eq!(splits(&["a.parquet", "trainer.parquet"]), named(&[("train", &[0, 1])]));
    }
}
