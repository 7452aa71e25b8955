//! Adafactor: each kernel runs over all tensors of a bucket.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher};
use ops::{Adafactor, Factored, OptimizerStep, TensorType};

use super::optimizer::{UPDATE_ELEMENTS, words};
use super::sizes::BLOCK;
use super::tables::{TableEntry, each_table};

/// The number of blocks per tensor.
type Blocks = fn(&Factored) -> usize;

/// The struct `Adafactor` of `adafactor.cu`.
pub(super) fn constants(rule: &Adafactor) -> Argument {
    let Adafactor { beta2_decay: _, epsilon, scale_epsilon, clip_threshold, weight_decay } = *rule;
    words(&[epsilon, scale_epsilon, clip_threshold, weight_decay])
}

/// `operands` are the common first arguments of all update kernels; `parameters` is the bucket's type.
pub(super) fn update(
    op: &OptimizerStep,
    parameters: TensorType,
    operands: &[Argument],
    scratch: u64,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let members = &op.gradients.members;
    let layout = op.states()[0].layout(members, parameters).0;
    let mut scratch_end = 0;
    let tensors: Vec<(Factored, [u64; 6])> = members
        .iter()
        .zip(layout.iter())
        .map(|(member, state)| {
            let factored = Factored::of(&member.shape);
            let begin = scratch_end;
            scratch_end += factored.scratch_len();
            let terms =
                u64::from(member.site) | u64::from(member.decay) << 32 | u64::from(factored.is_matrix) << 33;
            let sizes = [member.offset, factored.rows, factored.columns, state.offset, begin];
            let [offset, rows, columns, variances, begin] = sizes.map(|size| size as u64);
            (factored, [offset, rows, columns, variances, begin, terms])
        })
        .collect();
    let kernels: [(&str, Blocks); 5] = [
        ("adafactor_sums", Factored::blocks),
        ("adafactor_columns", |tensor| tensor.columns.div_ceil(BLOCK as usize)),
        ("adafactor_scales", |_| 1),
        ("adafactor_directions", Factored::blocks),
        ("adafactor_update", |tensor| (tensor.rows * tensor.columns).div_ceil(UPDATE_ELEMENTS)),
    ];
    for (kernel, blocks) in kernels {
        let work =
            tensors.iter().map(|(factored, fields)| TableEntry { blocks: blocks(factored), fields: *fields });
        each_table(work, |blocks, table| {
            let last = [Argument::Pointer(scratch), table];
            let arguments: Vec<Argument> = operands.iter().cloned().chain(last).collect();
            launcher.kernel(kernel, [blocks, 1, 1], BLOCK, 0, &arguments)
        })?;
    }
    Ok(())
}
