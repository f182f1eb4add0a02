//! Comparison of the decoder with llvm-mc: `tests/fixtures/gfx*.txt` contain code words, and the text that
//! llvm-mc prints for them.
mod cdna;
mod rdna3;
mod rdna4;
mod round_trip;

use super::Family;

const GFX1100: &str = include_str!("../../../tests/fixtures/gfx1100.txt");

/// Families, the least number of lines, and their files. gfx1151 has all of gfx1100's instructions.
const FIXTURES: [(Family, usize, &[&str]); 7] = [
    (Family::Cdna1, 1500, &[include_str!("../../../tests/fixtures/gfx908.txt")]),
    (Family::Cdna2, 4000, &[include_str!("../../../tests/fixtures/gfx90a.txt")]),
    (Family::Cdna3, 4000, &[include_str!("../../../tests/fixtures/gfx942.txt")]),
    (Family::Rdna2, 4000, &[include_str!("../../../tests/fixtures/gfx1030.txt")]),
    (Family::Rdna3, 4000, &[GFX1100]),
    (Family::Rdna35, 4600, &[GFX1100, include_str!("../../../tests/fixtures/gfx1151.txt")]),
    (Family::Rdna4, 4000, &[include_str!("../../../tests/fixtures/gfx1201.txt")]),
];

#[test]
fn every_fixture_line_decodes_to_its_text() {
    for (family, at_least, fixture) in FIXTURES {
        round_trip::assert_decodes(family, &fixture.concat(), at_least);
    }
}

#[test]
fn the_fixtures_cover_every_row() {
    for (family, _, fixture) in FIXTURES {
        round_trip::assert_covers(family, &fixture.concat());
    }
}

#[test]
fn gfx1100_lacks_scalar_floats() {
    let gfx1151 = include_str!("../../../tests/fixtures/gfx1151.txt");
    let scalar: Vec<&str> = gfx1151.lines().filter(|line| !line.contains("_dpp")).collect();
    assert!(round_trip::assert_undecodable(Family::Rdna3, &scalar.join("\n")) > 200);
}

#[test]
fn any_bytes_decode_or_give_an_error() {
    for (family, _, _) in FIXTURES {
        round_trip::assert_any_bytes_are_handled(family);
    }
}
