//! Ranks on several emulated cards: exchanges through the emulated NCCL, by threads and by processes, and their errors.

use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use base::units::Bytes;
use device::{
    Buffer, Collective, CudaDevice, Delay, Device, DeviceError, Event, Pool, Queue, RankGroup, SharedMemory,
    Target, Tensor, emulate_delay, equip, from_f32, to_f32,
};
use ops::{DType, TensorType};
use results::{Row, Status};

use crate::test_folder::{TestFolder, Tiny, piped, said, unwrapped, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

fn target() -> Target {
    equip(0).expect("the emulated stack: run tests/cuda.sh").target(Bytes(0))
}

/// What each rank gets.
fn on_ranks<T: Send>(ranks: usize, patience: Duration, run: impl Fn(RankGroup) -> T + Sync) -> Vec<T> {
    let memory = SharedMemory::new(ranks).unwrap();
    thread::scope(|scope| {
        let start = |index| {
            let (memory, run) = (&memory, &run);
            scope.spawn(move || run(memory.join(index, patience).unwrap()))
        };
        let running: Vec<_> = (0..ranks).map(start).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn open(group: RankGroup) -> CudaDevice {
    let card = group.rank().index;
    CudaDevice::of_rank(target(), card, group).expect("a card for each rank")
}

fn place(device: &mut CudaDevice, dtype: DType, numbers: &[f32]) -> Tensor {
    let ty = TensorType::new(dtype, &[numbers.len()]);
    let buffer = device.allocate(Pool::Device, ty.bytes()).unwrap();
    let tensor = Tensor { buffer, offset: 0, ty };
    device.write(tensor.region(), &from_f32(dtype, numbers)).unwrap();
    tensor
}

fn numbers(device: &mut CudaDevice, tensor: Tensor) -> Vec<f32> {
    let mut bytes = vec![0; tensor.ty.bytes() as usize];
    device.read(tensor.region(), &mut bytes).unwrap();
    to_f32(tensor.ty.dtype, &bytes)
}

/// A rank's share of a tensor.
fn share(whole: Tensor, index: usize, ranks: usize) -> Tensor {
    let ty = TensorType::new(whole.ty.dtype, &[whole.ty.elements() / ranks]);
    Tensor { offset: whole.offset + index as u64 * ty.bytes(), ty, ..whole }
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn exchanges_are_exact() {
    const SHARE: usize = 1000;
    for ranks in [1, 2, 3] {
        on_ranks(ranks, PATIENCE, |group| {
            let index = group.rank().index;
            let mut device = open(group);
            let own =
                |rank: usize| (0..ranks * SHARE).map(move |place| (place % 13) as f32 + 16.0 * rank as f32);
            let sums: Vec<f32> = (0..ranks * SHARE)
                .map(|place| (0..ranks).map(|rank| (place % 13) as f32 + 16.0 * rank as f32).sum())
                .collect();
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let whole = place(&mut device, dtype, &own(index).collect::<Vec<_>>());
                device.exchange(Collective::AllReduce, whole, whole).unwrap();
                assert_eq!(numbers(&mut device, whole), sums, "{dtype}, {ranks} ranks");

                let whole = place(&mut device, dtype, &own(index).collect::<Vec<_>>());
                let part = place(&mut device, dtype, &[f32::NAN; SHARE]);
                device.exchange(Collective::ReduceScatter, whole, part).unwrap();
                assert_eq!(numbers(&mut device, part), sums[index * SHARE..][..SHARE]);
                // Its share lies within the whole.
                device.exchange(Collective::AllGather, share(whole, index, ranks), whole).unwrap();
                let gathered: Vec<f32> =
                    (0..ranks).flat_map(|rank| own(rank).skip(rank * SHARE).take(SHARE)).collect();
                assert_eq!(numbers(&mut device, whole), gathered);
                device.exchange(Collective::AllGather, part, whole).unwrap();
                assert_eq!(numbers(&mut device, whole), sums);
            }
            let mut sums = [1.0 + index as f64];
            device.sum_over_ranks(&mut sums).unwrap();
            assert_eq!(sums, [(1..=ranks).sum::<usize>() as f64]);
            assert!(device.exchanged().unwrap().is_some());
        });
    }
}

/// An exchange runs beside the compute queue: only events order them, and an allocation and its release.
#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn only_events_order_exchanges() {
    const EVENT: Event = Event(3);
    for delay in [Delay::Communication, Delay::Compute] {
        emulate_delay(Some(delay));
        on_ranks(2, PATIENCE, |group| {
            let mut device = open(group);
            let exchanged = |device: &mut CudaDevice, waits: bool| {
                let whole = place(device, DType::F32, &[1.0; 64]);
                let copy = place(device, DType::F32, &[7.0; 64]);
                device.exchange(Collective::AllReduce, whole, whole).unwrap();
                if waits {
                    device.record(Queue::Communication, EVENT).unwrap();
                    device.wait(Queue::Compute, EVENT).unwrap();
                }
                device.copy(Queue::Compute, whole.region(), copy.region()).unwrap();
                device.free(whole.buffer).unwrap();
                numbers(device, copy)
            };
            assert_eq!(exchanged(&mut device, true), [2.0; 64]);
            let without = exchanged(&mut device, false);
            // A compute queue that is late has no need of the event.
            if delay == Delay::Communication {
                assert_eq!(without, [1.0; 64], "copied ahead of the exchange");
            }
            let sent = |device: &mut CudaDevice, waits: bool| {
                let numbers_of_another = place(device, DType::F32, &[5.0; 64]);
                let whole = place(device, DType::F32, &[1.0; 64]);
                device.copy(Queue::Compute, numbers_of_another.region(), whole.region()).unwrap();
                if waits {
                    device.record(Queue::Compute, EVENT).unwrap();
                    device.wait(Queue::Communication, EVENT).unwrap();
                }
                device.exchange(Collective::AllReduce, whole, whole).unwrap();
                numbers(device, whole)
            };
            assert_eq!(sent(&mut device, true), [10.0; 64]);
            let without = sent(&mut device, false);
            if delay == Delay::Compute {
                assert_ne!(without, [10.0; 64], "exchanged ahead of the copy");
            }
        });
        emulate_delay(None);
    }
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn a_rank_that_does_not_come_loses_the_card() {
    let patience = Duration::from_millis(500);
    let end = Barrier::new(2);
    on_ranks(2, patience, |group| {
        let index = group.rank().index;
        let mut device = open(group);
        if index == 1 {
            end.wait();
            return;
        }
        let whole = place(&mut device, DType::F32, &[1.0; 64]);
        device.exchange(Collective::AllReduce, whole, whole).unwrap();
        let begun = Instant::now();
        let lost = DeviceError::Lost("another rank did not arrive within 500ms (--stall)".to_owned());
        assert_eq!(device.synchronize(), Err(lost.clone()));
        assert!((patience..10 * patience).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        // No later call waits again.
        assert_eq!(device.exchange(Collective::AllReduce, whole, whole), Err(lost.clone()));
        assert_eq!(device.sum_over_ranks(&mut [1.0]), Err(lost.clone()));
        assert_eq!(device.laps(), Err(lost));
        drop(device);
        assert!(begun.elapsed() < 10 * patience);
        end.wait();
    });
}

/// After an error of its own, a rank ends without a wait for the others.
#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn exchanges_that_run_do_not_keep_a_rank() {
    let end = Barrier::new(2);
    on_ranks(2, PATIENCE, |group| {
        let index = group.rank().index;
        let mut device = open(group);
        if index == 0 {
            let whole = place(&mut device, DType::F32, &[1.0; 64]);
            device.exchange(Collective::AllReduce, whole, whole).unwrap();
            let begun = Instant::now();
            drop(device);
            assert!(begun.elapsed() < PATIENCE / 10);
        }
        end.wait();
    });
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn ranks_that_differ_are_an_error() {
    let errors = on_ranks(2, PATIENCE, |group| {
        let elements = 64 + group.rank().index;
        let mut device = open(group);
        let whole = place(&mut device, DType::F32, &vec![1.0; elements]);
        device.exchange(Collective::AllReduce, whole, whole).unwrap();
        device.synchronize().unwrap_err()
    });
    for error in errors {
        let message = error.to_string();
        assert!(message.contains("an exchange of NCCL failed: invalid usage"), "{message}");
    }
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn ranks_need_a_card_each() {
    let errors =
        on_ranks(2, PATIENCE, |group| CudaDevice::of_rank(target(), 0, group).err().unwrap().to_string());
    for error in errors {
        assert!(error.contains("ncclCommInitRank failed: invalid usage: Duplicate GPU detected"), "{error}");
    }
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn exchanges_are_within_one_memory() {
    on_ranks(2, PATIENCE, |group| {
        let index = group.rank().index;
        let mut device = open(group);
        let ty = TensorType::f32(&[64]);
        let tensor = |buffer: Buffer| Tensor { buffer, offset: 0, ty };
        let [card, host] =
            [Pool::Device, Pool::Pinned].map(|pool| tensor(device.allocate(pool, ty.bytes()).unwrap()));
        let error = device.exchange(Collective::AllReduce, card, host).unwrap_err();
        assert!(error.to_string().contains("all in device memory or all in host memory"), "{error}");
        // Copied by the card, and waited for.
        device.write(card.region(), &from_f32(DType::F32, &[3.0; 64])).unwrap();
        device.copy(Queue::Copy, card.region(), host.region()).unwrap();
        device.record(Queue::Copy, Event(1)).unwrap();
        device.wait(Queue::Communication, Event(1)).unwrap();
        device.exchange(Collective::AllReduce, host, host).unwrap();
        assert_eq!(numbers(&mut device, host), [6.0; 64]);
        let share = Tensor { ty: TensorType::new(DType::U8, &[128]), ..card };
        let share = Tensor { offset: 128 * index as u64, ..share };
        let bytes = Tensor { ty: TensorType::new(DType::U8, &[256]), ..card };
        assert!(device.exchange(Collective::AllReduce, bytes, bytes).is_err());
        device.exchange(Collective::AllGather, share, bytes).unwrap();
        device.synchronize().unwrap();
    });
    let mut alone = CudaDevice::new(target(), 0).unwrap();
    let buffer = alone.allocate(Pool::Device, 256).unwrap();
    let tensor = Tensor { buffer, offset: 0, ty: TensorType::f32(&[64]) };
    assert_eq!(alone.exchange(Collective::AllReduce, tensor, tensor), Err(DeviceError::NoRanks));
}

const MORE: &str = r#"
[evaluation]
every = 10
batches = 2

[measure]
steps = 3

[strategies.one]
[strategies.none]
parallel = { data = 2 }
accumulate = 2
[strategies.optimizer]
parallel = { data = 2, shard = "optimizer" }
[strategies.gradients]
parallel = { data = 2, shard = "gradients" }
[strategies.parameters]
parallel = { data = 2, shard = "parameters" }
[strategies.bf16]
parallel = { data = 2, shard = "parameters" }
precision = "bf16"
"#;

fn folder(more: &str) -> TestFolder {
    let dir = TestFolder::new();
    let tiny = Tiny { layers: 2, d_model: 32, context: 32, batch_size: 4, ..Tiny::default() };
    dir.write("t.toml", tiny.with(more));
    dir
}

fn sweep(dir: &TestFolder, options: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = dir.program(&["sweep", "t.toml", "--device", "cuda"]);
    command.args(options).env("EMULATED_DEVICES", "2").envs(variables.iter().copied());
    command
}

fn row(dir: &TestFolder, strategy: &str) -> Row {
    dir.rows_by_strategy("results/t.csv").remove(strategy).unwrap()
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn ranks_on_cards_train_as_one() {
    let dir = folder(MORE);
    let output = sweep(&dir, &["--save", "saved"], &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = dir.rows_by_strategy("results/t.csv");
    let one = &rows["one"];
    for strategy in ["none", "optimizer", "gradients", "parameters", "bf16"] {
        let row = &rows[strategy];
        assert_eq!((row.status, row.ranks), (Status::Ok, Some(2)), "{strategy}: {}", row.message);
        assert_eq!(row.peak_bytes, row.predicted_peak_bytes, "{strategy}");
        assert_eq!(row.rank_peak_bytes, row.peak_bytes, "{strategy}");
        // The context and what NCCL is assumed to take.
        assert_eq!(row.context_bytes.unwrap(), one.context_bytes.unwrap() + (1 << 30));
        assert!(row.exchange_ms.is_some_and(|ms| ms > 0.0), "{strategy}");
        assert!(row.exchange_hidden.is_some_and(|share| (0.0..=1.0).contains(&share)), "{strategy}");
        assert!(row.effects.contains("2 ranks"), "{}", row.effects);
        let tolerance = if strategy == "bf16" { 1e-2 } else { 1e-5 };
        for (found, expected) in [(row.loss_last, one.loss_last), (row.loss_eval, one.loss_eval)] {
            let (found, expected) = (found.unwrap(), expected.unwrap());
            assert!((found - expected).abs() <= tolerance * expected, "{strategy}: {found} and {expected}");
        }
    }
    // Most of the peak is a workspace.
    for strategy in ["optimizer", "gradients", "parameters"] {
        assert!(rows[strategy].peak_bytes < rows["none"].peak_bytes, "{strategy}");
    }
    // Those whose parameters no rank divides.
    assert_eq!(dir.find("saved/*/model.safetensors").len(), 4);
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn ranks_without_cards_or_library_are_refused() {
    let two =
        "[strategies.one]\n[strategies.two]\nparallel.data = 2\n[strategies.three]\nparallel.data = 3\n";
    let dir = folder(&format!("\n[measure]\nsteps = 1\n{two}"));
    let output = sweep(&dir, &["--filter", "t*"], &[]).output().unwrap();
    assert_eq!(row(&dir, "two").status, Status::Ok, "{}", said(&output));
    let three = row(&dir, "three");
    assert_eq!(three.status, Status::Skipped);
    assert_eq!(
        three.message,
        "parallel.data = 3 needs 3 cards from cuda:0 on; there are 2: cuda:0 (emulated GPU), cuda:1 (emulated GPU); use \
         parallel.data = 2, or `--device cpu`"
    );
    // Without NCCL: the folder has all libraries but that one.
    let stack = std::env::var("LD_LIBRARY_PATH").unwrap();
    for library in ["libcuda.so.1", "libcublasLt.so.13"] {
        std::os::unix::fs::symlink(format!("{stack}/{library}"), dir.path(library)).unwrap();
    }
    let path = dir.path("");
    let variables = [("LD_LIBRARY_PATH", path.to_str().unwrap()), ("HOME", path.to_str().unwrap())];
    let output = sweep(&dir, &["--filter", "two", "--fresh"], &variables).output().unwrap();
    let two = row(&dir, "two");
    assert_eq!(two.status, Status::Skipped, "{}", unwrapped(&said(&output)));
    assert!(
        two.message.starts_with("NCCL (exchanges between ranks) is missing: searched for libnccl.so.2 in "),
        "{}",
        two.message
    );
    assert!(two.message.contains("`pip install nvidia-nccl-cu13` provides it"), "{}", two.message);
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn errors_of_the_library_end_the_run() {
    for (fails, message) in [
        ("ncclGetUniqueId:1:2", "ncclGetUniqueId failed: unhandled system error"),
        ("ncclCommInitRank:1:2", "ncclCommInitRank failed: unhandled system error"),
        ("ncclAllReduce:9:3", "ncclAllReduce failed: internal error"),
        ("ncclCommGetAsyncError.state:9:6", "an exchange of NCCL failed: remote process exited"),
    ] {
        let dir = folder("\n[measure]\nsteps = 2\n[strategies.two]\nparallel.data = 2\n");
        let begun = Instant::now();
        let output = sweep(&dir, &[], &[("EMULATED_FAIL", fails)]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{fails}: {}", said(&output));
        let row = row(&dir, "two");
        assert_eq!(row.status, Status::Failed, "{fails}");
        assert!(row.message.contains(message), "{fails}: {}", row.message);
        assert!(begun.elapsed() < Duration::from_secs(60), "{fails}");
    }
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn memory_that_the_library_lacks_is_told() {
    let dir = folder("\n[measure]\nsteps = 2\n[strategies.two]\nparallel.data = 2\n");
    let output = sweep(&dir, &[], &[("EMULATED_FAIL", "ncclCommInitRank.memory:1:2")]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let row = row(&dir, "two");
    assert_eq!(row.status, Status::Failed, "{}", row.message);
    assert!(row.message.contains("refused by the system: memory for the device pool"), "{}", row.message);
}

#[test]
#[ignore = "needs the emulated stack: tests/cuda.sh"]
fn a_rank_on_a_card_that_stands_still_ends_the_run() {
    let dir = folder("\n[measure]\nsteps = 131072\n[strategies.two]\nparallel.data = 2\n");
    let sweep = piped(sweep(&dir, &["--stall", "3s"], &[]));
    let has_steps = || {
        dir.find("results/t/*/*/.*/steps.csv")
            .iter()
            .any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.lines().count() > 2))
    };
    wait_for("the first steps", has_steps);
    let second = second_rank(sweep.id());
    assert!(Command::new("kill").args(["-STOP", &second]).status().unwrap().success());
    let output = sweep.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let row = row(&dir, "two");
    assert_eq!(row.status, Status::Failed);
    assert!(row.message.contains("another rank did not arrive within 3s (--stall)"), "{}", row.message);
    assert!(!std::path::Path::new(&format!("/proc/{second}")).exists(), "the stopped rank was killed");
}

/// The process of the second rank.
fn second_rank(parent: u32) -> String {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let is_second = |id: &&str| {
        let command = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        command.contains("--rank\u{0}1\u{0}")
    };
    children.split_whitespace().find(is_second).expect("a second rank").to_owned()
}
