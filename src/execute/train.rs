//! The training engine's place: steps that train nothing.

use std::path::Path;
use std::time::Duration;

use super::{Ended, Measurement, Message, Reporter};

/// Executes the run whose configuration lies in the folder.
///
/// # Errors
///
/// Says what cannot be read or written.
pub fn run(folder: &Path, reporter: &mut Reporter) -> Result<Measurement, String> {
    let text = std::fs::read_to_string(folder.join("run.toml")).map_err(|error| error.to_string())?;
    let number = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    let (steps, pause) = (number("steps"), Duration::from_millis(1));
    reporter.send(&Message::Started { device: "stub".into(), steps: steps as usize });
    for step in 1..=steps as usize {
        std::thread::sleep(pause);
        reporter.send(&Message::Step {
            step,
            steps: steps as usize,
            timed: step > 1,
            loss: Some(5.0 / step as f64),
            tokens_per_s: Some(1e3),
            live_bytes: 1 << 20,
        });
    }
    Ok(Measurement {
        ended: Ended::Complete,
        peak_bytes: Some(1 << 20),
        tokens_per_s: Some(1e3),
        loss_last: Some(1.0),
    })
}
