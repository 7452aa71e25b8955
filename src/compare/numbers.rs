//! Formatting of numbers for tables and sentences: short, of bounded width.

use base::units::Bytes;

/// The common unit of all sizes in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    pub name: &'static str,
    scale: f64,
    decimals: usize,
}

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Unit {
    /// Whether it is the name of a unit.
    pub(super) fn is_name(name: &str) -> bool {
        UNITS.iter().any(|(unit, _)| *unit == name)
    }

    /// The largest unit that still shows the smallest size.
    pub fn for_sizes(sizes: impl Iterator<Item = u64>) -> Unit {
        let (mut least, mut most) = (u64::MAX, 0);
        for size in sizes.filter(|size| *size > 0) {
            least = least.min(size);
            most = most.max(size);
        }
        let fits = |scale: u64| most / scale >= 1 && (least >= scale / 2 || most / scale >= 16);
        let (name, scale) = UNITS.into_iter().find(|(_, scale)| fits(*scale)).unwrap_or(("MiB", 1 << 20));
        let least = least as f64 / scale as f64;
        let decimals = match () {
            () if scale == 1 || least >= 100.0 => 0,
            () if least >= 1.0 => 1,
            () => 2,
        };
        Unit { name, scale: scale as f64, decimals }
    }

    /// A size in this unit.
    pub fn of(self, bytes: u64) -> f64 {
        bytes as f64 / self.scale
    }

    pub fn show(self, bytes: u64) -> String {
        format!("{:.*}", self.decimals, self.of(bytes))
    }

    pub(super) fn show_change(self, bytes: i128) -> String {
        format!("{:+.*}", self.decimals, bytes as f64 / self.scale)
    }
}

/// A size in a sentence.
pub(super) fn size(bytes: u64) -> String {
    let text = Bytes(bytes).to_string();
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// A ratio to the baseline: `0.57`, `7.92`, `412`.
pub(super) fn ratio(value: f64) -> String {
    match value.abs() {
        a if a >= 1e5 => format!("{value:.0e}"),
        a if a >= 99.95 => format!("{value:.0}"),
        a if a >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// `0.0031`, `0.52`, `6.10`, `43.1`, `512`
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms >= 99.95 => format!("{ms:.0}"),
        ms if ms >= 9.995 => format!("{ms:.1}"),
        ms if ms >= 0.0995 => format!("{ms:.2}"),
        ms => format!("{ms:.4}"),
    }
}

/// A rate per second: `523`, `5.2k`, `412k`, `1.2M`.
pub fn rate(value: f64) -> String {
    for (scale, unit) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        let scaled = value / scale;
        if scaled >= 99_999.5 {
            return format!("{value:.0e}");
        }
        if scaled >= 0.9995 {
            return if scaled >= 9.95 { format!("{scaled:.0}{unit}") } else { format!("{scaled:.1}{unit}") };
        }
    }
    if value >= 9.95 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// A share in whole percent; below 1 % with one decimal.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 1e4 => format!("{p:.0e}"),
        p if (0.05..0.95).contains(&p) => format!("{p:.1}"),
        p => format!("{p:.0}"),
    }
}

/// A signed share: `+0.02%`.
pub(super) fn change(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0%".into(),
        p if p.abs() >= 1e4 => format!("{p:+.0e}%"),
        p if p.abs() >= 99.95 => format!("{p:+.0}%"),
        p if p.abs() >= 9.995 => format!("{p:+.1}%"),
        p => format!("{p:+.2}%"),
    }
}

/// `1 thing`, `3 things`
pub(super) fn count(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// `a`, `a and b`, `a, b and c`; long lists end in `and 7 others`.
pub(super) fn list(names: &[String]) -> String {
    const MOST: usize = 5;
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] if names.len() <= MOST => format!("{} and {last}", most.join(", ")),
        _ => format!("{} and {} others", names[..MOST - 1].join(", "), names.len() - MOST + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_suits_smallest_and_largest_size() {
        let gib = |x: f64| (x * (1u64 << 30) as f64) as u64;
        let unit = Unit::for_sizes([gib(13.5), gib(3.5)].into_iter());
        assert_eq!((unit.name, unit.show(gib(13.5)).as_str()), ("GiB", "13.5"));
        let unit = Unit::for_sizes([gib(1.5), gib(0.1)].into_iter());
        assert_eq!((unit.name, unit.show(gib(1.5)).as_str()), ("MiB", "1536"));
        assert_eq!(Unit::for_sizes([300, 2000].into_iter()).show(300), "300");
        assert_eq!(Unit::for_sizes(std::iter::empty()).name, "MiB");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [ratio(0.5678), ratio(7.923), ratio(41.26), ratio(412.3)],
            ["0.57", "7.92", "41.3", "412"]
        );
        assert_eq!([rate(5.25), rate(523.0), rate(5230.0), rate(52_300.0)], ["5.25", "523", "5.2k", "52k"]);
        assert_eq!([rate(999.9), rate(1.2e6), rate(1e30)], ["1.0k", "1.2M", "1e30"]);
        assert_eq!([change(0.0002), change(-0.25), change(0.0)], ["+0.02%", "-25.0%", "0%"]);
        assert_eq!([percent(0.09), percent(0.004), percent(0.0)], ["9", "0.4", "0"]);
        assert_eq!([size(24 << 30), size(1 << 29), size(2_254_857_830)], ["24 GiB", "512 MiB", "2.1 GiB"]);
        assert_eq!(list(&["a".into(), "b".into(), "c".into()]), "a, b and c");
    }
}
