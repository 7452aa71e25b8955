//! All operations but products and attention.

use crate::device::cpu::kernels::simd::Level;
use crate::ops::{
    AdamW, Add, Control, CrossEntropy, DType, Embedding, EmbeddingBackward, Fill, GeluBackward, GlobalNorm,
    LayerNorm, LayerNormBackward, Normal, Op, Segment, Segments, TensorType,
};

use super::harness::{Data, How, added, assert_slope, check, inner_product, launch};
use super::reference;

#[test]
fn elementwise_operations_match_the_reference() {
    for elements in [1, 40, 40_003] {
        let (a, b) = (Data::random(&[elements], 1), Data::random(&[elements], 2).map(|x| 12.0 * x));
        check(Op::Add(Add), &[a.clone(), b.clone()], &[added(&a.to_f64(), &b.to_f64())]);
        let slopes = b.to_f64().into_iter().map(reference::gelu_slope);
        let dx = a.to_f64().iter().zip(slopes).map(|(a, slope)| a * slope).collect();
        check(Op::GeluBackward(GeluBackward), &[a, b], &[dx]);
    }
}

#[test]
fn the_slope_of_gelu_is_its_slope() {
    let x: Vec<f64> = (-40..40).map(|i| f64::from(i) / 7.0).collect();
    let slopes: Vec<f64> = x.iter().map(|&x| reference::gelu_slope(x)).collect();
    assert_slope(&slopes, &x, |x| x.iter().map(|&x| reference::gelu(x)).sum());
}

#[test]
fn embedding_matches_the_reference() {
    for [batch, sequence, channels, vocabulary] in [[1, 1, 1, 1], [3, 37, 40, 257], [2, 20, 130, 11]] {
        let tokens = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(_, numbers) = &tokens else { unreachable!("tokens are whole numbers") };
        let (table, positions) =
            (Data::random(&[vocabulary, channels], 1), Data::random(&[sequence, channels], 2));
        let dx = Data::random(&[batch, sequence, channels], 3);
        let mut x = Vec::new();
        let mut gradients = [vec![0.0; vocabulary * channels], vec![0.0; sequence * channels]];
        for (row, &token) in numbers.iter().enumerate() {
            for c in 0..channels {
                let places = [token as usize * channels + c, row % sequence * channels + c];
                x.push(table.to_f64()[places[0]] + positions.to_f64()[places[1]]);
                let dx = dx.to_f64()[row * channels + c];
                gradients.iter_mut().zip(places).for_each(|(gradient, place)| gradient[place] += dx);
            }
        }
        check(Op::Embedding(Embedding), &[tokens.clone(), table.clone(), positions.clone()], &[x]);
        for flags in 0..4 {
            let accumulated = [flags & 1 > 0, flags & 2 > 0];
            let mut inputs = vec![tokens.clone(), dx.clone()];
            let mut expected = gradients.to_vec();
            for (index, so_far) in [&table, &positions].into_iter().enumerate() {
                if accumulated[index] {
                    inputs.push(so_far.clone());
                    expected[index] = added(&expected[index], &so_far.to_f64());
                }
            }
            let [accumulate_table, accumulate_positions] = accumulated;
            let op = EmbeddingBackward { vocabulary, accumulate_table, accumulate_positions };
            check(Op::EmbeddingBackward(op), &inputs, &expected);
        }
    }
}

#[test]
fn layer_norm_matches_the_reference() {
    const EPSILON: f32 = 1e-5;
    for [rows, channels] in [[1, 1], [1, 40], [67, 40], [200, 257]] {
        let x = Data::random(&[rows, channels], 1).map(|x| 2.0 * x + 0.7);
        let (weight, bias) = (Data::random(&[channels], 2), Data::random(&[channels], 3));
        let [y, mean, rstd] =
            reference::layer_norm(&x.to_f64(), &weight.to_f64(), &bias.to_f64(), EPSILON.into());
        let op = Op::LayerNorm(LayerNorm { epsilon: EPSILON, output: DType::F32 });
        check(op, &[x.clone(), weight.clone(), bias.clone()], &[y, mean.clone(), rstd.clone()]);

        let dy = Data::random(&[rows, channels], 4);
        let statistics = |values: &[f64]| {
            Data::F32(TensorType::f32(&[rows]), values.iter().map(|&value| value as f32).collect())
        };
        let gradients =
            reference::layer_norm_backward(&dy.to_f64(), &x.to_f64(), &weight.to_f64(), EPSILON.into());
        for flags in 0..4 {
            let (accumulate, accumulate_weights) = (flags & 1 > 0, flags & 2 > 0);
            let mut inputs =
                vec![dy.clone(), x.clone(), weight.clone(), statistics(&mean), statistics(&rstd)];
            let mut expected = gradients.clone();
            let so_far = [Data::random(&[rows, channels], 5), weight.clone(), bias.clone()];
            for (index, so_far) in so_far.into_iter().enumerate() {
                if [accumulate, accumulate_weights, accumulate_weights][index] {
                    expected[index] = added(&expected[index], &so_far.to_f64());
                    inputs.push(so_far);
                }
            }
            let op = LayerNormBackward { accumulate, accumulate_weights };
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
    for [batch, sequence, vocabulary] in [[1, 1, 1], [1, 1, 2], [3, 23, 257], [2, 50, 40]] {
        let logits = Data::random(&[batch, sequence, vocabulary], 1).map(|x| 20.0 * x + 5.0);
        let targets = Data::tokens(&[batch, sequence], vocabulary);
        let Data::I32(_, numbers) = &targets else { unreachable!("tokens are whole numbers") };
        let numbers: Vec<usize> = numbers.iter().map(|&number| number as usize).collect();
        let (loss, dlogits) = reference::cross_entropy(&logits.to_f64(), &numbers, 0.25);
        for flags in 0..4 {
            let (gradient, accumulate) = (flags & 1 > 0, flags & 2 > 0);
            let mut inputs = vec![logits.clone(), targets.clone()];
            let mut expected = vec![vec![loss + if accumulate { 1.5 } else { 0.0 }]];
            if gradient {
                expected.push(dlogits.clone());
            }
            if accumulate {
                inputs.push(Data::F32(TensorType::f32(&[1]), vec![1.5]));
            }
            check(
                Op::CrossEntropy(CrossEntropy { weight: 0.25, gradient, accumulate, scaled: false }),
                &inputs,
                &expected,
            );
        }
    }
}

#[test]
fn the_reference_of_cross_entropy_is_differentiated_right() {
    let logits = Data::random(&[3, 9], 1).map(|x| 4.0 * x).to_f64();
    let loss = |logits: &[f64]| reference::cross_entropy(logits, &[4, 0, 8], 0.5);
    assert_slope(&loss(&logits).1, &logits, |logits| loss(logits).0);
}

/// Two segments that decay and one that does not, padding between them.
fn segments(len: usize) -> Segments {
    let segment = |offset, len, decay| Segment { offset, len, decay };
    [segment(0, 7, true), segment(16, len - 40, false), segment(len - 16, 9, true)].into()
}

#[test]
fn the_global_norm_matches_the_reference() {
    let lens = [64, 70_000, 200_001];
    let op = GlobalNorm { buckets: lens.map(segments).to_vec(), scaled: false };
    let inputs: Vec<Data> = lens.iter().map(|&len| Data::random(&[len], len as u64)).collect();
    let mut squares = 0.0;
    for (bucket, segments) in inputs.iter().zip(&op.buckets) {
        let values = bucket.to_f64();
        for segment in segments.iter() {
            squares +=
                values[segment.offset..segment.offset + segment.len].iter().map(|x| x * x).sum::<f64>();
        }
    }
    check(Op::GlobalNorm(op), &inputs, &[vec![squares.sqrt()]]);
}

#[test]
fn adamw_matches_the_reference() {
    let len = 50_000;
    let control = Control { learning_rate: 0.01, bias_correction1: 0.271, bias_correction2: 0.0297 };
    let clips = [(None, 1.0), (Some(9.0), 1.0), (Some(0.5), 0.5 / (2.0 + 1e-6))];
    // At the first step, all of the moments is the small share of the gradient that is added to them.
    for (scale, (clip_norm, clip)) in [1.0, 0.0].into_iter().flat_map(|scale| clips.map(|clip| (scale, clip)))
    {
        let op = AdamW {
            segments: segments(len),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm,
            scaled: false,
        };
        let mut inputs: Vec<Data> = (0..4).map(|seed| Data::random(&[len], seed)).collect();
        inputs[2] = inputs[2].clone().map(|moment| moment * scale);
        inputs[3] = inputs[3].clone().map(|moment| moment.abs() * scale);
        inputs.push(Data::F32(TensorType::f32(&[4]), control.to_array().to_vec()));
        inputs.extend(clip_norm.map(|_| Data::F32(TensorType::f32(&[1]), vec![2.0])));
        let [mut parameters, gradients, mut first, mut second] =
            [0, 1, 2, 3].map(|index| inputs[index].to_f64());
        for segment in op.segments.iter() {
            for i in segment.offset..segment.offset + segment.len {
                let gradient = gradients[i] * clip;
                if segment.decay {
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

#[test]
fn fill_fills() {
    let output = TensorType::f32(&[3, 7001]);
    check(Op::Fill(Fill { output, value: 1.5 }), &[], &[vec![1.5; 3 * 7001]]);
}

#[test]
fn normal_numbers_are_normal_and_depend_on_seed_and_site() {
    let make = |elements, seed, site, threads| {
        let output = TensorType::f32(&[elements]);
        let op = Op::Normal(Normal { output, deviation: 0.5, seed, site });
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
