//! The bash script that submits the arrays, and after them the job that completes the sweep.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use super::groups::{Group, Resources};
use crate::failure::Failure;
use base::shell::quoted;

/// What the script prints before the number of an array and of the last job.
pub(super) const ARRAY: &str = "submitted array ";
pub(super) const LAST: &str = "submitted job ";

/// The signal before the time limit.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub(super) name: String,
    /// Seconds before the limit. It may come up to a minute earlier.
    pub(super) lead: u64,
}

impl FromStr for Signal {
    type Err = String;

    fn from_str(text: &str) -> Result<Signal, String> {
        let (name, lead) = text.split_once('@').unwrap_or((text, "90"));
        match lead.parse() {
            Ok(lead @ 1..=65535) if ["USR1", "USR2", "TERM", "INT"].contains(&name) => {
                Ok(Signal { name: name.to_owned(), lead })
            }
            _ => Err("use USR1, USR2, TERM or INT, and the seconds before the limit: USR2@90".to_owned()),
        }
    }
}

/// What all jobs have in common.
pub(super) struct Script<'a> {
    /// What it submits, in a line.
    pub(super) title: String,
    pub(super) name: String,
    pub(super) folder: &'a Path,
    /// The folder of logs.
    pub(super) logs: &'a Path,
    /// `runner sweep FILES` with its options.
    pub(super) command: Vec<String>,
    pub(super) signal: &'a Signal,
    pub(super) partition: Option<&'a str>,
    /// Further options of `sbatch`.
    pub(super) options: &'a [String],
}

impl Script<'_> {
    /// The whole script. `last` are the options of the command of the last job.
    ///
    /// # Errors
    /// A line break in a path or option, a backslash in the folder of logs, a word that is not an option.
    pub(super) fn text(&self, groups: &[Group], last: &[String]) -> Result<String, Failure> {
        let (folder, logs) = (self.folder.display().to_string(), self.logs.display().to_string());
        let mut words = vec![folder.as_str(), &logs, &self.title];
        words.extend(self.command.iter().chain(last).chain(self.options).map(String::as_str));
        words.extend(self.partition);
        if let Some(word) = words.iter().find(|word| word.contains('\n')) {
            return Err(Failure::input(format!(
                "{word:?} has a line break, which a batch script cannot have"
            )));
        }
        if logs.contains('\\') {
            return Err(Failure::input(format!(
                "{logs:?} has a backslash, which Slurm removes from the path of a log\n = help: choose another folder with --out"
            )));
        }
        let mut text = format!(
            "#!/bin/bash\n# {}\nset -euo pipefail\ncd {}\nmkdir -p {}\n",
            self.title,
            quoted(&folder),
            quoted(&logs)
        );
        for (index, group) in groups.iter().enumerate() {
            let tasks = ranges(group.tasks.keys());
            let array = [format!("--array={}", tasks.join(","))];
            let mut own: Vec<String> =
                ranges(&group.runs).into_iter().flat_map(|runs| ["--run".to_owned(), runs]).collect();
            own.extend(["--only".to_owned(), format!("auto/{}", group.of)]);
            let job = self.job(&array, &group.resources, "%A_%a", &own)?;
            text.push_str(&format!(
                "\narray{index}=$(sbatch --parsable <<'END'\n{job}END\n)\necho \"{ARRAY}${{array{index}%%;*}}\"\n"
            ));
        }
        let resources = groups.iter().map(|group| group.resources).reduce(Resources::max).unwrap_or_default();
        let arrays: String = (0..groups.len()).map(|index| format!(":${{array{index}%%;*}}")).collect();
        let job = self.job(&[], &resources, "%A", last)?;
        text.push_str(&format!(
            "\n# Completes what is missing, and prints the tables to its log.\nlast=$(sbatch --parsable \
             --dependency=afterany{arrays} <<'END'\n{job}END\n)\necho \"{LAST}${{last%%;*}}\"\n"
        ));
        Ok(text)
    }

    /// A batch script. It ends in `exec`: a signal reaches the batch shell, not its foreground child.
    fn job(
        &self,
        own: &[String],
        resources: &Resources,
        log: &str,
        options: &[String],
    ) -> Result<String, Failure> {
        let Resources { cards, cpus, mib, minutes } = *resources;
        let Signal { name: signal, lead } = self.signal;
        let logs = self.logs.display().to_string().replace('%', "%%");
        let mut lines = vec![format!("--job-name={}", self.name)];
        lines.extend_from_slice(own);
        if let Some(partition) = self.partition {
            lines.push(directive(&format!("--partition={partition}"))?);
        }
        lines.push(format!("--nodes=1 --ntasks=1 --cpus-per-task={cpus}"));
        lines.extend((cards > 0).then(|| format!("--gpus-per-task={cards}")));
        lines.extend(mib.map(|mib| format!("--mem={mib}M")));
        lines.extend(minutes.map(|minutes| format!("--time={}:{:02}:00", minutes / 60, minutes % 60)));
        lines.push(format!("--signal=B:{signal}@{lead} --requeue --open-mode=append"));
        lines.push(directive(&format!("--output={logs}/%x-{log}.log"))?);
        for option in self.options {
            lines.push(directive(option)?);
        }
        let lines: String = lines.iter().map(|line| format!("#SBATCH {line}\n")).collect();
        let words: Vec<String> = self.command.iter().chain(options).map(|word| quoted(word)).collect();
        Ok(format!("#!/bin/bash\n{lines}exec {}\n", words.join(" ")))
    }
}

/// An option of `sbatch` as it reads it in a script: `\` escapes the next character, also in quotes.
fn directive(option: &str) -> Result<String, Failure> {
    let is_plain = |text: &str| quoted(text) == text;
    let (name, value) = option.split_once('=').unwrap_or((option, "value"));
    if !name.starts_with('-') || !is_plain(name) {
        return Err(Failure::input(format!(
            "{option:?} is not an option of sbatch with its value\n = help: write it as one word, such as --account=me"
        )));
    }
    match is_plain(value) {
        true => Ok(option.to_owned()),
        false => Ok(format!("{name}=\"{}\"", value.replace('\\', r"\\").replace('"', r#"\""#))),
    }
}

/// `1-4`, `7`
fn ranges<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> Vec<String> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let sorted: BTreeSet<usize> = numbers.into_iter().copied().collect();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_ranges() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), ["1-3", "7", "9-10"]);
    }

    #[test]
    fn directives_quote_values_for_sbatch() {
        let cases = [
            ("--exclusive", "--exclusive"),
            ("--gres=gpu:a100:1", "--gres=gpu:a100:1"),
            ("--comment=two words", r#"--comment="two words""#),
            ("--comment=o'neil #1", r#"--comment="o'neil #1""#),
            (r"--comment=a\b", r#"--comment="a\\b""#),
            (r#"--comment="a""#, r#"--comment="\"a\"""#),
            ("--comment=", r#"--comment="""#),
        ];
        for (option, expected) in cases {
            assert_eq!(directive(option).unwrap(), expected);
        }
        for wrong in ["me", "-A me", "--comment two", "--com\"ment=a"] {
            assert!(directive(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn signals_are_those_that_a_sweep_handles() {
        let signal: Signal = "USR1@120".parse().unwrap();
        assert_eq!((signal.name.as_str(), signal.lead), ("USR1", 120));
        for wrong in ["KILL@9", "USR2@", "USR2@0", "@90", "USR2@x"] {
            assert!(wrong.parse::<Signal>().is_err(), "{wrong}");
        }
    }
}
