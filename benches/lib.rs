//! Benchmarks of planning, of operations and of the store of results: `cargo bench -p benches`.
