//! Sweeps on two nodes of a cluster whose file system has no locks, or keeps them local to a node: results stay correct
//! without them.
//!
//! Needs `cc`, as the build of any Rust program does, and `LD_PRELOAD`.

use std::fs;
use std::process::{Child, Command};

use tempfile::TempDir;

use crate::failing_calls::build_shared_object;
use crate::sweeps::Sweep;
use crate::test_folder::{TestFolder, piped, wait_for};

/// `NODE_LOCKS`: NFS without lockd, Lustre without `flock`, locks that only the own node sees.
const LOCKS: [i32; 3] = [libc::ENOLCK, libc::ENOSYS, 0];

/// Nodes that share a folder.
struct Nodes {
    shim: TempDir,
    locks: i32,
}

impl Nodes {
    fn new(locks: i32) -> Nodes {
        let shim = tempfile::tempdir().unwrap();
        build_shared_object("tests/program/locks/node.c", &shim.path().join("node.so"));
        for (node, digit) in ["one", "two"].iter().zip(["1", "2"]) {
            fs::write(shim.path().join(node), digit.repeat(32)).unwrap();
        }
        Nodes { shim, locks }
    }

    /// The command of a sweep on a node.
    fn on(&self, node: &str, dir: &TestFolder, args: &[&str]) -> Command {
        let mut command = dir.command(args);
        command.env("LD_PRELOAD", self.shim.path().join("node.so"));
        command.env("NODE_LOCKS", self.locks.to_string()).env("NODE_BOOT_ID", self.shim.path().join(node));
        command
    }
}

#[test]
fn sweeps_of_two_nodes_need_no_locks() {
    for locks in LOCKS {
        let (nodes, dir) = (Nodes::new(locks), TestFolder::new());
        let file = dir.experiment("tiny", 20);
        // Results to replace.
        let failed = nodes.on("one", &dir, &[&file, "--timeout", "1ms"]).output().unwrap();
        Sweep::of(failed).ended_with(1);
        assert_eq!(dir.results("tiny").len(), 6, "NODE_LOCKS={locks}");

        let sweeps: Vec<Child> =
            ["one", "two"].iter().map(|node| piped(nodes.on(node, &dir, &[&file]))).collect();
        for sweep in sweeps {
            Sweep::of(sweep.wait_with_output().unwrap()).ended_with(0);
        }
        assert_eq!(dir.results("tiny").len(), 6, "NODE_LOCKS={locks}");
        let table = dir.table("tiny");
        assert!(
            table.len() == 8 && table.iter().all(|(_, status)| status == "ok"),
            "NODE_LOCKS={locks}: {table:?}"
        );
        assert_eq!(dir.private_folders("tiny"), 0, "NODE_LOCKS={locks}");
    }
}

/// Without locks, a killed sweep's private folder looks like that of a running one: no node removes it, and none is
/// hindered by it.
#[test]
fn killed_sweep_without_locks_is_completed_by_another_node() {
    for locks in LOCKS {
        let (nodes, dir) = (Nodes::new(locks), TestFolder::new());
        let file = dir.experiment("slow", 1000);
        let mut killed = piped(nodes.on("one", &dir, &[&file]));
        wait_for("a first result", || !dir.results("slow").is_empty());
        wait_for("the next run", || dir.child().is_some());
        killed.kill().unwrap();
        killed.wait().unwrap();
        wait_for("its child to end", || dir.child().is_none());
        let kept = dir.results("slow");
        assert_eq!(dir.private_folders("slow"), 1);

        Sweep::of(nodes.on("two", &dir, &[&file]).output().unwrap()).ended_with(0);
        let all = dir.results("slow");
        assert_eq!(all.len(), 6, "NODE_LOCKS={locks}");
        assert!(kept.iter().all(|result| all.contains(result)), "NODE_LOCKS={locks}: a result changed");
        assert_eq!(dir.private_folders("slow"), 1, "NODE_LOCKS={locks}: it may belong to a running sweep");

        // Its own node says so where it cannot tell.
        let again = Sweep::of(nodes.on("one", &dir, &[&file]).output().unwrap()).ended_with(0);
        let is_reported = again.err.contains(" may be abandoned and was not removed: ");
        assert_eq!(is_reported, locks != 0, "NODE_LOCKS={locks}: {}", again.err);
        assert_eq!(dir.private_folders("slow"), usize::from(locks != 0), "NODE_LOCKS={locks}");
    }
}
