//! The columns of a row: the fields of [`Row`], those of [`Measured`], and one per memory role.
//!
//! The structs are nested, the written record is flat. Serde's `flatten` cannot be used: it does not keep this column
//! order, does not reject unknown columns and does not parse numbers from text cells.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::iter::Copied;
use std::slice;
use std::sync::LazyLock;

use serde::de::value::MapDeserializer;
use serde::de::{self, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::ser::{Error as _, SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Row;
use device::Role;
use execute::Measured;

/// The field with the swept keys, each of which becomes a column.
pub(super) const AXES: &str = "axes";
/// Nested structs, whose fields become columns.
const MEASURED: &str = "measured";
const LIVE: &str = "live";

/// The first column of each block, in column order. A block continues with the fields that follow in the same struct.
/// Blocks keep the order in which columns were added to the table, since scripts rely on it.
const BLOCKS: [&str; 34] = [
    "experiment",
    "peak_bytes",
    "host_peak_bytes",
    "no_effect",
    "step_ms_min",
    "warmup_steps",
    "forward_peak_bytes",
    "predicted_reserved_peak_bytes",
    "host_reserved_peak_bytes",
    "limit_bytes",
    "hardware_flops",
    "threads",
    "load",
    "configuration",
    "startup_ms",
    "context_bytes",
    "skipped_steps",
    "baseline",
    "oom_pool",
    "steps_until_oom",
    "oom_in_pieces_bytes",
    "seed",
    "cpu_wait",
    "estimated_step_ms",
    "padding",
    "settings",
    "instruction_set",
    "rounding_bytes",
    "predicted_first_step_peak_bytes",
    "estimated_fits_tokens_per_s",
    "stream_dtype",
    "buffer_bytes",
    "accuracy",
    "estimated_exchange_ms",
];

/// All columns except swept keys, in column order.
pub(super) static COLUMNS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let own = fields(Row::deserialize).iter().filter(|field| **field != AXES);
    let mut block = 0;
    let with_block = |column: String| {
        block = BLOCKS.iter().position(|first| *first == column).unwrap_or(block);
        (block, column)
    };
    let columns = own.map(|field| (*field).to_owned()).chain(MEASURED_COLUMNS.iter().cloned());
    let mut columns: Vec<(usize, String)> = columns.map(with_block).collect();
    columns.sort_by_key(|(block, _)| *block);
    columns.into_iter().map(|(_, column)| column).collect()
});

/// All columns of the CSV with their descriptions, in column order. In a CSV, swept keys follow as further columns.
pub fn documented() -> impl Iterator<Item = (&'static str, String)> {
    let roles = Role::ALL.map(|role| (role.column(), format!(" Part of `peak_bytes`: {}.", role.what())));
    let texts: BTreeMap<String, String> = Row::DOCUMENTED
        .iter()
        .chain(Measured::DOCUMENTED)
        .map(|(column, text)| ((*column).to_owned(), (*text).to_owned()))
        .chain(roles)
        .collect();
    COLUMNS.iter().map(move |column| (column.as_str(), texts[column].trim().to_owned()))
}

/// The struct that holds a column.
#[derive(Clone, Copy)]
pub(super) enum Holder {
    Row,
    Measured,
    Live,
}

/// The struct that holds a column. `None` if there is no such column.
pub(super) fn holder(column: &str) -> Option<Holder> {
    static HOLDERS: LazyLock<HashMap<&str, Holder>> = LazyLock::new(|| {
        let holder = |column: &String| {
            if ROLE_COLUMNS.contains(column) {
                Holder::Live
            } else if MEASURED_COLUMNS.contains(column) {
                Holder::Measured
            } else {
                Holder::Row
            }
        };
        COLUMNS.iter().map(|column| (column.as_str(), holder(column))).collect()
    });
    HOLDERS.get(column).copied()
}

static ROLE_COLUMNS: LazyLock<Vec<String>> = LazyLock::new(|| Role::ALL.map(Role::column).to_vec());

static MEASURED_COLUMNS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let columns = |field: &&str| match *field {
        LIVE => ROLE_COLUMNS.clone(),
        column => vec![column.to_owned()],
    };
    fields(Measured::deserialize).iter().flat_map(columns).collect()
});

/// The columns of a row with their values, and its swept keys.
pub(super) fn flat(row: &Row) -> serde_json::Result<Map<String, Value>> {
    let Value::Object(mut fields) = Row::serialize(row, serde_json::value::Serializer)? else {
        return Err(<serde_json::Error as serde::ser::Error>::custom("a row is a struct"));
    };
    for part in [MEASURED, LIVE] {
        if let Some(Value::Object(columns)) = fields.remove(part) {
            fields.extend(columns);
        }
    }
    Ok(fields)
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = flat(self).map_err(S::Error::custom)?;
        let mut record = serializer.serialize_map(Some(fields.len()))?;
        for column in COLUMNS.iter().map(String::as_str).chain([AXES]) {
            record.serialize_entry(column, &fields[column])?;
        }
        record.end()
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Row, D::Error> {
        let fields = BTreeMap::<String, Value>::deserialize(deserializer)?;
        row_of_json(&fields).map_err(|error| match error.column {
            Some(column) => D::Error::custom(format!("`{column}`: {}", error.source)),
            None => D::Error::custom(error.source),
        })
    }
}

/// An invalid row, with the column if the error concerns one.
pub(super) struct ColumnError<E> {
    pub(super) column: Option<String>,
    pub(super) source: E,
}

/// Builds a row from the fields of a JSON object.
pub(super) fn row_of_json(fields: &BTreeMap<String, Value>) -> Result<Row, ColumnError<serde_json::Error>> {
    // `Row::deserialize` rejects unknown columns.
    row(fields.iter().map(|(column, value)| (holder(column).unwrap_or(Holder::Row), column.as_str(), value)))
}

/// Builds a row from columns and values of any format.
pub(super) fn row<'de, V, E>(
    columns: impl IntoIterator<Item = (Holder, &'de str, V)>,
) -> Result<Row, ColumnError<E>>
where
    V: IntoDeserializer<'de, E> + Copy,
    E: de::Error,
{
    let mut parts = [const { Vec::new() }; 3];
    for (holder, column, value) in columns {
        parts[holder as usize].push((column, value));
    }
    let [own, measured, live] = parts;
    // Tracking the column of an error takes as long as reading.
    macro_rules! read {
        ($columns:expr, $read:path) => {
            $read(MapDeserializer::new($columns.iter().copied()))
                .or_else(|_: E| read_struct(&$columns, |columns| $read(columns)))
        };
    }
    let mut row = read!(own, Row::deserialize)?;
    row.measured = read!(measured, Measured::deserialize)?;
    row.measured.live = read!(live, Deserialize::deserialize)?;
    Ok(row)
}

type Columns<'a, 'de, V, E> = MapDeserializer<'de, Copied<slice::Iter<'a, (&'de str, V)>>, E>;

fn read_struct<'de, V, E, T>(
    columns: &[(&'de str, V)],
    read: impl FnOnce(serde_path_to_error::Deserializer<'_, '_, Columns<'_, 'de, V, E>>) -> Result<T, E>,
) -> Result<T, ColumnError<E>>
where
    V: IntoDeserializer<'de, E> + Copy,
    E: de::Error,
{
    let mut track = serde_path_to_error::Track::new();
    let columns = MapDeserializer::new(columns.iter().copied());
    read(serde_path_to_error::Deserializer::new(columns, &mut track)).map_err(|source| {
        let column = Some(track.path().to_string()).filter(|path| path != ".");
        ColumnError { column, source }
    })
}

/// The names of a struct's fields in their order, captured from its `deserialize` function.
pub fn fields<T>(read: impl FnOnce(FieldNames) -> Result<T, Fields>) -> &'static [&'static str] {
    read(FieldNames).map_or_else(|Fields(names)| names, |_| &[])
}

/// A deserializer that returns the requested struct's field names as its error.
pub struct FieldNames;

#[derive(Debug, thiserror::Error)]
#[error("names only")]
pub struct Fields(&'static [&'static str]);

impl de::Error for Fields {
    fn custom<T: fmt::Display>(_message: T) -> Fields {
        Fields(&[])
    }
}

impl<'de> Deserializer<'de> for FieldNames {
    type Error = Fields;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Fields> {
        Err(Fields(fields))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Fields> {
        Err(Fields(&[]))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
