//! `loader.source` and `input_dtype` for samples with inputs and targets: held in memory, or as pixels, batches are the same,
//! and the bytes are exact.

use std::path::Path;

use super::loader::{run, source};
use crate::logs::STEPS_FILE;
use crate::metrics::{Ended, Measured};
use device::Role;
use memory::{RunSchedule, predict};
use spec::*;
use testing::compile;

/// Images of 5 by 6 pixels in two files, with 11 for training, in batches of four with a smaller last one.
const IMAGES: usize = 13;
const PIXELS: usize = 5 * 6;

const CHANGED: &str =
    "images = 'images', labels = 'labels', split = 0.85, mean = [0.2], std = [0.4], crop = 1, flip = true";
const PLAIN: &str = "images = 'images', labels = 'labels', split = 0.85, mean = [0.2], std = [0.4]";

/// A run on images, or on random samples, in micro-batches of three and one.
fn config(folder: &Path, data: &str, loader: Loader) -> RunConfig {
    let pixels: Vec<u8> = (0..IMAGES * PIXELS).map(|i| (i * i % 251) as u8).collect();
    let labels: Vec<u8> = (0..IMAGES).map(|i| (i % 4) as u8).collect();
    let header = |sizes: &[u8]| -> Vec<u8> {
        let sizes = sizes.iter().flat_map(|&size| [0, 0, 0, size]);
        [0, 0, 8, sizes.clone().count() as u8 / 4].into_iter().chain(sizes).collect()
    };
    std::fs::write(folder.join("images"), [header(&[IMAGES as u8, 5, 6]), pixels].concat()).unwrap();
    std::fs::write(folder.join("labels"), [header(&[IMAGES as u8]), labels].concat()).unwrap();
    let text = format!(
        "[model.sequential]
         input = [1, 5, 6]
         layers = [{{ conv2d = {{ out = 3, kernel = 3 }} }}, 'batch_norm', 'relu', 'flatten', {{ linear = 4 }}]
         [data]
         {data}
         [train]
         batch_size = 4
         shuffle = true
         last_batch = 'keep'
         optimizer.adamw.lr = 1e-2
         [evaluation]
         every = 2
         batches = 2
         [measure]
         warmup_steps = 1
         steps = 5
         [strategies.plain]
         accumulate = 2"
    );
    // The files are beside the experiment.
    let text = text.replace("'images'", &format!("{:?}", folder.join("images")));
    let text = text.replace("'labels'", &format!("{:?}", folder.join("labels")));
    let mut config = testing::changed(&text, &[]).unwrap();
    config.strategy.loader = loader;
    config
}

/// The losses and the digest of a run, whose memory is as predicted.
fn trained(data: &str, loader: Loader) -> (Vec<String>, Measured) {
    trained_in(data, loader, InputDtype::Fp32)
}

fn trained_in(data: &str, loader: Loader, input_dtype: InputDtype) -> (Vec<String>, Measured) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), data, loader);
    config.strategy.input_dtype = input_dtype;
    let data = source(&config);
    config.set_data_properties(data.contents());
    let target = testing::target();
    let predicted = predict(&compile(&config, &target).unwrap(), &target, RunSchedule::of(&config));
    let outcome = run(config, data, folder.path()).unwrap();
    assert_eq!(outcome.ended, Ended::Complete, "{}", outcome.message);
    let measured = outcome.measured;
    assert_eq!(measured.host_peak_bytes, Some(predicted.host.peak()));
    assert_eq!(measured.pinned_peak_bytes, Some(predicted.pinned.peak()));
    assert_eq!(measured.reserved_peak_bytes, Some(predicted.device.reserved_peak));
    let log = std::fs::read_to_string(folder.path().join(STEPS_FILE)).unwrap();
    let loss = |line: &str| line.split(',').nth(1).unwrap().to_owned();
    let evaluated = measured.loss_eval.map(|loss| loss.to_string());
    (log.lines().map(loss).chain(evaluated).chain([measured.digest.clone()]).collect(), measured)
}

#[test]
fn results_do_not_depend_on_where_samples_are() {
    use DataResidence::{Device, Ram};
    let random = "random = { samples = 11, seed = 3 }".to_owned();
    for (data, sources) in [
        (format!("idx = {{ {PLAIN} }}"), &[Ram, Device][..]),
        (format!("idx = {{ {CHANGED} }}"), &[Ram]),
        (random, &[Ram, Device]),
    ] {
        let (plain, of_plain) = trained(&data, Loader::default());
        assert!(of_plain.padding.is_some_and(|padding| padding > 0.0), "a smaller last batch");
        for &source in sources {
            for (workers, prefetch, dtype) in
                [(0, 0, IdDtype::I32), (2, 1, IdDtype::U8), (1, 2, IdDtype::U16)]
            {
                let loader = Loader { workers, prefetch, source, dtype, ..Loader::default() };
                let (found, measured) = trained(&data, loader);
                assert_eq!(found, plain, "{loader:?}");
                assert_eq!(measured.padding, of_plain.padding);
            }
        }
    }
}

/// In host memory pixels are u8; in device memory they are as the model reads them, and batches are only places.
#[test]
fn held_samples_are_in_the_ledger() {
    let data = format!("idx = {{ {PLAIN} }}");
    let of = |source| trained(&data, Loader { source, dtype: IdDtype::U8, ..Loader::default() }).1;
    let [plain, ram, device] = [DataResidence::Stream, DataResidence::Ram, DataResidence::Device].map(of);
    let rounded = |bytes: usize| (bytes as u64).next_multiple_of(256);
    let host = |measured: &Measured| measured.host_peak_bytes.unwrap();
    assert_eq!(host(&ram), host(&plain) + rounded(IMAGES * PIXELS) + rounded(IMAGES));
    // Inputs in f32, classes in u8, weights in f32; instead of the first two, two words for each sample.
    assert_eq!(plain.batch_bytes, Some(4 * (4 * PIXELS as u64 + 1 + 4)));
    assert_eq!(device.batch_bytes, Some(4 * (8 + 4)));
    let inputs = |measured: &Measured| measured.live[Role::Input].unwrap();
    let held = rounded(4 * IMAGES * PIXELS) + rounded(IMAGES);
    // The places of a batch are free at the peak, which is in the loss.
    assert_eq!(inputs(&device), inputs(&plain) + held);
}

/// Without an evaluation, only the training split is held.
#[test]
fn samples_that_are_not_read_are_not_held() {
    let folder = tempfile::tempdir().unwrap();
    let loader = Loader { source: DataResidence::Ram, ..Loader::default() };
    let bytes = |evaluation: bool| {
        let mut config = config(folder.path(), &format!("idx = {{ {PLAIN} }}"), loader);
        config.evaluation = config.evaluation.filter(|_| evaluation);
        config.set_data_properties(source(&config).contents());
        config.held_bytes().unwrap()
    };
    assert_eq!([bytes(true), bytes(false)], [13 * (30 + 4), 11 * (30 + 4)]);
}

/// Pixels that the device normalises, also of images that the host changes, and of missing samples.
#[test]
fn pixels_have_the_results_of_numbers() {
    use DataResidence::{Device, Ram, Stream};
    for (keys, sources) in [(PLAIN, &[Stream, Ram, Device][..]), (CHANGED, &[Stream, Ram])] {
        let data = format!("idx = {{ {keys} }}");
        let (numbers, _) = trained(&data, Loader::default());
        for &source in sources {
            for prefetch in [0, 2] {
                let loader = Loader { workers: prefetch, prefetch, source, ..Loader::default() };
                assert_eq!(trained_in(&data, loader, InputDtype::U8).0, numbers, "{loader:?}");
            }
        }
    }
}

/// Wherever the numbers are rounded: when a sample is read into a batch, or into memory that holds all.
#[test]
fn rounded_inputs_do_not_depend_on_where_samples_are() {
    use DataResidence::{Device, Ram};
    let data = format!("idx = {{ {PLAIN} }}");
    let (exact, _) = trained(&data, Loader::default());
    for dtype in [InputDtype::Fp16, InputDtype::Bf16] {
        for data in [data.as_str(), "random = { samples = 11, seed = 3 }"] {
            let (plain, _) = trained_in(data, Loader::default(), dtype);
            for source in [Ram, Device] {
                let loader = Loader { source, ..Loader::default() };
                assert_eq!(trained_in(data, loader, dtype).0, plain, "{source:?} {dtype:?}");
            }
        }
        let (rounded, _) = trained_in(&data, Loader::default(), dtype);
        assert_ne!(rounded, exact, "normalised pixels are rounded");
        let loss = |line: &String| line.parse::<f64>().ok();
        for (rounded, exact) in rounded.iter().filter_map(loss).zip(exact.iter().filter_map(loss)) {
            assert!((rounded - exact).abs() <= 0.02 * exact, "{rounded} and {exact}");
        }
    }
}

/// In batches and in memory that holds all samples. The device has the pixels of a micro-batch beside its numbers.
#[test]
fn inputs_take_the_bytes_of_their_dtype() {
    let data = format!("idx = {{ {PLAIN} }}");
    let rounded = |bytes: usize| (bytes as u64).next_multiple_of(256);
    let host = |measured: &Measured| measured.host_peak_bytes.unwrap();
    let of = |source, dtype| trained_in(&data, Loader { source, ..Loader::default() }, dtype).1;
    for (dtype, bytes) in
        [(InputDtype::Fp32, 4), (InputDtype::Fp16, 2), (InputDtype::Bf16, 2), (InputDtype::U8, 1)]
    {
        let stream = of(DataResidence::Stream, dtype);
        // Classes in i32 and weights in f32.
        assert_eq!(stream.batch_bytes, Some(4 * (bytes * PIXELS as u64 + 8)), "{dtype:?}");
        let device = of(DataResidence::Device, dtype);
        let held = rounded(bytes as usize * IMAGES * PIXELS) + rounded(4 * IMAGES);
        let inputs = |measured: &Measured| measured.live[Role::Input].unwrap();
        assert_eq!(inputs(&device), inputs(&stream) + held, "{dtype:?}");
        // Pixels, whatever becomes of them.
        let ram = of(DataResidence::Ram, dtype);
        assert_eq!(host(&ram), host(&stream) + rounded(IMAGES * PIXELS) + rounded(4 * IMAGES), "{dtype:?}");
    }
}
