//! The parameters and gradients of an update, brought to f32 and stored again a piece at a time.

use std::ops::Range;

use super::float::{Bf16, F16, Float, Half};
use super::operands::Operands;
use super::simd::Level;
use super::states::{Draws, PIECE};
use super::workers::Parts;
use ops::{DType, Member, OptimizerStep, WeightFormat};

/// A bucket of parameters that is updated, and its gradients.
pub(super) struct Weights<'a> {
    parameters: LoadParameter<'a>,
    /// The numbers that parameters are rounded from, where these are kept.
    master: Option<Parts<'a, f32>>,
    /// How parameters are rounded, where it is at random.
    draws: Option<Draws>,
    gradients: Gradients<'a>,
}

enum LoadParameter<'a> {
    F32(Parts<'a, f32>),
    Bf16(Parts<'a, Bf16>),
    F16(Parts<'a, F16>),
}

enum Gradients<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
    F16(&'a [F16]),
}

impl<'a> Weights<'a> {
    /// Of an update at this step.
    pub(super) fn new(op: &OptimizerStep, step: f32, operands: &mut Operands<'a>) -> Weights<'a> {
        let at = op.gradients_input();
        let (parameters, gradients) = (operands.output_type(0).dtype, operands.input_type(at).dtype);
        let not_numbers = "an operation's types are checked before it runs";
        Weights {
            parameters: match parameters {
                DType::F32 => LoadParameter::F32(Parts::new(operands.output(0))),
                DType::BF16 => LoadParameter::Bf16(Parts::new(operands.output(0))),
                DType::F16 => LoadParameter::F16(Parts::new(operands.output(0))),
                DType::I32 | DType::U16 | DType::U8 | DType::U4 => unreachable!("{not_numbers}"),
            },
            master: op.format.has_master().then(|| Parts::new(operands.output(1 + op.states().len()))),
            draws: match op.format.weights {
                WeightFormat::InPlace(rounding) => Draws::of_parameters(rounding, step),
                WeightFormat::Master(_) => None,
            },
            gradients: match gradients {
                DType::F32 => Gradients::F32(operands.input(at)),
                DType::BF16 => Gradients::Bf16(operands.input(at)),
                DType::F16 => Gradients::F16(operands.input(at)),
                DType::I32 | DType::U16 | DType::U8 | DType::U4 => unreachable!("{not_numbers}"),
            },
        }
    }

    /// Calls `work` for runs of some elements of a tensor, counted from the first of them: parameters, which it changes, and
    /// their gradients. Elements begin with the tensor or at a multiple of `PIECE` after that.
    ///
    /// # Safety
    ///
    /// No elements that are in use elsewhere are among these.
    #[allow(unsafe_code)]
    pub(super) unsafe fn update(
        &self,
        level: Level,
        member: &Member,
        elements: Range<usize>,
        mut work: impl FnMut(Range<usize>, &mut [f32], &[f32]),
    ) {
        if let (LoadParameter::F32(parameters), Gradients::F32(gradients)) =
            (&self.parameters, &self.gradients)
        {
            // SAFETY: by this function's contract.
            let parameters = unsafe { parameters.part(elements.clone()) };
            return work(0..elements.len(), parameters, &gradients[elements]);
        }
        let (mut numbers, mut wide) = ([0.0; PIECE], [0.0; PIECE]);
        for start in elements.clone().step_by(PIECE) {
            let piece = start..elements.end.min(start + PIECE);
            let run = piece.start - elements.start..piece.end - elements.start;
            let gradients = self.gradients(level, &piece, &mut wide);
            let mut work = |parameters: &mut [f32]| work(run.clone(), parameters, gradients);
            // SAFETY: by this function's contract.
            unsafe {
                match &self.parameters {
                    LoadParameter::F32(parameters) => work(parameters.part(piece)),
                    LoadParameter::Bf16(all) => self.rounded(level, member, &piece, all, &mut numbers, work),
                    LoadParameter::F16(all) => self.rounded(level, member, &piece, all, &mut numbers, work),
                }
            }
        }
    }

    /// Calls `work` for runs of some elements, counted from the first of them: parameters and their gradients, which stay.
    pub(super) fn read(
        &self,
        level: Level,
        elements: Range<usize>,
        mut work: impl FnMut(Range<usize>, &[f32], &[f32]),
    ) {
        let (mut numbers, mut wide) = ([0.0; PIECE], [0.0; PIECE]);
        let is_f32 = matches!(self.gradients, Gradients::F32(_))
            && (self.master.is_some() || matches!(self.parameters, LoadParameter::F32(_)));
        let len = if is_f32 { elements.len() } else { PIECE };
        for start in elements.clone().step_by(len.max(1)) {
            let piece = start..elements.end.min(start + len);
            let run = piece.start - elements.start..piece.end - elements.start;
            let gradients = self.gradients(level, &piece, &mut wide);
            // SAFETY: nothing writes parameters while they are read.
            #[allow(unsafe_code)]
            let parameters = unsafe {
                match (&self.master, &self.parameters) {
                    (Some(master), _) => master.part(piece),
                    (None, LoadParameter::F32(parameters)) => parameters.part(piece),
                    (None, LoadParameter::Bf16(all)) => Bf16::widened(level, all.part(piece), &mut numbers),
                    (None, LoadParameter::F16(all)) => F16::widened(level, all.part(piece), &mut numbers),
                }
            };
            work(run, parameters, gradients);
        }
    }

    fn gradients<'b>(&'b self, level: Level, piece: &Range<usize>, wide: &'b mut [f32; PIECE]) -> &'b [f32] {
        match self.gradients {
            Gradients::F32(gradients) => &gradients[piece.clone()],
            Gradients::Bf16(gradients) => Bf16::widened(level, &gradients[piece.clone()], wide),
            Gradients::F16(gradients) => F16::widened(level, &gradients[piece.clone()], wide),
        }
    }

    /// For some elements of a step that is left out: parameters that have a copy are made of it all the same, for they may be
    /// nowhere else.
    ///
    /// # Safety
    ///
    /// As `update`.
    #[allow(unsafe_code)]
    pub(super) unsafe fn keep(&self, level: Level, elements: Range<usize>) {
        let Some(master) = &self.master else { return };
        // SAFETY: by this function's contract.
        unsafe {
            let master = master.part(elements.clone());
            match &self.parameters {
                LoadParameter::F32(parameters) => parameters.part(elements).copy_from_slice(master),
                LoadParameter::Bf16(parameters) => Bf16::narrow(level, master, parameters.part(elements)),
                LoadParameter::F16(parameters) => F16::narrow(level, master, parameters.part(elements)),
            }
        }
    }

    /// # Safety
    ///
    /// As `update`.
    #[allow(unsafe_code)]
    unsafe fn rounded<H: Half>(
        &self,
        level: Level,
        member: &Member,
        piece: &Range<usize>,
        parameters: &Parts<H>,
        buffer: &mut [f32; PIECE],
        mut work: impl FnMut(&mut [f32]),
    ) {
        // SAFETY: by this function's contract.
        let (parameters, master) = unsafe {
            let master = self.master.as_ref().map(|master| master.part(piece.clone()));
            (parameters.part(piece.clone()), master)
        };
        if let Some(master) = master {
            work(master);
            return H::narrow(level, master, parameters);
        }
        let numbers = &mut buffer[..parameters.len()];
        H::widen(level, parameters, numbers);
        work(numbers);
        match self.draws {
            None => H::narrow(level, numbers, parameters),
            Some(draws) => {
                let words = draws.words(level, member, piece);
                H::round_at_random(level, numbers, &words, 0, parameters);
            }
        }
    }
}
