//! Batch norm and group norm.

use ops::{BatchNorm, BatchNormBackward, BatchNormMode, DType, GroupNorm, GroupNormBackward, Op, TensorType};

use super::harness::{
    Data, FLOATS, LaunchOptions, added, assert_gradient, cases, check, check_variants, inner_product, launch,
};
use super::reference;
use crate::cpu::kernels::simd::Level;

const EPSILON: f32 = 1e-5;

/// Each channel of `rows` rows as a group.
fn channels_as_groups(rows: usize, channels: usize) -> Vec<Vec<usize>> {
    (0..channels).map(|channel| (0..rows).map(|row| row * channels + channel).collect()).collect()
}

/// The elements of each sample's groups of channels, where each sample has `elements`.
fn groups_of_samples(samples: usize, elements: usize, channels: usize, groups: usize) -> Vec<Vec<usize>> {
    let each = channels / groups;
    let group = |index: usize| {
        let (sample, group) = (index / groups, index % groups);
        let of_sample = sample * elements..(sample + 1) * elements;
        of_sample.filter(|element| element % channels / each == group).collect()
    };
    (0..samples * groups).map(group).collect()
}

/// Types of x and of the parameters' gradients.
fn types() -> Vec<(DType, DType)> {
    FLOATS.into_iter().flat_map(|x| FLOATS.map(|gradients| (x, gradients))).collect()
}

fn statistics(dims: &[usize], values: &[f64]) -> Data {
    Data::F32(TensorType::f32(dims), values.iter().map(|&value| value as f32).collect())
}

/// The inputs and expected outputs of a backward pass with previous gradients, where `flags` request them.
fn with_previous(
    mut inputs: Vec<Data>,
    mut expected: Vec<Vec<f64>>,
    previous: [Data; 3],
    flags: [bool; 3],
) -> (Vec<Data>, Vec<Vec<f64>>) {
    for ((expected, previous), flag) in expected.iter_mut().zip(previous).zip(flags) {
        if flag {
            *expected = added(expected, &previous.to_f64());
            inputs.push(previous);
        }
    }
    (inputs, expected)
}

#[test]
fn batch_norm_matches_the_reference() {
    const MOMENTUM: f32 = 0.25;
    // Few rows (the gradient of two is zero up to cancellation), ends within a block of rows, several partial results of several blocks, more channels than a buffer.
    let shapes = [[4, 1, 1, 3], [1, 5, 8, 1], [3, 7, 10, 17], [2, 100, 101, 3], [2, 5, 7, 530]];
    let types = types();
    for ([shape, types_index, flags @ ..], variants) in cases(3, [shapes.len(), types.len(), 2, 2]) {
        let (shape, (dtype, gradients)) = (shapes[shape], types[types_index]);
        let [accumulate, accumulate_weights] = flags.map(|flag| flag > 0);
        let channels = shape[3];
        let rows = shape.iter().product::<usize>() / channels;
        let groups = channels_as_groups(rows, channels);
        let x = Data::random(&shape, 1).map(|x| 2.0 * x + 0.7).stored_as(dtype);
        let affine = [2, 3].map(|seed| Data::random(&[channels], seed));
        let [weight, bias] = affine.clone().map(|values| values.to_f64());
        let running = [Data::random(&[channels], 4), Data::random(&[channels], 5).map(|x| x + 1.5)];
        let values = x.to_f64();
        let [y, mean, rstd] = reference::grouped_norm(&values, &groups, (&weight, &bias), EPSILON.into());
        let [mut updated_mean, mut updated_variance] = running.clone().map(|values| values.to_f64());
        let (unbiased, momentum) = (rows as f64 / (rows - 1) as f64, f64::from(MOMENTUM));
        for channel in 0..channels {
            let variance = (rstd[channel].powi(-2) - f64::from(EPSILON)) * unbiased;
            updated_mean[channel] += momentum * (mean[channel] - updated_mean[channel]);
            updated_variance[channel] += momentum * (variance - updated_variance[channel]);
        }
        let op = |mode| Op::BatchNorm(BatchNorm { epsilon: EPSILON, momentum: MOMENTUM, mode });
        let inputs: Vec<Data> =
            [x.clone()].into_iter().chain(affine.clone()).chain(running.clone()).collect();
        let expected = [y, mean, rstd, updated_mean, updated_variance];
        check_variants(variants, op(BatchNormMode::Training), &inputs, &expected);
        check_variants(variants, op(BatchNormMode::Recomputation), &inputs[..3], &expected[..3]);
        let [running_mean, running_variance] = running.map(|values| values.to_f64());
        let normalized = values.iter().enumerate().map(|(element, x)| {
            let channel = element % channels;
            let rstd = 1.0 / (running_variance[channel] + f64::from(EPSILON)).sqrt();
            (x - running_mean[channel]) * rstd * weight[channel] + bias[channel]
        });
        check_variants(variants, op(BatchNormMode::Evaluation), &inputs, &[normalized.collect()]);

        let dy = Data::random(&shape, 6).stored_as(dtype);
        let slopes =
            reference::grouped_norm_backward(&dy.to_f64(), &values, &groups, &weight, EPSILON.into());
        let previous = [
            Data::random(&shape, 7).stored_as(dtype),
            affine[0].clone().stored_as(gradients),
            affine[1].clone().stored_as(gradients),
        ];
        let [weight, _] = affine;
        let [_, mean, rstd, ..] = expected;
        let (inputs, expected) = with_previous(
            vec![dy, x, weight, statistics(&[channels], &mean), statistics(&[channels], &rstd)],
            slopes.to_vec(),
            previous,
            [accumulate, accumulate_weights, accumulate_weights],
        );
        let op = BatchNormBackward { gradients, accumulate, accumulate_weights };
        check_variants(variants, Op::BatchNormBackward(op), &inputs, &expected);
    }
}

#[test]
fn recomputed_batch_norm_has_equal_bits() {
    let training = BatchNorm { epsilon: EPSILON, momentum: 0.1, mode: BatchNormMode::Training };
    let training = Op::BatchNorm(training);
    let recomputed = training.recomputed().expect("a form without side effects");
    let inputs = [[300, 7].as_slice(), &[7], &[7], &[7], &[7]];
    let inputs: Vec<Data> = inputs.iter().zip(1..).map(|(dims, seed)| Data::random(dims, seed)).collect();
    for level in Level::available() {
        let options = LaunchOptions { threads: 2, level, alias: false };
        assert_eq!(
            launch(&recomputed, &inputs[..3], options),
            launch(&training, &inputs, options)[..3],
            "{level:?}"
        );
    }
}

/// Sums of squares in f32 would lose the variance.
#[test]
fn batch_norm_is_accurate_if_the_mean_is_large() {
    let (rows, channels) = (5000, 5);
    let x = Data::random(&[rows, channels], 1).map(|x| 1000.0 + x);
    let affine = [2, 3].map(|seed| Data::random(&[channels], seed));
    let [weight, bias] = affine.clone().map(|values| values.to_f64());
    let groups = channels_as_groups(rows, channels);
    let expected = reference::grouped_norm(&x.to_f64(), &groups, (&weight, &bias), EPSILON.into());
    let mode = BatchNormMode::Recomputation;
    let op = Op::BatchNorm(BatchNorm { epsilon: EPSILON, momentum: 0.1, mode });
    let inputs: Vec<Data> = [x].into_iter().chain(affine).collect();
    check(op, &inputs, &expected);
}

#[test]
fn group_norm_matches_the_reference() {
    // One pixel, one channel per group, one group; ends within a block of rows; more samples than partial sums and
    // more channels than a buffer.
    let shapes = [
        (vec![3, 12], 2),
        (vec![2, 5, 8, 3], 3),
        (vec![1, 9, 11, 4], 1),
        (vec![70, 2, 3, 6], 2),
        (vec![2, 2, 3, 1060], 4),
    ];
    let types = types();
    for ([shape, types_index, flags @ ..], variants) in cases(3, [shapes.len(), types.len(), 2, 2]) {
        let ((shape, group_count), (dtype, gradients)) = (shapes[shape].clone(), types[types_index]);
        let [accumulate, accumulate_weights] = flags.map(|flag| flag > 0);
        let (samples, channels) = (shape[0], *shape.last().expect("channels"));
        let elements = shape[1..].iter().product();
        let groups = groups_of_samples(samples, elements, channels, group_count);
        let x = Data::random(&shape, 1).map(|x| 2.0 * x + 0.7).stored_as(dtype);
        let affine = [2, 3].map(|seed| Data::random(&[channels], seed));
        let [weight, bias] = affine.clone().map(|values| values.to_f64());
        let values = x.to_f64();
        let expected = reference::grouped_norm(&values, &groups, (&weight, &bias), EPSILON.into());
        let op = Op::GroupNorm(GroupNorm { groups: group_count, epsilon: EPSILON });
        let inputs: Vec<Data> = [x.clone()].into_iter().chain(affine.clone()).collect();
        check_variants(variants, op, &inputs, &expected);

        let dy = Data::random(&shape, 6).stored_as(dtype);
        let slopes =
            reference::grouped_norm_backward(&dy.to_f64(), &values, &groups, &weight, EPSILON.into());
        let previous = [
            Data::random(&shape, 7).stored_as(dtype),
            affine[0].clone().stored_as(gradients),
            affine[1].clone().stored_as(gradients),
        ];
        let ([weight, _], [_, mean, rstd]) = (affine, expected);
        let [mean, rstd] = [mean, rstd].map(|values| statistics(&[samples, group_count], &values));
        let (inputs, expected) = with_previous(
            vec![dy, x, weight, mean, rstd],
            slopes.to_vec(),
            previous,
            [accumulate, accumulate_weights, accumulate_weights],
        );
        let op = GroupNormBackward { gradients, accumulate, accumulate_weights };
        check_variants(variants, Op::GroupNormBackward(op), &inputs, &expected);
    }
}

/// Sums of squares in f32 would lose the variance.
#[test]
fn group_norm_is_accurate_if_the_mean_is_large() {
    let x = Data::random(&[2, 1000, 6], 1).map(|x| 1000.0 + x);
    let affine = [2, 3].map(|seed| Data::random(&[6], seed));
    let [weight, bias] = affine.clone().map(|values| values.to_f64());
    let groups = groups_of_samples(2, 6000, 6, 3);
    let expected = reference::grouped_norm(&x.to_f64(), &groups, (&weight, &bias), EPSILON.into());
    let op = Op::GroupNorm(GroupNorm { groups: 3, epsilon: EPSILON });
    let inputs: Vec<Data> = [x].into_iter().chain(affine).collect();
    check(op, &inputs, &expected);
}

#[test]
fn grouped_norm_reference_matches_numeric_gradient() {
    let [x, dy] = [1, 2].map(|seed| Data::random(&[6, 4], seed).to_f64());
    let [weight, bias] = [3, 4].map(|seed| Data::random(&[4], seed).to_f64());
    for groups in [channels_as_groups(6, 4), groups_of_samples(2, 12, 4, 2)] {
        let [dx, dweight, dbias] = reference::grouped_norm_backward(&dy, &x, &groups, &weight, 1e-5);
        let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
            inner_product(&reference::grouped_norm(x, &groups, (weight, bias), 1e-5)[0], &dy)
        };
        assert_gradient(&dx, &x, |x| loss(x, &weight, &bias));
        assert_gradient(&dweight, &weight, |weight| loss(&x, weight, &bias));
        assert_gradient(&dbias, &bias, |bias| loss(&x, &weight, bias));
    }
}
