//! Nothing about kernels is forgotten: sources are compiled, and operations are tested.

use std::fs;
use std::path::Path;

use ops::Op;

/// The kernels of a file that `SOURCES` lacks would not be compiled, and no other test would notice.
#[test]
fn every_cuda_source_is_listed() {
    let listed = fs::read_to_string("src/device/cuda/sources.rs").unwrap();
    let missing: Vec<String> = names("src/device/cuda/kernels", ".cu")
        .filter(|name| !listed.contains(&format!("source!(\"{name}\")")))
        .collect();
    assert!(missing.is_empty(), "not in src/device/cuda/sources.rs: {missing:?}");
}

/// CUDA devices do not support experts.
const CPU_ONLY: [&str; 9] = [
    "Combine",
    "CombineBackward",
    "Dispatch",
    "DispatchBackward",
    "ExpertLinear",
    "ExpertLinearInputGradient",
    "ExpertLinearWeightGradient",
    "Route",
    "RouteBackward",
];

/// Devices never launch `LoadParameter`.
#[test]
fn every_operation_has_kernel_tests() {
    let folders = [("src/device/cpu/kernels/tests", &[][..]), ("tests/cuda/kernels", &CPU_ONLY)];
    for (folder, unsupported) in folders {
        let read = |name: String| fs::read_to_string(Path::new(folder).join(name)).unwrap();
        let tests: String = names(folder, ".rs").map(read).collect();
        let is_untested = |name: &&&str| {
            let constructed = format!("Op::{name}");
            let mut uses = tests.match_indices(&constructed);
            !uses.any(|(at, _)| !tests[at + constructed.len()..].starts_with(char::is_alphanumeric))
        };
        let is_launched = |name: &&&str| **name != "LoadParameter" && !unsupported.contains(*name);
        let untested: Vec<_> = Op::NAMES.iter().filter(is_untested).filter(is_launched).collect();
        assert!(untested.is_empty(), "no test in {folder} launches {untested:?}");
    }
}

fn names(folder: &str, extension: &str) -> impl Iterator<Item = String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(move |name| name.ends_with(extension))
}
