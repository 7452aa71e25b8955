//! Elementary functions and sums that vectorize: no branches, no calls, a fixed order of additions.

/// Partial sums of a reduction: one vector of the widest instruction set.
pub(super) const LANES: usize = 16;

/// `a * b + c`, rounded once if the level has fused multiply-add.
#[inline(always)]
pub(super) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// `e^x` to a relative error of about 1e-7, with x clamped to [-87, 87], so that neither the result nor its inverse is
/// subnormal: processors are slow at subnormal numbers.
///
/// `e^x = 2^n e^r` with `n` the integer nearest to `x / ln 2`. The polynomial for `e^r` is that of Cephes (Moshier
/// 1989); `n ln 2` is subtracted in two terms, the first of which is exact.
#[inline(always)]
pub(super) fn exp<const FUSED: bool>(x: f32) -> f32 {
    const HIGHEST: f32 = 87.0;
    const LOWEST: f32 = -87.0;
    /// Adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > HIGHEST { HIGHEST } else { x };
    let x = if x < LOWEST { LOWEST } else { x };
    let rounded = multiply_add::<FUSED>(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = multiply_add::<FUSED>(n, -LN2_LOW, multiply_add::<FUSED>(n, -LN2_HIGH, x));
    let p = 1.987_569_1e-4;
    let p = multiply_add::<FUSED>(p, r, 1.398_199_9e-3);
    let p = multiply_add::<FUSED>(p, r, 8.333_452e-3);
    let p = multiply_add::<FUSED>(p, r, 4.166_579_6e-2);
    let p = multiply_add::<FUSED>(p, r, 0.166_666_65);
    let p = multiply_add::<FUSED>(p, r, 0.5);
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    (multiply_add::<FUSED>(p * r, r, r) + 1.0) * power
}

/// The hyperbolic tangent to a relative error of about 2e-7. Near 0, where the exponential's form would cancel, it is the
/// polynomial of Cephes.
#[inline(always)]
pub(super) fn tanh<const FUSED: bool>(x: f32) -> f32 {
    let square = x * x;
    let p = -5.704_988_7e-3;
    let p = multiply_add::<FUSED>(p, square, 2.063_909e-2);
    let p = multiply_add::<FUSED>(p, square, -5.373_971_6e-2);
    let p = multiply_add::<FUSED>(p, square, 0.133_314_42);
    let p = multiply_add::<FUSED>(p, square, -0.333_332_8);
    let near = multiply_add::<FUSED>(p * square, x, x);
    let far = 1.0 - 2.0 / (1.0 + exp::<FUSED>(2.0 * x));
    if x.abs() < 0.625 { near } else { far }
}

/// Sums lanes pairwise. Not inlined: otherwise the compiler narrows the vectors of the loop before it too.
#[inline(never)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The largest lane; not inlined for the same reason.
#[inline(never)]
fn largest_lane(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] = larger(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}

/// The sum of `term(i)` for `i` in `0..len`: `LANES` partial sums, plus the sum of the remainder.
#[inline(always)]
pub(super) fn sum(len: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = len - len % LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    let mut rest = 0.0;
    for index in whole..len {
        rest += term(index);
    }
    total(lanes) + rest
}

/// Replaces each value by its `term` and returns the sum of the terms. The length is a multiple of `LANES`.
#[inline(always)]
pub(super) fn map_and_sum(values: &mut [f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = values.as_chunks_mut::<LANES>();
    assert!(rest.is_empty(), "whole vectors");
    for chunk in whole {
        for (sum, value) in lanes.iter_mut().zip(chunk) {
            *value = term(*value);
            *sum += *value;
        }
    }
    total(lanes)
}

/// The largest element, or minus infinity if there is none; NaNs are ignored.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    rest.iter().fold(largest_lane(lanes), |a, &b| larger(a, b))
}
