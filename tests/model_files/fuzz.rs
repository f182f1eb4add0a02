//! Fuzzes the readers of model files with mutations of valid files. Each mutant must load or fail with an
//! error, without panics, excessive memory or endless reading. `cargo xtask fuzz-files` runs more of them.
use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::BTreeMap;
use std::env;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread;

use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::quantized::{GgmlDType, QTensor, ggml_file};
use candle_core::safetensors::{BufferedSafetensors, load_buffer, save};
use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::VarBuilder;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokenizers::Tokenizer;

use crate::memory::peak_of;
use crate::{ggml, gguf, imatrix, safetensors, tokenizer};

/// Number of mutants and seed of the run in `cargo xtask test`.
const MUTANTS: u64 = 100_000;
const SEED: u64 = 1;

/// Memory limit: bytes per byte of the file, plus a constant. A metadata value takes 32 bytes in memory and
/// at least one in the file; the constant covers error texts, tables and the regular expressions of a
/// tokenizer.
const MEMORY_PER_BYTE: usize = 40;
const BASE_MEMORY: usize = 1 << 20;
/// Additional memory with `RUST_BACKTRACE=1`: an error captures a backtrace, which reads the debug
/// information.
const BACKTRACE_MEMORY: usize = 128 << 20;

/// File format: its reader, and valid files to mutate.
struct Format {
    name: &'static str,
    read: fn(&[u8]) -> Result<()>,
    /// Number of mutants of this format, per thousand.
    share: usize,
    originals: Vec<Vec<u8>>,
}

/// Reader that panics after a bounded number of calls.
struct Bounded<'a> {
    inner: Cursor<&'a [u8]>,
    calls: usize,
}

impl<'a> Bounded<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { inner: Cursor::new(bytes), calls: 1000 + 8 * bytes.len() }
    }

    fn count(&mut self) {
        assert!(self.calls > 0, "the reader makes too many calls");
        self.calls -= 1;
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.count();
        self.inner.read(buffer)
    }
}

impl Seek for Bounded<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.count();
        self.inner.seek(to)
    }
}

/// Reads header and tensors, and compares each tensor with the bytes of the file.
fn read_gguf(bytes: &[u8]) -> Result<()> {
    let mut reader = Bounded::new(bytes);
    let content = Content::read(&mut reader)?;
    for (name, info) in &content.tensor_infos {
        let tensor = content.tensor(&mut Bounded::new(bytes), name, &Device::Cpu)?;
        let start = (content.tensor_data_offset + info.offset) as usize;
        let data = tensor.data()?;
        assert!(bytes[start..].starts_with(&data), "the data of {name} differs from the file");
        assert_eq!(
            data.len(),
            tensor.shape().elem_count() / info.ggml_dtype.block_size() * info.ggml_dtype.type_size()
        );
    }
    Ok(())
}

fn read_ggml(bytes: &[u8]) -> Result<()> {
    ggml_file::Content::read(&mut Bounded::new(bytes), &Device::Cpu).map(drop)
}

fn read_tokenizer(bytes: &[u8]) -> Result<()> {
    let tokenizer = Tokenizer::from_gguf(&Content::read(&mut Bounded::new(bytes))?)?;
    let encoding = tokenizer.encode("abcab <s>c", true).map_err(candle_core::Error::wrap)?;
    tokenizer.decode(encoding.get_ids(), false).map(drop).map_err(candle_core::Error::wrap)
}

fn read_safetensors(bytes: &[u8]) -> Result<()> {
    load_buffer(bytes, &Device::Cpu).map(drop)
}

/// Reads from a memory-mapped file, as models are loaded.
fn read_mapped_safetensors(bytes: &[u8]) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(bytes)?;
    // SAFETY: no other process writes to the temporary file.
    let builder = unsafe { VarBuilder::from_mmaped_safetensors(&[file.path()], DType::F32, &Device::Cpu)? };
    for (name, view) in BufferedSafetensors::new(bytes.to_vec())?.tensors() {
        let tensor = builder.get(view.shape(), &name)?;
        if tensor.dims() != view.shape() {
            bail!("{name} has another shape");
        }
    }
    Ok(())
}

fn formats() -> Result<Vec<Format>> {
    Ok(vec![
        Format {
            name: "gguf",
            read: read_gguf,
            share: 550,
            originals: vec![gguf::small(1).bytes.all, gguf::small(3).bytes.all, quantized()?],
        },
        Format {
            name: "tokenizer",
            read: read_tokenizer,
            share: 50,
            originals: vec![tokenizer::file(&tokenizer::entries())?],
        },
        Format {
            name: "ggml",
            read: read_ggml,
            share: 130,
            originals: vec![ggml::small(0).all, ggml::small(4).all],
        },
        Format {
            name: "imatrix",
            read: |bytes| imatrix::read(bytes).map(drop),
            share: 20,
            originals: vec![imatrix::small().all],
        },
        Format {
            name: "safetensors",
            read: read_safetensors,
            share: 230,
            originals: vec![saved()?, safetensors::valid()],
        },
        Format {
            name: "mapped safetensors",
            read: read_mapped_safetensors,
            share: 20,
            originals: vec![saved()?],
        },
    ])
}

/// Returns a file with every readable quantized type, as written by Candle.
fn quantized() -> Result<Vec<u8>> {
    use GgmlDType::{BF16, F16, F32, MXFP4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let row = Tensor::arange(0f32, 256., &Device::Cpu)?.reshape((1, 256))?;
    let types = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, MXFP4];
    let tensors: Result<Vec<_>> = types
        .into_iter()
        .map(|dtype| Ok((format!("{dtype:?}.weight"), QTensor::quantize(&row, dtype)?)))
        .collect();
    let tensors = tensors?;
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let entries = tokenizer::entries();
    let entries: Vec<_> = entries.iter().map(|(key, value)| (*key, value)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &entries, &tensors)?;
    Ok(file.into_inner())
}

/// Returns a file with several dtypes, as saved by Candle.
fn saved() -> Result<Vec<u8>> {
    let numbers = Tensor::arange(0f32, 24., &Device::Cpu)?.reshape((2, 3, 4))?;
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::U8, DType::I64, DType::F64];
    let tensors: Result<_> = dtypes
        .into_iter()
        .map(|dtype| Ok((format!("layer.{}", dtype.as_str()), numbers.to_dtype(dtype)?)))
        .collect();
    let file = tempfile::NamedTempFile::new()?;
    save(&tensors?, file.path())?;
    Ok(std::fs::read(file.path())?)
}

/// Numbers that are likely to cause overflows in lengths, counts and offsets.
const EXTREMES: [u64; 20] = [
    0,
    1,
    2,
    4,
    32,
    0x7f,
    0xff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 60,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// Applies one to four mutations to `bytes`; pieces to insert are inserted from `other`.
fn mutate(mut bytes: Vec<u8>, other: &[u8], random: &mut StdRng) -> Vec<u8> {
    for _ in 0..random.random_range(1..=4) {
        if bytes.is_empty() {
            break;
        }
        // Most fields are in the header, at the beginning of a file.
        let end = bytes.len();
        let limit = if random.random_ratio(3, 4) { end.div_ceil(4) } else { end };
        let at = random.random_range(0..limit);
        let piece = at..end.min(at + random.random_range(1..=24));
        match random.random_range(0..9) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => drop(
                bytes.splice(at..at, (0..piece.len() as u8).map(|_| random.random()).collect::<Vec<u8>>()),
            ),
            3 => drop(bytes.drain(piece)),
            4 => bytes.truncate(at),
            5 | 6 => {
                let number = EXTREMES.choose(random).unwrap_or(&0).to_le_bytes();
                let width = *[1, 2, 4, 8].choose(random).unwrap_or(&8);
                let width = width.min(end - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            7 => {
                let from = random.random_range(0..other.len());
                let inserted = &other[from..other.len().min(from + random.random_range(1..=200))];
                let replaced = if random.random() { piece } else { at..at };
                drop(bytes.splice(replaced, inserted.iter().copied()));
            }
            _ => {
                // In text headers, replaces a decimal number.
                let is_digit = |at: &usize| bytes[*at].is_ascii_digit();
                let Some(start) = (at..end).find(is_digit) else { continue };
                let stop = (start..end).find(|at| !is_digit(at)).unwrap_or(end);
                let number = EXTREMES.choose(random).unwrap_or(&0).to_string();
                drop(bytes.splice(start..stop, number.into_bytes()));
            }
        }
    }
    bytes
}

/// Returns the mutant with this number, which is determined by number and seed.
fn mutant(formats: &[Format], seed: u64, number: u64) -> (&Format, Vec<u8>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    let mut random = StdRng::from_seed(bytes);
    let format = formats.choose_weighted(&mut random, |format| format.share).expect("shares above zero");
    let original = format.originals.choose(&mut random).expect("a file for each format");
    let other = formats.choose(&mut random).and_then(|format| format.originals.choose(&mut random));
    (format, mutate(original.clone(), other.unwrap_or(original), &mut random))
}

/// Outcome of reading a mutant.
struct Outcome {
    read: bool,
    peak: usize,
}

/// Reads a mutant; returns an error if the reader panics or exceeds the memory limit.
fn check(format: &Format, bytes: &[u8]) -> std::result::Result<Outcome, String> {
    let work = || catch_unwind(AssertUnwindSafe(|| (format.read)(bytes).is_ok()));
    let (result, peak) = peak_of(work);
    let read = result.map_err(|panic| format!("panics: {}", text(&*panic)))?;
    let traced = Backtrace::capture().status() == BacktraceStatus::Captured;
    let for_trace = if traced { BACKTRACE_MEMORY } else { 0 };
    let allowed = BASE_MEMORY + MEMORY_PER_BYTE * bytes.len() + for_trace;
    // A regular expression of the tokenizer needs a second cache while another thread holds the first.
    let peak = if peak > allowed { peak.min(peak_of(work).1) } else { peak };
    match peak <= allowed {
        true => Ok(Outcome { read, peak }),
        false => {
            Err(format!("uses {peak} bytes of memory for a file of {} bytes, limit {allowed}", bytes.len()))
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Statistics of a run.
#[derive(Default)]
struct Tally {
    /// Numbers of accepted and rejected mutants by format.
    seen: BTreeMap<&'static str, (usize, usize)>,
    peak_memory: usize,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, formats: &[Format], seed: u64, number: u64) {
        let (format, bytes) = mutant(formats, seed, number);
        match check(format, &bytes) {
            Ok(outcome) => {
                let (read, rejected) = self.seen.entry(format.name).or_default();
                *if outcome.read { read } else { rejected } += 1;
                self.peak_memory = self.peak_memory.max(outcome.peak);
            }
            Err(why) => {
                let replay = format!("cargo xtask fuzz-files --seed {seed} --mutant {number}");
                self.failures.push(format!("{}: {why}\n    {replay}", format.name));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (format, (read, rejected)) in other.seen {
            let sum = self.seen.entry(format).or_default();
            *sum = (sum.0 + read, sum.1 + rejected);
        }
        self.peak_memory = self.peak_memory.max(other.peak_memory);
        self.failures.extend(other.failures);
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn mutants() -> Result<()> {
    let formats = formats()?;
    let seed = number("CANDLE_FUZZ_SEED").unwrap_or(SEED);
    if let Some(one) = number("CANDLE_FUZZ_MUTANT") {
        let (format, bytes) = mutant(&formats, seed, one);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("mutant-{seed}-{one}"));
        std::fs::write(&path, &bytes)?;
        println!("{}, {} bytes: {}", format.name, bytes.len(), path.display());
        println!("{:?}", (format.read)(&bytes).map_err(|error| error.to_string()));
        assert_eq!(check(format, &bytes).map(drop), Ok(()));
        return Ok(());
    }
    let count = number("CANDLE_FUZZ_FILES").unwrap_or(MUTANTS);
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let part = |first| {
            let formats = &formats;
            scope.spawn(move || {
                let mut tally = Tally::default();
                (first..count).step_by(threads as usize).for_each(|number| tally.add(formats, seed, number));
                tally
            })
        };
        for part in (0..threads).map(part).collect::<Vec<_>>() {
            tally.merge(part.join().expect("panics of readers are caught"));
        }
    });
    let seen: Vec<_> = tally
        .seen
        .iter()
        .map(|(format, (read, rejected))| format!("{format} {read} accepted and {rejected} rejected"))
        .collect();
    println!(
        "fuzz-files: {count} mutants with seed {seed}: {}; at most {} bytes of memory, {} failed",
        seen.join(", "),
        tally.peak_memory,
        tally.failures.len()
    );
    tally.failures.iter().take(20).for_each(|failure| println!("{failure}"));
    assert!(tally.failures.is_empty(), "{} mutants failed", tally.failures.len());
    if count >= MUTANTS {
        assert_eq!(tally.seen.len(), formats.len());
        assert!(tally.seen.values().all(|(read, rejected)| *read > 0 && *rejected > 0), "{:?}", tally.seen);
    }
    Ok(())
}
