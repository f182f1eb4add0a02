//! Search for marks in text that is not complete.

/// Returns the position of the earliest mark and the mark; of several at one position, the longest.
pub(super) fn first(text: &str, marks: impl Iterator<Item = &'static str>) -> Option<(usize, &'static str)> {
    let found = marks.filter_map(|mark| Some((text.find(mark)?, mark)));
    found.min_by_key(|&(position, mark)| (position, std::cmp::Reverse(mark.len())))
}

/// Returns the number of bytes at the end of `text` that may be the beginning of a mark.
pub(super) fn overlap(text: &str, marks: impl Iterator<Item = &'static str>) -> usize {
    let of_mark = |mark: &str| {
        let lengths = (1..mark.len()).rev();
        lengths
            .filter(|&len| mark.is_char_boundary(len))
            .find(|&len| text.ends_with(&mark[..len]))
            .unwrap_or(0)
    };
    marks.map(of_mark).max().unwrap_or(0)
}

/// Returns true if `text` may become a mark that is longer.
pub(super) fn is_partial(text: &str, mut marks: impl Iterator<Item = &'static str>) -> bool {
    marks.any(|mark| mark.len() > text.len() && mark.starts_with(text))
}
