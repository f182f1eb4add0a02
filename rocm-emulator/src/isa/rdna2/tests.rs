//! Decoding against llvm-mc: `tests/fixtures/gfx1030.txt` holds code words and the text that llvm-mc prints for them.
use super::super::Family;
use super::super::round_trip;

const FIXTURE: &str = include_str!("../../../tests/fixtures/gfx1030.txt");

#[test]
fn every_fixture_line_decodes_to_its_text() {
    round_trip::assert_decodes(Family::Rdna2, FIXTURE, 4000);
}

#[test]
fn the_fixture_covers_every_row() {
    round_trip::assert_covers(Family::Rdna2, FIXTURE);
}

#[test]
fn any_bytes_decode_or_give_an_error() {
    round_trip::assert_total(Family::Rdna2);
}
