//! `place`: a table of layers.

use crate::declare::{Declared, Words, words};
use crate::kinds::word;
use crate::reader::{Keys, Kind};
use crate::tree::{Entry, Table, Value, bare_or_quoted};
use crate::write::Lines;
use device::Pool;

words! {
    /// Whose processor computes a layer, in whose memory.
    pub enum Home {
        Device = "device",
        Host = "host",
    }
}

/// Names of layers, and patterns of names, each with its home.
pub type Places = Vec<(String, Home)>;

impl Home {
    /// As experiments write it.
    pub fn name(self) -> &'static str {
        self.word()
    }

    pub fn pool(self) -> Pool {
        match self {
            Home::Device => Pool::Device,
            Home::Host => Pool::Host,
        }
    }
}

/// What the key takes: `"blocks.0" = "host"`, which may as well be written `blocks.0 = "host"`.
pub(super) struct LayerHomes;

impl Declared for LayerHomes {
    type Output = Places;

    fn read<'a>(&self, keys: &Keys<'a>, entry: &'a Entry) -> Option<Places> {
        let Some(table) = entry.node.table() else {
            return keys.parse(entry, &NoTable);
        };
        let keys = keys.table_of(entry, "place", "`place`")?;
        let homes: Vec<Option<(String, Home)>> = leaves("", table)
            .into_iter()
            // What is switched off is where it is anyway.
            .filter(|layer| !matches!(&layer.node.value, Value::Text(text) if text == "off"))
            .map(|layer| Some((layer.key.clone(), keys.parse(&layer, &word())?)))
            .collect();
        homes.into_iter().collect()
    }

    fn write(&self, key: &str, value: &Places, lines: &mut Lines) {
        let homes =
            value.iter().map(|(layer, home)| format!("{} = \"{}\"", bare_or_quoted(layer), home.word()));
        let homes = homes.collect::<Vec<_>>().join(", ");
        lines.line(key, &if homes.is_empty() { "{}".to_owned() } else { format!("{{ {homes} }}") });
    }

    fn example(&self, key: &str) -> String {
        format!("{key} = {{ embedding = \"host\" }}")
    }
}

/// All that holds no table, by its dotted path.
fn leaves(prefix: &str, table: &Table) -> Vec<Entry> {
    let leaf = |entry: &Entry| {
        let key = format!("{prefix}{}", entry.key);
        match entry.node.table() {
            Some(table) => leaves(&format!("{key}."), table),
            None => vec![Entry { key, ..entry.clone() }],
        }
    };
    table.entries.iter().flat_map(leaf).collect()
}

/// The form that everything else lacks.
struct NoTable;

impl Kind for NoTable {
    type Output = Places;

    fn parse(&self, _value: &Value) -> Option<Places> {
        None
    }

    fn expected(&self) -> String {
        "a table of layers and where they are computed, such as { embedding = \"host\" }".to_owned()
    }
}
