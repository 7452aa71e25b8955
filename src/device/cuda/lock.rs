//! `registers.lock`: a committed table of every kernel's resource use, by architecture and NVRTC version. The figures
//! depend only on sources, options, architecture and version. Each group stores a digest of these, which shows without
//! compiling whether its figures are current.

use std::collections::HashSet;
use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::report::{Compilation, KernelReport, SourceReport, compilations, short_digest, source};
use super::unavailable::Version;

/// The NVRTC versions of the table, each with its architectures. tests/cuda.sh installs them.
const COVERED: [(Version, &[&str]); 3] = [
    (Version { major: 12, minor: 9 }, &["sm_90"]),
    (Version { major: 13, minor: 0 }, &["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]),
    (Version { major: 13, minor: 5 }, &["sm_90"]),
];

const HEADING: &str = "\
# Registers, static shared memory, spills and instructions of every kernel. `bash tests/cuda.sh lock` writes it.
# A group begins with its source, architecture, version of NVRTC and the digest of all inputs of the compiler.
#     kernel, registers per thread, shared bytes per block, spilled bytes per thread, instructions
";

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistersLock {
    /// In the order of `order`.
    groups: Vec<SourceReport>,
}

/// A malformed line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct MalformedLock {
    pub line: usize,
    pub what: String,
}

impl RegistersLock {
    /// The command that updates the table.
    pub const UPDATE: &str = "bash tests/cuda.sh lock";

    /// # Errors
    /// A line is malformed, a group has no kernels, or two groups have the same compilation.
    pub fn parse(text: &str) -> Result<RegistersLock, MalformedLock> {
        let mut groups: Vec<SourceReport> = Vec::new();
        let mut seen = HashSet::new();
        let check_last = |groups: &[SourceReport], line| match groups.last() {
            Some(group) if group.kernels.is_empty() => {
                Err(MalformedLock { line, what: format!("expected a kernel of {}", group.compilation) })
            }
            _ => Ok(()),
        };
        for (index, line) in text.lines().enumerate() {
            let malformed =
                |what: &str| MalformedLock { line: index + 1, what: format!("{what}, found `{line}`") };
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if line.starts_with(' ') {
                let group =
                    groups.last_mut().ok_or_else(|| malformed("expected a group before the first kernel"))?;
                let report = kernel(line).ok_or_else(|| malformed("expected a kernel and four numbers"))?;
                if group.kernels.last().is_some_and(|last| last.kernel >= report.kernel) {
                    return Err(malformed("expected the kernels of a group in the order of their names"));
                }
                group.kernels.push(report);
            } else {
                let what = "expected a source, an architecture, a version of NVRTC and a digest";
                let group = group(line).ok_or_else(|| malformed(what))?;
                if !seen.insert(group.compilation.clone()) {
                    return Err(malformed("expected each group once"));
                }
                check_last(&groups, index + 1)?;
                groups.push(group);
            }
        }
        check_last(&groups, text.lines().count() + 1)?;
        groups.sort_by(|a, b| order(&a.compilation).cmp(&order(&b.compilation)));
        Ok(RegistersLock { groups })
    }

    pub fn render(&self) -> String {
        let mut text = HEADING.to_owned();
        for SourceReport { compilation: Compilation { file, architecture, version }, digest, kernels } in
            &self.groups
        {
            let _ = writeln!(text, "\n{file} {architecture} {version} {digest}");
            for KernelReport { kernel, registers, shared_bytes, spill_bytes, instructions } in kernels {
                let figures = format!("{registers:>3} {shared_bytes:>5} {spill_bytes:>4} {instructions:>5}");
                let _ = writeln!(text, "    {kernel:<52} {figures}");
            }
        }
        text
    }

    /// The versions of a complete table, for messages.
    pub fn covered() -> String {
        COVERED.map(|(version, _)| version.to_string()).join(", ")
    }

    /// Whether a complete table covers the version.
    pub fn covers(version: Version) -> bool {
        COVERED.iter().any(|(covered, _)| *covered == version)
    }

    /// Problems of the table: missing, stale and superfluous groups, and the faults of kernels.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for compilation in complete() {
            match self.find(&compilation) {
                None => problems.push(format!("{compilation} is missing")),
                Some(group) if !is_current(group) => problems.push(format!("{compilation} is stale")),
                Some(_) => {}
            }
        }
        let expected: HashSet<Compilation> = complete().collect();
        for group in &self.groups {
            if source(&group.compilation.file).is_none() {
                problems.push(format!("{}: the source does not exist", group.compilation));
            } else if !expected.contains(&group.compilation) {
                problems.push(format!(
                    "{}: the table does not cover this architecture and version",
                    group.compilation
                ));
            }
            problems.extend(group.faults());
        }
        problems
    }

    /// The compilations by a version whose group is missing or stale.
    pub fn outdated(&self, version: Version) -> Vec<Compilation> {
        let outdated = |compilation: &Compilation| !self.find(compilation).is_some_and(is_current);
        complete().filter(|compilation| compilation.version == version).filter(outdated).collect()
    }

    /// One of the compilations by a version, chosen by the seed. `None` if the table has none.
    pub fn sample(version: Version, seed: &str) -> Option<Compilation> {
        let mut candidates: Vec<Compilation> =
            complete().filter(|compilation| compilation.version == version).collect();
        if candidates.is_empty() {
            return None;
        }
        let digest = Sha256::digest(seed);
        let number = digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let index = number % candidates.len() as u64;
        Some(candidates.swap_remove(index as usize))
    }

    /// Differences between compiled kernels and the table, one message per kernel.
    pub fn differences(&self, reports: &[SourceReport]) -> Vec<String> {
        let mut differences = Vec::new();
        for report in reports {
            let compilation = &report.compilation;
            let Some(group) = self.find(compilation) else {
                differences.push(format!("{compilation} is missing"));
                continue;
            };
            let find = |kernels: &[KernelReport], name: &str| {
                kernels.iter().find(|kernel| kernel.kernel == name).map_or("absent".to_owned(), figures)
            };
            let names = group.kernels.iter().chain(&report.kernels).map(|kernel| kernel.kernel.as_str());
            let mut names: Vec<&str> = names.collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let [before, after] = [&group.kernels, &report.kernels].map(|kernels| find(kernels, name));
                if before != after {
                    differences.push(format!("{compilation}, {name}: table: {before}; compiled: {after}"));
                }
            }
        }
        differences
    }

    /// Replaces the groups of the reports, and drops superfluous groups.
    pub fn update(&mut self, reports: Vec<SourceReport>) {
        let expected: HashSet<Compilation> = complete().collect();
        let replaced =
            |group: &SourceReport| reports.iter().any(|report| report.compilation == group.compilation);
        self.groups.retain(|group| expected.contains(&group.compilation) && !replaced(group));
        self.groups.extend(reports);
        self.groups.sort_by(|a, b| order(&a.compilation).cmp(&order(&b.compilation)));
    }

    fn find(&self, compilation: &Compilation) -> Option<&SourceReport> {
        self.groups.iter().find(|group| group.compilation == *compilation)
    }
}

/// The compilations of a complete table.
fn complete() -> impl Iterator<Item = Compilation> {
    COVERED.into_iter().flat_map(|(version, architectures)| compilations(version, architectures))
}

fn is_current(group: &SourceReport) -> bool {
    source(&group.compilation.file)
        .is_some_and(|source| short_digest(source, &group.compilation) == group.digest)
}

/// The sort key: source, then version, then architecture number.
fn order(compilation: &Compilation) -> (&str, Version, usize, &str) {
    let Compilation { file, architecture, version } = compilation;
    (file, *version, architecture.len(), architecture)
}

fn figures(report: &KernelReport) -> String {
    let KernelReport { registers, shared_bytes, spill_bytes, instructions, .. } = report;
    format!(
        "{registers} registers, {shared_bytes} shared bytes, {spill_bytes} spilled bytes, {instructions} instructions"
    )
}

/// Parses the first line of a group.
fn group(line: &str) -> Option<SourceReport> {
    let [file, architecture, version, digest] = words(line)?;
    let (major, minor) = version.split_once('.')?;
    let version = Version { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let [file, architecture, digest] = [file, architecture, digest].map(str::to_owned);
    Some(SourceReport {
        compilation: Compilation { file, architecture, version },
        digest,
        kernels: Vec::new(),
    })
}

/// Parses a kernel's line.
fn kernel(line: &str) -> Option<KernelReport> {
    let [kernel, registers, shared_bytes, spill_bytes, instructions] = words(line)?;
    Some(KernelReport {
        kernel: kernel.to_owned(),
        registers: registers.parse().ok()?,
        shared_bytes: shared_bytes.parse().ok()?,
        spill_bytes: spill_bytes.parse().ok()?,
        instructions: instructions.parse().ok()?,
    })
}

/// A line's words, if there are `N`.
fn words<const N: usize>(line: &str) -> Option<[&str; N]> {
    line.split_whitespace().collect::<Vec<_>>().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITTED: &str = include_str!("registers.lock");

    fn committed() -> RegistersLock {
        RegistersLock::parse(COMMITTED).unwrap_or_else(|error| panic!("registers.lock, {error}"))
    }

    /// The table contains every source for every architecture, with current digests, without spills and within the
    /// limit.
    #[test]
    fn committed_table_is_current() {
        let problems = committed().problems();
        assert!(
            problems.is_empty(),
            "registers.lock: {}\nrun `{}`",
            problems.join("\n"),
            RegistersLock::UPDATE
        );
        assert!(
            committed().render() == COMMITTED,
            "registers.lock is not as `{}` writes it",
            RegistersLock::UPDATE
        );
    }

    #[test]
    fn changed_sources_are_stale() {
        let text = COMMITTED.replacen("widen.cu sm_100 13.0 ", "widen.cu sm_100 13.0 0", 1);
        let lock = RegistersLock::parse(&text).expect("a table");
        assert_eq!(lock.problems(), ["widen.cu for sm_100 by NVRTC 13.0 is stale"]);
        let outdated = lock.outdated(Version { major: 13, minor: 0 });
        assert_eq!(
            outdated.iter().map(Compilation::to_string).collect::<Vec<_>>(),
            ["widen.cu for sm_100 by NVRTC 13.0"]
        );
        assert!(lock.outdated(Version { major: 13, minor: 5 }).is_empty());
    }

    #[test]
    fn missing_and_superfluous_groups_are_problems() {
        let mut lock = committed();
        let mut group = lock.groups.pop().expect("a group");
        let missing = format!("{} is missing", group.compilation);
        assert_eq!(lock.problems(), std::slice::from_ref(&missing));
        assert_eq!(lock.differences(std::slice::from_ref(&group)), std::slice::from_ref(&missing));
        group.compilation.architecture = "sm_70".to_owned();
        let superfluous =
            format!("{}: the table does not cover this architecture and version", group.compilation);
        lock.groups.push(group.clone());
        assert_eq!(lock.problems(), [missing.clone(), superfluous]);
        group.compilation.file = "gone.cu".to_owned();
        *lock.groups.last_mut().expect("a group") = group;
        assert_eq!(
            lock.problems(),
            [missing, "gone.cu for sm_70 by NVRTC 13.5: the source does not exist".to_owned()]
        );
    }

    #[test]
    fn faults_in_the_table_are_problems() {
        let mut lock = committed();
        let kernel = &mut lock.groups[0].kernels[0];
        (kernel.spill_bytes, kernel.instructions) = (16, 12_001);
        let problems = lock.problems();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].ends_with("spills registers: 16 bytes"));
        assert!(problems[1].ends_with("has 12001 instructions; the limit is 12000"));
    }

    #[test]
    fn other_figures_and_other_kernels_are_differences() {
        let lock = committed();
        let mut report = lock.groups[0].clone();
        assert!(lock.differences(std::slice::from_ref(&report)).is_empty());
        report.kernels[0].registers += 1;
        let last = report.kernels.pop().expect("a kernel");
        let differences = lock.differences(&[report]);
        assert_eq!(differences.len(), 2);
        assert!(differences[1].contains(&last.kernel) && differences[1].ends_with("compiled: absent"));
    }

    #[test]
    fn update_makes_a_table_current() {
        let complete = committed();
        let mut lock =
            RegistersLock::parse("gone.cu sm_90 13.0 0\n a 1 2 0 4\nwiden.cu sm_90 13.0 0\n a 1 2 0 4")
                .expect("a table");
        assert_eq!(lock.problems().len(), complete.groups.len() + 1);
        lock.update(complete.groups.clone());
        assert_eq!(lock, complete);
    }

    #[test]
    fn seeds_choose_every_compilation_of_a_version() {
        let version = Version { major: 13, minor: 5 };
        let chosen = |seed: u32| RegistersLock::sample(version, &seed.to_string()).expect("a compilation");
        let chosen: HashSet<Compilation> = (0..1000).map(chosen).collect();
        assert_eq!(chosen, complete().filter(|compilation| compilation.version == version).collect());
        assert_eq!(RegistersLock::sample(Version { major: 11, minor: 0 }, "seed"), None);
    }

    #[test]
    fn malformed_lines_are_found() {
        let error = |text: &str| RegistersLock::parse(text).expect_err(text).to_string();
        let group = "a.cu sm_90 13.0 0123\n";
        let kernel = "    add 1 2 3 4\n";
        assert_eq!(
            error(kernel),
            "line 1: expected a group before the first kernel, found `    add 1 2 3 4`"
        );
        assert_eq!(
            error("# heading\n\na.cu sm_90 13 0123\n"),
            "line 3: expected a source, an architecture, a version of NVRTC and a digest, found `a.cu sm_90 13 0123`"
        );
        for line in ["    add 1 2 3", "    add 1 2 3 4 5", "    add 1 2 3 -4", "    add 1 2 3 x"] {
            let what = format!("line 2: expected a kernel and four numbers, found `{line}`");
            assert_eq!(error(&format!("{group}{line}")), what);
        }
        let empty = "expected a kernel of a.cu for sm_90 by NVRTC 13.0";
        assert_eq!(error(group), format!("line 2: {empty}"));
        assert_eq!(error(&[group, "b.cu sm_90 13.0 0123\n", kernel].concat()), format!("line 2: {empty}"));
        assert!(
            error(&[group, kernel, kernel].concat())
                .starts_with("line 3: expected the kernels of a group in the order")
        );
        assert!(error(&[group, kernel, group].concat()).starts_with("line 3: expected each group once"));
    }
}
