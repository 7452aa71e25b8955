//! Numbers as files store them.

use safetensors::Dtype;

/// Of the types that parameters can be made of, as messages have them.
pub(super) const NAMES: [&str; 6] = ["f64[", "f32[", "bf16[", "f16[", "f8_e4m3[", "f8_e5m2["];

/// Bytes of a number that a parameter can be made of.
pub(super) fn width(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::BF16 | Dtype::F16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => Some(1),
        _ => None,
    }
}

/// A number of as many bytes; only those of f64 may not be one of f32, and are rounded.
pub(super) fn widened(dtype: Dtype, bytes: &[u8]) -> f32 {
    let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match dtype {
        Dtype::F64 => f64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])) as f32,
        Dtype::F32 => f32::from_le_bytes(std::array::from_fn(|byte| bytes[byte])),
        Dtype::BF16 => f32::from_bits(u32::from(half()) << 16),
        Dtype::F16 => of_f16(half()),
        // Its upper half.
        Dtype::F8_E5M2 => of_f16(u16::from(bytes[0]) << 8),
        Dtype::F8_E4M3 => of_e4m3(bytes[0]),
        _ => unreachable!("a type of numbers"),
    }
}

fn of_f16(bits: u16) -> f32 {
    let (exponent, significand) = (bits >> 10 & 0x1F, f32::from(bits & 0x3FF));
    let magnitude = match exponent {
        0 => significand * 2f32.powi(-24),
        0x1F if significand > 0.0 => f32::NAN,
        0x1F => f32::INFINITY,
        _ => (1024.0 + significand) * 2f32.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// Without infinities: of the greatest exponent, the last is no number, and the others are.
fn of_e4m3(bits: u8) -> f32 {
    let (exponent, significand) = (bits >> 3 & 0xF, f32::from(bits & 7));
    let magnitude = match exponent {
        0 => significand * 2f32.powi(-9),
        0xF if bits & 7 == 7 => f32::NAN,
        _ => (8.0 + significand) * 2f32.powi(i32::from(exponent) - 10),
    };
    if bits >> 7 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_eight_and_sixteen_bits_are_what_they_were_defined_as() {
        // 1, -2, the least subnormal and the greatest number.
        let halves = [0x3C00u16, 0xC000, 0x0001, 0x7BFF].map(|bits| widened(Dtype::F16, &bits.to_le_bytes()));
        assert_eq!(halves, [1.0, -2.0, 2f32.powi(-24), 65504.0]);
        assert!(of_f16(0x7C01).is_nan() && of_f16(0xFC00) == f32::NEG_INFINITY);
        let e4m3 = [0x38u8, 0xC0, 0x01, 0x7E].map(|bits| widened(Dtype::F8_E4M3, &[bits]));
        assert_eq!(e4m3, [1.0, -2.0, 2f32.powi(-9), 448.0]);
        assert!(of_e4m3(0x7F).is_nan());
        let e5m2 = [0x3Cu8, 0xC0, 0x01, 0x7B].map(|bits| widened(Dtype::F8_E5M2, &[bits]));
        assert_eq!(e5m2, [1.0, -2.0, 2f32.powi(-16), 57344.0]);
        assert_eq!(widened(Dtype::BF16, &0xC0A0u16.to_le_bytes()), -5.0);
        assert_eq!(widened(Dtype::F64, &0.1f64.to_le_bytes()), 0.1);
    }
}
