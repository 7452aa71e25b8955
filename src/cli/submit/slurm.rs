//! Slurm's commands.

use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use super::script::{ARRAY, LAST};
use crate::failure::Failure;
use crate::output::mention;

/// Runs a script that submits jobs. Returns the numbers of the accepted arrays and of the last job: `None` if Slurm refused
/// it or an array before it.
///
/// # Errors
/// Slurm is absent, or refuses the first job.
pub(super) fn submit(script: &str) -> Result<(Vec<String>, Option<String>), Failure> {
    if let Err(error) = Command::new("sbatch").arg("--version").stdout(Stdio::null()).status() {
        let reason = match error.kind() {
            ErrorKind::NotFound => "there is no `sbatch` on this machine".to_owned(),
            _ => format!("cannot start `sbatch`: {error}"),
        };
        return Err(Failure::machine(format!(
            "{reason}\n = help: `--dry-run` prints the script, which runs unchanged where Slurm is; for other schedulers, see \
             `runner sweep --help` at `--only`"
        )));
    }
    let mut bash = Command::new("bash");
    // A submission inside of a job would hand its variables to the new ones.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("SLURM_") && text != "SLURM_CONF" {
            bash.env_remove(name);
        }
    }
    let cannot = |error| Failure::machine(format!("cannot run `bash`: {error}"));
    let mut bash = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    if let Some(mut input) = bash.stdin.take() {
        input.write_all(script.as_bytes()).map_err(cannot)?;
    }
    let output = bash.wait_with_output().map_err(cannot)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = |begin: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(begin)).map(str::to_owned).collect()
    };
    let arrays = numbers(ARRAY);
    if arrays.is_empty() {
        return Err(Failure::machine("no job was submitted: see the message above"));
    }
    Ok((arrays, numbers(LAST).pop().filter(|_| output.status.success())))
}

/// The lines that a command prints; none, with a message, if it fails.
fn lines(command: &mut Command, purpose: &str) -> Vec<String> {
    let output = match command.output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            mention(&format!("{purpose}: {}", reason.trim()));
            return Vec::new();
        }
        Err(error) => {
            mention(&format!("{purpose}: {error}"));
            return Vec::new();
        }
    };
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect()
}

/// The numbers of this user's jobs and arrays that have not ended.
pub(super) fn queued() -> HashSet<String> {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--me", "--format=%F"]);
    lines(&mut squeue, "earlier jobs may be queued, squeue fails").into_iter().collect()
}

/// The states of the tasks of arrays, requeued attempts included, as `12_3` and `TIMEOUT`.
pub(super) fn states(arrays: &[&str]) -> HashSet<(String, String)> {
    let mut sacct = Command::new("sacct");
    sacct.args(["--noheader", "--parsable2", "--allocations", "--duplicates", "--format=JobID,State"]);
    sacct.arg(format!("--jobs={}", arrays.join(",")));
    let lines = lines(&mut sacct, "the states of earlier tasks come from results alone, sacct fails");
    let state = |line: String| {
        let (task, state) = line.split_once('|')?;
        Some((task.to_owned(), state.split(' ').next()?.to_owned()))
    };
    lines.into_iter().filter_map(state).collect()
}
