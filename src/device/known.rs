//! Known cards, with published figures, for plans without the card.

use super::cuda;
use super::{Figures, Target};
use base::units::Bytes;

/// Assumed context size where it was not measured: about the size on compute capability 8.0 to 9.0 with kernels and
/// cuBLASLt loaded.
pub const ASSUMED_CONTEXT: Bytes = Bytes(512 << 20);

/// A card with figures from NVIDIA's data sheet. Rates are dense peaks in TFLOP/s with fp32 accumulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownCard {
    /// The name for `--target`.
    pub word: &'static str,
    /// The driver's name for the card.
    pub name: &'static str,
    /// Memory that drivers report as available; varies by tens of MiB between driver versions.
    pub memory: Bytes,
    pub capability: &'static str,
    /// Memory bandwidth in GB/s.
    pub bandwidth: f64,
    pub fp32: f64,
    pub tf32: f64,
    /// Also the fp16 rate.
    pub bf16: f64,
}

/// Within a generation, largest first.
#[rustfmt::skip]
pub const KNOWN_CARDS: &[KnownCard] = &[
    card("b200-180gb", "NVIDIA B200", 182_630, "10.0", 8000.0, [75.0, 1125.0, 2250.0]),
    card("h200-141gb", "NVIDIA H200", 143_155, "9.0", 4800.0, [67.0, 494.5, 989.0]),
    card("gh200-96gb", "NVIDIA GH200 480GB", 96_768, "9.0", 4000.0, [67.0, 494.5, 989.0]),
    card("h100-94gb", "NVIDIA H100 NVL", 95_252, "9.0", 3900.0, [60.0, 417.5, 835.0]),
    card("h100-80gb", "NVIDIA H100 80GB HBM3", 81_008, "9.0", 3350.0, [67.0, 494.5, 989.0]),
    card("h100-pcie-80gb", "NVIDIA H100 PCIe", 81_008, "9.0", 2000.0, [51.0, 378.0, 756.0]),
    card("a100-80gb", "NVIDIA A100-SXM4-80GB", 81_049, "8.0", 2039.0, [19.5, 156.0, 312.0]),
    card("a100-40gb", "NVIDIA A100-SXM4-40GB", 40_335, "8.0", 1555.0, [19.5, 156.0, 312.0]),
    card("l40s-48gb", "NVIDIA L40S", 45_455, "8.9", 864.0, [91.6, 183.0, 362.0]),
    card("l4-24gb", "NVIDIA L4", 22_558, "8.9", 300.0, [30.3, 60.0, 121.0]),
    card("a10-24gb", "NVIDIA A10", 22_589, "8.6", 600.0, [31.2, 62.5, 125.0]),
    card("rtx-6000-ada-48gb", "NVIDIA RTX 6000 Ada Generation", 48_640, "8.9", 960.0, [91.1, 182.1, 364.2]),
    card("rtx-a6000-48gb", "NVIDIA RTX A6000", 48_670, "8.6", 768.0, [38.7, 77.4, 154.8]),
    card("rtx-5090-32gb", "NVIDIA GeForce RTX 5090", 32_112, "12.0", 1792.0, [104.8, 104.8, 209.5]),
    card("rtx-4090-24gb", "NVIDIA GeForce RTX 4090", 24_084, "8.9", 1008.0, [82.6, 82.6, 165.2]),
    card("rtx-3090-24gb", "NVIDIA GeForce RTX 3090", 24_248, "8.6", 936.0, [35.6, 35.6, 71.0]),
];

const fn card(
    word: &'static str,
    name: &'static str,
    mib: u64,
    capability: &'static str,
    bandwidth: f64,
    [fp32, tf32, bf16]: [f64; 3],
) -> KnownCard {
    KnownCard { word, name, memory: Bytes(mib << 20), capability, bandwidth, fp32, tf32, bf16 }
}

impl KnownCard {
    /// The card with this `--target` name.
    pub fn find(word: &str) -> Option<&'static KnownCard> {
        KNOWN_CARDS.iter().find(|card| card.word == word)
    }

    /// The card with this driver name.
    pub fn named(name: &str) -> Option<&'static KnownCard> {
        KNOWN_CARDS.iter().find(|card| card.name == name)
    }

    /// Bandwidth to and from host memory, in GB/s per direction: PCI Express x16 of the card's generation, or
    /// NVLink-C2C.
    pub fn link(&self) -> f64 {
        match self.capability.split('.').next() {
            _ if self.name.contains("GH200") => 450.0,
            Some("8") => 32.0,
            _ => 64.0,
        }
    }

    /// Suggestions for an unknown name: the names that contain it, or else those with the smallest edit distance.
    pub fn near(word: &str) -> Vec<&'static str> {
        const LONGEST: usize = 40;
        let plain = |name: &str| name.to_lowercase().replace(['-', '_', ' '], "");
        let meant = plain(word);
        let meant = meant.trim_start_matches("nvidia").trim_start_matches("geforce");
        if meant.is_empty() || meant.len() > LONGEST {
            return Vec::new();
        }
        let words = || KNOWN_CARDS.iter().map(|card| card.word);
        let within: Vec<&str> = words().filter(|known| plain(known).contains(meant)).collect();
        if !within.is_empty() {
            return within;
        }
        let distance = |known: &&str| strsim::damerau_levenshtein(meant, &plain(known));
        let least = words().map(|known| distance(&known)).min().unwrap_or(usize::MAX);
        words().filter(|known| distance(known) == least && least <= 1 + meant.len() / 4).collect()
    }

    /// The card as a target. Its context size is assumed.
    pub fn target(&self) -> Target {
        let capability = Some(self.capability.to_owned());
        let target = cuda::target(self.name, capability, self.memory, ASSUMED_CONTEXT);
        Target { figures: Figures::DataSheet, ..target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name contains the nominal memory size, in GB or GiB.
    #[test]
    fn published_figures_are_consistent() {
        for card in KNOWN_CARDS {
            let KnownCard { word, memory, bandwidth, fp32, tf32, bf16, .. } = *card;
            let size = word.rsplit('-').next().and_then(|size| size.strip_suffix("gb")).expect("a size");
            let size: f64 = size.parse().expect("a number");
            let found = memory.0 as f64;
            assert!(found <= size * 2f64.powi(30) && found >= size * 0.97e9, "{word}: {memory}");
            assert!(fp32 <= tf32 && 1.9 * tf32 < bf16 && bf16 < 2.1 * tf32, "{word}: rates");
            assert!((300.0..=8000.0).contains(&bandwidth), "{word}: {bandwidth} GB/s");
            let (major, minor) = card.capability.split_once('.').expect("a version");
            let capability = cuda::Version { major: major.parse().unwrap(), minor: minor.parse().unwrap() };
            assert!(capability >= cuda::OLDEST, "{word}: {capability}");
            assert_eq!(KnownCard::find(word), Some(card), "{word} is listed once");
            assert_eq!(card.target().available(), memory.0 - ASSUMED_CONTEXT.0);
        }
    }

    #[test]
    fn near_suggests_similar_names() {
        assert_eq!(KnownCard::near("H100"), ["h100-94gb", "h100-80gb", "h100-pcie-80gb"]);
        assert_eq!(KnownCard::near("NVIDIA GeForce RTX 4090"), ["rtx-4090-24gb"]);
        assert_eq!(KnownCard::near("a100_40gb"), ["a100-40gb"]);
        assert_eq!(KnownCard::near("h100-80bg"), ["h100-80gb"]);
        assert_eq!(KnownCard::near("h100-81gb"), ["h100-80gb"]);
        for none in ["", "nvidia", "mi300x", &"x".repeat(1000)] {
            assert_eq!(KnownCard::near(none), [""; 0], "{none}");
        }
    }
}
