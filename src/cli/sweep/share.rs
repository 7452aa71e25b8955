//! `--only`: splits a sweep among several tasks.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use super::job::Job;

/// Task `number` (from 1) of `of` tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    number: usize,
    of: usize,
}

/// The variables in which a scheduler describes a task of an array.
struct Scheduler {
    id: &'static str,
    /// The first number, or the variable that has it.
    first: Result<usize, &'static str>,
    last: Option<&'static str>,
    step: Option<&'static str>,
    /// The id of a job without an array.
    none: &'static str,
}

const SCHEDULERS: [Scheduler; 5] = [
    Scheduler {
        id: "SLURM_ARRAY_TASK_ID",
        first: Err("SLURM_ARRAY_TASK_MIN"),
        last: Some("SLURM_ARRAY_TASK_MAX"),
        step: Some("SLURM_ARRAY_TASK_STEP"),
        none: "",
    },
    Scheduler { id: "PBS_ARRAY_INDEX", first: Ok(1), last: None, step: None, none: "" },
    Scheduler {
        id: "LSB_JOBINDEX",
        first: Ok(1),
        last: Some("LSB_JOBINDEX_END"),
        step: Some("LSB_JOBINDEX_STEP"),
        none: "0",
    },
    Scheduler {
        id: "SGE_TASK_ID",
        first: Err("SGE_TASK_FIRST"),
        last: Some("SGE_TASK_LAST"),
        step: Some("SGE_TASK_STEPSIZE"),
        none: "undefined",
    },
    Scheduler { id: "JOB_COMPLETION_INDEX", first: Ok(0), last: None, step: None, none: "" },
];

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let wrong = || {
            Err("use NUMBER/TASKS, such as 1/6 to 6/6; in a scheduler's array, `auto` or `auto/6`".to_owned())
        };
        let (number, of) = match text.split_once('/') {
            None if text == "auto" => return Share::of_task(None, |name| std::env::var(name).ok()),
            None => return wrong(),
            Some((number, of)) => (number, of.parse().ok().filter(|of| *of > 0)),
        };
        match (number, number.parse(), of) {
            ("auto", _, Some(of)) => Share::of_task(Some(of), |name| std::env::var(name).ok()),
            (_, Ok(number), Some(of)) if (1..=of).contains(&number) => Ok(Share { number, of }),
            _ => wrong(),
        }
    }
}

impl Share {
    pub(crate) fn number(self) -> usize {
        self.number
    }

    pub(crate) fn of(self) -> usize {
        self.of
    }

    /// The share of this task of an array: of `of` tasks that are numbered from the scheduler's first number on, or of the
    /// whole array with any first number and stride.
    fn of_task(of: Option<usize>, variable: impl Fn(&str) -> Option<String>) -> Result<Share, String> {
        let found = SCHEDULERS.iter().find_map(|scheduler| {
            let id = variable(scheduler.id).filter(|id| !id.is_empty() && id != scheduler.none)?;
            Some((scheduler, id))
        });
        let Some((scheduler, id)) = found else {
            let names = SCHEDULERS.map(|scheduler| scheduler.id).join(", ");
            return Err(format!("this is not a task of an array: none of {names} is set"));
        };
        let number = |name: &str, text: &str| {
            text.parse::<usize>().map_err(|_| format!("{name} is `{text}`, not a number"))
        };
        let read = |name: &str| {
            let text = variable(name).ok_or_else(|| format!("{name} is not set: write auto/TASKS"))?;
            number(name, &text)
        };
        let id = number(scheduler.id, &id)?;
        let (first, step, of) = match (of, scheduler.last) {
            (Some(of), _) => (scheduler.first.unwrap_or(1), 1, of),
            (None, None) => {
                let name = scheduler.id;
                return Err(format!(
                    "the scheduler of {name} does not tell the number of tasks: write auto/TASKS"
                ));
            }
            (None, Some(last)) => {
                let first = scheduler.first.or_else(read)?;
                let step = scheduler.step.and_then(|step| read(step).ok()).unwrap_or(1).max(1);
                (first, step, read(last)?.saturating_sub(first) / step + 1)
            }
        };
        let number =
            id.checked_sub(first).filter(|past| past.is_multiple_of(step)).map(|past| past / step + 1);
        match number {
            Some(number) if number <= of => Ok(Share { number, of }),
            _ => Err(format!(
                "{} is {id}, outside an array of {of} tasks from {first} on: number the tasks from {first} to {}",
                scheduler.id,
                first + (of - 1) * step
            )),
        }
    }
}

/// The number of the share, from 1, of each job of an experiment, by the estimated seconds of each run. Shares take equal time,
/// to within half a job at each end. The jobs that are compared with each other, one point of the sweep in one round, stay
/// together except at a share's end, so that one process measures nearly all of them in turns. Existing results do not change
/// the shares. `strategies` are those of the plan's runs.
pub(super) fn numbers(strategies: &[&str], seconds: &[f64], jobs: &[Job], of: usize) -> Vec<usize> {
    let points = points(strategies);
    let mut places: Vec<usize> = (0..jobs.len()).collect();
    places.sort_by_key(|at| (points[jobs[*at].run], jobs[*at].repeat, jobs[*at].run));
    let total: f64 = jobs.iter().map(|job| seconds[job.run]).sum();
    let (mut numbers, mut before) = (vec![1; jobs.len()], 0.0);
    for at in places {
        let own = seconds[jobs[at].run];
        // Its middle is in its share.
        numbers[at] = 1 + ((before + own / 2.0) / total * of as f64).max(0.0) as usize;
        numbers[at] = numbers[at].min(of);
        before += own;
    }
    numbers
}

/// The index of each run's sweep point: a new point begins where a strategy occurs again.
fn points(strategies: &[&str]) -> Vec<usize> {
    let (mut point, mut met) = (0, HashSet::new());
    let mut points = Vec::with_capacity(strategies.len());
    for &strategy in strategies {
        if !met.insert(strategy) {
            point += 1;
            met = HashSet::from([strategy]);
        }
        points.push(point);
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(runs: usize, repeats: usize) -> Vec<Job> {
        let of = |repeat| (0..runs).map(move |run| Job { sweep: 0, run, repeat });
        (1..=repeats).flat_map(of).collect()
    }

    fn runs(points: usize, strategies: usize) -> Vec<&'static str> {
        const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
        (0..points).flat_map(|_| NAMES[..strategies].iter().copied()).collect()
    }

    fn sizes(numbers: &[usize], of: usize) -> Vec<usize> {
        (1..=of).map(|number| numbers.iter().filter(|own| **own == number).count()).collect()
    }

    #[test]
    fn jobs_of_equal_time_are_split_evenly() {
        for (points, strategies, repeats) in [(2, 3, 4), (1, 1, 1), (3, 5, 6), (1, 7, 1)] {
            let runs = runs(points, strategies);
            let all = jobs(runs.len(), repeats);
            for of in [1, 2, 5, 6, 40] {
                let numbers = numbers(&runs, &vec![3.0; runs.len()], &all, of);
                assert!(numbers.iter().all(|number| (1..=of).contains(number)), "{numbers:?}");
                let even = all.len() / of..=all.len().div_ceil(of);
                let sizes = sizes(&numbers, of);
                assert!(sizes.iter().all(|size| even.contains(size)), "{sizes:?} of {}", all.len());
            }
        }
    }

    #[test]
    fn shares_take_equal_time() {
        let (runs, seconds) = (runs(1, 4), [10.0, 1.0, 1.0, 8.0]);
        let numbers = numbers(&runs, &seconds, &jobs(4, 1), 2);
        assert_eq!(numbers, [1, 2, 2, 2]);
    }

    /// Jobs that are compared stay in one share wherever the numbers allow it.
    #[test]
    fn a_round_of_a_point_stays_together() {
        let (runs, all) = (runs(2, 3), jobs(6, 4));
        let numbers = numbers(&runs, &[1.0; 6], &all, 4);
        for number in 1..=4 {
            let own = all.iter().zip(&numbers).filter(|(_, own)| **own == number);
            let rounds: Vec<(usize, usize)> = own.map(|(job, _)| (job.run / 3, job.repeat)).collect();
            let distinct: HashSet<_> = rounds.iter().collect();
            assert_eq!((rounds.len(), distinct.len()), (6, 2), "{number}/4");
        }
    }

    #[test]
    fn a_written_share_has_number_and_tasks() {
        assert_eq!("2/6".parse(), Ok(Share { number: 2, of: 6 }));
        for text in ["0/6", "7/6", "6", "a/b", "-1/2", "1/0", "auto/0", "slurm"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    fn task(of: Option<usize>, variables: &[(&str, &str)]) -> Result<(usize, usize), String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Share::of_task(of, variable).map(|Share { number, of }| (number, of))
    }

    #[test]
    fn a_task_takes_the_number_that_its_scheduler_sets() {
        let slurm = |id| {
            [
                ("SLURM_ARRAY_TASK_ID", id),
                ("SLURM_ARRAY_TASK_MIN", "10"),
                ("SLURM_ARRAY_TASK_MAX", "14"),
                ("SLURM_ARRAY_TASK_STEP", "2"),
            ]
        };
        assert_eq!(task(None, &slurm("14")), Ok((3, 3)));
        assert!(
            task(None, &slurm("9")).is_err()
                && task(None, &slurm("11")).is_err()
                && task(None, &slurm("16")).is_err()
        );
        let sge = [("SGE_TASK_ID", "3"), ("SGE_TASK_FIRST", "1"), ("SGE_TASK_LAST", "4")];
        assert_eq!(task(None, &sge), Ok((3, 4)));
        assert_eq!(task(None, &[("LSB_JOBINDEX", "2"), ("LSB_JOBINDEX_END", "5")]), Ok((2, 5)));
    }

    #[test]
    fn the_number_of_tasks_may_be_written() {
        // A list of ids, as when only some tasks have missing runs.
        let slurm =
            [("SLURM_ARRAY_TASK_ID", "7"), ("SLURM_ARRAY_TASK_MIN", "3"), ("SLURM_ARRAY_TASK_MAX", "7")];
        assert_eq!(task(Some(12), &slurm), Ok((7, 12)));
        assert_eq!(task(Some(4), &[("PBS_ARRAY_INDEX", "4")]), Ok((4, 4)));
        assert_eq!(task(Some(4), &[("JOB_COMPLETION_INDEX", "0")]), Ok((1, 4)));
        let zero = task(Some(4), &[("PBS_ARRAY_INDEX", "0")]).unwrap_err();
        assert!(zero.contains("number the tasks from 1 to 4"), "{zero}");
        let unknown = task(None, &[("PBS_ARRAY_INDEX", "2")]).unwrap_err();
        assert!(unknown.contains("write auto/TASKS"), "{unknown}");
        for none in [&[][..], &[("SGE_TASK_ID", "undefined")], &[("LSB_JOBINDEX", "0")]] {
            assert!(task(Some(4), none).unwrap_err().contains("not a task of an array"), "{none:?}");
        }
    }
}
