//! The parameters and gradients of an optimizer step, converted to f32 and back in pieces.

use std::ops::Range;

use super::float::{Bf16, F16, Float, Half};
use super::operands::Operands;
use super::simd::Level;
use super::states::{PIECE, RoundingRng};
use super::workers::SharedSlice;
use ops::{DType, Member, OptimizerStep, WeightFormat};

/// The parameters of a bucket, and their gradients.
pub(super) struct Weights<'a> {
    parameters: ParameterSlice<'a>,
    /// The f32 master weights, if the format has them.
    master: Option<SharedSlice<'a, f32>>,
    /// Random bits for stochastic rounding of parameters, if the format uses it.
    rng: Option<RoundingRng>,
    gradients: GradientSlice<'a>,
}

enum ParameterSlice<'a> {
    F32(SharedSlice<'a, f32>),
    Bf16(SharedSlice<'a, Bf16>),
    F16(SharedSlice<'a, F16>),
}

enum GradientSlice<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
    F16(&'a [F16]),
}

impl<'a> Weights<'a> {
    /// The operands of an optimizer step; `step` counts from 1.
    pub(super) fn new(op: &OptimizerStep, step: f32, operands: &mut Operands<'a>) -> Weights<'a> {
        let input = op.gradients_input();
        let (parameters, gradients) = (operands.output_type(0).dtype, operands.input_type(input).dtype);
        let checked = "an operation's types are checked before it runs";
        Weights {
            parameters: match parameters {
                DType::F32 => ParameterSlice::F32(SharedSlice::new(operands.output(0))),
                DType::BF16 => ParameterSlice::Bf16(SharedSlice::new(operands.output(0))),
                DType::F16 => ParameterSlice::F16(SharedSlice::new(operands.output(0))),
                DType::I32 | DType::U16 | DType::U8 | DType::U4 => unreachable!("{checked}"),
            },
            master: op.format.has_master().then(|| SharedSlice::new(operands.output(1 + op.states().len()))),
            rng: match op.format.weights {
                WeightFormat::InPlace(rounding) => RoundingRng::for_parameters(rounding, step),
                WeightFormat::Master(_) => None,
            },
            gradients: match gradients {
                DType::F32 => GradientSlice::F32(operands.input(input)),
                DType::BF16 => GradientSlice::Bf16(operands.input(input)),
                DType::F16 => GradientSlice::F16(operands.input(input)),
                DType::I32 | DType::U16 | DType::U8 | DType::U4 => unreachable!("{checked}"),
            },
        }
    }

    /// Calls `work(range, parameters, gradients)` for pieces of some elements of a tensor; `range` is relative to the
    /// first element. `work` changes the parameters. The offset of `elements` in the tensor is a multiple of `PIECE`.
    ///
    /// # Safety
    ///
    /// The elements are not in use elsewhere.
    #[allow(unsafe_code)]
    pub(super) unsafe fn update(
        &self,
        level: Level,
        member: &Member,
        elements: Range<usize>,
        mut work: impl FnMut(Range<usize>, &mut [f32], &[f32]),
    ) {
        if let (ParameterSlice::F32(parameters), GradientSlice::F32(gradients)) =
            (&self.parameters, &self.gradients)
        {
            // SAFETY: guaranteed by the caller.
            let parameters = unsafe { parameters.range_mut(elements.clone()) };
            return work(0..elements.len(), parameters, &gradients[elements]);
        }
        let (mut numbers, mut wide) = ([0.0; PIECE], [0.0; PIECE]);
        for start in elements.clone().step_by(PIECE) {
            let piece = start..elements.end.min(start + PIECE);
            let run = piece.start - elements.start..piece.end - elements.start;
            let gradients = self.gradients(level, &piece, &mut wide);
            let mut work = |parameters: &mut [f32]| work(run.clone(), parameters, gradients);
            // SAFETY: guaranteed by the caller.
            unsafe {
                match &self.parameters {
                    ParameterSlice::F32(parameters) => work(parameters.range_mut(piece)),
                    ParameterSlice::Bf16(all) => {
                        self.update_half(level, member, &piece, all, &mut numbers, work)
                    }
                    ParameterSlice::F16(all) => {
                        self.update_half(level, member, &piece, all, &mut numbers, work)
                    }
                }
            }
        }
    }

    /// Calls `work(range, parameters, gradients)` for pieces of some elements, all read-only; `range` is relative to
    /// the first element.
    pub(super) fn read(
        &self,
        level: Level,
        elements: Range<usize>,
        mut work: impl FnMut(Range<usize>, &[f32], &[f32]),
    ) {
        let (mut numbers, mut wide) = ([0.0; PIECE], [0.0; PIECE]);
        let is_f32 = matches!(self.gradients, GradientSlice::F32(_))
            && (self.master.is_some() || matches!(self.parameters, ParameterSlice::F32(_)));
        let len = if is_f32 { elements.len() } else { PIECE };
        for start in elements.clone().step_by(len.max(1)) {
            let piece = start..elements.end.min(start + len);
            let run = piece.start - elements.start..piece.end - elements.start;
            let gradients = self.gradients(level, &piece, &mut wide);
            // SAFETY: no thread writes parameters while they are read.
            #[allow(unsafe_code)]
            let parameters = unsafe {
                match (&self.master, &self.parameters) {
                    (Some(master), _) => master.range_mut(piece),
                    (None, ParameterSlice::F32(parameters)) => parameters.range_mut(piece),
                    (None, ParameterSlice::Bf16(all)) => {
                        Bf16::widened(level, all.range_mut(piece), &mut numbers)
                    }
                    (None, ParameterSlice::F16(all)) => {
                        F16::widened(level, all.range_mut(piece), &mut numbers)
                    }
                }
            };
            work(run, parameters, gradients);
        }
    }

    fn gradients<'b>(&'b self, level: Level, piece: &Range<usize>, wide: &'b mut [f32; PIECE]) -> &'b [f32] {
        match self.gradients {
            GradientSlice::F32(gradients) => &gradients[piece.clone()],
            GradientSlice::Bf16(gradients) => Bf16::widened(level, &gradients[piece.clone()], wide),
            GradientSlice::F16(gradients) => F16::widened(level, &gradients[piece.clone()], wide),
        }
    }

    /// Writes parameters from their master weights, if these exist. A skipped step needs it too, because the parameters
    /// may have no contents yet.
    ///
    /// # Safety
    ///
    /// As for `update`.
    #[allow(unsafe_code)]
    pub(super) unsafe fn copy_from_master(&self, level: Level, elements: Range<usize>) {
        let Some(master) = &self.master else { return };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let master = master.range_mut(elements.clone());
            match &self.parameters {
                ParameterSlice::F32(parameters) => parameters.range_mut(elements).copy_from_slice(master),
                ParameterSlice::Bf16(parameters) => {
                    Bf16::narrow(level, master, parameters.range_mut(elements))
                }
                ParameterSlice::F16(parameters) => F16::narrow(level, master, parameters.range_mut(elements)),
            }
        }
    }

    /// # Safety
    ///
    /// As for `update`.
    #[allow(unsafe_code)]
    unsafe fn update_half<H: Half>(
        &self,
        level: Level,
        member: &Member,
        piece: &Range<usize>,
        parameters: &SharedSlice<H>,
        buffer: &mut [f32; PIECE],
        mut work: impl FnMut(&mut [f32]),
    ) {
        // SAFETY: guaranteed by the caller.
        let (parameters, master) = unsafe {
            let master = self.master.as_ref().map(|master| master.range_mut(piece.clone()));
            (parameters.range_mut(piece.clone()), master)
        };
        if let Some(master) = master {
            work(master);
            return H::narrow(level, master, parameters);
        }
        let numbers = &mut buffer[..parameters.len()];
        H::widen(level, parameters, numbers);
        work(numbers);
        match self.rng {
            None => H::narrow(level, numbers, parameters),
            Some(rng) => {
                let words = rng.random_words(level, member, piece);
                H::round_stochastically(level, numbers, &words, 0, parameters);
            }
        }
    }
}
