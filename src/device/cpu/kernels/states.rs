//! Optimizer states, converted to f32 and back in pieces.

use std::ops::Range;

use super::float::{Bf16, Float as _, Half as _};
use super::operands::Operands;
use super::philox::philox_words;
use super::quantize::Codebook;
use super::simd::Level;
use super::workers::SharedSlice;
use ops::{Member, OptimizerStep, QUANTIZED_BLOCK, Rounding, StateFormat};

/// Numbers per piece, for states that are not stored in f32: a piece stays in the L1 cache, and the next one is
/// prefetched while the random bits of this one are computed.
pub(super) const PIECE: usize = QUANTIZED_BLOCK;

/// `N` states of a bucket, at most two: each state uses 16 bits of a random word.
pub(super) enum States<'a, const N: usize> {
    F32([SharedSlice<'a, f32>; N]),
    Bf16([SharedSlice<'a, Bf16>; N], Option<RoundingRng>),
    Quantized([Quantized<'a>; N]),
}

/// Random bits for the stochastic rounding of one step.
#[derive(Clone, Copy)]
pub(super) struct RoundingRng {
    seed: u64,
    step: u32,
}

/// Set in the step number for parameters, so that their random bits differ from those of states.
const PARAMETER_BIT: u32 = 1 << 31;

pub(super) struct Quantized<'a> {
    map: &'static Codebook,
    codes: SharedSlice<'a, u8>,
    scales: SharedSlice<'a, f32>,
}

impl<'a, const N: usize> States<'a, N> {
    /// The states of an optimizer step: the outputs after the parameters. `step` counts from 1.
    pub(super) fn new(op: &OptimizerStep, step: f32, operands: &mut Operands<'a>) -> States<'a, N> {
        const { assert!(N <= 2, "a random word has bits for two states") };
        let indices: [usize; N] = std::array::from_fn(|state| state);
        match op.format.states {
            // No states: nothing to convert.
            _ if N == 0 => States::F32(indices.map(|_| unreachable!("there are no states"))),
            StateFormat::F32 => {
                States::F32(indices.map(|state| SharedSlice::new(operands.output(1 + state))))
            }
            StateFormat::Bf16(rounding) => {
                let rng = RoundingRng::for_states(rounding, step);
                States::Bf16(indices.map(|state| SharedSlice::new(operands.output(1 + state))), rng)
            }
            StateFormat::Quantized => States::Quantized(indices.map(|state| Quantized {
                map: Codebook::for_map(op.rule.moments()[state].map),
                codes: SharedSlice::new(operands.output_codes(1 + 2 * state)),
                scales: SharedSlice::new(operands.output(2 + 2 * state)),
            })),
        }
    }

    /// Calls `work(range, states)` for pieces of some elements of a tensor, and stores the states that it changes. The
    /// offset of `elements` in the tensor is a multiple of `PIECE`.
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
        mut work: impl FnMut(Range<usize>, [&mut [f32]; N]),
    ) {
        if let States::F32(states) = self {
            // SAFETY: guaranteed by the caller.
            let states = states.each_ref().map(|state| unsafe { state.range_mut(elements.clone()) });
            return work(elements, states);
        }
        let mut buffers = [[0.0; PIECE]; N];
        for start in elements.clone().step_by(PIECE) {
            let piece = start..elements.end.min(start + PIECE);
            let numbers = buffers.each_mut().map(|buffer| &mut buffer[..piece.len()]);
            match self {
                States::F32(_) => unreachable!("f32 states are updated in place"),
                States::Bf16(states, rng) => {
                    // SAFETY: guaranteed by the caller.
                    let states = states.each_ref().map(|state| unsafe { state.range_mut(piece.clone()) });
                    let mut numbers = numbers;
                    for (state, numbers) in states.iter().zip(&mut numbers) {
                        Bf16::widen(level, state, numbers);
                    }
                    work(piece.clone(), numbers.each_mut().map(|numbers| &mut **numbers));
                    let words = rng.map(|rng| rng.random_words(level, member, &piece));
                    for (index, (state, numbers)) in states.into_iter().zip(numbers).enumerate() {
                        match &words {
                            None => Bf16::narrow(level, numbers, state),
                            Some(words) => {
                                Bf16::round_stochastically(level, numbers, words, 16 * index as u32, state)
                            }
                        }
                    }
                }
                States::Quantized(states) => {
                    let mut numbers = numbers;
                    let blocks = piece.start / QUANTIZED_BLOCK..piece.end.div_ceil(QUANTIZED_BLOCK);
                    // SAFETY: guaranteed by the caller; a block belongs to one tensor, and a piece has whole blocks.
                    let mut states = states.each_ref().map(|state| unsafe {
                        (
                            state.map,
                            state.codes.range_mut(piece.clone()),
                            state.scales.range_mut(blocks.clone()),
                        )
                    });
                    for ((map, codes, scales), numbers) in states.iter_mut().zip(&mut numbers) {
                        let blocks = codes.chunks(QUANTIZED_BLOCK).zip(numbers.chunks_mut(QUANTIZED_BLOCK));
                        for ((codes, numbers), &scale) in blocks.zip(&**scales) {
                            map.decode(level, codes, scale, numbers);
                        }
                    }
                    work(piece.clone(), numbers.each_mut().map(|numbers| &mut **numbers));
                    for ((map, codes, scales), numbers) in states.iter_mut().zip(&numbers) {
                        let blocks = codes.chunks_mut(QUANTIZED_BLOCK).zip(numbers.chunks(QUANTIZED_BLOCK));
                        for ((codes, numbers), scale) in blocks.zip(&mut **scales) {
                            *scale = map.encode(level, numbers, codes);
                        }
                    }
                }
            }
        }
    }
}

impl RoundingRng {
    fn for_states(rounding: Rounding, step: f32) -> Option<RoundingRng> {
        rounding.seed().map(|seed| RoundingRng { seed, step: step as u32 })
    }

    pub(super) fn for_parameters(rounding: Rounding, step: f32) -> Option<RoundingRng> {
        let rng = RoundingRng::for_states(rounding, step);
        rng.map(|rng| RoundingRng { step: rng.step | PARAMETER_BIT, ..rng })
    }

    /// 32 random bits for each element: for element `e` of the tensor, word `e % 4` of the Philox4x32-10 block with the
    /// counter (low half of `e / 4`, high half, site, step) and the seed as its key. Steps count from 1, so these
    /// blocks differ from those of initial parameter values, whose fourth word is 0.
    pub(super) fn random_words(self, level: Level, member: &Member, elements: &Range<usize>) -> [u32; PIECE] {
        let mut words = [0; PIECE];
        let first = (elements.start - member.offset) as u64 / 4;
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        philox_words(level, first, [member.site, self.step], key, &mut words[..elements.len()]);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::super::philox::philox;
    use super::*;
    use ops::Shape;

    /// Neither the piece of an element nor its tensor's offset in the bucket changes its random bits.
    #[test]
    fn random_bits_depend_on_seed_step_site_and_element_only() {
        let member = Member { offset: 512, ..Member::new(Shape::new(&[5000]), false, 9) };
        let rng = RoundingRng { seed: 0x1_0000_0002, step: 3 };
        for start in [0, 1024, 4096] {
            let piece = member.offset + start..(member.offset + 5000).min(member.offset + start + PIECE);
            let words = rng.random_words(Level::best(), &member, &piece);
            for (element, &word) in (start as u32..).zip(&words[..piece.len()]) {
                assert_eq!(word, philox([element / 4, 0, 9, 3], [2, 1])[element as usize % 4], "{element}");
            }
        }
    }
}
