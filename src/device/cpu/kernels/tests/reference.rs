//! Reference implementations of the operations in f64, written as they are defined.

use crate::cpu::kernels::philox::philox;
use ops::{Activation, AttentionConfig, DropoutMask, Rotary};

pub(super) fn activation(activation: Activation, x: f64) -> f64 {
    (activation.definition().value)(x)
}

pub(super) fn activation_slope(activation: Activation, x: f64) -> f64 {
    (activation.definition().slope)(x)
}

/// y, from rows of `2 width` elements: gate, then up.
pub(super) fn gated(function: Activation, both: &[f64], width: usize) -> Vec<f64> {
    let rows = both.chunks(2 * width);
    rows.flat_map(|row| (0..width).map(|c| activation(function, row[c]) * row[width + c]).collect::<Vec<_>>())
        .collect()
}

/// The gradients of gate and up, in rows of `2 width` elements.
pub(super) fn gated_backward(function: Activation, dy: &[f64], both: &[f64], width: usize) -> Vec<f64> {
    let mut gradients = Vec::new();
    for (dy, row) in dy.chunks(width).zip(both.chunks(2 * width)) {
        let (gate, up) = row.split_at(width);
        gradients.extend((0..width).map(|c| dy[c] * up[c] * activation_slope(function, gate[c])));
        gradients.extend((0..width).map(|c| dy[c] * activation(function, gate[c])));
    }
    gradients
}

/// The rows of qkv rotated by their positions, as complex numbers.
pub(super) fn rotary(op: &Rotary, qkv: &[f64], sequence: usize, row: usize) -> Vec<f64> {
    let (half, mut rotated) = (op.channels / 2, qkv.to_vec());
    for (index, row) in rotated.chunks_mut(row).enumerate() {
        for head in row[..op.rotated * op.head].chunks_mut(op.head) {
            for i in 0..half {
                let frequency = op.frequencies.base.powf(-((2 * i) as f64) / op.channels as f64);
                let angle = frequency * (index % sequence) as f64 * if op.inverse { -1.0 } else { 1.0 };
                let (x, y) = (head[i], head[i + half]);
                head[i] = x * angle.cos() - y * angle.sin();
                head[i + half] = x * angle.sin() + y * angle.cos();
            }
        }
    }
    rotated
}

/// `a[rows,inner] b[inner,columns]`
pub(super) fn matmul(a: &[f64], b: &[f64], inner: usize) -> Vec<f64> {
    let columns = b.len() / inner;
    let mut c = vec![0.0; a.len() / inner * columns];
    for (row, c) in a.chunks(inner).zip(c.chunks_mut(columns)) {
        for (a, b) in row.iter().zip(b.chunks(columns)) {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}

pub(super) fn transposed(a: &[f64], columns: usize) -> Vec<f64> {
    let rows = a.len() / columns;
    (0..a.len()).map(|i| a[i % rows * columns + i / rows]).collect()
}

/// The sum over the rows.
pub(super) fn row_sum(a: &[f64], columns: usize) -> Vec<f64> {
    let mut sum = vec![0.0; columns];
    for row in a.chunks(columns) {
        sum.iter_mut().zip(row).for_each(|(sum, a)| *sum += a);
    }
    sum
}

/// y, mean, rstd.
pub(super) fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], epsilon: f64) -> [Vec<f64>; 3] {
    let channels = weight.len();
    let [mut y, mut means, mut rstds] = [const { Vec::new() }; 3];
    for row in x.chunks(channels) {
        let mean = row.iter().sum::<f64>() / channels as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / channels as f64;
        let rstd = 1.0 / (variance + epsilon).sqrt();
        y.extend((0..channels).map(|c| (row[c] - mean) * rstd * weight[c] + bias[c]));
        means.push(mean);
        rstds.push(rstd);
    }
    [y, means, rstds]
}

/// dx, dweight, dbias.
pub(super) fn layer_norm_backward(dy: &[f64], x: &[f64], weight: &[f64], epsilon: f64) -> [Vec<f64>; 3] {
    let channels = weight.len();
    let zeros = vec![0.0; channels];
    let [normalized, _, rstds] = layer_norm(x, &vec![1.0; channels], &zeros, epsilon);
    let (mut dx, mut dweight) = (Vec::new(), zeros);
    for ((dy, normalized), rstd) in dy.chunks(channels).zip(normalized.chunks(channels)).zip(rstds) {
        let gradient: Vec<f64> = (0..channels).map(|c| dy[c] * weight[c]).collect();
        let mean_gradient = gradient.iter().sum::<f64>() / channels as f64;
        let mean_product = gradient.iter().zip(normalized).map(|(g, n)| g * n).sum::<f64>() / channels as f64;
        dx.extend((0..channels).map(|c| rstd * (gradient[c] - mean_gradient - normalized[c] * mean_product)));
        (0..channels).for_each(|c| dweight[c] += dy[c] * normalized[c]);
    }
    [dx, dweight, row_sum(dy, channels)]
}

/// y, mean, rstd, where the elements of each group are normalized together. x is [.., C]; weight and bias have a value
/// per channel. Batch norm has a group per channel; group norm, one per sample and group of channels.
pub(super) fn grouped_norm(
    x: &[f64],
    groups: &[Vec<usize>],
    (weight, bias): (&[f64], &[f64]),
    epsilon: f64,
) -> [Vec<f64>; 3] {
    let [mut y, mut means, mut rstds] = [vec![0.0; x.len()], Vec::new(), Vec::new()];
    for group in groups {
        let row: Vec<f64> = group.iter().map(|&element| x[element]).collect();
        let (one, zero) = (vec![1.0; row.len()], vec![0.0; row.len()]);
        let [normalized, mean, rstd] = layer_norm(&row, &one, &zero, epsilon);
        for (&element, normalized) in group.iter().zip(normalized) {
            let channel = element % weight.len();
            y[element] = normalized * weight[channel] + bias[channel];
        }
        means.extend(mean);
        rstds.extend(rstd);
    }
    [y, means, rstds]
}

/// dx, dweight, dbias of `grouped_norm`.
pub(super) fn grouped_norm_backward(
    dy: &[f64],
    x: &[f64],
    groups: &[Vec<usize>],
    weight: &[f64],
    epsilon: f64,
) -> [Vec<f64>; 3] {
    let channels = weight.len();
    let (one, zero) = (vec![1.0; channels], vec![0.0; channels]);
    let [normalized, ..] = grouped_norm(x, groups, (&one, &zero), epsilon);
    let mut dx = vec![0.0; x.len()];
    for group in groups {
        let row = |of: &dyn Fn(usize) -> f64| group.iter().map(|&element| of(element)).collect::<Vec<f64>>();
        let slopes = row(&|element| dy[element] * weight[element % channels]);
        let [row_dx, ..] =
            layer_norm_backward(&slopes, &row(&|element| x[element]), &vec![1.0; group.len()], epsilon);
        group.iter().zip(row_dx).for_each(|(&element, value)| dx[element] = value);
    }
    let products: Vec<f64> = dy.iter().zip(normalized).map(|(dy, normalized)| dy * normalized).collect();
    [dx, row_sum(&products, channels), row_sum(dy, channels)]
}

/// y and rrms.
pub(super) fn rms_norm(x: &[f64], weight: &[f64], epsilon: f64) -> [Vec<f64>; 2] {
    let channels = weight.len();
    let [mut y, mut rrmss] = [const { Vec::new() }; 2];
    for row in x.chunks(channels) {
        let rrms = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / channels as f64 + epsilon).sqrt();
        y.extend((0..channels).map(|c| row[c] * rrms * weight[c]));
        rrmss.push(rrms);
    }
    [y, rrmss]
}

/// dx and dweight.
pub(super) fn rms_norm_backward(dy: &[f64], x: &[f64], weight: &[f64], epsilon: f64) -> [Vec<f64>; 2] {
    let channels = weight.len();
    let [normalized, rrmss] = rms_norm(x, &vec![1.0; channels], epsilon);
    let (mut dx, mut dweight) = (Vec::new(), vec![0.0; channels]);
    for ((dy, normalized), rrms) in dy.chunks(channels).zip(normalized.chunks(channels)).zip(rrmss) {
        let gradient: Vec<f64> = (0..channels).map(|c| dy[c] * weight[c]).collect();
        let mean_product = gradient.iter().zip(normalized).map(|(g, n)| g * n).sum::<f64>() / channels as f64;
        dx.extend((0..channels).map(|c| rrms * (gradient[c] - normalized[c] * mean_product)));
        (0..channels).for_each(|c| dweight[c] += dy[c] * normalized[c]);
    }
    [dx, dweight]
}

/// The loss, and the gradient of the logits. `row_weights` weights single rows, `weight` all rows.
pub(super) fn cross_entropy(
    logits: &[f64],
    targets: &[usize],
    row_weights: &[f64],
    (cap, smoothing): (Option<f64>, f64),
    weight: f64,
) -> (f64, Vec<f64>) {
    let classes = logits.len() / targets.len();
    let target_share =
        |is_target: bool| smoothing / classes as f64 + if is_target { 1.0 - smoothing } else { 0.0 };
    let capped = |logit: f64| cap.map_or(logit, |cap| cap * (logit / cap).tanh());
    let slope = |logit: f64| cap.map_or(1.0, |cap| 1.0 - (logit / cap).tanh().powi(2));
    let rows = targets.len();
    let mut loss = 0.0;
    let mut gradient = Vec::new();
    for ((uncapped, &target), row_weight) in logits.chunks(classes).zip(targets).zip(row_weights) {
        let row: Vec<f64> = uncapped.iter().copied().map(capped).collect();
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        let expected: f64 = row.iter().enumerate().map(|(v, x)| target_share(v == target) * x).sum();
        loss += row_weight * (sum.ln() + largest - expected);
        let factor = row_weight * weight / rows as f64;
        gradient.extend(row.iter().zip(uncapped).enumerate().map(|(v, (x, &uncapped))| {
            factor * slope(uncapped) * ((x - largest).exp() / sum - target_share(v == target))
        }));
    }
    (loss * weight / rows as f64, gradient)
}

/// The dropout seed of a sample in tests.
pub(super) fn seed(sample: usize) -> [u32; 2] {
    [sample as u32 * 77 + 5, 0xdead_beef - sample as u32]
}

/// The dropout factor of an element of a sample: 0, or 1 over the fraction kept.
pub(super) fn dropout_factor(dropped: DropoutMask, sample: usize, row: usize, column: usize) -> f64 {
    let block = column / 32 * 4 + column % 8 / 2;
    let word = philox([block as u32, row as u32, dropped.site, 0], seed(sample))[column % 32 / 8];
    let number = word >> (16 * (column % 2)) & 0xffff;
    if number < dropped.kept { 65536.0 / f64::from(dropped.kept) } else { 0.0 }
}

/// Dropout of a tensor whose samples have `rows` rows.
pub(super) fn dropout(dropped: DropoutMask, x: &[f64], rows: usize, channels: usize) -> Vec<f64> {
    let drop_element = |(index, x): (usize, &f64)| {
        let (row, column) = (index / channels, index % channels);
        x * dropout_factor(dropped, row / rows, row % rows, column)
    };
    x.iter().enumerate().map(drop_element).collect()
}

/// The sizes and mask of an attention operation.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub(super) batch: usize,
    pub(super) sequence: usize,
    pub(super) head: usize,
    pub(super) attending: AttentionConfig,
}

impl Attention {
    pub(super) fn channels(&self) -> usize {
        self.attending.heads * self.head
    }

    /// Elements per position of qkv.
    pub(super) fn width(&self) -> usize {
        (self.attending.heads + 2 * self.attending.kv_heads) * self.head
    }

    /// The offset of a head's q, k or v (`part` 0, 1 or 2) in a row of qkv.
    fn offset(&self, head: usize, part: usize) -> usize {
        let AttentionConfig { heads, kv_heads, .. } = self.attending;
        let kv_head = head * kv_heads / heads;
        [head, heads + kv_head, heads + kv_heads + kv_head][part] * self.head
    }

    /// One head's q, k or v, in rows of `head` elements.
    fn head_rows(&self, qkv: &[f64], batch: usize, head: usize, part: usize) -> Vec<f64> {
        let (row, start) = (self.width(), self.offset(head, part));
        (0..self.sequence)
            .flat_map(|t| {
                let first = (batch * self.sequence + t) * row + start;
                qkv[first..first + self.head].to_vec()
            })
            .collect()
    }

    fn scale(&self) -> f64 {
        self.attending.scale.map_or(1.0 / (self.head as f64).sqrt(), f64::from)
    }

    /// Scaled and soft-capped scores.
    fn scores(&self, q: &[f64], k: &[f64]) -> Vec<f64> {
        let mut scores = matmul(q, &transposed(k, self.head), self.head);
        for score in &mut scores {
            *score *= self.scale();
            if let Some(cap) = self.attending.cap.map(f64::from) {
                *score = cap * (*score / cap).tanh();
            }
        }
        scores
    }

    /// The derivative of a score with respect to q k^T.
    fn score_slope(&self, score: f64) -> f64 {
        self.scale() * self.attending.cap.map_or(1.0, |cap| 1.0 - (score / f64::from(cap)).powi(2))
    }

    /// The first position of a position's document, if documents are masked. Documents have one or many positions, and
    /// differ between sequences.
    pub(super) fn start(&self, batch: usize, position: usize) -> usize {
        let begins = [1, 20, 21, 95, 200, 340].map(|begin| begin + 3 * batch);
        begins.into_iter().filter(|begin| self.attending.documents && *begin <= position).max().unwrap_or(0)
    }

    /// Whether a query of a sequence sees a key.
    fn sees(&self, batch: usize, query: usize, key: usize) -> bool {
        let is_near = self.attending.window.is_none_or(|window| key + window > query);
        is_near && !(self.attending.causal && key > query) && key >= self.start(batch, query)
    }

    /// The softmax of one head [T,T], and its log-sum-exps.
    fn weights(&self, batch: usize, q: &[f64], k: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut weights = self.scores(q, k);
        let mut lse = Vec::new();
        for (query, row) in weights.chunks_mut(self.sequence).enumerate() {
            for (key, score) in row.iter_mut().enumerate() {
                *score = if self.sees(batch, query, key) { *score } else { f64::NEG_INFINITY };
            }
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|score| (score - largest).exp()).sum();
            lse.push(largest + sum.ln());
            row.iter_mut().for_each(|score| *score = (*score - largest).exp() / sum);
        }
        (weights, lse)
    }

    /// The weights of one head [T,T], or their gradients, after dropout.
    fn drop_weights(&self, batch: usize, head: usize, weights: &[f64]) -> Vec<f64> {
        let Some(dropped) = self.attending.dropped else { return weights.to_vec() };
        let drop_element = |(index, weight): (usize, &f64)| {
            let (query, key) = (index / self.sequence, index % self.sequence);
            weight * dropout_factor(dropped, batch, head * self.sequence + query, key)
        };
        weights.iter().enumerate().map(drop_element).collect()
    }

    /// The same for all heads.
    pub(super) fn drop_all_weights(&self, weights: &[f64]) -> Vec<f64> {
        let heads = weights.chunks(self.sequence * self.sequence).enumerate();
        let drop_head = |(index, weights)| {
            self.drop_weights(index / self.attending.heads, index % self.attending.heads, weights)
        };
        heads.flat_map(drop_head).collect()
    }

    /// out and lse.
    pub(super) fn forward(&self, qkv: &[f64]) -> [Vec<f64>; 2] {
        let channels = self.channels();
        let mut out = vec![0.0; self.batch * self.sequence * channels];
        let mut lses = Vec::new();
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h))) {
            let [q, k, v] = [0, 1, 2].map(|part| self.head_rows(qkv, batch, head, part));
            let (weights, lse) = self.weights(batch, &q, &k);
            lses.extend(lse);
            let weights = self.drop_weights(batch, head, &weights);
            for (t, row) in matmul(&weights, &v, self.sequence).chunks(self.head).enumerate() {
                let start = (batch * self.sequence + t) * channels + head * self.head;
                out[start..start + self.head].copy_from_slice(row);
            }
        }
        [out, lses]
    }

    /// dqkv, from the output of the forward pass.
    pub(super) fn backward(&self, dout: &[f64], qkv: &[f64], out: &[f64]) -> Vec<f64> {
        let (sequence, channels) = (self.sequence, self.channels());
        let mut dqkv = vec![0.0; qkv.len()];
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h))) {
            let [q, k, v] = [0, 1, 2].map(|part| self.head_rows(qkv, batch, head, part));
            let (weights, _) = self.weights(batch, &q, &k);
            let [dout, out] = [dout, out].map(|whole| {
                let rows = (0..sequence).map(|t| (batch * sequence + t) * channels + head * self.head);
                rows.flat_map(|start| whole[start..start + self.head].to_vec()).collect::<Vec<f64>>()
            });
            let dweights = matmul(&dout, &transposed(&v, self.head), self.head);
            let dweights = self.drop_weights(batch, head, &dweights);
            let mut dscores = Vec::new();
            // A row's dot product of weights and their gradients equals that of its output and the output's gradient.
            let row_dots: Vec<f64> = dout
                .chunks(self.head)
                .zip(out.chunks(self.head))
                .map(|(dout, out)| dout.iter().zip(out).map(|(d, o)| d * o).sum())
                .collect();
            let rows = weights.chunks(sequence).zip(dweights.chunks(sequence));
            for ((weights, dweights), row_dot) in rows.zip(row_dots) {
                dscores.extend(weights.iter().zip(dweights).map(|(w, d)| w * (d - row_dot)));
            }
            for (dscore, score) in dscores.iter_mut().zip(self.scores(&q, &k)) {
                *dscore *= self.score_slope(score);
            }
            let gradients = [
                matmul(&dscores, &k, sequence),
                matmul(&transposed(&dscores, sequence), &q, sequence),
                matmul(&transposed(&self.drop_weights(batch, head, &weights), sequence), &dout, sequence),
            ];
            self.add_gradients(&mut dqkv, batch, head, &gradients);
        }
        dqkv
    }

    /// Adds the gradients of q, k and v of one head.
    fn add_gradients(&self, dqkv: &mut [f64], batch: usize, head: usize, gradients: &[Vec<f64>; 3]) {
        for (part, gradient) in gradients.iter().enumerate() {
            for (t, row) in gradient.chunks(self.head).enumerate() {
                let start = (batch * self.sequence + t) * self.width() + self.offset(head, part);
                dqkv[start..start + self.head].iter_mut().zip(row).for_each(|(sum, d)| *sum += d);
            }
        }
    }

    /// One head's rows of an output [B,T,HD].
    fn rows(&self, out: &[f64], batch: usize, head: usize) -> Vec<f64> {
        let starts = (0..self.sequence).map(|t| self.row_offset(batch, head, t));
        starts.flat_map(|start| out[start..start + self.head].to_vec()).collect()
    }

    /// The offset of a head's row in an output.
    fn row_offset(&self, batch: usize, head: usize, t: usize) -> usize {
        (batch * self.sequence + t) * self.channels() + head * self.head
    }

    /// The stored outputs: out, probabilities, scores, and the probabilities after dropout.
    pub(super) fn materialized(&self, qkv: &[f64]) -> [Vec<f64>; 4] {
        let (mut probabilities, mut scores, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h))) {
            let [q, k] = [0, 1].map(|part| self.head_rows(qkv, batch, head, part));
            scores.extend(self.scores(&q, &k));
            let weights = self.weights(batch, &q, &k).0;
            dropped.extend(self.drop_weights(batch, head, &weights));
            probabilities.extend(weights);
        }
        let [out, _] = self.forward(qkv);
        [out, probabilities, scores, dropped]
    }

    /// dqkv, dprobabilities and dscores, from the probabilities before and after dropout.
    pub(super) fn materialized_backward(
        &self,
        dout: &[f64],
        qkv: &[f64],
        [probabilities, dropped]: [&[f64]; 2],
        scores: Option<&[f64]>,
    ) -> [Vec<f64>; 3] {
        let sequence = self.sequence;
        let (mut dqkv, mut dprobabilities, mut dscores) = (vec![0.0; qkv.len()], Vec::new(), Vec::new());
        let heads = (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h)));
        let square = sequence * sequence;
        for (index, (batch, head)) in heads.enumerate() {
            let range = index * square..(index + 1) * square;
            let p = &probabilities[range.clone()];
            let [q, k, v] = [0, 1, 2].map(|part| self.head_rows(qkv, batch, head, part));
            let dout = self.rows(dout, batch, head);
            let dp = matmul(&dout, &transposed(&v, self.head), self.head);
            let dp = self.drop_weights(batch, head, &dp);
            let mut ds = Vec::new();
            for (p, dp) in p.chunks(sequence).zip(dp.chunks(sequence)) {
                let row_dot: f64 = p.iter().zip(dp).map(|(p, dp)| p * dp).sum();
                ds.extend(p.iter().zip(dp).map(|(p, dp)| p * (dp - row_dot)));
            }
            let scores = scores.map_or_else(|| self.scores(&q, &k), |all| all[range.clone()].to_vec());
            for (ds, score) in ds.iter_mut().zip(scores) {
                *ds *= self.score_slope(score);
            }
            let gradients = [
                matmul(&ds, &k, sequence),
                matmul(&transposed(&ds, sequence), &q, sequence),
                matmul(&transposed(&dropped[range.clone()], sequence), &dout, sequence),
            ];
            self.add_gradients(&mut dqkv, batch, head, &gradients);
            dprobabilities.extend(dp);
            dscores.extend(ds);
        }
        [dqkv, dprobabilities, dscores]
    }
}
