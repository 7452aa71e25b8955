//! The operations in f64, written down as their definitions read.

use crate::cpu::kernels::philox::philox;
use ops::{Activation, Attending, Dropped, Rotary};

pub(super) fn activation(activation: Activation, x: f64) -> f64 {
    (activation.definition().value)(x)
}

pub(super) fn activation_slope(activation: Activation, x: f64) -> f64 {
    (activation.definition().slope)(x)
}

/// y of gate and up side by side in rows of `2 width`.
pub(super) fn gated(function: Activation, both: &[f64], width: usize) -> Vec<f64> {
    let rows = both.chunks(2 * width);
    rows.flat_map(|row| (0..width).map(|c| activation(function, row[c]) * row[width + c]).collect::<Vec<_>>())
        .collect()
}

/// The gradients of both.
pub(super) fn gated_backward(function: Activation, dy: &[f64], both: &[f64], width: usize) -> Vec<f64> {
    let mut gradients = Vec::new();
    for (dy, row) in dy.chunks(width).zip(both.chunks(2 * width)) {
        let (gate, up) = row.split_at(width);
        gradients.extend((0..width).map(|c| dy[c] * up[c] * activation_slope(function, gate[c])));
        gradients.extend((0..width).map(|c| dy[c] * activation(function, gate[c])));
    }
    gradients
}

/// Rows of a qkv turned by their positions, as complex numbers.
pub(super) fn rotary(op: &Rotary, qkv: &[f64], sequence: usize, row: usize) -> Vec<f64> {
    let (half, mut rotated) = (op.head / 2, qkv.to_vec());
    for (place, row) in rotated.chunks_mut(row).enumerate() {
        for head in row[..op.rotated * op.head].chunks_mut(op.head) {
            for i in 0..half {
                let frequency = op.frequencies.base.powf(-((2 * i) as f64) / op.head as f64);
                let angle = frequency * (place % sequence) as f64 * if op.inverse { -1.0 } else { 1.0 };
                let (x, y) = (head[i], head[i + half]);
                head[i] = x * angle.cos() - y * angle.sin();
                head[i + half] = x * angle.sin() + y * angle.cos();
            }
        }
    }
    rotated
}

/// `a[rows,inner] b[inner,columns]`
pub(super) fn product(a: &[f64], b: &[f64], inner: usize) -> Vec<f64> {
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

/// The sum of the rows.
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
    let [normal, _, rstds] = layer_norm(x, &vec![1.0; channels], &zeros, epsilon);
    let (mut dx, mut dweight) = (Vec::new(), zeros);
    for ((dy, normal), rstd) in dy.chunks(channels).zip(normal.chunks(channels)).zip(rstds) {
        let slope: Vec<f64> = (0..channels).map(|c| dy[c] * weight[c]).collect();
        let through = slope.iter().sum::<f64>() / channels as f64;
        let along = slope.iter().zip(normal).map(|(s, n)| s * n).sum::<f64>() / channels as f64;
        dx.extend((0..channels).map(|c| rstd * (slope[c] - through - normal[c] * along)));
        (0..channels).for_each(|c| dweight[c] += dy[c] * normal[c]);
    }
    [dx, dweight, row_sum(dy, channels)]
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
    let [normal, rrmss] = rms_norm(x, &vec![1.0; channels], epsilon);
    let (mut dx, mut dweight) = (Vec::new(), vec![0.0; channels]);
    for ((dy, normal), rrms) in dy.chunks(channels).zip(normal.chunks(channels)).zip(rrmss) {
        let slope: Vec<f64> = (0..channels).map(|c| dy[c] * weight[c]).collect();
        let along = slope.iter().zip(normal).map(|(s, n)| s * n).sum::<f64>() / channels as f64;
        dx.extend((0..channels).map(|c| rrms * (slope[c] - normal[c] * along)));
        (0..channels).for_each(|c| dweight[c] += dy[c] * normal[c]);
    }
    [dx, dweight]
}

/// Loss, and the gradient of the logits, of rows that count for so much each beside what all do.
pub(super) fn cross_entropy(
    logits: &[f64],
    targets: &[usize],
    counts: &[f64],
    cap: Option<f64>,
    weight: f64,
) -> (f64, Vec<f64>) {
    let within = |logit: f64| cap.map_or(logit, |cap| cap * (logit / cap).tanh());
    let slope = |logit: f64| cap.map_or(1.0, |cap| 1.0 - (logit / cap).tanh().powi(2));
    let rows = targets.len();
    let mut loss = 0.0;
    let mut gradient = Vec::new();
    for ((before, &target), counts) in logits.chunks(logits.len() / rows).zip(targets).zip(counts) {
        let row: Vec<f64> = before.iter().copied().map(within).collect();
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        loss += counts * (sum.ln() + largest - row[target]);
        let share = counts * weight / rows as f64;
        gradient.extend(row.iter().zip(before).enumerate().map(|(v, (x, &before))| {
            share * slope(before) * ((x - largest).exp() / sum - f64::from(u8::from(v == target)))
        }));
    }
    (loss * weight / rows as f64, gradient)
}

/// What a sample's seed is in tests.
pub(super) fn seed(sample: usize) -> [u32; 2] {
    [sample as u32 * 77 + 5, 0xdead_beef - sample as u32]
}

/// What an element of a row of a sample is multiplied by: 0, or what makes up for it.
pub(super) fn factor(dropped: Dropped, sample: usize, row: usize, column: usize) -> f64 {
    let block = column / 32 * 4 + column % 8 / 2;
    let word = philox([block as u32, row as u32, dropped.site, 0], seed(sample))[column % 32 / 8];
    let number = word >> (16 * (column % 2)) & 0xffff;
    if number < dropped.kept { 65536.0 / f64::from(dropped.kept) } else { 0.0 }
}

/// Some of a tensor's elements, of samples of so many rows.
pub(super) fn dropout(dropped: Dropped, x: &[f64], rows: usize, channels: usize) -> Vec<f64> {
    let of = |(index, x): (usize, &f64)| {
        let (row, column) = (index / channels, index % channels);
        x * factor(dropped, row / rows, row % rows, column)
    };
    x.iter().enumerate().map(of).collect()
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub(super) batch: usize,
    pub(super) sequence: usize,
    pub(super) head: usize,
    pub(super) attending: Attending,
}

impl Attention {
    pub(super) fn channels(&self) -> usize {
        self.attending.heads * self.head
    }

    /// Of a qkv.
    pub(super) fn width(&self) -> usize {
        (self.attending.heads + 2 * self.attending.kv_heads) * self.head
    }

    /// Where a head's q, k or v begins in a row of qkv.
    fn place(&self, head: usize, part: usize) -> usize {
        let Attending { heads, kv_heads, .. } = self.attending;
        let of_keys = head * kv_heads / heads;
        [head, heads + of_keys, heads + kv_heads + of_keys][part] * self.head
    }

    /// One head's q, k or v, rows of `head`.
    fn part(&self, qkv: &[f64], batch: usize, head: usize, part: usize) -> Vec<f64> {
        let (row, start) = (self.width(), self.place(head, part));
        (0..self.sequence)
            .flat_map(|t| {
                let place = (batch * self.sequence + t) * row + start;
                qkv[place..place + self.head].to_vec()
            })
            .collect()
    }

    fn scale(&self) -> f64 {
        self.attending.scale.map_or(1.0 / (self.head as f64).sqrt(), f64::from)
    }

    /// Scaled, and held within the cap.
    fn scores(&self, q: &[f64], k: &[f64]) -> Vec<f64> {
        let mut scores = product(q, &transposed(k, self.head), self.head);
        for score in &mut scores {
            *score *= self.scale();
            if let Some(cap) = self.attending.cap.map(f64::from) {
                *score = cap * (*score / cap).tanh();
            }
        }
        scores
    }

    /// What the gradient of a score is multiplied by for that of its product.
    fn score_slope(&self, score: f64) -> f64 {
        self.scale() * self.attending.cap.map_or(1.0, |cap| 1.0 - (score / f64::from(cap)).powi(2))
    }

    /// Where a position's document begins, where they are told apart: they are of one position and of many, and other ones in
    /// each sequence.
    pub(super) fn start(&self, batch: usize, position: usize) -> usize {
        let begins = [1, 20, 21, 95, 200, 340].map(|begin| begin + 3 * batch);
        begins.into_iter().filter(|begin| self.attending.documents && *begin <= position).max().unwrap_or(0)
    }

    /// Whether a query of a sequence sees a key.
    fn sees(&self, batch: usize, query: usize, key: usize) -> bool {
        let is_near = self.attending.window.is_none_or(|window| key + window > query);
        is_near && !(self.attending.causal && key > query) && key >= self.start(batch, query)
    }

    /// The weights of one head [T,T], and the logarithms of their sums.
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

    /// What is left of the weights of one head [T,T], or of their gradients.
    fn left(&self, batch: usize, head: usize, weights: &[f64]) -> Vec<f64> {
        let Some(dropped) = self.attending.dropped else { return weights.to_vec() };
        let of = |(index, weight): (usize, &f64)| {
            let (query, key) = (index / self.sequence, index % self.sequence);
            weight * factor(dropped, batch, head * self.sequence + query, key)
        };
        weights.iter().enumerate().map(of).collect()
    }

    /// The same of all heads.
    pub(super) fn left_of_all(&self, weights: &[f64]) -> Vec<f64> {
        let heads = weights.chunks(self.sequence * self.sequence).enumerate();
        let left =
            |(index, weights)| self.left(index / self.attending.heads, index % self.attending.heads, weights);
        heads.flat_map(left).collect()
    }

    /// out and lse.
    pub(super) fn forward(&self, qkv: &[f64]) -> [Vec<f64>; 2] {
        let channels = self.channels();
        let mut out = vec![0.0; self.batch * self.sequence * channels];
        let mut lses = Vec::new();
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h))) {
            let [q, k, v] = [0, 1, 2].map(|part| self.part(qkv, batch, head, part));
            let (weights, lse) = self.weights(batch, &q, &k);
            lses.extend(lse);
            let weights = self.left(batch, head, &weights);
            for (t, row) in product(&weights, &v, self.sequence).chunks(self.head).enumerate() {
                let place = (batch * self.sequence + t) * channels + head * self.head;
                out[place..place + self.head].copy_from_slice(row);
            }
        }
        [out, lses]
    }

    /// dqkv, for the out of the forward pass.
    pub(super) fn backward(&self, dout: &[f64], qkv: &[f64], out: &[f64]) -> Vec<f64> {
        let (sequence, channels) = (self.sequence, self.channels());
        let mut dqkv = vec![0.0; qkv.len()];
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h))) {
            let [q, k, v] = [0, 1, 2].map(|part| self.part(qkv, batch, head, part));
            let (weights, _) = self.weights(batch, &q, &k);
            let [dout, out] = [dout, out].map(|whole| {
                let rows = (0..sequence).map(|t| (batch * sequence + t) * channels + head * self.head);
                rows.flat_map(|place| whole[place..place + self.head].to_vec()).collect::<Vec<f64>>()
            });
            let dweights = product(&dout, &transposed(&v, self.head), self.head);
            let dweights = self.left(batch, head, &dweights);
            let mut dscores = Vec::new();
            // The sum of a row's weights times their gradients is that of its output times its gradient.
            let along: Vec<f64> = dout
                .chunks(self.head)
                .zip(out.chunks(self.head))
                .map(|(dout, out)| dout.iter().zip(out).map(|(d, o)| d * o).sum())
                .collect();
            let rows = weights.chunks(sequence).zip(dweights.chunks(sequence));
            for ((weights, dweights), along) in rows.zip(along) {
                dscores.extend(weights.iter().zip(dweights).map(|(w, d)| w * (d - along)));
            }
            for (dscore, score) in dscores.iter_mut().zip(self.scores(&q, &k)) {
                *dscore *= self.score_slope(score);
            }
            let gradients = [
                product(&dscores, &k, sequence),
                product(&transposed(&dscores, sequence), &q, sequence),
                product(&transposed(&self.left(batch, head, &weights), sequence), &dout, sequence),
            ];
            self.add_gradients(&mut dqkv, batch, head, &gradients);
        }
        dqkv
    }

    /// Adds those of q, k and v of one head.
    fn add_gradients(&self, dqkv: &mut [f64], batch: usize, head: usize, gradients: &[Vec<f64>; 3]) {
        for (part, gradient) in gradients.iter().enumerate() {
            for (t, row) in gradient.chunks(self.head).enumerate() {
                let place = (batch * self.sequence + t) * self.width() + self.place(head, part);
                dqkv[place..place + self.head].iter_mut().zip(row).for_each(|(sum, d)| *sum += d);
            }
        }
    }

    /// One head's rows of an out [B,T,HD].
    fn rows(&self, out: &[f64], batch: usize, head: usize) -> Vec<f64> {
        let places = (0..self.sequence).map(|t| self.row(batch, head, t));
        places.flat_map(|place| out[place..place + self.head].to_vec()).collect()
    }

    /// Where a head's row begins in an out.
    fn row(&self, batch: usize, head: usize, t: usize) -> usize {
        (batch * self.sequence + t) * self.channels() + head * self.head
    }

    /// out, probabilities, scores, and the probabilities that are left, all of them stored.
    pub(super) fn materialized(&self, qkv: &[f64]) -> [Vec<f64>; 4] {
        let (mut probabilities, mut scores, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h))) {
            let [q, k] = [0, 1].map(|part| self.part(qkv, batch, head, part));
            scores.extend(self.scores(&q, &k));
            let weights = self.weights(batch, &q, &k).0;
            left.extend(self.left(batch, head, &weights));
            probabilities.extend(weights);
        }
        let [out, _] = self.forward(qkv);
        [out, probabilities, scores, left]
    }

    /// dqkv, dprobabilities and dscores, by the rule of a softmax, for the probabilities and what is left of them.
    pub(super) fn materialized_backward(
        &self,
        dout: &[f64],
        qkv: &[f64],
        [probabilities, left]: [&[f64]; 2],
        scores: Option<&[f64]>,
    ) -> [Vec<f64>; 3] {
        let sequence = self.sequence;
        let (mut dqkv, mut dprobabilities, mut dscores) = (vec![0.0; qkv.len()], Vec::new(), Vec::new());
        let heads = (0..self.batch).flat_map(|b| (0..self.attending.heads).map(move |h| (b, h)));
        let square = sequence * sequence;
        for (index, (batch, head)) in heads.enumerate() {
            let of = index * square..(index + 1) * square;
            let p = &probabilities[of.clone()];
            let [q, k, v] = [0, 1, 2].map(|part| self.part(qkv, batch, head, part));
            let dout = self.rows(dout, batch, head);
            let dp = product(&dout, &transposed(&v, self.head), self.head);
            let dp = self.left(batch, head, &dp);
            let mut ds = Vec::new();
            for (p, dp) in p.chunks(sequence).zip(dp.chunks(sequence)) {
                let along: f64 = p.iter().zip(dp).map(|(p, dp)| p * dp).sum();
                ds.extend(p.iter().zip(dp).map(|(p, dp)| p * (dp - along)));
            }
            let scores = scores.map_or_else(|| self.scores(&q, &k), |all| all[of.clone()].to_vec());
            for (ds, score) in ds.iter_mut().zip(scores) {
                *ds *= self.score_slope(score);
            }
            let gradients = [
                product(&ds, &k, sequence),
                product(&transposed(&ds, sequence), &q, sequence),
                product(&transposed(&left[of.clone()], sequence), &dout, sequence),
            ];
            self.add_gradients(&mut dqkv, batch, head, &gradients);
            dprobabilities.extend(dp);
            dscores.extend(ds);
        }
        [dqkv, dprobabilities, dscores]
    }
}
