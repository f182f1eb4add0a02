//! One of the two dimensions that a filter moves along.
use std::ops::Range;

/// Sizes and steps along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    pub input: usize,
    pub filter: usize,
    pub output: usize,
    pub padding: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Axis {
    /// Positions of the output for these sizes; `None` where the filter is larger than the padded input.
    pub fn fitting(&self) -> Option<usize> {
        let reach = self.dilation.checked_mul(self.filter - 1)?.checked_add(1)?;
        let padded = self.padding.checked_mul(2)?.checked_add(self.input)?;
        Some(padded.checked_sub(reach)? / self.stride + 1)
    }

    /// The place of the input that an element of the filter meets for an output, unless it is padding.
    pub fn met(&self, output: usize, element: usize) -> Option<usize> {
        let place = (output * self.stride + element * self.dilation).checked_sub(self.padding)?;
        (place < self.input).then_some(place)
    }

    /// The outputs for which an element of the filter meets the input, and the place where it meets it first.
    pub fn outputs(&self, element: usize) -> (Range<usize>, usize) {
        let ahead = element * self.dilation;
        let first = self.padding.saturating_sub(ahead).div_ceil(self.stride);
        let end = match (self.input + self.padding).checked_sub(ahead + 1) {
            Some(last) => (last / self.stride + 1).min(self.output),
            None => 0,
        };
        // An empty range has no place.
        (first..end.max(first), (first * self.stride + ahead).saturating_sub(self.padding))
    }

    /// The output for which an element of the filter meets a place of the input.
    pub fn output_at(&self, place: usize, element: usize) -> Option<usize> {
        let ahead = (place + self.padding).checked_sub(element * self.dilation)?;
        (ahead.is_multiple_of(self.stride) && ahead / self.stride < self.output)
            .then_some(ahead / self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_ways_meet_the_same_places() {
        for [input, filter, padding, stride, dilation] in
            [[7, 3, 1, 2, 1], [5, 2, 3, 1, 2], [4, 3, 4, 3, 2], [9, 1, 0, 4, 1], [1, 3, 1, 1, 1]]
        {
            let mut axis = Axis { input, filter, output: 0, padding, stride, dilation };
            axis.output = axis.fitting().unwrap();
            for element in 0..filter {
                let (range, first) = axis.outputs(element);
                for output in 0..axis.output {
                    let place =
                        output as i64 * stride as i64 + element as i64 * dilation as i64 - padding as i64;
                    let inside = place >= 0 && place < input as i64;
                    assert_eq!(axis.met(output, element), inside.then_some(place as usize));
                    assert_eq!(range.contains(&output), inside, "{axis:?} {element} {output}");
                    if inside {
                        assert_eq!(first + (output - range.start) * stride, place as usize);
                        assert_eq!(axis.output_at(place as usize, element), Some(output));
                    }
                }
            }
        }
        let large = Axis { input: 3, filter: 3, output: 1, padding: 0, stride: 1, dilation: 2 };
        assert_eq!(large.fitting(), None);
    }
}
