//! `--only`: splits a sweep among several tasks.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use super::job::Job;
use crate::check::counted;

/// Task `number` (from 1) of `of` tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    number: usize,
    of: usize,
}

/// The variables in which a scheduler describes a task of an array.
struct Scheduler {
    name: &'static str,
    id: &'static str,
    /// The first number of an array whose number of tasks is written.
    first: usize,
    /// `None` if variables do not determine the number of tasks: LSF has those of the last number and of the step, but none of
    /// the first number.
    range: Option<Range>,
    /// The id of a job without an array.
    none: &'static str,
}

/// The variables of an array's first and last number and step.
struct Range {
    first: &'static str,
    last: &'static str,
    step: &'static str,
    /// The number of tasks, of a scheduler whose arrays may have gaps.
    count: Option<&'static str>,
}

const SCHEDULERS: [Scheduler; 5] = [
    Scheduler {
        name: "Slurm",
        id: "SLURM_ARRAY_TASK_ID",
        first: 1,
        range: Some(Range {
            first: "SLURM_ARRAY_TASK_MIN",
            last: "SLURM_ARRAY_TASK_MAX",
            step: "SLURM_ARRAY_TASK_STEP",
            count: Some("SLURM_ARRAY_TASK_COUNT"),
        }),
        none: "",
    },
    Scheduler { name: "PBS", id: "PBS_ARRAY_INDEX", first: 1, range: None, none: "" },
    Scheduler { name: "LSF", id: "LSB_JOBINDEX", first: 1, range: None, none: "0" },
    Scheduler {
        name: "Grid Engine",
        id: "SGE_TASK_ID",
        first: 1,
        range: Some(Range {
            first: "SGE_TASK_FIRST",
            last: "SGE_TASK_LAST",
            step: "SGE_TASK_STEPSIZE",
            count: None,
        }),
        none: "undefined",
    },
    Scheduler { name: "Kubernetes", id: "JOB_COMPLETION_INDEX", first: 0, range: None, none: "" },
];

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let wrong = || {
            Err("use NUMBER/TASKS, such as 1/6 to 6/6; in a scheduler's array, `auto` or `auto/6`".to_owned())
        };
        let (number, of) = match text.split_once('/') {
            None if text == "auto" => return Part::of_task(None, |name| std::env::var(name).ok()),
            None => return wrong(),
            Some((number, of)) => (number, of.parse().ok().filter(|of| *of > 0)),
        };
        match (number, number.parse(), of) {
            ("auto", _, Some(of)) => Part::of_task(Some(of), |name| std::env::var(name).ok()),
            (_, Ok(number), Some(of)) if (1..=of).contains(&number) => Ok(Part { number, of }),
            _ => wrong(),
        }
    }
}

impl Part {
    pub(crate) fn number(self) -> usize {
        self.number
    }

    pub(crate) fn of(self) -> usize {
        self.of
    }

    /// The part of this task of an array: of `of` tasks that are numbered from the scheduler's first number on, or of the
    /// whole array with any first number and stride.
    fn of_task(of: Option<usize>, variable: impl Fn(&str) -> Option<String>) -> Result<Part, String> {
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
        let (first, step, of) = match (of, &scheduler.range) {
            (Some(of), _) => (scheduler.first, 1, of),
            (None, Some(range)) => range.read(read)?,
            (None, None) => {
                let name = scheduler.name;
                return Err(format!("{name} has no variable for the number of tasks: write auto/TASKS"));
            }
        };
        let past = id.checked_sub(first).filter(|past| past.is_multiple_of(step));
        match past.map(|past| past / step).filter(|index| *index < of) {
            Some(index) => Ok(Part { number: index + 1, of }),
            None => Err(format!(
                "{} is {id}, outside an array of {} from {first} on: number the tasks from {first} to {}",
                scheduler.id,
                counted(of, "task"),
                first + (of - 1) * step
            )),
        }
    }
}

impl Range {
    /// The first number, the step and the number of tasks of an array without gaps.
    fn read(
        &self,
        variable: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<(usize, usize, usize), String> {
        let (first, last) = (variable(self.first)?, variable(self.last)?);
        let step = variable(self.step)?;
        let past = last.checked_sub(first).and_then(|past| past.checked_div(step));
        let Some(of) = past.and_then(|past| past.checked_add(1)) else {
            return Err(format!(
                "there is no array from {first} to {last} with step {step}: write auto/TASKS"
            ));
        };
        let Some(name) = self.count else { return Ok((first, step, of)) };
        match variable(name)? {
            count if count == of => Ok((first, step, of)),
            count => Err(format!(
                "{name} is {count}, but {} from {first} to {last} with step {step}: use an array without gaps, or write \
                 auto/TASKS",
                counted(of, "task")
            )),
        }
    }
}

/// The number of the part, from 1, of each job of an experiment, by the estimated seconds of each run. Parts take equal time,
/// to within half a job at each end. The jobs that are compared with each other, one point of the sweep in one round, stay
/// together except at a part's end, so that one process measures nearly all of them in turns. Existing results do not change
/// the parts. `strategies` are those of the plan's runs.
pub(super) fn numbers(strategies: &[&str], seconds: &[f64], jobs: &[Job], of: usize) -> Vec<usize> {
    let points = points(strategies);
    let mut places: Vec<usize> = (0..jobs.len()).collect();
    places.sort_by_key(|at| (points[jobs[*at].run], jobs[*at].repeat, jobs[*at].run));
    let total: f64 = jobs.iter().map(|job| seconds[job.run]).sum();
    let (mut numbers, mut before) = (vec![1; jobs.len()], 0.0);
    for at in places {
        let own = seconds[jobs[at].run];
        // Its middle is in its part.
        let number = ((before + own / 2.0) / total * of as f64).max(0.0) as usize;
        numbers[at] = number.min(of - 1) + 1;
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
    fn parts_take_equal_time() {
        let (runs, seconds) = (runs(1, 4), [10.0, 1.0, 1.0, 8.0]);
        let numbers = numbers(&runs, &seconds, &jobs(4, 1), 2);
        assert_eq!(numbers, [1, 2, 2, 2]);
    }

    /// Jobs that are compared stay in one part wherever the numbers allow it.
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
    fn a_written_part_has_number_and_tasks() {
        assert_eq!("2/6".parse(), Ok(Part { number: 2, of: 6 }));
        for text in ["0/6", "7/6", "6", "a/b", "-1/2", "1/0", "auto/0", "slurm"] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
    }

    fn task(of: Option<usize>, variables: &[(&str, &str)]) -> Result<(usize, usize), String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Part::of_task(of, variable).map(|Part { number, of }| (number, of))
    }

    #[test]
    fn a_task_takes_the_number_that_its_scheduler_sets() {
        assert_eq!(task(None, &slurm("14", "10", "14", "2", "3")), Ok((3, 3)));
        for id in ["9", "11", "16"] {
            assert!(task(None, &slurm(id, "10", "14", "2", "3")).is_err(), "{id}");
        }
        let sge = [
            ("SGE_TASK_ID", "3"),
            ("SGE_TASK_FIRST", "1"),
            ("SGE_TASK_LAST", "4"),
            ("SGE_TASK_STEPSIZE", "1"),
        ];
        assert_eq!(task(None, &sge), Ok((3, 4)));
        let only = slurm("8", "7", "7", "1", "1");
        assert!(task(None, &only).unwrap_err().contains("an array of 1 task from 7 on"));
    }

    fn slurm<'a>(
        id: &'a str,
        first: &'a str,
        last: &'a str,
        step: &'a str,
        count: &'a str,
    ) -> [(&'static str, &'a str); 5] {
        [
            ("SLURM_ARRAY_TASK_ID", id),
            ("SLURM_ARRAY_TASK_MIN", first),
            ("SLURM_ARRAY_TASK_MAX", last),
            ("SLURM_ARRAY_TASK_STEP", step),
            ("SLURM_ARRAY_TASK_COUNT", count),
        ]
    }

    /// Otherwise parts would be missing without a message.
    #[test]
    fn an_array_of_unknown_size_needs_the_number_of_tasks() {
        let gaps = task(None, &slurm("7", "1", "7", "1", "2")).unwrap_err();
        assert!(gaps.contains("SLURM_ARRAY_TASK_COUNT is 2, but 7 tasks from 1 to 7"), "{gaps}");
        let huge = &usize::MAX.to_string();
        for (first, last, step) in [("1", "7", "x"), ("1", "7", "0"), ("7", "1", "1"), ("0", huge, "1")] {
            assert!(task(None, &slurm("7", first, last, step, "7")).is_err(), "{first}-{last}:{step}");
        }
        // An array may begin at another number than 1.
        let lsf = [("LSB_JOBINDEX", "4"), ("LSB_JOBINDEX_END", "5"), ("LSB_JOBINDEX_STEP", "1")];
        let unknown = task(None, &lsf).unwrap_err();
        assert_eq!(unknown, "LSF has no variable for the number of tasks: write auto/TASKS");
        assert_eq!(task(Some(6), &lsf), Ok((4, 6)));
    }

    #[test]
    fn the_number_of_tasks_may_be_written() {
        // A list of ids, as when only some tasks have missing runs.
        let slurm =
            [("SLURM_ARRAY_TASK_ID", "7"), ("SLURM_ARRAY_TASK_MIN", "3"), ("SLURM_ARRAY_TASK_MAX", "7")];
        assert_eq!(task(Some(12), &slurm), Ok((7, 12)));
        assert_eq!(task(Some(4), &[("PBS_ARRAY_INDEX", "4")]), Ok((4, 4)));
        assert_eq!(task(Some(usize::MAX), &[("JOB_COMPLETION_INDEX", "0")]), Ok((1, usize::MAX)));
        let zero = task(Some(4), &[("PBS_ARRAY_INDEX", "0")]).unwrap_err();
        assert!(zero.contains("number the tasks from 1 to 4"), "{zero}");
        for none in [&[][..], &[("SGE_TASK_ID", "undefined")], &[("LSB_JOBINDEX", "0")]] {
            assert!(task(Some(4), none).unwrap_err().contains("not a task of an array"), "{none:?}");
        }
    }
}
