//! What the candidates of a product take, by the card's own clock.

use crate::cuda::calls::driver::CUstream;
use crate::cuda::clock::Clock;
use crate::cuda::launcher::Launcher;
use crate::cuda::modules::Modules;
use crate::cuda::products::{Product, Products, Way};
use crate::{DeviceError, Source};

/// A candidate is timed as often in a row as this needs, so that the clock's own time does not matter.
const BATCH_MS: f64 = 0.2;
const MOST_IN_A_BATCH: u32 = 32;

/// What all candidates of a product may take together, in rounds: each goes through all of them, so that a card that grows
/// hotter or faster meanwhile favours none.
const BUDGET_MS: f64 = 50.0;
const FEWEST_ROUNDS: usize = 3;
const MOST_ROUNDS: usize = 10;

/// Chooses the fastest candidate of each product that it meets.
pub(in super::super) struct Chooser<'a> {
    pub(super) clock: &'a mut Clock,
    pub(super) setting: &'a str,
}

/// Enqueues what is done instead of a product with its epilogue.
type Apart<'a> = &'a dyn Fn(&mut Launcher) -> Result<(), DeviceError>;

struct Candidate {
    way: Way,
    /// Runs in a batch; none of one that the library refused to run.
    batch: u32,
    best_ms: f64,
}

impl Chooser<'_> {
    /// Does nothing for a product that was chosen already.
    ///
    /// # Errors
    /// None of the candidates works, or a device that fails.
    pub(in super::super) fn choose(
        &mut self,
        product: &Product,
        apart: Option<Apart>,
        stream: CUstream,
        modules: &mut Modules,
        products: &mut Products,
    ) -> Result<(), DeviceError> {
        let shape = product.shape();
        if products.choice(&shape).is_some() {
            return Ok(());
        }
        let ways = products.recommended(shape)?.into_iter().map(Way::Fused);
        let ways = ways.chain(apart.map(|_| Way::Apart));
        let mut candidates: Vec<Candidate> =
            ways.map(|way| Candidate { way, batch: 1, best_ms: f64::INFINITY }).collect();
        let mut enqueue = |way: Way| match (way, apart) {
            (Way::Apart, Some(apart)) => apart(&mut Launcher::new(stream, modules, products)),
            (Way::Fused(algorithm), _) => products.enqueue_by(&algorithm, product, stream),
            (Way::Apart, None) => Ok(()),
        };
        let refusal = warm_up(&mut candidates, &mut enqueue)?;
        self.time(&mut candidates, stream, &mut enqueue)?;
        let fastest = candidates.iter().filter(|candidate| candidate.batch > 0);
        let fastest = fastest.min_by(|a, b| a.best_ms.total_cmp(&b.best_ms)).map(|candidate| candidate.way);
        match (fastest, refusal) {
            (Some(way), _) => {
                let said = [self.setting.to_owned(), told(&candidates)];
                products.choose(shape, way, said, Source::Timed)
            }
            (None, Some(refusal)) => Err(refusal),
            (None, None) => Ok(()),
        }
    }

    /// Finds each candidate's best time.
    fn time(
        &mut self,
        candidates: &mut [Candidate],
        stream: CUstream,
        enqueue: &mut impl FnMut(Way) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.round(candidates, stream, enqueue)?;
        let tried = candidates.iter_mut().filter(|candidate| candidate.batch > 0);
        let mut round_ms = 0.0;
        for candidate in tried {
            let runs = (BATCH_MS / candidate.best_ms).ceil();
            candidate.batch = (runs as u32).clamp(1, MOST_IN_A_BATCH);
            round_ms += candidate.best_ms * f64::from(candidate.batch);
        }
        let rounds = ((BUDGET_MS / round_ms) as usize).clamp(FEWEST_ROUNDS, MOST_ROUNDS);
        (0..rounds).try_for_each(|_| self.round(candidates, stream, enqueue))
    }

    fn round(
        &mut self,
        candidates: &mut [Candidate],
        stream: CUstream,
        enqueue: &mut impl FnMut(Way) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.clock.lap(stream)?;
        for candidate in candidates.iter() {
            (0..candidate.batch).try_for_each(|_| enqueue(candidate.way))?;
            self.clock.lap(stream)?;
        }
        for (candidate, lap) in candidates.iter_mut().zip(self.clock.laps()?) {
            if candidate.batch > 0 {
                let ms = lap.as_secs_f64() * 1e3 / f64::from(candidate.batch);
                candidate.best_ms = candidate.best_ms.min(ms);
            }
        }
        Ok(())
    }
}

/// Runs each candidate once, which loads its kernels, and counts out those that the library recommends but does not run.
/// Returns the last refusal.
fn warm_up(
    candidates: &mut [Candidate],
    enqueue: &mut impl FnMut(Way) -> Result<(), DeviceError>,
) -> Result<Option<DeviceError>, DeviceError> {
    let mut refusal = None;
    for candidate in candidates {
        match (enqueue(candidate.way), candidate.way) {
            (Ok(()), _) => {}
            (Err(error @ DeviceError::Call { .. }), Way::Fused(_)) => {
                candidate.batch = 0;
                refusal = Some(error);
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok(refusal)
}

/// `0.0312 0.0298 refused apart 0.0411`
fn told(candidates: &[Candidate]) -> String {
    let told = candidates.iter().map(|candidate| {
        let name = if candidate.way == Way::Apart { "apart " } else { "" };
        match candidate.batch {
            0 => "refused".to_owned(),
            _ => format!("{name}{:.4}", candidate.best_ms),
        }
    });
    told.collect::<Vec<_>>().join(" ")
}
