//! Integration tests: the program from the command line, and its crates together.

mod bad_input;
mod check;
mod combinations;
mod compare;
mod compare_rows;
mod cudarc;
mod devices;
mod documentation;
mod documented_output;
mod documents;
mod dump;
mod evaluation_cycle;
mod expansion;
mod external_reading;
mod failing_calls;
mod fragmentation;
mod help;
mod kernel_sources;
mod kill;
mod large;
mod limits;
mod lost_updates;
mod plan;
#[path = "../../benches/planning/setup.rs"]
mod planning;
mod precision;
mod profile;
mod readers;
mod results_csv;
mod rounds;
mod rows;
mod shipped;
mod speed;
mod sweep;
mod sweeps;
mod test_folder;
