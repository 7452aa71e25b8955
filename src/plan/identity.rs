//! Ids of configurations and runs. Equal ids mean the same run.

use serde::Serialize;
use sha2::{Digest, Sha256};

use base::units::Bytes;
use device::{Figures, Target};
use spec::RunConfig;

#[cfg(test)]
mod tests;

/// Hexadecimal digits of an id: 64 bits, so that a million runs collide with a chance of one in 10^7.
const DIGITS: usize = 16;

/// The number of changes of defaults so far. Ids of runs with an old default must not name runs with the new one.
const DEFAULTS: u32 = 0;

/// The digest of a configuration and its data. It excludes labels, paths, repeats and keys at their defaults, so that
/// keys which a later version adds do not change the ids of stored runs.
pub(super) fn configuration_id(config: &RunConfig, data_digest: &str) -> String {
    digest(&(DEFAULTS, config.identity(), data_digest))
}

/// The digest of a configuration on a target, the name of the run's folder. Fields that a later version adds to the
/// target are not hashed at their defaults, so that stored runs keep their names.
pub(super) fn run_id(configuration: &str, target: &Target) -> String {
    digest(&(configuration, &identity_of(target)))
}

/// The digest of a target: equal for targets on which a run has the same id.
pub fn target_id(target: &Target) -> String {
    digest(&identity_of(target))
}

/// The properties of a target that tell runs apart.
fn identity_of(target: &Target) -> Target {
    // The memory of the GPU's context is measured each time and varies with other work on it, and figures may be
    // measured or assumed. Neither makes another run.
    Target { context: Bytes(0), communicator: None, figures: Figures::Measured, ..target.clone() }
}

fn digest(content: &impl Serialize) -> String {
    let json = serde_json::to_vec(content).expect("plain data always serialises");
    let mut hex: String = Sha256::digest(&json).iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(DIGITS);
    hex
}
