//! End-to-end tests of `runner sweep --device cuda` on the emulated stack, which `tests/cuda.sh` puts in the loader's
//! path: every strategy against the same run on the CPU, predictions, external readings, out of memory, and a lost
//! card.

use std::collections::HashMap;
use std::process::Output;

use crate::test_folder::{TestFolder, Tiny, said, unwrapped};
use execute::driver_agrees;
use results::{Row, Status};

const MORE: &str = r#"
clip_norm = 1.0
optimizer.adamw.weight_decay = 0.1

[evaluation]
every = 10
batches = 1

[measure]
warmup_steps = 2
steps = 3

[strategies.plain]
[strategies.tf32]
precision = "tf32"
[strategies.bf16]
precision = "bf16"
[strategies.fp16]
precision = "fp16"
[strategies.bf16-graph]
precision = "bf16"
graph = true
[strategies.accumulate]
accumulate = 2
[strategies.recompute]
recompute = "block"
[strategies.direct]
allocator = "direct"
[strategies.caching]
allocator = "caching"
[strategies.offload]
offload = { parameters = true, activations = true }
[strategies.pageable]
extends = "offload"
offload.pinned = false
[strategies.offload-graph]
extends = "offload"
graph = true
[strategies.overflow]
precision = "fp16"
loss_scale.dynamic = { initial = 1073741824, backoff = 0.00006103515625 }
"#;

/// A test folder with the experiment.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let tiny = Tiny { layers: 2, d_model: 32, context: 32, ..Tiny::default() }.with(MORE);
    place.write("small.toml", format!("baseline = \"plain\"\n{tiny}"));
    place
}

impl TestFolder {
    fn sweep(&self, device: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = self.program(&["sweep", "small.toml", "--device", device, "--out", device]);
        command.args(arguments).envs(variables.iter().copied()).output().unwrap()
    }

    fn rows_on(&self, device: &str) -> HashMap<String, Row> {
        self.rows_by_strategy(&format!("{device}/small.csv"))
    }
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn every_strategy_trains_on_cuda_as_on_the_cpu() {
    let place = place();
    for device in ["cpu", "cuda"] {
        let output = place.sweep(device, &[], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    let (cpu, cuda) = (place.rows_on("cpu"), place.rows_on("cuda"));
    assert_eq!((cpu.len(), cuda.len()), (13, 13));
    for (strategy, row) in &cuda {
        let on_cpu = &cpu[strategy];
        assert_eq!(row.status, Status::Ok, "{strategy}: {}", row.message);
        assert_eq!(row.peak_bytes, row.predicted_peak_bytes, "{strategy}");
        assert_eq!(row.reserved_peak_bytes, row.predicted_reserved_peak_bytes, "{strategy}");
        let (reserved, witness) = (row.reserved_peak_bytes.unwrap(), row.external_peak_bytes.unwrap());
        let step = row.external_step_bytes.unwrap();
        assert!(
            driver_agrees(reserved, witness, step),
            "{strategy}: driver reports {witness} for {reserved} reserved, granularity {step}"
        );
        assert!(row.context_bytes.unwrap() > 0, "{strategy}");
        assert!(!row.emulated, "{strategy}: cards multiply these types natively");
        let tolerance = if row.precision == "fp32" { 1e-5 } else { 1e-3 };
        for (a, b) in [(row.loss_last, on_cpu.loss_last), (row.loss_eval, on_cpu.loss_eval)] {
            let (a, b) = (a.unwrap(), b.unwrap());
            assert!((a - b).abs() <= tolerance * b, "{strategy}: {a} and {b}");
        }
        assert_eq!(row.skipped_steps, on_cpu.skipped_steps, "{strategy}");
    }
    for strategy in ["recompute", "direct", "offload", "pageable", "offload-graph"] {
        assert_eq!(cuda[strategy].digest, cuda["plain"].digest, "{strategy} changes no bit");
    }
    assert_eq!(cuda["bf16-graph"].digest, cuda["bf16"].digest, "replay changes no bit");
    assert!(cuda["bf16-graph"].effects.contains("graph replay"), "{}", cuda["bf16-graph"].effects);
    // The hidden share exists only with copies, and without graphs: parts of a replay cannot be timed.
    for strategy in ["offload", "pageable"] {
        let hidden = cuda[strategy].copies_hidden.unwrap();
        assert!((0.0..=1.0).contains(&hidden), "{strategy}: {hidden}");
        assert!(cuda[strategy].effects.contains("of copies hidden"), "{}", cuda[strategy].effects);
    }
    assert_eq!(["plain", "offload-graph"].map(|strategy| cuda[strategy].copies_hidden), [None; 2]);
    assert!(cuda["offload-graph"].effects.contains("graph replay"), "{}", cuda["offload-graph"].effects);
    let pinned = |strategy: &str| cuda[strategy].pinned_peak_bytes.unwrap();
    assert_eq!(pinned("offload"), cuda["offload"].host_peak_bytes.unwrap());
    assert_eq!(pinned("pageable"), pinned("plain"));
    assert_eq!(cuda["overflow"].skipped_steps, Some(1));
    assert_eq!(cuda["overflow"].loss_scale, Some(65536.0));
    // Whether a strategy changes the program is the same on all devices, but tf32 has an effect only on a card.
    assert_eq!((cpu["tf32"].no_effect.as_str(), cuda["tf32"].no_effect.as_str()), ("precision", ""));
    let graph = (cpu["bf16-graph"].no_effect.as_str(), cuda["bf16-graph"].no_effect.as_str());
    assert_eq!(graph, ("graph", ""));
}

/// The driver's reservation granularity is measured, and stored in the row. Only `direct` uses the driver's pool.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn row_contains_the_driver_s_reservation_granularity() {
    for step in ["2097152", "33554432"] {
        let place = place();
        let output = place.sweep("cuda", &["--filter", "[pd][li]*"], &[("EMULATED_POOL_STEP", step)]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        for (strategy, step) in [("plain", "2097152"), ("direct", step)] {
            let row = &place.rows_on("cuda")[strategy];
            assert_eq!(
                row.external_step_bytes.map(|bytes| bytes.to_string()),
                Some(step.to_owned()),
                "{strategy}"
            );
            assert_eq!(row.external_peak_bytes.unwrap() % row.external_step_bytes.unwrap(), 0, "{strategy}");
        }
    }
}

/// A driver's pool may reserve much more than its allocations use: an arena and cached segments are outside of it.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn only_direct_allocations_depend_on_the_driver_s_pool() {
    let place = place();
    // The first request of the arena, and of the cache, fails; it is repeated without the pool's free memory.
    let variables = [
        ("EMULATED_POOL_PACKS", "0"),
        ("EMULATED_POOL_STEP", "2097152"),
        ("EMULATED_FAIL", "cuMemAlloc_v2:2:2"),
    ];
    let output = place.sweep("cuda", &["--filter", "[pdc][lia]*"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = place.rows_on("cuda");
    assert_eq!(rows.len(), 4);
    for (strategy, row) in rows {
        let (reserved, external) = (row.reserved_peak_bytes.unwrap(), row.external_peak_bytes.unwrap());
        let is_packed = external <= reserved + 2 * row.external_step_bytes.unwrap();
        assert_eq!(is_packed, strategy != "direct", "{strategy}: {external} instead of {reserved} bytes");
    }
}

/// Memory that the driver or a library needs in addition is refused like an allocation. Error 720 does not lose the
/// card.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn calls_that_are_out_of_memory_are_refused_requests() {
    const REFUSED: &str = "refused by the system: memory for the device pool";
    for (strategy, fails, message) in [
        ("bf16", "cuLaunchKernel:250:2", REFUSED),
        ("bf16-graph", "cuGraphInstantiateWithFlags:1:2", REFUSED),
        ("bf16-graph", "cuGraphLaunch:1:2", REFUSED),
        ("bf16", "cublasLtMatmul:150:3", REFUSED),
        ("bf16", "cuLaunchKernel:250:720", "the device failed: cuLaunchKernel of "),
    ] {
        let place = place();
        let output = place.sweep("cuda", &["--filter", strategy], &[("EMULATED_FAIL", fails)]);
        assert_eq!(output.status.code(), Some(1), "{fails}: {}", said(&output));
        let row = &place.rows_on("cuda")[strategy];
        assert_eq!(row.status, Status::Failed, "{fails}: {}", row.message);
        assert!(row.message.contains(message), "{fails}: {}", row.message);
    }
}

/// The card has less free memory than the limit, because other processes use it: the run fails and is repeated later.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn out_of_memory_on_the_card_is_a_failure_not_a_result() {
    let place = place();
    // During a training step: autotuning and priming, which allocate first, tolerate failed allocations.
    let fails = [("EMULATED_FAIL", "cuMemAllocFromPoolAsync:500:2")];
    let output = place.sweep("cuda", &["--filter", "direct"], &fails);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let row = &place.rows_on("cuda")["direct"];
    assert_eq!(row.status, Status::Failed, "the run fits according to the plan: {}", row.message);
    assert!(row.message.contains("refused by the system: "), "{}", row.message);
    let output = place.sweep("cuda", &["--filter", "direct"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(place.rows_on("cuda")["direct"].status, Status::Ok);
}

/// The sweep reports the failed run and continues with the next.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn lost_card_fails_one_run_only() {
    let place = place();
    let output =
        place.sweep("cuda", &["--filter", "[pr][le]*"], &[("EMULATED_FAIL", "cuLaunchKernel:250:700")]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let rows = place.rows_on("cuda");
    assert_eq!(rows.len(), 2);
    for (strategy, row) in rows {
        assert_eq!(row.status, Status::Failed, "{strategy}");
        assert!(row.message.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{strategy}: {}", row.message);
    }
}

/// An unwritable cache folder costs time, and causes one warning.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn unwritable_cache_only_warns() {
    let place = place();
    let file = place.path("text.txt/no-folder");
    let variables = [("RUNNER_CACHE_DIR", file.to_str().unwrap())];
    let output = place.sweep("cuda", &["--filter", "plain"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let said = unwrapped(&said(&output));
    assert_eq!(said.matches("compiled kernels and algorithms cannot be cached").count(), 1, "{said}");
}
