//! The items of `cudarc` that the CUDA device may use.

use std::fs;
use std::path::Path;

/// The source without comments and test modules.
fn code(source: &str) -> String {
    let mut code = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            // The item is one line, or it ends with a brace in the same column.
            let indent = &line[..line.len() - line.trim_start().len()];
            let closing = format!("{indent}}}");
            if lines.next().is_some_and(|item| item.ends_with('{')) {
                lines.by_ref().find(|line| *line == closing);
            }
            continue;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// The items of `cudarc` that a file of the CUDA device uses and must not. Only `calls` may use it: that module
/// declares functions that return numbers, and takes from `cudarc` only types that a library reads.
fn forbidden_items(file: &str, source: &str) -> Vec<String> {
    let code = code(source);
    let mut found = Vec::new();
    for (start, _) in code.match_indices("cudarc::") {
        let path = &code[start..];
        let path: String = path.chars().take_while(|c| c.is_alphanumeric() || "_:*".contains(*c)).collect();
        let group = code[start + path.len()..].strip_prefix('{').and_then(|group| group.split('}').next());
        let names = group.unwrap_or_else(|| path.rsplit("::").next().unwrap_or_default());
        let is_taken = |name: &str| match name {
            // Loading returns no status code.
            "culib" => file.starts_with("calls/"),
            "is_culib_present" => true,
            // Status codes, and the struct that has one.
            "CUresult" | "nvrtcResult" | "cublasStatus_t" | "cublasLtMatmulHeuristicResult_t" => false,
            name => {
                let is_type = name.starts_with("CU") || name.ends_with("_t") || name == "nvrtcProgram";
                file.starts_with("calls/") && is_type
            }
        };
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        found.extend(names.filter(|name| !is_taken(name)).map(|name| {
            let path = path.strip_suffix(name).unwrap_or(&path);
            format!("{file}: {path}{name}")
        }));
    }
    found
}

/// A Rust enum with an undeclared value is undefined behaviour, and a newer driver may return any value.
#[test]
fn cuda_return_codes_are_not_rust_enums() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/cuda");
    let mut found = Vec::new();
    let mut calls = 0;
    for file in glob::glob(root.join("**/*.rs").to_str().unwrap()).unwrap().map(Result::unwrap) {
        let source = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        calls += usize::from(name.starts_with("calls/"));
        found.extend(forbidden_items(&name, &source));
    }
    assert_eq!(calls, 5, "one file per library, and what they share");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn check_catches_return_code_enums() {
    let caught = [
        ("memory.rs", "use cudarc::driver::sys::{self, CUmemPool_attribute_enum as Attribute};"),
        ("memory.rs", "use cudarc::driver::sys;"),
        ("memory.rs", "let status = unsafe { cudarc::driver::sys::cuMemFree_v2(address) };"),
        ("libraries.rs", "let library = unsafe { cudarc::nvrtc::sys::culib() };"),
        ("calls/driver.rs", "use cudarc::driver::sys::{CUdevice, cuMemFree_v2};"),
        ("calls/driver.rs", "use cudarc::driver::sys::CUresult;"),
        ("calls/driver.rs", "use cudarc::driver::result;"),
        ("calls/cublaslt.rs", "use cudarc::cublaslt::sys::{culib, cublasLtMatmulHeuristicResult_t};"),
        ("calls/cublaslt.rs", "pub(super) use cudarc::cublaslt::sys::*;"),
    ];
    for (file, source) in caught {
        assert!(!forbidden_items(file, source).is_empty(), "{file}: {source}");
    }
    let fine = [
        ("memory.rs", "//! Through cudarc::driver.\nuse super::calls::driver as sys;"),
        ("libraries.rs", "unsafe { cudarc::nvrtc::sys::is_culib_present() }"),
        (
            "calls/nvrtc.rs",
            "use cudarc::nvrtc::sys::culib;\npub(super) use cudarc::nvrtc::sys::nvrtcProgram;",
        ),
        ("calls/driver.rs", "use cudarc::driver::sys::{\n    CUdevice, CUevent_flags_enum,\n};"),
    ];
    for (file, source) in fine {
        assert_eq!(forbidden_items(file, source), Vec::<String>::new(), "{file}: {source}");
    }
}
