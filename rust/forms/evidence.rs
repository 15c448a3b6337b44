//! What footers and filters prove about a column before anything is read: no nulls here, lists of one length.
//!
//! A footer counts the missing values of a leaf, at whatever level; newer ones count by level. An empty list counts as
//! one of them.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};

use crate::dataset::outputs::{Computed, Origin};
use crate::dataset::{Answer, Dataset};
use crate::rows::RowSet;
use crate::selection::Selection;
use crate::snapshot::inner::num_leaves;
use crate::snapshot::{Fragment, levels_of};

/// What is known about a column, or a part of it.
#[derive(Debug)]
pub(super) struct Evidence {
    /// False if it is proven that no kept row has a NULL here.
    pub(super) may_be_null: bool,
    /// For the fields of a struct, the items of a list, or the entries of a map.
    pub(super) children: Vec<Self>,
    /// Whether all kept row groups have as many items as lists of one length would.
    pub(super) has_one_length: bool,
    /// Whether some fully kept row group does not.
    pub(super) has_other_lengths: bool,
}

impl Evidence {
    /// Returns whether the column, or anything in it, may be NULL.
    pub(super) fn may_hold_null(&self) -> bool {
        self.may_be_null || self.children.iter().any(Self::may_hold_null)
    }

    fn new(field: &Field) -> Self {
        let children = children_of(field.data_type()).iter().map(|child| Self::new(child)).collect();
        Self { may_be_null: false, children, has_one_length: false, has_other_lengths: false }
    }

    /// Returns what is known about unseen values.
    fn unknown(field: &Field) -> Self {
        let children = children_of(field.data_type()).iter().map(|child| Self::unknown(child)).collect();
        Self { may_be_null: field.is_nullable(), children, has_one_length: false, has_other_lengths: false }
    }

    /// Returns what is known about given values.
    fn of_array(array: &ArrayRef) -> Self {
        let children = match array.data_type() {
            DataType::List(_) => vec![Self::of_array(array.as_list::<i32>().values())],
            DataType::LargeList(_) => vec![Self::of_array(array.as_list::<i64>().values())],
            DataType::FixedSizeList(..) => vec![Self::of_array(array.as_fixed_size_list().values())],
            DataType::Struct(_) => array.as_struct().columns().iter().map(Self::of_array).collect(),
            DataType::Map(entries, _) => vec![Self::unknown(entries)],
            _ => Vec::new(),
        };
        let has_one_length = match array.data_type() {
            DataType::List(_) => are_equal(array.as_list::<i32>().offsets().lengths()),
            DataType::LargeList(_) => are_equal(array.as_list::<i64>().offsets().lengths()),
            _ => false,
        };
        Self { may_be_null: array.null_count() > 0, children, has_one_length, has_other_lengths: !has_one_length }
    }

    /// Adds what a row group says about `node`.
    fn see(&mut self, node: &Node, row_group: &RowGroupMetaData) {
        self.may_be_null |= node.may_be_null(row_group);
        for (child, node) in self.children.iter_mut().zip(&node.children) {
            child.see(node, row_group);
        }
    }
}

impl Dataset {
    /// Returns what is known about a column without reading it.
    pub(super) fn evidence(&self, answer: &Answer, origin: &Origin, field: &Field) -> Evidence {
        match origin {
            Origin::Stored(column) => self.evidence_of_stored(answer.selection(), *column),
            Origin::Computed(computed) => {
                let of_stored = |column: usize| self.evidence_of_stored(answer.selection(), column);
                let may_be_null = |computed: &Computed| {
                    let columns = computed.columns().iter().copied();
                    computed.may_be_null(&columns.filter(|&column| !of_stored(column).may_be_null).collect())
                };
                let of_fields = computed.of_fields(self.snapshot());
                let column = of_fields.as_ref().and_then(Computed::column);
                let known = column.map_or_else(|| Evidence::unknown(field), of_stored);
                let may_be_null = may_be_null(computed) && of_fields.as_ref().is_none_or(may_be_null);
                Evidence { may_be_null, ..known }
            }
            Origin::Attached(index) => match answer.attached().and_then(|attached| attached.columns().get(*index)) {
                Some(array) => Evidence::of_array(array),
                None => Evidence::unknown(field),
            },
        }
    }

    /// Returns what the kept row groups' footers and the filters prove about the snapshot's column `column`, or field of
    /// structs.
    fn evidence_of_stored(&self, selection: &Selection, column: usize) -> Evidence {
        let snapshot = self.snapshot();
        let field = &snapshot.columns.fields()[column];
        let mut evidence = Evidence::new(field);
        let mut length = None;
        let mut last_node: Option<(*const Fragment, Node)> = None;
        evidence.has_one_length = true;
        for (index, row_group) in snapshot.row_groups.iter().enumerate() {
            if *selection.rows(index) == RowSet::None {
                continue;
            }
            let fragment = snapshot.fragment(*row_group);
            let (_, node) = match last_node.take() {
                Some((of, node)) if std::ptr::eq(of, fragment) => last_node.insert((of, node)),
                _ => last_node.insert((fragment, Node::of_column(field, fragment, column))),
            };
            evidence.see(node, fragment.row_group(row_group.index));
            let num_leaf_values = fragment.num_leaf_values(column, row_group.index as usize).unwrap_or(0);
            let num_empty = node.num_empty_lists(fragment.row_group(row_group.index));
            let num_items = num_leaf_values.saturating_sub(num_empty);
            let num_rows = u64::from(row_group.num_rows);
            let here = num_items / num_rows;
            let is_mixed = !num_items.is_multiple_of(num_rows) || (num_empty > 0 && num_items > 0);
            if is_mixed || *length.get_or_insert(here) != here {
                evidence.has_one_length = false;
                evidence.has_other_lengths |= *selection.rows(index) == RowSet::All;
            }
        }
        evidence.has_one_length &= length.is_some();
        if self.filters().iter().any(|filter| filter.rejects_null(column, snapshot)) {
            evidence.may_be_null = false;
        }
        evidence
    }
}

fn are_equal(mut lengths: impl Iterator<Item = usize>) -> bool {
    let Some(first) = lengths.next() else { return false };
    lengths.all(|length| length == first)
}

/// The position of a part of a column among the leaves of one object.
#[derive(Debug)]
struct Node {
    /// `None` if the object does not have it, so it is NULL.
    place: Option<Place>,
    children: Vec<Self>,
}

#[derive(Debug)]
struct Place {
    is_nullable: bool,
    /// The definition level of a value here that is not NULL.
    level: usize,
    /// Those of a NULL here: several, if also those of structs around it are.
    nulls: Range<usize>,
    leaves: Range<usize>,
}

impl Node {
    fn of_column(field: &Field, fragment: &Fragment, column: usize) -> Self {
        match fragment.columns[column] {
            None if fragment.constant(column).is_some_and(|constant| !constant.is_null()) => Self::constant(),
            None => Self::missing(field),
            Some(root) => {
                let around = fragment.inner(root).map_or(0, |inner| usize::from(inner.level));
                let mut node = Self::new(field, fragment.field(root), fragment.leaves(root).start, around);
                node.place.iter_mut().for_each(|place| place.nulls.start = 0);
                node
            }
        }
    }

    /// Returns the node of the dataset's `field`, which is `own` in the object; leaves are in the order of the fields.
    fn new(field: &Field, own: &Field, first_leaf: usize, parent_level: usize) -> Self {
        let level = parent_level + usize::from(own.is_nullable());
        let own_children = children_of(own.data_type());
        let children = match (field.data_type(), own.data_type()) {
            (DataType::Struct(fields), DataType::Struct(own_fields)) => {
                let child = |field: &Field| match own_fields.find(field.name()) {
                    None => Self::missing(field),
                    Some((place, own)) => {
                        let before: usize = own_fields[..place].iter().map(|own| num_leaves(own.data_type())).sum();
                        Self::new(field, own, first_leaf + before, level)
                    }
                };
                fields.iter().map(|field| child(field)).collect()
            }
            (DataType::Map(entries, _), DataType::Map(own_entries, _)) => {
                vec![Self::new(&named_as(entries, own_entries), own_entries, first_leaf, level + 1)]
            }
            // One more level says whether there is an item.
            (data_type, _) => {
                let pairs = children_of(data_type).into_iter().zip(own_children);
                pairs.map(|(field, own)| Self::new(field, own, first_leaf, level + 1)).collect()
            }
        };
        let leaves = first_leaf..first_leaf + num_leaves(own.data_type());
        let place = Place { is_nullable: own.is_nullable(), level, nulls: parent_level..level, leaves };
        Self { place: Some(place), children }
    }

    /// Returns the node of a partition column that has a value.
    fn constant() -> Self {
        let place = Place { is_nullable: false, level: 0, nulls: 0..0, leaves: 0..0 };
        Self { place: Some(place), children: Vec::new() }
    }

    fn missing(field: &Field) -> Self {
        Self { place: None, children: children_of(field.data_type()).into_iter().map(Self::missing).collect() }
    }

    fn may_be_null(&self, row_group: &RowGroupMetaData) -> bool {
        let Some(Place { is_nullable, nulls, leaves, .. }) = &self.place else { return true };
        *is_nullable && !row_group.columns()[leaves.clone()].iter().any(|leaf| has_no_null(leaf, nulls))
    }

    /// Returns how many lists of a column are known to be empty.
    fn num_empty_lists(&self, row_group: &RowGroupMetaData) -> u64 {
        let Some(Place { level, leaves, .. }) = &self.place else { return 0 };
        let Some(leaf) = row_group.columns().get(leaves.start) else { return 0 };
        match levels_of(leaf) {
            Some(levels) => levels.get(*level).and_then(|count| u64::try_from(*count).ok()).unwrap_or(0),
            // Includes NULL lists and NULL items; but then nothing is claimed about lengths.
            None => null_count_of(leaf).unwrap_or(0),
        }
    }
}

/// Returns whether a leaf's footer proves that nothing is NULL at some definition levels.
fn has_no_null(leaf: &ColumnChunkMetaData, nulls: &Range<usize>) -> bool {
    // Counts by level take precedence: some writers count no value of a dictionary below a NULL struct.
    match levels_of(leaf) {
        Some(levels) => levels.get(nulls.clone()).is_some_and(|counts| counts.iter().all(|count| *count == 0)),
        None => nulls.len() == 1 && null_count_of(leaf) == Some(0),
    }
}

fn null_count_of(leaf: &ColumnChunkMetaData) -> Option<u64> {
    leaf.statistics()?.null_count_opt()
}

/// Returns the fields of a struct, the item of a list, the entries of a map.
fn children_of(data_type: &DataType) -> Vec<&Field> {
    match data_type {
        DataType::Struct(fields) => fields.iter().map(AsRef::as_ref).collect(),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => vec![item.as_ref()],
        DataType::Map(entries, _) => vec![entries.as_ref()],
        _ => Vec::new(),
    }
}

/// Returns the entries of a map with the names that keys and values have in `own`: those differ between writers.
fn named_as(entries: &Field, own: &Field) -> Field {
    let names = children_of(own.data_type()).into_iter().map(Field::name);
    let fields = children_of(entries.data_type()).into_iter().zip(names);
    let fields = fields.map(|(field, name)| field.clone().with_name(name));
    entries.clone().with_data_type(DataType::Struct(fields.collect()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn leaves_are_counted_in_the_order_of_the_fields() {
        let text = |name: &str| Field::new(name, DataType::Utf8, true);
        let tags = Field::new("tags", DataType::List(Arc::new(text("item"))), false);
        let own = Field::new_struct("meta", vec![text("a"), tags, text("b")], true);
        let wanted = Field::new_struct("meta", vec![text("b"), text("new"), text("a")], true);
        let node = Node::new(&wanted, &own, 5, 0);
        let places: Vec<_> =
            node.children.iter().map(|child| child.place.as_ref().map(|p| (p.leaves.clone(), p.level))).collect();
        assert_eq!(places, [Some((7..8, 2)), None, Some((5..6, 2))]);
        assert_eq!(num_leaves(own.data_type()), 3);
    }

    #[test]
    fn keys_and_values_of_maps_are_found_whatever_their_names() {
        let map = |key: &str, value: &str| {
            let [key, value] =
                [(key, false), (value, true)].map(|(name, is_nullable)| Field::new(name, DataType::Int32, is_nullable));
            Field::new_map("tags", "entries", key, value, false, false)
        };
        for names in [("key", "value"), ("keys", "values"), ("value", "key")] {
            let node = Node::new(&map("key", "value"), &map(names.0, names.1), 5, 0);
            let entries = node.children[0].children.iter();
            let places: Vec<_> =
                entries.map(|child| child.place.as_ref().map(|p| (p.leaves.clone(), p.level))).collect();
            assert_eq!(places, [Some((5..6, 1)), Some((6..7, 2))], "{names:?}");
        }
    }
}
