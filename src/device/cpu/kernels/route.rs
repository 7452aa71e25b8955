//! Routing of rows to experts.

use ops::{Route, RouteBackward};

use super::float::Float;
use super::operands::Operands;
use super::workers::Workers;

pub(super) fn forward<T: Float>(op: &Route, operands: &mut Operands, workers: &Workers) {
    let experts = operands.input_type(0).shape.last();
    let logits = operands.input::<T>(0);
    let weights = operands.output::<f32>(0);
    let [places, order, ends] = [1, 2, 3].map(|output| operands.i32_output(output));
    let mut probabilities = vec![0.0; experts];
    let rows = weights.chunks_exact_mut(op.experts_per_row).zip(places.chunks_exact_mut(op.experts_per_row));
    for (logits, (weights, chosen)) in logits.chunks_exact(experts).zip(rows) {
        T::widen(workers.level(), logits, &mut probabilities);
        softmax(&mut probabilities);
        choose(&probabilities, weights, chosen);
        if op.normalize {
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
    }
    // From the expert of each pair to its place: pairs of one expert keep their order.
    ends.fill(0);
    places.iter().for_each(|&expert| ends[expert as usize] += 1);
    let mut next = 0;
    for end in ends.iter_mut() {
        next += *end;
        *end = next - *end;
    }
    for (pair, place) in places.iter_mut().enumerate() {
        let end = &mut ends[*place as usize];
        *place = *end;
        order[*end as usize] = pair as i32;
        *end += 1;
    }
}

pub(super) fn backward<T: Float>(op: &RouteBackward, operands: &mut Operands, workers: &Workers) {
    let [experts, chosen] = [0, 1].map(|input| operands.input_type(input).shape.last());
    let (logits, dweights) = (operands.input::<T>(0), operands.input::<f32>(1));
    let dlogits = operands.output::<T>(0).chunks_exact_mut(experts);
    let (mut probabilities, mut gradient) = (vec![0.0; experts], vec![0.0; experts]);
    let (mut weights, mut indices) = (vec![0.0; chosen], vec![0; chosen]);
    for ((logits, dweights), dlogits) in
        logits.chunks_exact(experts).zip(dweights.chunks_exact(chosen)).zip(dlogits)
    {
        T::widen(workers.level(), logits, &mut probabilities);
        softmax(&mut probabilities);
        choose(&probabilities, &mut weights, &mut indices);
        // Normalized weights are the softmax over the chosen experts alone.
        let sum: f32 = if op.normalize { weights.iter().sum() } else { 1.0 };
        let mean: f32 = weights.iter().zip(dweights).map(|(weight, dweight)| weight / sum * dweight).sum();
        for (gradient, probability) in gradient.iter_mut().zip(&probabilities) {
            *gradient = if op.normalize { 0.0 } else { -probability * mean };
        }
        for ((&index, weight), dweight) in indices.iter().zip(&weights).zip(dweights) {
            let centered = if op.normalize { dweight - mean } else { *dweight };
            gradient[index as usize] += weight / sum * centered;
        }
        T::narrow(workers.level(), &gradient, dlogits);
    }
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = (*value - largest).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
}

/// The largest probabilities, largest first, and their experts. Ties and NaN select the lowest indices.
fn choose(probabilities: &[f32], weights: &mut [f32], experts: &mut [i32]) {
    for index in 0..weights.len() {
        let (before, _) = experts.split_at(index);
        let free = (0..probabilities.len()).filter(|&expert| !before.contains(&(expert as i32)));
        let best = free.reduce(
            |best, expert| {
                if probabilities[expert] > probabilities[best] { expert } else { best }
            },
        );
        let best = best.expect("a row has at most one weight for each expert");
        (weights[index], experts[index]) = (probabilities[best], best as i32);
    }
}
