//! Chooses the form of each column: by its type, what footers and filters prove, and what the user requests.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use arrow_schema::{DataType, Field, IntervalUnit};

use super::evidence::Evidence;
use super::tensor::Element;
use super::{Form, convert};
use crate::dataset::{Answer, Dataset};
use crate::error::{DATASET, Error, Result};

/// A form that is requested by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A dense tensor; for lists, all rows must have one length.
    Tensor,
    /// Values and offsets; of strings: bytes and offsets.
    Ragged,
    /// A `torch.nested` tensor.
    Nested,
    /// Python objects.
    List,
    /// Indices and dictionary.
    Dictionary,
    /// Bytes reinterpreted as these elements, or decimals converted to them.
    Cast(Element),
}

impl FromStr for Request {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "tensor" => Self::Tensor,
            "ragged" => Self::Ragged,
            "nested" => Self::Nested,
            "list" => Self::List,
            "dictionary" => Self::Dictionary,
            other => {
                Self::Cast(Element::named(other).filter(|element| *element != Element::Bool).ok_or_else(|| {
                    let reason = format!(
                        "expected 'tensor', 'ragged', 'nested', 'list', 'dictionary', or a dtype such as 'float32' or \
                         'bfloat16', got '{other}'"
                    );
                    Error::Setting { name: "forms", reason }
                })?)
            }
        })
    }
}

/// The library whose tensors columns become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// PyTorch.
    Torch,
    /// NumPy, which has no bfloat16.
    NumPy,
    /// JAX by default, which truncates 64-bit numbers to 32 bits.
    Jax32,
    /// JAX with 64-bit numbers, or TensorFlow.
    Other,
}

impl Target {
    /// Returns what to do if the library does not support `element`.
    fn objection(self, element: Element) -> Option<&'static str> {
        match self {
            Self::NumPy if element == Element::BFloat16 => {
                Some("NumPy has no bfloat16; ask for `forms={\"...\": \"uint16\"}`")
            }
            Self::Jax32 if element.size_bytes() == 8 => Some(
                "JAX would cut its 64-bit numbers to 32 bits; call `jax.config.update(\"jax_enable_x64\", True)` first, or \
                 leave the column out",
            ),
            _ => None,
        }
    }
}

impl Dataset {
    /// Returns the form of each column in batches for `target`, with `requests` by path: fields of structs as
    /// `struct.field`.
    ///
    /// # Errors
    ///
    /// [`Error::NoTensor`] for the first column without a form, or without the requested one, and
    /// [`Error::UnknownColumn`] for a path that does not exist.
    pub(crate) fn forms(
        &self,
        answer: &Answer,
        requests: &BTreeMap<String, Request>,
        target: Target,
    ) -> Result<Vec<Form>> {
        let mut chooser = Chooser { requests, target, seen: BTreeSet::new() };
        let columns = self.origins().iter().zip(self.schema().fields());
        let forms = columns.map(|(origin, field)| {
            let evidence = self.evidence(answer, origin, field);
            chooser.form_of(field.name(), field, &evidence)
        });
        let forms = forms.collect::<Result<Vec<_>>>()?;
        match requests.keys().find(|path| !chooser.seen.contains(*path)) {
            None => Ok(forms),
            Some(path) => {
                let available = chooser.seen.into_iter().collect();
                let column = path.clone();
                Err(Error::UnknownColumn { column, near: Vec::new(), available, owner: DATASET, hint: "" })
            }
        }
    }
}

struct Chooser<'a> {
    requests: &'a BTreeMap<String, Request>,
    target: Target,
    /// All existing paths.
    seen: BTreeSet<String>,
}

impl Chooser<'_> {
    fn form_of(&mut self, path: &str, field: &Field, evidence: &Evidence) -> Result<Form> {
        self.seen.insert(path.to_owned());
        let form = match self.requests.get(path) {
            Some(request) => self.requested(*request, path, field, evidence)?,
            None => self.default_of(path, field, evidence)?,
        };
        Ok(if evidence.may_be_null { form.masked() } else { form })
    }

    fn default_of(&mut self, path: &str, field: &Field, evidence: &Evidence) -> Result<Form> {
        if is_dense(field) {
            self.check_element(path, field)?;
            let has_null_items = evidence.children.iter().any(Evidence::may_hold_null);
            return Ok(if has_null_items { Form::MaskedElements } else { Form::Tensor });
        }
        match field.data_type() {
            DataType::List(item) | DataType::LargeList(item)
                if is_dense(item) && evidence.has_one_length && !evidence.may_hold_null() =>
            {
                self.check_element(path, item)?;
                Ok(Form::Tensor)
            }
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Map(..) => {
                Ok(match self.items_of(path, field, evidence)? {
                    Form::Objects => Form::Objects,
                    items => Form::Ragged(Box::new(items)),
                })
            }
            DataType::Struct(fields) => {
                let children = fields.iter().zip(&evidence.children);
                let forms = children
                    .map(|(child, evidence)| self.form_of(&format!("{path}.{}", child.name()), child, evidence));
                Ok(Form::Struct(forms.collect::<Result<_>>()?))
            }
            DataType::Dictionary(_, values) => {
                let values = Field::new(field.name(), values.as_ref().clone(), false);
                Ok(match self.default_of(path, &values, evidence)? {
                    Form::Objects => Form::Objects,
                    values => Form::Decoded(Box::new(values)),
                })
            }
            data_type if convert::has_objects(data_type) => Ok(Form::Objects),
            // That of Parquet, for which there is no reader.
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                Err(refuse(path, field, "it cannot be read; leave it out with `remove_columns`"))
            }
            _ => Err(refuse(
                path,
                field,
                "ask for Python objects with `forms={\"...\": \"list\"}`, leave it out with `remove_columns`, or iterate \
                 Arrow batches with `batches()`",
            )),
        }
    }

    /// Returns the form of a list's items or a map's entries, which have the list's path.
    fn items_of(&mut self, path: &str, field: &Field, evidence: &Evidence) -> Result<Form> {
        let (DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _)) = field.data_type()
        else {
            return Err(refuse(path, field, "it is not a list"));
        };
        let form = self.default_of(path, item, &evidence.children[0])?;
        Ok(if evidence.children[0].may_be_null { form.masked() } else { form })
    }

    fn requested(&mut self, request: Request, path: &str, field: &Field, evidence: &Evidence) -> Result<Form> {
        let data_type = field.data_type();
        match (request, data_type) {
            (Request::List, _) => Ok(Form::Objects),
            (Request::Tensor, _) if !is_dense(field) && is_dense_at_one_length(field) => {
                self.check_element(path, field)?;
                if evidence.may_hold_null() {
                    let hint = format!("it may hold nulls; filter with `{path} IS NOT NULL`, or ask for 'ragged'");
                    return Err(refuse(path, field, &hint));
                }
                if evidence.has_other_lengths {
                    return Err(refuse(path, field, "its rows differ in length; ask for 'ragged' or 'nested'"));
                }
                Ok(Form::Tensor)
            }
            (Request::Tensor, _) if is_dense(field) => self.default_of(path, field, evidence),
            (Request::Tensor, DataType::Dictionary(_, values)) if Element::of(&unnamed(values)).is_some() => {
                self.default_of(path, field, evidence)
            }
            (Request::Ragged, DataType::List(_) | DataType::LargeList(_) | DataType::Map(..)) => {
                Ok(Form::Ragged(Box::new(self.items_of(path, field, evidence)?)))
            }
            (Request::Ragged, data_type) if is_bytes(data_type) => Ok(Form::Bytes),
            (Request::Nested, DataType::List(item) | DataType::LargeList(item)) if is_dense(item) => {
                if self.target != Target::Torch {
                    return Err(refuse(path, field, "only PyTorch has nested tensors; ask for 'ragged'"));
                }
                if evidence.children.iter().any(Evidence::may_hold_null) {
                    return Err(refuse(path, field, "its items may be null, which nested tensors cannot represent"));
                }
                Ok(Form::Nested)
            }
            (Request::Dictionary, DataType::Dictionary(_, values)) => {
                let values = Field::new(field.name(), values.as_ref().clone(), false);
                Ok(Form::Indices(Box::new(self.default_of(path, &values, evidence)?)))
            }
            (Request::Cast(element), _) => self.cast(element, path, field, evidence),
            _ => {
                let hint = "not in the form asked for: 'tensor' is for numbers and lists of them, 'ragged' for lists, \
                            strings and binary, 'nested' for lists of numbers, 'dictionary' for dictionaries";
                Err(refuse(path, field, hint))
            }
        }
    }

    fn cast(&self, element: Element, path: &str, field: &Field, evidence: &Evidence) -> Result<Form> {
        let bytes = element.size_bytes();
        let refuse = |hint: String| Err(refuse(path, field, &hint));
        if let Some(objection) = self.target.objection(element) {
            return refuse(objection.into());
        }
        match field.data_type() {
            DataType::FixedSizeBinary(width) if usize::try_from(*width).unwrap_or(0).is_multiple_of(bytes) => {
                Ok(Form::Cast(element))
            }
            DataType::Binary | DataType::LargeBinary if evidence.may_be_null => {
                refuse(format!("rows without a value have no {element}; filter with `{path} IS NOT NULL`"))
            }
            DataType::Binary | DataType::LargeBinary => Ok(Form::Cast(element)),
            data_type if is_decimal(data_type) => match element {
                Element::Float(32 | 64) | Element::Int(64) => Ok(Form::Cast(element)),
                _ => refuse(
                    "a decimal becomes 'float64' or 'float32', rounded, or 'int64', which counts units of its last \
                     digit"
                        .into(),
                ),
            },
            // Unsigned integers hold bits that have no type of their own.
            _ if Element::of(field) == u8::try_from(bytes * 8).ok().map(Element::UInt) => Ok(Form::Cast(element)),
            DataType::Utf8 | DataType::LargeUtf8 => {
                refuse(format!("text cannot be read as {element}; write the column as binary"))
            }
            DataType::FixedSizeBinary(width) => {
                refuse(format!("its {width} bytes a row are not a whole number of {element}"))
            }
            _ => refuse(format!(
                "its bytes cannot be taken as {element}; convert the tensor itself, as in `.to(torch.float32)`"
            )),
        }
    }

    fn check_element(&self, path: &str, field: &Field) -> Result<()> {
        let objection = innermost(field, true).and_then(|element| self.target.objection(element));
        objection.map_or(Ok(()), |objection| Err(refuse(path, field, objection)))
    }
}

/// Returns whether a column's type makes it one dense tensor.
fn is_dense(field: &Field) -> bool {
    innermost(field, false).is_some()
}

/// Returns whether a column is one dense tensor if all its lists have one length.
fn is_dense_at_one_length(field: &Field) -> bool {
    innermost(field, true).is_some()
}

/// Returns the elements of a column of numbers, or of fixed-size lists of them; also of other lists if `through_lists`.
fn innermost(field: &Field, through_lists: bool) -> Option<Element> {
    match field.data_type() {
        DataType::FixedSizeList(item, _) => innermost(item, through_lists),
        DataType::List(item) | DataType::LargeList(item) if through_lists => innermost(item, through_lists),
        DataType::FixedSizeBinary(_) => Some(Element::of(field).unwrap_or(Element::UInt(8))),
        _ => Element::of(field),
    }
}

fn unnamed(data_type: &DataType) -> Field {
    Field::new("", data_type.clone(), false)
}

fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary)
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..)
    )
}

fn refuse(path: &str, field: &Field, hint: &str) -> Error {
    Error::NoTensor { column: path.to_owned(), data_type: Box::new(field.data_type().clone()), hint: hint.to_owned() }
}
