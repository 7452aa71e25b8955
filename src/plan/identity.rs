//! What makes two runs the same run.

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::device::Target;
use crate::spec::{Data, RunConfig};
use crate::units::Bytes;

/// Hexadecimal digits of an id: 64 bits, so that a million runs collide with a chance of one in 10^7.
const DIGITS: usize = 16;

/// The digest of a resolved configuration and its data. Labels, paths and repeats are not part of it.
pub fn configuration_id(config: &RunConfig, data_digest: &str) -> String {
    // Where the text lies does not matter, what it is does.
    let mut content = config.clone();
    let Data::Text(text) = &mut content.data;
    text.paths.clear();
    digest(&(content, data_digest))
}

/// The digest of a configuration on a target: names the run's folder.
pub fn run_id(configuration: &str, target: &Target) -> String {
    // What a card takes for itself is measured each time, and differs by what else it is doing: the run is the same.
    let target = Target { context: Bytes(0), ..target.clone() };
    digest(&(configuration, &target))
}

fn digest(content: &impl Serialize) -> String {
    let json = serde_json::to_vec(content).expect("plain data always serialises");
    let mut hex: String = Sha256::digest(&json).iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(DIGITS);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::target;

    #[test]
    fn a_run_is_the_same_whatever_the_context_takes() {
        let context = |bytes| Target { context: Bytes(bytes), ..target() };
        assert_eq!(run_id("a", &context(0)), run_id("a", &context(500 << 20)));
        assert_ne!(run_id("a", &target()), run_id("a", &target().with_memory(Bytes(1))));
    }
}
