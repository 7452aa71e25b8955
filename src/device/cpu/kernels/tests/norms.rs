//! Layer norm, RMS norm and QK-norm.

use ops::{
    DType, LayerNorm, LayerNormBackward, Op, QkNorm, QkNormBackward, QkNormHeads, RmsNorm, RmsNormBackward,
    TensorType,
};

use super::harness::{Data, FLOATS, added, assert_gradient, cases, check_variants, inner_product};
use super::reference;

#[test]
fn rms_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    // No row of one channel: its gradient is zero up to cancellation.
    let shapes = [[1, 3], [1, 40], [67, 40], [200, 257], [3, 1300]];
    let types = norm_types();
    for ([shape, type_index, flags @ ..], variants) in cases(3, [shapes.len(), types.len(), 2, 2, 2]) {
        let ([rows, channels], (dtype, x_type, gradients)) = (shapes[shape], types[type_index]);
        let [accumulate, accumulate_weight, cast] = flags.map(|flag| flag > 0);
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7).stored_as(x_type);
        let weight = Data::random(&[channels], 2);
        // An offset of 0 or 1.
        let offset = (rows % 2) as f32;
        let factors: Vec<f64> = weight.to_f64().iter().map(|weight| weight + f64::from(offset)).collect();
        let [y, rrms] = reference::rms_norm(&x.to_f64(), &factors, EPSILON.into());
        let op = Op::RmsNorm(RmsNorm { epsilon: EPSILON, offset, stream: false, output: dtype });
        check_variants(variants, op, &[x.clone(), weight.clone()], &[y, rrms.clone()]);

        // dx is cast only if it has another type than dy.
        let cast = cast && x_type == DType::F32;
        let dy = Data::random(&[rows, channels], 4).stored_as(dtype);
        let rrms = Data::F32(TensorType::f32(&[rows]), rrms.iter().map(|&value| value as f32).collect());
        let slopes = reference::rms_norm_backward(&dy.to_f64(), &x.to_f64(), &factors, EPSILON.into());
        let mut inputs = vec![dy, x, weight.clone(), rrms];
        let mut expected = slopes.to_vec();
        let previous = [Data::random(&[rows, channels], 5).stored_as(x_type), weight.stored_as(gradients)];
        for (index, previous) in previous.into_iter().enumerate() {
            if [accumulate, accumulate_weight][index] {
                expected[index] = added(&expected[index], &previous.to_f64());
                inputs.push(previous);
            }
        }
        expected.extend(cast.then(|| expected[0].clone()));
        let op = RmsNormBackward { offset, gradients, accumulate, accumulate_weight, cast };
        check_variants(variants, Op::RmsNormBackward(op), &inputs, &expected);
    }
}

#[test]
fn rms_norm_reference_matches_numeric_gradient() {
    let [x, dy] = [1, 2].map(|seed| Data::random(&[3, 7], seed).to_f64());
    let weight = Data::random(&[7], 3).to_f64();
    let [dx, dweight] = reference::rms_norm_backward(&dy, &x, &weight, 1e-5);
    let loss = |x: &[f64], weight: &[f64]| inner_product(&reference::rms_norm(x, weight, 1e-5)[0], &dy);
    assert_gradient(&dx, &x, |x| loss(x, &weight));
    assert_gradient(&dweight, &weight, |weight| loss(&x, weight));
}

/// Heads of queries and keys are normalized like rows; heads of values are copied.
#[test]
fn qk_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    // B, T, channels of queries and of keys, heads of both. One head each stands for all heads together.
    let shapes = [
        [1, 1, 4, 4, 1, 1],
        [2, 35, 8, 8, 4, 2],
        [1, 70, 33, 33, 3, 1],
        [1, 3, 300, 300, 2, 2],
        [2, 33, 48, 24, 1, 1],
        [1, 66, 40, 24, 1, 1],
    ];
    for ([shape, dtype, narrow, accumulate], variants) in cases(3, [shapes.len(), FLOATS.len(), 2, 2]) {
        let ([batch, sequence, p, q, queries, keys], dtype) = (shapes[shape], FLOATS[dtype]);
        let gradients = if narrow > 0 { dtype } else { DType::F32 };
        let (all, normed) = (queries + 2 * keys, queries + keys);
        let (rows, dims) = (batch * sequence, [batch, sequence, queries * p + 2 * keys * q]);
        let heads = QkNormHeads { queries, keys };
        let qkv = Data::random(&dims, 1).map(|x| 2.0 * x + 0.3).stored_as(dtype);
        let dy = Data::random(&dims, 2).stored_as(dtype);
        let weights = [(p, 3), (q, 4)].map(|(channels, seed)| Data::random(&[channels], seed));
        // An offset of 0 or 1.
        let offset = (rows % 2) as f32;
        let [mut y, mut rrms, mut dqkv] = [const { Vec::new() }; 3];
        let mut dweights = [p, q].map(|channels| vec![0.0; channels]);
        let (x, dy64) = (qkv.to_f64(), dy.to_f64());
        for head in 0..rows * all {
            let (row, head) = (head / all, head % all);
            let (channels, start) =
                if head < queries { (p, head * p) } else { (q, queries * p + (head - queries) * q) };
            let start = row * dims[2] + start;
            let (x, dy) = (&x[start..start + channels], &dy64[start..start + channels]);
            if head >= normed {
                y.extend(x);
                dqkv.extend(dy);
                continue;
            }
            let which = usize::from(head >= queries);
            let weight: Vec<f64> =
                weights[which].to_f64().iter().map(|weight| weight + f64::from(offset)).collect();
            let [normalized, reciprocal] = reference::rms_norm(x, &weight, EPSILON.into());
            let [dx, dweight] = reference::rms_norm_backward(dy, x, &weight, EPSILON.into());
            y.extend(normalized);
            rrms.extend(reciprocal);
            dqkv.extend(dx);
            dweights[which] = added(&dweights[which], &dweight);
        }
        let op = Op::QkNorm(QkNorm { heads, epsilon: EPSILON, offset });
        let inputs = [qkv.clone(), weights[0].clone(), weights[1].clone()];
        check_variants(variants, op, &inputs, &[y, rrms.clone()]);

        let rrms = rrms.iter().map(|&value| value as f32).collect();
        let rrms = Data::F32(TensorType::f32(&[batch, sequence, normed]), rrms);
        let accumulate = accumulate > 0;
        let mut inputs = [std::slice::from_ref(&dy), &inputs, std::slice::from_ref(&rrms)].concat();
        let mut expected = vec![dqkv];
        for (previous, dweight) in weights.iter().zip(&dweights) {
            let previous = previous.clone().stored_as(gradients);
            expected.push(if accumulate { added(dweight, &previous.to_f64()) } else { dweight.clone() });
            inputs.extend(accumulate.then_some(previous));
        }
        let op = QkNormBackward { heads, offset, gradients, accumulate };
        check_variants(variants, Op::QkNormBackward(op), &inputs, &expected);
    }
}

/// Types of y, x and the parameters' gradients. With f32 activations, gradients may also have 16 bits.
fn norm_types() -> Vec<(DType, DType, DType)> {
    let types = FLOATS.into_iter().flat_map(|dtype| {
        let full = [DType::F32; 2];
        let mut others = vec![full, [DType::F32, dtype], [dtype, DType::F32], [dtype; 2]];
        others.dedup();
        others.into_iter().map(move |[x, gradients]| (dtype, x, gradients))
    });
    let narrow_gradients = [DType::BF16, DType::F16].map(|gradients| (DType::F32, DType::F32, gradients));
    types.chain(narrow_gradients).collect()
}

#[test]
fn layer_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    let shapes = [[1, 1], [1, 40], [67, 40], [200, 257], [3, 1300]];
    let types = norm_types();
    for ([shape, type_index, flags @ ..], variants) in cases(3, [shapes.len(), types.len(), 2, 2, 2]) {
        let ([rows, channels], (dtype, x_type, gradients)) = (shapes[shape], types[type_index]);
        let [accumulate, accumulate_weights, cast] = flags.map(|flag| flag > 0);
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7).stored_as(x_type);
        let (weight, bias) = (Data::random(&[channels], 2), Data::random(&[channels], 3));
        let [y, mean, rstd] =
            reference::layer_norm(&x.to_f64(), &weight.to_f64(), &bias.to_f64(), EPSILON.into());
        let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: dtype });
        check_variants(
            variants,
            op,
            &[x.clone(), weight.clone(), bias.clone()],
            &[y, mean.clone(), rstd.clone()],
        );

        // dx is cast only if it has another type than dy.
        let cast = cast && x_type == DType::F32;
        let dy = Data::random(&[rows, channels], 4).stored_as(dtype);
        let statistics = |values: &[f64]| {
            Data::F32(TensorType::f32(&[rows]), values.iter().map(|&value| value as f32).collect())
        };
        let slopes =
            reference::layer_norm_backward(&dy.to_f64(), &x.to_f64(), &weight.to_f64(), EPSILON.into());
        let mut inputs = vec![dy, x, weight.clone(), statistics(&mean), statistics(&rstd)];
        let mut expected = slopes.to_vec();
        let previous = [
            Data::random(&[rows, channels], 5).stored_as(x_type),
            weight.stored_as(gradients),
            bias.stored_as(gradients),
        ];
        for (index, previous) in previous.into_iter().enumerate() {
            if [accumulate, accumulate_weights, accumulate_weights][index] {
                expected[index] = added(&expected[index], &previous.to_f64());
                inputs.push(previous);
            }
        }
        expected.extend(cast.then(|| expected[0].clone()));
        let op = LayerNormBackward { gradients, accumulate, accumulate_weights, cast };
        check_variants(variants, Op::LayerNormBackward(op), &inputs, &expected);
    }
}

#[test]
fn layer_norm_reference_matches_numeric_gradient() {
    let [x, dy] = [1, 2].map(|seed| Data::random(&[3, 7], seed).to_f64());
    let [weight, bias] = [3, 4].map(|seed| Data::random(&[7], seed).to_f64());
    let [dx, dweight, dbias] = reference::layer_norm_backward(&dy, &x, &weight, 1e-5);
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        inner_product(&reference::layer_norm(x, weight, bias, 1e-5)[0], &dy)
    };
    assert_gradient(&dx, &x, |x| loss(x, &weight, &bias));
    assert_gradient(&dweight, &weight, |weight| loss(&x, weight, &bias));
    assert_gradient(&dbias, &bias, |bias| loss(&x, &weight, bias));
}
