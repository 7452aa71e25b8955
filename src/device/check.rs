//! What is checked of an operation's operands before a device works on them.

use super::{Buffer, DeviceError, Pool, Region, Target, Tensor};
use ops::{Op, TypeError};

/// What kernels rely on: types that fit the operation, aligned operands, a workspace large enough, and no two
/// operands in the same memory but those that the operation declares. Operands begin at multiples of `alignment` bytes, those of
/// an operation that takes any rows at any element.
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
    let misused = |problem: String| Err(TypeError { operation: op.name(), problem }.into());
    if op.outputs(&input_types)? != output_types {
        return misused(format!("does not give {output_types:?}"));
    }
    let needed_by = |tensor: &Tensor| if op.takes_any_rows() { tensor.ty.dtype.bytes() } else { alignment };
    let operands = inputs.iter().chain(outputs).map(|tensor| (tensor.offset, needed_by(tensor)));
    let workspaces = workspace.map(|region| (region.offset, alignment));
    if let Some((_, alignment)) =
        operands.chain(workspaces).find(|(offset, alignment)| !offset.is_multiple_of(*alignment))
    {
        return misused(format!("takes operands at multiples of {alignment} bytes"));
    }
    let needed = op.workspace(&input_types, &output_types, &target.workspace_limits(home));
    if workspace.map_or(0, |region| region.bytes) < needed {
        return misused(format!("needs {needed} bytes of workspace"));
    }
    for (index, output) in outputs.iter().enumerate() {
        let others = outputs[..index].iter().map(Tensor::region).chain(workspace);
        let apart = others.into_iter().all(|other| !overlap(output.region(), other));
        let allowed = |input: usize| {
            let pair = (index, input);
            op.updates().contains(&pair) || op.may_overwrite().contains(&pair)
        };
        let clear = inputs.iter().enumerate().all(|(input, other)| {
            !overlap(output.region(), other.region()) || (allowed(input) && output.region() == other.region())
        });
        if !apart || !clear {
            return misused(format!("output {index} lies over another operand"));
        }
    }
    Ok(())
}

/// The home that all operands of an operation live in.
pub(super) fn common_home(
    op: &Op,
    buffers: impl Iterator<Item = Buffer>,
    pool_of: impl Fn(Buffer) -> Option<Pool>,
) -> Result<Pool, DeviceError> {
    let mut found = None;
    for buffer in buffers {
        let home = pool_of(buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?.home();
        if *found.get_or_insert(home) != home {
            let problem = "takes operands of one home".to_owned();
            return Err(TypeError { operation: op.name(), problem }.into());
        }
    }
    Ok(found.unwrap_or(Pool::Device))
}

fn overlap(a: Region, b: Region) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}
