//! Gathering samples from one long row of tokens.

use ops::{DType, GatherTokens, Op, TensorType};

use super::harness::{Data, check};

/// Samples at the start and at the end, one that exceeds the end, one at an offset of more than 32 bits, and a missing
/// one.
#[test]
fn samples_are_slices_of_the_row() {
    const TOKENS: usize = 40;
    let tokens: Vec<i32> = (0..TOKENS as i32).map(|i| i * i % 251).collect();
    let rows = [
        Data::Codes(TensorType::new(DType::U8, &[TOKENS]), tokens.iter().map(|&token| token as u8).collect()),
        Data::Bits16(
            TensorType::new(DType::U16, &[TOKENS]),
            tokens.iter().map(|&token| token as u16).collect(),
        ),
        Data::I32(TensorType::i32(&[TOKENS]), tokens.clone()),
    ];
    const MISSING: u64 = 1 << 63;
    let offsets: [u64; 6] = [0, 17, 33, 39, 3 << 32 | 2, MISSING | 5];
    let words = offsets.iter().flat_map(|&offset| [offset as u32 as i32, (offset >> 32) as i32]);
    let offsets_input = Data::I32(TensorType::i32(&[offsets.len(), 2]), words.collect());
    for (later, length, masks) in [(0, 7, false), (1, 7, true), (1, 1, false)] {
        let expected = offsets.iter().flat_map(|&offset| {
            let is_masked = masks && offset & MISSING > 0;
            let index = move |t: usize| match is_masked {
                true => usize::MAX,
                false => (offset & !MISSING) as usize + later + t,
            };
            (0..length).map(index)
        });
        let expected: Vec<f64> =
            expected.map(|index| tokens.get(index).map_or(-1.0, |&token| f64::from(token))).collect();
        for row in &rows {
            let op = Op::GatherTokens(GatherTokens { later, masks, length });
            check(op, &[row.clone(), offsets_input.clone()], std::slice::from_ref(&expected));
        }
    }
}
