use super::*;
use testing::target;

/// Reads a target file with this text; fails with its error message.
fn described(text: &str) -> Result<Described, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target.toml");
    std::fs::write(&file, text).unwrap();
    read_target(&file).map_err(|error| error.to_string().replace(file.to_str().unwrap(), "FILE"))
}

/// The error message for the test target with some keys changed; empty if it is valid.
fn error_of(change: impl FnOnce(&mut Target)) -> String {
    let mut target = Target { kind: DeviceKind::Cpu, ..target() };
    change(&mut target);
    match described(&toml::to_string(&target).unwrap()) {
        Ok(read) => {
            assert_eq!(read, Described { target, node: NodeRates::default(), filled_in: Vec::new() });
            String::new()
        }
        Err(error) => error,
    }
}

/// The message and the position of an error.
fn first_lines(error: &str) -> String {
    error.lines().take(2).collect::<Vec<_>>().join("\n")
}

const CARD: &str = "name = \"my card\"\nkind = \"cuda\"\nmemory = \"24 GiB\"\n";

#[test]
fn written_targets_read_back_unchanged() {
    assert_eq!(error_of(|_| ()), "");
    let everything = |target: &mut Target| {
        target.kind = DeviceKind::Cuda;
        target.capability = Some("12.0".to_owned());
        target.context = Bytes(123_456_789);
        target.limited = true;
        target.host_memory = Some(Bytes(1));
        target.figures = Figures::Assumed;
    };
    assert_eq!(error_of(everything), "");
    for figures in Figures::ALL {
        assert_eq!(error_of(|target| target.figures = *figures), "");
    }
    let here = device::cpu_target(Some(Bytes(1 << 30))).unwrap().unwrap();
    assert_eq!(described(&toml::to_string(&here).unwrap()).unwrap().target, here);
}

#[test]
fn missing_keys_are_filled_in() {
    let card = described(&format!("{CARD}capability = \"8.9\"\n")).unwrap();
    let known = device::described_card("my card", Some("8.9".into()), Bytes(24 << 30), ASSUMED_CONTEXT);
    assert_eq!(card.target, Target { figures: Figures::Assumed, ..known });
    let own = [("alignment", Bytes(256)), ("page", Bytes(512)), ("product_workspace", Bytes(32 << 20))];
    assert_eq!(card.filled_in, [&own[..], &[("context", ASSUMED_CONTEXT)]].concat());

    let measured = described(&format!("{CARD}context = 400000000\npage = \"2 MiB\"")).unwrap();
    assert_eq!(measured.target.figures, Figures::Measured);
    assert_eq!((measured.target.context, measured.target.page), (Bytes(400_000_000), Bytes(2 << 20)));
    assert_eq!(measured.filled_in, [own[0], own[2]]);

    let cpu = "name = \"mine\"\nkind = \"cpu\"\nmemory = 1000000\n";
    let processor = described(&format!("{cpu}threads = 8")).unwrap().target;
    assert_eq!(processor, device::described_processor("mine", 8, Bytes(1_000_000)));
    let without = described(cpu).unwrap_err();
    assert!(without.starts_with("`threads` is missing: every target needs it\n --> FILE"), "{without}");
    assert!(
        without.contains("= help: add the number of compute threads, such as `threads = 8`"),
        "{without}"
    );
}

#[test]
fn all_problems_are_reported_at_once() {
    let error = described(
        "nam = \"my card\"\nkind = \"gpu\"\nvram = \"24 GiB\"\nmemory = \"24\"\ncapability = 8.9\npage = 96\n",
    );
    let error = error.unwrap_err();
    let expected = "\
unknown key `nam` in a target file
 --> FILE:1:1
  |
1 | nam = \"my card\"
  | ^^^
  = help: did you mean `name`?

error: `kind` must be \"cpu\" or \"cuda\", not \"gpu\"
 --> FILE:2:8
  |
2 | kind = \"gpu\"
  |        ^^^^^
  = help: did you mean \"cuda\"?

error: unknown key `vram` in a target file
 --> FILE:3:1
  |
3 | vram = \"24 GiB\"
  | ^^^^
  = help: did you mean `memory`?

error: `memory` must be a size above 0, such as \"24 GiB\" (2^30 bytes), \"24 GB\" (10^9 bytes) or a number of bytes, \
not \"24\"
 --> FILE:4:10
  |
4 | memory = \"24\"
  |          ^^^^
  = help: did you mean 24?

error: `capability` must be a compute capability in quotes, such as \"8.6\", not 8.9
 --> FILE:5:14
  |
5 | capability = 8.9
  |              ^^^
  = help: did you mean \"8.9\"?

error: `page` must be a power of two of at most 1 GiB, such as \"24 GiB\" (2^30 bytes), \"24 GB\" (10^9 bytes) or a number of \
bytes, not 96
 --> FILE:6:8
  |
6 | page = 96
  |        ^^

error: `name` is missing: every target needs it
 --> FILE
  = help: add the device's name, such as `name = \"my card\"`";
    assert_eq!(error, expected);
}

#[test]
fn experiment_keys_are_unknown_in_a_target() {
    let error = described(&format!("{CARD}precision = \"bf16\"\n")).unwrap_err();
    assert!(error.starts_with("unknown key `precision` in a target file"), "{error}");
    assert!(error.contains("help: the most similar names are `"), "{error}");
}

#[test]
fn values_out_of_range_are_reported_at_their_spans() {
    let step = "must be a power of two of at most 1 GiB";
    let of_threads = error_of(|target| target.threads = 0);
    let threads = "`threads` must be a whole number from 1 to 65536, not 0\n --> FILE:3:11";
    assert_eq!(first_lines(&of_threads), threads);
    for wrong in [0, 96, 2 << 30] {
        assert!(error_of(|target| target.page = Bytes(wrong)).starts_with(&format!("`page` {step}")));
    }
    for wrong in [0, 32, 96, 2 << 30] {
        let error = error_of(|target| target.alignment = Bytes(wrong));
        assert!(error.starts_with("`alignment` must be a power of two from 64 B"), "{error}");
    }
    let too_little = Bytes(LEAST_PRODUCT_WORKSPACE_PER_THREAD - 1);
    let error = error_of(|target| target.product_workspace = too_little);
    assert!(error.starts_with("`product_workspace` must be a size from 192 KiB"), "{error}");
    assert_eq!(Bytes(LEAST_PRODUCT_WORKSPACE_PER_THREAD).exact(), "192 KiB", "as in the error message");
    assert_eq!(OPERAND_ALIGNMENT, 64, "as in the error message");
    let card = |target: &mut Target| {
        target.kind = DeviceKind::Cuda;
        target.product_workspace = Bytes(0);
    };
    assert_eq!(error_of(card), "", "a GPU needs no workspace for packing");
    assert!(error_of(|target| target.memory = Bytes(0)).starts_with("`memory` must be a size above 0"));
    assert!(
        error_of(|target| target.host_memory = Some(Bytes(0))).starts_with("`host_memory` must be a size")
    );
    for capability in ["9", "9.", "9.00", "+9.0", "x"] {
        let error = error_of(|target| target.capability = Some(capability.to_owned()));
        assert!(error.starts_with("`capability` must be a compute capability in quotes"), "{error}");
    }
}

#[test]
fn unreadable_files_are_reported() {
    assert!(described("name = ").unwrap_err().contains("FILE:1:"));
    let error = read_target(Path::new("/nowhere/card.toml")).unwrap_err().to_string();
    assert_eq!(error, "cannot read the target file /nowhere/card.toml: there is no such file");
}

#[test]
fn rates_of_a_node_read_back() {
    let rates = NodeRates {
        link: Some(BytesPerSecond(25_100_000_000)),
        host_bandwidth: Some(BytesPerSecond(9_530_000_000)),
        host_flops: Some(FlopsPerSecond(95_000_000_000)),
        cards: Some(8),
        card_link: Some(BytesPerSecond(450_000_000_000)),
        network: Some(BytesPerSecond(50_000_000_000)),
    };
    let read = described(&format!("{CARD}{}", rates.to_toml())).unwrap();
    assert_eq!(read.node, rates);
    assert_eq!(read.target, described(CARD).unwrap().target, "rates are no part of a run's target");
    assert_eq!(NodeRates::default().to_toml(), "");
    let home = read.target.workspace_limits(device::Pool::Host);
    assert_eq!(home.threads, HOST_THREADS, "as the error message states");
}

#[test]
fn wrong_rates_of_a_node_are_reported() {
    let error = |line: &str| first_lines(&described(&format!("{CARD}{line}\n")).unwrap_err());
    let rate = "a rate with its unit, such as \"25 GB/s\" (10^9 bytes per second)";
    assert_eq!(error("link = \"25 GB\""), format!("`link` must be {rate}, not \"25 GB\"\n --> FILE:4:8"));
    assert_eq!(
        error("host_bandwidth = 9"),
        format!("`host_bandwidth` must be {rate}, not 9\n --> FILE:4:18")
    );
    let flops = "`host_flops` must be a rate with its unit, such as \"90 GFLOP/s\", not \"90 GB/s\"";
    assert_eq!(error("host_flops = \"90 GB/s\""), format!("{flops}\n --> FILE:4:14"));
    assert_eq!(error("cards = 0"), "`cards` must be a whole number from 1 to 4096, not 0\n --> FILE:4:9");
    for wrong in ["0 GB/s", "-1 GB/s", "50 Gb/s"] {
        let network = format!("`network` must be {rate}, not \"{wrong}\"\n --> FILE:4:11");
        assert_eq!(error(&format!("network = \"{wrong}\"\ncards = 8")), network);
    }
    let of_no_node = "`network` has no effect without `cards`: ranks may all be in one node\n --> FILE:4:1";
    assert_eq!(error("network = \"50 GB/s\""), of_no_node);
    let known = CARD.replace("my card", "NVIDIA H100 80GB HBM3");
    assert!(described(&format!("{known}network = \"50 GB/s\"\n")).is_ok(), "its data sheet has the cards");
    let threads =
        "`host_threads` must be 1, the number of threads that operations on a card's host run on, not 16";
    assert_eq!(error("host_threads = 16"), format!("{threads}\n --> FILE:4:16"));
    let cpu = "name = \"mine\"\nkind = \"cpu\"\nmemory = 1000000\nthreads = 8\n";
    let on_cpu = described(&format!("{cpu}link = \"25 GB/s\"\nhost_threads = 1\ncards = 2")).unwrap_err();
    assert!(
        on_cpu.contains("`cards` is a key of cards: ranks on a CPU exchange in shared memory"),
        "{on_cpu}"
    );
    for key in ["link", "host_threads"] {
        let problem = format!("`{key}` is a key of cards: a CPU's device and host pools are one memory");
        assert!(on_cpu.contains(&problem), "{on_cpu}");
    }
}
