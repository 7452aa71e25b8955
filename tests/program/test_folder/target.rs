//! The target file of another machine, for `plan --target`.

pub const PROCESSOR: &str = r#"
name = "a processor"
kind = "cpu"
threads = 2
alignment = "64 B"
page = "4 KiB"
product_workspace = "1 MiB"
context = "0 B"
memory = "8 GiB"
limited = false
"#;
