use super::*;
use testing::target;

/// What is read of a file with this text, or all that is wrong with it.
fn described(text: &str) -> Result<Described, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target.toml");
    std::fs::write(&file, text).unwrap();
    read_target(&file).map_err(|error| error.to_string().replace(file.to_str().unwrap(), "FILE"))
}

/// What is said of the test target with some of its keys changed.
fn said_of(change: impl FnOnce(&mut Target)) -> String {
    let mut target = Target { kind: DeviceKind::Cpu, ..target() };
    change(&mut target);
    match described(&toml::to_string(&target).unwrap()) {
        Ok(read) => {
            assert_eq!(read, Described { target, filled_in: Vec::new() });
            String::new()
        }
        Err(said) => said,
    }
}

/// The message of one mistake on a line.
fn first_lines(said: &str) -> String {
    said.lines().take(2).collect::<Vec<_>>().join("\n")
}

const CARD: &str = "name = \"my card\"\nkind = \"cuda\"\nmemory = \"24 GiB\"\n";

#[test]
fn what_the_program_wrote_is_read_as_it_was() {
    assert_eq!(said_of(|_| ()), "");
    let everything = |target: &mut Target| {
        target.kind = DeviceKind::Cuda;
        target.capability = Some("12.0".to_owned());
        target.context = Bytes(123_456_789);
        target.limited = true;
        target.host_memory = Some(Bytes(1));
        target.figures = Figures::Assumed;
    };
    assert_eq!(said_of(everything), "");
    for figures in Figures::ALL {
        assert_eq!(said_of(|target| target.figures = *figures), "");
    }
    let here = device::cpu_target(Some(Bytes(1 << 30))).unwrap().unwrap();
    assert_eq!(described(&toml::to_string(&here).unwrap()).unwrap().target, here);
}

#[test]
fn few_keys_are_enough() {
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
    assert!(without.contains("= help: add how many it computes with, as `threads = 8`"), "{without}");
}

#[test]
fn all_mistakes_are_shown_at_once() {
    let said = described(
        "nam = \"my card\"\nkind = \"gpu\"\nvram = \"24 GiB\"\nmemory = \"24\"\ncapability = 8.9\npage = 96\n",
    );
    let said = said.unwrap_err();
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

error: `memory` must be a size above nothing, as \"24 GiB\" (2^30 bytes), \"24 GB\" (10^9 bytes) or a number of bytes, \
not \"24\"
 --> FILE:4:10
  |
4 | memory = \"24\"
  |          ^^^^
  = help: did you mean 24?

error: `capability` must be a compute capability of at least 8.0, which kernels need, in quotes, not 8.9
 --> FILE:5:14
  |
5 | capability = 8.9
  |              ^^^
  = help: did you mean \"8.9\"?

error: `page` must be a power of two of at most 1 GiB, as \"24 GiB\" (2^30 bytes), \"24 GB\" (10^9 bytes) or a number of \
bytes, not 96
 --> FILE:6:8
  |
6 | page = 96
  |        ^^

error: `name` is missing: every target needs it
 --> FILE
  = help: add the device's name, as `name = \"my card\"`";
    assert_eq!(said, expected);
}

#[test]
fn a_key_of_an_experiment_is_none_of_a_target() {
    let said = described(&format!("{CARD}precision = \"bf16\"\n")).unwrap_err();
    assert!(said.starts_with("unknown key `precision` in a target file"), "{said}");
    assert!(said.contains("help: there are `name`, `kind`, `memory`"), "{said}");
}

#[test]
fn values_that_cannot_be_are_blamed_where_they_stand() {
    let step = "must be a power of two of at most 1 GiB";
    let of_threads = said_of(|target| target.threads = 0);
    let threads = "`threads` must be a whole number from 1 to 65536, not 0\n --> FILE:3:11";
    assert_eq!(first_lines(&of_threads), threads);
    for wrong in [0, 96, 2 << 30] {
        assert!(said_of(|target| target.page = Bytes(wrong)).starts_with(&format!("`page` {step}")));
    }
    for wrong in [0, 32, 96, 2 << 30] {
        let said = said_of(|target| target.alignment = Bytes(wrong));
        assert!(said.starts_with("`alignment` must be a power of two from 64 B"), "{said}");
    }
    let too_little = Bytes(LEAST_PRODUCT_WORKSPACE_PER_THREAD - 1);
    let said = said_of(|target| target.product_workspace = too_little);
    assert!(said.starts_with("`product_workspace` must be a size from 192 KiB"), "{said}");
    assert_eq!(Bytes(LEAST_PRODUCT_WORKSPACE_PER_THREAD).exact(), "192 KiB", "as the message says");
    assert_eq!(OPERAND_ALIGNMENT, 64, "as the message says");
    let card = |target: &mut Target| {
        target.kind = DeviceKind::Cuda;
        target.product_workspace = Bytes(0);
    };
    assert_eq!(said_of(card), "", "a card packs nothing");
    assert!(said_of(|target| target.memory = Bytes(0)).starts_with("`memory` must be a size above nothing"));
    assert!(
        said_of(|target| target.host_memory = Some(Bytes(0))).starts_with("`host_memory` must be a size")
    );
    for capability in ["7.5", "9", "9.", "9.00", "+9.0", "x"] {
        let said = said_of(|target| target.capability = Some(capability.to_owned()));
        assert!(said.starts_with("`capability` must be a compute capability of at least 8.0"), "{said}");
    }
}

#[test]
fn a_file_that_is_none_says_so() {
    assert!(described("name = ").unwrap_err().contains("FILE:1:"));
    let error = read_target(Path::new("/nowhere/card.toml")).unwrap_err().to_string();
    assert_eq!(error, "cannot read the target file /nowhere/card.toml: there is no such file");
}
