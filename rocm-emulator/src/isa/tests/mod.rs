//! Comparison of the decoder with llvm-mc: `tests/fixtures/gfx*.txt` contain code words, and the text that
//! llvm-mc prints for them.
mod cdna;
mod rdna3;
mod rdna4;
mod round_trip;

use super::Family;

const GFX908: &str = include_str!("../../../tests/fixtures/gfx908.txt");
const GFX942: &str = include_str!("../../../tests/fixtures/gfx942.txt");
const GFX950: &str = include_str!("../../../tests/fixtures/gfx950.txt");
const GFX1100: &str = include_str!("../../../tests/fixtures/gfx1100.txt");
const GFX1151: &str = include_str!("../../../tests/fixtures/gfx1151.txt");

/// Parts of the lines of gfx908 that gfx906 lacks.
const NOT_ON_GFX906: &[&str] = &[
    " v_mfma_",
    " v_accvgpr_",
    " v_dot2c_",
    " v_dot4c_",
    " v_dot8c_",
    " v_pk_fmac_",
    "_atomic_add_f32",
    "_atomic_pk_add_f16",
];

/// Families, the least number of lines, their files, and parts of the lines that they lack. gfx1151 has all of
/// gfx1100's instructions.
const FIXTURES: [(Family, usize, &[&str], &[&str]); 9] = [
    (Family::Gcn5, 1600, &[GFX908], NOT_ON_GFX906),
    (Family::Cdna1, 1500, &[GFX908], &[]),
    (Family::Cdna2, 4000, &[include_str!("../../../tests/fixtures/gfx90a.txt")], &[]),
    (Family::Cdna3, 4000, &[GFX942], &[]),
    (Family::Cdna4, 5700, &[GFX942, GFX950], &["_xf32"]),
    (Family::Rdna2, 4000, &[include_str!("../../../tests/fixtures/gfx1030.txt")], &[]),
    (Family::Rdna3, 4000, &[GFX1100], &[]),
    (Family::Rdna35, 4600, &[GFX1100, GFX1151], &[]),
    (Family::Rdna4, 4000, &[include_str!("../../../tests/fixtures/gfx1201.txt")], &[]),
];

/// Returns the lines of files that contain, or do not contain, one of the parts.
fn select(files: &[&str], parts: &[&str], contain: bool) -> String {
    let text = files.concat();
    let is_wanted =
        |line: &&str| !line.starts_with('#') && parts.iter().any(|part| line.contains(part)) == contain;
    text.lines().filter(is_wanted).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_fixture_line_decodes_to_its_text() {
    for (family, at_least, files, lacking) in FIXTURES {
        round_trip::assert_decodes(family, &select(files, lacking, false), at_least);
    }
}

#[test]
fn the_fixtures_cover_every_row() {
    for (family, _, files, lacking) in FIXTURES {
        round_trip::assert_covers(family, &select(files, lacking, false));
    }
}

#[test]
fn families_that_share_a_column_lack_each_others_instructions() {
    let cases: [(Family, &str, &[&str], usize); 4] = [
        (Family::Gcn5, GFX908, NOT_ON_GFX906, 80),
        (Family::Cdna3, GFX950, &["  "], 300),
        (Family::Cdna4, GFX942, &["_xf32"], 12),
        (Family::Rdna3, GFX1151, &["  s_"], 200),
    ];
    for (family, file, parts, at_least) in cases {
        let undecodable = round_trip::assert_undecodable(family, &select(&[file], parts, true));
        assert!(undecodable >= at_least, "{family:?}: {undecodable} lines");
    }
}

#[test]
fn any_bytes_decode_or_give_an_error() {
    for (family, ..) in FIXTURES {
        round_trip::assert_any_bytes_are_handled(family);
    }
}
