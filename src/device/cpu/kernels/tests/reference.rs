//! The operations in f64, written down as their definitions read.

pub(super) fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

pub(super) fn gelu_slope(x: f64) -> f64 {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let tanh = (root * (x + 0.044715 * x.powi(3))).tanh();
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * root * (1.0 + 3.0 * 0.044715 * x * x)
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

/// Loss, and the gradient of the logits.
pub(super) fn cross_entropy(logits: &[f64], targets: &[usize], weight: f64) -> (f64, Vec<f64>) {
    let rows = targets.len();
    let mut loss = 0.0;
    let mut gradient = Vec::new();
    for (row, &target) in logits.chunks(logits.len() / rows).zip(targets) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
        loss += sum.ln() + largest - row[target];
        let share = weight / rows as f64;
        gradient.extend(
            row.iter()
                .enumerate()
                .map(|(v, x)| share * ((x - largest).exp() / sum - f64::from(u8::from(v == target)))),
        );
    }
    (loss * weight / rows as f64, gradient)
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub(super) batch: usize,
    pub(super) sequence: usize,
    pub(super) heads: usize,
    pub(super) head: usize,
}

impl Attention {
    pub(super) fn channels(&self) -> usize {
        self.heads * self.head
    }

    /// One head's q, k or v, rows of `head`.
    fn part(&self, qkv: &[f64], batch: usize, head: usize, part: usize) -> Vec<f64> {
        let (row, start) = (3 * self.channels(), part * self.channels() + head * self.head);
        (0..self.sequence)
            .flat_map(|t| {
                let place = (batch * self.sequence + t) * row + start;
                qkv[place..place + self.head].to_vec()
            })
            .collect()
    }

    /// The weights of one head [T,T], and the logarithms of their sums.
    fn weights(&self, q: &[f64], k: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let sequence = self.sequence;
        let mut weights = product(q, &transposed(k, self.head), self.head);
        let mut lse = Vec::new();
        for (t, row) in weights.chunks_mut(sequence).enumerate() {
            row.iter_mut().for_each(|score| *score /= (self.head as f64).sqrt());
            let largest = row[..=t].iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row[..=t].iter().map(|score| (score - largest).exp()).sum();
            lse.push(largest + sum.ln());
            row[..=t].iter_mut().for_each(|score| *score = (*score - largest).exp() / sum);
            row[t + 1..].fill(0.0);
        }
        (weights, lse)
    }

    /// out and lse.
    pub(super) fn forward(&self, qkv: &[f64]) -> [Vec<f64>; 2] {
        let channels = self.channels();
        let mut out = vec![0.0; self.batch * self.sequence * channels];
        let mut lses = Vec::new();
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.heads).map(move |h| (b, h))) {
            let [q, k, v] = [0, 1, 2].map(|part| self.part(qkv, batch, head, part));
            let (weights, lse) = self.weights(&q, &k);
            lses.extend(lse);
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
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.heads).map(move |h| (b, h))) {
            let [q, k, v] = [0, 1, 2].map(|part| self.part(qkv, batch, head, part));
            let (weights, _) = self.weights(&q, &k);
            let [dout, out] = [dout, out].map(|whole| {
                let rows = (0..sequence).map(|t| (batch * sequence + t) * channels + head * self.head);
                rows.flat_map(|place| whole[place..place + self.head].to_vec()).collect::<Vec<f64>>()
            });
            let dweights = product(&dout, &transposed(&v, self.head), self.head);
            let mut dscores = Vec::new();
            // The sum of a row's weights times their gradients is that of its output times its gradient.
            let along: Vec<f64> = dout
                .chunks(self.head)
                .zip(out.chunks(self.head))
                .map(|(dout, out)| dout.iter().zip(out).map(|(d, o)| d * o).sum())
                .collect();
            let rows = weights.chunks(sequence).zip(dweights.chunks(sequence));
            for ((weights, dweights), along) in rows.zip(along) {
                let scale = (self.head as f64).sqrt();
                dscores.extend(weights.iter().zip(dweights).map(|(w, d)| w * (d - along) / scale));
            }
            let gradients = [
                product(&dscores, &k, sequence),
                product(&transposed(&dscores, sequence), &q, sequence),
                product(&transposed(&weights, sequence), &dout, sequence),
            ];
            for (part, gradient) in gradients.iter().enumerate() {
                for (t, row) in gradient.chunks(self.head).enumerate() {
                    let place = (batch * sequence + t) * 3 * channels + part * channels + head * self.head;
                    dqkv[place..place + self.head].copy_from_slice(row);
                }
            }
        }
        dqkv
    }

    /// One head's rows of an out [B,T,C].
    fn rows(&self, out: &[f64], batch: usize, head: usize) -> Vec<f64> {
        let places = (0..self.sequence).map(|t| self.row(batch, head, t));
        places.flat_map(|place| out[place..place + self.head].to_vec()).collect()
    }

    /// Where a head's row begins in an out.
    fn row(&self, batch: usize, head: usize, t: usize) -> usize {
        (batch * self.sequence + t) * self.channels() + head * self.head
    }

    /// out, probabilities and scores, all of them stored.
    pub(super) fn materialized(&self, qkv: &[f64]) -> [Vec<f64>; 3] {
        let (mut probabilities, mut scores) = (Vec::new(), Vec::new());
        for (batch, head) in (0..self.batch).flat_map(|b| (0..self.heads).map(move |h| (b, h))) {
            let [q, k] = [0, 1].map(|part| self.part(qkv, batch, head, part));
            let products = product(&q, &transposed(&k, self.head), self.head);
            scores.extend(products.iter().map(|product| product / (self.head as f64).sqrt()));
            probabilities.extend(self.weights(&q, &k).0);
        }
        let [out, _] = self.forward(qkv);
        [out, probabilities, scores]
    }

    /// dqkv, dprobabilities and dscores, by the rule of a softmax.
    pub(super) fn materialized_backward(
        &self,
        dout: &[f64],
        qkv: &[f64],
        probabilities: &[f64],
    ) -> [Vec<f64>; 3] {
        let sequence = self.sequence;
        let (mut dqkv, mut dprobabilities, mut dscores) = (vec![0.0; qkv.len()], Vec::new(), Vec::new());
        let heads = (0..self.batch).flat_map(|b| (0..self.heads).map(move |h| (b, h)));
        for ((batch, head), p) in heads.zip(probabilities.chunks(sequence * sequence)) {
            let [q, k, v] = [0, 1, 2].map(|part| self.part(qkv, batch, head, part));
            let dout = self.rows(dout, batch, head);
            let dp = product(&dout, &transposed(&v, self.head), self.head);
            let mut ds = Vec::new();
            for (p, dp) in p.chunks(sequence).zip(dp.chunks(sequence)) {
                let along: f64 = p.iter().zip(dp).map(|(p, dp)| p * dp).sum();
                ds.extend(p.iter().zip(dp).map(|(p, dp)| p * (dp - along) / (self.head as f64).sqrt()));
            }
            let gradients = [
                product(&ds, &k, sequence),
                product(&transposed(&ds, sequence), &q, sequence),
                product(&transposed(p, sequence), &dout, sequence),
            ];
            for (part, gradient) in gradients.iter().enumerate() {
                for (t, row) in gradient.chunks(self.head).enumerate() {
                    let row_of_qkv = (batch * sequence + t) * 3 * self.channels();
                    let place = row_of_qkv + part * self.channels() + head * self.head;
                    dqkv[place..place + self.head].copy_from_slice(row);
                }
            }
            dprobabilities.extend(dp);
            dscores.extend(ds);
        }
        [dqkv, dprobabilities, dscores]
    }
}
