//! Represents an epoch's position in a given order, as a few hundred bytes of JSON.
//!
//! A state holds everything that the order depends on, as resolved, so that loading it can distinguish a state of this
//! dataset, query and settings from any other, and the one number that moves: the position. It does not hold the world
//! size, the batch size or the number of workers, which may change; what a DataLoader worker adds to it is up to the
//! loader.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

/// The version of the format that this release writes and reads.
pub const VERSION: u32 = 1;

/// The position of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of this format.
    pub version: u32,
    /// The snapshot of the dataset: objects, sizes, versions, row groups.
    pub fingerprint: String,
    /// The commit at which the dataset was opened, if its objects are files of a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What selects rows, in the order applied.
    pub query: Vec<String>,
    /// The order of rows, with its settings as resolved.
    pub order: OrderState,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The positions below this one have been delivered, by all ranks together.
    pub position: u64,
    /// Positions that stay empty because their rows could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holes: Vec<Hole>,
}

/// Rows of a span that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hole {
    /// The span, counted over the dataset; for unshuffled rows the row group, counted over those with kept rows.
    pub span: u32,
    /// The first of its missing kept rows, from 0; for drawn rows, the first draw, in the order of their rows.
    pub start: u32,
    /// The row or draw after the last.
    pub end: u32,
    /// The object that contains them.
    pub object: String,
    /// The row group within the object, from 0.
    pub row_group: usize,
    /// Why they could not be read.
    pub cause: String,
}

/// The order of rows, as a state records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OrderState {
    /// In dataset order.
    #[serde(deserialize_with = "no_settings")]
    Sequential,
    /// Shuffled.
    Shuffled {
        /// Chooses the order, together with the epoch.
        seed: u64,
        /// The number of lanes.
        num_lanes: u32,
        /// The width of a lane's window in kept rows.
        window_rows: u64,
        /// The value that the two were derived from.
        shuffle_bytes: u64,
    },
}

impl State {
    /// Writes the state as JSON on one line.
    pub fn to_json(&self) -> String {
        #[expect(clippy::expect_used, reason = "strings, integers and lists of them always serialise")]
        serde_json::to_string(self).expect("a state is plain data")
    }

    /// Reads a state.
    ///
    /// # Errors
    ///
    /// For text that is not a state, has fields unknown to this release, or is of another version; says which.
    pub fn from_json(text: &str) -> Result<Self, String> {
        /// The one field that every version has.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }

        let reason = |error: serde_json::Error| {
            // Users have a dict: they never see the text that has lines and columns.
            let place = format!(" at line {} column {}", error.line(), error.column());
            let said = error.to_string();
            said.strip_suffix(&place).unwrap_or(&said).to_owned()
        };
        let Versioned { version } = serde_json::from_str(text).map_err(reason)?;
        if version != VERSION {
            return Err(format!("expected a state of version `{VERSION}`, got version `{version}`"));
        }
        serde_json::from_str(text).map_err(reason)
    }

    /// Returns what prevents this state from continuing at `expected`, one line per difference; empty if only the
    /// epoch, the position and the worker differ.
    pub fn differences(&self, expected: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.version != expected.version {
            found.push(difference("version", expected.version, self.version));
        }
        if let (Some(expected), Some(got)) = (&expected.commit, &self.commit)
            && expected != got
        {
            found.push(format!("commit: expected `{expected}`, got `{got}`; open that one with `revision=\"{got}\"`"));
        } else if self.fingerprint != expected.fingerprint {
            let found_other = difference("fingerprint", &expected.fingerprint, &self.fingerprint);
            found.push(format!("{found_other} (the files differ in name, size or version)"));
        }
        if self.query != expected.query {
            let (ours, theirs) = (shown(&expected.query, &self.query), shown(&self.query, &expected.query));
            found.push(format!("query: expected {ours:?}, got {theirs:?}"));
        }
        match (expected.order.settings(), self.order.settings()) {
            (Some(expected), Some(got)) => {
                let pairs = expected.into_iter().zip(got).filter(|(expected, got)| expected != got);
                found.extend(pairs.map(|((name, expected), (_, got))| difference(name, expected, got)));
            }
            (None, None) => {}
            _ => found.push(difference("order", expected.order.kind(), self.order.kind())),
        }
        found
    }
}

/// Refuses unknown fields of a variant without fields, which serde alone would accept.
fn no_settings<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NoSettings {}

    NoSettings::deserialize(deserializer).map(|NoSettings {}| ())
}

/// Returns the conditions of a query for display: of a long one, such as a list of a hundred thousand numbers, only
/// from shortly before it differs from its counterpart in `other`.
fn shown(query: &[String], other: &[String]) -> Vec<String> {
    const SHOWN: usize = 200;
    const BEFORE: usize = 40;
    let others = other.iter().map(String::as_str).chain(std::iter::repeat(""));
    let around = |(text, other): (&String, &str)| {
        if text.chars().nth(SHOWN).is_none() {
            return text.clone();
        }
        let num_common = text.chars().zip(other.chars()).take_while(|(ours, theirs)| ours == theirs).count();
        let start = num_common.saturating_sub(BEFORE);
        let part: String = text.chars().skip(start).take(SHOWN).collect();
        let before = if start > 0 { "…" } else { "" };
        let after = if text.chars().nth(start + SHOWN).is_some() { "…" } else { "" };
        format!("{before}{part}{after}")
    };
    query.iter().zip(others).map(around).collect()
}

fn difference(name: &str, expected: impl Display, got: impl Display) -> String {
    format!("{name}: expected `{expected}`, got `{got}`")
}

impl OrderState {
    /// Returns the kind, as serialized.
    fn kind(&self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Shuffled { .. } => "shuffled",
        }
    }

    /// Returns the settings of a shuffle by name.
    fn settings(&self) -> Option<[(&'static str, u64); 4]> {
        match *self {
            Self::Sequential => None,
            Self::Shuffled { seed, num_lanes, window_rows, shuffle_bytes } => Some([
                ("seed", seed),
                ("num_lanes", u64::from(num_lanes)),
                ("window_rows", window_rows),
                ("shuffle_bytes", shuffle_bytes),
            ]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffled() -> State {
        State {
            version: VERSION,
            fingerprint: "5f3a".to_owned(),
            commit: None,
            query: vec!["lang = 'de'".to_owned()],
            order: OrderState::Shuffled { seed: u64::MAX, num_lanes: 192, window_rows: 240, shuffle_bytes: 1 << 30 },
            epoch: 3,
            position: 76_800,
            holes: Vec::new(),
        }
    }

    /// Returns why a text is refused, or what it was taken for.
    fn refusal(json: &str) -> String {
        State::from_json(json).map_or_else(|reason| reason, |state| format!("{state:?}"))
    }

    #[test]
    fn the_format_is_fixed() {
        let json = concat!(
            r#"{"version":1,"fingerprint":"5f3a","query":["lang = 'de'"],"#,
            r#""order":{"kind":"shuffled","seed":18446744073709551615,"num_lanes":192,"window_rows":240,"#,
            r#""shuffle_bytes":1073741824},"epoch":3,"position":76800}"#
        );
        assert_eq!(shuffled().to_json(), json);
        assert_eq!(State::from_json(json), Ok(shuffled()));
    }

    #[test]
    fn a_state_survives_json() {
        let state = State { order: OrderState::Sequential, query: vec![], ..shuffled() };
        assert!(state.to_json().contains(r#""order":{"kind":"sequential"}"#));
        assert_eq!(State::from_json(&state.to_json()), Ok(state));
    }

    #[test]
    fn unknown_fields_are_refused() {
        let json = shuffled().to_json();
        for (at, with) in [
            (r#""epoch":3"#, r#""epoch":3,"stops":[]"#),
            (r#""num_lanes":192"#, r#""num_lanes":192,"strata":2"#),
            (r#""kind":"shuffled""#, r#""kind":"stratified""#),
        ] {
            let error = refusal(&json.replace(at, with));
            assert!(error.contains("unknown"), "{error}");
        }
        let sequential = State { order: OrderState::Sequential, ..shuffled() }.to_json();
        let json = sequential.replace(r#""kind":"sequential""#, r#""kind":"sequential","seed":1"#);
        assert!(refusal(&json).contains("unknown field `seed`"));
    }

    #[test]
    fn holes_are_listed_with_their_cause() {
        let hole = Hole { span: 7, start: 0, end: 40, object: "a".into(), row_group: 2, cause: "gone".into() };
        let state = State { holes: vec![hole], ..shuffled() };
        let json = state.to_json();
        let listed = r#""holes":[{"span":7,"start":0,"end":40,"object":"a","row_group":2,"cause":"gone"}]"#;
        assert!(json.contains(listed), "{json}");
        assert_eq!(State::from_json(&json), Ok(state));
    }

    #[test]
    fn another_version_is_named_before_anything_else() {
        let error = refusal(r#"{"version":2,"stops":[]}"#);
        assert_eq!(error, "expected a state of version `1`, got version `2`");
        assert_eq!(refusal("{}"), "missing field `version`");
        assert!(State::from_json("").is_err());
    }

    #[test]
    fn what_moves_is_no_difference() {
        let later = State { epoch: 9, position: 0, ..shuffled() };
        assert_eq!(shuffled().differences(&later), Vec::<String>::new());
    }

    #[test]
    fn differences_name_the_setting_and_both_values() {
        let order = OrderState::Shuffled { seed: 1, num_lanes: 24, window_rows: 240, shuffle_bytes: 1 << 30 };
        let got = State { fingerprint: "77".to_owned(), query: vec![], order, ..shuffled() };
        assert_eq!(
            got.differences(&shuffled()),
            [
                "fingerprint: expected `5f3a`, got `77` (the files differ in name, size or version)",
                "query: expected [\"lang = 'de'\"], got []",
                "seed: expected `18446744073709551615`, got `1`",
                "num_lanes: expected `192`, got `24`",
            ]
        );
        let got = State { order: OrderState::Sequential, ..shuffled() };
        assert_eq!(got.differences(&shuffled()), ["order: expected `shuffled`, got `sequential`"]);
    }

    #[test]
    fn of_long_conditions_is_shown_where_they_differ() {
        let of = |number: u32| State { query: vec![format!("id IN (7{} {number})", ", 8".repeat(5000))], ..shuffled() };
        let [found] = &of(1).differences(&of(2))[..] else { panic!("of one thing") };
        assert!(found.len() < 200 && found.contains("8, 8 1)") && found.contains("8, 8 2)"), "{found}");
        let none = State { query: Vec::new(), ..shuffled() };
        let [found] = &none.differences(&of(2))[..] else { panic!("of one thing") };
        assert!(found.len() < 300 && found.contains("[\"id IN (7, 8, 8"), "{found}");
    }

    #[test]
    fn another_commit_is_named_in_the_place_of_what_follows_from_it() {
        let at = |commit: &str, fingerprint: &str| State {
            commit: Some(commit.to_owned()),
            fingerprint: fingerprint.to_owned(),
            ..shuffled()
        };
        let json = at("0a1b", "77").to_json();
        assert!(json.contains(r#""fingerprint":"77","commit":"0a1b","query""#), "{json}");
        assert_eq!(State::from_json(&json), Ok(at("0a1b", "77")));
        assert_eq!(
            at("0a1b", "77").differences(&at("2c3d", "5f3a")),
            ["commit: expected `2c3d`, got `0a1b`; open that one with `revision=\"0a1b\"`"]
        );
        // The same commit, but other files of it.
        let [found] = &at("0a1b", "77").differences(&at("0a1b", "5f3a"))[..] else { panic!("of one thing") };
        assert!(found.starts_with("fingerprint: expected `5f3a`, got `77` ("), "{found}");
    }
}
