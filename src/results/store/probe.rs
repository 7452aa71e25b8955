//! Check before training that results can be written.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::{StoreError, error};
use base::temporary::TemporaryFile;

/// More than the size of a run's files.
const ROOM: usize = 4 << 20;

/// Creates both folders and writes to them: `out` holds the table, `folder` the runs.
pub(super) fn check_writable(out: &Path, folder: &Path) -> Result<(), StoreError> {
    for (path, bytes) in [(out, 1), (folder, ROOM)] {
        fs::create_dir_all(path).map_err(StoreError::make(path))?;
        write(&path.join("probe"), bytes).map_err(|error| {
            let path = path.to_path_buf();
            if error::is_full(&error) {
                StoreError::NoRoom { path, error, option: error::OUT }
            } else {
                StoreError::NotWritable { path, error, option: error::OUT }
            }
        })?;
    }
    Ok(())
}

fn write(path: &Path, bytes: usize) -> io::Result<()> {
    let temporary = TemporaryFile::beside(path)?;
    let mut file = temporary.file();
    // An incompressible pattern: file systems with compression must find the space as well.
    let numbers =
        (0..bytes.div_ceil(8) as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    let pattern: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    file.write_all(&pattern)?;
    file.sync_all()
}
