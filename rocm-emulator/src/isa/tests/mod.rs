//! Comparison of the decoder with llvm-mc: `tests/fixtures/gfx*.txt` contain code words, and the text that
//! llvm-mc prints for them.
mod cdna;
mod rdna3;
mod rdna4;
mod round_trip;

use super::Family;

const FIXTURES: [(Family, usize, &str); 6] = [
    (Family::Cdna1, 1500, include_str!("../../../tests/fixtures/gfx908.txt")),
    (Family::Cdna2, 4000, include_str!("../../../tests/fixtures/gfx90a.txt")),
    (Family::Cdna3, 4000, include_str!("../../../tests/fixtures/gfx942.txt")),
    (Family::Rdna2, 4000, include_str!("../../../tests/fixtures/gfx1030.txt")),
    (Family::Rdna3, 4000, include_str!("../../../tests/fixtures/gfx1100.txt")),
    (Family::Rdna4, 4000, include_str!("../../../tests/fixtures/gfx1201.txt")),
];

#[test]
fn every_fixture_line_decodes_to_its_text() {
    for (family, at_least, fixture) in FIXTURES {
        round_trip::assert_decodes(family, fixture, at_least);
    }
}

#[test]
fn the_fixtures_cover_every_row() {
    for (family, _, fixture) in FIXTURES {
        round_trip::assert_covers(family, fixture);
    }
}

#[test]
fn any_bytes_decode_or_give_an_error() {
    for (family, _, _) in FIXTURES {
        round_trip::assert_any_bytes_are_handled(family);
    }
}
