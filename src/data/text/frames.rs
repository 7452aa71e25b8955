//! Messages between this program and the process that encodes text: a length (u64, little-endian) and that many bytes.

use std::io::{self, Read, Write};

/// Writes a message of several parts.
pub(super) fn write(to: &mut (impl Write + ?Sized), parts: &[&[u8]]) -> io::Result<()> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    to.write_all(&(bytes as u64).to_le_bytes())?;
    parts.iter().try_for_each(|part| to.write_all(part))?;
    to.flush()
}

/// Reads the next message; `None` at the end.
pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    let mut begun = 0;
    while begun < length.len() {
        match from.read(&mut length[begun..]) {
            Ok(0) if begun == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => begun += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u64::from_le_bytes(length);
    let mut message = Vec::new();
    from.take(length).read_to_end(&mut message)?;
    if message.len() as u64 == length { Ok(Some(message)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Splits a number (u64, little-endian) off the beginning of a message.
pub(super) fn split_number(message: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = message.split_first_chunk()?;
    Some((usize::try_from(u64::from_le_bytes(*number)).ok()?, rest))
}
