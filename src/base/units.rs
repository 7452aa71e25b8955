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

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let advice =
            || format!("`{text}` is not a size; write a number and a unit, such as \"24 GiB\" or \"500 MB\"");
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(advice)?;
        let (number, unit) = trimmed.split_at(split);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| {
            format!("`{unit}` is not a unit of size; use B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)")
        })?;
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

    /// Exact text in the largest binary unit that divides the number.
    pub fn exact(self) -> String {
        let (name, scale) = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
            .into_iter()
            .find(|(_, scale)| self.0 > 0 && self.0.is_multiple_of(*scale))
            .unwrap_or(("B", 1));
        format!("{} {name}", self.0 / scale)
    }
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
    fn units_are_strict() {
        assert_eq!("24 GiB".parse(), Ok(Bytes(24 << 30)));
        assert_eq!("1.5GB".parse(), Ok(Bytes(1_500_000_000)));
        assert!("24 gib".parse::<Bytes>().unwrap_err().contains("not a unit"));
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
