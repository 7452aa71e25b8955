//! Random draws, and the offsets of drawn samples.

/// The site of sample draws, so that they are independent of all other draws of a run.
const SITE: u64 = 0x7361_6d70_6c65_7273;

/// The start of a sample of a step, uniform over `0..starts`. A pure function of its arguments, so that splitting
/// a step into micro-batches changes nothing.
///
/// `starts` is not zero.
pub(super) fn start(seed: u64, step: u64, sample: u64, starts: u64) -> u64 {
    scale(draw(seed, SITE, step, sample), starts)
}

/// A random u64, a pure function of seed, site, step and sample.
pub(super) fn draw(seed: u64, site: u64, step: u64, sample: u64) -> u64 {
    mix(mix(mix(mix(site) ^ seed) ^ step) ^ sample)
}

/// Another random number, of a draw and a site.
pub(super) fn mixed(draw: u64, site: u64) -> u64 {
    mix(draw ^ mix(site))
}

/// Maps a draw to `0..count`, uniform to within count / 2^64.
pub(super) fn scale(draw: u64, count: u64) -> u64 {
    // The high half of the product.
    ((u128::from(draw) * u128::from(count)) >> 64) as u64
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_reference_implementation() {
        // The first output for seed 0 of the reference implementation.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn starts_are_uniform() {
        let mut counts = [0; 10];
        for step in 0..100 {
            for sample in 0..100 {
                counts[start(7, step, sample, 10) as usize] += 1;
            }
        }
        // Six standard deviations of a binomial of 10,000 draws are 180.
        assert!(counts.iter().all(|count| (820..=1180).contains(count)), "{counts:?}");
    }

    #[test]
    fn draws_depend_on_seed_step_and_sample() {
        let starts = 1 << 40;
        let first = start(0, 0, 0, starts);
        assert_ne!(first, start(1, 0, 0, starts));
        assert_ne!(first, start(0, 1, 0, starts));
        assert_ne!(first, start(0, 0, 1, starts));
        assert_ne!(start(0, 1, 0, starts), start(0, 0, 1, starts));
        assert_eq!(start(0, 5, 5, 1), 0);
    }
}
