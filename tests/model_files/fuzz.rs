//! Mutants of real files: whatever is done to one, it is read or refused; no panic, no more memory than its size
//! allows, no reading without end. `cargo xtask fuzz-files` runs more of them.
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

/// The fixed run of `cargo xtask test`.
const MUTANTS: u64 = 100_000;
const SEED: u64 = 1;

/// What reading may take: a value of metadata takes 32 bytes in memory and at least one in the file; error texts,
/// tables, and what a tokenizer keeps for its regular expressions, come on top.
const BYTES_FOR_EACH: usize = 40;
const BYTES_AT_LEAST: usize = 1 << 20;
/// With `RUST_BACKTRACE=1` a text may hold a backtrace, for which the program's debug information is read.
const BYTES_OF_BACKTRACE: usize = 128 << 20;

/// A format: how its files are read, and files to start from.
struct Format {
    name: &'static str,
    read: fn(&[u8]) -> Result<()>,
    /// How many of a thousand mutants are of this format.
    share: usize,
    originals: Vec<Vec<u8>>,
}

/// A file that is read by a bounded number of calls.
struct Bounded<'a> {
    inner: Cursor<&'a [u8]>,
    calls: usize,
}

impl<'a> Bounded<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { inner: Cursor::new(bytes), calls: 1000 + 8 * bytes.len() }
    }

    fn count(&mut self) {
        assert!(self.calls > 0, "the reader does not come to an end");
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

/// Header and tensors; what is read as a tensor is what lies there.
fn read_gguf(bytes: &[u8]) -> Result<()> {
    let mut reader = Bounded::new(bytes);
    let content = Content::read(&mut reader)?;
    for (name, info) in &content.tensor_infos {
        let tensor = content.tensor(&mut Bounded::new(bytes), name, &Device::Cpu)?;
        let start = (content.tensor_data_offset + info.offset) as usize;
        let data = tensor.data()?;
        assert!(bytes[start..].starts_with(&data), "{name} is not what the file holds");
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

/// By way of a file, as models are loaded.
fn read_mapped_safetensors(bytes: &[u8]) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(bytes)?;
    // SAFETY: nobody else writes the file.
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
            originals: vec![saved()?, safetensors::good()],
        },
        Format {
            name: "mapped safetensors",
            read: read_mapped_safetensors,
            share: 20,
            originals: vec![saved()?],
        },
    ])
}

/// A file of every quantized type that is read, as Candle writes it.
fn quantized() -> Result<Vec<u8>> {
    use GgmlDType::{BF16, F16, F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let row = Tensor::arange(0f32, 256., &Device::Cpu)?.reshape((1, 256))?;
    let types = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K];
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

/// A file of several dtypes, as Candle saves it.
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

/// Numbers at which lengths, counts and offsets go wrong.
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

/// One to four changes of `bytes`; `other` is what pieces are taken from.
fn mutate(mut bytes: Vec<u8>, other: &[u8], random: &mut StdRng) -> Vec<u8> {
    for _ in 0..random.random_range(1..=4) {
        if bytes.is_empty() {
            break;
        }
        // Headers come first, and most fields are in them.
        let end = bytes.len();
        let reach = if random.random_ratio(3, 4) { end.div_ceil(4) } else { end };
        let at = random.random_range(0..reach);
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
                let taken = &other[from..other.len().min(from + random.random_range(1..=200))];
                let replaced = if random.random() { piece } else { at..at };
                drop(bytes.splice(replaced, taken.iter().copied()));
            }
            _ => {
                // Where the header is text, its numbers are digits.
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

/// The mutant of this number: the same seed gives the same.
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

/// What became of a mutant.
struct Outcome {
    read: bool,
    peak: usize,
}

/// Reads a mutant; a panic or too much memory is an error.
fn check(format: &Format, bytes: &[u8]) -> std::result::Result<Outcome, String> {
    let work = || catch_unwind(AssertUnwindSafe(|| (format.read)(bytes).is_ok()));
    let (result, peak) = peak_of(work);
    let read = result.map_err(|panic| format!("panics: {}", text(&*panic)))?;
    let traced = Backtrace::capture().status() == BacktraceStatus::Captured;
    let for_trace = if traced { BYTES_OF_BACKTRACE } else { 0 };
    let allowed = BYTES_AT_LEAST + BYTES_FOR_EACH * bytes.len() + for_trace;
    match peak <= allowed {
        true => Ok(Outcome { read, peak }),
        false => {
            Err(format!("takes {peak} bytes of memory for {} bytes, {allowed} are allowed", bytes.len()))
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("with no text")
}

/// What a run has seen.
#[derive(Default)]
struct Tally {
    /// How many mutants of each format were read, and refused.
    seen: BTreeMap<&'static str, (usize, usize)>,
    most_memory: usize,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, formats: &[Format], seed: u64, number: u64) {
        let (format, bytes) = mutant(formats, seed, number);
        match check(format, &bytes) {
            Ok(outcome) => {
                let (read, refused) = self.seen.entry(format.name).or_default();
                *if outcome.read { read } else { refused } += 1;
                self.most_memory = self.most_memory.max(outcome.peak);
            }
            Err(why) => {
                let replay = format!("cargo xtask fuzz-files --seed {seed} --mutant {number}");
                self.failures.push(format!("{}: {why}\n    {replay}", format.name));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (format, (read, refused)) in other.seen {
            let sum = self.seen.entry(format).or_default();
            *sum = (sum.0 + read, sum.1 + refused);
        }
        self.most_memory = self.most_memory.max(other.most_memory);
        self.failures.extend(other.failures);
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
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
        .map(|(format, (read, refused))| format!("{format} {read} read and {refused} refused"))
        .collect();
    println!(
        "fuzz-files: {count} mutants with seed {seed}: {}; at most {} bytes of memory, {} failed",
        seen.join(", "),
        tally.most_memory,
        tally.failures.len()
    );
    tally.failures.iter().take(20).for_each(|failure| println!("{failure}"));
    assert!(tally.failures.is_empty(), "{} mutants failed", tally.failures.len());
    if count >= MUTANTS {
        assert_eq!(tally.seen.len(), formats.len());
        assert!(tally.seen.values().all(|(read, refused)| *read > 0 && *refused > 0), "{:?}", tally.seen);
    }
    Ok(())
}
