//! `--only`: splits a sweep among several tasks.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use super::job::Job;

/// Task `number` (from 1) of `of` tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    number: usize,
    of: usize,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        if text == "slurm" {
            return Share::of_slurm(|name| std::env::var(name).ok());
        }
        let parts =
            text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Share { number, of }),
            _ => Err("use NUMBER/TASKS, such as 1/6 to 6/6, or `slurm` in an array task".to_owned()),
        }
    }
}

impl Share {
    /// An array's indices may begin at any number and have any stride.
    fn of_slurm(variable: impl Fn(&str) -> Option<String>) -> Result<Share, String> {
        let read = |name: &str| {
            let value = variable(name)
                .ok_or_else(|| format!("{name} is not set: this is not a task of a Slurm array"))?;
            value.parse::<usize>().map_err(|_| format!("{name} is `{value}`, not a number"))
        };
        let (id, least, of) =
            (read("SLURM_ARRAY_TASK_ID")?, read("SLURM_ARRAY_TASK_MIN")?, read("SLURM_ARRAY_TASK_COUNT")?);
        let step = variable("SLURM_ARRAY_TASK_STEP").and_then(|step| step.parse().ok()).unwrap_or(1).max(1);
        let number = id.saturating_sub(least) / step + 1;
        if id < least || number > of {
            return Err(format!("task {id} is outside its array of {of} tasks from {least} on"));
        }
        Ok(Share { number, of })
    }

    /// This task's share of an experiment's jobs. Shares differ by at most one job. The jobs that are compared with each other,
    /// one point of the sweep in one round, stay together except at a share's end, so that one process measures nearly all of
    /// them in turns. Existing results do not change the shares. `strategies` are those of the plan's runs.
    pub(super) fn take(self, strategies: &[&str], jobs: &mut Vec<Job>) {
        let points = points(strategies);
        let mut places: Vec<usize> = (0..jobs.len()).collect();
        places.sort_by_key(|at| (points[jobs[*at].run], jobs[*at].repeat, jobs[*at].run));
        let bound = |number: usize| places.len() * number / self.of;
        let own: HashSet<usize> =
            places[bound(self.number - 1)..bound(self.number)].iter().copied().collect();
        let mut at = 0..;
        jobs.retain(|_| at.next().is_some_and(|at| own.contains(&at)));
    }
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

    /// Every job belongs to exactly one task, and shares differ by at most one job.
    #[test]
    fn tasks_share_all_evenly() {
        for (points, strategies, repeats) in [(2, 3, 4), (1, 1, 1), (3, 5, 6), (1, 7, 1)] {
            let runs = runs(points, strategies);
            let all = jobs(runs.len(), repeats);
            for of in [1, 2, 5, 6, 40] {
                let mut met = HashSet::new();
                for number in 1..=of {
                    let mut own = jobs(runs.len(), repeats);
                    Share { number, of }.take(&runs, &mut own);
                    assert!((all.len() / of..=all.len().div_ceil(of)).contains(&own.len()), "{number}/{of}");
                    assert!(own.iter().all(|job| met.insert((job.run, job.repeat))), "{number}/{of}");
                    assert!(own.is_sorted_by_key(|job| (job.repeat, job.run)), "in the order they came in");
                }
                assert_eq!(met.len(), all.len());
            }
        }
    }

    /// Jobs that are compared stay in one share wherever the numbers allow it.
    #[test]
    fn a_round_of_a_point_stays_together() {
        let runs = runs(2, 3);
        for number in 1..=4 {
            let mut own = jobs(runs.len(), 4);
            Share { number, of: 4 }.take(&runs, &mut own);
            let rounds: HashSet<(usize, usize)> = own.iter().map(|job| (job.run / 3, job.repeat)).collect();
            assert_eq!((own.len(), rounds.len()), (6, 2), "{number}/4");
        }
    }

    #[test]
    fn a_share_is_written_or_the_schedulers() {
        assert_eq!("2/6".parse(), Ok(Share { number: 2, of: 6 }));
        for text in ["0/6", "7/6", "6", "a/b", "-1/2", "1/0"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        let array = |id: &'static str, least: &'static str, count: &'static str, step: &'static str| {
            Share::of_slurm(move |name| {
                let value = match name.rsplit('_').next()? {
                    "ID" => id,
                    "MIN" => least,
                    "COUNT" => count,
                    _ => step,
                };
                Some(value.to_owned()).filter(|value| !value.is_empty())
            })
        };
        assert_eq!(array("0", "0", "6", "1"), Ok(Share { number: 1, of: 6 }));
        assert_eq!(array("14", "10", "3", "2"), Ok(Share { number: 3, of: 3 }));
        assert!(array("9", "10", "3", "1").is_err() && array("", "0", "3", "1").is_err());
        assert!(array("16", "10", "3", "2").is_err());
    }
}
