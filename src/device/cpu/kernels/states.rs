//! An optimizer's states, brought to f32 and stored again a piece at a time.

use std::ops::Range;

use super::float::{Bf16, Float as _, Half as _};
use super::operands::Operands;
use super::philox::philox_words;
use super::quantize::Codes;
use super::simd::Level;
use super::workers::Parts;
use ops::{Member, OptimizerStep, QUANTIZED_BLOCK, Rounding, StateFormat};

/// Numbers that are brought to f32 at a time, where they are not in f32 already: few enough to stay in the nearest cache, and
/// for the processor to fetch the next ones while random numbers are made for these.
pub(super) const PIECE: usize = QUANTIZED_BLOCK;

/// `N` states of a bucket, at the most two: the draws of each are half a word.
pub(super) enum States<'a, const N: usize> {
    F32([Parts<'a, f32>; N]),
    Bf16([Parts<'a, Bf16>; N], Option<Draws>),
    Quantized([Quantized<'a>; N]),
}

/// What tells the draws of one step from all others.
#[derive(Clone, Copy)]
pub(super) struct Draws {
    seed: u64,
    step: u32,
}

/// Of the steps that parameters are drawn for: a bit that no number of a step has.
const OF_PARAMETERS: u32 = 1 << 31;

pub(super) struct Quantized<'a> {
    map: &'static Codes,
    codes: Parts<'a, u8>,
    scales: Parts<'a, f32>,
}

impl<'a, const N: usize> States<'a, N> {
    /// The moments of an update at this step: the outputs after the parameters.
    pub(super) fn new(op: &OptimizerStep, step: f32, operands: &mut Operands<'a>) -> States<'a, N> {
        const { assert!(N <= 2, "a word of random bits is enough for two") };
        let indices: [usize; N] = std::array::from_fn(|state| state);
        match op.format.states {
            // Of none, none are brought to f32.
            _ if N == 0 => States::F32(indices.map(|_| unreachable!("there are none"))),
            StateFormat::F32 => States::F32(indices.map(|state| Parts::new(operands.output(1 + state)))),
            StateFormat::Bf16(rounding) => {
                let draws = Draws::of_states(rounding, step);
                States::Bf16(indices.map(|state| Parts::new(operands.output(1 + state))), draws)
            }
            StateFormat::Quantized => States::Quantized(indices.map(|state| Quantized {
                map: Codes::of(op.rule.moments()[state].map),
                codes: Parts::new(operands.codes(1 + 2 * state)),
                scales: Parts::new(operands.output(2 + 2 * state)),
            })),
        }
    }

    /// Calls `work` for pieces of some elements of a tensor with their states, and stores what it makes of these. Elements
    /// begin with the tensor or at a multiple of `PIECE` after that.
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
        mut work: impl FnMut(Range<usize>, [&mut [f32]; N]),
    ) {
        if let States::F32(states) = self {
            // SAFETY: by this function's contract.
            let states = states.each_ref().map(|state| unsafe { state.part(elements.clone()) });
            return work(elements, states);
        }
        let mut buffers = [[0.0; PIECE]; N];
        for start in elements.clone().step_by(PIECE) {
            let piece = start..elements.end.min(start + PIECE);
            let numbers = buffers.each_mut().map(|buffer| &mut buffer[..piece.len()]);
            match self {
                States::F32(_) => unreachable!("they are updated where they lie"),
                States::Bf16(states, draws) => {
                    // SAFETY: by this function's contract.
                    let states = states.each_ref().map(|state| unsafe { state.part(piece.clone()) });
                    let mut numbers = numbers;
                    for (state, numbers) in states.iter().zip(&mut numbers) {
                        Bf16::widen(level, state, numbers);
                    }
                    work(piece.clone(), numbers.each_mut().map(|numbers| &mut **numbers));
                    let words = draws.map(|draws| draws.words(level, member, &piece));
                    for (index, (state, numbers)) in states.into_iter().zip(numbers).enumerate() {
                        match &words {
                            None => Bf16::narrow(level, numbers, state),
                            Some(words) => {
                                Bf16::round_at_random(level, numbers, words, 16 * index as u32, state)
                            }
                        }
                    }
                }
                States::Quantized(states) => {
                    let mut numbers = numbers;
                    let blocks = piece.start / QUANTIZED_BLOCK..piece.end.div_ceil(QUANTIZED_BLOCK);
                    // SAFETY: by this function's contract; blocks are of one tensor, and pieces of whole ones.
                    let mut states = states.each_ref().map(|state| unsafe {
                        (state.map, state.codes.part(piece.clone()), state.scales.part(blocks.clone()))
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

impl Draws {
    fn of_states(rounding: Rounding, step: f32) -> Option<Draws> {
        rounding.seed().map(|seed| Draws { seed, step: step as u32 })
    }

    pub(super) fn of_parameters(rounding: Rounding, step: f32) -> Option<Draws> {
        let draws = Draws::of_states(rounding, step);
        draws.map(|draws| Draws { step: draws.step | OF_PARAMETERS, ..draws })
    }

    /// 32 random bits for each element: word `e % 4` of the block of Philox4x32-10 whose counter is (low half of `e / 4`, high
    /// half, site, step) for element `e` of the tensor, and whose key is the seed. Steps count from 1: no first value of a
    /// parameter was drawn from the same.
    pub(super) fn words(self, level: Level, member: &Member, elements: &Range<usize>) -> [u32; PIECE] {
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

    /// Whatever piece an element is drawn with, and wherever in its bucket its tensor lies.
    #[test]
    fn a_draw_is_of_its_seed_step_site_and_element() {
        let member = Member { offset: 512, ..Member::new(Shape::new(&[5000]), false, 9) };
        let draws = Draws { seed: 0x1_0000_0002, step: 3 };
        for start in [0, 1024, 4096] {
            let piece = member.offset + start..(member.offset + 5000).min(member.offset + start + PIECE);
            let words = draws.words(Level::best(), &member, &piece);
            for (element, &word) in (start as u32..).zip(&words[..piece.len()]) {
                assert_eq!(word, philox([element / 4, 0, 9, 3], [2, 1])[element as usize % 4], "{element}");
            }
        }
    }
}
