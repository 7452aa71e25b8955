use std::fs;

use super::*;

fn told<T>(contents: &[u8], check: impl Fn(&Path) -> Result<T, DataError>) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, contents).unwrap();
    check(&path).err().map(|error| error.to_string().replace(&path.display().to_string(), "FILE"))
}

/// A zip archive's local header, with the name of its first entry.
fn zip(name: &str) -> Vec<u8> {
    let mut zip = b"PK\x03\x04".to_vec();
    zip.resize(26, 0);
    zip.extend((name.len() as u16).to_le_bytes());
    zip.extend([0, 0]);
    zip.extend(name.bytes());
    zip
}

#[test]
fn other_formats_are_named_in_text_and_tokens() {
    let mut tar = vec![b'a'; 512];
    tar[257..262].copy_from_slice(b"ustar");
    for (contents, name) in [
        (b"BZh91AY&SY\0".to_vec(), "a bzip2 file"),
        (b"\xfd7zXZ\0\0".to_vec(), "an xz file"),
        (b"PAR1\x15\x04\x15".to_vec(), "a Parquet file"),
        (b"ARROW1\0\0\x10".to_vec(), "an Arrow file"),
        (b"\xff\xff\xff\xff\xe8\0\0\0\x10\0\0\0".to_vec(), "an Arrow stream"),
        (zip("archive/data.pkl"), "a PyTorch file (torch.save)"),
        (zip("arr_0.npy"), "a NumPy archive (.npz)"),
        (zip("[Content_Types].xml"), "an Office file (.docx, .xlsx or .pptx)"),
        (zip("a.txt"), "a zip archive"),
        (b"%PDF-1.7\n".to_vec(), "a PDF file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(),
            "a Git LFS pointer, not the file itself",
        ),
        (b"SQLite format 3\0".to_vec(), "an SQLite database"),
        (b"\x89PNG\r\n\x1a\n".to_vec(), "a PNG image"),
        (b"\xff\xd8\xff\xdb\0".to_vec(), "a JPEG image"),
        (b"\x89HDF\r\n\x1a\n".to_vec(), "an HDF5 file"),
        (tar, "a tar archive"),
        (b"\x10\0\0\0\0\0\0\0{\"a\": 1}        ".to_vec(), "a safetensors file"),
        (b"MMIDIDX\0\0\x01".to_vec(), "the index of a Megatron data set"),
        (b"\x80\x04\x95\x10\0\0\0.".to_vec(), "a Python pickle"),
        (b"\x80\x02]q\0K\x01a.".to_vec(), "a Python pickle"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(), "a PyTorch file (torch.save)"),
    ] {
        let expected = Some(format!("FILE is {name}"));
        assert_eq!(told(&contents, check_text), expected);
        assert_eq!(told(&contents, |path| check_tokens(path, TokenWidth::U16, 0)), expected);
    }
    for (text, name) in [
        (&b"\xff\xfea\0b\0"[..], "text in UTF-16"),
        (b"\xfe\xff\0a\0b", "text in UTF-16"),
        (b"\xff\xfe\0\0a\0\0\0", "text in UTF-32"),
        (b"\0\0\xfe\xff\0\0\0a", "text in UTF-32"),
        (b"\x88\xd8\x34\x01", "a token file of llm.c"),
        (b"\xc6\xd7\x34\x01\x03", "a file of llm.c without text"),
    ] {
        let expected = Some(format!("FILE is {name}"));
        assert_eq!(told(text, check_text), expected);
    }
    for text in
        [&b""[..], b"P", b"PAR1 is a club", b"\xef\xbb\xbfwith a mark", b"GIF8", b"BZh9", b"{\"text\": 1}"]
    {
        assert_eq!(told(text, check_text), None);
    }
    // Tokens may begin with a byte order mark.
    assert_eq!(told(b"\xff\xfea\0b\0", |path| check_tokens(path, TokenWidth::U16, 0)), None);
    for text in [
        "a text, with a name in UTF-8: Zo\u{eb}\r\n".as_bytes(),
        b"a text, with a name in Latin-1: Zo\xeb\r\n",
    ] {
        let expected = Some("FILE is text, not tokens".to_owned());
        assert_eq!(told(text, |path| check_tokens(path, TokenWidth::U16, 0)), expected);
    }
    let gzip = told(b"\x1f\x8b\x08\0\0", |path| check_tokens(path, TokenWidth::U16, 0));
    assert_eq!(gzip.unwrap(), "FILE is a gzip file");
}

#[test]
fn conversions_are_lines_of_python() {
    let help = |head: &[u8], wanted| {
        known::format(&Head::of(head)).map(|format| format.help(Path::new("/d/a.x"), wanted)).unwrap()
    };
    assert_eq!(
        help(b"PAR1\x15", Wanted::Text),
        "convert it with Python: import pandas; f = \"/d/a.x\"; pandas.read_parquet(f).to_json(f + \".jsonl\", \
         orient=\"records\", lines=True), then set jsonl to its text column"
    );
    assert_eq!(
        help(b"\x93NUMPY", Wanted::Tokens),
        "convert it with Python: import numpy; f = \"/d/a.x\"; numpy.load(f).ravel().astype(\"uint16\").tofile(f + \
         \".bin\") for data.tokens (\"uint32\" with format = \"u32\" for ids above 65535)"
    );
    assert_eq!(help(b"BZh91AY&SY", Wanted::Text), "decompress it: bzip2 -dk \"/d/a.x\"");
}

fn bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn headers_declare_size_and_number_of_tokens() {
    let file = |mark: u32, listed: u32, numbers: &[u32]| {
        let mut file = bytes(&[mark, 7, listed]);
        file.resize(LLMC_HEADER, 0);
        file.extend(bytes(numbers));
        file
    };
    let llama = file(20_240_801, 3, &[1, 2, 3]);
    let check = |file: &[u8], width, header| told(file, |path| check_tokens(path, width, header));
    assert_eq!(check(&llama, TokenWidth::U32, 1024), None);
    let expected = "FILE declares u32 in its header, but format = \"u16\"";
    assert_eq!(check(&llama, TokenWidth::U16, 1024).unwrap(), expected);
    let expected = "FILE begins with llm.c's header of 1,024 bytes, but header = 0";
    assert_eq!(check(&llama, TokenWidth::U32, 0).unwrap(), expected);
    let expected = "FILE declares 5 tokens in its header, but has 3";
    assert_eq!(check(&file(20_240_801, 5, &[1, 2, 3]), TokenWidth::U32, 1024).unwrap(), expected);
    let expected = "FILE declares u16 in its header, but format = \"u32\"";
    assert_eq!(check(&file(20_240_520, 6, &[1, 2, 3]), TokenWidth::U32, 1024).unwrap(), expected);

    let mut numpy =
        b"\x93NUMPY\x01\0\x76\0{'descr': '<u2', 'fortran_order': False, 'shape': (4000,), }".to_vec();
    numpy.resize(128, b' ');
    numpy.extend([5, 0, 6, 0]);
    assert_eq!(
        check(&numpy, TokenWidth::U16, 0).unwrap(),
        "FILE is a NumPy file (.npy) with a header of 128 bytes, but header = 0"
    );
    assert_eq!(
        check(&numpy, TokenWidth::U16, 128).unwrap(),
        "FILE declares 4,000 tokens in its header, but has 2"
    );
    let expected = "FILE declares u16 in its header, but format = \"u32\"";
    assert_eq!(check(&numpy, TokenWidth::U32, 128).unwrap(), expected);
}

#[test]
fn numbers_of_another_size_are_recognised() {
    // Ids up to 128,255, so that their upper halves are not all 0.
    let numbers: Vec<u32> = (0..3400).map(|number| number * 7919 % 128_256).collect();
    let small: Vec<u32> = (0..3400).map(|number| number % 200).collect();
    let check = |width, file: &[u8]| told(file, |path| check_tokens(path, width, 0));
    for numbers in [&numbers, &small] {
        let expected = "FILE has a small number after every u16 number: its numbers have 4 bytes";
        assert_eq!(check(TokenWidth::U16, &bytes(numbers)).unwrap(), expected);
        assert_eq!(check(TokenWidth::U32, &bytes(numbers)), None);
    }
    let long: Vec<u8> = small.iter().flat_map(|number| u64::from(*number).to_le_bytes()).collect();
    for (width, name) in [(TokenWidth::U16, "u16"), (TokenWidth::U32, "u32")] {
        let expected = format!("FILE has a 0 after every {name} number: its numbers have 8 bytes");
        assert_eq!(check(width, &long).unwrap(), expected);
    }
    let short: Vec<u8> = numbers.iter().flat_map(|number| (*number as u16).to_le_bytes()).collect();
    assert_eq!(check(TokenWidth::U32, &short).unwrap(), "FILE has numbers beyond any vocabulary as u32");
    assert_eq!(check(TokenWidth::U16, &short), None);
    // Zeros, and a vocabulary of ten tokens.
    assert_eq!(check(TokenWidth::U16, &[0; 4096]), None);
    let digits: Vec<u8> = (0..4000u16).flat_map(|number| (number * 7 % 10).to_le_bytes()).collect();
    assert_eq!(check(TokenWidth::U16, &digits), None);
}

/// Megatron's files have no header; the index beside them has the type.
#[test]
fn index_of_megatron_declares_the_number_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.bin");
    fs::write(&path, [1, 0, 2, 0]).unwrap();
    let check = |code: u8, width| {
        let index = [&b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0"[..], &[code], &[0; 16]].concat();
        fs::write(folder.path().join("a.idx"), index).unwrap();
        let error = check_tokens(&path, width, 0).err()?;
        Some((error.to_string().replace(&path.display().to_string(), "FILE"), error.help()))
    };
    let declares = |number: &str, format: &str| {
        format!("FILE declares {number} in the .idx file beside it, but format = \"{format}\"")
    };
    let expected = Some((declares("u32", "u16"), "write format = \"u32\"".to_owned()));
    assert_eq!(check(4, TokenWidth::U16), expected);
    assert_eq!((check(4, TokenWidth::U32), check(8, TokenWidth::U16)), (None, None));
    let (problem, help) = check(5, TokenWidth::U32).unwrap();
    assert_eq!(problem, declares("i64", "u32"));
    assert!(help.contains("numpy.fromfile(f, \"int64\", offset=0).astype(\"uint32\")"), "{help}");
}
