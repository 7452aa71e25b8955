//! The files of a run's folder: losses and the timeline of a step.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::ReportError;
use crate::prediction;
use crate::timeline::{self, Timeline};
use base::regular;
use base::units::Bytes;
use device::ByRole;
use execute::{MEMORY_FILE, STEPS_FILE};
use results::Row;

/// The largest size of a file: some million lines.
const LARGEST: Bytes = Bytes(256 << 20);
const RUN_FILE: &str = "run.toml";
const TARGET_FILE: &str = "target.toml";
const EVALUATIONS_FILE: &str = "evaluations.csv";
/// Repeats are numbered from 1; the first few are searched for.
const MOST_REPEATS: usize = 100;

/// The content of the folder of a run's first repeat, as far as there is one.
#[derive(Debug, Default)]
pub(crate) struct RunFiles {
    /// What was read.
    pub(crate) depth: Depth,
    /// The path of `run.toml`.
    pub(crate) run: Option<PathBuf>,
    /// By step.
    pub(crate) losses: Vec<(u64, f64)>,
    pub(crate) evaluations: Vec<(u64, f64)>,
    pub(crate) timeline: Option<Timeline>,
    /// The predicted live bytes at the peak.
    pub(crate) predicted: Option<ByRole>,
}

/// The files to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(crate) enum Depth {
    #[default]
    Path,
    /// Losses, and the prediction.
    Losses,
    /// Also the timeline of a step.
    Timeline,
}

#[derive(Deserialize)]
struct StepLoss {
    step: u64,
    loss: Option<f64>,
}

impl RunFiles {
    /// Reads the files of a run below the folders that belong to its tables.
    ///
    /// # Errors
    /// A file is unreadable or malformed.
    pub(crate) fn read(row: &Row, folders: &[PathBuf], depth: Depth) -> Result<RunFiles, ReportError> {
        // The id comes from a table. Those of this program are hexadecimal.
        if row.run_id.is_empty() || !row.run_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(RunFiles::default());
        }
        let of_repeat = |repeat: usize| {
            let files = |folder: &PathBuf| {
                let folder = results::run_folder(folder, &row.run_id).join(repeat.to_string());
                (folder.join(RUN_FILE), folder)
            };
            folders.iter().map(files).find(|(run, _)| run.is_file())
        };
        let Some((run, folder)) = (1..=MOST_REPEATS.min(row.repeat.max(1))).find_map(of_repeat) else {
            return Ok(RunFiles::default());
        };
        let losses = |name: &str| -> Result<Vec<(u64, f64)>, ReportError> {
            let lines: Vec<StepLoss> = read(&folder.join(name))?;
            let finite = lines.into_iter().filter_map(|line| Some((line.step, line.loss?)));
            Ok(finite.filter(|(_, loss)| loss.is_finite()).collect())
        };
        let (memory, target) = (folder.join(MEMORY_FILE), folder.join(TARGET_FILE));
        if depth == Depth::Path {
            return Ok(RunFiles { run: Some(run), ..RunFiles::default() });
        }
        let timeline = match depth {
            Depth::Timeline => {
                open(&memory)?.map(|reader| timeline::read(reader).map_err(|error| broken(&memory, error)))
            }
            _ => None,
        };
        Ok(RunFiles {
            depth,
            losses: losses(STEPS_FILE)?,
            evaluations: losses(EVALUATIONS_FILE)?,
            timeline: timeline.transpose()?.flatten(),
            predicted: prediction::live_at_peak(&run, &target, row.predicted_peak_bytes),
            run: Some(run),
        })
    }
}

pub(crate) type Reader = csv::Reader<io::BufReader<io::Take<regular::Uninterrupted>>>;

/// `None` if there is no such file.
fn open(file: &Path) -> Result<Option<Reader>, ReportError> {
    match regular::open_up_to(file, LARGEST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(broken(file, regular::reason(&error))),
        Ok(opened) => Ok(Some(csv::Reader::from_reader(io::BufReader::new(opened)))),
    }
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>, ReportError> {
    let Some(mut reader) = open(file)? else { return Ok(Vec::new()) };
    reader.deserialize().collect::<Result<_, _>>().map_err(|error| broken(file, error))
}

fn broken(file: &Path, problem: impl Display) -> ReportError {
    ReportError::Unreadable { file: file.to_path_buf(), problem: problem.to_string() }
}
