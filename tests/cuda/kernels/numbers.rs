//! 16-bit numbers as f32, and the bytes of tensors.

use ops::{DType, TensorType};

/// The floating-point types.
pub(crate) const NUMBERS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Rounds to the nearest number of a type, ties to even; overflow gives infinity.
pub(crate) fn rounded(value: f32, dtype: DType) -> f32 {
    let (bits, lowest, largest) = match dtype {
        DType::F32 | DType::I32 | DType::U16 | DType::U8 | DType::U4 => return value,
        DType::BF16 => (8, -126, power(128) - power(119)),
        DType::F16 => (11, -14, 65520.0),
    };
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Subnormal f32 numbers are normal as f64, so the exponent bits are valid.
    let value = f64::from(value);
    if value.abs() >= largest {
        return (value.signum() * f64::INFINITY) as f32;
    }
    let exponent = ((value.to_bits() >> 52 & 0x7FF) as i32 - 1023).max(lowest);
    let unit = power(exponent + 1 - bits);
    ((value / unit).round_ties_even() * unit) as f32
}

/// 2 to a power within the normal f64 range; faster than `powi`.
const fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The bits of a number that f16 represents exactly.
fn f16_bits(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.abs();
    let bits = if magnitude.is_nan() {
        0x7e00
    } else if magnitude.is_infinite() {
        0x7c00
    } else if f64::from(magnitude) < power(-14) {
        (f64::from(magnitude) * power(24)) as u16
    } else {
        ((magnitude.to_bits() >> 13) - (112 << 10)) as u16
    };
    sign | bits
}

fn f16_value(bits: u16) -> f32 {
    let (exponent, fraction) = (bits >> 10 & 31, f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * power(-24) as f32,
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * power(i32::from(exponent) - 25) as f32,
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// The value of a 16-bit type's bits.
pub(crate) fn value_of(bits: u16, dtype: DType) -> f32 {
    if dtype == DType::F16 { f16_value(bits) } else { f32::from_bits(u32::from(bits) << 16) }
}

/// The bytes of numbers that the type represents exactly.
pub(crate) fn to_bytes(numbers: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        DType::I32 => numbers.iter().flat_map(|number| (*number as i32).to_le_bytes()).collect(),
        DType::BF16 => numbers.iter().flat_map(|n| ((n.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        DType::F16 => numbers.iter().flat_map(|number| f16_bits(*number).to_le_bytes()).collect(),
        DType::U16 => numbers.iter().flat_map(|number| (*number as u16).to_le_bytes()).collect(),
        DType::U8 => numbers.iter().map(|number| *number as u8).collect(),
        DType::U4 => {
            let pairs =
                numbers.chunks(2).map(|pair| pair.iter().rev().fold(0, |byte, code| byte << 4 | *code as u8));
            pairs.collect()
        }
    }
}

pub(crate) fn from_bytes(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect(),
        DType::I32 => bytes.as_chunks().0.iter().map(|&word| i32::from_le_bytes(word) as f32).collect(),
        DType::BF16 | DType::F16 => {
            bytes.as_chunks().0.iter().map(|&word| value_of(u16::from_le_bytes(word), dtype)).collect()
        }
        DType::U16 => bytes.as_chunks().0.iter().map(|&word| f32::from(u16::from_le_bytes(word))).collect(),
        DType::U8 => bytes.iter().map(|&code| f32::from(code)).collect(),
        DType::U4 => bytes.iter().flat_map(|byte| [byte & 15, byte >> 4].map(f32::from)).collect(),
    }
}

/// A tensor's type and values, which the type represents exactly.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) ty: TensorType,
    pub(crate) numbers: Vec<f32>,
}

impl Data {
    pub(crate) fn new(dtype: DType, dims: &[usize], numbers: Vec<f32>) -> Data {
        let ty = TensorType::new(dtype, dims);
        assert_eq!(ty.elements(), numbers.len());
        Data { ty, numbers: numbers.into_iter().map(|number| rounded(number, dtype)).collect() }
    }

    /// Pseudorandom numbers between -`scale` and `scale`, determined by the seed.
    pub(crate) fn random(dtype: DType, dims: &[usize], scale: f32, seed: u64) -> Data {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1;
        let numbers = (0..dims.iter().product()).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        });
        Data::new(dtype, dims, numbers.collect())
    }

    /// The same numbers, rounded to another type.
    pub(crate) fn stored_as(&self, dtype: DType) -> Data {
        Data::new(dtype, self.ty.shape.dims(), self.numbers.clone())
    }

    pub(crate) fn scalar(number: f32) -> Data {
        Data::new(DType::F32, &[1], vec![number])
    }

    pub(crate) fn tokens(dims: &[usize], token: impl Fn(usize) -> usize) -> Data {
        Data::new(DType::I32, dims, (0..dims.iter().product()).map(|i| token(i) as f32).collect())
    }

    pub(crate) fn map(self, change: impl Fn(f32) -> f32) -> Data {
        let Data { ty, numbers } = self;
        Data::new(ty.dtype, ty.shape.dims(), numbers.into_iter().map(change).collect())
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        self.numbers.iter().map(|number| number.to_bits()).collect()
    }

    /// The same numbers in f32; integers keep their type.
    pub(crate) fn to_f32(&self) -> Data {
        let dtype = if self.ty.dtype.is_float() { DType::F32 } else { self.ty.dtype };
        Data { ty: TensorType { dtype, ..self.ty }, numbers: self.numbers.clone() }
    }
}
