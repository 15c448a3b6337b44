//! What fields there are, for SQL that names one that is not there.
//!
//! The engine says only that it is not, so the path to it is looked up in the text. A table's name before a dot is no
//! column; but one that is a column of another table, too, is taken for that in a subquery.

use std::slice;

use arrow_schema::{DataType, Schema};
use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::advice::tokens_of;
use crate::error::near_names;

/// Minimum similarity of a field's name to be suggested.
const NEAR_ENOUGH: f64 = 0.6;

/// Maximum tokens of a path that is looked up.
const LONGEST: usize = 100;

/// Returns why a field that is written in `text` is not there, next to what there is.
pub(crate) fn about_field(text: &str, reason: &str, schemas: &[&Schema]) -> Option<String> {
    let is_missing = reason.ends_with(" not found in struct");
    if !is_missing && !reason.starts_with("Cannot access field at argument ") {
        return None;
    }
    let tokens = tokens_of(text);
    let path = |start: usize| path_from(&tokens[start..tokens.len().min(start + LONGEST)]);
    let found = (0..tokens.len()).filter_map(|start| absent(&path(start), schemas));
    let found: Vec<Absent<'_>> =
        found.filter(|absent| matches!(absent.data_type, DataType::Struct(_)) == is_missing).collect();
    let is_table = |absent: &&Absent<'_>| has_table(&tokens, &absent.of);
    let Absent { of, name, data_type } = found.iter().find(|absent| !is_table(absent)).or(found.first())?;
    if has_table(&tokens, of) {
        return Some(format!(
            "`{of}.{name}` is the field `{name}` of a column `{of}` where there is one, and else a column of the table \
             `{of}`; give the table another name, as in `FROM dataset t1`"
        ));
    }
    Some(match data_type {
        DataType::Struct(fields) => {
            let names: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
            let likeness = |other: &String| normalized_levenshtein(&name.to_lowercase(), &other.to_lowercase());
            let near = names.iter().filter(|other| likeness(other) >= NEAR_ENOUGH);
            let near = near.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
            format!("`{of}` has no field `{name}`{}", near_names(near.map_or(&[], slice::from_ref), &names, "it"))
        }
        other => format!("`{of}` is {other}, and has no field `{name}`"),
    })
}

/// A field that a value does not have.
struct Absent<'a> {
    of: String,
    name: String,
    data_type: &'a DataType,
}

/// A part of a path to a value: the name of a field or, without one, an item of a list.
struct Step {
    name: Option<String>,
    written: String,
}

/// Follows a path from a column of `schemas` to a field that is not there.
fn absent<'a>(path: &[Step], schemas: &[&'a Schema]) -> Option<Absent<'a>> {
    let (first, steps) = path.split_first()?;
    let column = schemas.iter().find_map(|schema| schema.field_with_name(first.name.as_deref()?).ok())?;
    let (mut of, mut data_type) = (first.written.clone(), column.data_type());
    for Step { name, written } in steps {
        data_type = match (name, data_type) {
            (Some(_), DataType::Map(_, _)) => return None,
            (Some(name), DataType::Struct(fields)) if let Some((_, field)) = fields.find(name) => field.data_type(),
            (Some(name), _) => return Some(Absent { of, name: name.clone(), data_type }),
            (None, DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) => {
                item.data_type()
            }
            (None, _) => return None,
        };
        of += written;
    }
    None
}

/// Returns the path that begins with the first token, such as `meta.src['name'][1]`; empty if that is no name.
fn path_from(tokens: &[Token]) -> Vec<Step> {
    let mut path: Vec<Step> = Vec::new();
    let mut rest = tokens;
    loop {
        let (name, written, len) = match rest {
            [Token::Word(word), ..] if path.is_empty() => (Some(&word.value), word.to_string(), 1),
            _ if path.is_empty() => break,
            [Token::Period, Token::Word(word), ..] => (Some(&word.value), format!(".{word}"), 2),
            [Token::LBracket, Token::SingleQuotedString(name), Token::RBracket, ..] => {
                (Some(name), format!("['{name}']"), 3)
            }
            [Token::LBracket, item @ Token::Number(..), Token::RBracket, ..] => (None, format!("[{item}]"), 3),
            _ => break,
        };
        path.push(Step { name: name.cloned(), written });
        rest = &rest[len..];
    }
    path
}

/// Returns whether a table is given this name.
fn has_table(tokens: &[Token], name: &str) -> bool {
    let is_name = |token: &Token| matches!(token, Token::Word(word) if word.value == name);
    tokens.windows(2).any(|two| match &two[0] {
        Token::Word(word) => {
            let is_before = matches!(word.keyword, Keyword::NoKeyword | Keyword::AS | Keyword::FROM | Keyword::JOIN);
            is_before && is_name(&two[1])
        }
        Token::RParen => is_name(&two[1]),
        _ => false,
    })
}
