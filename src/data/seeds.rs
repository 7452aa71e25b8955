//! Random seeds per sample, for models that use randomness such as dropout.

use std::ops::Range;

use super::{Batch, TrainingStep, sampling};

/// The site of these seeds, so that they are independent of all other draws of a run.
const SITE: u64 = 0x6472_6f70_2d6f_7574;

/// Fills the seeds of a range of a step's samples, if the batch has any. A sample's seed is a pure function of the
/// run's seed, the step and the sample's number in the step, whatever the range.
pub fn fill(step: &TrainingStep, samples: Range<u64>, batch: &mut Batch) {
    let Some(filled) = batch.seeds_mut() else { return };
    for (sample, memory) in samples.zip(filled.samples_mut()) {
        let seed = sampling::draw(step.seed, SITE, step.number, sample);
        let words = [seed as u32, (seed >> 32) as u32].map(u32::to_ne_bytes);
        memory.copy_from_slice(words.as_flattened());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Order;

    fn seeds(step: TrainingStep, samples: Range<u64>) -> Vec<u8> {
        let count = (samples.end - samples.start) as usize;
        let mut batch = Batch::new(&[], count).with_seeds(count);
        fill(&step, samples, &mut batch);
        batch.part("seeds").unwrap().bytes.to_vec()
    }

    #[test]
    fn seeds_do_not_depend_on_sample_range() {
        let step = TrainingStep { seed: 3, number: 5, samples: 6, order: Order::Drawn };
        let whole = seeds(step, 0..6);
        assert_eq!(whole, [seeds(step, 0..4), seeds(step, 4..6)].concat());
        let (all, _) = whole.as_chunks::<8>();
        assert!((1..6).all(|sample| !all[..sample].contains(&all[sample])), "each sample has its own seed");
        assert_ne!(whole, seeds(TrainingStep { number: 6, ..step }, 0..6));
        assert_ne!(whole, seeds(TrainingStep { seed: 4, ..step }, 0..6));
    }
}
