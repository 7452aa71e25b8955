//! Benchmarks of planning and of operations: `cargo bench -p benches`.
