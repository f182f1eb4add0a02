//! Tests that the executor supports all shipped instructions. `gfx*.txt` list the mnemonics (with suffixes)
//! of the shipped code objects other than gfx11's, `compiled.*.txt` instruction forms of other kernels.
use super::program::{Program, Step};
use super::wave_size::{PerWaveSize, WaveSizes};
use crate::isa::{self, Family};

const TARGETS: [(Family, &str, &str); 5] = [
    (Family::Rdna2, include_str!("gfx1030.txt"), include_str!("../../../tests/fixtures/gfx1030.txt")),
    (Family::Cdna1, include_str!("gfx908.txt"), include_str!("../../../tests/fixtures/gfx908.txt")),
    (Family::Cdna2, include_str!("gfx90a.txt"), include_str!("../../../tests/fixtures/gfx90a.txt")),
    (Family::Cdna3, include_str!("gfx942.txt"), include_str!("../../../tests/fixtures/gfx942.txt")),
    (Family::Rdna4, include_str!("gfx1201.txt"), include_str!("../../../tests/fixtures/gfx1201.txt")),
];

/// Returns the code bytes and the text of a fixture's line; `None` for comments.
fn parse(line: &str) -> Option<(Vec<u8>, &str)> {
    let (words, text) = line.split_once("  ")?;
    let words = words.split(' ').map(|word| u32::from_str_radix(word, 16).ok());
    let words: Option<Vec<u32>> = words.collect();
    Some((words?.into_iter().flat_map(u32::to_le_bytes).collect(), text))
}

fn is_known(family: Family, code: &[u8]) -> bool {
    // Code that falls through ends here (s_endpgm).
    let end = if family.is_gfx11() || family == Family::Rdna4 { 0xbfb0_0000u32 } else { 0xbf81_0000 };
    let program = Program::load(family, [code, &end.to_le_bytes()].concat(), 0x1000);
    if family.is_gfx9() { has_step::<64>(&program) } else { has_step::<32>(&program) }
}

fn has_step<const W: usize>(program: &Program) -> bool
where
    WaveSizes: PerWaveSize<W>,
{
    let (function, step) = program.function_at::<W>(0);
    !matches!(function.steps.get(step), Some(Step::Unknown | Step::Undecodable(_)) | None)
}

#[test]
fn every_shipped_mnemonic_has_a_step() {
    for (family, shipped, fixture) in TARGETS {
        let shipped: std::collections::BTreeSet<&str> = shipped.lines().collect();
        assert!(shipped.len() > 390);
        let (mut tried, mut unknown) = (std::collections::BTreeSet::new(), Vec::new());
        for (code, text) in fixture.lines().filter_map(parse) {
            // A dual instruction has two mnemonics.
            let mut halves = text.split(" :: ").map(|half| half.split(' ').next().unwrap_or_default());
            if !halves.clone().all(|name| shipped.contains(name)) {
                continue;
            }
            tried.extend(&mut halves);
            // The fixture's operands are random; these forms do not ship.
            let random = [" gds", " clamp", " idxen", " lds"].iter().any(|form| text.contains(form));
            let odd_buffer = text.starts_with("buffer_") && text.contains(", src_");
            // gfx12's scalar transcendentals ship without output modifiers, and only workgroup barriers do.
            let scaled =
                text.starts_with("v_s_") && [" mul:", " div:"].iter().any(|form| text.contains(form));
            let other_barrier =
                text.starts_with("s_barrier_") && !["-1", "0xffff"].iter().any(|n| text.ends_with(n));
            let ships = !(random || odd_buffer || scaled || other_barrier);
            if ships && !is_known(family, &code) {
                unknown.push(text);
            }
        }
        let untried: Vec<_> = shipped.difference(&tried).collect();
        assert!(unknown.is_empty(), "{family:?}: {} unknown: {unknown:#?}", unknown.len());
        assert!(untried.is_empty(), "{family:?}: not in the fixture: {untried:?}");
    }
}

#[test]
fn every_dual_instruction_has_a_step() {
    for (family, fixture, count) in [
        (Family::Rdna3, include_str!("../../../tests/fixtures/gfx1100.txt"), 1000),
        (Family::Rdna4, include_str!("../../../tests/fixtures/gfx1201.txt"), 50),
    ] {
        let dual = || fixture.lines().filter_map(parse).filter(|(_, text)| text.contains(" :: "));
        assert!(dual().count() > count);
        let unknown: Vec<_> =
            dual().filter(|(code, _)| !is_known(family, code)).map(|(_, text)| text).collect();
        assert!(unknown.is_empty(), "{family:?}: {unknown:#?}");
    }
}

#[test]
fn every_other_compiled_form_has_a_step() {
    for (family, lines) in [
        (Family::Cdna1, include_str!("compiled.gfx908.txt")),
        (Family::Cdna2, include_str!("compiled.gfx90a.txt")),
        (Family::Cdna3, include_str!("compiled.gfx942.txt")),
    ] {
        let forms: Vec<_> = lines.lines().filter_map(parse).collect();
        assert!(forms.len() > 400);
        for (code, text) in forms {
            let inst = isa::decode(family, &code, 0).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(isa::format(family, &inst), text, "{family:?}");
            assert!(is_known(family, &code), "{family:?}: {text}");
        }
    }
}
