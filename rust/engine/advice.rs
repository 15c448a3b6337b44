//! What to write instead of SQL that is refused, from what was written: advice in its own words, with its own names.
//!
//! [`reason`](super::reason) knows only what the engine says. Here that is read next to the text, as tokens.

use arrow_schema::FieldRef;
use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use super::reason::NO_TEXT;
use crate::error::Error;
use crate::snapshot::inner;

/// Minimum similarity of a function's name to be suggested.
const NEAR_ENOUGH: f64 = 0.6;

/// Methods of Python and pandas, and their counterparts; `{x}` is the value, `{}` the arguments, with `AND` between
/// them in `{and}`.
const METHODS: [(&[&str], &str); 13] = [
    (&["startswith", "starts_with"], "starts_with({x}, {})"),
    (&["endswith", "ends_with"], "ends_with({x}, {})"),
    (&["contains"], "contains({x}, {})"),
    (&["lower"], "lower({x})"),
    (&["upper"], "upper({x})"),
    (&["strip"], "trim({x})"),
    (&["len", "length"], "length({x})"),
    (&["isin", "is_in"], "{x} IN (...)"),
    (&["between", "is_between"], "{x} BETWEEN {and}"),
    (&["like"], "{x} LIKE {}"),
    (&["ilike"], "{x} ILIKE {}"),
    (&["isna", "isnull", "is_null"], "{x} IS NULL"),
    (&["notna", "notnull", "is_not_null"], "{x} IS NOT NULL"),
];

/// Types of other languages and libraries, and what they are here.
const CASTS: [(&[&str], &str); 13] = [
    (&["int16", "short"], "SMALLINT"),
    (&["int", "integer", "int32"], "INT"),
    (&["bigint", "int64", "long"], "BIGINT"),
    (&["uint8"], "TINYINT UNSIGNED"),
    (&["uint16"], "SMALLINT UNSIGNED"),
    (&["uint32"], "INT UNSIGNED"),
    (&["uint64"], "BIGINT UNSIGNED"),
    (&["float32"], "REAL"),
    (&["float", "double", "float64"], "DOUBLE"),
    (&["bool", "boolean"], "BOOLEAN"),
    (&["str", "string", "varchar", "utf8", "object"], "VARCHAR"),
    (&["date", "date32"], "DATE"),
    (&["datetime", "timestamp"], "TIMESTAMP"),
];

/// Words that are no operators here.
const WORDS: [(&[&str], &str); 10] = [
    (
        &["contains", "has", "includes"],
        "`x LIKE '%a%'` looks for a part of a text, `array_has(x, 'a')` for an item of a list",
    ),
    (&["startswith", "starts_with"], "write `starts_with(x, 'a')`"),
    (&["endswith", "ends_with"], "write `ends_with(x, 'a')`"),
    (&["mod"], "the remainder is `x % 2`"),
    (&["eq"], "write `=`"),
    (&["ne", "neq"], "write `<>`"),
    (&["gt"], "write `>`"),
    (&["ge", "gte"], "write `>=`"),
    (&["lt"], "write `<`"),
    (&["le", "lte"], "write `<=`"),
];

/// The beginnings of advice that does not know the text, which better one replaces.
const GENERAL: [&str; 2] = ["; a Boolean is a condition of its own", "; a filter is a condition and nothing else"];

/// Adds to an error about `text` what to write instead.
pub(super) fn advised(text: &str, error: Error) -> Error {
    match error {
        Error::Sql { sql, reason } => {
            let reason = Written::new(text).instead_of(&reason).unwrap_or(reason);
            Error::Sql { sql, reason }
        }
        Error::UnknownColumn { column, near, available, owner, hint: _ }
            if ["None`", "none`", "nil`"].iter().any(|none| column.starts_with(none)) =>
        {
            Error::UnknownColumn {
                column,
                near,
                available,
                owner,
                hint: "; to ask whether a value is missing, write `x IS NULL`",
            }
        }
        other => other,
    }
}

/// Adds the column to why a text is no number, or bytes are no text.
pub(crate) fn with_column(reason: String, columns: impl Iterator<Item = FieldRef>) -> String {
    let is_number = reason.starts_with("Cannot cast string '");
    if !is_number && !reason.starts_with(NO_TEXT) {
        return reason;
    }
    let is_meant = |field: &FieldRef| match is_number {
        true => field.data_type().is_string(),
        false => field.data_type().is_binary(),
    };
    let names: Vec<String> =
        columns.filter(is_meant).map(|field| format!("`{}`", inner::shown(field.name()))).collect();
    let (Some(first), are) = (names.first(), if names.len() == 1 { "is" } else { "are" }) else { return reason };
    if !is_number {
        return format!("{reason}; {} {are} binary", names.join(", "));
    }
    let bare = first.trim_matches('`');
    format!(
        "{reason}; {} {are} text: compare it with text, as in `{bare} = '1'`, or write `TRY_CAST({bare} AS DOUBLE)`, \
         which is NULL for what is no number",
        names.join(", ")
    )
}

/// Returns SQL as tokens, without spaces.
pub(super) fn tokens_of(text: &str) -> Vec<Token> {
    let tokens = Tokenizer::new(&GenericDialect {}, text).tokenize().unwrap_or_default();
    tokens.into_iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect()
}

/// The text as tokens, without spaces.
struct Written {
    tokens: Vec<Token>,
}

impl Written {
    fn new(text: &str) -> Self {
        Self { tokens: tokens_of(text) }
    }

    /// Returns a better reason than the engine's, if there is one.
    fn instead_of(&self, reason: &str) -> Option<String> {
        let with = |advice: String| {
            let end = GENERAL.iter().find_map(|general| reason.rfind(general)).unwrap_or(reason.len());
            format!("{}; {advice}", reason[..end].trim_end_matches('.'))
        };
        if let Some(place) = reason.split_once("TokenizerError(\"").map(|(_, place)| place) {
            let is_quote = place.contains("string literal") || place.contains("quote");
            let advice = if is_quote { "; a quote within text is written twice, `'it''s'`" } else { "" };
            return Some(format!("{}{advice}", place.trim_end_matches("\")")));
        }
        if let Some(name) = reason.strip_prefix("Invalid function '").and_then(|name| name.split('\'').next()) {
            return self.instead_of_function(name, reason);
        }
        if let Some((function, types)) = reason.split_once(" user-defined coercion failed with: ")
            && let Some((_, types)) = types.split_once("it takes (")
        {
            let name = function.rsplit('\'').nth(1).unwrap_or("f");
            let types = types.split(". No function matches").next().unwrap_or(types);
            return Some(format!("`{name}` takes ({types}"));
        }
        if reason.contains("Dot access not supported") {
            return Some(self.field_after_brackets());
        }
        if reason.contains("Unsupported JOIN operator") {
            let kind = ["Semi", "Anti"].into_iter().find(|kind| reason.contains(&format!("operator {kind}(")))?;
            let kind = kind.to_uppercase();
            return Some(format!("`{kind} JOIN` does not say which side's rows it keeps; write `LEFT {kind} JOIN`"));
        }
        if reason.contains("PGOverlap") {
            return Some("`&&` does not join conditions; write `AND`".into());
        }
        if reason.contains("operator BitwiseNot") {
            let instead = match self.has(&[Token::Eq, Token::Tilde]) {
                true => "`=~` is not SQL; text matches a regular expression where `x ~ 'a'`",
                false => "`~` does not negate a condition; write `NOT`",
            };
            return Some(instead.into());
        }
        if let Some((_, name)) = reason.split_once("Unsupported SQL type ") {
            let lower = name.to_lowercase();
            let known = CASTS.iter().find(|(names, _)| names.contains(&lower.as_str()));
            let instead =
                known.map_or("DOUBLE` or the like, or a type of Arrow: `arrow_cast(x, 'Float16')", |(_, to)| to);
            return Some(format!("`{name}` is no type of SQL; write `{instead}`"));
        }
        if reason.starts_with("Substring without for/from") {
            let (name, text) = self.arguments(&["substr", "substring"])?;
            return Some(format!("`{name}` takes a text and where to begin, as in `{name}({text}, 1, 3)`"));
        }
        if reason.contains("SingleQuotedByteStringLiteral") {
            return Some("`b'...'` is not SQL; text is `'a'`, bytes are `X'61'`".into());
        }
        if reason.contains("token Sharp") {
            return Some(with("a comment begins with `--`".into()));
        }
        if reason.contains("found: ‘") || reason.contains("found: “") {
            return Some(with("write text in straight quotes, `'a'`".into()));
        }
        if reason.starts_with("Expected: ") || reason.starts_with("Unexpected") {
            return self.instead_of_syntax(reason).map(with);
        }
        let instead = self.instead_of_call(reason).or_else(|| self.instead_of_number(reason));
        instead.or_else(|| self.instead_of_types(reason).map(with))
    }

    /// Advises on text that cannot be parsed.
    fn instead_of_syntax(&self, reason: &str) -> Option<String> {
        if let Some(name) = self.braced() {
            return Some(format!("write `${name}`, and pass its value as `params={{\"{name}\": ...}}`"));
        }
        let found =
            reason.split_once("found: ").map_or("", |(_, found)| found.split(" at Line").next().unwrap_or(found));
        if reason.contains("Expected: (, found:") {
            let (value, list) = self.among()?;
            return match list {
                Token::Word(list) => Some(format!(
                    "`array_has({list}, {value})` tells whether a list has an item, `contains({list}, {value})` whether \
                     a text has a part"
                )),
                Token::Number(..) | Token::SingleQuotedString(_) => Some(format!("write `IN ({list})`")),
                _ => None,
            };
        }
        if reason.contains("found: < ") && self.has(&[Token::Eq, Token::Lt]) {
            return Some("write `<=`".into());
        }
        if !reason.contains("Expected: end of ") {
            return None;
        }
        let lower = found.to_lowercase();
        if let Some((_, instead)) = WORDS.iter().find(|(words, _)| words.contains(&lower.as_str())) {
            return Some((*instead).into());
        }
        if found == ")" {
            return Some("it is one closing parenthesis too many".into());
        }
        if found == "=>" {
            return Some("write `>=`".into());
        }
        if found.starts_with('\'') {
            return Some("text has no prefix; write a value as `$x`, and pass it as `params={\"x\": ...}`".into());
        }
        // A query has such words.
        if reason.contains("end of statement") || self.has_clause() {
            return None;
        }
        Some("a filter is a condition and nothing else".into())
    }

    /// Advises on values of the wrong types.
    fn instead_of_types(&self, reason: &str) -> Option<String> {
        if reason.contains("bitwise operation") {
            return self.on_bits(0);
        }
        if reason.contains("comparison operation Boolean ") {
            return self.chained().or_else(|| self.on_bits(2));
        }
        if reason.contains("comparison operation List(")
            || reason.contains("comparison operation FixedSizeList(")
            || reason.contains("comparison operation LargeList(")
        {
            let are_lists = reason.rsplit_once(" = ").is_some_and(|(_, other)| other.contains("List("));
            let named = self.compared().map(|(list, value)| (list.to_string(), value.to_string()));
            let (list, value) = named.or_else(|| (!are_lists).then(|| ("x".into(), "'a'".into())))?;
            return Some(format!(
                "`array_has({list}, {value})`, or `{value} = ANY({list})`, tells whether a list has an item"
            ));
        }
        if let Some((_, given)) = reason.split_once("common type to coerce ")
            && given.contains(" in LIKE ")
            && is_plain(given)
        {
            return Some("write `CAST(x AS VARCHAR) LIKE ...`".into());
        }
        if reason.contains("cast for native type String from physical type FixedSizeList") {
            let list =
                self.arguments(&["length", "char_length", "character_length"]).map_or("x".into(), |(_, list)| list);
            return Some(format!("`array_length({list})` counts the items of a list"));
        }
        if let Some((_, given)) = reason.split_once("function: coercion from ")
            && given.contains("Struct(")
        {
            return Some("a struct is not text; take a field of it, as in `x['name']`".into());
        }
        None
    }

    /// Returns why a function of text does not take what it gets, without its other signatures.
    fn instead_of_call(&self, reason: &str) -> Option<String> {
        let (_, given) = reason.split_once("requires String, but received ")?;
        let (before, function) = reason.split_once("Function '")?;
        let (name, given) = (function.split('\'').next()?, given.split(" (DataType").next()?);
        let is_list = ["List(", "FixedSizeList(", "LargeList("].iter().any(|list| given.starts_with(list));
        let names = match name {
            "btrim" => vec!["trim", "btrim"],
            "substr" => vec!["substr", "substring"],
            "strpos" => vec!["strpos", "position", "instr"],
            name => vec![name],
        };
        let written = self.arguments(&names);
        let shown = written.as_ref().map_or(name, |(written, _)| written);
        if is_list {
            let instead = "`array_to_string(x, ',')` makes a text of a list";
            return Some(format!("{before}`{shown}` takes text, and got a list; {instead}"));
        }
        if given == "Binary" || given == "LargeBinary" {
            let value = written.as_ref().map_or("x".into(), |(_, all)| first(all));
            let instead = match name {
                "octet_length" => format!("`length(encode({value}, 'hex')) / 2` counts its bytes"),
                "bit_length" => format!("`length(encode({value}, 'hex')) * 4` counts its bits"),
                _ => "`CAST(x AS VARCHAR)` makes text of it, `encode(x, 'hex')` its digits".into(),
            };
            return Some(format!("{before}`{shown}` takes text, and got binary; {instead}"));
        }
        if !is_plain(given) {
            return None;
        }
        let all = written.as_ref().map_or("", |(_, all)| all);
        let mut values = split(all);
        let is_number = |value: &String| value.starts_with(|first: char| first.is_ascii_digit());
        // With numbers elsewhere, it may be one of those that should be text.
        let is_first = ["substr", "left", "right", "lpad", "rpad", "repeat"].contains(&name);
        let place = values.iter().position(|value| !value.starts_with('\'') && !is_number(value));
        let instead = match place.filter(|place| is_first && *place == 0 || !values.iter().any(is_number)) {
            Some(place) if !all.is_empty() && !all.to_uppercase().contains(" FROM ") => {
                values[place] = format!("CAST({} AS VARCHAR)", values[place]);
                format!("{shown}({})", values.join(", "))
            }
            _ => "CAST(x AS VARCHAR)".into(),
        };
        Some(format!("{before}`{shown}` takes text, and got {given}; write `{instead}`"))
    }

    /// Returns why a function of numbers does not take what it gets, without its signatures.
    fn instead_of_number(&self, reason: &str) -> Option<String> {
        let (before, errors) = reason.split_once("Function '")?;
        let name = errors.split('\'').next()?;
        let signatures = errors.split(" requires ").skip(1).filter_map(|one| one.split_once(", but received "));
        let (taken, given): (Vec<&str>, Vec<&str>) = signatures.unzip();
        let given = given.first()?.split(" (DataType").next()?;
        let are = |names: &[&str], one: &&str| names.iter().any(|name| one.starts_with(name));
        if !taken.iter().any(|one| are(&["Decimal", "Float"], one))
            || !taken.iter().all(|one| are(&["Decimal", "Float", "Int", "UInt", "Duration"], one))
        {
            return None;
        }
        let all = self.arguments(&[name]).map_or_else(String::new, |(_, all)| all);
        let value = first(all.trim_start_matches("DISTINCT "));
        let instead = match given.split('(').next()? {
            "String" | "Boolean" => format!("; write `{name}(CAST({value} AS DOUBLE))`"),
            "Timestamp" | "Date" if ["avg", "median"].contains(&name) => {
                format!("; write `to_timestamp({name}(date_part('epoch', {value})))`")
            }
            _ => String::new(),
        };
        Some(format!("{before}`{name}` takes numbers, and got {given}{instead}"))
    }

    /// Advises on a function that does not exist.
    fn instead_of_function(&self, name: &str, reason: &str) -> Option<String> {
        let lower = name.to_lowercase();
        let plain = lower.rsplit_once('.').map_or(lower.as_str(), |(_, method)| method);
        let all = || self.arguments(&[plain]).map_or_else(String::new, |(_, all)| all);
        let said = format!("Invalid function '{name}'");
        if let Some((value, _)) = name.rsplit_once('.') {
            if let Some((_, call)) = METHODS.iter().find(|(names, _)| names.contains(&plain)) {
                let (value, all) = (value.strip_suffix(".str").unwrap_or(value), all());
                let call = call.replace("{x}", value).replace("{and}", &split(&all).join(" AND "));
                return Some(format!("{said}; write `{}`", call.replace("{}", &all)));
            }
            if let Some((_, instead)) = WORDS.iter().find(|(words, _)| words.contains(&plain)) {
                return Some(format!("{said}; {instead}"));
            }
        }
        if ["datetime", "timestamp"].contains(&plain) {
            return Some(format!("{said}; `CAST({} AS TIMESTAMP)` is a time, as is `TIMESTAMP '...'`", first(&all())));
        }
        if let Some((_, to)) = CASTS.iter().find(|(names, _)| names.contains(&plain)) {
            return Some(format!("{said}; `CAST({} AS {to})` converts a value to another type", first(&all())));
        }
        if ["any", "all"].contains(&plain) {
            let argument = first(&all());
            let (list, value) = compared_in(&argument);
            return Some(format!("{said}; the list comes second: `{value} = {}({list})`", plain.to_uppercase()));
        }
        let near = reason.split_once("Did you mean '").and_then(|(_, near)| near.split('\'').next())?;
        (normalized_levenshtein(&lower, near) < NEAR_ENOUGH).then_some(said)
    }

    /// Returns how to join conditions instead of `x > 1 & y < 2`, with a number of comparisons around the operator: it
    /// binds more tightly than they do.
    fn on_bits(&self, num_comparisons: usize) -> Option<String> {
        use Token::{Ampersand, Caret, DoubleEq, Eq, Gt, GtEq, Lt, LtEq, Neq, Pipe};
        let is_joint =
            |token: &Token| matches!(token, Token::Word(word) if [Keyword::AND, Keyword::OR].contains(&word.keyword));
        let is_comparison = |token: &&Token| matches!(token, Eq | DoubleEq | Neq | Lt | LtEq | Gt | GtEq);
        let has_comparisons = |part: &&[Token]| part.iter().filter(is_comparison).count() >= num_comparisons;
        let mut parts = self.tokens.split(is_joint).filter(has_comparisons);
        let (sign, instead) = parts.find_map(|part| {
            [(Ampersand, "AND"), (Pipe, "OR"), (Caret, "<>")].into_iter().find(|(sign, _)| part.contains(sign))
        })?;
        Some(format!("`{sign}` works on the bits of integers; join conditions with `{instead}`"))
    }

    /// Returns `x > 1 AND x < 5` for `1 < x < 5`.
    fn chained(&self) -> Option<String> {
        self.tokens.windows(5).find_map(|five| {
            let [low, first, value, second, high] = five else { return None };
            let swapped = match (first, second) {
                (Token::Lt, Token::Lt | Token::LtEq) => ">",
                (Token::LtEq, Token::Lt | Token::LtEq) => ">=",
                (Token::Gt, Token::Gt | Token::GtEq) => "<",
                (Token::GtEq, Token::Gt | Token::GtEq) => "<=",
                _ => return None,
            };
            Some(format!("write `{value} {swapped} {low} AND {value} {second} {high}`"))
        })
    }

    /// Returns the name in `{name}`, in text or outside.
    fn braced(&self) -> Option<String> {
        self.tokens.iter().enumerate().find_map(|(place, token)| match token {
            Token::LBrace => match (self.tokens.get(place + 1), self.tokens.get(place + 2)) {
                (Some(Token::Word(name)), Some(Token::RBrace)) => Some(name.value.clone()),
                _ => None,
            },
            Token::SingleQuotedString(text) => {
                let name = text.strip_prefix('{')?.strip_suffix('}')?;
                let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.is_empty();
                is_name.then(|| name.to_owned())
            }
            _ => None,
        })
    }

    /// Returns the sides of an `IN` without parentheses.
    fn among(&self) -> Option<(&Token, &Token)> {
        self.tokens.windows(3).find_map(|three| match three {
            [value, Token::Word(word), list] if word.keyword == Keyword::IN && *list != Token::LParen => {
                Some((value, list))
            }
            _ => None,
        })
    }

    /// Returns the only column that is compared with a literal, and the literal.
    fn compared(&self) -> Option<(&Token, &Token)> {
        let is_literal = |token: &Token| matches!(token, Token::Number(..) | Token::SingleQuotedString(_));
        let mut found = self.tokens.windows(3).filter_map(|three| match three {
            [column @ Token::Word(_), Token::Eq | Token::DoubleEq, value] if is_literal(value) => Some((column, value)),
            [value, Token::Eq | Token::DoubleEq, column @ Token::Word(_)] if is_literal(value) => Some((column, value)),
            _ => None,
        });
        let only = found.next()?;
        found.next().is_none().then_some(only)
    }

    /// Returns what to write for `x[1].name`.
    fn field_after_brackets(&self) -> String {
        let found =
            self.tokens.windows(3).position(|three| matches!(three, [Token::RBracket, Token::Period, Token::Word(_)]));
        let instead = found.map(|end| {
            let mut open = 0_usize;
            let is_first = |token: &&Token| {
                match token {
                    Token::RBracket => open += 1,
                    Token::LBracket => open = open.saturating_sub(1),
                    _ => {}
                }
                open > 0 || matches!(token, Token::LBracket)
            };
            let len = self.tokens[..=end].iter().rev().take_while(is_first).count();
            let start = (end + 1 - len).saturating_sub(1);
            let value: String = self.tokens[start..=end].iter().map(Token::to_string).collect();
            format!("{value}['{}']", self.tokens[end + 2])
        });
        format!(
            "a field of what is in brackets is in brackets, too: write `{}`",
            instead.as_deref().unwrap_or("x[1]['name']")
        )
    }

    /// Returns the first of the functions `names` that is called, as written, and its arguments.
    fn arguments(&self, names: &[&str]) -> Option<(String, String)> {
        let is_call = |two: &[Token]| matches!(two, [Token::Word(word), Token::LParen] if names.contains(&word.value.to_lowercase().as_str()));
        let place = self.tokens.windows(2).position(is_call)?;
        let (mut depth, mut all) = (0_usize, String::new());
        for token in &self.tokens[place + 2..] {
            match token {
                Token::LParen => depth += 1,
                Token::RParen if depth == 0 => break,
                Token::RParen => depth -= 1,
                _ => {}
            }
            if matches!(token, Token::Word(_)) && all.ends_with(|last: char| last.is_alphanumeric() || last == '\'') {
                all.push(' ');
            }
            all += &token.to_string();
            if matches!(token, Token::Comma) || matches!(token, Token::Word(word) if word.keyword == Keyword::FROM) {
                all.push(' ');
            }
        }
        Some((self.tokens[place].to_string(), all))
    }

    fn has(&self, tokens: &[Token]) -> bool {
        self.tokens.windows(tokens.len()).any(|some| some == tokens)
    }

    /// Returns whether there is a word that belongs to a query, or the end of one.
    fn has_clause(&self) -> bool {
        use Keyword::{ASC, DESC, FROM, GROUP, HAVING, LIMIT, OFFSET, ORDER, QUALIFY, SELECT, WHERE};
        self.tokens.iter().any(|token| match token {
            Token::SemiColon => true,
            Token::Word(word) => {
                [ASC, DESC, FROM, GROUP, HAVING, LIMIT, OFFSET, ORDER, QUALIFY, SELECT, WHERE].contains(&word.keyword)
            }
            _ => false,
        })
    }
}

/// Returns whether a type can be cast to text for a reader.
fn is_plain(data_type: &str) -> bool {
    ["Int", "UInt", "Float", "Decimal", "Boolean", "Date", "Timestamp", "Time"]
        .iter()
        .any(|name| data_type.starts_with(name))
}

/// Returns the first of some arguments.
fn first(all: &str) -> String {
    split(all).into_iter().next().filter(|first| !first.is_empty()).unwrap_or_else(|| "x".into())
}

/// Returns a list and a value that are compared with each other, or the list alone.
fn compared_in(argument: &str) -> (&str, &str) {
    let (one, other) = argument.split_once(['=', '<', '>', '!']).unwrap_or((argument, "'a'"));
    let other = other.trim_start_matches(['=', '>']);
    if one.starts_with(|first: char| first == '\'' || first.is_ascii_digit()) { (other, one) } else { (one, other) }
}

/// Splits arguments at commas that are in no parentheses.
fn split(all: &str) -> Vec<String> {
    let (mut depth, mut is_text, mut parts) = (0_i32, false, vec![String::new()]);
    for c in all.chars() {
        match c {
            '\'' => is_text = !is_text,
            '(' | '[' if !is_text => depth += 1,
            ')' | ']' if !is_text => depth -= 1,
            _ => {}
        }
        match parts.last_mut() {
            Some(_) if c == ',' && depth == 0 && !is_text => parts.push(String::new()),
            Some(part) => part.push(c),
            None => {}
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}
