//! What a child found out.

use serde::{Deserialize, Serialize};

use super::products::ProductSources;
use crate::device::{ByRole, Role};

/// Everything that a run measured, but for what goes into files of its own. What was not reached is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measurement {
    pub ended: Ended,
    pub out_of_memory: Option<OutOfMemoryReport>,
    /// Live bytes of the device pool at the peak of training and evaluation.
    pub peak_bytes: Option<u64>,
    pub roles: Roles,
    pub reserved_peak_bytes: Option<u64>,
    pub witness_peak_bytes: Option<u64>,
    pub witness_step_bytes: Option<u64>,
    pub start_peak_bytes: Option<u64>,
    pub forward_peak_bytes: Option<u64>,
    pub backward_peak_bytes: Option<u64>,
    pub update_peak_bytes: Option<u64>,
    pub evaluation_peak_bytes: Option<u64>,
    pub host_peak_bytes: Option<u64>,
    pub host_reserved_peak_bytes: Option<u64>,
    /// Of the timed steps.
    pub step_ms: Vec<f64>,
    pub data_wait_ms: Vec<f64>,
    pub tokens_per_step: Option<usize>,
    pub loss_first: Option<f64>,
    pub loss_last: Option<f64>,
    pub loss_eval: Option<f64>,
    /// Of one step, as counted while it ran.
    pub recompute_flops: Option<u64>,
    pub hardware_flops: Option<u64>,
    pub micro_batches: Option<u64>,
    /// Whether the numbers of the run's precision were widened for each product.
    pub emulated: bool,
    /// Of all steps, and for the one that would come next: where there is a loss scale.
    pub skipped_steps: Option<u64>,
    pub loss_scale: Option<f64>,
    pub receipt: String,
    /// `None` where the device has no choice of algorithms.
    pub products: Option<ProductSources>,
    pub load: Option<f64>,
    pub clock_mhz: Option<f64>,
    pub digest: String,
    /// Of the step that was timed instruction by instruction, where that takes a step of its own.
    pub profiled_step_ms: Option<f64>,
    /// From the process's beginning to that of its first step, without what the measurement needs before it: choosing
    /// algorithms, priming.
    pub startup_ms: Option<f64>,
    /// What the device reached after training.
    pub product_flops_per_s: Option<f64>,
    pub copy_bytes_per_s: Option<f64>,
}

/// How training ended: all are results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    #[default]
    Complete,
    OutOfMemory,
    Diverged,
}

/// What was live at the peak, by role, rounded as allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    pub parameter: u64,
    pub master_weight: u64,
    pub gradient: u64,
    pub optimizer: u64,
    pub activation: u64,
    pub input: u64,
    pub workspace: u64,
    pub communication: u64,
}

/// The request that could not be met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemoryReport {
    pub phase: String,
    pub operation: String,
    pub value: String,
    pub requested: u64,
    pub short: u64,
}

impl Roles {
    /// The ledger's roles, named.
    pub fn of(live: &ByRole) -> Roles {
        Roles {
            parameter: live[Role::Parameter],
            master_weight: live[Role::MasterWeight],
            gradient: live[Role::Gradient],
            optimizer: live[Role::Optimizer],
            activation: live[Role::Activation],
            input: live[Role::Input],
            workspace: live[Role::Workspace],
            communication: live[Role::Communication],
        }
    }
}
