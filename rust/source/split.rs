//! Finds the splits of a dataset in its objects' names, as Hugging Face `datasets` does.
//!
//! First `data/{split}-00000-of-00005.parquet`, then keywords as folders, then keywords in file names;
//! otherwise everything is `train`.

/// The keywords of each split, in the order in which splits are listed.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Returns the splits of objects by their relative paths: names in order, with the objects' indexes.
pub(crate) fn infer(paths: &[String]) -> Vec<(String, Vec<usize>)> {
    let sharded = group(paths, |path| sharded_split(path).map(str::to_owned));
    if !sharded.is_empty() {
        return sharded;
    }
    for rule in [folder_split, file_split] {
        let found = group(paths, |path| rule(path).map(str::to_owned));
        if !found.is_empty() {
            return found;
        }
    }
    vec![("train".into(), (0..paths.len()).collect())]
}

fn group(paths: &[String], split_of: impl Fn(&str) -> Option<String>) -> Vec<(String, Vec<usize>)> {
    let mut splits: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let Some(name) = split_of(path) else { continue };
        match splits.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(index),
            None => splits.push((name, vec![index])),
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

fn folder_split(path: &str) -> Option<&'static str> {
    let (folders, _) = path.rsplit_once('/')?;
    KEYWORDS
        .iter()
        .find(|(_, words)| folders.split('/').any(|folder| has_keyword(folder, words)))
        .map(|(split, _)| *split)
}

fn file_split(path: &str) -> Option<&'static str> {
    let file = path.rsplit('/').next().unwrap_or(path);
    KEYWORDS.iter().find(|(_, words)| has_keyword(file, words)).map(|(split, _)| *split)
}

/// Returns whether `name` holds a keyword that separators or its ends set apart.
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
    fn without_any_name_everything_is_train() {
        assert_eq!(splits(&["a.parquet", "trainer.parquet"]), named(&[("train", &[0, 1])]));
    }
}
