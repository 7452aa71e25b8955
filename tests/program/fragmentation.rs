//! Fragmentation of the caching allocator in `runner sweep`.

use std::path::Path;

use crate::test_folder::{TestFolder, said};
use base::units::Bytes;
use device::{DeviceChoice, detect};
use plan::Purpose;
use results::{Row, Status};

const OVERRIDES: [&str; 2] = ["measure.warmup_steps=0", "measure.steps=2"];

/// The largest reserved peak, without a limit, of the runs that must fit.
fn limit(file: &Path) -> Bytes {
    let overrides = OVERRIDES.map(str::to_owned);
    let experiment = plan::expand(file, &overrides, &|_| None).unwrap();
    let target = detect(DeviceChoice::Cpu, Some(Bytes(1 << 40))).unwrap();
    let plan = plan::plan(experiment, &target, Purpose::Predict, &|_| Some(String::new())).unwrap();
    let fit = plan.runs.iter().filter(|run| run.strategy != "caching");
    let reserved = fit.map(|run| run.prediction.as_ref().unwrap().device.reserved_peak);
    Bytes(reserved.max().unwrap())
}

#[test]
fn fragmentation_makes_caching_run_out_of_memory() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/fragmentation.toml");
    let limit = limit(&file);
    let dir = TestFolder::new();
    let memory = format!("{} B", limit.0);
    let mut arguments = vec!["sweep", file.to_str().unwrap(), "--device", "cpu", "--memory", &memory];
    OVERRIDES.iter().for_each(|set| arguments.extend(["--set", set]));
    let output = dir.program(&arguments).output().unwrap();
    let printed = said(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");

    let rows = dir.rows("results/fragmentation.csv");
    assert_eq!(rows.len(), 6);
    for row in &rows {
        let Row { strategy, status, message, .. } = row;
        let expected = if strategy == "caching" { Status::Oom } else { Status::Ok };
        assert_eq!(*status, expected, "{strategy}: {message}");
        if *status == Status::Ok {
            assert_eq!(row.reserved_peak_bytes, row.predicted_reserved_peak_bytes, "{strategy}");
            assert!(row.reserved_peak_bytes.unwrap() <= limit.0, "{strategy}");
        }
    }
    // The free memory suffices for the request in total, but no single fragment does.
    let caching = rows.iter().find(|row| row.strategy == "caching").unwrap();
    let [pieces, largest, requested] =
        [caching.oom_in_pieces_bytes, caching.oom_largest_piece_bytes, caching.oom_requested_bytes]
            .map(Option::unwrap);
    assert!(largest < requested && requested <= pieces, "{requested} of {pieces}, {largest} in a piece");
    let told = " reserved but free in fragments, the largest ";
    assert!(caching.message.contains(told) && printed.contains(told), "{}\n{printed}", caching.message);
    let effects = |strategy: &str| &rows.iter().find(|row| row.strategy == strategy).unwrap().effects;
    for strategy in ["empty-cache", "expandable", "max-split"] {
        let effects = effects(strategy);
        assert!(effects.contains(" splits, ") && effects.contains("% cache hits"), "{strategy}: {effects}");
    }
    assert!(effects("empty-cache").ends_with(" returned"), "{}", effects("empty-cache"));
}
