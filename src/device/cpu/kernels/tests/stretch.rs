//! Stretches of a long row of tokens.

use ops::{DType, Op, Stretch, TensorType};

use super::harness::{Data, check};

/// From the front, at the end, beyond it, and from a place that has more than 32 bits.
#[test]
fn samples_are_stretches_of_the_row() {
    const TOKENS: usize = 40;
    let tokens: Vec<i32> = (0..TOKENS as i32).map(|i| i * i % 251).collect();
    let rows = [
        Data::Codes(TensorType::new(DType::U8, &[TOKENS]), tokens.iter().map(|&token| token as u8).collect()),
        Data::Half(
            TensorType::new(DType::U16, &[TOKENS]),
            tokens.iter().map(|&token| token as u16).collect(),
        ),
        Data::I32(TensorType::i32(&[TOKENS]), tokens.clone()),
    ];
    const MISSING: u64 = 1 << 63;
    let places: [u64; 6] = [0, 17, 33, 39, 3 << 32 | 2, MISSING | 5];
    let words = places.iter().flat_map(|&place| [place as u32 as i32, (place >> 32) as i32]);
    let place = Data::I32(TensorType::i32(&[places.len(), 2]), words.collect());
    for (later, length, masks) in [(0, 7, false), (1, 7, true), (1, 1, false)] {
        let expected = places.iter().flat_map(|&place| {
            let is_masked = masks && place & MISSING > 0;
            let at = move |t: usize| match is_masked {
                true => usize::MAX,
                false => (place & !MISSING) as usize + later + t,
            };
            (0..length).map(at)
        });
        let expected: Vec<f64> =
            expected.map(|at| tokens.get(at).map_or(-1.0, |&token| f64::from(token))).collect();
        for row in &rows {
            let op = Op::Stretch(Stretch { later, masks, length });
            check(op, &[row.clone(), place.clone()], std::slice::from_ref(&expected));
        }
    }
}
