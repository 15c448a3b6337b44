//! Class names in SQL: `label = 'cat'` on a `ClassLabel`, whose values are numbers.
//!
//! A name becomes the number of its class before type checking, so that statistics decide it like any number. Text that
//! is a number stays one, as in `ClassLabel.str2int`. Names in other columns and tables are converted row by row.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_schema::FieldRef;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::common::{Column, DFSchema, ExprSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlanBuilder, Operator, Subquery, lit};

use super::casts;
use super::digest::digest_of_value;
use super::walk::Walk;
use crate::error::Error;
use crate::features;

/// Minimum similarity for suggesting a name.
const NEAR_ENOUGH: f64 = 0.5;

/// The class names in an expression.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The number of each name, which the text of a query does not reveal.
    pub(crate) numbers: BTreeSet<String>,
    /// The error for the first unknown name.
    pub(crate) refused: Option<Error>,
}

impl Names {
    /// Returns what the text of a query leaves open, as a comment.
    pub(crate) fn comment(&self) -> String {
        self.numbers.iter().map(|number| format!("\n-- {number}")).collect()
    }

    /// Replaces names that are compared with a `ClassLabel` of `schema` by their numbers.
    pub(crate) fn number(&mut self, expr: Expr, schema: &DFSchema) -> PlanResult<Transformed<Expr>> {
        expr.transform_up(|node| {
            let numbered = match node {
                Expr::BinaryExpr(mut binary) => {
                    if let Some(number) = self.compared(&binary.left, &binary.right, Some(binary.op), schema) {
                        *binary.right = number;
                    } else if let Some(number) = self.compared(&binary.right, &binary.left, Some(binary.op), schema) {
                        *binary.left = number;
                    }
                    Transformed::yes(Expr::BinaryExpr(binary))
                }
                Expr::Between(between) => {
                    // Refused, unless the text is a number.
                    for bound in [&between.low, &between.high] {
                        self.compared(&between.expr, bound, Some(Operator::GtEq), schema);
                    }
                    Transformed::no(Expr::Between(between))
                }
                Expr::InSubquery(mut inner) => {
                    self.listed(&mut inner.subquery, &inner.expr, None, schema)?;
                    Transformed::yes(Expr::InSubquery(inner))
                }
                Expr::SetComparison(mut compared) => {
                    self.listed(&mut compared.subquery, &compared.expr, Some(compared.op), schema)?;
                    Transformed::yes(Expr::SetComparison(compared))
                }
                Expr::InList(mut list) => {
                    for item in &mut list.list {
                        self.equal(&list.expr, item, schema);
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

    /// Replaces a name, or those in a tuple, by their numbers.
    fn equal(&mut self, column: &Expr, name: &mut Expr, schema: &DFSchema) {
        if let Some(number) = self.compared(column, name, None, schema) {
            *name = number;
        } else if let (Expr::ScalarFunction(columns), Expr::ScalarFunction(names)) = (column, name)
            && columns.name() == "struct"
            && columns.func == names.func
        {
            columns.args.iter().zip(&mut names.args).for_each(|(column, name)| self.equal(column, name, schema));
        }
    }

    /// Replaces the names that a subquery returns by their numbers.
    fn listed(
        &mut self,
        subquery: &mut Subquery,
        column: &Expr,
        op: Option<Operator>,
        schema: &DFSchema,
    ) -> PlanResult<()> {
        let names = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone());
        let columns = names.schema().columns();
        let [name] = columns.as_slice() else { return Ok(()) };
        let name = Expr::Column(name.clone());
        let mut both = schema.clone();
        both.merge(names.schema());
        if let Some(number) = self.compared(column, &name, op, &both) {
            subquery.subquery = Arc::new(names.project([number])?.build()?);
        }
        Ok(())
    }

    /// Returns the number of the class `name` of `column`, if that is what they are, or an expression that finds it for
    /// each row; `op` is `None` for equality.
    fn compared(&mut self, column: &Expr, name: &Expr, op: Option<Operator>, schema: &DFSchema) -> Option<Expr> {
        use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
        let (column, field) = match column {
            Expr::Column(column) => (column, schema.field_from_column(column).ok()?),
            Expr::OuterReferenceColumn(field, column) => (column, field),
            _ => return None,
        };
        let classes = features::classes(field)?;
        let is_order = matches!(op, Some(Lt | LtEq | Gt | GtEq));
        if !is_order && !matches!(op, None | Some(Eq | NotEq | IsDistinctFrom | IsNotDistinctFrom)) {
            return None;
        }
        let Expr::Literal(value, _) = name else {
            return self.compared_by_row(column, field, name, is_order, schema);
        };
        let text = value.try_as_str()??;
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

    /// Returns the number of the class that `name`, a text column, names in each row.
    fn compared_by_row(
        &mut self,
        column: &Column,
        field: &FieldRef,
        name: &Expr,
        is_order: bool,
        schema: &DFSchema,
    ) -> Option<Expr> {
        if !name.get_type(schema).ok()?.is_string() {
            return None;
        }
        let classes = features::classes(field)?;
        if is_order {
            self.refused.get_or_insert_with(|| unknown_class(&column.name, &name.to_string(), classes, is_order));
            return None;
        }
        let classes = ScalarValue::from(serde_json::to_string(&classes).ok()?);
        self.numbers.insert(format!("`{}`: {}", column.name, digest_of_value(&classes)));
        let arguments = [field.data_type().to_string().into(), column.name.clone().into(), classes];
        let arguments = std::iter::once(name.clone()).chain(arguments.map(|of: ScalarValue| lit(of)));
        Some(casts::function().call(arguments.collect()))
    }
}

/// Returns the error for a name that is not a class of `column`.
pub(super) fn unknown_class(column: &str, name: &str, classes: Vec<String>, is_order: bool) -> Error {
    let lower = name.to_lowercase();
    let likeness = |class: &String| normalized_levenshtein(&lower, &class.to_lowercase());
    let mut near: Vec<String> = classes.iter().filter(|class| likeness(class) >= NEAR_ENOUGH).cloned().collect();
    near.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    near.truncate(3);
    let (column, name) = (column.to_owned(), name.to_owned());
    if is_order { Error::UnorderedClass { column, name } } else { Error::UnknownClass { column, name, near, classes } }
}
