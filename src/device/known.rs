//! Known cards, with published figures, for plans without the card.

use super::cuda;
use super::{DeviceKind, Figures, Target};
use base::units::Bytes;

/// Assumed context size where it was not measured: about the size on compute capability 8.0 to 9.0 with kernels and
/// cuBLASLt loaded.
pub const ASSUMED_CONTEXT: Bytes = Bytes(512 << 20);

/// Other names of cards: services that lend them.
const SERVICES: [(&str, &str); 1] = [("colab", "t4-16gb")];

/// A card with figures from NVIDIA's data sheet. Rates are dense peaks in TFLOP/s with fp32 accumulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownCard {
    /// The name for `--target`.
    pub word: &'static str,
    /// The driver's name for the card, with its memory if cards of that name differ in it.
    pub name: &'static str,
    /// Memory that drivers report as available; varies by tens of MiB between driver versions.
    pub memory: Bytes,
    pub capability: &'static str,
    /// Memory bandwidth in GB/s.
    pub bandwidth: f64,
    pub fp32: f64,
    /// `None`: the card computes no such products, and this program does not run on it.
    pub tf32: Option<f64>,
    /// Products of bf16 and of fp16; of fp16 alone on cards on which this program does not run. `None`: sums are in fp16.
    pub half: Option<f64>,
}

/// By class and generation, largest first.
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
    card("a10g-24gb", "NVIDIA A10G", 22_587, "8.6", 600.0, [35.0, 35.0, 70.0]),
    card("rtx-6000-ada-48gb", "NVIDIA RTX 6000 Ada Generation", 48_640, "8.9", 960.0, [91.1, 182.1, 364.2]),
    card("rtx-a6000-48gb", "NVIDIA RTX A6000", 48_670, "8.6", 768.0, [38.7, 77.4, 154.8]),
    card("rtx-a5000-24gb", "NVIDIA RTX A5000", 24_114, "8.6", 768.0, [27.8, 55.6, 111.1]),
    card("rtx-a4000-16gb", "NVIDIA RTX A4000", 15_985, "8.6", 448.0, [19.2, 38.3, 76.7]),
    card("rtx-5090-32gb", "NVIDIA GeForce RTX 5090", 32_112, "12.0", 1792.0, [104.8, 104.8, 209.5]),
    card("rtx-4090-24gb", "NVIDIA GeForce RTX 4090", 24_084, "8.9", 1008.0, [82.6, 82.6, 165.2]),
    card("rtx-4080-16gb", "NVIDIA GeForce RTX 4080", 16_049, "8.9", 716.8, [48.7, 48.7, 97.5]),
    card("rtx-4070-12gb", "NVIDIA GeForce RTX 4070", 11_866, "8.9", 504.0, [29.1, 29.1, 58.3]),
    card("rtx-4060-ti-16gb", "NVIDIA GeForce RTX 4060 Ti 16GB", 15_944, "8.9", 288.0, [22.1, 22.1, 44.1]),
    card("rtx-4060-ti-8gb", "NVIDIA GeForce RTX 4060 Ti 8GB", 7_806, "8.9", 288.0, [22.1, 22.1, 44.1]),
    card("rtx-3090-24gb", "NVIDIA GeForce RTX 3090", 24_248, "8.6", 936.0, [35.6, 35.6, 71.0]),
    card("rtx-3080-12gb", "NVIDIA GeForce RTX 3080 12GB", 12_117, "8.6", 912.0, [30.6, 30.6, 61.3]),
    card("rtx-3080-10gb", "NVIDIA GeForce RTX 3080 10GB", 10_002, "8.6", 760.0, [29.8, 29.8, 59.5]),
    card("rtx-3070-8gb", "NVIDIA GeForce RTX 3070", 7_819, "8.6", 448.0, [20.3, 20.3, 40.6]),
    card("rtx-3060-12gb", "NVIDIA GeForce RTX 3060 12GB", 11_906, "8.6", 360.0, [12.7, 12.7, 25.5]),
    card("rtx-3060-8gb", "NVIDIA GeForce RTX 3060 8GB", 7_819, "8.6", 240.0, [12.7, 12.7, 25.5]),
    old_card("t4-16gb", "Tesla T4", 15_095, "7.5", 300.0, 8.1, Some(65.0)),
    old_card("rtx-2080-ti-11gb", "NVIDIA GeForce RTX 2080 Ti", 10_825, "7.5", 616.0, 13.4, Some(53.8)),
    old_card("v100-32gb", "Tesla V100-SXM2-32GB", 32_494, "7.0", 900.0, 15.7, Some(125.0)),
    old_card("v100-16gb", "Tesla V100-SXM2-16GB", 16_160, "7.0", 900.0, 15.7, Some(125.0)),
    old_card("p100-16gb", "Tesla P100-PCIE-16GB", 16_280, "6.0", 732.0, 9.3, None),
];

const fn card(
    word: &'static str,
    name: &'static str,
    mib: u64,
    capability: &'static str,
    bandwidth: f64,
    [fp32, tf32, half]: [f64; 3],
) -> KnownCard {
    let (tf32, half) = (Some(tf32), Some(half));
    KnownCard { word, name, memory: Bytes(mib << 20), capability, bandwidth, fp32, tf32, half }
}

/// A card before compute capability 8.0.
const fn old_card(
    word: &'static str,
    name: &'static str,
    mib: u64,
    capability: &'static str,
    bandwidth: f64,
    fp32: f64,
    half: Option<f64>,
) -> KnownCard {
    KnownCard { word, name, memory: Bytes(mib << 20), capability, bandwidth, fp32, tf32: None, half }
}

impl KnownCard {
    /// The card whose memory is assumed, and the card whose memory it is: no driver's figure was found.
    pub const ASSUMED_MEMORY: [&str; 2] = ["rtx-3060-8gb", "rtx-3070-8gb"];

    /// The card with this `--target` name, exactly.
    pub fn find(word: &str) -> Option<&'static KnownCard> {
        KNOWN_CARDS.iter().find(|card| card.word == word)
    }

    /// The cards that a natural spelling of a name can mean: `4070`, `RTX 3060 8GB`, `Tesla T4`, `colab`.
    pub fn meant(word: &str) -> Vec<&'static KnownCard> {
        let meant = plain(word);
        let word =
            SERVICES.iter().find(|(service, _)| *service == meant).map_or(meant.as_str(), |(_, word)| word);
        let meant = plain(word);
        KNOWN_CARDS.iter().filter(|card| card.spellings().contains(&meant)).collect()
    }

    /// The spellings of its name, plain: with and without maker and memory.
    fn spellings(&self) -> Vec<String> {
        let (model, size) = self.word.rsplit_once('-').unwrap_or((self.word, ""));
        let (model, size) = (plain(model), size.trim_end_matches("gb"));
        let short = model.strip_prefix("rtx").unwrap_or(&model).to_owned();
        let with_sizes = |model: String| {
            ["".to_owned(), format!("{size}gb"), format!("{size}gib"), format!("{size}g")]
                .map(|size| model.clone() + &size)
        };
        [model.clone(), short].into_iter().flat_map(with_sizes).chain([plain(self.name)]).collect()
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
            // Eight lanes.
            _ if self.name.contains("4060 Ti") => 16.0,
            Some("6" | "7") => 16.0,
            Some("8") => 32.0,
            _ => 64.0,
        }
    }

    /// Bandwidth to other cards of its node, in GB/s per direction: NVLink of cards on boards that all have it, else PCI
    /// Express. `None`: nodes differ.
    pub fn card_link(&self) -> Option<f64> {
        match self.word {
            "b200-180gb" => Some(900.0),
            "h200-141gb" | "h100-80gb" => Some(450.0),
            "a100-80gb" | "a100-40gb" => Some(300.0),
            "v100-32gb" | "v100-16gb" => Some(150.0),
            "gh200-96gb" => None,
            _ => Some(self.link()),
        }
    }

    /// Cards of a node: 8 on an HGX board, with links between all of them. `None`: nodes differ.
    pub fn cards(&self) -> Option<usize> {
        let is_on_board =
            ["b200-180gb", "h200-141gb", "h100-80gb", "a100-80gb", "a100-40gb"].contains(&self.word);
        is_on_board.then_some(8)
    }

    /// Suggestions for an unknown name: the names that contain it, or else those with the smallest edit distance.
    pub fn near(word: &str) -> Vec<&'static str> {
        const LONGEST: usize = 40;
        let meant = plain(word);
        let meant = meant.as_str();
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

impl Target {
    /// Whether it is a card that this program does not run on, because it has no kernels for its compute capability.
    pub fn is_too_old(&self) -> bool {
        let number = |text: &str| text.parse::<u32>().ok();
        let version = |(major, minor)| Some(cuda::Version { major: number(major)?, minor: number(minor)? });
        let capability = self.capability.as_deref().and_then(|text| text.split_once('.')).and_then(version);
        self.kind == DeviceKind::Cuda && capability.is_some_and(|capability| capability < cuda::OLDEST)
    }
}

/// A name in lower case, without separators and the names of makers and brands.
fn plain(name: &str) -> String {
    const BRANDS: [&str; 4] = ["nvidia", "geforce", "tesla", "quadro"];
    let name = name.to_lowercase().replace(['-', '_', ' '], "");
    BRANDS.iter().fold(name, |name, brand| name.strip_prefix(brand).map_or(name.clone(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name contains the nominal memory size, in GB or GiB.
    #[test]
    fn published_figures_are_consistent() {
        for card in KNOWN_CARDS {
            let KnownCard { word, memory, bandwidth, fp32, tf32, half, .. } = *card;
            let size = word.rsplit('-').next().and_then(|size| size.strip_suffix("gb")).expect("a size");
            let size: f64 = size.parse().expect("a number");
            let found = memory.0 as f64;
            assert!(found <= size * 2f64.powi(30) && found >= size * 0.97e9, "{word}: {memory}");
            let (major, minor) = card.capability.split_once('.').expect("a version");
            let capability = cuda::Version { major: major.parse().unwrap(), minor: minor.parse().unwrap() };
            let is_consistent = match (tf32, half) {
                (Some(tf32), Some(half)) => fp32 <= tf32 && 1.9 * tf32 < half && half < 2.1 * tf32,
                // The first tensor cores.
                (None, half) => half.is_some_and(|half| 3.9 * fp32 < half) == (capability.major == 7),
                (Some(_), None) => false,
            };
            assert!(is_consistent, "{word}: rates");
            assert_eq!(tf32.is_some(), capability >= cuda::OLDEST, "{word}: {capability}");
            assert_eq!(card.target().is_too_old(), capability < cuda::OLDEST, "{word}");
            assert!((200.0..=8000.0).contains(&bandwidth), "{word}: {bandwidth} GB/s");
            let link = card.card_link();
            assert!(
                link.is_none_or(|link| link >= card.link() && 2.0 * link < bandwidth),
                "{word}: {link:?}"
            );
            assert!(card.cards().is_none() || link > Some(card.link()), "{word}: a board has NVLink");
            assert_eq!(KnownCard::find(word), Some(card), "{word} is listed once");
            assert_eq!(KnownCard::named(card.name), Some(card), "{word}: one card of its name");
            assert_eq!(card.target().available(), memory.0 - ASSUMED_CONTEXT.0);
        }
        let [assumed, source] = KnownCard::ASSUMED_MEMORY.map(|word| KnownCard::find(word).expect("known"));
        assert_eq!(assumed.memory, source.memory);
    }

    #[test]
    fn natural_spellings_mean_their_cards() {
        let meant = |word: &str| KnownCard::meant(word).into_iter().map(|card| card.word).collect::<Vec<_>>();
        for (word, card) in [
            ("a10g", "a10g-24gb"),
            ("A10", "a10-24gb"),
            ("4070", "rtx-4070-12gb"),
            ("rtx4070", "rtx-4070-12gb"),
            ("RTX 4070", "rtx-4070-12gb"),
            ("4060ti-8g", "rtx-4060-ti-8gb"),
            ("3060-12GB", "rtx-3060-12gb"),
            ("2080 Ti", "rtx-2080-ti-11gb"),
            ("a6000", "rtx-a6000-48gb"),
            ("rtx_a4000", "rtx-a4000-16gb"),
            ("colab", "t4-16gb"),
            ("Tesla T4", "t4-16gb"),
            ("NVIDIA GeForce RTX 3070", "rtx-3070-8gb"),
            ("h200", "h200-141gb"),
        ] {
            assert_eq!(meant(word), [card], "{word}");
        }
        assert_eq!(meant("3060"), ["rtx-3060-12gb", "rtx-3060-8gb"]);
        assert_eq!(meant("v100"), ["v100-32gb", "v100-16gb"]);
        for none in ["", "3060ti", "4070 super", "rtx", "mi300x", "24gb"] {
            assert_eq!(meant(none), [""; 0], "{none}");
        }
        for card in KNOWN_CARDS {
            assert_eq!(meant(card.word), [card.word]);
            assert_eq!(meant(card.name), [card.word]);
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
