//! Names of the columns that a query does not name: what it says, `size / 1000.0`.
//!
//! The engine's names are those of its expressions, `dataset.size / Float64(1000)`. They stay while a query is planned,
//! where other parts of it may refer to them, and are replaced in its result.

use datafusion::sql::sqlparser::ast;

/// What a query says of its columns, as far as it tells which ones they are.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Before the first `*`.
    first: Vec<Option<Written>>,
    /// After the last one, if there is one.
    last: Option<Vec<Option<Written>>>,
}

/// A column without a name of its own.
#[derive(Debug)]
struct Written {
    text: String,
    /// The name of the field or column of which it is a part or cast.
    short: Option<String>,
}

impl Columns {
    /// Returns the columns of a query, for a union those of its first part.
    pub(crate) fn of(query: &ast::Query) -> Self {
        let mut body = query.body.as_ref();
        let select = loop {
            body = match body {
                ast::SetExpr::Select(select) => break select,
                ast::SetExpr::Query(query) => query.body.as_ref(),
                ast::SetExpr::SetOperation { left, .. } => left,
                _ => return Self::default(),
            };
        };
        let items = &select.projection;
        // One of a struct is several columns.
        if items.iter().any(|item| item.to_string().to_ascii_lowercase().contains("unnest(")) {
            return Self::default();
        }
        let is_star = |item: &ast::SelectItem| !matches!(item, ast::SelectItem::UnnamedExpr(_)) && !is_named(item);
        let written = |items: &[ast::SelectItem]| items.iter().map(Written::of).collect();
        match (items.iter().position(is_star), items.iter().rposition(is_star)) {
            (Some(first), Some(last)) => {
                Self { first: written(&items[..first]), last: Some(written(&items[last + 1..])) }
            }
            _ => Self { first: written(items), last: None },
        }
    }

    /// Returns the names of the columns that the engine calls `planned`.
    pub(crate) fn names(&self, planned: &[&str]) -> Vec<String> {
        let (first, last) = (self.first.as_slice(), self.last.as_deref().unwrap_or_default());
        let is_told = match self.last {
            Some(_) => first.len() + last.len() <= planned.len(),
            None => first.len() == planned.len(),
        };
        if !is_told {
            return planned.iter().copied().map(str::to_owned).collect();
        }
        let between = std::iter::repeat_n(&None, planned.len() - first.len() - last.len());
        let written: Vec<_> = first.iter().chain(between).chain(last).map(Option::as_ref).collect();
        let wanted = |(written, planned): (&Option<&Written>, &&str)| {
            written.map_or_else(|| (*planned).to_owned(), |written| written.name().to_owned())
        };
        let wanted: Vec<String> = written.iter().zip(planned).map(wanted).collect();
        let is_free = |name: &String| wanted.iter().filter(|other| *other == name).count() == 1;
        let name = |((name, written), planned): ((&String, &Option<&Written>), &&str)| match written {
            // Two columns of one name are refused.
            Some(written) if name != planned && !is_free(name) => match wanted.contains(&written.text) {
                true => (*planned).to_owned(),
                false => written.text.clone(),
            },
            _ => name.clone(),
        };
        wanted.iter().zip(&written).zip(planned).map(name).collect()
    }
}

fn is_named(item: &ast::SelectItem) -> bool {
    matches!(item, ast::SelectItem::ExprWithAlias { .. } | ast::SelectItem::ExprWithAliases { .. })
}

impl Written {
    fn of(item: &ast::SelectItem) -> Option<Self> {
        let ast::SelectItem::UnnamedExpr(expr) = item else { return None };
        let mut within = expr;
        while let ast::Expr::Nested(inner) = within {
            within = inner;
        }
        Some(Self { text: within.to_string(), short: short(within) })
    }

    fn name(&self) -> &str {
        self.short.as_ref().unwrap_or(&self.text)
    }
}

/// Returns the name of a column, a field, or a cast of one.
fn short(expr: &ast::Expr) -> Option<String> {
    match expr {
        ast::Expr::Identifier(name) => Some(name.value.clone()),
        ast::Expr::CompoundIdentifier(names) => names.last().map(|name| name.value.clone()),
        ast::Expr::Nested(inner) | ast::Expr::Cast { expr: inner, .. } => short(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::Statement;

    use super::*;
    use crate::engine::parser;

    fn names(text: &str, planned: &[&str]) -> Vec<String> {
        let Ok(Statement::Statement(statement)) = parser::statement(text) else { panic!("{text}") };
        let ast::Statement::Query(query) = *statement else { panic!("{text}") };
        Columns::of(&query).names(planned)
    }

    #[test]
    fn columns_are_called_as_they_are_written() {
        assert_eq!(names("SELECT d.a+1, st.k, a AS b FROM d", &["x", "y", "b"]), ["d.a + 1", "k", "b"]);
        assert_eq!(names("SELECT 'x', *, (a::INT) FROM d", &["u", "a", "b", "v"]), ["'x'", "a", "b", "a::INT"]);
        assert_eq!(names("SELECT *, b::INT FROM d", &["a", "v"]), ["a", "b"]);
        assert_eq!(names("SELECT d.a, e.a FROM d, e", &["a", "a"]), ["a", "a"]);
        assert_eq!(names("SELECT unnest(s), 1 FROM d", &["p", "q", "r"]), ["p", "q", "r"]);
        assert_eq!(names("SELECT -a FROM d UNION SELECT b FROM d", &["x"]), ["-a"]);
    }
}
