//! Fuses a cast into the operation before it, which then stores both versions: its output need not be read again.
//!
//! Only if the cast directly follows: an earlier copy would be live longer.

use super::Draft;
use crate::ir::{Action, Instruction, Program};
use ops::ValueId;

pub(super) fn fuse(draft: &mut Draft) {
    let program = &mut draft.program;
    for section in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[section].code);
        program.sections[section].code = fuse_in(program, code);
    }
}

fn fuse_in(program: &Program, code: Vec<Instruction>) -> Vec<Instruction> {
    let mut result: Vec<Instruction> = Vec::with_capacity(code.len());
    for instruction in code {
        let fused = match (result.last_mut(), single_cast(&instruction)) {
            (Some(before), Some((from, to))) if before.recompute == instruction.recompute => {
                store_cast(program, &mut before.action, from, to)
            }
            _ => false,
        };
        if !fused {
            result.push(instruction);
        }
    }
    result
}

/// Input and output of an instruction that only casts one value.
fn single_cast(instruction: &Instruction) -> Option<(ValueId, ValueId)> {
    match &instruction.action {
        Action::Launch { op, inputs, outputs, .. } if op.is_cast() => match (&inputs[..], &outputs[..]) {
            (&[from], &[to]) => Some((from, to)),
            _ => None,
        },
        _ => None,
    }
}

/// Makes a launch that writes `from` write the cast `to` as well, if its operation can.
fn store_cast(program: &Program, launch: &mut Action, from: ValueId, to: ValueId) -> bool {
    let Action::Launch { op, inputs, outputs, .. } = launch else { return false };
    let Some(output) = outputs.iter().position(|&output| output == from) else { return false };
    let Some(storing) = op.storing_cast(output, program.ty(to).dtype, &program.types(inputs)) else {
        return false;
    };
    *op = storing;
    outputs.push(to);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile_run;
    use device::Phase;
    use ops::Op;
    use spec::{Precision, Recompute};

    /// Tensors that the backward pass casts: by cast operations, and fused into other operations.
    fn casts(precision: Precision, recompute: Recompute) -> [usize; 2] {
        let mut config = testing::small();
        config.strategy.precision = precision;
        config.strategy.recompute = recompute;
        let program = compile_run(&config, &testing::target()).unwrap();
        let mut casts = [0; 2];
        for instruction in program.sections.iter().flat_map(|section| &section.code) {
            let Action::Launch { op, outputs, .. } = &instruction.action else { continue };
            if instruction.phase == Phase::Backward {
                casts[usize::from(!matches!(op, Op::Cast(_)))] += op.casts(outputs.len());
            }
        }
        casts
    }

    /// Two blocks, each with two linear layers that add to the residual stream. If a block is recomputed first, the
    /// gradient of its output is kept in fp32 only.
    #[test]
    fn norm_backward_casts_gradients_for_the_next_matmul() {
        for precision in [Precision::Bf16, Precision::Fp16] {
            assert_eq!(casts(precision, Recompute::None), [0, 4]);
            assert_eq!(casts(precision, Recompute::Block), [2, 2]);
        }
        assert_eq!(casts(Precision::Fp32, Recompute::None), [0, 0]);
    }

    /// The cast reuses the memory of the gradient that the norm has read, so fusing extends no lifetime.
    #[test]
    fn fused_cast_reuses_the_memory_of_the_gradient_read() {
        let mut config = testing::small();
        config.strategy.precision = Precision::Bf16;
        let program = compile_run(&config, &testing::target()).unwrap();
        let code = program.sections.iter().flat_map(|section| &section.code);
        let casting = code.filter_map(|instruction| match &instruction.action {
            Action::Launch { op: Op::LayerNormBackward(op), inputs, outputs, .. } if op.cast => {
                Some((inputs[0], outputs[3]))
            }
            _ => None,
        });
        let casting: Vec<_> = casting.collect();
        assert_eq!(casting.len(), 4);
        for (dy, cast) in casting {
            assert_eq!(program.storage(cast), program.storage(dy));
        }
    }
}
