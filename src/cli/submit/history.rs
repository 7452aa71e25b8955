//! Earlier submissions: which tasks had too little memory or time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::groups::Group;
use super::slurm;
use crate::failure::Failure;
use crate::sweep::TIME_LIMIT;
use base::regular;
use base::temporary;
use execute::KILLED;
use results::{Row, Status};

/// A submission, as it is stored beside its logs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Submission {
    /// Seconds since 1970.
    time: u64,
    arrays: Vec<Array>,
    /// The job after the arrays. `None` if Slurm refused a job after it had accepted these arrays.
    last: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Array {
    job: String,
    mib: Option<u64>,
    minutes: Option<u64>,
    /// The configuration and repeat of each run, by the number of the task.
    tasks: BTreeMap<usize, Vec<(String, usize)>>,
}

/// What a task of an earlier submission had too little of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    /// `12_3`
    pub(super) task: String,
    /// The requested MiB, if they did not suffice; 0 if none were requested.
    pub(super) mib: Option<u64>,
    /// The requested minutes, likewise.
    pub(super) minutes: Option<u64>,
}

/// By the configuration and repeat of a run.
pub(super) type Shortages = HashMap<(String, usize), Shortage>;

impl Submission {
    /// `jobs` are the accepted arrays, of the first groups.
    pub(super) fn new(time: u64, jobs: Vec<String>, last: Option<String>, groups: Vec<Group>) -> Submission {
        let array = |(job, group): (String, Group)| Array {
            job,
            mib: group.resources.mib,
            minutes: group.resources.minutes,
            tasks: group.tasks,
        };
        Submission { time, arrays: jobs.into_iter().zip(groups).map(array).collect(), last }
    }

    fn jobs(&self) -> impl Iterator<Item = &str> {
        self.arrays.iter().map(|array| array.job.as_str()).chain(self.last.as_deref())
    }

    /// Writes the submission to the folder of logs.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Failure> {
        // Numbers of jobs start again when a scheduler loses its state.
        let file = folder.join(format!("{}-{}.json", self.time, self.jobs().last().unwrap_or_default()));
        let write = |to: &mut std::io::BufWriter<&fs::File>| Ok(serde_json::to_writer_pretty(to, self)?);
        temporary::replace(&file, write)
            .map_err(|error| Failure::machine(format!("cannot write {}: {error}", file.display())))
    }
}

/// The submissions of a folder, oldest first.
///
/// # Errors
/// A file is unreadable.
pub(super) fn read(folder: &Path) -> Result<Vec<Submission>, Failure> {
    let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = |path: &Path| {
        let text = regular::read_to_string(path).map_err(|error| regular::reason(&error))?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    let mut submissions = files
        .map(|path| {
            let help = "remove it: then only the memory and time of earlier tasks are forgotten";
            read(&path).map_err(|error| {
                Failure::input(format!("cannot read {}: {error}\n = help: {help}", path.display()))
            })
        })
        .collect::<Result<Vec<Submission>, Failure>>()?;
    submissions.sort_by_key(|submission| submission.time);
    Ok(submissions)
}

/// Fails if a job of the submissions is queued or runs.
pub(super) fn check_ended(submissions: &[Submission]) -> Result<(), Failure> {
    let queued = slurm::queued();
    let waiting: Vec<&str> =
        submissions.iter().flat_map(Submission::jobs).filter(|job| queued.contains(*job)).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let jobs = waiting.join(" ");
    Err(Failure::input(format!(
        "jobs of an earlier submission are queued or run: {jobs}\n = help: wait for them, or end them with `scancel {jobs}`"
    )))
}

/// The shortage of the latest task of each configuration and repeat, by the scheduler's states and by the rows of unfinished
/// runs.
pub(super) fn shortages(submissions: &[Submission], rows: &[Row]) -> Shortages {
    let ids: Vec<&str> =
        submissions.iter().flat_map(|one| &one.arrays).map(|array| array.job.as_str()).collect();
    let states = if ids.is_empty() { HashSet::new() } else { slurm::states(&ids) };
    from_states(submissions, rows, &states)
}

fn from_states(submissions: &[Submission], rows: &[Row], states: &HashSet<(String, String)>) -> Shortages {
    let rows: HashMap<(&str, usize), &Row> =
        rows.iter().map(|row| ((row.configuration.as_str(), row.repeat), row)).collect();
    let mut shortages = HashMap::new();
    for array in submissions.iter().flat_map(|submission| &submission.arrays) {
        for (number, runs) in &array.tasks {
            let task = format!("{}_{number}", array.job);
            let was = |state: &str| states.contains(&(task.clone(), state.to_owned()));
            for run in runs {
                let row = rows.get(&(run.0.as_str(), run.1));
                let was_killed =
                    row.is_some_and(|row| row.status == Status::Failed && row.message.contains(KILLED));
                let was_ended =
                    row.is_some_and(|row| row.status == Status::Interrupted && row.message == TIME_LIMIT);
                let shortage = Shortage {
                    task: task.clone(),
                    mib: (was("OUT_OF_MEMORY") || was_killed).then_some(array.mib.unwrap_or(0)),
                    minutes: (was("TIMEOUT") || was_ended).then_some(array.minutes.unwrap_or(0)),
                };
                // A later submission replaces an earlier one.
                shortages.insert(run.clone(), shortage);
            }
        }
    }
    shortages.retain(|_, shortage| shortage.mib.is_some() || shortage.minutes.is_some());
    shortages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(time: u64, job: &str, mib: u64) -> Submission {
        let tasks = BTreeMap::from([
            (1, vec![("a".to_owned(), 1)]),
            (2, vec![("b".to_owned(), 1), ("c".to_owned(), 1)]),
        ]);
        let arrays = vec![Array { job: job.into(), mib: Some(mib), minutes: Some(10), tasks }];
        Submission { time, arrays, last: Some("99".into()) }
    }

    fn row(configuration: &str, status: Status, message: &str) -> Row {
        Row {
            configuration: configuration.into(),
            repeat: 1,
            status,
            message: message.into(),
            ..Row::default()
        }
    }

    fn of(configuration: &str) -> (String, usize) {
        (configuration.to_owned(), 1)
    }

    #[test]
    fn task_states_distinguish_memory_from_time() {
        let states = [("12_1", "OUT_OF_MEMORY"), ("12_2", "TIMEOUT"), ("13_1", "TIMEOUT")];
        let states = states.map(|(task, state)| (task.to_owned(), state.to_owned())).into();
        let found = from_states(&[submission(1, "12", 512)], &[], &states);
        assert_eq!(found[&of("a")], Shortage { task: "12_1".into(), mib: Some(512), minutes: None });
        assert_eq!(found[&of("c")], Shortage { task: "12_2".into(), mib: None, minutes: Some(10) });
    }

    #[test]
    fn rows_distinguish_memory_from_time_without_states() {
        let killed = row("a", Status::Failed, &format!("rank 1 {KILLED}; see log.txt"));
        let ended = row("b", Status::Interrupted, TIME_LIMIT);
        let own = row("c", Status::Oom, "");
        let found = from_states(&[submission(1, "12", 512)], &[killed, ended, own], &HashSet::new());
        assert_eq!((found[&of("a")].mib, found[&of("b")].minutes), (Some(512), Some(10)));
        assert!(!found.contains_key(&of("c")), "a run's own limit is a result");
    }

    #[test]
    fn the_latest_submission_counts() {
        let states = [("12_1", "OUT_OF_MEMORY"), ("13_1", "OUT_OF_MEMORY"), ("12_2", "TIMEOUT")];
        let states = states.map(|(task, state)| (task.to_owned(), state.to_owned())).into();
        let found = from_states(&[submission(1, "12", 512), submission(2, "13", 1024)], &[], &states);
        assert_eq!(found[&of("a")].mib, Some(1024));
        assert!(!found.contains_key(&of("b")), "13_2 had enough");
    }
}
