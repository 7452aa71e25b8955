//! Elementwise operations: activations, gated activations, rotary embedding, casts, sums and fills.

use crate::cpu::kernels::simd::Level;
use ops::{
    Activate, Activation, ActivationBackward, Add, AddColumns, Cast, ColumnPlace, DType, Deviation, Fill,
    Frequencies, Gated, GatedBackward, Normal, Op, Rotary, Scale, TakeColumns, TensorType,
};

use super::harness::{
    Data, FLOATS, LaunchOptions, added, assert_gradient, cases, check, check_variants, inner_product, launch,
    relative_error,
};
use super::reference;

/// An elementwise operation of one or two tensors.
#[derive(Clone, Copy)]
enum Elementwise {
    Activate(Activation),
    ActivationBackward(Activation),
    Add,
    AddAndActivate(Activation),
    Scale,
}

#[test]
fn elementwise_operations_match_the_reference() {
    let each = |operation: fn(Activation) -> Elementwise| Activation::ALL.into_iter().map(operation);
    let operations: Vec<Elementwise> = [Elementwise::Add, Elementwise::Scale]
        .into_iter()
        .chain(each(Elementwise::Activate))
        .chain(each(Elementwise::ActivationBackward))
        .chain(each(Elementwise::AddAndActivate))
        .collect();
    let lens = [1, 40, 40_003];
    for ([len, dtype, operation], variants) in cases(3, [lens.len(), FLOATS.len(), operations.len()]) {
        let (elements, dtype) = (lens[len], FLOATS[dtype]);
        let random = |seed, factor: f32| Data::random(&[elements], seed).map(|x| factor * x).stored_as(dtype);
        let (a, wide) = (random(1, 1.0), random(2, 12.0));
        match operations[operation] {
            Elementwise::Activate(activation) => {
                let activated = a.to_f64().iter().map(|&x| reference::activation(activation, x)).collect();
                check_variants(variants, Op::Activate(Activate { activation }), &[a], &[activated]);
            }
            Elementwise::ActivationBackward(activation) => {
                let slopes = wide.to_f64().into_iter().map(|x| reference::activation_slope(activation, x));
                let dx = a.to_f64().iter().zip(slopes).map(|(dy, slope)| dy * slope).collect();
                let op = Op::ActivationBackward(ActivationBackward { activation });
                check_variants(variants, op, &[a, wide], &[dx]);
            }
            Elementwise::Add => {
                let sum = added(&a.to_f64(), &wide.to_f64());
                check_variants(variants, Op::Add(Add::PLAIN), &[a, wide], &[sum]);
            }
            Elementwise::AddAndActivate(activation) => {
                // Only small inputs: far below 0, activations lose relative precision.
                let other = random(3, 1.0);
                let sum = added(&a.to_f64(), &other.to_f64());
                let activated = sum.iter().map(|&sum| reference::activation(activation, sum)).collect();
                let op = Op::Add(Add { activation: Some(activation), stream: false });
                check_variants(variants, op, &[a, other], &[activated, sum]);
            }
            Elementwise::Scale => {
                let scaled = wide.to_f64().iter().map(|x| 1.5 * x).collect();
                check_variants(variants, Op::Scale(Scale { factor: 1.5 }), &[wide], &[scaled]);
            }
        }
    }
}

/// Rows, width, number of columns, and their place with its first column.
const RANGES: [([usize; 3], ColumnPlace, usize); 4] = [
    ([1, 1, 1], ColumnPlace::Start, 0),
    ([3, 40, 16], ColumnPlace::FromEnd(2), 8),
    ([67, 1201, 601], ColumnPlace::FromEnd(1), 600),
    ([17, 96, 90], ColumnPlace::Start, 0),
];

#[test]
fn ranges_of_columns_match_the_reference() {
    for ([size, dtype], variants) in cases(3, [RANGES.len(), FLOATS.len()]) {
        let ([rows, width, columns], place, first) = RANGES[size];
        let dtype = FLOATS[dtype];
        let random = |columns, seed| Data::random(&[rows, columns], seed).stored_as(dtype);
        let (x, part) = (random(width, 1), random(columns, 2));
        let (mut sum, added) = (x.to_f64(), part.to_f64());
        let taken = sum.chunks(width).flat_map(|row| &row[first..first + columns]).copied().collect();
        for (row, added) in sum.chunks_mut(width).zip(added.chunks(columns)) {
            row[first..].iter_mut().zip(added).for_each(|(x, added)| *x += added);
        }
        let take = Op::TakeColumns(TakeColumns { place, columns });
        check_variants(variants, take, std::slice::from_ref(&x), &[taken]);
        check_variants(variants, Op::AddColumns(AddColumns { place }), &[x, part], &[sum]);
    }
}

#[test]
fn activation_slopes_match_numeric_derivatives() {
    // Without 0, where the derivative of ReLU jumps.
    let x: Vec<f64> = (-41..40).map(|i| (f64::from(i) + 0.5) / 7.0).collect();
    for activation in Activation::ALL {
        let saved = |x: &f64| activation.definition().saved(*x);
        let slopes: Vec<f64> = x.iter().map(|x| reference::activation_slope(activation, saved(x))).collect();
        let sum = |x: &[f64]| x.iter().map(|&x| reference::activation(activation, x)).sum();
        assert_gradient(&slopes, &x, sum);
    }
}

/// Also where the exponentials of its definition would cancel.
#[test]
fn every_element_of_tanh_is_accurate() {
    let x = Data::random(&[1, 4000], 1).map(|x| 9.0 * x * x * x * x * x);
    let expected: Vec<f64> = x.to_f64().iter().map(|x| x.tanh()).collect();
    for level in Level::available() {
        let options = LaunchOptions { threads: 1, level, alias: false };
        let op = Op::Activate(Activate { activation: Activation::Tanh });
        let found = launch(&op, std::slice::from_ref(&x), options).swap_remove(0);
        for (found, expected) in found.into_iter().zip(&expected) {
            assert!((f64::from(found) / expected - 1.0).abs() < 4e-7, "{level:?}: {found} for {expected}");
        }
    }
}

#[test]
fn gated_activations_match_the_reference() {
    let sizes = [[1, 1], [3, 40], [67, 513], [2, 1030]];
    for ([size, dtype, activation], variants) in cases(3, [sizes.len(), FLOATS.len(), Activation::ALL.len()])
    {
        let ([rows, width], dtype) = (sizes[size], FLOATS[dtype]);
        let activation = Activation::ALL[activation];
        let both = Data::random(&[rows, 2 * width], 1).map(|x| 6.0 * x).stored_as(dtype);
        let dy = Data::random(&[rows, width], 2).stored_as(dtype);
        let y = reference::gated(activation, &both.to_f64(), width);
        check_variants(variants, Op::Gated(Gated { activation }), std::slice::from_ref(&both), &[y]);
        let gradients = reference::gated_backward(activation, &dy.to_f64(), &both.to_f64(), width);
        check_variants(variants, Op::GatedBackward(GatedBackward { activation }), &[dy, both], &[gradients]);
    }
}

#[test]
fn gated_reference_matches_numeric_gradient() {
    let [both, dy] = [Data::random(&[3, 10], 1), Data::random(&[3, 5], 2)].map(|data| data.to_f64());
    for activation in Activation::ALL {
        let gradients = reference::gated_backward(activation, &dy, &both, 5);
        assert_gradient(&gradients, &both, |both| inner_product(&reference::gated(activation, both, 5), &dy));
    }
}

#[test]
fn rotary_matches_the_reference() {
    // Batch, sequence, rotated heads, head size, rotated channels, and channels after the rotated heads.
    for [batch, sequence, rotated, head, channels, rest] in
        [[1, 1, 1, 2, 2, 0], [3, 37, 4, 20, 20, 40], [2, 300, 3, 64, 64, 64], [2, 40, 3, 21, 6, 42]]
    {
        let qkv = Data::random(&[batch, sequence, rotated * head + rest], 1);
        for (dtype, inverse) in FLOATS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
            let frequencies = Frequencies { base: 1e4, scaling: None, divisors: Vec::new() };
            let op = Rotary { rotated, head, channels, frequencies, inverse };
            let qkv = qkv.clone().stored_as(dtype);
            let expected = reference::rotary(&op, &qkv.to_f64(), sequence, rotated * head + rest);
            // Angles of hundreds of radians, computed in f32, have larger errors.
            if sequence < 100 {
                check(Op::Rotary(op), std::slice::from_ref(&qkv), &[expected]);
            } else {
                let options = LaunchOptions { threads: 2, level: Level::best(), alias: true };
                let found = launch(&Op::Rotary(op), std::slice::from_ref(&qkv), options);
                let error = relative_error(&found[0], &expected);
                assert!(error < if dtype == DType::F32 { 2e-5 } else { 3e-3 }, "{dtype}: {error:e}");
            }
        }
    }
}

/// Dot products of rotated queries and keys depend on the distance of their positions only.
#[test]
fn rotary_dot_products_depend_on_distance_only() {
    let frequencies = Frequencies { base: 1e4, scaling: None, divisors: Vec::new() };
    let op = Op::Rotary(Rotary { rotated: 2, head: 8, channels: 8, frequencies, inverse: false });
    let Data::F32(_, row) = Data::random(&[16], 1) else { unreachable!("random data is f32") };
    let qkv = Data::F32(TensorType::f32(&[1, 20, 16]), row.repeat(20));
    let options = LaunchOptions { threads: 1, level: Level::best(), alias: false };
    let rotated = launch(&op, &[qkv], options).swap_remove(0);
    let head = |t: usize, start: usize| {
        let channels = &rotated[t * 16 + start..t * 16 + start + 8];
        channels.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>()
    };
    let product = |query: usize, key: usize| inner_product(&head(query, 0), &head(key, 8));
    for apart in 0..10 {
        assert!((product(apart, 0) - product(9 + apart, 9)).abs() < 1e-5, "{apart} apart");
    }
    assert!((product(0, 0) - product(9, 0)).abs() > 1e-2);
}

#[test]
fn casts_match_the_reference() {
    for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
        let inputs = [1, 40, 0, 40_003, 700]
            .map(|len| Data::random(&[len], 1 + len as u64).map(|x| 100.0 * x * x * x).stored_as(from));
        let expected = inputs.each_ref().map(Data::to_f64);
        check(Op::Cast(Cast { to }), &inputs, &expected);
    }
}

#[test]
fn every_16_bit_number_survives_a_cast_to_f32_and_back() {
    let numbers = [DType::BF16, DType::F16];
    for (level, dtype) in Level::available().flat_map(|level| numbers.map(|dtype| (level, dtype))) {
        let cast = |to, input: &Data| {
            let options = LaunchOptions { threads: 3, level, alias: false };
            launch(&Op::Cast(Cast { to }), std::slice::from_ref(input), options).swap_remove(0)
        };
        let patterns = Data::Bits16(TensorType::new(dtype, &[1 << 16]), (0..=u16::MAX).collect());
        let wide = cast(DType::F32, &patterns);
        let back = cast(dtype, &Data::F32(TensorType::f32(&[1 << 16]), wide.clone()));
        for ((wide, back), expected) in wide.iter().zip(&back).zip(patterns.to_f64()) {
            let same = wide.to_bits() == back.to_bits() && f64::from(*wide) == expected;
            let nan = wide.is_nan() && back.is_nan() && expected.is_nan();
            assert!(same || nan, "{level:?} {dtype}: {expected} became {wide}, then {back}");
        }
    }
}

#[test]
fn fill_writes_every_element() {
    let output = TensorType::f32(&[3, 7001]);
    for dtype in FLOATS {
        let output = TensorType { dtype, ..output };
        check(Op::Fill(Fill { output, value: 1.5 }), &[], &[vec![1.5; 3 * 7001]]);
    }
}

#[test]
fn normal_has_normal_moments_and_depends_on_seed_and_site() {
    let make = |elements, seed, site, threads| {
        let output = TensorType::f32(&[elements]);
        let op = Op::Normal(Normal { output, deviation: Deviation::Fixed(0.5), seed, site });
        launch(&op, &[], LaunchOptions { threads, level: Level::best(), alias: false }).swap_remove(0)
    };
    let numbers = make(100_003, 1, 2, 1);
    assert_eq!(numbers, make(100_003, 1, 2, 3), "the same on any number of threads");
    assert_eq!(numbers[..50], make(50, 1, 2, 1), "the same in a smaller value");
    assert_ne!(numbers[..50], make(50, 2, 2, 1));
    assert_ne!(numbers[..50], make(50, 1, 3, 1));
    let moment = |power: i32| {
        numbers.iter().map(|&x| (f64::from(x) / 0.5).powi(power)).sum::<f64>() / numbers.len() as f64
    };
    for (power, expected, error) in [(1, 0.0, 0.02), (2, 1.0, 0.02), (3, 0.0, 0.05), (4, 3.0, 0.1)] {
        assert!((moment(power) - expected).abs() < error, "moment {power} is {}", moment(power));
    }
}
