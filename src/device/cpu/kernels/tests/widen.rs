//! Whole numbers in 32 bits.

use ops::{CastIds, DType, Op, TensorType};

use super::harness::{Data, check};

/// Every number of both types, on sizes that end within a vector.
#[test]
fn all_numbers_are_what_they_were() {
    let bytes: Vec<u8> = (0..=u8::MAX).chain([255, 3]).collect();
    let words: Vec<u16> = (0..=u16::MAX).chain([65_535, 7, 255]).collect();
    for masked in [false, true] {
        let wide = |number: u32, largest: u32| match masked && number == largest {
            true => -1.0,
            false => f64::from(number),
        };
        let expected: Vec<f64> = bytes.iter().map(|&byte| wide(u32::from(byte), 255)).collect();
        let narrow = Data::Codes(TensorType::new(DType::U8, &[2, bytes.len() / 2]), bytes.clone());
        check(Op::CastIds(CastIds { masked }), &[narrow], &[expected]);
        let expected: Vec<f64> = words.iter().map(|&word| wide(u32::from(word), 65_535)).collect();
        let narrow = Data::Half(TensorType::new(DType::U16, &[words.len()]), words.clone());
        check(Op::CastIds(CastIds { masked }), &[narrow], &[expected]);
    }
}
