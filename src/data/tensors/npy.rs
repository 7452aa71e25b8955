//! The header of a NumPy file (.npy), versions 1 and 2.

use crate::samples::NumberType;

pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// Maximum length of a header; NumPy writes less than 200 bytes.
pub(super) const LONGEST: usize = 1 << 16;

/// A parsed header.
#[derive(Debug, PartialEq)]
pub(super) struct NpyHeader {
    /// Offset of the numbers.
    pub(super) begin: usize,
    pub(super) number: NumberType,
    pub(super) shape: Vec<usize>,
}

/// A problem, and how to fix it.
type Problem = (String, &'static str);

const AGAIN: &str = "save it again: numpy.save(\"x.npy\", array)";

/// The number types, as NumPy writes them.
const TYPES: [(&str, NumberType); 6] = [
    ("|u1", NumberType::U8),
    ("<i4", NumberType::I32),
    ("<i8", NumberType::I64),
    ("<f2", NumberType::F16),
    ("<f4", NumberType::F32),
    ("<f8", NumberType::F64),
];

impl NpyHeader {
    /// Parses the beginning of a file that begins with [`MAGIC`].
    ///
    /// # Errors
    /// The header is damaged, or its array is stored in another way.
    pub(super) fn parse(head: &[u8]) -> Result<NpyHeader, Problem> {
        let damaged = |what: &str| (format!("has a damaged NumPy header: {what}"), AGAIN);
        let at = |offset: usize| head.get(offset..).unwrap_or_default();
        let (length, start) = match head.get(6) {
            Some(1) => (at(8).first_chunk().map(|size| usize::from(u16::from_le_bytes(*size))), 10),
            Some(2) => (at(8).first_chunk().map(|size| u32::from_le_bytes(*size) as usize), 12),
            Some(version) => {
                return Err((format!("has a NumPy header of version {version}, not 1 or 2"), AGAIN));
            }
            None => (None, 8),
        };
        let length = length.ok_or_else(|| damaged(&format!("the file ends at byte {}", head.len())))?;
        if length > LONGEST {
            return Err(damaged(&format!("its size is {length} bytes")));
        }
        let text = at(start).get(..length).and_then(|text| str::from_utf8(text).ok());
        let text =
            text.ok_or_else(|| damaged(&format!("it is no text, or ends before byte {}", start + length)))?;
        let fields = Fields::parse(text).ok_or_else(|| damaged(&format!("`{}`", text.trim())))?;
        if fields.fortran_order && fields.shape.len() > 1 {
            let help = "save it in C order: numpy.save(\"x.npy\", numpy.ascontiguousarray(array))";
            return Err(("stores its array in Fortran order".to_owned(), help));
        }
        let found = TYPES.iter().find(|(descr, _)| *descr == fields.descr);
        let Some((_, number)) = found else {
            let help = "convert it: numpy.save(\"x.npy\", array.astype(\"<f4\")), or \"<i8\" for classes";
            return Err((format!("has numbers of type {}, not {}", fields.descr, NumberType::NAMES), help));
        };
        Ok(NpyHeader { begin: start + length, number: *number, shape: fields.shape })
    }
}

/// The fields of the dictionary, in any order.
struct Fields<'a> {
    /// A structured type as its text.
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl<'a> Fields<'a> {
    /// `{'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }`
    fn parse(text: &'a str) -> Option<Fields<'a>> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (name, after) = quoted(rest)?;
            let value = after.trim_start().strip_prefix(':')?.trim_start();
            let (known, after) = match name {
                "descr" if value.starts_with('[') => {
                    let end = value.rfind(']')? + 1;
                    (descr.replace(&value[..end]).is_none(), &value[end..])
                }
                "descr" => {
                    let (found, after) = quoted(value)?;
                    (descr.replace(found).is_none(), after)
                }
                "fortran_order" => {
                    let words = [("True", true), ("False", false)];
                    let (after, found) =
                        words.iter().find_map(|(word, found)| Some((value.strip_prefix(word)?, *found)))?;
                    (fortran_order.replace(found).is_none(), after)
                }
                "shape" => {
                    let (sizes, after) = value.strip_prefix('(')?.split_once(')')?;
                    let sizes = sizes.trim().strip_suffix(',').unwrap_or(sizes).trim();
                    let parsed = sizes.split(',').filter(|_| !sizes.is_empty());
                    let parsed: Option<Vec<usize>> = parsed.map(|size| size.trim().parse().ok()).collect();
                    (shape.replace(parsed?).is_none(), after)
                }
                _ => return None,
            };
            if !known {
                return None;
            }
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if after.is_empty() => after,
                None => return None,
            };
        }
        Some(Fields { descr: descr?, fortran_order: fortran_order?, shape: shape? })
    }
}

/// A text in quotation marks at the beginning, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file of version 1 with these numbers.
    pub(crate) fn npy(descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
        let fields = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        let padded = format!("{fields:<117}\n");
        [MAGIC, &[1, 0], &(padded.len() as u16).to_le_bytes(), padded.as_bytes(), numbers].concat()
    }

    #[test]
    fn headers_of_versions_1_and_2_are_parsed() {
        let expected = NpyHeader { begin: 128, number: NumberType::F32, shape: vec![60_000, 784] };
        let file = npy("<f4", "(60000, 784)", &[]);
        assert_eq!(NpyHeader::parse(&file), Ok(expected));
        let second = [MAGIC, &[2, 0], &118u32.to_le_bytes(), &file[10..]].concat();
        assert_eq!(NpyHeader::parse(&second).unwrap().begin, 130);
        assert_eq!(NpyHeader::parse(&npy("|u1", "(3,)", &[])).unwrap().shape, [3]);
        assert!(NpyHeader::parse(&npy("|u1", "()", &[])).unwrap().shape.is_empty());
    }

    #[test]
    fn other_headers_are_errors() {
        let problem = |file: &[u8]| NpyHeader::parse(file).unwrap_err().0;
        assert_eq!(
            problem(&npy(">f4", "(3,)", &[])),
            "has numbers of type >f4, not u8, i32, i64, f16, bf16, f32 or f64"
        );
        let good = npy("<f4", "(3,)", &[]);
        assert!(problem(&good[..100]).contains("ends before byte 128"), "{}", problem(&good[..100]));
        assert!(problem(&good[..7]).contains("the file ends at byte 7"));
        let changed = |from: &str, to: &str| {
            let text = String::from_utf8_lossy(&good[10..]).replace(from, to);
            let text = format!("{:<117}\n", text.trim());
            problem(&[&good[..10], text.as_bytes()].concat())
        };
        for (from, to) in [
            ("'shape': (3,)", "'shape': (-3,)"),
            ("'shape'", "'descr'"),
            ("'shape': (3,), ", ""),
            ("False", "false"),
        ] {
            assert!(changed(from, to).contains("damaged"), "{to}");
        }
        let two = npy("<f4", "(3, 2)", &[]);
        let text = String::from_utf8_lossy(&two[10..]).replace("False", "True ");
        assert!(problem(&[&two[..10], text.as_bytes()].concat()).contains("Fortran order"));
    }
}
