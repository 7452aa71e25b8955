//! Cards that can be planned for where there is none: their figures as they are published.

use super::cuda;
use super::{Figures, Target};
use base::units::Bytes;

/// What a card's context is taken to take where nobody measured it: about what those of compute capability 8.0 to 9.0 take
/// with kernels and the library loaded.
pub const ASSUMED_CONTEXT: Bytes = Bytes(512 << 20);

/// A card as NVIDIA's data sheet describes it. Rates are peaks in TFLOP/s, dense, with sums in fp32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownCard {
    /// What `--target` takes.
    pub word: &'static str,
    /// As its driver says it.
    pub name: &'static str,
    /// As much as drivers let programs have, which is some tens of MiB more or less from version to version.
    pub memory: Bytes,
    pub capability: &'static str,
    /// Of its memory, in GB/s.
    pub bandwidth: f64,
    pub fp32: f64,
    pub tf32: f64,
    /// Of fp16, too.
    pub bf16: f64,
}

/// The largest of a generation first.
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
    /// The card of a name as `--target` takes it.
    pub fn find(word: &str) -> Option<&'static KnownCard> {
        KNOWN_CARDS.iter().find(|card| card.word == word)
    }

    /// The card that its driver calls this.
    pub fn named(name: &str) -> Option<&'static KnownCard> {
        KNOWN_CARDS.iter().find(|card| card.name == name)
    }

    /// GB/s to the host's memory, and as many back: of sixteen lanes of PCI Express as its generation of cards has it, or of what
    /// joins it to its own processor.
    pub fn link(&self) -> f64 {
        match self.capability.split('.').next() {
            _ if self.name.contains("GH200") => 450.0,
            Some("8") => 32.0,
            _ => 64.0,
        }
    }

    /// The names that were probably meant by another: those that have it within them, or else those that are spelt nearly so.
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

    /// As a target. What its context takes is assumed.
    pub fn target(&self) -> Target {
        let capability = Some(self.capability.to_owned());
        let target = cuda::target(self.name, capability, self.memory, ASSUMED_CONTEXT);
        Target { figures: Figures::DataSheet, ..target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a data sheet calls the size of a card's memory stands in its name, in powers of 1000 or of 1024.
    #[test]
    fn what_is_published_agrees_with_itself() {
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
            assert_eq!(KnownCard::find(word), Some(card), "{word} is there once");
            assert_eq!(card.target().available(), memory.0 - ASSUMED_CONTEXT.0);
        }
    }

    #[test]
    fn names_that_are_nearly_right_lead_to_those_that_are() {
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
