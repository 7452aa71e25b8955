//! Imports run one way: a module uses its own floor and those under it, never one above.

use std::fs;
use std::path::Path;

/// From the ground up. What stands on one line may use each other.
const FLOORS: [&[&str]; 9] = [
    &["units", "statistics", "parallel", "temporary", "regular", "brief", "documented", "user_cache"],
    &["ops"],
    &["device", "data"],
    &["spec"],
    &["graph", "compile", "memory"],
    &["plan"],
    &["execute"],
    &["results", "compare"],
    &["cli"],
];

/// Configurations for unit tests: compiled for tests alone, which may use everything.
const FOR_TESTS: &str = "testing";

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// A file's modules from the crate's root: `src/device/cpu/mod.rs` is `["device", "cpu"]`.
fn modules(file: &str) -> Vec<&str> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').collect()
}

/// What the compiler sees outside tests: no comments, no test modules.
fn code(source: &str) -> String {
    let mut code = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            // An item of one line, or one that ends with the brace in the same column.
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

/// The first name of each path in `{a::b, c::{d, e}}` or `a::b`.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let mut names = vec![name(group)];
    let mut depth = 0;
    for (index, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[index + 1..])),
            _ => {}
        }
    }
    names
}

/// The modules under the crate's root that a file names, by `crate::` or by as many `super::` as lead there.
fn named(file: &str, source: &str) -> Vec<String> {
    let code = code(source);
    let up = "super::".repeat(modules(file).len());
    let mut names = Vec::new();
    for root in ["crate::", &up] {
        for (start, _) in code.match_indices(root) {
            let begins = !code[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if begins {
                names.extend(first_names(&code[start + root.len()..]));
            }
        }
    }
    names
}

/// What is wrong with a file, whose path is given from `src/`.
fn violations(file: &str, source: &str) -> Vec<String> {
    let module = modules(file)[0];
    if modules(file).contains(&"tests") || [FOR_TESTS, "main", "lib"].contains(&module) {
        return Vec::new();
    }
    let Some(own) = floor(module) else {
        return vec![format!("{file}: `{module}` has no floor: give it one in this test")];
    };
    let upward = |name: &String| match floor(name) {
        Some(other) => other > own,
        // What stands in no list and is no module of the tree is an item of the root or a macro's name.
        None => name == FOR_TESTS,
    };
    let mut names: Vec<String> = named(file, source).into_iter().filter(upward).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|name| format!("{file}: `{module}` uses `{name}`, which is above it")).collect()
}

#[test]
fn imports_run_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let pattern = root.join("**/*.rs");
    let mut found = Vec::new();
    let mut files = 0;
    for file in glob::glob(pattern.to_str().unwrap()).unwrap().map(Result::unwrap) {
        let source = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        found.extend(violations(&name, &source));
        files += 1;
    }
    assert!(files > 50, "only {files} files found: this looks in the wrong place");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// What of cudarc a file of the CUDA device uses that it must not: all but `calls`, which declares functions with
/// numbers for their answers, leave it alone, and there only types that a library reads are taken from it.
fn unknown_codes(file: &str, source: &str) -> Vec<String> {
    let code = code(source);
    let mut found = Vec::new();
    for (start, _) in code.match_indices("cudarc::") {
        let path = &code[start..];
        let path: String = path.chars().take_while(|c| c.is_alphanumeric() || "_:*".contains(*c)).collect();
        let group = code[start + path.len()..].strip_prefix('{').and_then(|group| group.split('}').next());
        let names = group.unwrap_or_else(|| path.rsplit("::").next().unwrap_or_default());
        let is_taken = |name: &str| match name {
            // Loading, which answers with no code.
            "culib" => file.starts_with("calls/"),
            "is_culib_present" => true,
            // What libraries answer with, and the struct that they write one to.
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

/// A Rust enum of a value that it does not have is undefined behaviour, and a newer driver may have any.
#[test]
fn no_answer_of_a_card_s_library_is_an_enum_of_rust() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/cuda");
    let mut found = Vec::new();
    let mut calls = 0;
    for file in glob::glob(root.join("**/*.rs").to_str().unwrap()).unwrap().map(Result::unwrap) {
        let source = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        calls += usize::from(name.starts_with("calls/"));
        found.extend(unknown_codes(&name, &source));
    }
    assert_eq!(calls, 4, "one file per library, and what they share");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_enum_that_a_library_answers_with_is_caught() {
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
        assert!(!unknown_codes(file, source).is_empty(), "{file}: {source}");
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
        assert_eq!(unknown_codes(file, source), Vec::<String>::new(), "{file}: {source}");
    }
}

#[test]
fn every_floor_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for module in FLOORS.concat() {
        let there = root.join(module).is_dir() || root.join(format!("{module}.rs")).is_file();
        assert!(there, "`{module}` is no module any more");
    }
}

#[test]
fn an_upward_import_is_caught() {
    let caught = [
        ("device/cpu/mod.rs", "use crate::spec::RunConfig;"),
        ("device/cpu/mod.rs", "use crate::{ops::{Op, ValueId}, memory};"),
        ("device/cpu/mod.rs", "use crate::{\n    ops::Op,\n    memory,\n};"),
        ("ops/mod.rs", "fn f() -> crate::device::Pool { loop {} }"),
        ("ops/linear.rs", "pub(crate) use super::super::plan;"),
        ("units.rs", "use super::ops::Op;"),
        ("plan/expand.rs", "#[cfg(test)]\nmod tests {\n    use crate::cli;\n}\nuse crate::execute::run;"),
        ("plan/expand.rs", "use crate::testing::small;"),
        ("attic/mod.rs", ""),
    ];
    for (file, source) in caught {
        assert_eq!(violations(file, source).len(), 1, "{file}: {source}");
    }
}

#[test]
fn what_is_no_upward_import_is_let_through() {
    let fine = [
        ("device/cpu/mod.rs", "use crate::{ops::{Op, memory}, units::Bytes};"),
        ("device/cpu/mod.rs", "use super::super::ops;\nuse super::spec;"),
        ("device/cpu/mod.rs", "//! See [`crate::spec`].\nlet x = 1; // crate::plan::plan"),
        ("plan/expand.rs", "#[cfg(test)]\nmod tests {\n    use crate::cli;\n    fn f() {\n    }\n}"),
        ("plan/expand.rs", "#[cfg(test)]\nuse crate::testing;"),
        ("plan/tests.rs", "use crate::execute::Engine;"),
        ("memory/live.rs", "use crate::compile::Program;"),
        ("cli/mod.rs", "use crate::compare;"),
    ];
    for (file, source) in fine {
        assert_eq!(violations(file, source), Vec::<String>::new(), "{file}: {source}");
    }
}
