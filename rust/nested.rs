//! Nested projection: of a struct, only the fields that expressions need are read.
//!
//! Where an expression takes a field of a struct, a column [within](crate::snapshot::inner) that struct stands for it. Then
//! only its pages are read, and its statistics decide what conditions on it can keep. Whether a struct is NULL its
//! cheapest field tells. A struct that something reads as a whole is left to be read as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::ScalarFunction;

use crate::engine::walk::Walk;
use crate::snapshot::inner;

/// The fields that stand for their structs in some expressions.
#[derive(Debug)]
pub(crate) struct NestedProjection {
    /// All columns of the snapshot.
    columns: SchemaRef,
    /// Their names as columns; none is within another.
    names: BTreeSet<String>,
}

impl NestedProjection {
    /// Returns that of expressions over the columns of a snapshot, which are read together, and beside the columns
    /// `whole`; `None` if no struct is replaced. `columns` are all of the snapshot, with its fields of structs.
    pub(crate) fn of<'a>(
        columns: &SchemaRef,
        exprs: impl IntoIterator<Item = &'a Expr>,
        whole: impl IntoIterator<Item = usize>,
    ) -> Option<Self> {
        let whole = whole.into_iter().map(|column| vec![columns.field(column).name().as_str()]);
        let mut wanted: BTreeSet<Vec<&str>> = whole.collect();
        for expr in exprs {
            let walked = expr.apply(|node| {
                let (path, below) = match (path_of(node, columns), node) {
                    (Some((path, _)), _) => (path, TreeNodeRecursion::Jump),
                    (None, Expr::Column(column)) => (vec![column.name.as_str()], TreeNodeRecursion::Continue),
                    (None, node) => match presence_in(node, columns) {
                        Some((path, _)) => (path, TreeNodeRecursion::Jump),
                        None => return Ok(TreeNodeRecursion::Continue),
                    },
                };
                wanted.insert(path);
                Ok(below)
            });
            walked.ok()?;
        }
        let is_within = |path: &[&str]| (1..path.len()).any(|len| wanted.contains(&path[..len]));
        let fields = wanted.iter().filter(|path| path.len() > 1 && !is_within(path));
        let names: BTreeSet<String> = fields.map(|path| inner::name(path.iter().copied())).collect();
        (!names.is_empty()).then(|| Self { columns: SchemaRef::clone(columns), names })
    }

    /// Returns an expression with fields in the place of their structs; `None` if it takes none of these.
    pub(crate) fn apply(&self, expr: &Expr) -> Option<Expr> {
        let replaced = expr.clone().transform_down(|node| {
            if let Some((path, presence)) = presence_in(&node, &self.columns)
                && self.names.contains(&inner::name(path))
            {
                let column = Box::new(Expr::Column(Column::new_unqualified(presence)));
                let node = if matches!(node, Expr::IsNull(_)) { Expr::IsNull(column) } else { Expr::IsNotNull(column) };
                return Ok(Transformed::new(node, true, TreeNodeRecursion::Jump));
            }
            let Some((path, call)) = path_of(&node, &self.columns) else { return Ok(Transformed::no(node)) };
            let prefix = (2..=path.len()).map(|len| (len, inner::name(path[..len].iter().copied())));
            let Some((len, name)) = prefix.into_iter().find(|(_, name)| self.names.contains(name)) else {
                return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
            };
            let column = Expr::Column(Column::new_unqualified(name));
            // Keys that lead on within the field.
            let keys = call.keys[len - 1..].iter().map(|key| (*key).clone());
            let args: Vec<Expr> = std::iter::once(column.clone()).chain(keys).collect();
            let taken = match args.len() {
                1 => column,
                _ => Expr::ScalarFunction(ScalarFunction { func: Arc::clone(&call.function.func), args }),
            };
            Ok(Transformed::new(taken, true, TreeNodeRecursion::Jump))
        });
        replaced.ok().filter(|replaced| replaced.transformed).map(|replaced| replaced.data)
    }
}

/// Returns the path to the struct, and beyond it to none of its fields, of which an expression is the test for NULL; and
/// the column that is its presence. `None` for other expressions, and if there is none.
fn presence_in<'a>(expr: &'a Expr, columns: &'a Schema) -> Option<(Vec<&'a str>, &'a str)> {
    let (Expr::IsNull(of) | Expr::IsNotNull(of)) = expr else { return None };
    let mut path = match of.as_ref() {
        Expr::Column(column) => vec![column.name.as_str()],
        of => {
            let (path, call) = path_of(of, columns)?;
            (path.len() == call.keys.len() + 1).then_some(path)?
        }
    };
    let presence = inner::presence_of(&inner::name(path.iter().copied()), columns)?;
    path.push("");
    Some((path, presence))
}

/// Returns an expression over the columns of a snapshot with fields in the place of structs; `None` if it takes none, or
/// also whole structs. `columns` are all of the snapshot.
pub(crate) fn of_fields(expr: &Expr, columns: &SchemaRef) -> Option<Expr> {
    NestedProjection::of(columns, [expr], [])?.apply(expr)
}

/// A call that takes a part of a column.
struct Call<'a> {
    function: &'a ScalarFunction,
    /// The keys that lead to it, outermost first.
    keys: Vec<&'a Expr>,
}

/// Returns the path through structs that an expression takes to one of `columns`; `None` if it takes none.
fn path_of<'a>(expr: &'a Expr, columns: &Schema) -> Option<(Vec<&'a str>, Call<'a>)> {
    let (column, call) = taken(expr)?;
    let mut data_type = columns.field_with_name(&column.name).ok()?.data_type();
    let mut path = vec![column.name.as_str()];
    for key in &call.keys {
        let (DataType::Struct(fields), Some(name)) = (data_type, text_of(key)) else { break };
        data_type = fields.find(name)?.1.data_type();
        path.push(name);
    }
    // Some fields cannot be read on their own.
    while path.len() > 1 && columns.index_of(&inner::name(path.iter().copied())).is_err() {
        path.pop();
    }
    (path.len() > 1).then_some((path, call))
}

/// Returns the column and the keys of nested calls of `get_field`.
fn taken(expr: &Expr) -> Option<(&Column, Call<'_>)> {
    let Expr::ScalarFunction(function) = expr else { return None };
    let (of, keys) = function.args.split_first()?;
    if function.name() != "get_field" || keys.iter().any(|key| text_of(key).is_none()) {
        return None;
    }
    match of {
        Expr::Column(column) => Some((column, Call { function, keys: keys.iter().collect() })),
        of => {
            let (column, mut call) = taken(of)?;
            call.keys.extend(keys);
            Some((column, call))
        }
    }
}

fn text_of(key: &Expr) -> Option<&str> {
    match key {
        Expr::Literal(value, _) => value.try_as_str().flatten(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Field;
    use datafusion::functions::core::expr_fn::get_field;
    use datafusion::logical_expr::{col, lit};

    use super::*;

    /// `a` and `meta`, with the fields `id`, `tags`, a map, and `place`, with `x` and `y`; then these as columns.
    fn columns() -> SchemaRef {
        let [x, y] = ["x", "y"].map(|name| Field::new(name, DataType::Int64, true));
        let key = Field::new("key", DataType::Utf8, false);
        let tags = Field::new_map("tags", "entries", key, Field::new("value", DataType::Int64, true), false, true);
        let place = Field::new_struct("place", vec![x.clone(), y], true);
        let meta = vec![x.clone().with_name("id"), tags, place];
        let schema = Schema::new(vec![x.with_name("a"), Field::new_struct("meta", meta, true)]);
        inner::with_inner(&Arc::new(schema), &mut [])
    }

    fn taken(path: &[&str]) -> Expr {
        let (column, keys) = path.split_first().unwrap();
        keys.iter().fold(col(*column), |of, key| get_field(of, *key))
    }

    /// Returns the expressions in their new form, with dots between names.
    fn replaced(exprs: &[Expr], whole: &[usize]) -> Vec<String> {
        let nested = NestedProjection::of(&columns(), exprs, whole.iter().copied());
        let shown = |expr: &Expr| {
            let expr = nested.as_ref().and_then(|nested| nested.apply(expr)).unwrap_or_else(|| expr.clone());
            inner::shown(&expr.to_string()).into_owned()
        };
        exprs.iter().map(shown).collect()
    }

    #[test]
    fn fields_stand_for_their_structs() {
        let exprs = [taken(&["meta", "id"]).gt(lit(3)).and(col("a").is_null()), taken(&["meta", "place", "x"])];
        assert_eq!(replaced(&exprs, &[0]), ["meta.id > Int32(3) AND a IS NULL", "meta.place.x"]);
        assert_eq!(replaced(&[col("a")], &[]), ["a"]);
        // What the engine makes of two keys.
        let at_once = match taken(&["meta", "place"]) {
            Expr::ScalarFunction(mut call) => {
                call.args.push(lit("y"));
                Expr::ScalarFunction(call)
            }
            other => other,
        };
        assert_eq!(replaced(&[at_once], &[]), ["meta.place.y"]);
    }

    #[test]
    fn a_struct_that_is_read_as_a_whole_stays() {
        let field = taken(&["meta", "id"]);
        assert_eq!(replaced(std::slice::from_ref(&field), &[1]), [field.to_string()]);
        let both = field.clone().is_null().or(col("meta").eq(lit(3)));
        assert_eq!(replaced(std::slice::from_ref(&both), &[]), [both.to_string()]);
    }

    #[test]
    fn the_cheapest_field_tells_whether_a_struct_is_null() {
        let exprs = [col("meta").is_null(), taken(&["meta", "place"]).is_not_null(), taken(&["meta", "id"]).is_null()];
        let nested = NestedProjection::of(&columns(), &exprs, []).unwrap();
        let names = exprs.iter().map(|expr| match nested.apply(expr).unwrap() {
            Expr::IsNull(of) | Expr::IsNotNull(of) => of.to_string(),
            other => other.to_string(),
        });
        let names: Vec<String> = names.collect();
        assert_eq!(names, ["meta\0\0id", "meta\0place\0\0x", "meta\0id"]);
        assert_eq!(inner::shown(&names[1]), "meta.place");
        // What is read as a whole tells it, too.
        assert_eq!(replaced(&[col("meta").is_null()], &[1]), ["meta IS NULL"]);
    }

    #[test]
    fn a_struct_within_one_stays_if_it_is_read_as_a_whole() {
        let exprs = [taken(&["meta", "place"]), taken(&["meta", "place", "x"]), taken(&["meta", "id"])];
        assert_eq!(replaced(&exprs, &[]), ["meta.place", "get_field(meta.place, Utf8(\"x\"))", "meta.id"]);
    }

    #[test]
    fn keys_of_maps_are_no_fields() {
        let exprs = [taken(&["meta", "tags", "x"])];
        assert_eq!(replaced(&exprs, &[]), ["get_field(meta.tags, Utf8(\"x\"))"]);
    }
}
