//! Times the candidates of a matmul with the card's clock.

use crate::cuda::calls::driver::CUstream;
use crate::cuda::clock::Clock;
use crate::cuda::launcher::Launcher;
use crate::cuda::matmul::{Matmul, MatmulMethod, MatmulPlans};
use crate::cuda::modules::Modules;
use crate::{DeviceError, Source};

/// Minimum duration of a timed batch of a candidate, so that the clock's overhead is negligible.
const BATCH_MS: f64 = 0.2;
const MAX_BATCH: u32 = 32;

/// Time budget for all candidates of a matmul. Each round times all candidates, so that changes of the card's clock
/// rate affect all of them equally.
const BUDGET_MS: f64 = 50.0;
const MIN_ROUNDS: usize = 3;
const MAX_ROUNDS: usize = 10;

/// Selects the fastest candidate of each enqueued matmul.
pub(in super::super) struct Tuner<'a> {
    pub(super) clock: &'a mut Clock,
    pub(super) environment: &'a str,
}

/// Enqueues the matmul and a separate epilogue.
type SeparateEpilogue<'a> = &'a dyn Fn(&mut Launcher) -> Result<(), DeviceError>;

struct Candidate {
    method: MatmulMethod,
    /// Runs per batch; 0 if the library rejected the candidate.
    batch: u32,
    best_ms: f64,
}

impl Tuner<'_> {
    /// Does nothing if the shape already has a choice.
    ///
    /// # Errors
    /// No candidate works, or the device fails.
    pub(in super::super) fn tune(
        &mut self,
        matmul: &Matmul,
        separate: Option<SeparateEpilogue>,
        stream: CUstream,
        modules: &mut Modules,
        matmuls: &mut MatmulPlans,
    ) -> Result<(), DeviceError> {
        let shape = matmul.shape();
        if matmuls.choice(&shape).is_some() {
            return Ok(());
        }
        let methods = matmuls.recommended(shape)?.into_iter().map(MatmulMethod::Fused);
        let methods = methods.chain(separate.map(|_| MatmulMethod::Separate));
        let mut candidates: Vec<Candidate> =
            methods.map(|method| Candidate { method, batch: 1, best_ms: f64::INFINITY }).collect();
        let mut enqueue = |method: MatmulMethod| match (method, separate) {
            (MatmulMethod::Separate, Some(separate)) => {
                separate(&mut Launcher::new(stream, modules, matmuls))
            }
            (MatmulMethod::Fused(algorithm), _) => matmuls.enqueue_by(&algorithm, matmul, stream),
            (MatmulMethod::Separate, None) => Ok(()),
        };
        let rejection = warm_up(&mut candidates, &mut enqueue)?;
        self.time(&mut candidates, stream, &mut enqueue)?;
        let fastest = candidates.iter().filter(|candidate| candidate.batch > 0);
        let fastest =
            fastest.min_by(|a, b| a.best_ms.total_cmp(&b.best_ms)).map(|candidate| candidate.method);
        match (fastest, rejection) {
            (Some(method), _) => {
                let setting_and_times = [self.environment.to_owned(), format_times(&candidates)];
                matmuls.select(shape, method, setting_and_times, Source::Timed)
            }
            (None, Some(rejection)) => Err(rejection),
            (None, None) => Ok(()),
        }
    }

    /// Finds each candidate's best time.
    fn time(
        &mut self,
        candidates: &mut [Candidate],
        stream: CUstream,
        enqueue: &mut impl FnMut(MatmulMethod) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.round(candidates, stream, enqueue)?;
        let accepted = candidates.iter_mut().filter(|candidate| candidate.batch > 0);
        let mut round_ms = 0.0;
        for candidate in accepted {
            let runs = (BATCH_MS / candidate.best_ms).ceil();
            candidate.batch = (runs as u32).clamp(1, MAX_BATCH);
            round_ms += candidate.best_ms * f64::from(candidate.batch);
        }
        let rounds = ((BUDGET_MS / round_ms) as usize).clamp(MIN_ROUNDS, MAX_ROUNDS);
        (0..rounds).try_for_each(|_| self.round(candidates, stream, enqueue))
    }

    fn round(
        &mut self,
        candidates: &mut [Candidate],
        stream: CUstream,
        enqueue: &mut impl FnMut(MatmulMethod) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.clock.lap(stream)?;
        for candidate in candidates.iter() {
            (0..candidate.batch).try_for_each(|_| enqueue(candidate.method))?;
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

/// Runs each candidate once, which loads its kernels, and excludes those that the library recommends but rejects.
/// Returns the last rejection.
fn warm_up(
    candidates: &mut [Candidate],
    enqueue: &mut impl FnMut(MatmulMethod) -> Result<(), DeviceError>,
) -> Result<Option<DeviceError>, DeviceError> {
    let mut rejection = None;
    for candidate in candidates {
        match (enqueue(candidate.method), candidate.method) {
            (Ok(()), _) => {}
            (Err(error @ DeviceError::Call { .. }), MatmulMethod::Fused(_)) => {
                candidate.batch = 0;
                rejection = Some(error);
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok(rejection)
}

/// `0.0312 0.0298 refused apart 0.0411`
fn format_times(candidates: &[Candidate]) -> String {
    let times = candidates.iter().map(|candidate| {
        let name = if candidate.method == MatmulMethod::Separate { "apart " } else { "" };
        match candidate.batch {
            0 => "refused".to_owned(),
            _ => format!("{name}{:.4}", candidate.best_ms),
        }
    });
    times.collect::<Vec<_>>().join(" ")
}
