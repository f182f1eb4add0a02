//! Checks of a family's decoder against a fixture of code words, and the texts that llvm-mc prints for them.
use super::super::tables::tables;
use super::super::{Family, decode, format};
use std::collections::HashSet;

/// Returns the bytes of hexadecimal code words.
pub fn code(words: &str) -> Vec<u8> {
    let word = |word| u32::from_str_radix(word, 16).expect("a hexadecimal word");
    words.split(' ').flat_map(|w| word(w).to_le_bytes()).collect()
}

/// Returns (code, text) of every line of a fixture.
fn lines(fixture: &str) -> impl Iterator<Item = (Vec<u8>, &str)> {
    fixture.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (words, text) = line.split_once("  ").expect("code, two blanks, text");
        (code(words), text)
    })
}

/// Asserts that every line decodes to its text and its number of bytes.
pub fn assert_decodes(family: Family, fixture: &str, at_least: usize) {
    assert!(lines(fixture).count() > at_least, "only {} lines", lines(fixture).count());
    let mut mismatches = Vec::new();
    for (code, text) in lines(fixture) {
        match decode(family, &code, 0) {
            Err(error) => mismatches.push(format!("{text}: {error}")),
            Ok(inst) => {
                let ours = format(family, &inst);
                if ours != text || usize::from(inst.size) != code.len() {
                    mismatches.push(format!("{text}: {ours}, {} bytes of {code:02x?}", inst.size));
                }
            }
        }
    }
    assert!(mismatches.is_empty(), "{} lines:\n{}", mismatches.len(), mismatches.join("\n"));
}

/// Asserts that the fixture contains every row, and rows of VOP1, VOP2 and VOPC in these encodings.
pub fn assert_covers(family: Family, fixture: &str) {
    let mut seen = HashSet::new();
    for (code, text) in lines(fixture) {
        let inst = decode(family, &code, 0).unwrap_or_else(|error| panic!("{text}: {error}"));
        seen.extend(inst.pair.as_deref().map(|pair| (pair.encoding, pair.name)));
        seen.insert((inst.encoding, inst.name));
    }
    let rows = tables(family).rows();
    let missing: Vec<_> = rows.filter(|(encoding, row)| !seen.contains(&(*encoding, row.name))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Asserts that no line of a fixture decodes, and returns their number.
pub fn assert_undecodable(family: Family, fixture: &str) -> usize {
    let undecodable = |(code, text): (Vec<u8>, &str)| {
        assert!(decode(family, &code, 0).is_err(), "{family:?} decodes {text}");
    };
    lines(fixture).map(undecodable).count()
}

/// Returns pseudorandom words (SplitMix64).
fn words(mut state: u64) -> impl Iterator<Item = u32> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    })
}

/// Asserts that any bytes decode to a printable instruction or an error, without reads beyond the text.
pub fn assert_any_bytes_are_handled(family: Family) {
    let mut source = words(1);
    let mut decoded = 0;
    for _ in 0..300_000 {
        let text: Vec<u8> = source.by_ref().take(4).flat_map(u32::to_le_bytes).collect();
        match decode(family, &text, 0) {
            Ok(inst) => {
                decoded += 1;
                assert!([4, 8, 12].contains(&inst.size), "{inst:?}");
                let printed = format(family, &inst);
                assert!(!printed.contains("/* not"), "{inst:?}");
            }
            Err(error) => assert_eq!(error.offset, 0),
        }
        // Truncated text must not be read beyond its end.
        for length in 0..text.len() {
            if let Ok(inst) = decode(family, &text[..length], 0) {
                assert!(usize::from(inst.size) <= length);
            }
        }
    }
    assert!(decoded > 100_000, "{decoded}");
    let text = code("bf800000");
    for offset in [1, 4, 5, usize::MAX - 3, usize::MAX] {
        let error = decode(family, &text, offset).expect_err("outside");
        assert_eq!(error.offset, offset);
    }
}
