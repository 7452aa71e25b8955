//! Every CUDA source file is compiled.

use std::fs;

/// A file that `SOURCES` leaves out would have no kernels, and no test would miss them.
#[test]
fn every_cuda_source_is_listed() {
    let listed = fs::read_to_string("src/device/cuda/sources.rs").unwrap();
    let missing: Vec<String> = fs::read_dir("src/device/cuda/kernels")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".cu") && !listed.contains(&format!("source!(\"{name}\")")))
        .collect();
    assert!(missing.is_empty(), "not in src/device/cuda/sources.rs: {missing:?}");
}
