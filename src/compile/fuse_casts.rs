//! Casts that the operation before them can carry out: what it has just made is then not read again.
//!
//! Only where the cast directly follows: made earlier, the copy would be held for longer than it has to be.

use super::Draft;
use super::instruction::{Action, Instruction};
use super::program::Program;
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

/// What is cast to what, where that is all that an instruction does.
fn single_cast(instruction: &Instruction) -> Option<(ValueId, ValueId)> {
    match &instruction.action {
        Action::Launch { op, inputs, outputs, .. } if op.is_cast() => match (&inputs[..], &outputs[..]) {
            (&[from], &[to]) => Some((from, to)),
            _ => None,
        },
        _ => None,
    }
}

/// Lets a launch that makes `from` make `to` as well, if its operation can.
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

    /// How many tensors the backward pass casts by operations of their own, and how many otherwise.
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

    /// Two blocks, each with two linear layers that add to the residual stream. Where a block is computed again first,
    /// the gradient of its output waits in full precision alone.
    #[test]
    fn the_norm_that_makes_a_gradient_casts_it_for_the_product_that_follows() {
        for precision in [Precision::Bf16, Precision::Fp16] {
            assert_eq!(casts(precision, Recompute::None), [0, 4]);
            assert_eq!(casts(precision, Recompute::Block), [2, 2]);
        }
        assert_eq!(casts(Precision::Fp32, Recompute::None), [0, 0]);
    }

    /// The copy takes the memory of the gradient that the norm has read, so that making it early holds nothing longer.
    #[test]
    fn what_is_cast_takes_the_place_of_the_gradient_that_was_read() {
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
