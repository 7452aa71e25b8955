//! Conversion of stored floating-point numbers to f32.

use safetensors::Dtype;

/// The supported types, with those of quantized numbers, as prefixes of types in messages.
pub(super) const NAMES: [&str; 9] =
    ["f64[", "f32[", "bf16[", "f16[", "f8_e4m3[", "f8_e5m2[", "nf4[", "fp4[", "int8["];

/// Whether parameters may have this type without a scale.
pub(super) fn is_float(dtype: Dtype) -> bool {
    dtype != Dtype::I8 && width(dtype).is_some()
}

/// Bytes per number; `None` for unsupported types.
pub(super) fn width(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::BF16 | Dtype::F16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::I8 => Some(1),
        _ => None,
    }
}

/// Converts a stored number to f32. Exact, except that f64 is rounded.
pub(super) fn to_f32(dtype: Dtype, bytes: &[u8]) -> f32 {
    let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match dtype {
        Dtype::F64 => f64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])) as f32,
        Dtype::F32 => f32::from_le_bytes(std::array::from_fn(|byte| bytes[byte])),
        Dtype::BF16 => f32::from_bits(u32::from(half()) << 16),
        Dtype::F16 => f16_to_f32(half()),
        // E5M2 is the upper half of f16.
        Dtype::F8_E5M2 => f16_to_f32(u16::from(bytes[0]) << 8),
        Dtype::F8_E4M3 => e4m3_to_f32(bytes[0]),
        Dtype::I8 => f32::from(bytes[0].cast_signed()),
        _ => unreachable!("`width` accepts only these types"),
    }
}

pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let (exponent, significand) = (bits >> 10 & 0x1F, f32::from(bits & 0x3FF));
    let magnitude = match exponent {
        0 => significand * 2f32.powi(-24),
        0x1F if significand > 0.0 => f32::NAN,
        0x1F => f32::INFINITY,
        _ => (1024.0 + significand) * 2f32.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// E4M3 has no infinities; only the largest significand of the largest exponent is NaN.
fn e4m3_to_f32(bits: u8) -> f32 {
    let (exponent, significand) = (bits >> 3 & 0xF, f32::from(bits & 7));
    let magnitude = match exponent {
        0 => significand * 2f32.powi(-9),
        0xF if bits & 7 == 7 => f32::NAN,
        _ => (8.0 + significand) * 2f32.powi(i32::from(exponent) - 10),
    };
    if bits >> 7 == 0 { magnitude } else { -magnitude }
}

/// Rounds a number to a narrower type, to nearest even.
pub(super) fn rounded(dtype: Dtype, number: f32) -> f32 {
    let bits = number.to_bits();
    match dtype {
        Dtype::BF16 if !number.is_nan() => f32::from_bits((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000),
        Dtype::F16 => {
            let exponent = (bits >> 23 & 0xFF) as i32 - 127;
            // The distance of neighbours, which is constant below the smallest normal number.
            let step = 2f32.powi(exponent.max(-14) - 10);
            let rounded = (number / step).round_ties_even() * step;
            if rounded.abs() > 65504.0 { f32::INFINITY.copysign(number) } else { rounded }
        }
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_types_convert_to_their_defined_values() {
        // 1, -2, the smallest subnormal and the largest number.
        let halves = [0x3C00u16, 0xC000, 0x0001, 0x7BFF].map(|bits| to_f32(Dtype::F16, &bits.to_le_bytes()));
        assert_eq!(halves, [1.0, -2.0, 2f32.powi(-24), 65504.0]);
        assert!(f16_to_f32(0x7C01).is_nan() && f16_to_f32(0xFC00) == f32::NEG_INFINITY);
        let e4m3 = [0x38u8, 0xC0, 0x01, 0x7E].map(|bits| to_f32(Dtype::F8_E4M3, &[bits]));
        assert_eq!(e4m3, [1.0, -2.0, 2f32.powi(-9), 448.0]);
        assert!(e4m3_to_f32(0x7F).is_nan());
        let e5m2 = [0x3Cu8, 0xC0, 0x01, 0x7B].map(|bits| to_f32(Dtype::F8_E5M2, &[bits]));
        assert_eq!(e5m2, [1.0, -2.0, 2f32.powi(-16), 57344.0]);
        assert_eq!(to_f32(Dtype::BF16, &0xC0A0u16.to_le_bytes()), -5.0);
        assert_eq!(to_f32(Dtype::I8, &[0x80]), -128.0);
        assert_eq!(to_f32(Dtype::F64, &0.1f64.to_le_bytes()), 0.1);
    }

    #[test]
    fn narrower_types_round_to_nearest_even() {
        let half = 2f32.powi(-11);
        for (number, f16, bf16) in [
            (1.0 + half, 1.0, 1.0),
            (1.0 + 3.0 * half, 1.0 + 4.0 * half, 1.0),
            (-1.0 - 1.1 * half, -1.0 - 2.0 * half, -1.0),
            (1.0 + 2f32.powi(-8), 1.0 + 2f32.powi(-8), 1.0),
            (1.0 + 1.5 * 2f32.powi(-7), 1.0 + 1.5 * 2f32.powi(-7), 1.0 + 2f32.powi(-6)),
            (0.75 * 2f32.powi(-24), 2f32.powi(-24), 0.75 * 2f32.powi(-24)),
            (65519.0, 65504.0, 65536.0),
            (65520.0, f32::INFINITY, 65536.0),
            (-0.0, -0.0, -0.0),
        ] {
            assert_eq!(rounded(Dtype::F16, number).to_bits(), f16.to_bits(), "{number}");
            assert_eq!(rounded(Dtype::BF16, number).to_bits(), bf16.to_bits(), "{number}");
            assert_eq!(rounded(Dtype::F32, number), number);
        }
        assert!([Dtype::F16, Dtype::BF16].into_iter().all(|dtype| rounded(dtype, f32::NAN).is_nan()));
    }
}
