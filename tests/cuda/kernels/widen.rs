//! Casts of u8 and u16 ids to i32.

use ops::{CastIds, DType, Op};

use super::harness::Devices;
use super::numbers::Data;

/// One number, and more than a block processes, including the maximum of the type.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn cast_ids_keep_their_values() {
    let mut devices = Devices::new();
    for (dtype, all) in [(DType::U8, 256), (DType::U16, 65_536)] {
        for count in [1, 5000] {
            let numbers: Vec<f32> = (1..=count).map(|i| ((i * 4099 + all - 1 - 4099) % all) as f32).collect();
            assert_eq!(numbers[0] as usize, all - 1);
            for masked in [false, true] {
                let op = Op::CastIds(CastIds { masked });
                let inputs = [Data::new(dtype, &[count], numbers.clone())];
                let (found, expected) = (devices.cuda(&op, &inputs), devices.cpu(&op, &inputs));
                assert_eq!((found[0].ty, &found[0].numbers), (expected[0].ty, &expected[0].numbers));
            }
        }
    }
}
