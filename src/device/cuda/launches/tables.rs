//! Many tensors in one launch: what `tables.cuh` reads.

use crate::DeviceError;
use crate::cuda::launcher::Argument;

use super::sizes::size;

/// Entries of one table.
const ENTRIES: usize = 64;

/// One tensor: how many blocks work on it, and what its entry says besides the first of them.
pub(super) struct Work<const FIELDS: usize> {
    pub(super) blocks: usize,
    pub(super) fields: [u64; FIELDS],
}

/// Calls `launch` with the number of blocks and the table of as many tensors as it holds, until all are launched.
///
/// # Errors
/// More blocks than a grid can have; those of `launch`.
pub(super) fn each_table<const FIELDS: usize>(
    work: impl Iterator<Item = Work<FIELDS>>,
    mut launch: impl FnMut(u32, Argument) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let work: Vec<Work<FIELDS>> = work.filter(|work| work.blocks > 0).collect();
    for part in work.chunks(ENTRIES) {
        let mut words = vec![part.len() as u64];
        let mut blocks = 0;
        for entry in part {
            words.push(blocks as u64);
            words.extend(entry.fields);
            blocks += entry.blocks;
        }
        // The kernel's parameter is the whole table.
        words.resize(1 + ENTRIES * (1 + FIELDS), 0);
        launch(size(blocks)?, Argument::Words(words))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_filled_up_and_counted_from_their_own_first_block() {
        let mut launched = Vec::new();
        let work = (0..ENTRIES + 2).map(|i| Work { blocks: usize::from(i != 1) * 3, fields: [i as u64] });
        each_table(work, |blocks, table| {
            let Argument::Words(words) = table else { panic!("a table is words") };
            assert_eq!(words.len(), 1 + 2 * ENTRIES);
            launched.push((blocks, words[0], words[1..7].to_vec()));
            Ok(())
        })
        .unwrap();
        // The tensor without a block is left out.
        assert_eq!(launched[0], (3 * ENTRIES as u32, ENTRIES as u64, vec![0, 0, 3, 2, 6, 3]));
        assert_eq!(launched[1], (3, 1, vec![0, ENTRIES as u64 + 1, 0, 0, 0, 0]));
    }
}
