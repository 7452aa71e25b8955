//! `place`: a table of layers.

use crate::reader::declare::{KeyCodec, KeywordEnum, keywords};
use crate::reader::forms::Form;
use crate::reader::keys::{Keys, ValueParser};
use crate::reader::parsers::keyword;
use crate::reader::reference::Accepts;
use crate::reader::tree::{Node, Table, TableEntry, Value, bare_or_quoted};
use crate::reader::write::TableWriter;
use device::Pool;

keywords! {
    /// The processor that computes a layer, in its own memory.
    pub enum LayerDevice {
        Device = "device",
        Host = "host",
    }
}

/// Layer names or patterns of names, each with the processor that computes them.
pub type LayerPlacement = Vec<(String, LayerDevice)>;

impl LayerDevice {
    /// The keyword in experiment files.
    pub fn name(self) -> &'static str {
        self.keyword()
    }

    pub fn pool(self) -> Pool {
        match self {
            LayerDevice::Device => Pool::Device,
            LayerDevice::Host => Pool::Host,
        }
    }
}

/// Entries such as `"blocks.0" = "host"`; `blocks.0 = "host"` is the same.
pub(super) struct LayerPlacesCodec;

impl KeyCodec for LayerPlacesCodec {
    type Output = LayerPlacement;

    fn read<'a>(&self, keys: &Keys<'a>, key: &str, node: &'a Node) -> Option<LayerPlacement> {
        let Some(table) = node.table() else {
            return keys.parse(key, node, &InvalidPlaces);
        };
        let keys = keys.table_of(key, node, "place", "`place`")?;
        let homes: Vec<Option<(String, LayerDevice)>> = leaves("", table)
            .into_iter()
            // "off" leaves the layer on its default processor.
            .filter(|layer| !matches!(&layer.node.value, Value::Text(text) if text == "off"))
            .map(|layer| Some((layer.key.clone(), keys.parse(&layer.key, &layer.node, &keyword())?)))
            .collect();
        homes.into_iter().collect()
    }

    fn write(&self, key: &str, value: &LayerPlacement, lines: &mut TableWriter) {
        let homes =
            value.iter().map(|(layer, home)| format!("{} = \"{}\"", bare_or_quoted(layer), home.keyword()));
        let homes = homes.collect::<Vec<_>>().join(", ");
        lines.line(key, &if homes.is_empty() { "{}".to_owned() } else { format!("{{ {homes} }}") });
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = {{ embedding = \"host\" }}")
    }

    fn accepts(&self) -> Accepts {
        Accepts::parsed(&InvalidPlaces)
    }
}

/// All entries that are not tables, with their dotted paths as keys.
fn leaves(prefix: &str, table: &Table) -> Vec<TableEntry> {
    let leaf = |entry: &TableEntry| {
        let key = format!("{prefix}{}", entry.key);
        match entry.node.table() {
            Some(table) => leaves(&format!("{key}."), table),
            None => vec![TableEntry { key, ..entry.clone() }],
        }
    };
    table.entries.iter().flat_map(leaf).collect()
}

/// Rejects values that are not tables.
struct InvalidPlaces;

impl ValueParser for InvalidPlaces {
    type Output = LayerPlacement;

    fn parse(&self, _value: &Value) -> Option<LayerPlacement> {
        None
    }

    fn expected(&self) -> String {
        "a table of layers and where they are computed, such as { embedding = \"host\" }".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::by_name::<LayerDevice>()]
    }
}
