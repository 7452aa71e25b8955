//! All operations but products and attention.

use crate::device::cpu::kernels::simd::Level;
use crate::ops::{
    Activation, ActivationBackward, AdamW, AdamWNumbers, Add, Cast, CrossEntropy, DType, Deviation,
    Embedding, EmbeddingBackward, Fill, Frequencies, Gated, GatedBackward, GlobalNorm, GradientTerms,
    HeadNorm, HeadNormBackward, LayerNorm, LayerNormBackward, LossScale, Member, Members, Normal,
    NormedHeads, Op, RmsNorm, RmsNormBackward, Rotary, Scale, Sgd, Shape, Slice, TensorType, Update,
    UpdateFormat,
};

use super::harness::{Data, How, NUMBERS, added, assert_slope, check, distance, inner_product, launch};
use super::reference;

/// Every two types that numbers are stored in.
fn pairs() -> impl Iterator<Item = (DType, DType)> {
    NUMBERS.into_iter().flat_map(|a| NUMBERS.map(|b| (a, b)))
}

#[test]
fn elementwise_operations_match_the_reference() {
    for elements in [1, 40, 40_003] {
        for number in NUMBERS {
            let (a, b) = (Data::random(&[elements], 1), Data::random(&[elements], 2).map(|x| 12.0 * x));
            let [a, b] = [a, b].map(|operand| operand.stored_as(number));
            let sum = added(&a.to_f64(), &b.to_f64());
            check(Op::Add(Add::PLAIN), &[a, b], &[sum]);
        }
    }
    for (elements, number) in [1, 40_003].into_iter().flat_map(|len| NUMBERS.map(|number| (len, number))) {
        let dy = Data::random(&[elements], 1).stored_as(number);
        let x = Data::random(&[elements], 2).map(|x| 12.0 * x).stored_as(number);
        for activation in Activation::ALL {
            let slopes = x.to_f64().into_iter().map(|x| reference::activation_slope(activation, x));
            let dx = dy.to_f64().iter().zip(slopes).map(|(dy, slope)| dy * slope).collect();
            let op = Op::ActivationBackward(ActivationBackward { activation });
            check(op, &[dy.clone(), x.clone()], &[dx]);
        }
        // Of far below 0, little is left to be exact.
        let other = Data::random(&[elements], 3).stored_as(number);
        let sum = added(&dy.to_f64(), &other.to_f64());
        let inputs = [dy, other];
        check(Op::Add(Add::PLAIN), &inputs, std::slice::from_ref(&sum));
        for activation in Activation::ALL {
            let activated = sum.iter().map(|&sum| reference::activation(activation, sum)).collect();
            check(
                Op::Add(Add { activation: Some(activation), stream: false }),
                &inputs,
                &[activated, sum.clone()],
            );
        }
        let scaled = x.to_f64().iter().map(|x| 1.5 * x).collect();
        check(Op::Scale(Scale { factor: 1.5 }), &[x], &[scaled]);
    }
}

#[test]
fn slopes_of_activations_are_their_slopes() {
    // 0, where the slope of one jumps, is not among them.
    let x: Vec<f64> = (-41..40).map(|i| (f64::from(i) + 0.5) / 7.0).collect();
    for activation in Activation::ALL {
        let slopes: Vec<f64> = x.iter().map(|&x| reference::activation_slope(activation, x)).collect();
        let sum = |x: &[f64]| x.iter().map(|&x| reference::activation(activation, x)).sum();
        assert_slope(&slopes, &x, sum);
    }
}

#[test]
fn gates_match_the_reference() {
    let sizes = [[1, 1], [3, 40], [67, 513], [2, 1030]];
    for ([rows, width], number) in sizes.into_iter().flat_map(|size| NUMBERS.map(|number| (size, number))) {
        let both = Data::random(&[rows, 2 * width], 1).map(|x| 6.0 * x).stored_as(number);
        let dy = Data::random(&[rows, width], 2).stored_as(number);
        for activation in Activation::ALL {
            let y = reference::gated(activation, &both.to_f64(), width);
            check(Op::Gated(Gated { activation }), std::slice::from_ref(&both), &[y]);
            let gradients = reference::gated_backward(activation, &dy.to_f64(), &both.to_f64(), width);
            let op = Op::GatedBackward(GatedBackward { activation });
            check(op, &[dy.clone(), both.clone()], &[gradients]);
        }
    }
}

#[test]
fn the_reference_of_gates_is_differentiated_right() {
    let [both, dy] = [Data::random(&[3, 10], 1), Data::random(&[3, 5], 2)].map(|data| data.to_f64());
    for activation in Activation::ALL {
        let gradients = reference::gated_backward(activation, &dy, &both, 5);
        assert_slope(&gradients, &both, |both| inner_product(&reference::gated(activation, both, 5), &dy));
    }
}

#[test]
fn rotations_match_the_reference() {
    // B, T, heads that are rotated, D, and channels behind them.
    for [batch, sequence, rotated, head, rest] in [[1, 1, 1, 2, 0], [3, 37, 4, 20, 40], [2, 300, 3, 64, 64]] {
        let qkv = Data::random(&[batch, sequence, rotated * head + rest], 1);
        for (number, inverse) in NUMBERS.into_iter().flat_map(|number| [(number, false), (number, true)]) {
            let op = Rotary { rotated, head, frequencies: Frequencies { base: 1e4, scaling: None }, inverse };
            let qkv = qkv.clone().stored_as(number);
            let expected = reference::rotary(&op, &qkv.to_f64(), sequence, rotated * head + rest);
            // Angles of hundreds of radians are products in f32.
            if sequence < 100 {
                check(Op::Rotary(op), std::slice::from_ref(&qkv), &[expected]);
            } else {
                let how = How { threads: 2, level: Level::best(), share: true };
                let found = launch(&Op::Rotary(op), std::slice::from_ref(&qkv), how);
                let error = distance(&found[0], &expected);
                assert!(error < if number == DType::F32 { 2e-5 } else { 3e-3 }, "{number}: {error:e}");
            }
        }
    }
}

/// What is rotated keeps its length, and products of queries and keys depend on how far apart they are.
#[test]
fn rotated_products_depend_on_distances() {
    let frequencies = Frequencies { base: 1e4, scaling: None };
    let op = Op::Rotary(Rotary { rotated: 2, head: 8, frequencies, inverse: false });
    let Data::F32(_, row) = Data::random(&[16], 1) else { unreachable!("random numbers are f32") };
    let qkv = Data::F32(TensorType::f32(&[1, 20, 16]), row.repeat(20));
    let how = How { threads: 1, level: Level::best(), share: false };
    let rotated = launch(&op, &[qkv], how).swap_remove(0);
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
fn rms_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    // Of one channel, the gradient is what cancels.
    let shapes = [[1, 3], [1, 40], [67, 40], [200, 257], [3, 1300]];
    for ([rows, channels], (number, of_x, gradients)) in
        shapes.into_iter().flat_map(|shape| norm_types().into_iter().map(move |types| (shape, types)))
    {
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7).stored_as(of_x);
        let weight = Data::random(&[channels], 2);
        // One of the two.
        let offset = (rows % 2) as f32;
        let whole: Vec<f64> = weight.to_f64().iter().map(|weight| weight + f64::from(offset)).collect();
        let [y, rrms] = reference::rms_norm(&x.to_f64(), &whole, EPSILON.into());
        let op = Op::RmsNorm(RmsNorm { epsilon: EPSILON, offset, stream: false, output: number });
        check(op, &[x.clone(), weight.clone()], &[y, rrms.clone()]);

        let dy = Data::random(&[rows, channels], 4).stored_as(number);
        let rrms = Data::F32(TensorType::f32(&[rows]), rrms.iter().map(|&value| value as f32).collect());
        let slopes = reference::rms_norm_backward(&dy.to_f64(), &x.to_f64(), &whole, EPSILON.into());
        for flags in 0..8 {
            let (accumulate, accumulate_weight, cast) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
            if cast && of_x != DType::F32 {
                continue; // It is of the type of dy already.
            }
            let mut inputs = vec![dy.clone(), x.clone(), weight.clone(), rrms.clone()];
            let mut expected = slopes.to_vec();
            let so_far =
                [Data::random(&[rows, channels], 5).stored_as(of_x), weight.clone().stored_as(gradients)];
            for (index, so_far) in so_far.into_iter().enumerate() {
                if [accumulate, accumulate_weight][index] {
                    expected[index] = added(&expected[index], &so_far.to_f64());
                    inputs.push(so_far);
                }
            }
            expected.extend(cast.then(|| expected[0].clone()));
            let op = RmsNormBackward { offset, gradients, accumulate, accumulate_weight, cast };
            check(Op::RmsNormBackward(op), &inputs, &expected);
        }
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
    let types = NUMBERS.into_iter().flat_map(|number| [(number, DType::F32), (number, number)]);
    for (([batch, sequence, channels], queries, keys), (number, gradients)) in
        shapes.into_iter().flat_map(|shape| types.clone().map(move |types| (shape, types)))
    {
        let (all, normed) = (queries + 2 * keys, queries + keys);
        let (rows, dims) = (batch * sequence, [batch, sequence, all * channels]);
        let heads = NormedHeads { queries, keys };
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
        let op = Op::HeadNorm(HeadNorm { heads, epsilon: EPSILON, offset });
        let inputs = [qkv.clone(), weights[0].clone(), weights[1].clone()];
        check(op, &inputs, &[y, rrms.clone()]);

        let rrms = rrms.iter().map(|&value| value as f32).collect();
        let rrms = Data::F32(TensorType::f32(&[batch, sequence, normed]), rrms);
        for accumulate in [false, true] {
            let mut inputs = [std::slice::from_ref(&dy), &inputs, std::slice::from_ref(&rrms)].concat();
            let mut expected = vec![dqkv.clone()];
            for (so_far, dweight) in weights.iter().zip(&dweights) {
                let so_far = so_far.clone().stored_as(gradients);
                expected.push(if accumulate { added(dweight, &so_far.to_f64()) } else { dweight.clone() });
                inputs.extend(accumulate.then_some(so_far));
            }
            let op = HeadNormBackward { heads, offset, gradients, accumulate };
            check(Op::HeadNormBackward(op), &inputs, &expected);
        }
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
fn embedding_matches_the_reference() {
    const SCALE: f32 = 2.5;
    for [batch, sequence, channels, vocabulary] in [[1, 1, 1, 1], [3, 37, 40, 257], [2, 20, 130, 11]] {
        let tokens = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(_, numbers) = &tokens else { unreachable!("tokens are whole numbers") };
        let (table, positions) =
            (Data::random(&[vocabulary, channels], 1), Data::random(&[sequence, channels], 2));
        let dx = Data::random(&[batch, sequence, channels], 3);
        // Of as many tokens each, and of a different number in each sequence.
        let start = |row: usize| row % sequence / (5 + row / sequence) * (5 + row / sequence);
        let starts = (0..batch * sequence).map(|row| start(row) as i32);
        let starts = Data::I32(TensorType::i32(&[batch, sequence]), starts.collect());
        for ((stored, output), documents) in pairs().flat_map(|pair| [(pair, false), (pair, true)]) {
            let start = |row: usize| if documents { start(row) } else { 0 };
            let inputs = [table.clone(), positions.clone()].map(|table| table.stored_as(stored));
            let [rows, sums] = {
                let [table, positions] = inputs.each_ref().map(Data::to_f64);
                let places = numbers.iter().enumerate().flat_map(|(row, &token)| {
                    let at = [token as usize * channels, (row % sequence - start(row)) * channels];
                    (0..channels).map(move |c| (at[0] + c, at[1] + c))
                });
                let both = places.map(|(a, b)| (f64::from(SCALE) * table[a], positions[b]));
                let both = both.map(|(row, position)| (row, row + position));
                <[Vec<f64>; 2]>::from(both.unzip())
            };
            let [table, positions] = inputs;
            let op = |positions| {
                let documents = documents && positions;
                Op::Embedding(Embedding { scale: SCALE, positions, documents, output })
            };
            check(op(false), &[tokens.clone(), table.clone()], &[rows]);
            let inputs =
                [tokens.clone(), table, positions].into_iter().chain(documents.then(|| starts.clone()));
            check(op(true), &inputs.collect::<Vec<_>>(), &[sums]);
        }
        // Whether there are positions, and what is accumulated.
        let flags =
            [(false, 0), (false, 1), (true, 0), (true, 1), (true, 2), (true, 3), (true, 4), (true, 7)];
        let all = flags.into_iter().flat_map(|flags| pairs().map(move |pair| (flags, pair)));
        for ((has_positions, flags), (of_dx, of_gradients)) in all {
            let (accumulated, documents) = ([flags & 1 > 0, flags & 2 > 0], flags & 4 > 0);
            let start = |row: usize| if documents { start(row) } else { 0 };
            let dx = dx.clone().stored_as(of_dx);
            let so_far = [&table, &positions].map(|table| table.clone().stored_as(of_gradients));
            let mut inputs = vec![tokens.clone(), dx.clone()];
            inputs.extend(documents.then(|| starts.clone()));
            let mut expected = [vec![0.0; vocabulary * channels], vec![0.0; sequence * channels]];
            for (row, &token) in numbers.iter().enumerate() {
                for c in 0..channels {
                    let places =
                        [token as usize * channels + c, (row % sequence - start(row)) * channels + c];
                    let dx = dx.to_f64()[row * channels + c];
                    expected[0][places[0]] += dx * f64::from(SCALE);
                    expected[1][places[1]] += dx;
                }
            }
            for (index, so_far) in so_far.iter().enumerate() {
                if accumulated[index] {
                    inputs.push(so_far.clone());
                    expected[index] = added(&expected[index], &so_far.to_f64());
                }
            }
            let [accumulate_table, accumulate_positions] = accumulated;
            let op = EmbeddingBackward {
                vocabulary,
                scale: SCALE,
                gradients: of_gradients,
                positions: has_positions,
                documents,
                accumulate_table,
                accumulate_positions,
            };
            check(Op::EmbeddingBackward(op), &inputs, &expected[..1 + usize::from(has_positions)]);
        }
    }
}

#[test]
fn layer_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    let shapes = [[1, 1], [1, 40], [67, 40], [200, 257], [3, 1300]];
    let types = norm_types();
    let all = shapes.into_iter().flat_map(|shape| types.iter().map(move |types| (shape, *types)));
    for ([rows, channels], (number, of_x, gradients)) in all {
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7).stored_as(of_x);
        let (weight, bias) = (Data::random(&[channels], 2), Data::random(&[channels], 3));
        let [y, mean, rstd] =
            reference::layer_norm(&x.to_f64(), &weight.to_f64(), &bias.to_f64(), EPSILON.into());
        let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, stream: false, output: number });
        check(op, &[x.clone(), weight.clone(), bias.clone()], &[y, mean.clone(), rstd.clone()]);

        let dy = Data::random(&[rows, channels], 4).stored_as(number);
        let statistics = |values: &[f64]| {
            Data::F32(TensorType::f32(&[rows]), values.iter().map(|&value| value as f32).collect())
        };
        let slopes =
            reference::layer_norm_backward(&dy.to_f64(), &x.to_f64(), &weight.to_f64(), EPSILON.into());
        for flags in 0..8 {
            let (accumulate, accumulate_weights, cast) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
            if cast && of_x != DType::F32 {
                continue; // It is of the type of dy already.
            }
            let mut inputs =
                vec![dy.clone(), x.clone(), weight.clone(), statistics(&mean), statistics(&rstd)];
            let mut expected = slopes.to_vec();
            let so_far = [
                Data::random(&[rows, channels], 5).stored_as(of_x),
                weight.clone().stored_as(gradients),
                bias.clone().stored_as(gradients),
            ];
            for (index, so_far) in so_far.into_iter().enumerate() {
                if [accumulate, accumulate_weights, accumulate_weights][index] {
                    expected[index] = added(&expected[index], &so_far.to_f64());
                    inputs.push(so_far);
                }
            }
            expected.extend(cast.then(|| expected[0].clone()));
            let op = LayerNormBackward { gradients, accumulate, accumulate_weights, cast };
            check(Op::LayerNormBackward(op), &inputs, &expected);
        }
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

#[test]
fn cross_entropy_matches_the_reference() {
    let shapes = [[1, 1, 1], [1, 1, 2], [3, 23, 257], [2, 50, 40], [1, 3, 1030]];
    for ([batch, sequence, vocabulary], number) in
        shapes.into_iter().flat_map(|shape| NUMBERS.map(|number| (shape, number)))
    {
        let logits =
            Data::random(&[batch, sequence, vocabulary], 1).map(|x| 20.0 * x + 5.0).stored_as(number);
        let targets = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(ty, numbers) = &targets else { unreachable!("tokens are whole numbers") };
        let places: Vec<usize> = numbers.iter().map(|&number| number as usize).collect();
        // The rows of each sample count for something else, and some for nothing.
        let weights: Vec<f32> = (0..batch).map(|sample| 0.5 + sample as f32).collect();
        let counts = |row: usize| if row % 3 == 1 { 0.0 } else { f64::from(weights[row / sequence]) };
        let masked = numbers.iter().enumerate().map(|(row, &target)| if row % 3 == 1 { -1 } else { target });
        let masked = Data::I32(*ty, masked.collect());
        for flags in 0..32 {
            let [gradient, accumulate, scaled, is_capped, weighted] =
                [1, 2, 4, 8, 16].map(|flag| flags & flag > 0);
            let cap = is_capped.then_some(10.0);
            let counts: Vec<f64> =
                (0..places.len()).map(|row| if weighted { counts(row) } else { 1.0 }).collect();
            let (loss, dlogits) = reference::cross_entropy(&logits.to_f64(), &places, &counts, cap, 0.25);
            let scale = if scaled { 4096.0 } else { 1.0 };
            let mut inputs = vec![logits.clone(), if weighted { masked.clone() } else { targets.clone() }];
            inputs.extend(weighted.then(|| Data::F32(TensorType::f32(&[batch]), weights.clone())));
            let mut expected = vec![vec![loss + if accumulate { 1.5 } else { 0.0 }]];
            if gradient {
                expected.push(dlogits.iter().map(|dlogit| dlogit * scale).collect());
            }
            inputs.extend(scaled.then(|| Data::scalar(scale as f32)));
            inputs.extend(accumulate.then(|| Data::scalar(1.5)));
            check(
                Op::CrossEntropy(CrossEntropy {
                    weight: 0.25,
                    cap: cap.map(|cap| cap as f32),
                    weighted,
                    gradient,
                    accumulate,
                    scaled,
                    ..CrossEntropy::PLAIN
                }),
                &inputs,
                &expected,
            );
        }
    }
}

/// One after the other, slices make the gradient of the whole to the last bit, and its loss but for the order of sums.
#[test]
fn slices_of_cross_entropy_are_the_whole() {
    let (rows, vocabulary) = (100, 67);
    let mut targets = Data::tokens(&[4, 25], vocabulary);
    if let Data::I32(_, targets) = &mut targets {
        targets.iter_mut().step_by(7).for_each(|target| *target = -1);
    }
    let weights = Data::F32(TensorType::f32(&[4]), vec![0.5, 2.0, 1.0, 0.75]);
    for (level, number) in Level::available().flat_map(|level| NUMBERS.map(|number| (level, number))) {
        let logits = Data::random(&[rows, vocabulary], 1).map(|x| 20.0 * x + 5.0);
        let Data::F32(_, values) = &logits else { unreachable!("numbers in f32") };
        let run = |op: CrossEntropy, so_far: Option<f32>| {
            let range = op.rows.range(rows);
            let part = values[range.start * vocabulary..range.end * vocabulary].to_vec();
            let part = Data::F32(TensorType::f32(&[range.len(), vocabulary]), part).stored_as(number);
            let op = Op::CrossEntropy(CrossEntropy { accumulate: so_far.is_some(), ..op });
            let mut inputs = vec![part, targets.clone(), weights.clone()];
            inputs.extend(so_far.map(Data::scalar));
            launch(&op, &inputs, How { threads: 2, level, share: true })
        };
        let whole = CrossEntropy { weight: 0.25, weighted: true, gradient: true, ..CrossEntropy::PLAIN };
        let expected = run(whole, None);
        // The last slice is smaller than the others, or all are one row.
        for of in [1, 3, 7, 100] {
            let (mut loss, mut gradient) = (None, Vec::new());
            for slice in Slice::all(of) {
                let outputs = run(CrossEntropy { rows: slice, ..whole }, loss);
                loss = Some(outputs[0][0]);
                gradient.extend_from_slice(&outputs[1]);
            }
            let place = format!("{number} at {level:?} in {of} slices");
            assert!(gradient == expected[1], "{place}: another gradient");
            let (loss, whole) = (loss.expect("there is a slice"), expected[0][0]);
            assert!(of > 1 || loss == whole, "{place}: other bits");
            assert!((loss - whole).abs() < 1e-6 * whole, "{place}: {loss} for {whole}");
        }
    }
}

#[test]
fn the_reference_of_cross_entropy_is_differentiated_right() {
    let logits = Data::random(&[3, 9], 1).map(|x| 4.0 * x).to_f64();
    for cap in [None, Some(3.0)] {
        let loss = |logits: &[f64]| reference::cross_entropy(logits, &[4, 0, 8], &[1.0, 0.0, 2.0], cap, 0.5);
        assert_slope(&loss(&logits).1, &logits, |logits| loss(logits).0);
    }
}

/// Two members that decay and one that does not, padding between them.
fn members(len: usize) -> Members {
    let member = |offset, len, decay| Member { offset, shape: Shape::new(&[len]), decay, site: 3 };
    [member(0, 7, true), member(16, len - 40, false), member(len - 16, 9, true)].into()
}

#[test]
fn the_global_norm_matches_the_reference() {
    let lens = [64, 70_000, 200_001];
    let op = GlobalNorm { buckets: lens.map(members).to_vec(), scaled: false };
    let inputs: Vec<Data> = lens.iter().map(|&len| Data::random(&[len], len as u64)).collect();
    let mut squares = 0.0;
    for (bucket, members) in inputs.iter().zip(&op.buckets) {
        let values = bucket.to_f64();
        for Member { offset, shape, .. } in members.iter() {
            squares += values[*offset..offset + shape.elements()].iter().map(|x| x * x).sum::<f64>();
        }
    }
    check(Op::GlobalNorm(op.clone()), &inputs, &[vec![squares.sqrt()]]);
    for number in NUMBERS {
        let inputs: Vec<Data> = inputs.iter().map(|bucket| bucket.clone().stored_as(number)).collect();
        let buckets = op.buckets.iter().zip(&inputs).flat_map(|(members, bucket)| {
            let values = bucket.to_f64();
            let parts = members.iter().map(|member| member.offset..member.offset + member.elements());
            parts.flat_map(|part| values[part].to_vec()).collect::<Vec<_>>()
        });
        let norm = buckets.map(|value| value * value).sum::<f64>().sqrt();
        check(Op::GlobalNorm(op.clone()), &inputs, &[vec![norm]]);
    }
    let inputs: Vec<Data> = inputs.into_iter().chain([Data::scalar(1024.0)]).collect();
    check(Op::GlobalNorm(GlobalNorm { scaled: true, ..op }), &inputs, &[vec![squares.sqrt() / 1024.0]]);
}

/// An update of a bucket of this many elements, with the loss scale that its gradients are multiplied by.
fn update(len: usize, clip_norm: Option<f32>, norm: f32, loss_scale: Option<f32>) -> (AdamW, Vec<Data>) {
    let gradients = GradientTerms { members: members(len), clip_norm, scaled: loss_scale.is_some() };
    let op = AdamW {
        gradients,
        format: UpdateFormat::default(),
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.1,
    };
    let numbers =
        AdamWNumbers { learning_rate: 0.01, bias_correction1: 0.271, bias_correction2: 0.0297, step: 5.0 };
    let mut inputs: Vec<Data> = (0..4).map(|seed| Data::random(&[len], seed)).collect();
    inputs[3] = inputs[3].clone().map(f32::abs);
    inputs.push(Data::F32(TensorType::f32(&[4]), numbers.to_array().to_vec()));
    inputs.extend((clip_norm.is_some() || loss_scale.is_some()).then(|| Data::scalar(norm)));
    inputs.extend(loss_scale.map(Data::scalar));
    (op, inputs)
}

#[test]
fn adamw_matches_the_reference() {
    let clips = [(None, 1.0), (Some(9.0), 1.0), (Some(0.5), 0.5 / (2.0 + 1e-6))];
    let scales = [None, Some(3.0)];
    // At the first step, all of the moments is the small share of the gradient that is added to them.
    let cases = [1.0, 0.0].into_iter().flat_map(|moments| clips.map(|clip| (moments, clip)));
    for ((moments, (clip_norm, clip)), loss_scale) in cases.flat_map(|case| scales.map(|scale| (case, scale)))
    {
        let (op, mut inputs) = update(50_000, clip_norm, 2.0, loss_scale);
        for moment in &mut inputs[2..4] {
            *moment = moment.clone().map(|moment| moment * moments);
        }
        let [mut parameters, gradients, mut first, mut second] =
            [0, 1, 2, 3].map(|index| inputs[index].to_f64());
        for member in op.gradients.members.iter() {
            for i in member.offset..member.offset + member.elements() {
                let gradient = gradients[i] * clip / f64::from(loss_scale.unwrap_or(1.0));
                if member.decay {
                    parameters[i] -= 0.01 * 0.1 * parameters[i];
                }
                first[i] = 0.9 * first[i] + 0.1 * gradient;
                second[i] = 0.999 * second[i] + 0.001 * gradient * gradient;
                let denominator = second[i].sqrt() / 0.0297f64.sqrt() + 1e-8;
                parameters[i] -= 0.01 / 0.271 * first[i] / denominator;
            }
        }
        check(Op::AdamW(op), &inputs, &[parameters, first, second]);
    }
}

/// The same for an update without momentum, and for those with one.
fn descents(len: usize, clip_norm: Option<f32>, norm: f32, loss_scale: Option<f32>) -> Vec<(Sgd, Vec<Data>)> {
    let (AdamW { gradients, .. }, inputs) = update(len, clip_norm, norm, loss_scale);
    let descent = |(momentum, nesterov, weight_decay)| {
        let op = Sgd {
            gradients: gradients.clone(),
            format: UpdateFormat::default(),
            momentum,
            nesterov,
            weight_decay,
        };
        let states = op.states().len();
        let rate = Data::F32(TensorType::f32(&[2]), vec![0.01, 5.0]);
        let inputs = [&inputs[..2 + states], &[rate], &inputs[5..]].concat();
        (op, inputs)
    };
    let kinds = [(0.0, false, 0.0), (0.0, false, 0.1), (0.9, false, 0.1), (0.9, true, 0.1), (0.9, true, 0.0)];
    kinds.map(descent).to_vec()
}

#[test]
fn sgd_matches_the_reference() {
    let clips = [(None, 1.0), (Some(9.0), 1.0), (Some(0.5), 0.5 / (2.0 + 1e-6))];
    for ((clip_norm, clip), loss_scale) in
        clips.into_iter().flat_map(|clip| [None, Some(3.0)].map(|s| (clip, s)))
    {
        for (op, inputs) in descents(50_000, clip_norm, 2.0, loss_scale) {
            let [mut parameters, gradients] = [0, 1].map(|index| inputs[index].to_f64());
            let mut velocities = op.states().first().map(|_| inputs[2].to_f64());
            let [momentum, weight_decay] = [op.momentum, op.weight_decay].map(f64::from);
            for member in op.gradients.members.iter() {
                let decay = if member.decay { weight_decay } else { 0.0 };
                for i in member.offset..member.offset + member.elements() {
                    let mut step = gradients[i] * clip / f64::from(loss_scale.unwrap_or(1.0));
                    step += decay * parameters[i];
                    if let Some(velocities) = &mut velocities {
                        velocities[i] = momentum * velocities[i] + step;
                        step = if op.nesterov { step + momentum * velocities[i] } else { velocities[i] };
                    }
                    parameters[i] -= 0.01 * step;
                }
            }
            let expected: Vec<Vec<f64>> = [parameters].into_iter().chain(velocities).collect();
            check(Op::Sgd(op), &inputs, &expected);
        }
    }
}

/// Every kind of update.
pub(super) fn updates(clip_norm: Option<f32>, norm: f32, loss_scale: Option<f32>) -> Vec<(Op, Vec<Data>)> {
    let (adamw, inputs) = update(100, clip_norm, norm, loss_scale);
    let descents = descents(100, clip_norm, norm, loss_scale).into_iter();
    [(Op::AdamW(adamw), inputs)]
        .into_iter()
        .chain(descents.map(|(op, inputs)| (Op::Sgd(op), inputs)))
        .collect()
}

#[test]
fn a_step_whose_norm_is_not_finite_is_skipped_if_gradients_are_scaled() {
    for (norm, clip_norm) in [(f32::INFINITY, None), (f32::NAN, None), (f32::NAN, Some(1.0))] {
        for (op, inputs) in updates(clip_norm, norm, Some(65536.0)) {
            for level in Level::available() {
                let outputs = launch(&op, &inputs, How { threads: 2, level, share: false });
                for (output, input) in outputs.iter().zip([0, 2, 3]) {
                    let Data::F32(_, unchanged) = &inputs[input] else { unreachable!("numbers in f32") };
                    assert_eq!(output, unchanged, "{} at {level:?}, norm {norm}, {clip_norm:?}", op.name());
                }
            }
        }
    }
}

#[test]
fn a_norm_that_is_not_a_number_shows_if_gradients_are_not_scaled() {
    let how = How { threads: 1, level: Level::best(), share: false };
    for (op, inputs) in updates(Some(1.0), f32::NAN, None) {
        assert!(launch(&op, &inputs, how)[0][0].is_nan(), "{}", op.name());
    }
}

#[test]
fn the_loss_scale_follows_the_norm() {
    let op = LossScale { backoff: 0.5, growth: 2.0, interval: 3.0 };
    let cases = [
        ("good", 1.0, [0.0, 5.0], 1024.0, [1.0, 5.0]),
        ("at the interval", 1.0, [2.0, 5.0], 2048.0, [0.0, 5.0]),
        ("infinite", f32::INFINITY, [2.0, 5.0], 512.0, [0.0, 6.0]),
        ("not a number", f32::NAN, [1.0, 0.0], 512.0, [0.0, 1.0]),
    ];
    for (name, norm, counts, scale, next) in cases {
        let counts = Data::F32(TensorType::f32(&[2]), counts.to_vec());
        let how = How { threads: 2, level: Level::best(), share: false };
        let inputs = [Data::scalar(1024.0), counts, Data::scalar(norm)];
        assert_eq!(launch(&Op::LossScale(op), &inputs, how), [vec![scale], next.to_vec()], "{name}");
    }
}

#[test]
fn casts_match_the_reference() {
    for (from, to) in NUMBERS.into_iter().flat_map(|from| NUMBERS.map(|to| (from, to))) {
        let inputs = [1, 40, 0, 40_003, 700]
            .map(|len| Data::random(&[len], 1 + len as u64).map(|x| 100.0 * x * x * x).stored_as(from));
        let expected = inputs.each_ref().map(Data::to_f64);
        check(Op::Cast(Cast { to }), &inputs, &expected);
    }
}

#[test]
fn every_number_of_16_bits_survives_a_cast_to_f32_and_back() {
    let numbers = [DType::BF16, DType::F16];
    for (level, number) in Level::available().flat_map(|level| numbers.map(|number| (level, number))) {
        let cast = |to, input: &Data| {
            let how = How { threads: 3, level, share: false };
            launch(&Op::Cast(Cast { to }), std::slice::from_ref(input), how).swap_remove(0)
        };
        let patterns = Data::Half(TensorType::new(number, &[1 << 16]), (0..=u16::MAX).collect());
        let wide = cast(DType::F32, &patterns);
        let back = cast(number, &Data::F32(TensorType::f32(&[1 << 16]), wide.clone()));
        for ((wide, back), expected) in wide.iter().zip(&back).zip(patterns.to_f64()) {
            let same = wide.to_bits() == back.to_bits() && f64::from(*wide) == expected;
            let none = wide.is_nan() && back.is_nan() && expected.is_nan();
            assert!(same || none, "{level:?} {number}: {expected} became {wide}, then {back}");
        }
    }
}

#[test]
fn fill_fills() {
    let output = TensorType::f32(&[3, 7001]);
    for dtype in NUMBERS {
        let output = TensorType { dtype, ..output };
        check(Op::Fill(Fill { output, value: 1.5 }), &[], &[vec![1.5; 3 * 7001]]);
    }
}

#[test]
fn normal_numbers_are_normal_and_depend_on_seed_and_site() {
    let make = |elements, seed, site, threads| {
        let output = TensorType::f32(&[elements]);
        let op = Op::Normal(Normal { output, deviation: Deviation::Fixed(0.5), seed, site });
        launch(&op, &[], How { threads, level: Level::best(), share: false }).swap_remove(0)
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
