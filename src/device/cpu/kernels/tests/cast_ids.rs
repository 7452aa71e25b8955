//! Conversion of u8 and u16 ids to i32.

use ops::{CastIds, DType, Op, TensorType};

use super::harness::{Data, check};

/// Every id of both types, with lengths that are no multiple of a vector.
#[test]
fn every_id_keeps_its_value() {
    let bytes: Vec<u8> = (0..=u8::MAX).chain([255, 3]).collect();
    let words: Vec<u16> = (0..=u16::MAX).chain([65_535, 7, 255]).collect();
    for masked in [false, true] {
        let expected_id = |id: u32, largest: u32| match masked && id == largest {
            true => -1.0,
            false => f64::from(id),
        };
        let expected: Vec<f64> = bytes.iter().map(|&byte| expected_id(u32::from(byte), 255)).collect();
        let narrow = Data::Codes(TensorType::new(DType::U8, &[2, bytes.len() / 2]), bytes.clone());
        check(Op::CastIds(CastIds { masked }), &[narrow], &[expected]);
        let expected: Vec<f64> = words.iter().map(|&word| expected_id(u32::from(word), 65_535)).collect();
        let narrow = Data::Bits16(TensorType::new(DType::U16, &[words.len()]), words.clone());
        check(Op::CastIds(CastIds { masked }), &[narrow], &[expected]);
    }
}
