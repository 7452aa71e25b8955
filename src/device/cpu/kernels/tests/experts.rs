//! Mixtures of experts: routing, sorted rows and linear layers of experts.

use ops::{
    Combine, CombineBackward, DType, Dispatch, DispatchBackward, ExpertLinear, ExpertLinearInputGradient,
    ExpertLinearWeightGradient, Op, Route, RouteBackward, TensorType,
};

use super::harness::{
    Data, FLOATS, LaunchOptions, added, assert_gradient, cases, check_variants, inner_product, launch,
};
use super::reference::{matmul, transposed};
use crate::cpu::kernels::simd::Level;

/// Rows, experts, experts per row, and channels.
const SIZES: [[usize; 4]; 4] = [[1, 2, 1, 1], [5, 3, 3, 17], [40, 7, 2, 33], [67, 16, 4, 1030]];

fn softmax(row: &[f64]) -> Vec<f64> {
    let exponentials: Vec<f64> = row.iter().map(|logit| logit.exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|value| value / sum).collect()
}

/// The chosen experts of each row, most probable first.
fn chosen(logits: &[f64], experts: usize, per_row: usize) -> Vec<Vec<usize>> {
    let of_row = |row: &[f64]| {
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        order.truncate(per_row);
        order
    };
    logits.chunks(experts).map(of_row).collect()
}

/// The weights of chosen experts.
fn weights(logits: &[f64], chosen: &[Vec<usize>], normalize: bool) -> Vec<f64> {
    let of_row = |(row, chosen): (&[f64], &Vec<usize>)| {
        let probabilities = softmax(row);
        let weights: Vec<f64> = chosen.iter().map(|&expert| probabilities[expert]).collect();
        let sum = if normalize { weights.iter().sum() } else { 1.0 };
        weights.into_iter().map(|weight| weight / sum).collect::<Vec<_>>()
    };
    let experts = logits.len() / chosen.len();
    logits.chunks(experts).zip(chosen).flat_map(of_row).collect()
}

/// A routing of rows to experts.
struct Routing {
    rows: usize,
    per_row: usize,
    /// By pair, by place, by expert.
    places: Vec<i32>,
    order: Vec<i32>,
    ends: Vec<i32>,
}

impl Routing {
    fn of(chosen: &[Vec<usize>], experts: usize) -> Routing {
        let flat = chosen.concat();
        let mut order: Vec<usize> = (0..flat.len()).collect();
        order.sort_by_key(|&pair| flat[pair]);
        let place = |pair: usize| order.iter().position(|&other| other == pair).unwrap() as i32;
        let end = |expert: usize| flat.iter().filter(|&&other| other <= expert).count() as i32;
        Routing {
            rows: chosen.len(),
            per_row: chosen[0].len(),
            places: (0..flat.len()).map(place).collect(),
            ends: (0..experts).map(end).collect(),
            order: order.into_iter().map(|pair| pair as i32).collect(),
        }
    }

    /// A routing of random logits.
    fn any(rows: usize, experts: usize, per_row: usize) -> Routing {
        Routing::of(&chosen(&Data::random(&[rows, experts], 9).to_f64(), experts, per_row), experts)
    }

    fn places(&self) -> Data {
        Data::I32(TensorType::i32(&[self.rows, self.per_row]), self.places.clone())
    }

    fn order(&self) -> Data {
        Data::I32(TensorType::i32(&[self.order.len()]), self.order.clone())
    }

    /// The row of each place.
    fn sources(&self) -> impl Iterator<Item = usize> {
        self.order.iter().map(|&pair| pair as usize / self.per_row)
    }
}

fn wide(numbers: &[i32]) -> Vec<f64> {
    numbers.iter().map(|&number| f64::from(number)).collect()
}

#[test]
fn routing_matches_the_reference() {
    for ([size, dtype, normalize], variants) in cases(3, [SIZES.len(), FLOATS.len(), 2]) {
        let ([rows, experts, per_row, _], normalize) = (SIZES[size], normalize > 0);
        let logits = Data::random(&[rows, experts], 1).map(|x| 4.0 * x).stored_as(FLOATS[dtype]);
        let chosen = chosen(&logits.to_f64(), experts, per_row);
        let Routing { places, order, ends, .. } = Routing::of(&chosen, experts);
        let weights = weights(&logits.to_f64(), &chosen, normalize);
        let op = Op::Route(Route { experts_per_row: per_row, normalize });
        let expected = [weights, wide(&places), wide(&order), wide(&ends)];
        check_variants(variants, op, std::slice::from_ref(&logits), &expected);
        let dweights = Data::random(&[rows, per_row], 2);
        let gradient = route_gradient(&logits.to_f64(), &chosen, &dweights.to_f64(), normalize);
        let op = Op::RouteBackward(RouteBackward { normalize });
        check_variants(variants, op, &[logits, dweights], &[gradient]);
    }
}

/// From the derivatives of softmax and division.
fn route_gradient(logits: &[f64], chosen: &[Vec<usize>], dweights: &[f64], normalize: bool) -> Vec<f64> {
    let (experts, per_row) = (logits.len() / chosen.len(), chosen[0].len());
    let rows = logits.chunks(experts).zip(chosen).zip(dweights.chunks(per_row));
    let of_row = |((row, chosen), dweights): ((&[f64], &Vec<usize>), &[f64])| {
        let probabilities = softmax(row);
        let sum: f64 = chosen.iter().map(|&expert| probabilities[expert]).sum();
        let mean: f64 = chosen.iter().zip(dweights).map(|(&e, d)| probabilities[e] / sum * d).sum();
        let mut dprobabilities = vec![0.0; experts];
        for (&expert, dweight) in chosen.iter().zip(dweights) {
            dprobabilities[expert] = if normalize { (dweight - mean) / sum } else { *dweight };
        }
        let inner = inner_product(&probabilities, &dprobabilities);
        probabilities.iter().zip(dprobabilities).map(|(p, d)| p * (d - inner)).collect::<Vec<_>>()
    };
    rows.flat_map(of_row).collect()
}

#[test]
fn route_reference_matches_numeric_gradient() {
    let [logits, dweights] = [Data::random(&[3, 5], 1), Data::random(&[3, 2], 2)].map(|data| data.to_f64());
    let chosen = chosen(&logits, 5, 2);
    for normalize in [false, true] {
        let gradient = route_gradient(&logits, &chosen, &dweights, normalize);
        let loss = |logits: &[f64]| inner_product(&weights(logits, &chosen, normalize), &dweights);
        assert_gradient(&gradient, &logits, loss);
    }
}

/// Equal logits choose the first experts; NaN chooses some.
#[test]
fn every_row_has_distinct_experts() {
    for value in [0.0, f32::NAN] {
        let logits = Data::F32(TensorType::f32(&[3, 4]), vec![value; 12]);
        let op = Op::Route(Route { experts_per_row: 2, normalize: true });
        let options = LaunchOptions { threads: 1, level: Level::Portable, alias: false };
        let outputs = launch(&op, &[logits], options);
        assert_eq!(outputs[3], [3.0, 6.0, 6.0, 6.0], "with {value}");
        assert_eq!(outputs[1], [0.0, 3.0, 1.0, 4.0, 2.0, 5.0], "with {value}");
    }
}

#[test]
fn sorted_rows_match_the_reference() {
    for ([size, dtype, accumulate], variants) in cases(3, [SIZES.len(), FLOATS.len(), 2]) {
        let ([rows, experts, per_row, channels], dtype) = (SIZES[size], FLOATS[dtype]);
        let routing = Routing::any(rows, experts, per_row);
        let (order, places) = (routing.order(), routing.places());
        let of_rows = |seed| Data::random(&[rows, channels], seed).stored_as(dtype);
        let of_pairs = |seed| Data::random(&[rows * per_row, channels], seed).stored_as(dtype);
        let (x, sorted, weights) = (of_rows(1), of_pairs(2), Data::random(&[rows, per_row], 3));
        let row = |of: &[f64], index: usize| of[index * channels..][..channels].to_vec();

        let x64 = x.to_f64();
        let copies = routing.sources().flat_map(|source| row(&x64, source)).collect();
        check_variants(variants, Op::Dispatch(Dispatch), &[x, order.clone(), places.clone()], &[copies]);

        // Sums over the places of each row, weighted or not.
        let sum = |weights: &[f64]| {
            let mut sums = vec![0.0; rows * channels];
            for (pair, &place) in routing.places.iter().enumerate() {
                let start = pair / per_row * channels;
                let values = row(&sorted.to_f64(), place as usize);
                sums[start..].iter_mut().zip(values).for_each(|(sum, value)| *sum += weights[pair] * value);
            }
            sums
        };
        let mut inputs = vec![sorted.clone(), places.clone()];
        let mut dx = sum(&vec![1.0; rows * per_row]);
        if accumulate > 0 {
            inputs.push(of_rows(4));
            dx = added(&dx, &inputs[2].to_f64());
        }
        let op = Op::DispatchBackward(DispatchBackward { accumulate: accumulate > 0 });
        check_variants(variants, op, &inputs, &[dx]);

        let inputs = [sorted.clone(), order.clone(), places.clone(), weights.clone()];
        let weights64 = weights.to_f64();
        check_variants(variants, Op::Combine(Combine), &inputs, &[sum(&weights64)]);

        let dy = of_rows(5);
        let (dy64, sorted64) = (dy.to_f64(), sorted.to_f64());
        let of_place = |&pair: &i32| {
            let dy = row(&dy64, pair as usize / per_row);
            dy.into_iter().map(|dy| weights64[pair as usize] * dy).collect::<Vec<_>>()
        };
        let dsorted = routing.order.iter().flat_map(of_place).collect();
        let of_pair = |(pair, &place): (usize, &i32)| {
            inner_product(&row(&dy64, pair / per_row), &row(&sorted64, place as usize))
        };
        let dweights = routing.places.iter().enumerate().map(of_pair).collect();
        let inputs = [dy, sorted, order, places, weights];
        check_variants(variants, Op::CombineBackward(CombineBackward), &inputs, &[dsorted, dweights]);
    }
}

/// The rows of each expert, input and output channels. Some experts have no rows.
const SHAPES: [(&[usize], usize, usize); 4] =
    [(&[1, 0], 1, 1), (&[0, 5, 2], 40, 7), (&[65, 1, 0, 30], 33, 97), (&[12, 7], 600, 130)];

#[test]
fn linear_layers_of_experts_match_the_reference() {
    for ([shape, dtype, accumulate, narrow], variants) in cases(3, [SHAPES.len(), FLOATS.len(), 2, 2]) {
        let ((of_experts, inner, out), dtype) = (SHAPES[shape], FLOATS[dtype]);
        let (rows, experts) = (of_experts.iter().sum::<usize>(), of_experts.len());
        let ends: Vec<i32> = of_experts
            .iter()
            .scan(0, |end, rows| {
                *end += *rows as i32;
                Some(*end)
            })
            .collect();
        let ends = Data::I32(TensorType::i32(&[experts]), ends);
        let stored = |dims: [usize; 2], seed| Data::random(&dims, seed).stored_as(dtype);
        let (x, dy) = (stored([rows, inner], 1), stored([rows, out], 2));
        let weights = stored([experts * out, inner], 3);
        let [x64, dy64, weights64] = [&x, &dy, &weights].map(Data::to_f64);
        let (mut y, mut dx, mut dweights) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for (&rows, weight) in of_experts.iter().zip(weights64.chunks(out * inner)) {
            let x = &x64[start * inner..][..rows * inner];
            let dy = &dy64[start * out..][..rows * out];
            start += rows;
            if rows == 0 {
                dweights.extend(vec![0.0; out * inner]);
                continue;
            }
            y.extend(matmul(x, &transposed(weight, inner), inner));
            dx.extend(matmul(dy, weight, out));
            dweights.extend(matmul(&transposed(dy, out), x, rows));
        }
        let inputs = [x.clone(), weights.clone(), ends.clone()];
        check_variants(variants, Op::ExpertLinear(ExpertLinear), &inputs, &[y]);
        let op = Op::ExpertLinearInputGradient(ExpertLinearInputGradient);
        check_variants(variants, op, &[dy.clone(), weights, ends.clone()], &[dx]);
        let gradients = if narrow > 0 { dtype } else { DType::F32 };
        let mut inputs = vec![x, dy, ends];
        if accumulate > 0 {
            inputs.push(Data::random(&[experts * out, inner], 4).stored_as(gradients));
            dweights = added(&dweights, &inputs[3].to_f64());
        }
        let op = ExpertLinearWeightGradient { gradients, accumulate: accumulate > 0 };
        check_variants(variants, Op::ExpertLinearWeightGradient(op), &inputs, &[dweights]);
    }
}
