//! Samples and tokens of an optimizer step, the units of throughput.

use data::Sample;
use spec::RunConfig;

/// The samples of a step, and their tokens if the model works on tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) samples: usize,
    pub(crate) tokens: Option<usize>,
}

impl Volume {
    /// Of a step, counted from 0.
    pub(crate) fn of_step(config: &RunConfig, sample: &Sample, step: usize) -> Volume {
        let samples = config.train.batch_size;
        let tokens = match &config.lengths {
            None => sample.positions().map(|positions| samples * positions),
            Some(lengths) => Some(lengths.tokens_of_step(step, samples, config.micro_batch())),
        };
        Volume { samples, tokens }
    }

    pub(crate) fn samples_per_s(self, step_ms: f64) -> f64 {
        per_s(self.samples, step_ms)
    }

    pub(crate) fn tokens_per_s(self, step_ms: f64) -> Option<f64> {
        self.tokens.map(|tokens| per_s(tokens, step_ms))
    }
}

fn per_s(count: usize, ms: f64) -> f64 {
    count as f64 / ms * 1e3
}
