//! Byte sizes in text: strict parsing, short output.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A number of bytes. Written as `"24 GiB"` (2^30) or `"24 GB"` (10^9): units are strict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 11] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("PB", 1_000_000_000_000_000),
];

/// Units as other tools write them, in lower case. A letter alone is a power of 1024, as for Slurm and Docker.
const SPELLINGS: [(&str, &[&str]); 9] = [
    ("B", &["b", "byte", "bytes"]),
    ("kB", &["kb", "kilobyte", "kilobytes"]),
    ("MB", &["mb", "megabyte", "megabytes"]),
    ("GB", &["gb", "gigabyte", "gigabytes"]),
    ("TB", &["tb", "terabyte", "terabytes"]),
    ("KiB", &["k", "ki", "kib", "kibibyte", "kibibytes"]),
    ("MiB", &["m", "mi", "mib", "mebibyte", "mebibytes"]),
    ("GiB", &["g", "gi", "gig", "gigs", "gib", "gibibyte", "gibibytes"]),
    ("TiB", &["t", "ti", "tib", "tebibyte", "tebibytes"]),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let advice = || format!("`{text}` is not a size; {}", Bytes::advice(text));
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(advice)?;
        let (number, unit) = trimmed.split_at(split);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(advice)?;
        let number = number.trim();
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(advice());
        }
        let number: f64 = number.parse().map_err(|_| advice())?;
        let bytes = number * *scale as f64;
        if bytes > Bytes::MOST.0 as f64 {
            Err(format!("`{text}` exceeds the memory of any machine"))
        } else {
            Ok(Bytes(bytes.round() as u64))
        }
    }
}

/// Three significant digits in binary units: `512 B`, `13.5 GiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 999.5 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        let decimals = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        write!(f, "{value:.decimals$} {unit}")
    }
}

/// A count, printed with three significant digits: `512`, `12.4k`, `124M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "";
        for next in ["k", "M", "G", "T"] {
            if value < 999.5 {
                break;
            }
            value /= 1e3;
            unit = next;
        }
        let decimals = match value {
            _ if unit.is_empty() || value >= 99.95 => 0,
            value if value >= 9.995 => 1,
            _ => 2,
        };
        write!(f, "{value:.decimals$}{unit}")
    }
}

impl Bytes {
    /// The largest accepted size, above the memory of any machine; sums of such sizes fit in 64 bits.
    pub const MOST: Bytes = Bytes(1 << 60);

    /// A regular expression for sizes: a superset of those that parse.
    pub fn pattern() -> String {
        format!(r"^\s*{}\s*$", Bytes::pattern_of(r"([0-9]+\.?[0-9]*|\.[0-9]+)"))
    }

    /// The same for sizes above 0.
    pub fn positive_pattern() -> String {
        format!(r"^\s*{}\s*$", Bytes::pattern_of(Bytes::POSITIVE))
    }

    pub(crate) const POSITIVE: &str = r"(0*[1-9][0-9]*\.?[0-9]*|0*\.0*[1-9][0-9]*)";

    pub(crate) fn pattern_of(number: &str) -> String {
        format!(r"{number}\s*({})", UNITS.map(|(name, _)| name).join("|"))
    }

    /// The size that text in another notation means: `24 GiB` for `24G`, `24 GB` for `24gb`, `1.5 GB` for `1,5 GB`.
    pub fn meant(text: &str) -> Option<String> {
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(char::is_alphabetic)?);
        let unit = unit.to_lowercase();
        let (unit, _) = SPELLINGS.iter().find(|(_, others)| others.contains(&unit.as_str()))?;
        let [number] = numbers(number)[..] else { return None };
        let (_, scale) = UNITS.iter().find(|(name, _)| name == unit)?;
        let is_size = number > 0.0 && number * *scale as f64 <= Bytes::MOST.0 as f64;
        is_size.then(|| format!("{number} {unit}"))
    }

    /// What to write instead of text that is not a size.
    fn advice(text: &str) -> String {
        let shell = |size: String| size.replace(' ', "");
        let text = text.trim();
        match (Bytes::meant(text), numbers(text).as_slice()) {
            _ if text.starts_with('-') => "a size is not negative: write one such as 24GiB".to_owned(),
            (Some(meant), _) if meant.ends_with("iB") => {
                format!("write {} (powers of 1024) or {} (powers of 1000)", shell(meant.clone()), shell(meant.replace('i', "")))
            }
            (Some(meant), _) => format!("write {}", shell(meant)),
            (None, [bytes]) if *bytes >= 1e6 => format!("write its unit: {bytes}B"),
            (None, [number]) if !text.ends_with('%') && !text.contains(char::is_alphabetic) => {
                format!("write its unit: {number}GiB or {number}GB")
            }
            _ => "write a number and a unit, such as 24GiB: B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB \
                  (powers of 1024)"
                .to_owned(),
        }
    }

    /// Exact text in the largest binary unit that divides the number.
    pub fn exact(self) -> String {
        let (name, scale) = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
            .into_iter()
            .find(|(_, scale)| self.0 > 0 && self.0.is_multiple_of(*scale))
            .unwrap_or(("B", 1));
        format!("{} {name}", self.0 / scale)
    }
}

/// The numbers that text means, if it has a decimal comma, separators of thousands or a percent sign: 0.1 for `0,1`, 1000
/// or 1 for `1,000`. A plain number means itself.
pub fn numbers(text: &str) -> Vec<f64> {
    let text = text.trim();
    let (text, scale) = text.strip_suffix('%').map_or((text, 1.0), |share| (share.trim_end(), 100.0));
    let text = text.replace(['_', ' ', '\'', '\u{a0}', '\u{202f}'], "");
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.,".contains(c)) {
        return Vec::new();
    }
    let is_grouped = |mark: char| {
        let mut groups = text.split(mark);
        let first = groups.next().unwrap_or_default().trim_start_matches(['+', '-']);
        !first.starts_with('0') && first.len() <= 3 && groups.all(|group| group.len() == 3)
    };
    let [commas, points] = [',', '.'].map(|mark| text.matches(mark).count());
    let readings = match (commas, points) {
        (0, 0..=1) => vec![text],
        (0, _) if is_grouped('.') => vec![text.replace('.', "")],
        (1, 0) if is_grouped(',') => vec![text.replace(',', ""), text.replace(',', ".")],
        (1, 0) => vec![text.replace(',', ".")],
        (_, 0) if is_grouped(',') => vec![text.replace(',', "")],
        (_, 1) if text.rfind(',') < text.find('.') => vec![text.replace(',', "")],
        (1, _) if text.find(',') > text.rfind('.') => vec![text.replace('.', "").replace(',', ".")],
        _ => vec![],
    };
    let number = |text: &String| {
        text.parse().ok().map(|number: f64| number / scale).filter(|number| number.is_finite())
    };
    readings.iter().filter_map(number).collect()
}

impl Serialize for Bytes {
    /// Serializes the exact size.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.exact())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_other_notations_are_told_what_to_write() {
        for (text, meant) in [
            ("24G", "24 GiB"),
            ("24g", "24 GiB"),
            ("24 gib", "24 GiB"),
            ("24Gb", "24 GB"),
            ("24 gigabytes", "24 GB"),
            ("80Gi", "80 GiB"),
            ("1,5GB", "1.5 GB"),
            ("1_000 MiB", "1000 MiB"),
            ("1.000,5 MB", "1000.5 MB"),
            ("512k", "512 KiB"),
        ] {
            assert_eq!(Bytes::meant(text).as_deref(), Some(meant), "{text}");
            assert!(meant.parse::<Bytes>().is_ok(), "{meant}");
        }
        for text in ["24", "auto", "", "50%", "GiB", "-1 gib", "1e9", "1,000 MB", "999999999 T"] {
            assert_eq!(Bytes::meant(text), None, "{text}");
        }
        let error = |text: &str| text.parse::<Bytes>().unwrap_err();
        let expected = "`24G` is not a size; write 24GiB (powers of 1024) or 24GB (powers of 1000)";
        assert_eq!(error("24G"), expected);
        assert_eq!(error("24gb"), "`24gb` is not a size; write 24GB");
        assert_eq!(error("24"), "`24` is not a size; write its unit: 24GiB or 24GB");
        assert_eq!(error("25769803776"), "`25769803776` is not a size; write its unit: 25769803776B");
        assert_eq!(error("-1GiB"), "`-1GiB` is not a size; a size is not negative: write one such as 24GiB");
        for text in ["", "auto", "1e9x", "50%", "GiB", "24GiB/2", "$MEM"] {
            assert!(error(text).contains("write a number and a unit, such as 24GiB"), "{text}");
        }
    }

    #[test]
    fn numbers_in_other_notations_are_read() {
        for (text, meant) in [
            ("0,1", &[0.1][..]),
            ("1,000", &[1000.0, 1.0]),
            ("0,001", &[0.001]),
            ("1,234,567.5", &[1_234_567.5]),
            ("1.234.567,5", &[1_234_567.5]),
            ("1.000.000", &[1e6]),
            ("1 000", &[1000.0]),
            ("10 %", &[0.1]),
            (".5", &[0.5]),
            ("-3,5e-4", &[-3.5e-4]),
            ("1,2,3", &[]),
            ("x", &[]),
            ("inf", &[]),
            ("", &[]),
        ] {
            assert_eq!(numbers(text), meant, "{text}");
        }
    }

    #[test]
    fn units_are_strict() {
        assert_eq!("24 GiB".parse(), Ok(Bytes(24 << 30)));
        assert_eq!("1.5GB".parse(), Ok(Bytes(1_500_000_000)));
        assert!("24 gib".parse::<Bytes>().is_err());
        assert!("24".parse::<Bytes>().is_err());
        assert!("-1 GiB".parse::<Bytes>().is_err());
    }

    #[test]
    fn sizes_and_counts_show_three_digits() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes(1 << 20).to_string(), "1.00 MiB");
        assert_eq!(Bytes(14_495_514_624).to_string(), "13.5 GiB");
        let counts = [512, 999, 1000, 12_416, 999_499, 999_500, 124_439_808];
        let shown = ["512", "999", "1.00k", "12.4k", "999k", "1.00M", "124M"];
        assert_eq!(counts.map(|count| Count(count).to_string()), shown);
    }
}
