//! Files and arguments that are wrong in ways that nobody thought of, as a user meets them: exit codes, everything that is
//! printed, memory and time. What there are too many of to start the program for each is tried inside it (`src/cli/tests.rs`).

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::place::target::PROCESSOR;
use crate::place::{Place, Tiny};
use testing::mutation::{Random, mutated};

/// The longest that the error of one file, or of one argument, may be, in bytes.
const LONGEST: usize = 64 << 10;

/// How many files are mutated for the program to read them; each has a seed of its own, from that of the first on.
const FILES: &str = "RUNNER_TEST_MUTATIONS";
const SEED: &str = "RUNNER_TEST_SEED";
const FILES_OF_EVERY_TEST: u64 = 100;

const MORE: &str = r#"
[measure]
warmup_steps = 1
steps = 2

[strategies.plain]

[strategies.lean]
recompute = "block"
"#;

/// The columns that every table of results has, and a row of them.
const COLUMNS: &str = "experiment,run_id,strategy,repeat,status,device,model,precision,no_effect,message,version,limited,configuration\n";

fn row(strategy: &str, repeat: &str, message: &str) -> String {
    format!("e,id,{strategy},{repeat},ok,cpu,m,fp32,,{message},0.1.0,false,c\n")
}

fn experiment() -> String {
    Tiny::default().with(MORE)
}

/// A place with what the program reads.
fn place() -> Place {
    let place = Place::new();
    place.write("a.toml", experiment());
    place.write("target.toml", PROCESSOR);
    place
}

impl Place {
    /// Within 4 GiB of address space and 10 s of a processor, a hundred times what anything here takes: a busy machine may count
    /// what others take of a processor.
    fn run_limited(&self, arguments: &[&str]) -> Output {
        self.program_under("ulimit -v 4194304; ulimit -t 10;", arguments).output().unwrap()
    }

    /// Refused, in one short error that says where the mistake is.
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

    /// Read, with nothing that it holds told to the terminal.
    #[track_caller]
    fn accepted(&self, what: &str, arguments: &[&str]) {
        let output = self.run_limited(arguments);
        let said = harmless(what, &output);
        assert_eq!(output.status.code(), Some(0), "{what}: {said:.1000}");
    }
}

/// All that was printed, which no terminal obeys.
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

/// Arguments are quoted by the program and by what reads them for it.
#[test]
fn arguments_are_shown_as_signs_and_short() {
    let place = place();
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
            place.refused(&format!("{:.80}", format!("{case:?}")), case, "error: ");
        }
    }
    place.refused("a deep key", &["check", "a.toml", "--set", &deep], "the command line");
    let help = place.run_limited(&["--help"]);
    assert_eq!((help.status.code(), help.stderr.len()), (Some(0), 0));
    assert!(String::from_utf8(help.stdout).unwrap().contains("Usage: runner [OPTIONS] <COMMAND>"));
}

/// An experiment of nearly as much as is read at all, and one of more: what is quoted of it, compared with what is known and
/// walked through takes no time that anybody notices.
#[test]
fn experiments_may_hold_much_of_anything() {
    let place = place();
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
            place.write("much.toml", text);
            place.refused(&format!("{what} of {much}"), &["check", "much.toml"], "much.toml");
        }
    }
}

/// A base and what extends it may have many keys each.
#[test]
fn many_strategies_are_merged_with_many_others() {
    let place = place();
    let strategies = |letter: char| {
        (0..40_000).map(|number| format!("[strategies.{letter}{number}]\n")).collect::<String>()
    };
    place.write("base.toml", experiment() + &strategies('a'));
    place.write("much.toml", format!("extends = \"base.toml\"\n{}", strategies('b')));
    place.accepted("strategies", &["check", "much.toml"]);
}

#[test]
fn targets_may_hold_much_of_anything() {
    let place = place();
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
            place.write("much.toml", text);
            let what = format!("{what} of {much}");
            place.refused(&what, &["plan", "a.toml", "--target", "much.toml"], "much.toml");
        }
    }
    place.write("much.toml", PROCESSOR.replace("a processor", &"\\u001b[31mx\\n".repeat(50_000)));
    let output = place.run_limited(&["plan", "a.toml", "--target", "much.toml"]);
    assert!(harmless("a long name", &output).len() <= LONGEST && output.status.success());
}

#[test]
fn tables_of_results_may_hold_much_of_anything() {
    let place = place();
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
        place.write("much.csv", text);
        let said = place.refused(what, &["compare", "much.csv"], says);
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
        place.write("much.csv", format!("{COLUMNS}{rows}"));
        place.accepted(what, &["compare", "much.csv"]);
    }
}

/// A file may say that it holds more than there is memory; others have no end, or are none.
#[test]
fn what_is_no_file_of_its_kind_is_refused() {
    let place = place();
    fs::File::create(place.path("sparse")).unwrap().set_len(1 << 40).unwrap();
    fs::create_dir(place.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(place.path("socket")).unwrap();
    std::os::unix::fs::symlink("loop", place.path("loop")).unwrap();
    place.write("empty", "");
    place.write("nul", "\0");
    place.write("latin1", b"name = \"\xe9\"\n");
    place.write("utf16", b"\xff\xfen\0a\0m\0e\0");
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
        place.write("extends.toml", format!("extends = \"{file}\"\n{experiment}"));
        if file != "empty" {
            place.refused(file, &["check", "extends.toml"], file);
        }
        for reader in [&["check", file][..], &["plan", "a.toml", "--target", file], &["compare", file]] {
            place.refused(&format!("{reader:?}"), reader, file);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Mutated files, each with the seed that makes it again.
fn mutations(seeds: &[Vec<u8>]) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let first = number(SEED, 0);
    (first..first + number(FILES, FILES_OF_EVERY_TEST)).map(|seed| {
        let mut random = Random::new(seed);
        (seed, mutated(&seeds[random.below(seeds.len())], seeds, &mut random))
    })
}

/// Many in one call, with the shipped ones among them for parts.
#[test]
fn mutated_experiments_are_checked_and_planned() {
    let place = place();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt-mini.toml");
    let seeds = [experiment().into(), experiment().into(), fs::read(shipped).unwrap()];
    let mutations: Vec<(u64, Vec<u8>)> = mutations(&seeds).collect();
    for some in mutations.chunks(20) {
        let name = |(seed, _): &(u64, Vec<u8>)| format!("m{seed}.toml");
        some.iter().for_each(|mutation| place.write(&name(mutation), &mutation.1));
        let names: Vec<String> = some.iter().map(name).collect();
        for command in [&["check"][..], &["plan", "--target", "target.toml"]] {
            let arguments: Vec<&str> =
                command.iter().copied().chain(names.iter().map(String::as_str)).collect();
            let output = place.run_limited(&arguments);
            let what = format!("{command:?} of seeds from {}", some[0].0);
            let said = harmless(&what, &output);
            assert!(matches!(output.status.code(), Some(0 | 2)), "{what}: {said}");
        }
    }
}

/// What a sweep left behind, mutated.
#[test]
fn mutated_results_are_explained() {
    let place = place();
    place.runner(&["sweep", "a.toml", "--device", "cpu"]);
    let explain = ["explain", "a.toml", "--device", "cpu", "--run", "1"];
    place.accepted("what is not mutated", &explain);
    // Its first line begins with "run" and the beginning of its id.
    let said = harmless("", &place.run_limited(&explain));
    let id = said.split([' ', ':']).nth(1).unwrap();
    let folders = place.find(&format!("results/a/{id}*/[0-9]*"));
    let folder = folders.first().unwrap_or_else(|| panic!("no folder of {id}"));
    let files = ["result.json", "memory.csv", "steps.csv"];
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(folder.join(file)).unwrap()).collect();
    for (file, seed_text) in files.iter().zip(&seeds) {
        for (seed, text) in mutations(std::slice::from_ref(seed_text)) {
            fs::write(folder.join(file), text).unwrap();
            let output = place.run_limited(&explain);
            let said = harmless(&format!("{file}, seed {seed}"), &output);
            assert!(matches!(output.status.code(), Some(0 | 2)), "{file}, seed {seed}: {said:.1000}");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(error.len() <= LONGEST, "{file}, seed {seed}: {error:.1000}");
            assert!(error.is_empty() || error.contains(file), "{file}, seed {seed}: {error}");
        }
        fs::write(folder.join(file), seed_text).unwrap();
    }
}
