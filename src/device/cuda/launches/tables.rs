//! Tables of tensors for multi-tensor launches, as in `tables.cuh`.

use crate::DeviceError;
use crate::cuda::launcher::Argument;

use super::sizes::size;

/// Entries per table.
const ENTRIES: usize = 64;

/// One tensor: its number of blocks, and the fields of its entry after the first block's index.
pub(super) struct TableEntry<const FIELDS: usize> {
    pub(super) blocks: usize,
    pub(super) fields: [u64; FIELDS],
}

/// Splits the tensors into tables, and calls `launch` with each table's number of blocks and the table.
///
/// # Errors
/// More blocks than a grid supports; errors of `launch`.
pub(super) fn each_table<const FIELDS: usize>(
    work: impl Iterator<Item = TableEntry<FIELDS>>,
    mut launch: impl FnMut(u32, Argument) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let work: Vec<TableEntry<FIELDS>> = work.filter(|work| work.blocks > 0).collect();
    for entries in work.chunks(ENTRIES) {
        let mut words = vec![entries.len() as u64];
        let mut blocks = 0;
        for entry in entries {
            words.push(blocks as u64);
            words.extend(entry.fields);
            blocks += entry.blocks;
        }
        // The kernel's parameter has the size of a full table.
        words.resize(1 + ENTRIES * (1 + FIELDS), 0);
        launch(size(blocks)?, Argument::Words(words))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_filled_and_count_their_own_blocks() {
        let mut launched = Vec::new();
        let work =
            (0..ENTRIES + 2).map(|i| TableEntry { blocks: usize::from(i != 1) * 3, fields: [i as u64] });
        each_table(work, |blocks, table| {
            let Argument::Words(words) = table else { panic!("a table is words") };
            assert_eq!(words.len(), 1 + 2 * ENTRIES);
            launched.push((blocks, words[0], words[1..7].to_vec()));
            Ok(())
        })
        .unwrap();
        // The tensor without blocks is omitted.
        assert_eq!(launched[0], (3 * ENTRIES as u32, ENTRIES as u64, vec![0, 0, 3, 2, 6, 3]));
        assert_eq!(launched[1], (3, 1, vec![0, ENTRIES as u64 + 1, 0, 0, 0, 0]));
    }
}
