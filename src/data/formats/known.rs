//! File formats that are neither text nor plain tokens: their first bytes, and how to convert them.

use std::path::Path;

use super::Head;

/// The data that a file is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats) enum Wanted {
    Text,
    Tokens,
}

/// A known file format.
#[derive(Clone, Copy, Debug)]
pub(in crate::formats) struct Format {
    pub(in crate::formats) name: &'static str,
    conversion: Conversion,
}

/// How to make a file that can be read.
#[derive(Clone, Copy, Debug)]
enum Conversion {
    /// Shell commands or advice; `FILE` stands for the path.
    Command(&'static str),
    /// Python modules, and an expression of the file `f` as a pandas table.
    Table(&'static str, &'static str),
    /// Python modules, and an expression of the file `f` as a NumPy array of token ids.
    Array(&'static str, &'static str),
    /// Python modules, and an expression of the file `f` as a text.
    Text(&'static str, &'static str),
}
use Conversion::{Array, Command, Table, Text};

impl Format {
    /// How to convert a file of this format.
    pub(in crate::formats) fn help(&self, path: &Path, wanted: Wanted) -> String {
        // A quoted string of both Python and the shell, for paths without unusual characters.
        let file = format!("{:?}", path.display().to_string());
        let python = |modules: &str, line: &str| match modules {
            "" => format!("convert it with Python: f = {file}; {line}"),
            modules => format!("convert it with Python: import {modules}; f = {file}; {line}"),
        };
        let flat = "\"uint16\").tofile(f + \".bin\") for data.tokens (\"uint32\" with format = \"u32\" for ids above 65535)";
        match (self.conversion, wanted) {
            (Command(line), _) => line.replace("FILE", &file),
            (Table(modules, table), Wanted::Text) => python(
                modules,
                &format!(
                    "{table}.to_json(f + \".jsonl\", orient=\"records\", lines=True), then set jsonl to its text column"
                ),
            ),
            (Table(modules, table), Wanted::Tokens) => python(
                &format!("numpy, {modules}"),
                &format!("numpy.concatenate({table}[\"input_ids\"].to_list()).astype({flat}"),
            ),
            (Array(modules, array), _) => python(modules, &format!("{array}.ravel().astype({flat}")),
            (Text(modules, text), _) => python(modules, &format!("open(f + \".txt\", \"w\").write({text})")),
        }
    }
}

const OTHER: Conversion = Command("use a file of text, or of tokens");

/// Formats that begin with these bytes.
#[rustfmt::skip]
const FORMATS: &[(&[u8], &str, Conversion)] = &[
    // Deflate is the only method.
    (b"\x1f\x8b\x08", "a gzip file", Command("decompress it: gzip -dk FILE")),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", Command("decompress it: zstd -d FILE")),
    (b"\xfd7zXZ\0", "an xz file", Command("decompress it: xz -dk FILE")),
    (b"\x04\x22\x4d\x18", "an LZ4 file", Command("decompress it: lz4 -d FILE")),
    (b"\x1f\x9d\x90", "a file of `compress` (.Z)", Command("decompress it: gzip -dk FILE")),
    (b"BZh\x17\x72\x45\x38\x50\x90", "an empty bzip2 file", OTHER),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", Command("extract its files: 7z x FILE")),
    (b"Rar!\x1a\x07", "a RAR archive", Command("extract its files: unrar x FILE")),
    (b"PK\x05\x06", "an empty zip archive", OTHER),
    (b"PARE", "an encrypted Parquet file", OTHER),
    (b"ARROW1\0\0", "an Arrow file", Table("pyarrow.ipc", "pyarrow.ipc.open_file(f).read_pandas()")),
    (b"FEA1", "a Feather file", Table("pandas", "pandas.read_feather(f)")),
    (b"ORC\x0a", "an ORC file", Table("pandas", "pandas.read_orc(f)")),
    (b"Obj\x01", "an Avro file", Table("pandas, fastavro", "pandas.DataFrame(fastavro.reader(open(f, \"rb\")))")),
    (b"SQLite format 3\0", "an SQLite database", Table("pandas, sqlite3", "pandas.read_sql(\"select * from TABLE\", sqlite3.connect(f))")),
    (b"\x93NUMPY", "a NumPy file (.npy)", Array("numpy", "numpy.load(f)")),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", Array("h5py", "h5py.File(f)[\"DATASET\"][:]")),
    (b"MMIDIDX\0\0", "the index of a Megatron data set", Command("use data.tokens with the .bin file beside it")),
    (b"TNTIDX\0\0", "the index of an old fairseq or Megatron data set", Array("numpy", "numpy.fromfile(f[:-4] + \".bin\", dtype=\"int32\")")),
    (b"%PDF-", "a PDF file", Command("extract its text: pdftotext FILE")),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Word, Excel or PowerPoint file", Command("extract its text: soffice --convert-to txt:Text FILE")),
    (b"\x7fELF", "a program (ELF)", OTHER),
    (b"\x89PNG\r\n\x1a\n", "a PNG image", OTHER),
    (b"\xff\xd8\xff", "a JPEG image", OTHER),
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the file itself", Command("fetch the file: git lfs pull --include FILE")),
    (b"GIF89a", "a GIF image", OTHER),
    (b"GIF87a", "a GIF image", OTHER),
    (b"GGUF\x03\0\0\0", "a GGUF model", OTHER),
    (b"GGUF\x02\0\0\0", "a GGUF model", OTHER),
];

/// Opcodes that follow the protocol number of a pickle.
const OPCODES: &[u8] = b"\x95\x8a\x8c(]})cXKMJGNqU";

const TORCH: Conversion = Array("torch", "torch.load(f).numpy()");

/// The known format that a file's beginning has.
pub(in crate::formats) fn format(head: &Head) -> Option<Format> {
    if let Some((_, name, conversion)) = FORMATS.iter().find(|(begins, ..)| head.bytes.starts_with(begins)) {
        return Some(Format { name, conversion: *conversion });
    }
    let at = |offset: usize, text: &[u8]| head.bytes.get(offset..).is_some_and(|rest| rest.starts_with(text));
    let byte = |offset: usize| head.bytes.get(offset).copied().unwrap_or_default();
    let big_endian = |offset: usize| Some(u32::from_be_bytes(*head.bytes.get(offset..)?.first_chunk()?));
    let (name, conversion) = match () {
        () if at(0, b"PK\x03\x04") => zip(head),
        () if at(0, b"BZh") && at(4, b"1AY&SY") => ("a bzip2 file", Command("decompress it: bzip2 -dk FILE")),
        // The page header of the first column follows: a Thrift structure.
        () if at(0, b"PAR1\x15") => ("a Parquet file", Table("pandas", "pandas.read_parquet(f)")),
        () if at(257, b"ustar") => ("a tar archive", Command("extract its files: tar xf FILE")),
        // Before a message, its length: a multiple of 8.
        () if at(0, b"\xff\xff\xff\xff")
            && head.number(1).is_some_and(|length| length % 8 == 0 && (8..1 << 24).contains(&length)) =>
        {
            ("an Arrow stream", Table("pyarrow.ipc", "pyarrow.ipc.open_stream(f).read_pandas()"))
        }
        () if at(8, b"{\"") && head.number(1) == Some(0) && head.number(0) < Some(100_000_000) => {
            let load = Command("to load it as parameters, set `weights` of the model");
            ("a safetensors file", load)
        }
        () if at(0, b"RIFF") && (at(8, b"WAVE") || at(8, b"WEBP")) => ("a WAV or WebP file", OTHER),
        // The magic number of torch.save before 1.6 follows the protocol.
        () if at(0, b"\x80\x02\x8a\x0al\xfc\x9c") => ("a PyTorch file (torch.save)", TORCH),
        // A pickle ends with the opcode `.`.
        () if byte(0) == 0x80
            && (2..=5).contains(&byte(1))
            && OPCODES.contains(&byte(2))
            && head.last == b'.' =>
        {
            ("a Python pickle", Array("pickle, numpy", "numpy.asarray(pickle.load(open(f, \"rb\")))"))
        }
        // MP4: the length of the first box and its type.
        () if at(4, b"ftyp") && big_endian(0).is_some_and(|length| length < 256) => ("an MP4 file", OTHER),
        () => return None,
    };
    Some(Format { name, conversion })
}

/// The kind of a zip archive, which its first entry shows.
fn zip(head: &Head) -> (&'static str, Conversion) {
    let length =
        head.bytes.get(26..28).map_or(0, |length| usize::from(u16::from_le_bytes([length[0], length[1]])));
    let name = head.bytes.get(30..30 + length).unwrap_or_default();
    match () {
        () if name.ends_with(b".npy") => {
            ("a NumPy archive (.npz)", Array("numpy", "next(iter(numpy.load(f).values()))"))
        }
        () if name.ends_with(b"data.pkl") => ("a PyTorch file (torch.save)", TORCH),
        () if name == b"[Content_Types].xml" || name.starts_with(b"_rels/") || name.starts_with(b"word/") => {
            (
                "an Office file (.docx, .xlsx or .pptx)",
                Text("docx", "\"\\n\".join(p.text for p in docx.Document(f).paragraphs)"),
            )
        }
        () if name == b"mimetype" => {
            ("an OpenDocument or EPUB file", Command("extract its text: pandoc -t plain -o OUT.txt FILE"))
        }
        () => ("a zip archive", Command("extract its files: unzip FILE")),
    }
}
