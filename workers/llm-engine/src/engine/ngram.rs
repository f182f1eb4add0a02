//! Draft tokens by prompt lookup: the text probably continues as it did after an earlier occurrence of its last tokens.
use std::ops::RangeInclusive;

/// Returns `count` draft tokens, or none. They followed the latest earlier occurrence of the longest suffix of `tokens`
/// whose length is in `lengths`. Longer matches count only up to the end of `lengths`.
pub fn lookup(tokens: &[u32], lengths: &RangeInclusive<usize>, count: usize) -> Vec<u32> {
    let longest = *lengths.end();
    let common = |end: usize| {
        let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
        pairs.take(longest).take_while(|(earlier, last)| earlier == last).count()
    };
    let (mut length, mut next) = (0, 0);
    let may_match = |end: &usize| Some(&tokens[end - 1]) == tokens.last();
    for end in (1..tokens.len()).rev().filter(may_match) {
        let found = common(end);
        if found > length {
            (length, next) = (found, end);
        }
        if length == longest {
            break;
        }
    }
    let mut drafts = Vec::new();
    if length >= *lengths.start() && length > 0 {
        drafts.reserve(count);
        for index in next..next + count {
            // A repetition that reaches the end of the text continues with the drafts.
            drafts.push(tokens.get(index).copied().unwrap_or_else(|| drafts[index - tokens.len()]));
        }
    }
    drafts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_follow_the_latest_longest_match() {
        for (tokens, lengths, expected) in [
            (&[1, 2, 3, 4, 5, 1, 2][..], 1..=3, vec![3, 4, 5]),
            // The longer match wins over the later one.
            (&[7, 1, 2, 8, 9, 6, 1, 2, 3, 7, 1, 2], 1..=3, vec![8, 9, 6]),
            // The later of two equally long matches wins.
            (&[1, 2, 8, 1, 2, 9, 1, 2], 1..=2, vec![9, 1, 2]),
            // Repetitions continue.
            (&[5, 5], 1..=2, vec![5, 5, 5]),
            (&[1, 2, 1, 2], 1..=4, vec![1, 2, 1]),
            // Too short, absent, or nothing to search in.
            (&[1, 2, 3, 4, 2], 2..=3, vec![]),
            (&[1, 2, 3], 1..=3, vec![]),
            (&[1], 1..=3, vec![]),
            (&[], 1..=3, vec![]),
        ] {
            assert_eq!(lookup(tokens, &lengths, 3), expected, "{tokens:?}");
        }
        assert!(lookup(&[5, 5], &(1..=2), 0).is_empty());
    }
}
