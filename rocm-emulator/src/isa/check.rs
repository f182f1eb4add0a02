//! Comparison of the decoder with llvm-objdump, instruction by instruction.
use super::{DecodeError, Family, decode, format};
use std::collections::HashSet;

/// A difference between the decoder and llvm-objdump.
#[allow(missing_docs, reason = "each variant says what its fields are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Both decode the instruction, to different texts.
    Text { address: u64, ours: String, theirs: String },
    /// The decoded size in bytes differs from that of the code words that llvm-objdump lists.
    Size { address: u64, ours: usize, theirs: usize },
    /// The decoder reports an error.
    Undecoded { address: u64, theirs: String, error: DecodeError },
    /// The code words that llvm-objdump lists differ from the text section.
    OtherCode { address: u64, theirs: String },
    /// Code that llvm-objdump does not list, and that is not padding.
    Uncovered { address: u64 },
}

/// One line of a disassembly.
struct Line<'a> {
    text: &'a str,
    address: u64,
    code: Vec<u8>,
}

/// Decodes every instruction that `objdump_output` (of `llvm-objdump -d`) lists from `text`, which is loaded
/// at `text_address`, and compares the texts. Returns the number of instructions if all agree and all of
/// `text`, except padding, is listed.
///
/// # Errors
/// Returns all differences in the order of their addresses.
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
        if !covered.contains(&address) && !is_padding(family, word) {
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
    let ours = format(family, &inst);
    if ours != theirs {
        return Some(Mismatch::Text { address, ours, theirs });
    }
    let size = usize::from(inst.size);
    (size != line.code.len()).then_some(Mismatch::Size { address, ours: size, theirs: line.code.len() })
}

/// Returns true for words that llvm-objdump omits: padding between and after functions.
fn is_padding(family: Family, word: &[u8]) -> bool {
    const S_CODE_END: [u8; 4] = 0xbf9f_0000u32.to_le_bytes();
    const S_NOP: [u8; 4] = 0xbf80_0000u32.to_le_bytes();
    match family {
        Family::Rdna3 | Family::Rdna35 | Family::Rdna4 => word == [0; 4] || word == S_CODE_END,
        // Padding after a kernel is s_nop; on gfx10 s_code_end follows the last kernel.
        Family::Rdna2 => word == [0; 4] || word == S_NOP || word == S_CODE_END,
        _ => word == [0; 4] || word == S_NOP,
    }
}

/// Parses a line of the form `\t<text>  // <address>: <code words> [<target>]`.
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

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
k.hsaco:\tfile format elf64-amdgpu

Disassembly of section .text:

0000000000001000 <k>:
\ts_load_b128 s[4:7], s[0:1], null                           // 000000001000: F4080100 F8000000
\ts_cbranch_scc1 330                                         // 000000001008: BFA2014A <k+0x534>
\ts_endpgm                                                   // 00000000100C: BFB00000
";

    fn text() -> Vec<u8> {
        let words = [0xf408_0100u32, 0xf800_0000, 0xbfa2_014a, 0xbfb0_0000, 0, 0xbf9f_0000];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn equal_texts_are_counted() {
        assert_eq!(compare_with_objdump(Family::Rdna3, &text(), 0x1000, OUTPUT), Ok(3));
    }

    #[test]
    fn every_kind_of_difference_is_reported() {
        let find = |text: &[u8], output: &str| {
            compare_with_objdump(Family::Rdna3, text, 0x1000, output).expect_err("they differ")
        };
        let renamed = find(&text(), &OUTPUT.replace("s_endpgm", "s_nop 0"));
        let (ours, theirs) = ("s_endpgm".to_string(), "s_nop 0".to_string());
        assert_eq!(renamed, [Mismatch::Text { address: 0x100c, ours, theirs }]);

        let mut changed = text();
        changed[12] = 1;
        let theirs = "s_endpgm".to_string();
        assert_eq!(find(&changed, OUTPUT), [Mismatch::OtherCode { address: 0x100c, theirs }]);

        let longer = OUTPUT.replace("BFB00000", "BFB00000 00000000");
        assert_eq!(find(&text(), &longer), [Mismatch::Size { address: 0x100c, ours: 4, theirs: 8 }]);

        let shorter = OUTPUT.replace("\ts_endpgm", "s_endpgm");
        assert_eq!(find(&text(), &shorter), [Mismatch::Uncovered { address: 0x100c }]);

        // 0xbf860000 has no opcode.
        let mut unknown = text();
        unknown[12..16].copy_from_slice(&0xbf86_0000u32.to_le_bytes());
        let found = find(&unknown, &OUTPUT.replace("BFB00000", "BF860000"));
        assert!(matches!(&found[..], [Mismatch::Undecoded { address: 0x100c, .. }]), "{found:?}");
    }
}
