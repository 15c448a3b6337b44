//! Names of classes in SQL: `label = 'cat'` on a `ClassLabel`, whose values are numbers.
//!
//! A name becomes the number of its class before types are checked, so that statistics decide it like any number. Text
//! that is a number stays one, as in `ClassLabel.str2int`.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::common::{DFSchema, ExprSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::{Expr, Operator, lit};

use crate::error::Error;
use crate::features;

/// How alike a name must be to one that is not there.
const NEAR_ENOUGH: f64 = 0.5;

/// What became of the names in an expression.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Which number each stands for: what the text of a query does not say.
    pub(crate) numbers: BTreeSet<String>,
    /// The first name that no class has.
    pub(crate) refused: Option<Error>,
}

impl Names {
    /// Returns what the text of a query leaves open, as a comment to it.
    pub(crate) fn comment(&self) -> String {
        self.numbers.iter().map(|number| format!("\n-- {number}")).collect()
    }

    /// Puts numbers in the place of names that are compared with a `ClassLabel` of `schema`.
    pub(crate) fn number(&mut self, expr: Expr, schema: &DFSchema) -> PlanResult<Transformed<Expr>> {
        expr.transform_up(|node| {
            let numbered = match node {
                Expr::BinaryExpr(mut binary) => {
                    let (column, name) = match binary.right.as_ref() {
                        Expr::Literal(..) => (&binary.left, &binary.right),
                        _ => (&binary.right, &binary.left),
                    };
                    let number = self.compared(column, name, Some(binary.op), schema);
                    match number {
                        None => Transformed::no(Expr::BinaryExpr(binary)),
                        Some(number) => {
                            let is_right = matches!(binary.right.as_ref(), Expr::Literal(..));
                            **(if is_right { &mut binary.right } else { &mut binary.left }) = number;
                            Transformed::yes(Expr::BinaryExpr(binary))
                        }
                    }
                }
                Expr::InList(mut list) => {
                    for item in &mut list.list {
                        if let Some(number) = self.compared(&list.expr, item, None, schema) {
                            *item = number;
                        }
                    }
                    Transformed::yes(Expr::InList(list))
                }
                Expr::Case(mut case) => {
                    if let Some(column) = &case.expr {
                        for (when, _) in &mut case.when_then_expr {
                            if let Some(number) = self.compared(column, when, None, schema) {
                                **when = number;
                            }
                        }
                    }
                    Transformed::yes(Expr::Case(case))
                }
                other => Transformed::no(other),
            };
            let goes_on = if self.refused.is_none() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop };
            Ok(Transformed { tnr: goes_on, ..numbered })
        })
    }

    /// Returns the number of the class `name` of `column`, if it is the name of one; `op` is `None` for equality.
    fn compared(&mut self, column: &Expr, name: &Expr, op: Option<Operator>, schema: &DFSchema) -> Option<Expr> {
        use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
        let (Expr::Column(column), Expr::Literal(value, _)) = (column, name) else { return None };
        let (ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text)) = value else {
            return None;
        };
        let (text, field) = (text.as_ref()?, schema.field_from_column(column).ok()?);
        let classes = features::classes(field)?;
        let is_order = matches!(op, Some(Lt | LtEq | Gt | GtEq));
        if !is_order && !matches!(op, None | Some(Eq | NotEq | IsDistinctFrom | IsNotDistinctFrom)) {
            return None;
        }
        match classes.iter().position(|class| class == text) {
            Some(number) if !is_order => {
                self.numbers.insert(format!("`{}`: {text:?} is {number}", column.name));
                Some(lit(i64::try_from(number).unwrap_or(i64::MAX)))
            }
            None if text.trim().parse::<i64>().is_ok() => None,
            _ => {
                self.refused.get_or_insert_with(|| unknown_class(&column.name, text, classes, is_order));
                None
            }
        }
    }
}

/// Returns the error about a name that no class of `column` has.
pub(super) fn unknown_class(column: &str, name: &str, classes: Vec<String>, is_order: bool) -> Error {
    let lower = name.to_lowercase();
    let likeness = |class: &String| normalized_levenshtein(&lower, &class.to_lowercase());
    let mut near: Vec<String> = classes.iter().filter(|class| likeness(class) >= NEAR_ENOUGH).cloned().collect();
    near.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    near.truncate(3);
    let (column, name) = (column.to_owned(), name.to_owned());
    if is_order { Error::UnorderedClass { column, name } } else { Error::UnknownClass { column, name, near, classes } }
}
