//! From `memory.csv` to tables.

use super::measured;
use super::profile::{Line, Live, Profile, Step};
use super::tables::{self, Source};
use crate::failure::Failure;
use crate::output::visible;
use results::Row;
use testing::readers::read_mutated;

/// Two blocks, two micro-batches, as a run would have written it; figures that are easy to add up.
const MEMORY: &str = "\
section,phase,scope,operation,value,ms,times_per_step,flops,moved_bytes,live_bytes
start,start-up,embedding,allocate,embedding.parameters,0.5,0,0,0,4194304
start,start-up,embedding,normal,embedding.table,2,0,0,4194304,4194304
first,forward,batch,wait,,0.25,1,0,0,4194304
first,forward,batch,copy,batch.tokens,0.05,1,0,8192,4194304
first,forward,blocks.0.mlp,allocate,blocks.0.mlp.hidden,0.01,1,0,0,8388608
first,forward,blocks.0.mlp,linear-gelu,blocks.0.mlp.hidden,2,1,400000000,40000000,8388608
first,forward,blocks.1.mlp,allocate,blocks.1.mlp.hidden,0.01,1,0,0,12582912
first,forward,blocks.1.mlp,linear-gelu,blocks.1.mlp.hidden,3,1,400000000,40000000,12582912
first,backward,blocks.1.mlp,linear-gelu again,blocks.1.mlp.hidden',2,1,400000000,40000000,12582912
first,backward,blocks.1.mlp,free,blocks.1.mlp.hidden,0.01,1,0,0,8388608
first,backward,blocks.0.mlp,free,blocks.0.mlp.hidden,0.01,1,0,0,4194304
micro,forward,blocks.0.mlp,linear-gelu,blocks.0.mlp.hidden,2,1,400000000,40000000,10485760
update,update,head,adamw,head.parameters,0.3,1,0,9000000,4194304
evaluation,evaluation,blocks.0.mlp,linear-gelu,blocks.0.mlp.hidden,1.5,0,400000000,40000000,6291456
";

fn profile() -> Profile {
    let lines: Vec<Line> =
        csv::Reader::from_reader(MEMORY.as_bytes()).deserialize().collect::<Result<_, _>>().unwrap();
    Profile::of(&lines)
}

const STEP: Step = Step { ms: 10.0, data_wait_ms: 0.1 };

#[test]
fn work_is_added_up_over_a_step() {
    let profile = profile();
    let (name, work) = &profile.operations[0];
    assert_eq!((name.as_str(), work.calls, work.ms, work.flops), ("linear-gelu", 3, 7.0, 1_200_000_000));
    assert_eq!(profile.operations[1].0, "linear-gelu again", "what is computed again stands by itself");
    assert_eq!(profile.all.calls, 6);
    assert!((profile.all.ms - 9.35).abs() < 1e-9, "{:?}", profile.all);
    assert!((profile.allocation_ms - 0.04).abs() < 1e-9 && (profile.wait_ms - 0.25).abs() < 1e-9);
    assert_eq!(profile.apart, [("start".to_owned(), 2.5), ("evaluation".to_owned(), 1.5)]);
    let of_phases: f64 = profile.phases.iter().map(|phase| phase.work.ms).sum();
    assert!((of_phases - profile.all.ms).abs() < 1e-9);
    for phase in &profile.phases {
        let of_scopes: f64 = phase.scopes.iter().map(|scope| scope.work.ms).sum();
        assert!((of_scopes - phase.work.ms).abs() < 1e-9, "{}", phase.name);
    }
}

#[test]
fn scopes_know_what_was_live_around_them() {
    const MIB: u64 = 1 << 20;
    let profile = profile();
    let names: Vec<&str> = profile.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["forward", "backward", "update"], "micro-batches are no phases of their own");
    let forward = &profile.phases[0];
    assert_eq!(forward.live, Live { before: 4 * MIB, peak: 12 * MIB, after: 10 * MIB });
    let blocks = forward.scopes.iter().find(|scope| scope.name == "blocks.*.mlp").unwrap();
    assert_eq!(blocks.members, ["blocks.0.mlp", "blocks.1.mlp"]);
    assert_eq!(blocks.live, Live { before: 4 * MIB, peak: 12 * MIB, after: 10 * MIB });
    let backward = &profile.phases[1];
    assert_eq!(backward.live, Live { before: 12 * MIB, peak: 12 * MIB, after: 4 * MIB });
}

fn render(row: &Row, repeats: usize) -> String {
    let render = |width| tables::render(&Source { row, repeats, timed_steps: 20 }, &STEP, &profile(), width);
    let is_within = |text: &str, width| text.lines().skip(2).all(|line| line.chars().count() <= width);
    let (text, narrow) = (render(100), render(80));
    assert!(is_within(&text, 100), "{text}");
    // The legend is wrapped when it is printed.
    assert!(is_within(narrow.split("\ncalls and ms").next().unwrap(), 80), "{narrow}");
    text
}

#[test]
fn two_tables_say_where_time_goes() {
    let mut row = Row { repeat: 2, ..Row::default() };
    (row.product_flops_per_s, row.copy_bytes_per_s) = (Some(4e11), Some(5e10));
    insta::assert_snapshot!(render(&row, 3));
}

#[test]
fn without_rates_there_are_no_shares() {
    let text = render(&Row::default(), 1);
    assert!(text.contains("product rate unknown, copy rate unknown"), "{text}");
    let line = text.lines().find(|line| line.starts_with("linear-gelu ")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells, ["linear-gelu", "3", "7.00", "70.0", "171.4", "-", "17.1", "-"]);
}

#[test]
fn mutated_tables_are_read() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("memory.csv");
    read_mutated("tables of operations", &[MEMORY.into()], &["memory.csv"], |text| {
        std::fs::write(&file, text).unwrap();
        let told = |failure: Failure| visible(&failure.to_string()).into_owned();
        let lines = measured::read::<Line>(&file).map_err(told)?.unwrap_or_default();
        let row = Row::default();
        let source = Source { row: &row, repeats: 1, timed_steps: 1 };
        Ok(visible(&tables::render(&source, &STEP, &Profile::of(&lines), 100)).into_owned())
    });
}
