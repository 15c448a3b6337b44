//! Numeric literals compared with integers and decimals, taken exactly as written.
//!
//! The engine reads a number with a point, or one that does not fit into 64 bits, as a double, and compares a decimal
//! with it to 15 digits after the point, and an integer as a double: in both cases with another number than was
//! written. So what is compared with an integer or a decimal becomes a literal of the same type. If the type cannot
//! hold it, the comparison uses the number before it: `i < 1.5` becomes `i <= 1`, and statistics decide it like any
//! other. The same is done with parameter values, taking a double as the number that it is printed as. Decimal and
//! float columns are compared as floats.
//!
//! Everywhere else a number stays a double. If a double cannot hold it, its text is passed through the planner as
//! [`WRITTEN`] text that is cast to a double.

use std::ops::ControlFlow;

use arrow_schema::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{
    Between, BinaryExpr, Case, Cast, Expr, ExprSchemable, Operator, TryCast, binary_expr, cast, lit, not,
};
use datafusion::sql::sqlparser::ast;

use super::any;
use super::digits::{Grid, Number, Place};
use super::floats::is_comparison;
use super::walk::{self, Walk};

/// Prefix of the text of a number that a double cannot hold; nobody writes one like this.
const WRITTEN: &str = "00";

/// Protects the digits of numbers that are compared, or cast to another type, from the planner, which makes doubles of
/// them.
pub(crate) fn keep_digits(node: &mut impl ast::VisitMut) {
    let _: ControlFlow<()> = walk::visit_expressions_mut(node, |expr| {
        match expr {
            ast::Expr::BinaryOp { left, op, right } if is_comparison_of_text(op) => {
                keep(left);
                keep(right);
            }
            ast::Expr::IsDistinctFrom(left, right) | ast::Expr::IsNotDistinctFrom(left, right) => {
                keep(left);
                keep(right);
            }
            ast::Expr::Between { low, high, .. } => {
                keep(low);
                keep(high);
            }
            ast::Expr::InList { list, .. } => list.iter_mut().for_each(keep),
            ast::Expr::Case { operand: Some(_), conditions, .. } => {
                conditions.iter_mut().for_each(|when| keep(&mut when.condition));
            }
            ast::Expr::Cast { expr, .. } => keep(expr),
            _ => {}
        }
        ControlFlow::Continue(())
    });
}

fn is_comparison_of_text(op: &ast::BinaryOperator) -> bool {
    use ast::BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

fn keep(operand: &mut ast::Expr) {
    let number = |expr: &ast::Expr| match expr {
        ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(text, _), .. }) => Some(text.replace('_', "")),
        _ => None,
    };
    let (sign, text) = match operand {
        ast::Expr::Nested(inner) | ast::Expr::UnaryOp { op: ast::UnaryOperator::Plus, expr: inner } => {
            return keep(inner);
        }
        ast::Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr: inner } => {
            // A number is read together with its sign.
            if let ast::Expr::Nested(nested) = inner.as_mut()
                && number(nested).is_some()
            {
                *inner = std::mem::replace(nested, Box::new(ast::Expr::value(ast::Value::Null)));
            }
            match number(inner) {
                Some(text) => ("-", text),
                None => return keep(inner),
            }
        }
        _ => match number(operand) {
            Some(text) => ("", text),
            None => return,
        },
    };
    let signed = format!("{sign}{text}");
    if signed.parse::<i64>().is_ok() || signed.parse::<u64>().is_ok() {
        return;
    }
    let (Some(number), Ok(double)) = (Number::parse(&signed), signed.parse::<f64>()) else { return };
    if Number::of_double(double).as_ref() != Some(&number) {
        let text = ast::Value::SingleQuotedString(format!("{sign}{WRITTEN}{text}"));
        *operand = ast::Expr::Cast {
            kind: ast::CastKind::Cast,
            expr: Box::new(ast::Expr::value(text)),
            data_type: ast::DataType::DoublePrecision,
            array: false,
            format: None,
        };
    }
}

/// Turns `x = ANY(values)` with known values into an `IN`, whose values are compared one by one, each in its own type.
///
/// The engine casts either side to the type of the other: it has no cast between decimals and integers, nor between
/// units of time, makes doubles of large integers, and truncates timestamps.
pub(crate) fn with_known_members(expr: Expr) -> PlanResult<Transformed<Expr>> {
    expr.transform_up(|node| {
        let Expr::ScalarFunction(call) = &node else { return Ok(Transformed::no(node)) };
        let is_any = any::list_and_value(call).is_some();
        let (list, sought) = match call.args.as_slice() {
            [list, sought] if is_any || call.name() == "array_has" => (list, sought),
            _ => return Ok(Transformed::no(node)),
        };
        Ok(Transformed::yes(match members_of(list) {
            Some(members) if members.is_empty() => lit(false),
            Some(members) => Expr::InList(InList::new(Box::new(sought.clone()), members, false)),
            None if is_any => any::is_member(list, sought),
            None => return Ok(Transformed::no(node)),
        }))
    })
}

/// Returns the values of a list that is a literal or a parameter.
fn members_of(list: &Expr) -> Option<Vec<Expr>> {
    match list {
        Expr::ScalarFunction(made) if made.name() == "make_array" => Some(made.args.clone()),
        Expr::Literal(value, _) if !value.is_null() && value.data_type().is_list() => {
            let lists = ScalarValue::convert_array_to_scalar_vec(&value.to_array().ok()?).ok()?;
            Some(lists.into_iter().flatten().flatten().map(lit).collect())
        }
        _ => None,
    }
}

/// Makes numbers that are compared with integers and decimals, or cast to decimals, exact.
pub(crate) fn compared_exactly(expr: Expr, schema: &DFSchema) -> PlanResult<Transformed<Expr>> {
    expr.transform_up(|node| {
        let replaced = match &node {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
                compared(left, *op, right, schema)
                    .or_else(|| compared(right, op.swap().unwrap_or(*op), left, schema))
                    .or_else(|| of_columns(left, *op, right, schema))
            }
            Expr::Between(between) => of_between(between, |column, op, bound| {
                compared(column, op, bound, schema).or_else(|| of_columns(column, op, bound, schema))
            }),
            Expr::InList(list) => of_list(list, schema),
            Expr::Case(case) => of_case(case, schema),
            Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
                rounded(expr, field.data_type())
            }
            _ => None,
        };
        Ok(replaced.map_or_else(|| Transformed::no(node), Transformed::yes))
    })
}

/// Compares the bounds of a `BETWEEN` separately; `None` if `compared` changes neither.
pub(super) fn of_between(between: &Between, compared: impl Fn(&Expr, Operator, &Expr) -> Option<Expr>) -> Option<Expr> {
    let Between { expr, negated, low, high } = between;
    let (from, to) = (compared(expr, Operator::GtEq, low), compared(expr, Operator::LtEq, high));
    if from.is_none() && to.is_none() {
        return None;
    }
    let as_written = |op, bound: &Expr| binary_expr(expr.as_ref().clone(), op, bound.clone());
    let from = from.unwrap_or_else(|| as_written(Operator::GtEq, low));
    let to = to.unwrap_or_else(|| as_written(Operator::LtEq, high));
    Some(negated_if(*negated, from.and(to)))
}

/// Numbers that the type cannot hold are left out: nothing equals them.
fn of_list(list: &InList, schema: &DFSchema) -> Option<Expr> {
    let InList { expr, list, negated } = list;
    let data_type = expr.get_type(schema).ok()?;
    let (mut is_same, mut kept) = (true, Vec::with_capacity(list.len()));
    for item in list {
        match place_of(item, &data_type) {
            None => kept.push(item.clone()),
            Some(Place::At(value)) => {
                is_same = false;
                kept.push(lit(value));
            }
            Some(_) => is_same = false,
        }
    }
    if is_same {
        return None;
    }
    if kept.is_empty() {
        let most = Grid::of(&data_type)?.most()?;
        return Some(negated_if(*negated, expr.as_ref().clone().gt(lit(most))));
    }
    Some(Expr::InList(InList::new(expr.clone(), kept, *negated)))
}

/// A number that the type cannot hold becomes NULL, which equals nothing either.
fn of_case(case: &Case, schema: &DFSchema) -> Option<Expr> {
    let data_type = case.expr.as_ref()?.get_type(schema).ok()?;
    let mut replaced = case.clone();
    let mut is_same = true;
    for (when, _) in &mut replaced.when_then_expr {
        if let Some(place) = place_of(when, &data_type) {
            let value = if let Place::At(value) = place { value } else { ScalarValue::try_from(&data_type).ok()? };
            **when = lit(value);
            is_same = false;
        }
    }
    (!is_same).then_some(Expr::Case(replaced))
}

/// Returns `expr`, or its negation.
pub(super) fn negated_if(is_negated: bool, expr: Expr) -> Expr {
    if is_negated { not(expr) } else { expr }
}

/// Returns the equivalent of a comparison between integers or decimals and a literal, with a literal of their type.
fn compared(column: &Expr, op: Operator, literal: &Expr, schema: &DFSchema) -> Option<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    // Most comparisons have none, and computing the operands' types takes time.
    if !is_number(literal) {
        return None;
    }
    let data_type = column.get_type(schema).ok()?;
    let with = |op, value: ScalarValue| Some(binary_expr(column.clone(), op, lit(value)));
    let place = match place_of(literal, &data_type)? {
        Place::At(value) => return with(op, value),
        other => other,
    };
    let most = Grid::of(&data_type)?.most()?;
    match (op, place) {
        // Never true, or true unless NULL.
        (Eq, _) => with(Gt, most),
        (NotEq, _) => with(LtEq, most),
        (IsDistinctFrom, _) => Some(lit(true)),
        (IsNotDistinctFrom, _) => Some(lit(false)),
        (Lt | LtEq, Place::After(before)) => with(LtEq, before),
        (Gt | GtEq, Place::After(before)) => with(Gt, before),
        (Lt | LtEq, Place::Below(least)) => with(Lt, least),
        (Gt | GtEq, Place::Below(least)) => with(GtEq, least),
        _ => None,
    }
}

/// Compares decimals with floats as floats. The engine would convert the floats to decimals, which have no infinity and
/// no NaN.
fn of_columns(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    if matches!(left, Expr::Literal(..)) || matches!(right, Expr::Literal(..)) {
        return None;
    }
    let (of_left, of_right) = (left.get_type(schema).ok()?, right.get_type(schema).ok()?);
    let as_float = |decimal: &Expr| cast(decimal.clone(), DataType::Float64);
    match (of_left.is_decimal(), of_right.is_decimal()) {
        (true, false) if of_right.is_floating() => Some(binary_expr(as_float(left), op, right.clone())),
        (false, true) if of_left.is_floating() => Some(binary_expr(left.clone(), op, as_float(right))),
        _ => None,
    }
}

/// Returns the decimal literal for a cast of a number to a decimal type.
fn rounded(literal: &Expr, data_type: &DataType) -> Option<Expr> {
    if !data_type.is_decimal() || !is_number(literal) {
        return None;
    }
    Grid::of(data_type)?.rounded(&number_of(literal)?).map(lit)
}

/// Returns the position of a literal among the numbers of a type; `None` if the engine compares it exactly, or it is
/// not a number.
fn place_of(literal: &Expr, data_type: &DataType) -> Option<Place> {
    let is_a = |is: fn(&DataType) -> bool| matches!(literal, Expr::Literal(value, _) if is(&value.data_type()));
    if data_type.is_floating() {
        if !is_a(DataType::is_decimal) {
            return None;
        }
        // The engine would convert the floats to decimals, which have no NaN. It compares narrow floats as doubles.
        return Some(Place::At(ScalarValue::Float64(Some(number_of(literal)?.to_double()?))));
    }
    let grid = Grid::of(data_type)?;
    if grid.is_of_integers() && is_a(DataType::is_integer) {
        return None;
    }
    grid.place(&number_of(literal).or_else(|| beyond_all(literal))?)
}

/// Returns a number beyond the range of any type for an infinity or NaN, which is above everything.
fn beyond_all(literal: &Expr) -> Option<Number> {
    let double = match literal {
        Expr::Literal(ScalarValue::Float64(Some(double)), _) => *double,
        Expr::Literal(ScalarValue::Float32(Some(float)), _) => f64::from(*float),
        _ => return None,
    };
    if double.is_finite() {
        return None;
    }
    Number::parse(if double == f64::NEG_INFINITY { "-1e1000" } else { "1e1000" })
}

/// Returns whether [`number_of`] may find a number.
fn is_number(literal: &Expr) -> bool {
    match literal {
        Expr::Literal(value, _) => value.data_type().is_numeric(),
        Expr::Negative(negated) => is_number(negated),
        Expr::Cast(cast) => written(cast).is_some(),
        _ => false,
    }
}

/// Returns the number in a literal.
fn number_of(literal: &Expr) -> Option<Number> {
    match literal {
        Expr::Literal(value, _) => Number::of_value(value),
        Expr::Negative(negated) => number_of(negated).map(Number::negated),
        Expr::Cast(cast) => Number::parse(written(cast)?),
        _ => None,
    }
}

/// Returns the text of a number that [`keep_digits`] preserved.
fn written(cast: &Cast) -> Option<&str> {
    let Expr::Literal(ScalarValue::Utf8(Some(text)), _) = cast.expr.as_ref() else { return None };
    let is_kept = *cast.field.data_type() == DataType::Float64 && text.trim_start_matches('-').starts_with(WRITTEN);
    is_kept.then_some(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow_schema::{Field, Schema};

    use super::*;
    use crate::selection::parse;

    fn parsed(text: &str, parameters: &[(&str, ScalarValue)]) -> String {
        let fields = [
            ("i", DataType::Int64),
            ("u", DataType::UInt64),
            ("d", DataType::Decimal128(20, 2)),
            ("x", DataType::Float64),
            ("h", DataType::Float32),
        ];
        let schema = Arc::new(Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec()));
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        parse::parse(text, &schema, &parameters.collect::<BTreeMap<_, _>>()).unwrap().expr.to_string()
    }

    #[test]
    fn integers_and_decimals_are_compared_with_what_is_written() {
        for (written, same) in [
            ("i < 1.5", "i <= 1"),
            ("i >= 1.5", "i > 1"),
            ("1.5 > i", "i <= 1"),
            ("i = 5.0", "i = 5"),
            ("i > -1.5", "i > -2"),
            ("i BETWEEN 1.5 AND 3.5", "i > 1 AND i <= 3"),
            ("i NOT BETWEEN 1.5 AND 3.5", "NOT (i > 1 AND i <= 3)"),
            ("i IN (1.5, 2.0, 3.0)", "i IN (2, 3)"),
            ("CASE i WHEN 2.0 THEN true ELSE false END", "CASE i WHEN 2 THEN true ELSE false END"),
            ("i > 9223372036854775808.0", "i > 9223372036854775807"),
            ("i >= -9223372036854775809", "i >= -9223372036854775808"),
            ("i = -(9223372036854775808)", "i = -9223372036854775808"),
            ("u < 18446744073709551616", "u <= 18446744073709551615"),
            ("u > 18446744073709551614.5", "u > 18446744073709551614"),
            ("u >= -0.5", "u > -1.5"),
            ("d > 1.005", "d > '1.00'"),
            ("d = 1234567890123456.13", "d = '1234567890123456.13'"),
            ("d = (-1234567890123456.13)", "d = '-1234567890123456.13'"),
            ("d = - (1234567890123456.13)", "d = '-1234567890123456.13'"),
            ("d IN (1234567890123456.12, 1)", "d IN ('1234567890123456.12', '1')"),
            ("d = 1234567890123456.125::DECIMAL(20, 2)", "d = '1234567890123456.13'"),
            ("d IS NOT DISTINCT FROM 1.5", "d IS NOT DISTINCT FROM '1.5'"),
            ("x > 1.5::DECIMAL(3, 1)", "x > 1.5"),
            ("h >= 16777216.5::DECIMAL(20, 2)", "h >= 16777216.5"),
            ("x > 0.12345678901234567890", "x > 0.12345678901234568"),
            ("x * 1.5 > i", "x * 1.5 > CAST(i AS DOUBLE)"),
            ("d < x", "CAST(d AS DOUBLE) < x"),
            ("h <> d", "h <> CAST(d AS DOUBLE)"),
            ("d BETWEEN x AND 5", "CAST(d AS DOUBLE) >= x AND d <= 5"),
        ] {
            assert_eq!(parsed(written, &[]), parsed(same, &[]), "{written}");
        }
    }

    #[test]
    fn values_of_parameters_are_compared_as_they_are_printed() {
        let decimal = |units| ScalarValue::Decimal128(Some(units), 38, 10);
        for (written, value, same) in [
            ("d = $v", ScalarValue::Float64(Some(0.1)), "d = '0.1'"),
            ("i > $v", ScalarValue::Float64(Some(1.5)), "i > 1"),
            ("d > $v", decimal(10_050_000_000), "d > '1.00'"),
            ("i < $v", decimal(15_000_000_000), "i <= 1"),
            ("x < $v", decimal(15_000_000_000), "x < 1.5"),
            ("i < $v", ScalarValue::Float64(Some(f64::INFINITY)), "i <= 9223372036854775807"),
            ("i < $v", ScalarValue::Float64(Some(f64::NAN)), "i <= 9223372036854775807"),
            ("u >= $v", ScalarValue::Float64(Some(f64::NEG_INFINITY)), "u >= -0.5"),
            ("i IN (1, $v)", ScalarValue::Float64(Some(f64::INFINITY)), "i IN (1)"),
        ] {
            assert_eq!(parsed(written, &[("v", value)]), parsed(same, &[]), "{written}");
        }
    }

    #[test]
    fn lists_of_another_type_are_searched_value_by_value() {
        let doubles = [1.0, 0.5, f64::NAN].map(|double| ScalarValue::Float64(Some(double)));
        let doubles = ScalarValue::List(ScalarValue::new_list_nullable(&doubles, &DataType::Float64));
        let integers = [1, 0].map(|integer| ScalarValue::Int64(Some(integer)));
        let integers = ScalarValue::List(ScalarValue::new_list_nullable(&integers, &DataType::Int64));
        for (written, value, same) in [
            ("i = ANY($v)", &doubles, "i IN (1)"),
            ("d = ANY($v)", &doubles, "d IN ('1', '0.5')"),
            ("u = ANY($v)", &integers, "u IN (1, 0)"),
            ("d = ANY($v)", &integers, "d IN ('1', '0')"),
            ("NOT i = ANY($v)", &doubles, "NOT i IN (1)"),
        ] {
            assert_eq!(parsed(written, &[("v", value.clone())]), parsed(same, &[]), "{written}");
        }
    }
}
