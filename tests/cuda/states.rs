//! Complete error messages for unusable cards, on the emulated stack, which `tests/cuda.sh` puts in the loader's path.

use std::process::Output;

use crate::test_folder::{TestFolder, Tiny, unwrapped};

/// Runs the program in a new folder, with additional environment variables.
fn runner(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let place = TestFolder::new();
    place.write("a.toml", Tiny { d_model: 32, ..Tiny::default() }.with("[strategies.plain]\n"));
    place.program(arguments).envs(variables.iter().copied()).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The error of `plan --device cuda`. Asserts that it is an input error.
fn plan_error(variables: &[(&str, &str)]) -> String {
    plan_error_on("cuda", variables)
}

fn plan_error_on(device: &str, variables: &[(&str, &str)]) -> String {
    let output = runner(&["plan", "a.toml", "--device", device], variables);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(text(&output.stdout), "", "nothing is planned for another device");
    said.trim_end().to_owned()
}

const PLAN_HINT: &str = "; `plan --target` predicts for an absent card (`devices --targets` lists some)";

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn driver_without_a_device_is_reported() {
    assert_eq!(
        plan_error(&[("EMULATED_DEVICES", "0"), ("EMULATED_DRIVER", "13000")]),
        format!("error: the CUDA driver (13.0) finds no device{PLAN_HINT}")
    );
    let hidden = plan_error(&[("EMULATED_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "7")]);
    assert!(hidden.contains("finds no device; CUDA_VISIBLE_DEVICES is `7`"), "{hidden}");
    // `auto` does not mention an absent card.
    let auto = runner(&["plan", "a.toml"], &[("EMULATED_DEVICES", "0")]);
    let first = unwrapped(&text(&auto.stdout)).lines().next().expect("a line").to_owned();
    assert!(first.starts_with("device: ") && first.contains("(cpu, "), "{first}");
    assert!(!first.contains("not used"), "{first}");
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn unknown_ordinal_is_reported() {
    assert_eq!(
        plan_error_on("cuda:2", &[("EMULATED_DEVICES", "2")]),
        format!(
            "error: there is no cuda:2; there are: cuda:0 (emulated GPU), cuda:1 (emulated GPU){PLAN_HINT}"
        )
    );
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn old_driver_is_reported() {
    assert_eq!(
        plan_error(&[("EMULATED_DRIVER", "11040")]),
        format!(
            "error: the driver is too old: it supports CUDA 11.4, this program needs 12.0 or newer; update the \
             driver{PLAN_HINT}"
        )
    );
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn card_too_old_or_too_new_is_reported() {
    assert_eq!(
        plan_error(&[("EMULATED_CAPABILITY", "7.5")]),
        format!(
            "error: cuda:0 (emulated GPU) has compute capability 7.5, this program needs 8.0 or newer{PLAN_HINT}"
        )
    );
    let newer = plan_error(&[("EMULATED_CAPABILITY", "99.0")]);
    assert!(newer.contains("cannot compile for cuda:0 (emulated GPU) of compute capability 99.0"), "{newer}");
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn busy_card_is_reported() {
    assert_eq!(
        plan_error(&[("EMULATED_FAIL", "cuDevicePrimaryCtxRetain:1:46")]),
        "error: cuda:0 (emulated GPU) is busy: another process uses it exclusively \
         (CUDA_ERROR_DEVICE_UNAVAILABLE, 46)"
    );
    assert_eq!(
        plan_error(&[("EMULATED_FAIL", "cuDevicePrimaryCtxRetain:1:2")]),
        "error: cuda:0 (emulated GPU) has no memory left for a context: other processes use it"
    );
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn failed_call_is_named() {
    assert_eq!(
        plan_error(&[("EMULATED_FAIL", "cuMemPoolCreate:1:801")]),
        "error: cuMemPoolCreate failed: CUDA_ERROR_NOT_SUPPORTED (801)"
    );
}

/// A library may be newer than this program: unknown codes are shown as numbers.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn unknown_codes_are_shown() {
    let driver = "an error unknown to this driver (4242)";
    assert_eq!(
        plan_error(&[("EMULATED_FAIL", "cuInit:1:4242")]),
        format!("error: the CUDA driver cannot be used: cuInit failed: {driver}{PLAN_HINT}")
    );
    assert_eq!(
        plan_error(&[("EMULATED_FAIL", "cuMemPoolCreate:1:4242")]),
        format!("error: cuMemPoolCreate failed: {driver}")
    );
    assert_eq!(
        plan_error(&[("EMULATED_FAIL", "cublasLtCreate:1:4242")]),
        "error: cublasLtCreate failed: an error unknown to this program (4242)"
    );
}

/// The folder of the emulated stack, last in the path: cargo prepends its own folders.
fn stack() -> String {
    let path = std::env::var("LD_LIBRARY_PATH").expect("the emulated stack");
    path.rsplit(':').next().expect("a folder").to_owned()
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn unknown_compiler_code_is_shown() {
    let stack = stack();
    let path = format!("{stack}:{stack}/nvrtc");
    // An empty cache, so that kernels are compiled.
    let said =
        plan_error(&[("LD_LIBRARY_PATH", &path), ("EMULATED_NVRTC", "4242"), ("RUNNER_CACHE_DIR", "cache")]);
    assert!(said.starts_with("error: NVRTC cannot compile "), "{said}");
    assert!(said.ends_with(" for sm_90:\nNVRTC_ERROR unknown (4242)"), "{said}");
}

/// The line of `devices` about NVRTC: that it is found, or why it is unusable.
fn nvrtc_line(variables: &[(&str, &str)]) -> String {
    let variables: Vec<_> = [("EMULATED_DEVICES", "0")].iter().chain(variables).copied().collect();
    let output = runner(&["devices"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = unwrapped(&text(&output.stdout));
    let mut lines = said.lines().filter(|line| line.starts_with("NVRTC"));
    let line = lines.next().expect("a line of NVRTC").to_owned();
    assert_eq!(lines.next(), None, "{said}");
    line
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn nvrtc_that_cannot_compile_is_reported() {
    let stack = stack();
    let path = format!("{stack}:{stack}/nvrtc");
    let said = nvrtc_line(&[("LD_LIBRARY_PATH", &path), ("EMULATED_NVRTC", "4242")]);
    let expected = format!(
        "NVRTC 13.0 ({stack}/nvrtc/libnvrtc.so.13) does not compile: NVRTC_ERROR unknown (4242); `pip install \
         nvidia-cuda-nvrtc` installs another version"
    );
    assert_eq!(said, expected);
}

/// The real NVRTC, alone in a folder: it is found, but cannot load its builtins when it compiles.
#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn missing_builtins_are_reported_in_one_line() {
    let environment = std::env::var("VIRTUAL_ENV").expect("NVRTC in a Python environment");
    let pattern = format!("{environment}/lib*/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1?");
    let real = glob::glob(&pattern).unwrap().map(Result::unwrap).next().expect("NVRTC");
    let installed = nvrtc_line(&[]);
    assert!(installed.ends_with(&format!(": {}", real.display())), "{installed}");

    let alone = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the test");
    let folder = alone.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(real.file_name().unwrap());
    std::fs::hard_link(&real, &file).or_else(|_| std::fs::copy(&real, &file).map(drop)).expect("NVRTC");

    let version = installed.split([' ', ':']).nth(1).expect("a version");
    let (file, folder) = (file.display(), folder.display());
    let expected = format!(
        "NVRTC {version} ({file}) cannot compile without libnvrtc-builtins.so.{version}, and {folder} does not contain it; \
         install NVRTC again, or add the folder of that file to LD_LIBRARY_PATH"
    );
    let root = alone.path().to_str().expect("a path of text");
    assert_eq!(nvrtc_line(&[("VIRTUAL_ENV", root)]), expected);
    // The same error when kernels are compiled.
    let plan_error = plan_error(&[("VIRTUAL_ENV", root), ("RUNNER_CACHE_DIR", "cache")]);
    assert_eq!(plan_error, format!("error: {expected}"));
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn skipped_card_is_reported_in_the_first_line() {
    let output = runner(&["plan", "a.toml"], &[("EMULATED_CAPABILITY", "7.5")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let first = unwrapped(&text(&output.stdout)).lines().next().expect("a line").to_owned();
    let skipped = "; the CUDA device is not used: cuda:0 (emulated GPU) has compute capability 7.5, this \
                       program needs 8.0 or newer";
    assert!(first.contains("(cpu, ") && first.ends_with(skipped), "{first}");
}

#[test]
#[ignore = "needs a card or the emulated stack: tests/cuda.sh"]
fn missing_nvrtc_lists_all_searched_folders() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let nowhere = folder.path().to_str().expect("a path of text");
    // The loader's path contains only the emulated stack's folder.
    let variables = [
        ("VIRTUAL_ENV", nowhere),
        ("CONDA_PREFIX", ""),
        ("CUDA_HOME", "/nowhere"),
        ("PATH", ""),
        ("HOME", ""),
    ];
    let said = plan_error(&variables);
    let path = std::env::var("LD_LIBRARY_PATH").expect("the emulated stack");
    let places = format!(
        "the loader's path (LD_LIBRARY_PATH={path}), /nowhere/lib64 (CUDA_HOME), CUDA_PATH (not set), \
         /usr/local/cuda*/lib64, {nowhere}/lib*/python3*/*-packages/nvidia/*/lib (VIRTUAL_ENV), CONDA_PREFIX (not set)"
    );
    assert_eq!(
        said,
        format!(
            "error: NVRTC (the kernel compiler) is missing: searched for libnvrtc.so.13 and libnvrtc.so.12 in \
             {places}; `pip install nvidia-cuda-nvrtc` or the CUDA toolkit provides it{PLAN_HINT}"
        )
    );
}
