//! Malformed files and arguments on the command line: exit codes, output, memory and time. Cases that are too many to
//! start a process for each are tested inside the program (`src/cli/tests.rs`).

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::test_folder::target::PROCESSOR;
use crate::test_folder::{TestFolder, Tiny};
use testing::mutation::{Random, mutated};

/// The maximum length of an error about one file or argument, in bytes.
const LONGEST: usize = 64 << 10;

/// The number of mutated files, and the seed of the first; each file has the next seed.
const FILES: &str = "RUNNER_TEST_MUTATIONS";
const SEED: &str = "RUNNER_TEST_SEED";
/// Each file takes a process, so only one in ten of those that are read inside the program.
const FILES_PER_PROCESS: u64 = 10;
const DEFAULT_FILES: u64 = 1000;

const MORE: &str = r#"
[measure]
warmup_steps = 1
steps = 2

[strategies.plain]

[strategies.lean]
recompute = "block"
"#;

/// The required columns of a result table.
const COLUMNS: &str = "experiment,run_id,strategy,repeat,status,device,model,precision,no_effect,message,version,limited,configuration\n";

fn row(strategy: &str, repeat: &str, message: &str) -> String {
    format!("e,id,{strategy},{repeat},ok,cpu,m,fp32,,{message},0.1.0,false,c\n")
}

fn experiment() -> String {
    Tiny::default().with(MORE)
}

/// A test folder with an experiment and a target file.
fn test_folder() -> TestFolder {
    let dir = TestFolder::new();
    dir.write("a.toml", experiment());
    dir.write("target.toml", PROCESSOR);
    dir
}

impl TestFolder {
    /// Runs the program with limits of 4 GiB of address space and 10 s of CPU time: a hundred times the time that any
    /// case needs, because a busy machine may count time of other processes.
    fn run_limited(&self, arguments: &[&str]) -> Output {
        self.program_under("ulimit -v 4194304; ulimit -t 10;", arguments).output().unwrap()
    }

    /// Asserts that the program refuses the arguments with one short error that contains `says`.
    #[track_caller]
    fn refused(&self, what: &str, arguments: &[&str], says: &str) -> String {
        let output = self.run_limited(arguments);
        let said = harmless(what, &output);
        assert_eq!(output.status.code(), Some(2), "{what}: {said:.1000}");
        assert!(output.stdout.is_empty() && said.starts_with("error: "), "{what}: {said:.1000}");
        assert!(said.len() <= LONGEST, "{what}: {} bytes: {said:.1000}", said.len());
        assert!(said.contains(says), "{what}: {said:.1000}");
        said
    }

    /// Asserts that the program accepts the arguments and prints no control characters.
    #[track_caller]
    fn accepted(&self, what: &str, arguments: &[&str]) {
        let output = self.run_limited(arguments);
        let said = harmless(what, &output);
        assert_eq!(output.status.code(), Some(0), "{what}: {said:.1000}");
    }
}

/// The whole output. Asserts that it has no characters that control a terminal.
#[track_caller]
fn harmless(what: &str, output: &Output) -> String {
    let printed = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8(printed).unwrap_or_else(|_| panic!("{what}: no text was printed"));
    let is_obeyed = |c: &char| {
        c.is_control() && *c != '\n' && *c != '\t'
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(said.chars().find(is_obeyed), None, "{what}: {said:.1000}");
    said
}

/// Errors that quote arguments, from the program and from its argument parser.
#[test]
fn arguments_are_escaped_and_shortened() {
    let dir = test_folder();
    let obeyed = "\x1b[31mred\u{202e}\r\u{9b}2J";
    let long = "x".repeat(100_000);
    let deep = format!("\"{}\"=1", ["a"; 30_000].join("."));
    for text in [obeyed, &long, &"a\nb".repeat(10_000)] {
        let flag = format!("--{text}");
        let set = format!("train.{text}=1");
        let value = format!("train.seed={text}");
        let cases: [&[&str]; 12] = [
            &[text],
            &["check", "a.toml", &flag],
            &["check", text],
            &["check", &format!("[{text}")],
            &["check", "a.toml", "--set", text],
            &["check", "a.toml", "--set", &set],
            &["check", "a.toml", "--set", &value],
            &["plan", "a.toml", "--memory", text],
            &["plan", "a.toml", "--device", text],
            &["plan", "a.toml", "--target", text],
            &["compare", text],
            &["explain", "a.toml", "--device", "cpu", "--run", text],
        ];
        for case in cases {
            dir.refused(&format!("{:.80}", format!("{case:?}")), case, "error: ");
        }
    }
    dir.refused("a deep key", &["check", "a.toml", "--set", &deep], "the command line");
    let help = dir.run_limited(&["--help"]);
    assert_eq!((help.status.code(), help.stderr.len()), (Some(0), 0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("Usage: runner [OPTIONS] <COMMAND>"));
}

/// Experiments just below and above the maximum size that is read: quoting, suggestions and traversal stay fast and
/// short.
#[test]
fn huge_experiments_are_refused_quickly() {
    let dir = test_folder();
    let numbered = |count: usize, of: fn(usize) -> String| (0..count).map(of).collect::<String>();
    let experiment = experiment();
    for much in [1_000_000, 20 << 20] {
        let x = "x".repeat(much);
        let with = |from: &str, to: &str| experiment.replacen(from, to, 1);
        let and = |more: &str| format!("{experiment}{more}\n");
        let cases = [
            ("value", with("batch_size = 4", &format!("batch_size = \"{x}\""))),
            (
                "line breaks in a value",
                with("layers = 1", &format!("layers = \"{}\"", "\\n".repeat(much / 2))),
            ),
            ("word", with("\"block\"", &format!("\"{x}\""))),
            ("number", with("layers = 1", &format!("layers = {}", "9".repeat(much)))),
            ("list", with("layers = 1", &format!("layers = [{}]", "1,".repeat(much / 2)))),
            ("key", with("layers = 1", &format!("layers = 1\n{x} = 1"))),
            ("line breaks in a key", with("layers = 1", &format!("\"{}\" = 1", "\\n".repeat(much / 2)))),
            ("deep key", and(&format!("set.\"train.{}\" = 1", "a.".repeat(much / 2)))),
            ("deep axis", and(&format!("[sweep.grid]\n\"train.{}\" = [1]", "a.".repeat(much / 2)))),
            ("name", format!("name = \"/{x}\"\n{experiment}")),
            ("base", format!("extends = \"{x}\"\n{experiment}")),
            ("variable", format!("extends = \"${{{x}}}\"\n{experiment}")),
            ("baseline", format!("baseline = \"{x}\"\n{experiment}")),
            ("extended strategy", and(&format!("extends = \"{x}\""))),
            ("strategy's name", format!("baseline = \"plane\"\n{experiment}[strategies.{x}]\n")),
            ("nested lists", and(&format!("x = {}", "[".repeat(much)))),
            ("nested tables", and(&format!("x = {}", "{a=".repeat(much / 3)))),
            ("dotted key", and(&format!("x{} = 1", ".a".repeat(much / 2)))),
            ("keys", and(&numbered(much / 12, |number| format!("k{number} = 1\n")))),
            ("tables", and(&numbered(much / 12, |number| format!("[k{number}]\n")))),
            (
                "axes",
                and(&format!("[sweep.grid]\n{}", numbered(much / 20, |n| format!("\"train.a{n}\"=[1]\n")))),
            ),
            ("cases", and(&numbered(much / 50, |n| format!("[[sweep.include]]\n\"train.seed\"={n}\n")))),
        ];
        for (what, text) in cases {
            dir.write("much.toml", text);
            dir.refused(&format!("{what} of {much}"), &["check", "much.toml"], "much.toml");
        }
    }
}

/// A base file and the file that extends it may each have many keys.
#[test]
fn many_strategies_are_merged() {
    let dir = test_folder();
    let strategies = |letter: char| {
        (0..40_000).map(|number| format!("[strategies.{letter}{number}]\n")).collect::<String>()
    };
    dir.write("base.toml", experiment() + &strategies('a'));
    dir.write("much.toml", format!("extends = \"base.toml\"\n{}", strategies('b')));
    dir.accepted("strategies", &["check", "much.toml"]);
}

#[test]
fn huge_targets_are_refused_quickly() {
    let dir = test_folder();
    for much in [1_000_000, 20 << 20] {
        let x = "x".repeat(much);
        let cases = [
            ("size", PROCESSOR.replace("64 B", &x)),
            ("key", format!("{PROCESSOR}{x} = 1\n")),
            ("kind", PROCESSOR.replace("\"cpu\"", &format!("\"{x}\""))),
            ("number", PROCESSOR.replace("= 2", &format!("= {}", "9".repeat(much)))),
            ("nested lists", format!("{PROCESSOR}x = {}", "[".repeat(much))),
        ];
        for (what, text) in cases {
            dir.write("much.toml", text);
            let what = format!("{what} of {much}");
            dir.refused(&what, &["plan", "a.toml", "--target", "much.toml"], "much.toml");
        }
    }
    dir.write("much.toml", PROCESSOR.replace("a processor", &"\\u001b[31mx\\n".repeat(50_000)));
    let output = dir.run_limited(&["plan", "a.toml", "--target", "much.toml"]);
    assert!(harmless("a long name", &output).len() <= LONGEST && output.status.success());
}

#[test]
fn huge_result_tables_are_read_or_refused() {
    let dir = test_folder();
    let much = 20 << 20;
    let x = "x".repeat(much);
    let columns: String = (0..much / 8).map(|number| format!(",c{number}")).collect();
    let refused = [
        ("number", format!("{COLUMNS}{}", row("s", &"9".repeat(much), "")), "line 2, column `repeat`"),
        ("status", format!("{COLUMNS}{}", row("s", "0", "").replace(",ok,", &format!(",{x},"))), "line 2"),
        ("cells", format!("{COLUMNS}{}\n", ",".repeat(much)), "line 2: "),
        ("nothing", format!("{COLUMNS}{}", "\0".repeat(much)), "line 2: "),
        ("quotes", format!("{COLUMNS}{}", "\"".repeat(much)), "line 2: "),
        ("columns", format!("{}{columns}\n", COLUMNS.trim_end()), "line 1: "),
        ("a column", format!("{},{x},{x}\n", COLUMNS.trim_end()), "line 1: "),
        ("no table", x.clone(), "is not a table of results"),
        ("line breaks", format!("{COLUMNS}{}", "\n".repeat(much)), "holds no rows"),
    ];
    for (what, text, says) in refused {
        dir.write("much.csv", text);
        let said = dir.refused(what, &["compare", "much.csv"], says);
        assert!(said.contains("much.csv"), "{what}: {said}");
    }
    let repeats: String = (0..40_000).map(|repeat| row("s", &repeat.to_string(), "")).collect();
    let rows: String = (0..20_000).map(|number| row(&format!("s{number}"), "0", "")).collect();
    let accepted = [
        ("message", row("s", "0", "") + &row("t", "0", &x).replace(",ok,", ",failed,")),
        ("name", row("s", "0", "") + &row(&x, "0", "")),
        ("repeats", repeats),
        ("rows", rows),
        ("escapes", row("\x1b[31m\u{202e}", "0", "\x1b[31m\u{9b}2J\u{202e}")),
    ];
    for (what, rows) in accepted {
        dir.write("much.csv", format!("{COLUMNS}{rows}"));
        dir.accepted(what, &["compare", "much.csv"]);
    }
}

/// Sparse, endless and special files, and files in other encodings.
#[test]
fn special_and_malformed_files_are_refused() {
    let dir = test_folder();
    fs::File::create(dir.path("sparse")).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(dir.path("socket")).unwrap();
    std::os::unix::fs::symlink("loop", dir.path("loop")).unwrap();
    dir.write("empty", "");
    dir.write("nul", "\0");
    dir.write("latin1", b"name = \"\xe9\"\n");
    dir.write("utf16", b"\xff\xfen\0a\0m\0e\0");
    let experiment = experiment();
    for file in [
        "sparse",
        "folder",
        "pipe",
        "socket",
        "loop",
        "empty",
        "nul",
        "latin1",
        "utf16",
        "/dev/zero",
        "nowhere",
    ] {
        dir.write("extends.toml", format!("extends = \"{file}\"\n{experiment}"));
        if file != "empty" {
            dir.refused(file, &["check", "extends.toml"], file);
        }
        for reader in [&["check", file][..], &["plan", "a.toml", "--target", file], &["compare", file]] {
            dir.refused(&format!("{reader:?}"), reader, file);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Mutated files, each with the seed that reproduces it.
fn mutations(seeds: &[Vec<u8>]) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let first = number(SEED, 0);
    (first..first + number(FILES, DEFAULT_FILES) / FILES_PER_PROCESS).map(|seed| {
        let mut random = Random::new(seed);
        (seed, mutated(&seeds[random.below(seeds.len())], seeds, &mut random))
    })
}

/// Many files per call; a shipped experiment is among the originals.
#[test]
fn mutated_experiments_are_checked_and_planned() {
    let dir = test_folder();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt-mini.toml");
    let seeds = [experiment().into(), experiment().into(), fs::read(shipped).unwrap()];
    let mutations: Vec<(u64, Vec<u8>)> = mutations(&seeds).collect();
    for some in mutations.chunks(20) {
        let name = |(seed, _): &(u64, Vec<u8>)| format!("m{seed}.toml");
        some.iter().for_each(|mutation| dir.write(&name(mutation), &mutation.1));
        let names: Vec<String> = some.iter().map(name).collect();
        for command in [&["check"][..], &["plan", "--target", "target.toml"]] {
            let arguments: Vec<&str> =
                command.iter().copied().chain(names.iter().map(String::as_str)).collect();
            let output = dir.run_limited(&arguments);
            let what = format!("{command:?} of seeds from {}", some[0].0);
            let said = harmless(&what, &output);
            assert!(matches!(output.status.code(), Some(0 | 2)), "{what}: {said}");
        }
    }
}

/// Mutated result files of a sweep.
#[test]
fn mutated_results_are_explained() {
    let dir = test_folder();
    dir.runner(&["sweep", "a.toml", "--device", "cpu"]);
    let explain = ["explain", "a.toml", "--device", "cpu", "--run", "1"];
    dir.accepted("what is not mutated", &explain);
    // The first line starts with "run" and a prefix of the run's id.
    let said = harmless("", &dir.run_limited(&explain));
    let id = said.split([' ', ':']).nth(1).unwrap();
    let folders = dir.find(&format!("results/a/*/{id}*/[0-9]*"));
    let folder = folders.first().unwrap_or_else(|| panic!("no folder of {id}"));
    let files = ["result.json", "memory.csv", "steps.csv"];
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(folder.join(file)).unwrap()).collect();
    for (file, seed_text) in files.iter().zip(&seeds) {
        for (seed, text) in mutations(std::slice::from_ref(seed_text)) {
            fs::write(folder.join(file), text).unwrap();
            let output = dir.run_limited(&explain);
            let said = harmless(&format!("{file}, seed {seed}"), &output);
            assert!(matches!(output.status.code(), Some(0 | 2)), "{file}, seed {seed}: {said:.1000}");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(error.len() <= LONGEST, "{file}, seed {seed}: {error:.1000}");
            assert!(error.is_empty() || error.contains(file), "{file}, seed {seed}: {error}");
        }
        fs::write(folder.join(file), seed_text).unwrap();
    }
}
