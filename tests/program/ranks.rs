//! Runs with several ranks: processes that train together, fail together and leave nothing behind.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::sweeps::Sweep;
use crate::test_folder::{TestFolder, Tiny, piped, wait_for};
use device::Role;
use results::Status;

/// Steps that take long enough to be interrupted.
fn endless(dir: &TestFolder) {
    let tiny = Tiny { batch_size: 6, ..Tiny::default() };
    let more = "\n[measure]\nsteps = 131072\n[strategies.ranks]\nparallel.data = 3\n";
    dir.write("endless.toml", format!("name = \"endless\"\n{}", tiny.with(more)));
}

/// Starts the endless run, and waits until all ranks train.
fn started(dir: &TestFolder, options: &[&str]) -> (std::process::Child, Vec<String>) {
    endless(dir);
    let sweep = piped(dir.command(&[&["endless.toml"], options].concat()));
    let mut children = Vec::new();
    wait_for("three ranks", || {
        children = dir.children();
        children.len() == 3
    });
    let has_steps = || {
        dir.find("results/endless/*/*/.*/steps.csv")
            .iter()
            .any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.lines().count() > 2))
    };
    wait_for("the first steps", has_steps);
    (sweep, children)
}

fn signal(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

/// The rank of a child process, by its command line.
fn rank_of(dir: &TestFolder, process: &str) -> String {
    let processes = dir.processes();
    let (_, command) = processes.iter().find(|(id, _)| id == process).unwrap();
    let words: Vec<&str> = command.split('\0').collect();
    let at = words.iter().position(|word| *word == "--rank").unwrap();
    words[at + 1].to_owned()
}

#[test]
fn ranks_train_as_one_process_does() {
    let dir = TestFolder::new();
    let more = "\n[evaluation]\nbatches = 2\n[measure]\nsteps = 4\n[strategies.one]\n\
                [strategies.two]\nparallel = { data = 2 }\n[strategies.three]\nparallel = { data = 3 }\naccumulate = 2\n\
                [strategies.states]\nparallel = { data = 2, shard = 'optimizer' }\n\
                [strategies.gradients]\nparallel = { data = 2, shard = 'gradients' }\n\
                [strategies.parameters]\nparallel = { data = 2, shard = 'parameters' }\n";
    dir.write("t.toml", Tiny { batch_size: 5, ..Tiny::default() }.with(more));
    dir.runner(&["sweep", "t.toml", "--device", "cpu"]);
    let rows = dir.rows_by_strategy("results/t.csv");
    let one = &rows["one"];
    assert_eq!((one.ranks, one.sent_bytes), (None, None));
    // Gradients are summed: two parts, or one if they are divided. Parameters are gathered after the update, or for each
    // pass, except those that a pass does not read.
    let all = [
        ("two", 2, [2.0, 2.0]),
        ("three", 3, [2.0, 2.0]),
        ("states", 2, [2.0, 2.0]),
        ("gradients", 2, [2.0, 2.0]),
        ("parameters", 2, [2.1, 3.0]),
    ];
    for (strategy, ranks, parts) in all {
        let row = &rows[strategy];
        assert_eq!((row.status, row.ranks), (Status::Ok, Some(ranks)), "{strategy}: {}", row.message);
        assert_eq!(row.peak_bytes, row.predicted_peak_bytes, "{strategy}");
        assert_eq!(row.rank_peak_bytes, row.peak_bytes, "{strategy}: the first rank needs the most");
        let gradients = 4 * one.parameters.unwrap();
        let sent = row.sent_bytes.unwrap();
        let part = (ranks as u64 - 1) * gradients / ranks as u64;
        let [least, most] = parts.map(|parts| (parts * part as f64) as u64);
        // Buckets are aligned, and where ranks divide them, padded.
        let padding = most / 10 + if ranks == 2 { 8 << 10 } else { 0 };
        assert!((least..most + padding).contains(&sent), "{strategy}: {sent}, {least} to {most}");
        assert!(row.exchange_ms.is_some_and(|ms| ms > 0.0));
        assert!(row.effects.contains(&format!("{ranks} ranks")), "{}", row.effects);
        for (found, expected) in
            [(row.loss_first, one.loss_first), (row.loss_last, one.loss_last), (row.loss_eval, one.loss_eval)]
        {
            let (found, expected) = (found.unwrap(), expected.unwrap());
            assert!((found - expected).abs() <= 1e-5 * expected, "{strategy}: {found} and {expected}");
        }
    }
    let states = |strategy: &str| {
        rows[strategy].live.iter().find(|(role, _)| *role == Role::Optimizer).unwrap().1.unwrap()
    };
    assert_eq!(states("two"), states("one"));
    for strategy in ["states", "gradients", "parameters"] {
        assert!(states(strategy) * 2 <= states("one") + 8192, "{} of {}", states(strategy), states("one"));
    }
    // In a model of two layers, gathered parameters are no smaller than all.
    let peaks = ["two", "states", "gradients"].map(|strategy| rows[strategy].peak_bytes.unwrap());
    assert!(peaks[0] > peaks[1] && peaks[1] >= peaks[2], "{peaks:?}");
    assert!(dir.processes().is_empty());
}

/// The saved parameters are those of the measured run, whose digest they have.
#[test]
fn ranks_save_their_model() {
    let dir = TestFolder::new();
    let more = "\n[measure]\nsteps = 2\n[strategies.one]\n[strategies.two]\nparallel.data = 2\n\
                [strategies.states]\nparallel = { data = 2, shard = 'optimizer' }\n\
                [strategies.parameters]\nparallel = { data = 2, shard = 'parameters' }\n";
    dir.write("t.toml", Tiny::default().with(more));
    dir.runner(&["sweep", "t.toml", "--device", "cpu", "--save", "saved", "--dump", "dumped"]);
    let saved = dir.find("saved/*/model.safetensors");
    // No rank has the whole model with divided parameters, or all gradients with divided states.
    assert_eq!((saved.len(), dir.find("dumped/*/final.safetensors").len()), (3, 2));
    let sizes: Vec<u64> = saved.iter().map(|file| std::fs::metadata(file).unwrap().len()).collect();
    assert!(sizes.iter().all(|size| *size == sizes[0]));
}

#[test]
fn a_killed_rank_ends_the_run_and_is_named() {
    let dir = TestFolder::new();
    let (sweep, children) = started(&dir, &[]);
    let rank = rank_of(&dir, &children[1]);
    signal("-9", &children[1]);
    let begun = Instant::now();
    let sweep = Sweep::of(sweep.wait_with_output().unwrap()).ended_with(1);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let row = &dir.rows("results/endless.csv")[0];
    assert_eq!(row.status, Status::Failed);
    assert!(
        row.message.starts_with(&format!("rank {rank} killed by signal 9")),
        "{}\n{}",
        row.message,
        sweep.out
    );
    assert!(dir.processes().is_empty());
}

#[test]
fn a_rank_that_stands_still_ends_the_run() {
    let dir = TestFolder::new();
    let (sweep, children) = started(&dir, &["--stall", "2s"]);
    signal("-STOP", &children[2]);
    Sweep::of(sweep.wait_with_output().unwrap()).ended_with(1);
    let row = &dir.rows("results/endless.csv")[0];
    assert_eq!(row.status, Status::Failed);
    assert!(row.message.contains("another rank did not arrive within 2s (--stall)"), "{}", row.message);
    assert!(dir.processes().is_empty(), "the stopped rank was killed");
}

#[test]
fn ranks_end_with_their_parent() {
    let dir = TestFolder::new();
    let (mut sweep, _) = started(&dir, &[]);
    sweep.kill().unwrap();
    sweep.wait().unwrap();
    wait_for("the ranks to end", || dir.processes().is_empty());
}

#[test]
fn memory_that_runs_out_on_a_rank_is_a_result() {
    let dir = TestFolder::new();
    let more = "\n[strategies.ranks]\nparallel.data = 2\n";
    dir.write("t.toml", Tiny::default().with(more));
    let sweep = dir.sweep(&["t.toml", "--memory", "100 KiB"]).ended_with(0);
    let row = &dir.rows("results/t.csv")[0];
    assert_eq!(row.status, Status::Oom, "{}", sweep.out);
    assert!(row.message.starts_with("rank 0: step 1, forward: no room for "), "{}", row.message);
    assert!(row.oom_short_bytes.is_some_and(|bytes| bytes > 0));
    assert_eq!(row.ranks, Some(2));
}

/// What NCCL takes is a target's figure, or assumed.
#[test]
fn ranks_are_planned_on_cards() {
    let dir = TestFolder::new();
    let more = "\n[strategies.one]\n[strategies.two]\nparallel = { data = 2, shard = 'parameters' }\n";
    dir.write("t.toml", Tiny::default().with(more));
    let card = |communicator: &str| {
        let target = "name = 'c'\nkind = 'cuda'\nmemory = '256 MiB'\ncontext = 1000\ncommunicator = ";
        dir.write("card.toml", format!("{target}'{communicator}'\n"));
    };
    let text = |options: &[&str]| {
        String::from_utf8(dir.runner(&[&["plan", "t.toml", "--target"], options].concat()).stdout).unwrap()
    };
    let assumed = "ranks is assumed to be 1.00 GiB";
    assert!(text(&["a100-80gb"]).contains(assumed));
    assert!(text(&["a100-80gb", "--target", "h100-80gb"]).contains(assumed));
    let without = text(&["a100-80gb", "--filter", "one"]);
    assert!(!without.contains(assumed), "a table without ranks: {without}");
    for (run, is_cautious) in [("one", false), ("two", true)] {
        let explain = dir.runner(&["explain", "t.toml", "--run", run, "--target", "a100-80gb"]);
        let explained = String::from_utf8(explain.stdout).unwrap();
        assert_eq!(explained.contains(assumed), is_cautious, "{explained}");
    }
    let statuses = |communicator| {
        card(communicator);
        let csv = text(&["card.toml", "--format", "csv"]);
        let rows = csv::Reader::from_reader(csv.as_bytes()).into_deserialize::<HashMap<String, String>>();
        rows.map(|row| row.unwrap()["status"].clone()).collect::<Vec<String>>()
    };
    assert_eq!(statuses("1 KiB"), ["ok", "ok"]);
    assert_eq!(statuses("250 MiB"), ["ok", "oom"]);
    assert!(!text(&["card.toml"]).contains("assumed"));
    let sharded = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/llama-8b-sharded.toml");
    let planned = dir.runner(&["plan", sharded, "--target", "h100-80gb"]);
    let planned = String::from_utf8(planned.stdout).unwrap();
    // Another swept key has an answer for each of its values.
    let axes =
        "\n[sweep.grid]\n'parallel.data' = [1, 2]\n'model.transformer.layers' = [1, 2]\n[strategies.a]\n";
    dir.write("t.toml", Tiny::default().with(axes));
    assert!(!text(&["a100-80gb"]).contains("Fewest ranks"));
    dir.write(
        "t.toml",
        Tiny::default().with(axes.replace("'model.transformer.layers' = [1, 2]\n", "").as_str()),
    );
    assert!(text(&["a100-80gb"]).contains("Fewest ranks that fit: 1 for a."));
    // Of 8.03 billion parameters, each takes 2 + 2 + 12 bytes: 119.6 GiB, of which ranks divide 12, 14 or all.
    assert!(
        planned.contains("Fewest ranks that fit: 2 for zero-1, zero-2 and zero-3; none for ddp."),
        "{planned}"
    );
}

/// Between nodes, the eight network cards of a node together are slower than the links of a card.
#[test]
fn plan_ranks_shards_by_the_rates_between_cards_and_nodes() {
    let dir = TestFolder::new();
    let sharded = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/llama-8b-sharded.toml");
    let plan = |target: &str, more: &[&str]| {
        let plan = ["plan", sharded, "--filter", "zero-*", "--target", target];
        String::from_utf8(dir.runner(&[&plan, more].concat()).stdout).unwrap()
    };
    insta::assert_snapshot!(plan("h100-80gb", &["--columns", "memory,estimate,exchange"]));
    let unlinked = plan("l4-24gb", &[]);
    let unknown = "number of cards of a node is unknown: `cards` in a target file sets it";
    assert!(unlinked.split_whitespace().collect::<Vec<_>>().join(" ").contains(unknown), "{unlinked}");
    let card = String::from_utf8(dir.runner(&["devices", "--target", "h100-80gb"]).stdout).unwrap();
    dir.write("card.toml", card + "network = '25 GB/s'\n");
    let csv = plan("card.toml", &["--format", "csv"]);
    let ms = |strategy: &str, ranks: &str| {
        let rows = csv::Reader::from_reader(csv.as_bytes()).into_deserialize::<HashMap<String, String>>();
        let is_it = |row: &HashMap<String, String>| {
            row["strategy"] == strategy && row["effects"].starts_with(&format!("{ranks} ranks"))
        };
        let row = rows.map(Result::unwrap).find(is_it).unwrap();
        ["estimated_exchange_ms", "estimated_step_ms"].map(|column| row[column].parse::<f64>().unwrap())
    };
    // A rank sends 2 (n - 1) / n of 8.03 billion numbers of 2 bytes each.
    for (ranks, rate) in [(8.0, 450e9), (64.0, 200e9)] {
        let [exchange, step] = ms("zero-2", &ranks.to_string());
        let expected = 1e3 * 2.0 * (ranks - 1.0) / ranks * 16.06e9 / rate;
        assert!((exchange / expected - 1.0).abs() < 0.01, "{exchange} and {expected} ms");
        assert!(step > exchange, "{step} and {exchange} ms");
    }
}

#[test]
fn pytorch_s_ranks_are_planned_on_cards() {
    let dir = TestFolder::new();
    let more = "\n[strategies.one]\n[strategies.two]\nparallel.data = 2\naccumulate = 2\n";
    dir.write("t.toml", Tiny::default().with(more));
    let plan = |more: &[&str]| {
        let plan = ["plan", "t.toml", "--target", "a100-80gb", "--as", "pytorch"];
        String::from_utf8(dir.runner(&[&plan, more].concat()).stdout).unwrap()
    };
    let text = plan(&[]);
    assert!(text.contains("It leaves out what NCCL takes"), "{text}");
    // Of the smallest sufficient limit, 512 MiB are the context, and on several ranks 1 GiB is NCCL's.
    let csv = plan(&["--format", "csv"]);
    let mut table = csv::Reader::from_reader(csv.as_bytes());
    let column = table.headers().unwrap().iter().position(|name| name == "torch_limit_bytes").unwrap();
    let limits: Vec<u64> = table.records().map(|row| row.unwrap()[column].parse().unwrap()).collect();
    let [one, two] = [limits[0] >> 20, limits[1] >> 20];
    assert!((512..1024).contains(&one) && (1536..2048).contains(&two), "{one} and {two} MiB");
    let export = ["export", "t.toml", "--run", "two", "--target", "a100-80gb"];
    let script = String::from_utf8(dir.runner(&export).stdout).unwrap();
    for line in [
        "RANKS = 2",
        "torch.distributed.init_process_group(\"cpu:gloo,cuda:nccl\" if on_card else \"gloo\")",
        "self.ddp = nn.parallel.DistributedDataParallel(self.model,",
        "with self.ddp.no_sync() if number + 1 < len(batches) else nullcontext():",
    ] {
        assert!(script.contains(line), "{line}\n{script}");
    }
}
