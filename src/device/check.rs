//! Validates the operands of a launch.

use super::{Buffer, DeviceError, Pool, Region, Target, Tensor};
use ops::{Op, TypeError};

/// Checks the preconditions of kernels: valid types, aligned operands, a large enough workspace, and no overlapping
/// operands other than the declared aliases. Operands begin at multiples of `alignment` bytes; operations that accept
/// any rows require the alignment of an element only.
pub(super) fn check(
    op: &Op,
    inputs: &[Tensor],
    outputs: &[Tensor],
    workspace: Option<Region>,
    (target, home): (&Target, Pool),
    alignment: u64,
) -> Result<(), DeviceError> {
    let types = |tensors: &[Tensor]| tensors.iter().map(|tensor| tensor.ty).collect::<Vec<_>>();
    let (input_types, output_types) = (types(inputs), types(outputs));
    let invalid = |problem: String| Err(TypeError { operation: op.name(), problem }.into());
    if op.outputs(&input_types)? != output_types {
        return invalid(format!("outputs cannot be {output_types:?}"));
    }
    let required_alignment =
        |tensor: &Tensor| if op.takes_any_rows() { tensor.ty.dtype.bytes() } else { alignment };
    let operands = inputs.iter().chain(outputs).map(|tensor| (tensor.offset, required_alignment(tensor)));
    let workspaces = workspace.map(|region| (region.offset, alignment));
    if let Some((_, alignment)) =
        operands.chain(workspaces).find(|(offset, alignment)| !offset.is_multiple_of(*alignment))
    {
        return invalid(format!("operands must begin at multiples of {alignment} bytes"));
    }
    let needed = op.workspace(&input_types, &output_types, &target.workspace_limits(home));
    if workspace.map_or(0, |region| region.bytes) < needed {
        return invalid(format!("needs {needed} bytes of workspace"));
    }
    for (index, output) in outputs.iter().enumerate() {
        let others = outputs[..index].iter().map(Tensor::region).chain(workspace);
        let is_disjoint_from_outputs = others.into_iter().all(|other| !overlap(output.region(), other));
        let allowed = |input: usize| {
            let pair = (index, input);
            op.updates().contains(&pair) || op.may_overwrite().contains(&pair)
        };
        let is_disjoint_from_inputs = inputs.iter().enumerate().all(|(input, other)| {
            !overlap(output.region(), other.region()) || (allowed(input) && output.region() == other.region())
        });
        if !is_disjoint_from_outputs || !is_disjoint_from_inputs {
            return invalid(format!("output {index} overlaps another operand"));
        }
    }
    Ok(())
}

/// The common home of an operation's operands.
pub(super) fn common_home(
    op: &Op,
    buffers: impl Iterator<Item = Buffer>,
    pool_of: impl Fn(Buffer) -> Option<Pool>,
) -> Result<Pool, DeviceError> {
    let mut found = None;
    for buffer in buffers {
        let home = pool_of(buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?.home();
        if *found.get_or_insert(home) != home {
            let problem = "operands must be all in device memory or all in host memory".to_owned();
            return Err(TypeError { operation: op.name(), problem }.into());
        }
    }
    Ok(found.unwrap_or(Pool::Device))
}

fn overlap(a: Region, b: Region) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}
