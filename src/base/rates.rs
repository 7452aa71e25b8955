//! Rates in text: strict parsing, short output.

use std::fmt;
use std::str::FromStr;

use super::units::{Bytes, Count};

/// Bytes per second. Written as `"25 GB/s"` (10^9) or `"25 GiB/s"` (2^30): units are strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesPerSecond(pub u64);

/// FLOP/s; a multiply-add is two FLOPs. Written as `"90 GFLOP/s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlopsPerSecond(pub u64);

const FLOP_UNITS: [(&str, f64); 4] =
    [("MFLOP/s", 1e6), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)];

impl BytesPerSecond {
    /// A regular expression for rates.
    pub fn pattern() -> String {
        format!(r"^\s*{}\s*/s\s*$", Bytes::pattern_of(Bytes::POSITIVE))
    }
}

impl FlopsPerSecond {
    /// A regular expression for rates: a superset of those that parse.
    pub fn pattern() -> String {
        format!(r"^\s*[0-9.eE+]+\s*({})\s*$", FLOP_UNITS.map(|(unit, _)| unit).join("|"))
    }
}

impl FromStr for BytesPerSecond {
    type Err = String;

    fn from_str(text: &str) -> Result<BytesPerSecond, String> {
        let Some(size) = text.trim().strip_suffix("/s") else {
            return Err(format!("`{text}` is not a rate; write a number and a unit, such as \"25 GB/s\""));
        };
        match size.parse() {
            Ok(Bytes(0)) => Err("the rate must be above 0".to_owned()),
            Ok(Bytes(bytes)) => Ok(BytesPerSecond(bytes)),
            Err(_) => Err(format!("`{text}` is not a rate; write a number and a unit, such as \"25 GB/s\"")),
        }
    }
}

impl FromStr for FlopsPerSecond {
    type Err = String;

    fn from_str(text: &str) -> Result<FlopsPerSecond, String> {
        let parsed = FLOP_UNITS.iter().find_map(|(unit, scale)| {
            let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
            let flops = number * scale;
            (1.0..1e19).contains(&flops).then_some(FlopsPerSecond(flops as u64))
        });
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is not a rate of arithmetic; write a number and a unit, such as \"90 GFLOP/s\" or \"1.5 TFLOP/s\""
            )
        })
    }
}

/// Three significant digits: `25.0 GB/s`. Reads back.
impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, "B/s")
    }
}

/// Three significant digits: `90.0 GFLOP/s`. Reads back from 1 MFLOP/s on.
impl fmt::Display for FlopsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, "FLOP/s")
    }
}

fn write_scaled(f: &mut fmt::Formatter<'_>, rate: u64, unit: &str) -> fmt::Result {
    let text = Count(rate).to_string();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    write!(f, "{number} {}{unit}", &text[number.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_strict() {
        assert_eq!("25 GB/s".parse(), Ok(BytesPerSecond(25_000_000_000)));
        assert_eq!("1.5GiB/s".parse(), Ok(BytesPerSecond(3 << 29)));
        for wrong in
            ["25", "25 GB", "25 GB/h", "-1 GB/s", "0 GB/s", "25 Gb/s", "25 gb/s", "/s", "", "nan GB/s"]
        {
            assert!(wrong.parse::<BytesPerSecond>().is_err(), "{wrong}");
        }
        assert_eq!("90 GFLOP/s".parse(), Ok(FlopsPerSecond(90_000_000_000)));
        for wrong in [
            "90",
            "90 GFLOPS",
            "90 FLOP/s",
            "-1 GFLOP/s",
            "0 GFLOP/s",
            "nan GFLOP/s",
            "inf TFLOP/s",
            "1e9 PFLOP/s",
        ] {
            assert!(wrong.parse::<FlopsPerSecond>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_show_three_digits_and_read_back() {
        let shown =
            [9_534_000_000, 25_000_000_000, 3_350_000_000_000].map(|rate| BytesPerSecond(rate).to_string());
        assert_eq!(shown, ["9.53 GB/s", "25.0 GB/s", "3.35 TB/s"]);
        assert_eq!(shown[0].parse(), Ok(BytesPerSecond(9_530_000_000)));
        assert_eq!(FlopsPerSecond(90_000_000_000).to_string(), "90.0 GFLOP/s");
    }
}
