//! Parses NVRTC's machine code: an ELF file with a section `.text.NAME` per kernel.

/// Bytes per instruction, on every architecture since 7.0.
const INSTRUCTION: u64 = 16;

/// Size of a section header, and offsets of its fields.
const HEADER: usize = 64;
const OFFSET: usize = 24;
const SIZE: usize = 32;

/// The number of machine instructions of each kernel, padding included. `None` if the file is not well-formed.
pub(super) fn instructions(cubin: &[u8]) -> Option<Vec<(String, u32)>> {
    if cubin.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let start = usize::try_from(u64_at(cubin, 40)?).ok()?;
    let count = usize::from(u16_at(cubin, 60)?);
    let sections = cubin.get(start..)?.get(..count.checked_mul(HEADER)?)?.chunks_exact(HEADER);
    let names = sections.clone().nth(usize::from(u16_at(cubin, 62)?))?;
    let names = cubin.get(usize::try_from(u64_at(names, OFFSET)?).ok()?..)?;
    let mut kernels = Vec::new();
    for section in sections {
        let name = names.get(usize::try_from(u32_at(section, 0)?).ok()?..)?;
        let name = std::str::from_utf8(name.split(|byte| *byte == 0).next()?).ok()?;
        if let Some(kernel) = name.strip_prefix(".text.") {
            let count = u32::try_from(u64_at(section, SIZE)? / INSTRUCTION).ok()?;
            kernels.push((kernel.to_owned(), count));
        }
    }
    Some(kernels)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with section names and the code of two kernels.
    fn file() -> Vec<u8> {
        let names = b"\0.names\0.text.add\0.nv.info.add\0.text.scale\0";
        // Name, offset and size of each section.
        let sections: [(u32, u64, u64); 5] =
            [(0, 0, 0), (1, 64, names.len() as u64), (8, 200, 32), (18, 0, 48), (31, 300, 16_000)];
        let start = 64 + names.len();
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[40..48].copy_from_slice(&(start as u64).to_le_bytes());
        file[60..62].copy_from_slice(&5_u16.to_le_bytes());
        file[62..64].copy_from_slice(&1_u16.to_le_bytes());
        file.extend_from_slice(names);
        for (name, offset, size) in sections {
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[OFFSET..OFFSET + 8].copy_from_slice(&offset.to_le_bytes());
            header[SIZE..SIZE + 8].copy_from_slice(&size.to_le_bytes());
            file.extend_from_slice(&header);
        }
        file
    }

    #[test]
    fn instructions_are_counted_by_kernel() {
        let expected = [("add".to_owned(), 2), ("scale".to_owned(), 1000)];
        assert_eq!(instructions(&file()).as_deref(), Some(&expected[..]));
    }

    #[test]
    fn truncated_file_is_refused() {
        let file = file();
        for len in 0..file.len() {
            assert_eq!(instructions(&file[..len]), None, "{len} bytes");
        }
        assert_eq!(instructions(b"PTX"), None);
    }
}
