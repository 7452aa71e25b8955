//! Values of the command line replace those of the files before the files are checked, so that a mistake in a replaced
//! value does not matter.

use crate::reader::tree::{Node, Table, TableEntry, Value};
use crate::schema::key::{Key, STRATEGY};
use crate::schema::settings::Setting;

/// Replaces the value of a run's key wherever a file sets it: in its own table, in `[defaults]`, in strategies and in
/// their `set`.
pub(crate) fn replace(file: &mut Table, setting: &Setting) {
    let written = setting.to_table();
    let own = written.entry(STRATEGY).and_then(|entry| entry.node.table());
    let Some(own) = own else {
        drop_from_sets(file, &setting.key);
        return file.merge(written);
    };
    let is_set = |table: Option<&Table>| {
        table.is_some_and(|table| own.entries.iter().any(|entry| table.entry(&entry.key).is_some()))
    };
    let over = |entries: &[TableEntry]| -> Vec<TableEntry> {
        entries.iter().filter(|entry| is_set(entry.node.table())).map(|entry| with(entry, own)).collect()
    };
    let mut replaced = Table::default();
    for entry in &file.entries {
        match (entry.key.as_str(), entry.node.table()) {
            ("defaults", table) if is_set(table) => replaced.entries.push(with(entry, own)),
            ("strategies", Some(all)) => {
                replaced.entries.push(with(entry, &Table { entries: over(&all.entries) }));
            }
            _ => {}
        }
    }
    drop_from_sets(file, &setting.key);
    file.merge(replaced);
}

/// The same key with another table.
fn with(entry: &TableEntry, table: &Table) -> TableEntry {
    let node = Node { value: Value::Table(table.clone()), span: entry.node.span };
    TableEntry { node, ..entry.clone() }
}

/// Removes the keys that this key replaces from the `set` of strategies.
fn drop_from_sets(file: &mut Table, key: &Key) {
    let Some(strategies) = file.table_mut("strategies") else { return };
    for entry in &mut strategies.entries {
        let Value::Table(strategy) = &mut entry.node.value else { continue };
        let Some(set) = strategy.table_mut("set") else { continue };
        set.entries.retain(|entry| {
            let other = Key::new(&entry.key);
            !key.conflicts(&other) || key.is_below(&other)
        });
    }
}
