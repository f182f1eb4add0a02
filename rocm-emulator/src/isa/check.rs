//! Compares our decoding with llvm-objdump's, instruction by instruction.
use super::{DecodeError, Family, decode, format};
use std::collections::HashSet;

/// A place where our decoding and llvm-objdump's differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Both decode, to different texts.
    Text { address: u64, ours: String, theirs: String },
    /// Ours is another number of bytes than the code words that llvm-objdump lists.
    Size { address: u64, ours: usize, theirs: usize },
    /// Ours does not decode.
    Undecoded { address: u64, theirs: String, error: DecodeError },
    /// The code words that llvm-objdump lists are not those of the text section.
    OtherCode { address: u64, theirs: String },
    /// Bytes that neither llvm-objdump nor we would skip: code without a line.
    Uncovered { address: u64 },
}

/// One instruction of a disassembly.
struct Line<'a> {
    text: &'a str,
    address: u64,
    code: Vec<u8>,
}

/// Decodes every instruction of `objdump_output` (of `llvm-objdump -d`) out of `text`, which is loaded at
/// `text_address`, and compares the texts. Returns the number of instructions that agree if all do, and that every
/// byte of `text` besides zero padding and s_code_end filling is covered.
///
/// # Errors
/// Every difference, in the order of the addresses.
pub fn compare_with_objdump(
    family: Family,
    text: &[u8],
    text_address: u64,
    objdump_output: &str,
) -> Result<usize, Vec<Mismatch>> {
    let mut mismatches = Vec::new();
    let mut covered = HashSet::new();
    let mut count = 0;
    for line in objdump_output.lines().filter_map(parse_line) {
        count += 1;
        covered.extend((line.address..).step_by(4).take(line.code.len() / 4));
        if let Some(mismatch) = compare_line(family, text, text_address, &line) {
            mismatches.push(mismatch);
        }
    }
    for (i, word) in text.chunks_exact(4).enumerate() {
        let address = text_address + 4 * i as u64;
        if !covered.contains(&address) && !is_filling(family, word) {
            mismatches.push(Mismatch::Uncovered { address });
        }
    }
    if mismatches.is_empty() { Ok(count) } else { Err(mismatches) }
}

fn compare_line(family: Family, text: &[u8], text_address: u64, line: &Line) -> Option<Mismatch> {
    let address = line.address;
    let theirs = line.text.to_string();
    let offset = address.checked_sub(text_address).and_then(|offset| usize::try_from(offset).ok());
    let Some(offset) = offset.filter(|&at| text.get(at..).is_some_and(|rest| rest.starts_with(&line.code)))
    else {
        return Some(Mismatch::OtherCode { address, theirs });
    };
    let inst = match decode(family, text, offset) {
        Ok(inst) => inst,
        Err(error) => return Some(Mismatch::Undecoded { address, theirs, error }),
    };
    let ours = format(family, &inst, address);
    if ours != theirs {
        return Some(Mismatch::Text { address, ours, theirs });
    }
    let size = usize::from(inst.size);
    (size != line.code.len()).then_some(Mismatch::Size { address, ours: size, theirs: line.code.len() })
}

/// Words that llvm-objdump leaves out: zeros between functions and what follows the last one.
fn is_filling(family: Family, word: &[u8]) -> bool {
    const S_CODE_END: [u8; 4] = 0xbf9f_0000u32.to_le_bytes();
    match family {
        Family::Rdna3 => word == [0; 4] || word == S_CODE_END,
    }
}

/// `\t<text>  // <address>: <code words> [<target>]`.
fn parse_line(line: &str) -> Option<Line<'_>> {
    let (text, comment) = line.strip_prefix('\t')?.rsplit_once("// ")?;
    let (address, words) = comment.split_once(": ")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let words = words.split_once(" <").map_or(words, |(words, _)| words);
    let mut code = Vec::with_capacity(12);
    for word in words.split_whitespace() {
        code.extend(u32::from_str_radix(word, 16).ok()?.to_le_bytes());
    }
    (!code.is_empty()).then(|| Line { text: text.trim_end(), address, code })
}
