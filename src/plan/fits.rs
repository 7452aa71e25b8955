//! The largest micro-batch that a target's memory allows.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::identity::configuration_id;
use crate::compile::{Violation, compile};
use crate::device::Target;
use crate::memory::predict;
use crate::spec::{Optimizer, RunConfig};

/// Nobody trains with more samples at once than this.
const MOST: usize = 1 << 20;

/// Remembers what it found: runs that differ in batch size alone have one answer.
pub(super) struct Fits<'a> {
    target: &'a Target,
    known: Mutex<HashMap<String, usize>>,
}

impl Fits<'_> {
    pub(super) fn new(target: &Target) -> Fits<'_> {
        Fits { target, known: Mutex::new(HashMap::new()) }
    }

    /// `None` if not even a micro-batch of one fits.
    pub(super) fn largest(&self, config: &RunConfig) -> Result<Option<usize>, Violation> {
        let mut config = config.clone();
        // What has no part in the answer.
        config.train.seed = 0;
        config.measure.steps = 1;
        let Optimizer::AdamW(optimizer) = &mut config.train.optimizer;
        optimizer.lr = 1.0;
        config.train.batch_size = config.strategy.accumulate;
        let key = configuration_id(&config, "");
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        let largest = match known {
            Some(largest) => largest,
            None => self.search(&config)?,
        };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, largest);
        Ok((largest > 0).then_some(largest))
    }

    /// Bytes asked of the system are nearly a straight line over the micro-batch: guess by the line, then step
    /// and halve to the exact answer.
    fn search(&self, config: &RunConfig) -> Result<usize, Violation> {
        let available = self.target.available();
        let one = self.reserved(config, 1)?;
        if one > available {
            return Ok(0);
        }
        let slope = self.reserved(config, 2)?.saturating_sub(one).max(1);
        let guess = 1 + ((available - one) / slope).min(MOST as u64 - 1) as usize;
        let (mut fits, mut fails) = (1, MOST + 1);
        let mut probe = guess;
        let mut step = 1;
        while fits + 1 < fails {
            probe = probe.clamp(fits + 1, fails - 1);
            if self.reserved(config, probe)? <= available {
                fits = probe;
            } else {
                fails = probe;
            }
            probe = match (fits, fails) {
                (_, fails) if fails > MOST => fits.saturating_add(step),
                (1, _) => fails.saturating_sub(step),
                _ => fits.midpoint(fails),
            };
            step *= 2;
        }
        Ok(fits)
    }

    fn reserved(&self, config: &RunConfig, micro_batch: usize) -> Result<u64, Violation> {
        let mut config = config.clone();
        config.train.batch_size = micro_batch * config.strategy.accumulate;
        let boundless = self.target.clone().with_memory(crate::units::Bytes(u64::MAX));
        let program = compile(&config, &boundless)?;
        Ok(predict(&program, &boundless).device.reserved_peak)
    }
}
