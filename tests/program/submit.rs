//! `submit`, with programs in place of Slurm's. tests/slurm.sh runs it on a cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::test_folder::{TestFolder, Tiny, said};

/// An `sbatch` that keeps each script, and runs it at once: an array task by task.
const RUNNING: &str = r#"
id=$(($(ls job.* 2>/dev/null | wc -l) + 1)); cat >job.$id; echo "$@" >options.$id
tasks=$(sed -n 's/^#SBATCH --array=//p' job.$id)
if [ -z "$tasks" ]; then bash job.$id >log.$id 2>&1
else for task in $(eval echo "$(echo "{${tasks/-/..}}" | tr -d ' ')"); do
    SLURM_ARRAY_TASK_ID=${task//[\{\}]} bash job.$id >log.$id 2>&1 || exit 1
done; fi
echo "$id;cluster""#;

/// One that only counts.
const COUNTING: &str = r#"id=$(($(ls job.* 2>/dev/null | wc -l) + 1)); cat >job.$id; echo $id"#;

struct Slurm(TestFolder);

impl Slurm {
    fn new(sbatch: &str) -> Slurm {
        let slurm = Slurm(TestFolder::new());
        slurm.put("sbatch", &format!("[ \"$1\" != --version ] || exit 0\n{sbatch}"));
        slurm.put("squeue", "");
        slurm.put("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1");
        slurm
    }

    fn put(&self, name: &str, script: &str) {
        fs::create_dir_all(self.0.path("bin")).unwrap();
        let path = self.0.path("bin").join(name);
        fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn with_path(&self, mut command: Command) -> Output {
        let path = format!("{}:{}", self.0.path("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).output().unwrap()
    }

    fn submit(&self, args: &[&str]) -> Output {
        self.with_path(self.0.program(&[&["submit", "--device", "cpu", "--memory", "1GiB"], args].concat()))
    }
}

/// The values of an option in a script's jobs.
fn values<'a>(script: &'a str, option: &str) -> Vec<&'a str> {
    let words =
        script.lines().filter_map(|line| line.strip_prefix("#SBATCH ")).flat_map(str::split_whitespace);
    words.filter_map(|word| word.strip_prefix(option)?.strip_prefix('=')).collect()
}

#[test]
fn a_machine_without_slurm_is_told_of_the_dry_run() {
    let dir = TestFolder::new();
    let file = dir.experiment("tiny", 1);
    let output = dir.program(&["submit", &file, "--device", "cpu"]).env("PATH", "/nowhere").output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("there is no `sbatch` on this machine") && said.contains("`--dry-run` prints"),
        "{said}"
    );
    assert!(!dir.path("results").exists());
}

#[test]
fn script_has_every_option() {
    let slurm = Slurm::new(COUNTING);
    let file = slurm.0.experiment("it's tiny", 1);
    let more = [
        "--partition",
        "a b",
        "--out",
        "o'neil",
        "--mem",
        "1500MB",
        "--time",
        "90m",
        "--cpus",
        "3",
        "--set",
        "train.seed=3",
    ];
    let extra = [
        "--tasks",
        "2",
        "--signal",
        "USR1@120",
        "--filter",
        "pl*,acc*",
        "--dry-run",
        "--",
        "--comment=two words",
    ];
    let output = slurm.submit(&[&[file.as_str()], &more[..], &extra[..]].concat());
    let script = String::from_utf8(output.stdout).unwrap();
    let folder = fs::canonicalize(slurm.0.path("")).unwrap();
    let script = script
        .replace(folder.to_str().unwrap(), "/folder")
        .replace(env!("CARGO_BIN_EXE_runner"), "/bin/runner");
    let script: String = script
        .lines()
        .filter(|line| !line.starts_with("# 4 missing"))
        .map(|line| format!("{line}\n"))
        .collect();
    insta::assert_snapshot!(script);
}

/// What `--dry-run` prints runs unchanged: every run gets a result, and the last job prints the table.
#[test]
fn the_printed_script_completes_the_sweep() {
    let slurm = Slurm::new(RUNNING);
    let file = slurm.0.experiment("tiny", 1);
    slurm.0.sweep(&[&file, "--memory", "1GiB", "--filter", "plain"]).ended_with(0);
    let output = slurm.submit(&[&file, "--dry-run"]);
    let (script, notes) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    // Rates of the first run are known.
    assert_eq!(values(&script, "--time"), ["0:10:00"; 2], "{script}");
    assert!(!notes.contains("unknown") && script.contains("--run 2-3 --only auto/2"), "{notes}{script}");
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]);
    let output = slurm.with_path(bash);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "submitted array 1\nsubmitted job 2\n");
    assert_eq!(
        fs::read_to_string(slurm.0.path("options.2")).unwrap(),
        "--parsable --dependency=afterany:1\n"
    );
    assert_eq!(slurm.0.results("tiny").len(), 6);
    let log = fs::read_to_string(slurm.0.path("log.2")).unwrap();
    assert!(log.contains("6 of 6 runs have a result already") && log.contains("recompute"), "{log}");
    let again = slurm.submit(&[&file]);
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        "every run has a result: there is nothing to submit\n"
    );
}

#[test]
fn memory_and_cards_are_those_of_the_runs() {
    let slurm = Slurm::new(COUNTING);
    let more = "\n[measure]\nrepeats = 3\n[strategies.one]\n[strategies.two]\nparallel.data = 2\n\
                [strategies.large]\nset.\"train.batch_size\" = 262144\n";
    slurm.0.write("a.toml", "name = \"a\"\n".to_owned() + &Tiny::default().with(more));
    let output = |words: &[&str]| slurm.0.runner(&[words, &["a.toml"]].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let here = ["--device", "cpu", "--memory", "64GiB"];
    let script = text(output(&[&["submit", "--dry-run"], &here[..]].concat()).stdout);
    let plan = output(&[&["plan", "--format", "csv"], &here[..]].concat()).stdout;
    let mut plan = csv::Reader::from_reader(plan.as_slice());
    let column = plan.headers().unwrap().iter().position(|name| name == "reserved_peak_bytes").unwrap();
    let large: u64 = plan.records().last().unwrap().unwrap()[column].parse().unwrap();
    let least = (large * 11 / 10) >> 20;
    let mib: Vec<u64> =
        values(&script, "--mem").iter().map(|mem| mem.trim_end_matches('M').parse().unwrap()).collect();
    // Small runs are one group; ranks on the processors share a task. The last job may execute any run.
    assert_eq!((mib.len(), values(&script, "--array")), (3, vec!["1-3"; 2]), "{script}");
    assert!(mib[0] < 1024 && mib[1] == mib[2] && (least..least + 512).contains(&mib[1]), "{mib:?}, {least}");
    assert!(!script.contains("--gpus"), "{script}");
    let on_cards = output(&["submit", "--dry-run", "--target", "h100-80gb"]);
    let (script, notes) = (text(on_cards.stdout), text(on_cards.stderr));
    assert_eq!(values(&script, "--gpus-per-task"), ["1", "2", "2"], "{script}");
    assert!(script.contains("--device cuda") && values(&script, "--nodes") == ["1"; 3], "{script}");
    assert!(!notes.contains("unknown"), "{notes}");
    assert_eq!(values(&script, "--time").len(), 3, "{script}");
    // A task of 40 repeats takes 40 times a minute to start, and little more.
    let long = ["submit", "--dry-run", "--target", "h100-80gb", "--tasks", "1", "--repeats", "40"];
    let script = text(output(&long).stdout);
    assert_eq!(values(&script, "--time")[1], "0:41:00", "{script}");
}

#[test]
fn tasks_that_had_too_little_get_twice_as_much() {
    let slurm = Slurm::new(COUNTING);
    let file = slurm.0.experiment("tiny", 1);
    let first = slurm.submit(&[&file, "--mem", "640MiB", "--time", "20m"]);
    assert!(said(&first).contains("submitted 6 repeats as 2 tasks of 1, then job 2"), "{}", said(&first));
    let unknown = slurm.submit(&[&file, "--dry-run"]);
    assert!(
        said(&unknown).contains("sacct fails: Slurm accounting storage is disabled"),
        "{}",
        said(&unknown)
    );
    assert!(!said(&unknown).contains("too little"), "{}", said(&unknown));
    slurm.put("sacct", "printf '1_1|OUT_OF_MEMORY\\n1_2|TIMEOUT\\n1_2|CANCELLED by 0\\n2|FAILED\\n'");
    let output = slurm.submit(&[&file, "--dry-run"]);
    let text = said(&output);
    assert!(text.contains("task 1_1 had too little memory: now its runs get at least 1280 MiB"), "{text}");
    assert!(text.contains("task 1_2 had too little time: now its runs get at least 40 min"), "{text}");
    assert_eq!((values(&text, "--mem"), values(&text, "--time")), (vec!["1280M"; 2], vec!["0:40:00"; 2]));
}

/// The note on a shortage and the script agree.
#[test]
fn a_shortage_is_reported_with_the_request() {
    let slurm = Slurm::new(COUNTING);
    let file = slurm.0.experiment("tiny", 1);
    // With known rates, the time is at least 10 minutes.
    slurm.0.sweep(&[&file, "--memory", "1GiB", "--filter", "plain"]).ended_with(0);
    slurm.submit(&[&file, "--mem", "640MiB", "--time", "3m"]);
    slurm.put("sacct", "printf '1_1|OUT_OF_MEMORY\\n1_1|TIMEOUT\\n'");
    let told = |args: &[&str], option: &str, value: &str, note: &str| {
        let output = slurm.submit(&[&[file.as_str(), "--dry-run"], args].concat());
        let text = said(&output);
        assert!(text.contains(note), "{text}");
        assert_eq!(values(&text, option), [value; 2], "{text}");
    };
    told(&[], "--time", "0:10:00", "task 1_1 had too little time: now its runs get at least 10 min");
    // An explicit option overrides the doubled value.
    told(&["--time", "5m"], "--time", "0:05:00", "too little time: now its runs get at least 5 min");
    told(
        &["--time", "2m"],
        "--time",
        "0:02:00",
        "its runs get 2 min, not more than before: set more with --time",
    );
    told(&["--mem", "1GiB"], "--mem", "1024M", "too little memory: now its runs get at least 1 GiB");
    told(&["--mem", "640MiB"], "--mem", "640M", "640 MiB, not more than before: set more with --mem");
}

#[test]
fn submissions_are_refused_with_a_reason() {
    let slurm = Slurm::new(COUNTING);
    let file = slurm.0.experiment("tiny", 1);
    let refused = |args: &[&str], code: i32, reason: &str| {
        let output = slurm.submit(&[&[file.as_str()], args].concat());
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(said(&output).contains(reason), "{}", said(&output));
    };
    refused(&["--set", "measure.repeats={until=0.02}"], 2, "add --repeats N");
    refused(&["--set", "requires=\"cuda\""], 2, "`--target` plans for nodes with another device");
    refused(&["--signal", "KILL"], 2, "use USR1, USR2, TERM or INT");
    refused(&["--partition", "a\nb"], 2, "has a line break");
    refused(&["--out", "a\\b"], 2, "has a backslash, which Slurm removes");
    refused(&["--", "-A", "me"], 2, "write it as one word, such as --account=me");
    slurm.put(
        "sbatch",
        "[ \"$1\" = --version ] || { [[ $2 != --dep* ]] && echo 7; } || { echo 'invalid' >&2; exit 1; }",
    );
    refused(&[], 1, "end those with `scancel 7`");
    slurm.put("squeue", "echo 7");
    refused(&[], 2, "jobs of an earlier submission are queued or run: 7");
    let slurm = Slurm::new(COUNTING);
    let file = slurm.0.experiment("tiny", 1);
    slurm.submit(&[&file]);
    slurm.put("squeue", "echo 1; echo 77");
    let output = slurm.submit(&[&file]);
    assert!(said(&output).contains("end them with `scancel 1`"), "{}", said(&output));
    for file in slurm.0.find("results/.slurm/*.json") {
        fs::write(file, "{").unwrap();
    }
    assert!(said(&slurm.submit(&[&file])).contains("= help: remove it"), "a damaged file");
}
