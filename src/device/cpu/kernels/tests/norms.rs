//! Normalisation of rows and of heads.

use ops::{
    DType, LayerNorm, LayerNormBackward, Op, QkNorm, QkNormBackward, QkNormHeads, RmsNorm, RmsNormBackward,
    TensorType,
};

use super::harness::{Data, NUMBERS, added, assert_slope, cases, check_in, inner_product};
use super::reference;

#[test]
fn rms_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    // Of one channel, the gradient is what cancels.
    let shapes = [[1, 3], [1, 40], [67, 40], [200, 257], [3, 1300]];
    let types = norm_types();
    for ([shape, types_at, flags @ ..], ways) in cases(3, [shapes.len(), types.len(), 2, 2, 2]) {
        let ([rows, channels], (number, of_x, gradients)) = (shapes[shape], types[types_at]);
        let [accumulate, accumulate_weight, cast] = flags.map(|flag| flag > 0);
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7).stored_as(of_x);
        let weight = Data::random(&[channels], 2);
        // One of the two.
        let offset = (rows % 2) as f32;
        let whole: Vec<f64> = weight.to_f64().iter().map(|weight| weight + f64::from(offset)).collect();
        let [y, rrms] = reference::rms_norm(&x.to_f64(), &whole, EPSILON.into());
        let op = Op::RmsNorm(RmsNorm { epsilon: EPSILON, offset, stream: false, output: number });
        check_in(ways, op, &[x.clone(), weight.clone()], &[y, rrms.clone()]);

        // It is of the type of dy already.
        let cast = cast && of_x == DType::F32;
        let dy = Data::random(&[rows, channels], 4).stored_as(number);
        let rrms = Data::F32(TensorType::f32(&[rows]), rrms.iter().map(|&value| value as f32).collect());
        let slopes = reference::rms_norm_backward(&dy.to_f64(), &x.to_f64(), &whole, EPSILON.into());
        let mut inputs = vec![dy, x, weight.clone(), rrms];
        let mut expected = slopes.to_vec();
        let so_far = [Data::random(&[rows, channels], 5).stored_as(of_x), weight.stored_as(gradients)];
        for (index, so_far) in so_far.into_iter().enumerate() {
            if [accumulate, accumulate_weight][index] {
                expected[index] = added(&expected[index], &so_far.to_f64());
                inputs.push(so_far);
            }
        }
        expected.extend(cast.then(|| expected[0].clone()));
        let op = RmsNormBackward { offset, gradients, accumulate, accumulate_weight, cast };
        check_in(ways, Op::RmsNormBackward(op), &inputs, &expected);
    }
}

#[test]
fn the_reference_of_rms_norm_is_differentiated_right() {
    let [x, dy] = [1, 2].map(|seed| Data::random(&[3, 7], seed).to_f64());
    let weight = Data::random(&[7], 3).to_f64();
    let [dx, dweight] = reference::rms_norm_backward(&dy, &x, &weight, 1e-5);
    let loss = |x: &[f64], weight: &[f64]| inner_product(&reference::rms_norm(x, weight, 1e-5)[0], &dy);
    assert_slope(&dx, &x, |x| loss(x, &weight));
    assert_slope(&dweight, &weight, |weight| loss(&x, weight));
}

/// Heads as rows: those of queries, then those of keys; those of values are let through.
#[test]
fn norms_of_heads_match_the_reference() {
    const EPSILON: f32 = 1e-5;
    let shapes = [([1, 1, 4], 1, 1), ([2, 35, 8], 4, 2), ([1, 70, 33], 3, 1), ([1, 3, 300], 2, 2)];
    for ([shape, number, narrow, accumulate], ways) in cases(3, [shapes.len(), NUMBERS.len(), 2, 2]) {
        let (([batch, sequence, channels], queries, keys), number) = (shapes[shape], NUMBERS[number]);
        let gradients = if narrow > 0 { number } else { DType::F32 };
        let (all, normed) = (queries + 2 * keys, queries + keys);
        let (rows, dims) = (batch * sequence, [batch, sequence, all * channels]);
        let heads = QkNormHeads { queries, keys };
        let qkv = Data::random(&dims, 1).map(|x| 2.0 * x + 0.3).stored_as(number);
        let dy = Data::random(&dims, 2).stored_as(number);
        let weights = [3, 4].map(|seed| Data::random(&[channels], seed));
        // One of the two.
        let offset = (rows % 2) as f32;
        let [mut y, mut rrms, mut dqkv] = [const { Vec::new() }; 3];
        let mut dweights = [const { Vec::new() }; 2].map(|_: Vec<f64>| vec![0.0; channels]);
        let (x, dy64) = (qkv.to_f64(), dy.to_f64());
        for head in 0..rows * all {
            let at = head * channels..(head + 1) * channels;
            let (x, dy) = (&x[at.clone()], &dy64[at]);
            if head % all >= normed {
                y.extend(x);
                dqkv.extend(dy);
                continue;
            }
            let which = usize::from(head % all >= queries);
            let weight: Vec<f64> =
                weights[which].to_f64().iter().map(|weight| weight + f64::from(offset)).collect();
            let [normal, reciprocal] = reference::rms_norm(x, &weight, EPSILON.into());
            let [dx, dweight] = reference::rms_norm_backward(dy, x, &weight, EPSILON.into());
            y.extend(normal);
            rrms.extend(reciprocal);
            dqkv.extend(dx);
            dweights[which] = added(&dweights[which], &dweight);
        }
        let op = Op::QkNorm(QkNorm { heads, epsilon: EPSILON, offset });
        let inputs = [qkv.clone(), weights[0].clone(), weights[1].clone()];
        check_in(ways, op, &inputs, &[y, rrms.clone()]);

        let rrms = rrms.iter().map(|&value| value as f32).collect();
        let rrms = Data::F32(TensorType::f32(&[batch, sequence, normed]), rrms);
        let accumulate = accumulate > 0;
        let mut inputs = [std::slice::from_ref(&dy), &inputs, std::slice::from_ref(&rrms)].concat();
        let mut expected = vec![dqkv];
        for (so_far, dweight) in weights.iter().zip(&dweights) {
            let so_far = so_far.clone().stored_as(gradients);
            expected.push(if accumulate { added(dweight, &so_far.to_f64()) } else { dweight.clone() });
            inputs.extend(accumulate.then_some(so_far));
        }
        let op = QkNormBackward { heads, offset, gradients, accumulate };
        check_in(ways, Op::QkNormBackward(op), &inputs, &expected);
    }
}

/// Of y, x and gradients of parameters. What continues a stream in f32 may have gradients of 16 bits.
fn norm_types() -> Vec<(DType, DType, DType)> {
    let types = NUMBERS.into_iter().flat_map(|number| {
        let full = [DType::F32; 2];
        let mut others = vec![full, [DType::F32, number], [number, DType::F32], [number; 2]];
        others.dedup();
        others.into_iter().map(move |[x, gradients]| (number, x, gradients))
    });
    let of_streams = [DType::BF16, DType::F16].map(|gradients| (DType::F32, DType::F32, gradients));
    types.chain(of_streams).collect()
}

#[test]
fn layer_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    let shapes = [[1, 1], [1, 40], [67, 40], [200, 257], [3, 1300]];
    let types = norm_types();
    for ([shape, types_at, flags @ ..], ways) in cases(3, [shapes.len(), types.len(), 2, 2, 2]) {
        let ([rows, channels], (number, of_x, gradients)) = (shapes[shape], types[types_at]);
        let [accumulate, accumulate_weights, cast] = flags.map(|flag| flag > 0);
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7).stored_as(of_x);
        let (weight, bias) = (Data::random(&[channels], 2), Data::random(&[channels], 3));
        let [y, mean, rstd] =
            reference::layer_norm(&x.to_f64(), &weight.to_f64(), &bias.to_f64(), EPSILON.into());
        let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: number });
        check_in(ways, op, &[x.clone(), weight.clone(), bias.clone()], &[y, mean.clone(), rstd.clone()]);

        // It is of the type of dy already.
        let cast = cast && of_x == DType::F32;
        let dy = Data::random(&[rows, channels], 4).stored_as(number);
        let statistics = |values: &[f64]| {
            Data::F32(TensorType::f32(&[rows]), values.iter().map(|&value| value as f32).collect())
        };
        let slopes =
            reference::layer_norm_backward(&dy.to_f64(), &x.to_f64(), &weight.to_f64(), EPSILON.into());
        let mut inputs = vec![dy, x, weight.clone(), statistics(&mean), statistics(&rstd)];
        let mut expected = slopes.to_vec();
        let so_far = [
            Data::random(&[rows, channels], 5).stored_as(of_x),
            weight.stored_as(gradients),
            bias.stored_as(gradients),
        ];
        for (index, so_far) in so_far.into_iter().enumerate() {
            if [accumulate, accumulate_weights, accumulate_weights][index] {
                expected[index] = added(&expected[index], &so_far.to_f64());
                inputs.push(so_far);
            }
        }
        expected.extend(cast.then(|| expected[0].clone()));
        let op = LayerNormBackward { gradients, accumulate, accumulate_weights, cast };
        check_in(ways, Op::LayerNormBackward(op), &inputs, &expected);
    }
}

#[test]
fn the_reference_of_layer_norm_is_differentiated_right() {
    let [x, dy] = [1, 2].map(|seed| Data::random(&[3, 7], seed).to_f64());
    let [weight, bias] = [3, 4].map(|seed| Data::random(&[7], seed).to_f64());
    let [dx, dweight, dbias] = reference::layer_norm_backward(&dy, &x, &weight, 1e-5);
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        inner_product(&reference::layer_norm(x, weight, bias, 1e-5)[0], &dy)
    };
    assert_slope(&dx, &x, |x| loss(x, &weight, &bias));
    assert_slope(&dweight, &weight, |weight| loss(&x, weight, &bias));
    assert_slope(&dbias, &bias, |bias| loss(&x, &weight, bias));
}
